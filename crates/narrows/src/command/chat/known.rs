//! What is known of the agent and the session, in words.

use std::fmt::Write;

use narrows_client::{Choice, Introduced, Listed, Session, Snapshot};

use super::meaning::Own;
use crate::terminal::line;

/// Something of which one is chosen: the one that is, and those that can be.
pub(super) struct Choosing {
    current: Option<String>,
    available: Vec<Choice>,
}

impl Choosing {
    /// The models or modes of a session, in whichever form the agent tells them.
    pub(super) fn of(snapshot: &Snapshot, category: &str) -> Option<Self> {
        if let Some(option) = snapshot.option(category) {
            let current = option.current.as_str().map(str::to_owned);
            return Some(Self { current, available: option.values.clone() });
        }
        let older = if category == "model" { &snapshot.models } else { &snapshot.modes };
        older.as_ref().map(|choices| Self {
            current: Some(choices.current.clone()),
            available: choices.available.clone(),
        })
    }

    /// The name of the one that is.
    pub(super) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// The ids of those that can be.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.available.iter().map(|choice| choice.id.as_str())
    }

    /// As a list.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for choice in &self.available {
            let mark = if self.current.as_ref() == Some(&choice.id) { '*' } else { ' ' };
            _ = write!(text, "{mark} {}", line(&choice.id));
            if choice.name != choice.id {
                _ = write!(text, "  {}", line(&choice.name));
            }
            if let Some(description) = &choice.description {
                _ = write!(text, "  ({})", line(description));
            }
            text.push('\n');
        }
        text
    }
}

/// The commands of both.
pub(super) fn help(snapshot: &Snapshot) -> String {
    let ours = Own::ALL
        .iter()
        .filter(|(_, name, ..)| snapshot.commands.iter().all(|command| command.name != *name))
        .map(|(_, name, behind, what)| {
            (format!("/{name} {behind}").trim_end().to_owned(), (*what).to_owned())
        });
    let theirs = snapshot.commands.iter().map(|command| {
        let hint = command.hint.as_deref().unwrap_or_default();
        (line(&format!("/{} {hint}", command.name)), line(&command.description))
    });
    let (ours, theirs): (Vec<_>, Vec<_>) = (ours.collect(), theirs.collect());
    let width = ours.iter().chain(&theirs).map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(30);
    let mut text = String::new();
    for (name, what) in &ours {
        _ = writeln!(text, "  {name:width$}  {what}");
    }
    if !theirs.is_empty() {
        text.push_str("of the agent:\n");
        for (name, what) in &theirs {
            _ = writeln!(text, "  {name:width$}  {what}");
        }
    }
    text.push_str("//word sends /word as it is, and a line that ends with \\ goes on in the next\n");
    text
}

/// Who the agent is.
pub(super) fn agent(provider: &str, known: &Introduced) -> String {
    let name = match &known.info {
        Some(info) => format!("{} {}", line(&info.name), line(&info.version)).trim_end().to_owned(),
        None => line(provider),
    };
    format!("{name}, protocol {}", known.version.number())
}

/// What is known of both.
pub(super) fn status(provider: &str, known: &Introduced, session: &Session, cwd: &str) -> String {
    let snapshot = session.snapshot();
    let mut text = format!("agent: {}\nsession: {}\n", agent(provider, known), line(session.id()));
    if let Some(title) = &snapshot.title {
        _ = writeln!(text, "title: {}", line(title));
    }
    for category in ["model", "mode"] {
        let choosing = Choosing::of(&snapshot, category);
        if let Some(current) = choosing.as_ref().and_then(Choosing::current) {
            _ = writeln!(text, "{category}: {}", line(current));
        }
    }
    _ = writeln!(text, "directory: {}", line(cwd));
    text
}

/// The sessions that the agent knows.
pub(super) fn sessions(listed: &[Listed], current: &str) -> String {
    if listed.is_empty() {
        return "the agent knows no session in this directory\n".to_owned();
    }
    let mut text = String::new();
    for session in listed {
        let mark = if session.session_id == current { '*' } else { ' ' };
        _ = write!(text, "{mark} {}", line(&session.session_id));
        for more in [&session.updated_at, &session.title].into_iter().flatten() {
            _ = write!(text, "  {}", line(more));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use narrows_client::{Choices, Command};

    use super::*;

    fn choice(id: &str, name: &str) -> Choice {
        Choice { id: id.to_owned(), name: name.to_owned(), description: None }
    }

    #[test]
    fn choices_are_listed_with_the_one_that_is() {
        let models =
            Some(Choices { current: "b".to_owned(), available: vec![choice("a", "A"), choice("b", "b")] });
        let snapshot = Snapshot { models, ..Snapshot::default() };
        let models = Choosing::of(&snapshot, "model").unwrap();
        assert_eq!(models.render(), "  a  A\n* b\n");
        assert_eq!((models.current(), models.ids().count()), (Some("b"), 2));
        assert!(Choosing::of(&snapshot, "mode").is_none());
    }

    #[test]
    fn help_lists_both_and_what_the_agent_has_only_once() {
        let command = |name: &str| Command {
            name: name.to_owned(),
            description: "Their words".to_owned(),
            hint: Some("what".to_owned()),
        };
        let snapshot =
            Snapshot { commands: vec![command("status"), command("review")], ..Snapshot::default() };
        let text = help(&snapshot);
        assert!(text.contains("  /review what") && text.contains("  /quit "), "{text}");
        assert_eq!(text.matches("/status").count(), 1, "{text}");
    }
}
