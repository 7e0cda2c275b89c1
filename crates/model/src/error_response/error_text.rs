//! Finds the provider's error message in a body of any form.

use serde_json::{Map, Value};
use std::time::Duration;

use super::retry_after;

/// Maximum nesting depth of errors that is searched, because gateways quote errors within errors.
const MAX_DEPTH: usize = 6;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ErrorText {
    /// Message for people. Empty if the body has none.
    pub(super) message: String,
    /// Codes, types and states in the error body, for classification.
    pub(super) codes: Vec<String>,
    pub(super) status: Option<u16>,
    pub(super) window: Option<u64>,
    /// Delay before a retry, if a field of the error body states it.
    pub(super) delay: Option<Duration>,
}

impl ErrorText {
    pub(super) fn from_body(body: &[u8]) -> Self {
        if let Ok(value) = serde_json::from_slice::<Value>(body) {
            return Self::from_value(&value);
        }
        let text = String::from_utf8_lossy(body);
        let text = text.trim_start_matches('\u{feff}').trim();
        let message = if text.starts_with('<') { page(text) } else { events(text) };
        match message {
            Text::Json(value) => Self::from_value(&value),
            Text::Plain(message) => Self { message, ..Self::default() },
        }
    }

    pub(super) fn from_value(value: &Value) -> Self {
        let mut words = Self::default();
        words.message = words.read(value, 0).unwrap_or_default();
        words
    }

    /// Returns message and codes in lower case, for classification.
    pub(super) fn marks(&self) -> String {
        let mut marks = self.message.to_ascii_lowercase();
        for code in &self.codes {
            marks.push('\n');
            marks.push_str(&code.to_ascii_lowercase());
        }
        marks
    }

    fn read(&mut self, value: &Value, depth: usize) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        match value {
            Value::String(text) => self.text(text, depth),
            Value::Array(list) => {
                let all: Vec<String> = list.iter().filter_map(|item| self.read(item, depth + 1)).collect();
                (!all.is_empty()).then(|| all.join("; "))
            }
            Value::Object(object) => self.object(object, depth),
            _ => None,
        }
    }

    /// Parses a text, which may contain a JSON error.
    fn text(&mut self, text: &str, depth: usize) -> Option<String> {
        let text = text.trim();
        if text.starts_with(['{', '['])
            && let Ok(value) = serde_json::from_str::<Value>(text)
            && let Some(words) = self.read(&value, depth + 1)
        {
            return Some(words);
        }
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn object(&mut self, object: &Map<String, Value>, depth: usize) -> Option<String> {
        self.facts(object);
        // The nested error has the details. A message beside it says the same or less.
        let inner = object.get("error").and_then(|error| self.read(error, depth + 1));
        let explained = inner.or_else(|| {
            ["message", "detail", "error_description", "msg", "errors", "error_msg"]
                .iter()
                .find_map(|name| self.read(object.get(*name)?, depth + 1))
        });
        let place = object.get("loc").and_then(place);
        let explained = match (place, explained) {
            (Some(place), Some(text)) => Some(format!("{place}: {text}")),
            (_, text) => text,
        };
        // OpenRouter's own message only says that the provider failed. The provider's text is in `metadata`.
        let metadata = object.get("metadata").and_then(Value::as_object);
        let raw = metadata.and_then(|metadata| self.read(metadata.get("raw")?, depth + 1));
        match (explained, raw) {
            (Some(text), Some(raw)) if !text.contains(&raw) => Some(format!("{text}: {raw}")),
            (None, raw) => raw,
            (text, _) => text,
        }
    }

    /// Collects status, codes, window and delay from the object's fields.
    fn facts(&mut self, object: &Map<String, Value>) {
        for name in ["code", "type", "status", "reason", "error_code"] {
            match object.get(name) {
                Some(Value::String(code)) => match code.parse() {
                    Ok(status) => self.status(status),
                    Err(_) => self.codes.push(code.clone()),
                },
                Some(Value::Number(code)) => self.status(code.as_u64().unwrap_or(0)),
                _ => {}
            }
        }
        if let Some(size) = object.get("n_ctx").and_then(Value::as_u64) {
            self.window.get_or_insert(size);
        }
        for detail in object.get("details").and_then(Value::as_array).into_iter().flatten() {
            if let Some(delay) = detail.get("retryDelay").and_then(Value::as_str) {
                self.delay = self.delay.or_else(|| retry_after::duration(delay));
            }
            if let Some(reason) = detail.get("reason").and_then(Value::as_str) {
                self.codes.push(reason.to_owned());
            }
        }
    }

    fn status(&mut self, status: u64) {
        if let Ok(status) = u16::try_from(status)
            && (400..600).contains(&status)
        {
            self.status.get_or_insert(status);
        }
    }
}

/// Joins a location in the request, such as `["body", "messages", 0]`, to one text.
fn place(value: &Value) -> Option<String> {
    let steps: Vec<String> = value
        .as_array()?
        .iter()
        .map(|step| step.as_str().map_or_else(|| step.to_string(), ToOwned::to_owned))
        .collect();
    (!steps.is_empty()).then(|| steps.join("."))
}

enum Text {
    Plain(String),
    Json(Value),
}

