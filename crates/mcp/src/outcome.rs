//! Parses the results of calls.

use serde_json::{Map, Value};

use crate::CallError;
use crate::text::first_bytes;

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallOutcome {
    pub content: Vec<Content>,
    /// Structured content, for programs.
    pub structured: Option<Value>,
    /// `true` if the tool reports that it failed. The content explains the failure.
    pub failed: bool,
    /// Number of bytes of text that were omitted because of
    /// [`Options::max_result_bytes`](crate::Options::max_result_bytes). If some were omitted, the last
    /// content item says so.
    pub omitted: usize,
}

/// A piece of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text. Content of an unknown kind is kept as JSON text.
    Text(String),
    Image {
        mime: String,
        /// Image data in base64, as the server sent it.
        data: String,
    },
    Audio {
        mime: String,
        /// Audio data in base64, as the server sent it.
        data: String,
    },
    Resource {
        uri: String,
        mime: Option<String>,
        body: ResourceBody,
    },
    Link {
        uri: String,
        name: String,
    },
}

/// Content of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceBody {
    Text(String),
    /// Binary content in base64, as the server sent it.
    Blob(String),
}

/// Parses the result of `tools/call` and keeps at most `limit` bytes of its text.
pub(crate) fn parse_result(result: Value, limit: usize) -> Result<CallOutcome, CallError> {
    let Value::Object(mut result) = result else {
        return Err(CallError::InvalidResult("the result is not an object".to_owned()));
    };
    match result.get("resultType").and_then(Value::as_str) {
        None | Some("complete") => {}
        Some("input_required") => return Err(CallError::Unsupported("input from the user")),
        Some("task") => return Err(CallError::Unsupported("running the call as a task")),
        Some(_) => return Err(CallError::Unsupported("an unknown kind of result")),
    }
    let pieces = match result.remove("content") {
        Some(Value::Array(pieces)) => pieces,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return Err(CallError::InvalidResult("the content is not a list".to_owned())),
    };
    let mut budget = Budget { left: limit, omitted: 0 };
    let mut content: Vec<Content> =
        pieces.iter().map(parse_content).filter_map(|piece| budget.fit(piece)).collect();
    let structured = result.remove("structuredContent").filter(|value| !value.is_null()).filter(|value| {
        let size = value.to_string().len();
        let fits = size <= limit;
        budget.omitted += if fits { 0 } else { size };
        fits
    });
    if budget.omitted > 0 {
        content.push(Content::Text(format!(
            "[{} bytes of the result were left out: at most {limit} are kept]",
            budget.omitted
        )));
    }
    let failed = result.get("isError") == Some(&Value::Bool(true));
    Ok(CallOutcome { content, structured, failed, omitted: budget.omitted })
}

struct Budget {
    left: usize,
    omitted: usize,
}

impl Budget {
    /// Cuts `piece` to the size that is still allowed. Returns `None` if no part fits.
    fn fit(&mut self, mut piece: Content) -> Option<Content> {
        let (Content::Text(text) | Content::Resource { body: ResourceBody::Text(text), .. }) = &mut piece
        else {
            return Some(piece);
        };
        let kept = first_bytes(text, self.left).len();
        let cut = text.len() - kept;
        self.omitted += cut;
        self.left = if cut > 0 { 0 } else { self.left - kept };
        let nothing = cut > 0 && kept == 0;
        text.truncate(kept);
        (!nothing).then_some(piece)
    }
}

fn parse_content(value: &Value) -> Content {
    parse_known(value).unwrap_or_else(|| Content::Text(value.to_string()))
}

fn parse_known(value: &Value) -> Option<Content> {
    let object = value.as_object()?;
    Some(match object.get("type")?.as_str()? {
        "text" => Content::Text(text(object, "text")?),
        "image" => Content::Image { mime: text(object, "mimeType")?, data: text(object, "data")? },
        "audio" => Content::Audio { mime: text(object, "mimeType")?, data: text(object, "data")? },
        "resource" => {
            let resource = object.get("resource")?.as_object()?;
            let body = match text(resource, "text") {
                Some(text) => ResourceBody::Text(text),
                None => ResourceBody::Blob(text(resource, "blob")?),
            };
            Content::Resource { uri: text(resource, "uri")?, mime: text(resource, "mimeType"), body }
        }
        "resource_link" => {
            let uri = text(object, "uri")?;
            let name = text(object, "title").or_else(|| text(object, "name")).unwrap_or_else(|| uri.clone());
            Content::Link { uri, name }
        }
        _ => return None,
    })
}

