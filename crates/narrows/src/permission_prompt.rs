//! Permission prompts at the terminal.

mod marks;
mod render;
mod visible;

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use narrows_client::{PermissionOption, PermissionReply, PermissionRequest};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{QueueSelector, tcflush, tcgetwinsize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use self::render::{MAX_OPTIONS, Rendered, Size, render};
use crate::cli::Output;
use crate::terminal::{Color, Echo};

const MAX_ANSWER_BYTES: usize = 4096;

/// The delay before keys count as an answer: a key pressed earlier was meant for something else, such as the previous
/// prompt.
const READING_DELAY: Duration = Duration::from_millis(300);

/// The assumed size of a terminal that does not report one.
const DEFAULT_SIZE: Size = Size { rows: 24, columns: 80 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApprovalSource {
    OwnGate,
    /// The agent, or a gate in front of the agent. Every agent can claim to have a gate.
    Unproven,
}

/// Returns `true` if a user can be asked: a user watches the terminal, and no program reads stdout.
pub(crate) fn is_possible(output: Output) -> bool {
    output == Output::Text && io::stderr().is_terminal() && io::stdin().is_terminal()
}

/// A prompt on the terminal. Dropping it withdraws the prompt.
pub(crate) struct PermissionPrompt {
    answered: oneshot::Receiver<PermissionReply>,
    stage: PromptStage,
    /// The thread accepts answers once a byte is written here. Closing this pipe tells the thread that no
    /// answer is needed any more.
    control: PipeWriter,
}

enum PromptStage {
    Writing(oneshot::Receiver<()>),
    /// The prompt is on the screen since this time. Answers do not count yet.
    Reading(Instant),
    Answering,
}

impl PermissionPrompt {
    /// Starts the prompt in a thread of its own: it blocks until the user answers.
    pub(crate) fn start(
        question: Arc<PermissionRequest>,
        source: ApprovalSource,
        color: Color,
    ) -> io::Result<Self> {
        Self::start_at(terminal, question, source, color)
    }

    pub(crate) fn start_at(
        terminal: impl FnOnce() -> io::Result<File> + Send + 'static,
        question: Arc<PermissionRequest>,
        source: ApprovalSource,
        color: Color,
    ) -> io::Result<Self> {
        let (controlled, control) = io::pipe()?;
        let (answer, answered) = oneshot::channel();
        let (written, writing) = oneshot::channel();
        std::thread::Builder::new().name("question".to_owned()).spawn(move || {
            let asked = || {
                let mut terminal = terminal()?;
                let rendered = render(&question, source, color, size(&terminal));
                terminal.write_all(rendered.question.as_bytes())?;
                // If the receiver is gone, `control` is closed, which ends the prompt.
                let _ = written.send(());
                run_prompt(&mut terminal, &question, &rendered, &controlled)
            };
            // If the receiver is gone, no answer is needed.
            let _ = answer.send(asked().unwrap_or(PermissionReply::NoApprover));
        })?;
        Ok(Self { answered, stage: PromptStage::Writing(writing), control })
    }

    /// Waits for the answer. Cancel-safe.
    pub(crate) async fn reply(&mut self) -> PermissionReply {
        loop {
            match &mut self.stage {
                // A thread that fails before it has written the prompt still sends an answer.
                PromptStage::Writing(writing) => {
                    let _ = writing.await;
                    self.stage = PromptStage::Reading(Instant::now() + READING_DELAY);
                }
                PromptStage::Reading(until) => {
                    sleep_until(*until).await;
                    // If the thread has ended, it has sent an answer.
                    let _ = self.control.write_all(b"\n");
                    self.stage = PromptStage::Answering;
                }
                PromptStage::Answering => {
                    return (&mut self.answered).await.unwrap_or(PermissionReply::NoApprover);
                }
            }
        }
    }

    /// Withdraws the prompt, and waits until the terminal is no longer used.
    pub(crate) async fn withdraw(self) {
        let Self { answered, control, .. } = self;
        drop(control);
        let _ = answered.await;
    }
}

/// Opens the controlling terminal, otherwise the terminal on stdin.
fn terminal() -> io::Result<File> {
    let ours = File::options().read(true).write(true).open("/dev/tty");
    ours.or_else(|error| {
        let stdin = io::stdin();
        if stdin.is_terminal() { Ok(File::from(stdin.as_fd().try_clone_to_owned()?)) } else { Err(error) }
    })
}

/// Asks a question at the terminal. Returns `true` for a yes, `false` for anything else.
pub(crate) fn confirm(text: &str) -> io::Result<bool> {
    let mut terminal = terminal()?;
    // Discards keys typed before the prompt.
    tcflush(&terminal, QueueSelector::IFlush)?;
    terminal.write_all(text.as_bytes())?;
    let mut answer = [0; MAX_ANSWER_BYTES];
    let length = terminal.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn size(terminal: &File) -> Size {
    let cells = |cells: u16, default: usize| if cells == 0 { default } else { usize::from(cells) };
    tcgetwinsize(terminal).map_or(DEFAULT_SIZE, |size| Size {
        rows: cells(size.ws_row, DEFAULT_SIZE.rows),
        columns: cells(size.ws_col, DEFAULT_SIZE.columns),
    })
}

/// Waits until answers count, and reads one. It is read from the terminal itself, because stdin may be a file
/// or pipe. Ends when `control` is closed.
fn run_prompt(
    terminal: &mut File,
    question: &PermissionRequest,
    rendered: &Rendered,
    mut control: &PipeReader,
) -> io::Result<PermissionReply> {
    let is_wanted = control.read(&mut [0])? > 0;
    if is_wanted && let Some(reply) = read_answer(terminal, question, rendered, control)? {
        return Ok(reply);
    }
    terminal.write_all(b"\n  The request was withdrawn.\n")?;
    Ok(PermissionReply::Reject)
}

/// Reads keys until one of them answers. Returns `None` if `control` is closed first.
fn read_answer(
    terminal: &mut File,
    question: &PermissionRequest,
    rendered: &Rendered,
    control: &PipeReader,
) -> io::Result<Option<PermissionReply>> {
    // Discards keys pressed before the prompt was readable.
    tcflush(&*terminal, QueueSelector::IFlush)?;
    let _shown = Echo::on(terminal);
    loop {
        terminal.write_all(rendered.keys.as_bytes())?;
        let mut waits = [PollFd::new(&*terminal, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        poll(&mut waits, None)?;
        if !waits[1].revents().is_empty() {
            return Ok(None);
        }
        let mut answer = [0; MAX_ANSWER_BYTES];
        let length = terminal.read(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer[..length]);
        match parse_answer(&question.options, answer.trim()) {
            Some(PermissionReply::Reject) => return Ok(Some(PermissionReply::Reject)),
            Some(reply) if rendered.is_whole => return Ok(Some(reply)),
            invalid => {
                terminal.write_all(rendered.question.as_bytes())?;
                let why = valid_answers(&question.options, invalid.is_some());
                terminal.write_all(why.as_bytes())?;
            }
        }
    }
}

/// Returns the message after an invalid answer. `is_partial` is `true` if the answer was a yes, but the
/// request is not shown completely.
fn valid_answers(options: &[PermissionOption], is_partial: bool) -> String {
    if is_partial {
        return "  It is not shown completely, so it can only be rejected: answer n, or press Enter.\n"
            .to_owned();
    }
    match options.len().min(MAX_OPTIONS) {
        0 => "  Invalid answer: answer y or n.\n".to_owned(),
        1 => "  Invalid answer: answer y, n or 1.\n".to_owned(),
        count => format!("  Invalid answer: answer y, n, or a number from 1 to {count}.\n"),
    }
}

/// Parses an answer. `None` if it is invalid.
fn parse_answer(options: &[PermissionOption], answer: &str) -> Option<PermissionReply> {
    match answer.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(PermissionReply::Allow),
        "n" | "no" | "" => Some(PermissionReply::Reject),
        number => {
            let offered = &options[..options.len().min(MAX_OPTIONS)];
            let option = offered.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some(PermissionReply::Select(option.option_id.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use narrows_policy::{Access, Decision, DecisionReason, Kind, Verdict};
    use serde_json::Value;

    use super::*;

    fn option(id: &str, kind: &str) -> PermissionOption {
        PermissionOption { option_id: id.to_owned(), name: id.to_uppercase(), kind: kind.to_owned() }
    }

    pub(super) fn question() -> PermissionRequest {
        let because =
            DecisionReason::Preset { access: Access::Medium, kind: Kind::Delete, why: "asks about it" };
        PermissionRequest {
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

    fn open_terminal() -> (File, File) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&person).and_then(|()| unlockpt(&person)).expect("a terminal");
        let name = ptsname(&person, Vec::new()).expect("a name");
        let path = name.to_str().expect("text").to_owned();
        let program = File::options().read(true).write(true).open(path).expect("a terminal");
        (File::from(person), program)
    }

    /// Reads from the terminal until a line ends with `end`.
    fn read_until(person: &mut impl Read, end: &str) -> String {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(end.as_bytes()) {
            assert_eq!(person.read(&mut byte).expect("a terminal"), 1);
            seen.push(byte[0]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn keys_pressed_before_the_prompt_is_readable_are_ignored() {
        let (mut person, program) = open_terminal();
        let begun = PermissionPrompt::start_at(
            move || Ok(program),
            Arc::new(question()),
            ApprovalSource::Unproven,
            Color::off(),
        );
        let mut asking = begun.expect("a thread");
        let mut output_thread = person.try_clone().expect("a terminal");
        read_until(&mut output_thread, "what: delete\r\n");
        person.write_all(b"y\n").expect("keys");
        // The echo proves that the terminal has received the keys.
        read_until(&mut output_thread, "y\r\n");
        let before = Instant::now();
        let answers = std::thread::spawn(move || {
            read_until(&mut output_thread, "Allow it? ");
            person.write_all(b"n\n").expect("keys");
            (person, output_thread)
        });
        assert_eq!(asking.reply().await, PermissionReply::Reject);
        assert!(before.elapsed() >= READING_DELAY);
        drop(answers.join());
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_can_be_withdrawn_before_it_accepts_answers() {
        let (person, program) = open_terminal();
        let begun = PermissionPrompt::start_at(
            move || Ok(program),
            Arc::new(question()),
            ApprovalSource::Unproven,
            Color::off(),
        );
        begun.expect("a thread").withdraw().await;
        let mut lines = BufReader::new(person).lines();
        let is_last = |line: &io::Result<String>| {
            line.as_ref().is_ok_and(|line| line.contains("The request was withdrawn."))
        };
        assert!(lines.any(|line| is_last(&line)));
    }

    #[test]
    fn invalid_answers_are_asked_for_again() {
        let options = [option("a", "allow_once"), option("b", "allow_once")];
        for (answer, expected) in [
            ("y", Some(PermissionReply::Allow)),
            ("YES", Some(PermissionReply::Allow)),
            ("", Some(PermissionReply::Reject)),
            ("no", Some(PermissionReply::Reject)),
            ("2", Some(PermissionReply::Select("b".to_owned()))),
            ("3", None),
            ("0", None),
            ("maybe", None),
        ] {
            assert_eq!(parse_answer(&options, answer), expected, "{answer}");
        }
    }
}