/// Parses the error in a response that has an error status but the format of a stream. Otherwise returns the
/// text.
fn events(text: &str) -> Text {
    let data = text.lines().find_map(|line| line.strip_prefix("data:"));
    match data.and_then(|data| serde_json::from_str(data.trim()).ok()) {
        Some(value) => Text::Json(value),
        None => Text::Plain(text.to_owned()),
    }
}

fn page(text: &str) -> Text {
    let title = ["title", "h1"].iter().find_map(|name| element(text, name));
    Text::Plain(title.unwrap_or_default())
}

/// Returns the text of the first element with this name. `None` if the text is empty.
fn element(text: &str, name: &str) -> Option<String> {
    // Conversion to ASCII lower case keeps the position of every byte.
    let lower = text.to_ascii_lowercase();
    let start = lower.match_indices(&format!("<{name}")).find_map(|(at, tag)| {
        let rest = &lower[at + tag.len()..];
        rest.starts_with(['>', ' ', '\n', '\t', '\r']).then_some(at + tag.len())
    })?;
    let start = start + lower[start..].find('>')? + 1;
    let end = start + lower[start..].find("</")?;
    let text = text[start..end]
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&nbsp;", " ")
        .replace("&amp;", "&");
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(body: &str, expected: &str) {
        assert_eq!(ErrorText::from_body(body.as_bytes()).message, expected, "{body}");
    }

    #[test]
    fn messages_are_found_in_every_field() {
        check(r#"{"error":{"message":"no such model","type":"x","code":null}}"#, "no such model");
        check(r#"{"error":"model not loaded"}"#, "model not loaded");
        check(r#"{"error":{"code":500},"message":"beside"}"#, "beside");
        check(r#"{"object":"error","message":"too long","code":400}"#, "too long");
        check(r#"{"detail":"Not authenticated"}"#, "Not authenticated");
        check(
            r#"{"detail":[{"loc":["body","messages",0],"msg":"field required","type":"missing"},{"msg":"b"}]}"#,
            "body.messages.0: field required; b",
        );
        check(
            r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted","input":{}}]}}"#,
            "body.stream_options: Extra inputs are not permitted",
        );
        check(r#"[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]"#, "bad");
        check(r#"{"errors":[{"message":"a"},{"message":"b"}]}"#, "a; b");
        check(r#"{"error":{"message":"{\"error\":{\"message\":\"inner\"}}"}}"#, "inner");
        check(r#"{"error":"invalid_grant","error_description":"expired"}"#, "invalid_grant");
        check(
            r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"slow down","provider_name":"P"}}}"#,
            "Provider returned error: slow down",
        );
        check(
            r#"{"error":{"message":"Provider returned error","metadata":{"raw":"{\"detail\":\"busy\"}"}}}"#,
            "Provider returned error: busy",
        );
        check(r#""just a string""#, "just a string");
        check("data: {\"error\":{\"message\":\"in an event\"}}\n\n", "in an event");
        check("  Internal Server Error\n", "Internal Server Error");
        check("{\"error\": cut", "{\"error\": cut");
        check("{}", "");
        check("", "");
        check(r#"{"error":{"message":7}}"#, "");
    }

    #[test]
    fn a_web_page_is_described_by_its_title() {
        check("<html><head><TITLE lang=en>502 Bad\nGateway</TITLE></head>", "502 Bad\nGateway");
        check("<!doctype html><titles></titles><title></title><h1>Sign in &amp; go</h1>", "Sign in & go");
        check("<html><title>cut", "");
        check("<html>", "");
    }

    #[test]
    fn fields_beside_the_message_are_collected() {
        let words = ErrorText::from_body(
            br#"[{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":[
                {"reason":"RATE"},{"retryDelay":"1.5s"}]}}]"#,
        );
        let expected = ErrorText {
            message: "m".to_owned(),
            codes: vec!["RESOURCE_EXHAUSTED".to_owned(), "RATE".to_owned()],
            status: Some(429),
            window: None,
            delay: Some(Duration::from_millis(1500)),
        };
        assert_eq!(words, expected);
        assert_eq!(words.marks(), "m\nresource_exhausted\nrate");
        let words = ErrorText::from_body(br#"{"error":{"code":"404","type":"x","n_ctx":512}}"#);
        assert_eq!((words.status, words.window, words.codes), (Some(404), Some(512), vec!["x".to_owned()]));
    }

    #[test]
    fn nesting_is_limited() {
        let deep = format!("{}{{\"message\":\"m\"}}{}", "{\"error\":".repeat(20), "}".repeat(20));
        check(&deep, "");
    }

    proptest! {
        #[test]
        fn any_body_is_read(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            ErrorText::from_body(&body);
        }

        #[test]
        fn any_message_is_found(message in "[^\\s{\\[<\u{feff}][^\u{0}]{0,60}[^\\s]") {
            let body = serde_json::json!({"error": {"message": message}}).to_string();
            prop_assert_eq!(ErrorText::from_body(body.as_bytes()).message, message);
        }

        #[test]
        fn any_page_is_read(body in "<(title|h1|TITLE|é|/|>|<| |&amp;|x){0,20}") {
            ErrorText::from_body(body.as_bytes());
        }
    }
}