fn text(object: &Map<String, Value>, key: &str) -> Option<String> {
    object.get(key)?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(result: Value, expected: &[Content]) {
        let outcome = parse_result(result, 1 << 20).expect("it is a result");
        assert_eq!(outcome.content, expected);
        assert_eq!(outcome.omitted, 0);
    }

    fn text_content(text: &str) -> Content {
        Content::Text(text.to_owned())
    }

    #[test]
    fn each_kind_of_content_is_parsed() {
        check(json!({}), &[]);
        check(json!({"content": [{"type": "text", "text": "a"}]}), &[text_content("a")]);
        check(
            json!({"content": [{"type": "image", "mimeType": "image/png", "data": "AA=="}]}),
            &[Content::Image { mime: "image/png".into(), data: "AA==".into() }],
        );
        check(
            json!({"content": [{"type": "audio", "mimeType": "audio/wav", "data": "AA=="}]}),
            &[Content::Audio { mime: "audio/wav".into(), data: "AA==".into() }],
        );
        check(
            json!({"content": [
                {"type": "resource", "resource": {"uri": "a:b", "text": "t", "mimeType": "text/plain"}},
                {"type": "resource", "resource": {"uri": "a:c", "blob": "AA=="}},
                {"type": "resource_link", "uri": "a:d", "name": "d"},
                {"type": "resource_link", "uri": "a:e"},
            ]}),
            &[
                Content::Resource {
                    uri: "a:b".into(),
                    mime: Some("text/plain".into()),
                    body: ResourceBody::Text("t".into()),
                },
                Content::Resource { uri: "a:c".into(), mime: None, body: ResourceBody::Blob("AA==".into()) },
                Content::Link { uri: "a:d".into(), name: "d".into() },
                Content::Link { uri: "a:e".into(), name: "a:e".into() },
            ],
        );
        check(
            json!({"content": [{"type": "hologram"}, 7]}),
            &[text_content(r#"{"type":"hologram"}"#), text_content("7")],
        );
    }

    #[test]
    fn invalid_results_are_refused() {
        for (result, expected) in [
            (json!([]), CallError::InvalidResult("the result is not an object".into())),
            (json!({"content": "x"}), CallError::InvalidResult("the content is not a list".into())),
            (json!({"resultType": "input_required"}), CallError::Unsupported("input from the user")),
            (json!({"resultType": "task"}), CallError::Unsupported("running the call as a task")),
            (json!({"resultType": "?"}), CallError::Unsupported("an unknown kind of result")),
        ] {
            assert_eq!(parse_result(result, 10), Err(expected));
        }
    }

    #[test]
    fn flags_and_structure() {
        let outcome =
            parse_result(json!({"isError": true, "structuredContent": {"a": 1}}), 100).expect("it is one");
        assert_eq!((outcome.failed, outcome.structured), (true, Some(json!({"a": 1}))));
        let outcome = parse_result(json!({"structuredContent": "x".repeat(100)}), 100).expect("it is one");
        assert_eq!((outcome.structured, outcome.omitted), (None, 102));
    }

    #[test]
    fn too_much_text_is_cut_and_reported() {
        let result = json!({"content": [
            {"type": "text", "text": "abc"}, {"type": "text", "text": "däf"}, {"type": "text", "text": "ghi"},
            {"type": "image", "mimeType": "m", "data": "AA=="},
        ]});
        let outcome = parse_result(result, 5).expect("it is one");
        assert_eq!(outcome.omitted, 6);
        assert_eq!(outcome.content[..2], [text_content("abc"), text_content("d")]);
        assert!(matches!(outcome.content[2], Content::Image { .. }));
        assert_eq!(
            outcome.content[3],
            text_content("[6 bytes of the result were left out: at most 5 are kept]")
        );
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let key = prop_oneof![
            Just("content".to_owned()),
            Just("type".to_owned()),
            Just("text".to_owned()),
            Just("resource".to_owned()),
            Just("uri".to_owned()),
            "[a-z]{0,3}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            Just(json!({"type": "text", "text": "ä text"})),
            Just(json!("resource")),
        ];
        leaf.prop_recursive(4, 32, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..5)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_result_stays_within_the_limit(content in prop::collection::vec(json_value(), 0..6), limit in 0usize..64) {
            let pieces = content.len();
            let outcome = parse_result(json!({"content": content}), limit).expect("a list is content");
            let note = usize::from(outcome.omitted > 0);
            let kept: usize = outcome.content[..outcome.content.len() - note]
                .iter()
                .map(|piece| match piece {
                    Content::Text(text) | Content::Resource { body: ResourceBody::Text(text), .. } => text.len(),
                    _ => 0,
                })
                .sum();
            prop_assert!(kept <= limit);
            prop_assert!(outcome.content.len() <= pieces + note);
        }

        #[test]
        fn any_result_is_parsed_or_refused(value in json_value()) {
            _ = parse_result(value, 16);
        }
    }
}
