//! Commands that a user can type instead of a prompt.

use narrows_acp::Version;
use serde_json::{Value, json};

use crate::content::Block;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlashCommand {
    Compact,
    Status,
}

const ALL: [(SlashCommand, &str, &str); 2] = [
    (SlashCommand::Compact, "compact", "Replace the earlier part of this conversation by a summary"),
    (
        SlashCommand::Status,
        "status",
        "Show the model, its endpoint, the tools and the use of the context window",
    ),
];

pub(crate) fn available(version: Version) -> Value {
    ALL.iter()
        .map(|(_, name, description)| match version {
            Version::V1 => json!({"name": name, "description": description}),
            Version::V2 => json!({"type": "command", "name": name, "description": description}),
        })
        .collect()
}

/// Returns the slash command if the prompt consists of exactly one.
pub(crate) fn parse(blocks: &[Block]) -> Option<SlashCommand> {
    let [Block::Text(text)] = blocks else { return None };
    let name = text.trim().strip_prefix('/')?;
    ALL.iter().find(|(_, known, _)| *known == name).map(|(command, ..)| *command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_prompt_is_a_command() {
        let of = |text: &str| parse(&[Block::Text(text.to_owned())]);
        assert_eq!(of("/compact"), Some(SlashCommand::Compact));
        assert_eq!(of(" /status\n"), Some(SlashCommand::Status));
        assert_eq!(of("/compact now"), None);
        assert_eq!(of("/etc/passwd"), None);
        assert_eq!(of("status"), None);
    }
}
