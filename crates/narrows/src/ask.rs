//! Questions to the person at the terminal.

mod marks;
mod render;
mod visible;

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use narrows_client::{PermissionOption, Question, Reply};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{QueueSelector, tcflush, tcgetwinsize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use self::render::{MAX_OPTIONS, Rendered, Size, render};
use crate::cli::Output;
use crate::terminal::{Colour, Echo};

/// The longest answer.
const LONGEST: usize = 4096;

/// How long a question is on the screen before an answer counts: a key that was pressed for something else, such as a
/// question that this one replaced, is not an answer to it.
const READING_DELAY: Duration = Duration::from_millis(300);

/// The size of a terminal that does not tell it.
const DEFAULT_SIZE: Size = Size { rows: 24, columns: 80 };

/// How an approval that a question mentions is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApprovalSource {
    /// The question comes from a gate of this process.
    OwnGate,
    /// The agent, or a gate in front of it, says so. Any agent can.
    Unproven,
}

/// Whether a person watches the terminal and nobody else reads what is printed.
pub(crate) fn is_possible(output: Output) -> bool {
    output == Output::Text && io::stderr().is_terminal() && io::stdin().is_terminal()
}

/// A question that a person has been asked. Dropping it takes the question back.
pub(crate) struct Asking {
    answered: oneshot::Receiver<Reply>,
    stage: Stage,
    /// A byte in it lets the thread take answers. It is closed with this, which is how the thread learns that the answer
    /// is no longer needed.
    control: PipeWriter,
}

/// How far a question is.
enum Stage {
    /// It is being written to the terminal.
    Writing(oneshot::Receiver<()>),
    /// It is on the screen. Answers count from then on.
    Reading(Instant),
    /// Answers are taken.
    Answering,
}

impl Asking {
    /// Asks, in a thread of its own: a person takes as long as they take, and nothing else may wait for them.
    pub(crate) fn begin(question: Arc<Question>, source: ApprovalSource, colour: Colour) -> io::Result<Self> {
        Self::begin_at(terminal, question, source, colour)
    }

    /// Asks at the terminal that `terminal` opens.
    pub(crate) fn begin_at(
        terminal: impl FnOnce() -> io::Result<File> + Send + 'static,
        question: Arc<Question>,
        source: ApprovalSource,
        colour: Colour,
    ) -> io::Result<Self> {
        let (controlled, control) = io::pipe()?;
        let (answer, answered) = oneshot::channel();
        let (written, writing) = oneshot::channel();
        std::thread::Builder::new().name("question".to_owned()).spawn(move || {
            let asked = || {
                let mut terminal = terminal()?;
                let rendered = render(&question, source, colour, size(&terminal));
                terminal.write_all(rendered.question.as_bytes())?;
                // Whoever no longer waits closes `control`.
                let _ = written.send(());
                ask(&mut terminal, &question, &rendered, &controlled)
            };
            // Whoever no longer waits has decided otherwise.
            let _ = answer.send(asked().unwrap_or(Reply::Nobody));
        })?;
        Ok(Self { answered, stage: Stage::Writing(writing), control })
    }

    /// The answer. Safe to cancel.
    pub(crate) async fn reply(&mut self) -> Reply {
        loop {
            match &mut self.stage {
                // The thread that fails before it has written answers as well.
                Stage::Writing(writing) => {
                    let _ = writing.await;
                    self.stage = Stage::Reading(Instant::now() + READING_DELAY);
                }
                Stage::Reading(until) => {
                    sleep_until(*until).await;
                    // If the thread has ended there is an answer.
                    let _ = self.control.write_all(b"\n");
                    self.stage = Stage::Answering;
                }
                Stage::Answering => return (&mut self.answered).await.unwrap_or(Reply::Nobody),
            }
        }
    }

    /// Takes the question back, and waits until nothing more is read or written for it.
    pub(crate) async fn withdraw(self) {
        let Self { answered, control, .. } = self;
        drop(control);
        let _ = answered.await;
    }
}

