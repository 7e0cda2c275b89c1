//! Limits on the data that a model can make the agent store: call arguments, an answer, a turn, a session.

use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use narrows_model::{Assistant, Call, Message, Part};

pub(crate) const MAX_ARGUMENT_BYTES: usize = 1 << 20;

/// Bytes kept of arguments that are too large.
const KEPT_ARGUMENT_BYTES: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeLimit {
    Answer,
    Turn,
    Session,
}

impl SizeLimit {
    /// Returns the text for the client if this limit ends a turn.
    pub(crate) fn message(self, limit: usize) -> String {
        let limit = limit >> 20;
        match self {
            Self::Answer => {
                format!("The answer has more than {limit} MiB. It is not kept, and the turn ends here.")
            }
            Self::Turn => format!("The turn has more than {limit} MiB. It ends here."),
            Self::Session => {
                format!("The session has more than {limit} MiB and takes no more prompts. Begin a new one.")
            }
        }
    }
}

/// Cuts arguments that are too large to parse. Returns the text that the model gets instead of a result.
pub(crate) fn cut_arguments(call: &mut Call) -> Option<String> {
    let arguments = &mut call.arguments;
    let length = arguments.len();
    let problem = if length > MAX_ARGUMENT_BYTES {
        format!("The arguments have {length} bytes; at most {MAX_ARGUMENT_BYTES} are allowed.")
    } else if has_more_values_than(arguments.as_bytes(), MAX_PEER_VALUES) {
        format!("The arguments have more than {MAX_PEER_VALUES} JSON values.")
    } else {
        return None;
    };
    let is_boundary = |at: &usize| arguments.is_char_boundary(*at);
    let kept = (0..=KEPT_ARGUMENT_BYTES.min(length)).rev().find(is_boundary).unwrap_or_default();
    arguments.truncate(kept);
    arguments.shrink_to_fit();
    arguments.push_str(&format!("… ({} more bytes)", length - kept));
    Some(format!("{problem} The tool was not run."))
}

pub(crate) fn message_bytes(message: &Message) -> usize {
    match message {
        Message::User { content } => content.iter().map(part_bytes).sum(),
        Message::Assistant(assistant) => answer_bytes(assistant),
        Message::Tool(result) => result.content.iter().map(part_bytes).sum(),
    }
}

pub(crate) fn answer_bytes(assistant: &Assistant) -> usize {
    // Most answers have no extra fields, so most answers cost no serialization here.
    let extra = |extra: &serde_json::Map<String, serde_json::Value>| match extra.is_empty() {
        true => 0,
        false => serde_json::to_string(extra).map_or(0, |text| text.len()),
    };
    let call = |call: &Call| call.id.len() + call.name.len() + call.arguments.len() + extra(&call.extra);
    assistant.text.len()
        + assistant.reasoning.len()
        + assistant.calls.iter().map(call).sum::<usize>()
        + extra(&assistant.extra)
}

fn part_bytes(part: &Part) -> usize {
    match part {
        Part::Text { text: data }
        | Part::Image { data, .. }
        | Part::Audio { data, .. }
        | Part::File { data, .. } => data.len(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_that_are_too_large_are_cut_before_they_are_parsed() {
        let check = |arguments: String, expected: Option<&str>| {
            let mut call = Call { arguments: arguments.clone(), ..Call::default() };
            let refused = cut_arguments(&mut call);
            assert_eq!(refused.as_deref(), expected);
            assert_eq!(call.arguments == arguments, expected.is_none());
            assert!(expected.is_none() || call.arguments.len() < KEPT_ARGUMENT_BYTES + 100);
        };
        let text = |bytes: usize| json!({"a": "x".repeat(bytes - 8)}).to_string();
        check(text(MAX_ARGUMENT_BYTES), None);
        check(
            text(MAX_ARGUMENT_BYTES + 1),
            Some("The arguments have 1048577 bytes; at most 1048576 are allowed. The tool was not run."),
        );
        let values = |count: usize| json!({"a": vec![0; count - 2]}).to_string();
        check(values(MAX_PEER_VALUES), None);
        check(
            values(MAX_PEER_VALUES + 1),
            Some("The arguments have more than 20000 JSON values. The tool was not run."),
        );
    }

    #[test]
    fn all_stored_fields_of_an_answer_count() {
        let mut assistant = Assistant { text: "12".into(), reasoning: "34".into(), ..Assistant::default() };
        assistant.calls.push(Call {
            id: "5".into(),
            name: "6".into(),
            arguments: "{}".into(),
            ..Call::default()
        });
        assert_eq!(answer_bytes(&assistant), 8);
        assistant.extra.insert("k".into(), json!([1]));
        assert_eq!(message_bytes(&Message::Assistant(assistant)), 8 + r#"{"k":[1]}"#.len());
    }
}
