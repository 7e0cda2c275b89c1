//! The answer to every request for permission: no.

use serde::{Deserialize, Serialize};

use crate::terminal::line;

/// A request for permission that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What the agent wanted to do, made safe to show.
    pub(crate) wanted: String,
    /// The result to send.
    pub(super) answer: Answer,
}

/// The result of a request for permission, alike in both versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Answer {
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Outcome {
    #[serde(rename_all = "camelCase")]
    Selected {
        option_id: String,
    },
    Cancelled,
}

/// Both versions write options alike. What cannot be read is refused as well, so every field may be missing.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Request {
    title: Option<String>,
    tool_call: Option<ToolCall>,
    options: Vec<Choice>,
}

#[derive(Deserialize)]
struct ToolCall {
    title: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choice {
    option_id: String,
    kind: String,
}

/// Refuses what `params` ask for: once if that is offered, else always, else without a choice. A turn that is
/// `cancelled` takes its requests along.
pub(super) fn refuse(params: &[u8], cancelled: bool) -> Refusal {
    decide(serde_json::from_slice(params).unwrap_or_default(), cancelled)
}

/// The same, if `params` can be read.
pub(super) fn try_refuse(params: &[u8], cancelled: bool) -> Option<Refusal> {
    Some(decide(serde_json::from_slice(params).ok()?, cancelled))
}

fn decide(request: Request, cancelled: bool) -> Refusal {
    let choice = ["reject_once", "reject_always"]
        .iter()
        .find_map(|kind| unambiguous(&request.options, kind))
        .filter(|_| !cancelled);
    let outcome = match choice {
        Some(choice) => Outcome::Selected { option_id: choice.option_id.clone() },
        None => Outcome::Cancelled,
    };
    let wanted = request.title.or(request.tool_call.and_then(|call| call.title));
    Refusal {
        wanted: wanted.map_or_else(|| "something it gave no title".to_owned(), |wanted| line(&wanted)),
        answer: Answer { outcome },
    }
}

/// The first option of this kind whose id is its own: one that is shared could be read as another option.
fn unambiguous<'a>(options: &'a [Choice], kind: &str) -> Option<&'a Choice> {
    let shares =
        |choice: &Choice| options.iter().filter(|other| other.option_id == choice.option_id).count() > 1;
    options.iter().find(|choice| choice.kind == kind && !shares(choice))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selected(id: &str) -> Answer {
        Answer { outcome: Outcome::Selected { option_id: id.to_owned() } }
    }

    const CANCELLED: Answer = Answer { outcome: Outcome::Cancelled };

    #[track_caller]
    fn check(options: &Value, expected: Answer) {
        let params =
            json!({"sessionId": "s", "toolCall": {"toolCallId": "1", "title": "Edit"}, "options": options});
        let refusal = refuse(params.to_string().as_bytes(), false);
        assert_eq!(refusal, Refusal { wanted: "Edit".to_owned(), answer: expected }, "{options}");
    }

    fn option(id: &str, kind: &str) -> Value {
        json!({"optionId": id, "name": "whatever", "kind": kind})
    }

    #[test]
    fn the_kind_decides_and_never_the_place() {
        let (yes, once) = (option("y", "allow_once"), option("n", "reject_once"));
        let always = option("N", "reject_always");
        check(&json!([yes, always, once]), selected("n"));
        check(&json!([always, yes]), selected("N"));
        check(&json!([yes]), CANCELLED);
        check(&json!([]), CANCELLED);
        check(&json!([option("reject_once", "allow_always"), option("x", "_reject")]), CANCELLED);
    }

    #[test]
    fn a_shared_id_is_not_chosen() {
        let trap = [option("x", "allow_once"), option("x", "reject_once")];
        check(&json!(trap), CANCELLED);
        check(&json!([trap[0], trap[1], option("n", "reject_always")]), selected("n"));
    }

    #[test]
    fn whatever_cannot_be_read_is_refused() {
        for params in ["", "[]", r#"{"options":7}"#, r#"{"options":[{"optionId":"a"}]}"#] {
            assert_eq!(refuse(params.as_bytes(), false).answer, CANCELLED, "{params}");
        }
    }

    #[test]
    fn a_cancelled_turn_chooses_nothing() {
        let params = json!({"title": "Run", "options": [option("n", "reject_once")]}).to_string();
        let refusal = refuse(params.as_bytes(), true);
        assert_eq!(refusal, Refusal { wanted: "Run".to_owned(), answer: CANCELLED });
    }

    #[test]
    fn answers_are_written_as_both_versions_read_them() {
        let text = serde_json::to_string(&selected("n")).unwrap();
        assert_eq!(text, r#"{"outcome":{"outcome":"selected","optionId":"n"}}"#);
        assert_eq!(serde_json::to_string(&CANCELLED).unwrap(), r#"{"outcome":{"outcome":"cancelled"}}"#);
    }
}