/// The terminal: ours, or if we have none to ourselves, the one that is our stdin.
fn terminal() -> io::Result<File> {
    let ours = File::options().read(true).write(true).open("/dev/tty");
    ours.or_else(|error| {
        let stdin = io::stdin();
        if stdin.is_terminal() { Ok(File::from(stdin.as_fd().try_clone_to_owned()?)) } else { Err(error) }
    })
}

/// Asks for a yes. Anything else, and nothing at all, is none.
pub(crate) fn agrees(text: &str) -> io::Result<bool> {
    let mut terminal = terminal()?;
    // What was typed before the question is no answer to it.
    tcflush(&terminal, QueueSelector::IFlush)?;
    terminal.write_all(text.as_bytes())?;
    let mut answer = [0; LONGEST];
    let length = terminal.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// The size of a terminal.
fn size(terminal: &File) -> Size {
    let cells = |cells: u16, default: usize| if cells == 0 { default } else { usize::from(cells) };
    tcgetwinsize(terminal).map_or(DEFAULT_SIZE, |size| Size {
        rows: cells(size.ws_row, DEFAULT_SIZE.rows),
        columns: cells(size.ws_col, DEFAULT_SIZE.columns),
    })
}

/// Waits until answers count, and takes one from the terminal itself, wherever stdin and stdout lead. `control` ends if the
/// question is taken back.
fn ask(
    terminal: &mut File,
    question: &Question,
    rendered: &Rendered,
    mut control: &PipeReader,
) -> io::Result<Reply> {
    let is_wanted = control.read(&mut [0])? > 0;
    if is_wanted && let Some(reply) = take_answer(terminal, question, rendered, control)? {
        return Ok(reply);
    }
    terminal.write_all(b"\n  The question was taken back.\n")?;
    Ok(Reply::Reject)
}

/// Shows the keys until one of them answers. `None` if `control` ends before.
fn take_answer(
    terminal: &mut File,
    question: &Question,
    rendered: &Rendered,
    control: &PipeReader,
) -> io::Result<Option<Reply>> {
    // Keys that were pressed before the question could be read are no answer to it.
    tcflush(&*terminal, QueueSelector::IFlush)?;
    let _shown = Echo::on(terminal);
    loop {
        terminal.write_all(rendered.keys.as_bytes())?;
        let mut waits = [PollFd::new(&*terminal, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        poll(&mut waits, None)?;
        if !waits[1].revents().is_empty() {
            return Ok(None);
        }
        let mut answer = [0; LONGEST];
        let length = terminal.read(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer[..length]);
        match read(&question.options, answer.trim()) {
            Some(Reply::Reject) => return Ok(Some(Reply::Reject)),
            Some(reply) if rendered.is_whole => return Ok(Some(reply)),
            invalid => {
                terminal.write_all(rendered.question.as_bytes())?;
                let why = valid_answers(&question.options, invalid.is_some());
                terminal.write_all(why.as_bytes())?;
            }
        }
    }
}

/// Returns what to answer instead of what was typed. `is_refused` if that was a yes, and the question is not shown whole.
fn valid_answers(options: &[PermissionOption], is_refused: bool) -> String {
    if is_refused {
        return "  It is not shown whole, so it can only be rejected: answer n, or press Enter.\n".to_owned();
    }
    match options.len().min(MAX_OPTIONS) {
        0 => "  This is not an answer: answer y or n.\n".to_owned(),
        1 => "  This is not an answer: answer y, n or 1.\n".to_owned(),
        count => format!("  This is not an answer: answer y, n, or a number from 1 to {count}.\n"),
    }
}

/// What an answer means; `None` if it means nothing.
fn read(options: &[PermissionOption], answer: &str) -> Option<Reply> {
    match answer.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(Reply::Allow),
        "n" | "no" | "" => Some(Reply::Reject),
        number => {
            let offered = &options[..options.len().min(MAX_OPTIONS)];
            let option = offered.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some(Reply::Select(option.option_id.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use narrows_policy::{Access, Because, Decision, Kind, Verdict};
    use serde_json::Value;

    use super::*;

    fn option(id: &str, kind: &str) -> PermissionOption {
        PermissionOption { option_id: id.to_owned(), name: id.to_uppercase(), kind: kind.to_owned() }
    }

    /// A question about nothing in particular.
    pub(super) fn question() -> Question {
        let because = Because::Preset { access: Access::Medium, kind: Kind::Delete, why: "asks about it" };
        Question {
            id: "perm_1".to_owned(),
            session_id: "s".to_owned(),
            run_id: None,
            title: "Clean up".to_owned(),
            description: None,
            tool_call_id: None,
            tool: None,
            kind: "delete".to_owned(),
            input: Value::Null,
            locations: Vec::new(),
            subjects: Vec::new(),
            changes: Vec::new(),
            options: vec![option("a", "allow_once"), option("b", "allow_always")],
            decision: Decision { verdict: Verdict::Ask, because, about: None },
            approval: None,
            problem: None,
        }
    }

    /// The person's side of a terminal, and the program's.
    fn open_terminal() -> (File, File) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&person).and_then(|()| unlockpt(&person)).expect("a terminal");
        let name = ptsname(&person, Vec::new()).expect("a name");
        let path = name.to_str().expect("text").to_owned();
        let program = File::options().read(true).write(true).open(path).expect("a terminal");
        (File::from(person), program)
    }

    /// Reads what the person sees until a line ends with this.
    fn sees(person: &mut impl Read, end: &str) -> String {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(end.as_bytes()) {
            assert_eq!(person.read(&mut byte).expect("a terminal"), 1);
            seen.push(byte[0]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_was_pressed_before_the_question_could_be_read_is_no_answer() {
        let (mut person, program) = open_terminal();
        let begun = Asking::begin_at(
            move || Ok(program),
            Arc::new(question()),
            ApprovalSource::Unproven,
            Colour::off(),
        );
        let mut asking = begun.expect("a thread");
        let mut screen = person.try_clone().expect("a terminal");
        sees(&mut screen, "what: delete\r\n");
        person.write_all(b"y\n").expect("keys");
        // The echo: the terminal has the keys.
        sees(&mut screen, "y\r\n");
        let before = Instant::now();
        let answers = std::thread::spawn(move || {
            sees(&mut screen, "Allow it? ");
            person.write_all(b"n\n").expect("keys");
            (person, screen)
        });
        assert_eq!(asking.reply().await, Reply::Reject);
        assert!(before.elapsed() >= READING_DELAY);
        drop(answers.join());
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_can_be_taken_back_before_it_can_be_answered() {
        let (person, program) = open_terminal();
        let begun = Asking::begin_at(
            move || Ok(program),
            Arc::new(question()),
            ApprovalSource::Unproven,
            Colour::off(),
        );
        begun.expect("a thread").withdraw().await;
        let mut lines = BufReader::new(person).lines();
        let is_last = |line: &io::Result<String>| {
            line.as_ref().is_ok_and(|line| line.contains("The question was taken back."))
        };
        assert!(lines.any(|line| is_last(&line)));
    }

    #[test]
    fn answers_are_understood_or_asked_for_again() {
        let options = [option("a", "allow_once"), option("b", "allow_once")];
        for (answer, expected) in [
            ("y", Some(Reply::Allow)),
            ("YES", Some(Reply::Allow)),
            ("", Some(Reply::Reject)),
            ("no", Some(Reply::Reject)),
            ("2", Some(Reply::Select("b".to_owned()))),
            ("3", None),
            ("0", None),
            ("maybe", None),
        ] {
            assert_eq!(read(&options, answer), expected, "{answer}");
        }
    }
}
