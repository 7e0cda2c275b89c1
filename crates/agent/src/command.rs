//! What a user can type in the place of a prompt.

use narrows_acp::Version;
use serde_json::{Value, json};

use crate::content::Block;

/// Something a user can type in the place of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Shorten what the model is given of the conversation.
    Compact,
    /// Tell how things stand.
    Status,
}

const ALL: [(Command, &str, &str); 2] = [
    (Command::Compact, "compact", "Replace the earlier part of this conversation by a summary"),
    (Command::Status, "status", "Show the model, its endpoint, the tools and the use of the context window"),
];

/// All of them, as a client is told.
pub(crate) fn available(version: Version) -> Value {
    ALL.iter()
        .map(|(_, name, description)| match version {
            Version::V1 => json!({"name": name, "description": description}),
            Version::V2 => json!({"type": "command", "name": name, "description": description}),
        })
        .collect()
}

/// The command that a prompt consists of, if it is one.
pub(crate) fn read(blocks: &[Block]) -> Option<Command> {
    let [Block::Text(text)] = blocks else { return None };
    let name = text.trim().strip_prefix('/')?;
    ALL.iter().find(|(_, known, _)| *known == name).map(|(command, ..)| *command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_the_whole_prompt() {
        let of = |text: &str| read(&[Block::Text(text.to_owned())]);
        assert_eq!(of("/compact"), Some(Command::Compact));
        assert_eq!(of(" /status\n"), Some(Command::Status));
        assert_eq!(of("/compact now"), None);
        assert_eq!(of("/etc/passwd"), None);
        assert_eq!(of("status"), None);
    }
}
