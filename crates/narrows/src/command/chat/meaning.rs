//! What a line means: something to say, a command of the agent, or one of ours.

use narrows_client::Command;

/// A command of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Help,
    Model,
    Mode,
    Sessions,
    New,
    Resume,
    Restart,
    Status,
    Quit,
}

impl Own {
    /// All of them, with what stands behind them and what they do.
    pub(super) const ALL: [(Self, &'static str, &'static str, &'static str); 9] = [
        (Self::Help, "help", "", "list the commands"),
        (Self::Model, "model", "[NAME]", "list the models, or choose one"),
        (Self::Mode, "mode", "[NAME]", "list the modes, or choose one"),
        (Self::Sessions, "sessions", "", "list the sessions in this directory"),
        (Self::New, "new", "", "begin a new session"),
        (Self::Resume, "resume", "ID", "go on with another session"),
        (Self::Restart, "restart", "", "start the agent again, and go on with the session if it can"),
        (Self::Status, "status", "", "tell what is known of the agent and the session"),
        (Self::Quit, "quit", "", "leave; so does Ctrl-D"),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, ..)| *known == name).map(|(own, ..)| *own)
    }
}

/// What a line means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing.
    Nothing,
    /// It is to be sent.
    Say(String),
    /// One of our commands, with what stands behind it.
    Own(Own, String),
    /// A command that nobody knows.
    Unknown(String),
}

/// What `line` means to an agent with these commands. Its own commands win over ours, and `//` sends what is none.
pub(super) fn meaning(line: &str, commands: &[Command]) -> Meaning {
    let line = line.trim();
    if line.is_empty() {
        return Meaning::Nothing;
    }
    let Some(rest) = line.strip_prefix('/') else { return Meaning::Say(line.to_owned()) };
    if rest.starts_with('/') {
        return Meaning::Say(rest.to_owned());
    }
    let (name, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if commands.iter().any(|command| command.name == name) {
        return Meaning::Say(line.to_owned());
    }
    match Own::named(name) {
        Some(own) => Meaning::Own(own, behind.trim().to_owned()),
        None => Meaning::Unknown(name.to_owned()),
    }
}

/// What Tab can make of a line that begins with a slash: the commands of both.
pub(super) fn completions<'a>(commands: &'a [Command]) -> impl Iterator<Item = String> + 'a {
    let ours = Own::ALL.iter().map(|(_, name, ..)| *name);
    let ours = ours.filter(|name| commands.iter().all(|command| command.name != *name));
    commands.iter().map(|command| command.name.as_str()).chain(ours).map(|name| format!("/{name}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn command(name: &str) -> Command {
        Command { name: name.to_owned(), description: String::new(), hint: None }
    }

    #[test]
    fn a_line_is_said_unless_it_is_a_command_of_ours() {
        let commands = [command("review"), command("status")];
        let say = |text: &str| Meaning::Say(text.to_owned());
        let own = |own, behind: &str| Meaning::Own(own, behind.to_owned());
        for (line, expected) in [
            ("", Meaning::Nothing),
            (" \t", Meaning::Nothing),
            ("hello", say("hello")),
            (" hello \n", say("hello")),
            ("/review all", say("/review all")),
            // The agent has one of that name.
            ("/status", say("/status")),
            ("/help", own(Own::Help, "")),
            ("/model  big one ", own(Own::Model, "big one")),
            ("//help", say("/help")),
            ("//", say("/")),
            ("/", Meaning::Unknown(String::new())),
            ("/helf", Meaning::Unknown("helf".to_owned())),
            ("a/help", say("a/help")),
        ] {
            assert_eq!(meaning(line, &commands), expected, "{line:?}");
        }
    }

    #[test]
    fn both_sorts_of_commands_are_completed_and_none_twice() {
        let all: Vec<String> = completions(&[command("review"), command("quit")]).collect();
        assert_eq!(all.iter().filter(|name| *name == "/quit").count(), 1);
        assert!(all.contains(&"/review".to_owned()) && all.contains(&"/model".to_owned()), "{all:?}");
    }

    proptest! {
        #[test]
        fn whatever_is_typed_can_be_sent(text in "[^/\\s][^\\x00]{0,40}") {
            let trimmed = text.trim().to_owned();
            prop_assert_eq!(meaning(&text, &[]), Meaning::Say(trimmed.clone()));
            prop_assert_eq!(meaning(&format!("//{text}"), &[]), Meaning::Say(format!("/{trimmed}")));
        }

        #[test]
        fn nothing_that_begins_with_one_slash_is_sent_unasked(text in "/[^/]{0,40}") {
            prop_assert!(!matches!(meaning(&text, &[]), Meaning::Say(_)));
        }
    }
}
