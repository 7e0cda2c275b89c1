//! Keeps results of servers unchanged. rmcp itself would keep only the members that it knows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use narrows_base::sync::lock;
use rmcp::model::{CustomResult, JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerResult};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

/// Marks a request whose result must stay unchanged, while the caller holds a clone of the mark.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeepVerbatim(Arc<()>);

/// The requests of one connection whose results must stay unchanged.
///
/// The result of such a request is sealed: converted to a string, which rmcp does not parse as any type that
/// it knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verbatim(Arc<Mutex<HashMap<RequestId, Weak<()>>>>);

#[derive(Deserialize)]
struct Answer<'a> {
    id: RequestId,
    #[serde(borrow)]
    result: &'a RawValue,
    #[serde(default)]
    method: Option<IgnoredAny>,
}

impl Verbatim {
    pub(crate) fn request(&self, id: RequestId, keep: &KeepVerbatim) {
        let mut wanted = lock(&self.0);
        wanted.retain(|_, keep| keep.strong_count() > 0);
        wanted.insert(id, Arc::downgrade(&keep.0));
    }

    /// Parses a message. If the message answers a marked request, its result is sealed. `None` for any other
    /// message.
    pub(crate) fn read(&self, text: &[u8]) -> Option<ServerJsonRpcMessage> {
        let (id, result) = self.result(text)?;
        let sealed = ServerResult::CustomResult(CustomResult(Value::String(result.get().to_owned())));
        Some(JsonRpcMessage::response(sealed, id))
    }

    /// Like [`read`](Self::read), but returns the text of the message, for other code to parse.
    pub(crate) fn seal(&self, text: &str) -> Option<String> {
        let message = self.read(text.as_bytes())?;
        serde_json::to_string(&message).ok()
    }

    fn result<'a>(&self, text: &'a [u8]) -> Option<(RequestId, &'a RawValue)> {
        let mut wanted = lock(&self.0);
        if wanted.is_empty() {
            return None;
        }
        let Answer { id, result, method: None } = serde_json::from_slice(text).ok()? else { return None };
        wanted.remove(&id).map(|_| (id, result))
    }
}

/// Returns the original of a sealed result. Returns any other result as rmcp has parsed it.
pub(crate) fn unseal(result: &ServerResult) -> Option<Box<RawValue>> {
    let text = match result {
        ServerResult::CustomResult(CustomResult(Value::String(text))) => text.clone(),
        result => serde_json::to_string(result).ok()?,
    };
    RawValue::from_string(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanting(id: i64) -> (Verbatim, KeepVerbatim) {
        let (verbatim, keep) = (Verbatim::default(), KeepVerbatim::default());
        verbatim.request(RequestId::Number(id), &keep);
        (verbatim, keep)
    }

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let (verbatim, _keep) = wanting(1);
        let sealed = verbatim.seal(text);
        let read = sealed.map(|text| match serde_json::from_str::<ServerJsonRpcMessage>(&text) {
            Ok(JsonRpcMessage::Response(response)) => {
                assert_eq!(response.id, RequestId::Number(1));
                unseal(&response.result).expect("it is JSON").get().to_owned()
            }
            other => panic!("{other:?} is no answer"),
        });
        assert_eq!(read.as_deref(), expected, "{text}");
    }

    #[test]
    fn marked_results_are_unchanged() {
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":7}] }}"#,
            Some(r#"{"tools":[{"name":7}] }"#),
        );
        check(r#"{"id":1,"result":{"x":1e999,"content":[]}}"#, Some(r#"{"x":1e999,"content":[]}"#));
        check(r#"{"id":1,"result":"text"}"#, Some(r#""text""#));
        check(r#"{"id":1,"result":null}"#, Some("null"));
        check(r#"{"id":2,"result":{}}"#, None);
        check(r#"{"id":"1","result":{}}"#, None);
        check(r#"{"id":1,"error":{"code":1,"message":""}}"#, None);
        check(r#"{"id":1,"method":"m","result":{}}"#, None);
        check("nonsense", None);
    }

    #[test]
    fn a_mark_applies_once_and_is_removed_with_its_caller() {
        let (verbatim, keep) = wanting(1);
        assert!(verbatim.seal(r#"{"id":1,"result":{}}"#).is_some());
        assert!(verbatim.seal(r#"{"id":1,"result":{}}"#).is_none());
        for id in 0..100 {
            verbatim.request(RequestId::Number(id), &KeepVerbatim::default());
        }
        verbatim.request(RequestId::Number(100), &keep);
        assert_eq!(verbatim.0.lock().unwrap().len(), 1, "the other marks have no caller");
    }

    proptest! {
        #[test]
        fn any_text_is_sealed_without_panic(text in "[\\[\\]{}:,\"a-z0-9 ]{0,80}") {
            let (verbatim, _keep) = wanting(1);
            _ = verbatim.seal(&text);
        }
    }
}
