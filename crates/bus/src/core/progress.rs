//! Progress tokens in pools without a known protocol, as MCP defines them.
//!
//! A client puts a token of its choice into `params._meta.progressToken`. In `notifications/progress`, the
//! worker names that token, but no session. Different clients may choose equal tokens. On the way to the
//! worker, the token is therefore replaced by the number of the request, and restored on the way back.

use std::ops::Range;

use narrows_wire::{DuplicateKey, View, member};

use super::Ctx;
use super::api::{CoreOutput, LogEvent};
use super::request_id;
use super::state::RequestOrigin;
use super::table::WorkerKey;

const METHOD: &str = "notifications/progress";
const META: &str = "_meta";
/// Maximum size of a client's progress token, in bytes of JSON. The token is kept until its request is
/// answered.
pub(super) const MAX_TOKEN_BYTES: usize = 4 << 10;

const TOKEN: &str = "progressToken";

pub(super) fn token_of_request(message: View<'_>) -> Result<Option<Range<usize>>, DuplicateKey> {
    let Some(params) = message.params() else { return Ok(None) };
    // The key of the token may be written with escapes, which begin with a backslash.
    if memchr::memmem::find(params, TOKEN.as_bytes()).is_none()
        && memchr::memmem::find(params, b"\\u").is_none()
    {
        return Ok(None);
    }
    let Some(meta) = member(params, META)? else { return Ok(None) };
    let Some(token) = member(&params[meta.clone()], TOKEN)? else { return Ok(None) };
    let start = message.envelope().params.range().start + meta.start;
    Ok(Some(start + token.start..start + token.end))
}

fn token_of_progress(message: View<'_>) -> Option<Range<usize>> {
    let token = member(message.params()?, TOKEN).ok()??;
    let start = message.envelope().params.range().start;
    Some(start + token.start..start + token.end)
}

pub(super) fn with_range_replaced(line: &[u8], place: Range<usize>, raw: &[u8]) -> Vec<u8> {
    [&line[..place.start], raw, &line[place.end..]].concat()
}

/// Returns a request with its progress token replaced by `raw`. `None`: the request has no token, or `raw` is
/// `None`.
pub(super) fn with_token(message: View<'_>, raw: Option<&[u8]>) -> Option<Vec<u8>> {
    let place = token_of_request(message).ok()??;
    Some(with_range_replaced(message.bytes(), place, raw?))
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Returns `true` if the bus replaces progress tokens in requests to this worker, as in every shared pool
    /// without a known protocol.
    pub(super) fn exchanges_tokens(&self, worker: WorkerKey) -> bool {
        self.core.workers.get(worker).is_some_and(|state| {
            let pool = self.core.pool_of(state.pool);
            pool.is_shared() && !pool.is_acp()
        })
    }

    /// Forwards a progress notification to the client of its request. Returns `true` if the message is such a
    /// notification.
    pub(super) fn forward_progress(&mut self, worker: WorkerKey, message: View<'_>) -> bool {
        if !self.exchanges_tokens(worker) || message.method().is_none_or(|method| method != METHOD) {
            return false;
        }
        let place = token_of_progress(message);
        let number = place.as_ref().and_then(|place| request_id::parse(&message.bytes()[place.clone()]));
        let state = self.core.workers.get(worker);
        let pending = number.and_then(|number| state?.pending.get(&number));
        let known = pending.and_then(|pending| Some((pending, pending.progress.as_deref()?)));
        let (Some(place), Some((pending, token))) = (place, known) else {
            self.core.counters.dropped += 1;
            self.log(LogEvent::Dropped { worker: worker.into(), why: "progress of an unknown request" });
            return true;
        };
        let RequestOrigin::Client { client, .. } = pending.asker else {
            self.core.counters.unseen += 1;
            return true;
        };
        let session = self.core.session_of_pending(pending);
        let line = with_range_replaced(message.bytes(), place, token);
        self.forward_to_client(worker, client, session, View::parse(&line), None);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Result<Option<&str>, DuplicateKey>) {
        let place = token_of_request(View::parse(line.as_bytes()));
        assert_eq!(place.map(|place| place.map(|place| &line[place])), expected, "{line}");
    }

    #[test]
    fn tokens_are_found_only_in_requests_and_progress_notifications() {
        let request = |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#);
        check(&request(r#"{"_meta":{"progressToken":"a"}}"#), Ok(Some("\"a\"")));
        check(
            &request(r#"{ "x" : [{"_meta":1}] , "_meta" : { "y":{}, "progressToken" : 12 } }"#),
            Ok(Some("12")),
        );
        check(&request(r#"{"_meta":{"progressToken":-1.5e3,"z":"}"}}"#), Ok(Some("-1.5e3")));
        check(&request(r#"{"_me\u0074a":{"progress\u0054oken":"a\"\\"}}"#), Ok(Some(r#""a\"\\""#)));
        check(&request(r#"{"progressToken":"a"}"#), Ok(None));
        check(&request(r#"{"x":{"_meta":{"progressToken":"a"}}}"#), Ok(None));
        check(&request(r#"{"_meta":{"x":"progressToken"}}"#), Ok(None));
        check(&request(r#"{"_meta":["progressToken"]}"#), Ok(None));
        check(&request(r#"[{"_meta":{"progressToken":1}}]"#), Ok(None));
        check(&request(r#"{"_meta":{"progressToken":1,"progress\u0054oken":2}}"#), Err(DuplicateKey));
        check(&request(r#"{"_meta":{},"_meta":{"progressToken":2}}"#), Err(DuplicateKey));
        check(r#"{"jsonrpc":"2.0","id":1,"method":"progressToken"}"#, Ok(None));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let key =
            prop_oneof![Just(META.to_owned()), Just(TOKEN.to_owned()), "[a-z\"\\\\{}\\[\\],: \n\u{e9}]{0,6}"];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i16>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
            "[a-z\"\\\\{}\\[\\],: \n\u{e9}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    fn escaped(text: &str) -> String {
        text.replace(TOKEN, "progress\\u0054oken").replace('\u{e9}', "\\u00e9")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn tokens_are_found_where_a_json_parser_finds_them(params in any_json(), pretty: bool, escape: bool) {
            let mut text = if pretty { format!("{params:#}") } else { params.to_string() };
            if escape {
                text = escaped(&text);
            }
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{text}}}"#);
            let expected = params.get(META).and_then(|meta| meta.as_object()?.get(TOKEN));
            let message = View::parse(line.as_bytes());
            let place = token_of_request(message).unwrap();
            prop_assert_eq!(place.is_some(), expected.is_some());
            if let Some(place) = place {
                let changed = with_token(message, Some(b"77")).unwrap();
                let mut meant = params.clone();
                meant[META][TOKEN] = json!(77);
                let parsed: Value = serde_json::from_slice(&changed).unwrap();
                prop_assert_eq!(&parsed["params"], &meant);
                prop_assert_eq!(with_range_replaced(&changed, place.start..place.start + 2, line[place].as_bytes()), line.as_bytes());
            }
        }
    }
}
