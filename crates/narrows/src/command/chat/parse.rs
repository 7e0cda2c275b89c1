//! Parses an input line: a prompt, a command of the agent, or a chat command.

use narrows_client::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
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

impl ChatCommand {
    /// All commands with arguments and descriptions.
    pub(super) const ALL: [(Self, &'static str, &'static str, &'static str); 9] = [
        (Self::Help, "help", "", "list the commands"),
        (Self::Model, "model", "[NAME]", "list models, or select one"),
        (Self::Mode, "mode", "[NAME]", "list modes, or select one"),
        (Self::Sessions, "sessions", "", "list sessions in this directory"),
        (Self::New, "new", "", "open a new session"),
        (Self::Resume, "resume", "ID", "continue another session"),
        (Self::Restart, "restart", "", "restart the agent, and continue the session if possible"),
        (Self::Status, "status", "", "show the agent and the session"),
        (Self::Quit, "quit", "", "exit (also Ctrl-D)"),
    ];

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, ..)| *known == name).map(|(own, ..)| *own)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParsedLine {
    Empty,
    Prompt(String),
    Command(ChatCommand, String),
    Unknown(String),
}

/// Parses `line`. Commands of the agent win over chat commands, and `//` sends a line that begins with a slash.
pub(super) fn parse_line(line: &str, commands: &[Command]) -> ParsedLine {
    let line = line.trim();
    if line.is_empty() {
        return ParsedLine::Empty;
    }
    let Some(rest) = line.strip_prefix('/') else { return ParsedLine::Prompt(line.to_owned()) };
    if rest.starts_with('/') {
        return ParsedLine::Prompt(rest.to_owned());
    }
    let (name, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if commands.iter().any(|command| command.name == name) {
        return ParsedLine::Prompt(line.to_owned());
    }
    match ChatCommand::from_name(name) {
        Some(own) => ParsedLine::Command(own, behind.trim().to_owned()),
        None => ParsedLine::Unknown(name.to_owned()),
    }
}

pub(super) fn completions<'a>(commands: &'a [Command]) -> impl Iterator<Item = String> + 'a {
    let ours = ChatCommand::ALL.iter().map(|(_, name, ..)| *name);
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
    fn a_line_is_a_prompt_unless_it_is_a_chat_command() {
        let commands = [command("review"), command("status")];
        let say = |text: &str| ParsedLine::Prompt(text.to_owned());
        let own = |own, behind: &str| ParsedLine::Command(own, behind.to_owned());
        for (line, expected) in [
            ("", ParsedLine::Empty),
            (" \t", ParsedLine::Empty),
            ("hello", say("hello")),
            (" hello \n", say("hello")),
            ("/review all", say("/review all")),
            // The agent has a command of this name, so the line is a prompt.
            ("/status", say("/status")),
            ("/help", own(ChatCommand::Help, "")),
            ("/model  big one ", own(ChatCommand::Model, "big one")),
            ("//help", say("/help")),
            ("//", say("/")),
            ("/", ParsedLine::Unknown(String::new())),
            ("/helf", ParsedLine::Unknown("helf".to_owned())),
            ("a/help", say("a/help")),
        ] {
            assert_eq!(parse_line(line, &commands), expected, "{line:?}");
        }
    }

    #[test]
    fn all_commands_are_completed_once() {
        let all: Vec<String> = completions(&[command("review"), command("quit")]).collect();
        assert_eq!(all.iter().filter(|name| *name == "/quit").count(), 1);
        assert!(all.contains(&"/review".to_owned()) && all.contains(&"/model".to_owned()), "{all:?}");
    }

    proptest! {
        #[test]
        fn any_text_can_be_sent(text in "[^/\\s][^\\x00]{0,40}") {
            let trimmed = text.trim().to_owned();
            prop_assert_eq!(parse_line(&text, &[]), ParsedLine::Prompt(trimmed.clone()));
            prop_assert_eq!(parse_line(&format!("//{text}"), &[]), ParsedLine::Prompt(format!("/{trimmed}")));
        }

        #[test]
        fn a_line_that_begins_with_one_slash_is_never_a_prompt(text in "/[^/]{0,40}") {
            prop_assert!(!matches!(parse_line(&text, &[]), ParsedLine::Prompt(_)));
        }
    }
}
