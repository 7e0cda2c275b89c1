//! Descriptions of the agent and the session.

use std::fmt::Write;

use narrows_client::{AgentDescription, OptionValue, Session, SessionSummary, Snapshot};

use super::parse::ChatCommand;
use crate::terminal::line;

pub(super) struct ChoiceList {
    current: Option<String>,
    available: Vec<OptionValue>,
}

impl ChoiceList {
    /// Returns the models or modes of a session. Agents report them in one of several forms.
    pub(super) fn from_snapshot(snapshot: &Snapshot, category: &str) -> Option<Self> {
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

    pub(super) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.available.iter().map(|choice| choice.id.as_str())
    }

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

pub(super) fn help(snapshot: &Snapshot) -> String {
    let ours = ChatCommand::ALL
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
        text.push_str("commands of the agent:\n");
        for (name, what) in &theirs {
            _ = writeln!(text, "  {name:width$}  {what}");
        }
    }
    text.push_str("//word sends /word as text; a line that ends with \\ continues on the next line\n");
    text
}

pub(super) fn agent(provider: &str, known: &AgentDescription) -> String {
    let name = match &known.info {
        Some(info) => format!("{} {}", line(&info.name), line(&info.version)).trim_end().to_owned(),
        None => line(provider),
    };
    format!("{name}, protocol {}", known.version.number())
}

pub(super) fn status(provider: &str, known: &AgentDescription, session: &Session, cwd: &str) -> String {
    let snapshot = session.snapshot();
    let mut text = format!("agent: {}\nsession: {}\n", agent(provider, known), line(session.id()));
    if let Some(title) = &snapshot.title {
        _ = writeln!(text, "title: {}", line(title));
    }
    for category in ["model", "mode"] {
        let choosing = ChoiceList::from_snapshot(&snapshot, category);
        if let Some(current) = choosing.as_ref().and_then(ChoiceList::current) {
            _ = writeln!(text, "{category}: {}", line(current));
        }
    }
    _ = writeln!(text, "directory: {}", line(cwd));
    text
}

pub(super) fn sessions(listed: &[SessionSummary], current: &str) -> String {
    if listed.is_empty() {
        return "the agent has no sessions in this directory\n".to_owned();
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
    use narrows_client::{Command, Selection};

    use super::*;

    fn choice(id: &str, name: &str) -> OptionValue {
        OptionValue { id: id.to_owned(), name: name.to_owned(), description: None }
    }

    #[test]
    fn choices_are_listed_with_the_current_one() {
        let models =
            Some(Selection { current: "b".to_owned(), available: vec![choice("a", "A"), choice("b", "b")] });
        let snapshot = Snapshot { models, ..Snapshot::default() };
        let models = ChoiceList::from_snapshot(&snapshot, "model").unwrap();
        assert_eq!(models.render(), "  a  A\n* b\n");
        assert_eq!((models.current(), models.ids().count()), (Some("b"), 2));
        assert!(ChoiceList::from_snapshot(&snapshot, "mode").is_none());
    }

    #[test]
    fn help_lists_all_commands_once() {
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
