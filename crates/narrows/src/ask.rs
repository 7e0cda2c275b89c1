//! Questions to the person at the terminal.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use narrows_client::{Decide, Pending, PermissionOption, Question, Reply};
use tokio::sync::oneshot;

use crate::cli::Output;
use crate::terminal::{Colour, Style, line};

/// The terminal, as somebody who can be asked. One question at a time.
pub(crate) struct Terminal {
    colour: Colour,
    /// Held by the question that is being asked.
    turn: Arc<Mutex<()>>,
}

impl Terminal {
    /// The terminal, if a person watches it and nobody else reads what is printed.
    pub(crate) fn find(output: Output) -> Option<Self> {
        let watched = std::io::stderr().is_terminal() && std::io::stdin().is_terminal();
        (watched && output == Output::Text)
            .then(|| Self { colour: Colour::of_stderr(), turn: Arc::default() })
    }
}

impl Decide for Terminal {
    fn decide(&self, question: Arc<Question>) -> Pending {
        let (answer, answered) = oneshot::channel();
        let (colour, turn) = (self.colour, Arc::clone(&self.turn));
        // A thread of its own: a person takes as long as they take, and nothing else may wait for them.
        let asking = std::thread::Builder::new().name("question".to_owned()).spawn(move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            if !answer.is_closed() {
                // Whoever no longer waits has decided otherwise.
                let _ = answer.send(ask(&question, colour).unwrap_or(Reply::Reject));
            }
        });
        Box::pin(async move {
            match asking {
                Ok(_) => answered.await.unwrap_or(Reply::Reject),
                Err(_) => Reply::Reject,
            }
        })
    }
}

/// Asks in the terminal itself, wherever stdin and stdout lead.
fn ask(question: &Question, colour: Colour) -> std::io::Result<Reply> {
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    let mut reader = BufReader::new(terminal.try_clone()?);
    let text = render(question, colour);
    loop {
        terminal.write_all(text.as_bytes())?;
        let mut answer = String::new();
        if reader.read_line(&mut answer)? == 0 {
            return Ok(Reply::Reject);
        }
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
