//! Questions to the person at the terminal.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use narrows_client::{Decide, Pending, PermissionOption, Question, Reply};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::oneshot;

use crate::cli::Output;
use crate::terminal::{Colour, Style, line};

/// The longest answer.
const LONGEST: usize = 4096;

/// The terminal, as somebody who can be asked. One question at a time.
pub(crate) struct Terminal {
    colour: Colour,
    /// Held by the question that is being asked.
    turn: Arc<Mutex<()>>,
}

impl Terminal {
    /// The terminal, if a person watches it and nobody else reads what is printed.
    pub(crate) fn find(output: Output) -> Option<Self> {
        let watched = io::stderr().is_terminal() && io::stdin().is_terminal();
        (watched && output == Output::Text)
            .then(|| Self { colour: Colour::of_stderr(), turn: Arc::default() })
    }
}

impl Decide for Terminal {
    fn decide(&self, question: Arc<Question>) -> Pending {
        let asking = Asking::begin(question, self.colour, Arc::clone(&self.turn));
        Box::pin(async move {
            match asking {
                Ok(mut asking) => asking.reply().await,
                Err(_) => Reply::Reject,
            }
        })
    }
}

/// A question that a person has been asked. Dropping it takes the question back.
pub(crate) struct Asking {
    answered: oneshot::Receiver<Reply>,
    /// Closed with this, which is how the thread learns that nobody wants to know any more.
    wanted: PipeWriter,
}

impl Asking {
    /// Asks as soon as `turn` can be had. In a thread of its own: a person takes as long as they take, and nothing else
    /// may wait for them.
    pub(crate) fn begin(question: Arc<Question>, colour: Colour, turn: Arc<Mutex<()>>) -> io::Result<Self> {
        let (unwanted, wanted) = io::pipe()?;
        let (answer, answered) = oneshot::channel();
        std::thread::Builder::new().name("question".to_owned()).spawn(move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            if !answer.is_closed() {
                // Whoever no longer waits has decided otherwise.
                let _ = answer.send(ask(&question, colour, &unwanted).unwrap_or(Reply::Reject));
            }
        })?;
        Ok(Self { answered, wanted })
    }

    /// The answer. Safe to cancel.
    pub(crate) async fn reply(&mut self) -> Reply {
        (&mut self.answered).await.unwrap_or(Reply::Reject)
    }

    /// Takes the question back, and waits until nothing more is read or written for it.
    pub(crate) async fn withdraw(self) {
        let Self { answered, wanted } = self;
        drop(wanted);
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

/// Asks in the terminal itself, wherever stdin and stdout lead, until it is answered or `unwanted` ends.
fn ask(question: &Question, colour: Colour, unwanted: &PipeReader) -> io::Result<Reply> {
    let mut terminal = terminal()?;
    let text = render(question, colour);
    // What was typed before the question is no answer to it.
    tcflush(&terminal, QueueSelector::IFlush)?;
    loop {
        terminal.write_all(text.as_bytes())?;
        let mut waits = [PollFd::new(&terminal, PollFlags::IN), PollFd::new(unwanted, PollFlags::IN)];
        poll(&mut waits, None)?;
        if !waits[1].revents().is_empty() {
            terminal.write_all(b"\n")?;
            return Ok(Reply::Reject);
        }
        let mut answer = [0; LONGEST];
        let length = terminal.read(&mut answer)?;
        if length == 0 {
            return Ok(Reply::Reject);
        }
        let answer = String::from_utf8_lossy(&answer[..length]);
        if let Some(reply) = read(&question.options, answer.trim()) {
            return Ok(reply);
        }
    }
}
/// The question as it is shown.
pub(crate) fn render(question: &Question, colour: Colour) -> String {
    let mut text = format!("\n{} {}\n", colour.paint(Style::Hint, "may the agent?"), line(&question.title));
    if let Some(description) = &question.description {
        text.push_str(&format!("  {}\n", line(description)));
    }
    if !question.input.is_null() {
        text.push_str(&format!("  {}\n", line(&question.input.to_string())));
    }
    text.push_str(&format!(
        "  {}\n",
        colour.paint(Style::Dim, &line(&question.decision.because.to_string()))
    ));
    let mut ways = vec!["[y]es".to_owned(), "[n]o".to_owned()];
    for (number, option) in question.options.iter().enumerate() {
        ways.push(format!("[{}] {}", number + 1, line(&option.name)));
    }
    text.push_str(&ways.join("  "));
    text.push_str(" > ");
    text
}

/// What an answer means; `None` if it means nothing.
pub(crate) fn read(options: &[PermissionOption], answer: &str) -> Option<Reply> {
    match answer.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(Reply::Allow),
        "n" | "no" | "" => Some(Reply::Reject),
        number => {
            let option = options.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some(Reply::Select(option.option_id.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_or_asked_for_again() {
        let option = |id: &str| PermissionOption {
            option_id: id.to_owned(),
            name: id.to_uppercase(),
            kind: "allow_once".to_owned(),
        };
        let options = [option("a"), option("b")];
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
