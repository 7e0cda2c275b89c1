//! Tests of whole conversations in a chain. They check what the conductor and both neighbors receive.

use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;

/// A proxy with a conductor, whose messages a test sends.
#[derive(Default)]
struct Fixture {
    core: ProxyCore,
    seen: Vec<String>,
}

impl Fixture {
    fn record_output(&mut self, output: ProxyOutput) {
        let text = |line: Bytes| String::from_utf8(line.to_vec()).unwrap();
        for line in output.to_conductor {
            self.seen.push(format!("conductor < {}", text(line)));
        }
        for (from, line) in output.from {
            let from = if from == Predecessor { "predecessor" } else { "successor" };
            self.seen.push(format!("{from} > {}", text(line)));
        }
    }

    fn send_conductor(&mut self, line: &str) {
        let mut output = ProxyOutput::default();
        self.core.handle_conductor(Frame::parse(Bytes::from(line.to_owned())), &mut output);
        self.record_output(output);
    }

    fn send_neighbor(&mut self, to: Neighbor, line: &str) {
        let mut output = ProxyOutput::default();
        self.core.send(to, &Frame::parse(Bytes::from(line.to_owned())), &mut output);
        self.record_output(output);
    }

    fn take_seen(&mut self) -> String {
        std::mem::take(&mut self.seen).join("\n")
    }
}

use Neighbor::{Predecessor, Successor};

#[test]
fn initialize_of_a_proxy_reaches_its_successor() {
    let mut fixture = Fixture::default();
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","id":"a","method":"proxy/initialize","params":{"protocolVersion":1, "x":1.0}}"#,
    );
    fixture.send_neighbor(
        Successor,
        r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":1, "x":1.0}}"#,
    );
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1, "y":1e2}}"#);
    fixture
        .send_neighbor(Predecessor, r#"{"jsonrpc":"2.0","id":"a","result":{"protocolVersion":1, "y":1e2}}"#);
    assert_snapshot!(fixture.take_seen(), @r#"
    predecessor > {"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":1, "x":1.0}}
    conductor < {"jsonrpc":"2.0","id":1,"method":"proxy/successor","params":{"method":"initialize","params":{"protocolVersion":1, "x":1.0}}}
    successor > {"jsonrpc":"2.0","id":"a","result":{"protocolVersion":1, "y":1e2}}
    conductor < {"jsonrpc":"2.0","id":"a","result":{"protocolVersion":1, "y":1e2}}
    "#);
}

#[test]
fn each_neighbor_gets_its_answers_with_the_original_ids() {
    let mut fixture = Fixture::default();
    fixture
        .send_conductor(r#"{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"sessionId":"s"}}"#);
    fixture.send_neighbor(
        Successor,
        r#"{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"sessionId":"s"}}"#,
    );
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","method":"proxy/successor","params":{"params":{"a":[1, 2]},"method":"session/\u0075pdate","_meta":{"hop":1}}}"#,
    );
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","id":8,"method":"proxy/successor","params":{"method":"fs/read_text_file","params":{"path":"/\u00e9"}}}"#,
    );
    fixture.send_neighbor(
        Predecessor,
        r#"{"jsonrpc":"2.0","method":"session/\u0075pdate","params":{"a":[1, 2]}}"#,
    );
    fixture.send_neighbor(
        Predecessor,
        r#"{"jsonrpc":"2.0","id":8,"method":"fs/read_text_file","params":{"path":"/\u00e9"}}"#,
    );
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":2,"result":{"content":"x"}}"#);
    fixture.send_neighbor(Successor, r#"{"jsonrpc":"2.0","id":8,"result":{"content":"x"}}"#);
    fixture
        .send_conductor(r#"{"jsonrpc":"2.0","id":1,"error":{"code":4242,"message":"theirs","data":null}}"#);
    fixture.send_neighbor(
        Predecessor,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":4242,"message":"theirs","data":null}}"#,
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    predecessor > {"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"sessionId":"s"}}
    conductor < {"jsonrpc":"2.0","id":1,"method":"proxy/successor","params":{"method":"session/prompt","params":{"sessionId":"s"}}}
    successor > {"jsonrpc":"2.0","method":"session/\u0075pdate","params":{"a":[1, 2]}}
    successor > {"jsonrpc":"2.0","id":8,"method":"fs/read_text_file","params":{"path":"/\u00e9"}}
    conductor < {"jsonrpc":"2.0","method":"session/\u0075pdate","params":{"a":[1, 2]}}
    conductor < {"jsonrpc":"2.0","id":2,"method":"fs/read_text_file","params":{"path":"/\u00e9"}}
    predecessor > {"jsonrpc":"2.0","id":8,"result":{"content":"x"}}
    conductor < {"jsonrpc":"2.0","id":8,"result":{"content":"x"}}
    successor > {"jsonrpc":"2.0","id":7,"error":{"code":4242,"message":"theirs","data":null}}
    conductor < {"jsonrpc":"2.0","id":7,"error":{"code":4242,"message":"theirs","data":null}}
    "#);
}

#[test]
fn params_may_be_left_out() {
    let mut fixture = Fixture::default();
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":1,"method":"proxy/successor","params":{"method":"_x"}}"#);
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","id":2,"method":"proxy/successor","params":{"method":"_x","params":null}}"#,
    );
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","id":3,"method":"proxy/successor","params":{"method":"_x","params":[1]}}"#,
    );
    fixture.send_neighbor(Successor, r#"{"jsonrpc":"2.0","method":"_y"}"#);
    assert_snapshot!(fixture.take_seen(), @r#"
    successor > {"jsonrpc":"2.0","id":1,"method":"_x"}
    successor > {"jsonrpc":"2.0","id":2,"method":"_x"}
    successor > {"jsonrpc":"2.0","id":3,"method":"_x","params":[1]}
    conductor < {"jsonrpc":"2.0","method":"proxy/successor","params":{"method":"_y"}}
    "#);
}

#[test]
fn cancellations_are_forwarded_to_the_neighbor_that_got_the_request() {
    let mut fixture = Fixture::default();
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":"p","method":"session/prompt","params":{}}"#);
    fixture.send_neighbor(Successor, r#"{"jsonrpc":"2.0","id":"p","method":"session/prompt","params":{}}"#);
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","id":"f","method":"proxy/successor","params":{"method":"fs/x","params":{}}}"#,
    );
    fixture.send_neighbor(Predecessor, r#"{"jsonrpc":"2.0","id":"f","method":"fs/x","params":{}}"#);
    fixture.take_seen();
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p","_meta":{"x":1}}}"#,
    );
    fixture.send_neighbor(
        Successor,
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p","_meta":{"x":1}}}"#,
    );
    fixture.send_conductor(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"f"}}"#);
    fixture.send_neighbor(
        Predecessor,
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"f"}}"#,
    );
    assert_snapshot!(fixture.take_seen(), @r#"
    predecessor > {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p","_meta":{"x":1}}}
    conductor < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1,"_meta":{"x":1}}}
    successor > {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"f"}}
    conductor < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}
    "#);
    // Cancels an unknown request, a request of the other neighbor, and a request in an envelope.
    fixture.send_conductor(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#);
    fixture.send_neighbor(
        Predecessor,
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p"}}"#,
    );
    fixture.send_conductor(
        r#"{"jsonrpc":"2.0","method":"proxy/successor","params":{"method":"$/cancel_request","params":{"requestId":"f"}}}"#,
    );
    assert_eq!(fixture.take_seen(), "");
}

#[test]
fn invalid_envelopes_are_refused() {
    let mut fixture = Fixture::default();
    let envelopes = [
        "[]",
        "{}",
        r#"{"method":7}"#,
        r#"{"method":""}"#,
        r#"{"method":"a","params":"b"}"#,
        r#"{"method":"a","method":"b"}"#,
        r#"{"method":"a","params":{},"params":{}}"#,
    ];
    for envelope in envelopes {
        fixture.send_conductor(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"proxy/successor","params":{envelope}}}"#
        ));
        fixture.send_conductor(&format!(
            r#"{{"jsonrpc":"2.0","method":"proxy/successor","params":{envelope}}}"#
        ));
    }
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":1,"method":"proxy/successor"}"#);
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}"#);
    fixture.send_conductor("nonsense");
    assert_snapshot!(fixture.take_seen(), @r#"
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the envelope is not an object","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the envelope has no method","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the envelope has no method","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the envelope has no method","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"params in the envelope are neither an object nor an array","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"ambiguous envelope","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"ambiguous envelope","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the envelope is not an object","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"a proxy in a chain expects proxy/initialize","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    conductor < {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON","data":{"condition":"parse_error","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn unsolicited_answers_are_dropped() {
    let mut fixture = Fixture::default();
    for id in ["1", "\"1\"", "null", "-1", "99999999999999999999999"] {
        fixture.send_conductor(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    }
    fixture.send_neighbor(Predecessor, r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    assert_eq!(fixture.take_seen(), "");
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":5,"method":"a"}"#);
    fixture.send_conductor(r#"{"jsonrpc":"2.0","id":5,"method":"proxy/successor","params":{"method":"b"}}"#);
    fixture.send_neighbor(Successor, r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    assert_snapshot!(fixture.take_seen(), @r#"
    predecessor > {"jsonrpc":"2.0","id":5,"method":"a"}
    conductor < {"jsonrpc":"2.0","id":5,"error":{"code":-32014,"message":"a request with this id is still unanswered","data":{"condition":"duplicate_id","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn batches_are_split_and_answered_as_one() {
    let mut fixture = Fixture::default();
    fixture.send_conductor(concat!(
        r#"[{"jsonrpc":"2.0","id":1,"method":"proxy/initialize","params":{}},{"jsonrpc":"2.0","id":2,"method":"a"},"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"proxy/successor","params":{"method":"b"}},"#,
        r#"{"jsonrpc":"2.0","id":4,"method":"proxy/successor","params":{}},7]"#,
    ));
    assert_snapshot!(fixture.take_seen(), @r#"
    predecessor > {"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}
    "#);
    fixture.send_neighbor(Predecessor, r#"{"jsonrpc":"2.0","id":1,"result":1}"#);
    fixture.send_neighbor(Successor, r#"{"jsonrpc":"2.0","id":3,"result":3}"#);
    fixture.send_neighbor(Predecessor, r#"{"jsonrpc":"2.0","id":2,"result":2}"#);
    assert_snapshot!(fixture.take_seen(), @r#"
    predecessor > {"jsonrpc":"2.0","id":2,"method":"a"}
    successor > {"jsonrpc":"2.0","id":3,"method":"b"}
    conductor < [{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC message","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}},{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"the envelope has no method","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}},{"jsonrpc":"2.0","id":3,"result":3},{"jsonrpc":"2.0","id":2,"result":2}]
    "#);
    fixture.send_conductor("[]");
    assert_snapshot!(fixture.take_seen(), @r#"
    conductor < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"empty batch","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_conductor_is_recognized_by_its_first_message() {
    let check = |line: &str, expected: bool| {
        assert_eq!(is_for_proxy(&Frame::parse(Bytes::from(line.to_owned()))), expected, "{line}");
    };
    check(r#"{"jsonrpc":"2.0","id":1,"method":"proxy/initialize","params":{}}"#, true);
    check(r#"[{"jsonrpc":"2.0","id":1,"method":"proxy/initialize"}]"#, true);
    check(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#, false);
    check(r#"{"jsonrpc":"2.0","method":"proxy/initialize","params":{}}"#, false);
    check(r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#, false);
    check("[]", false);
    check("{", false);
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(serde_json::Value::from),
        "[a-z\"\\\\{}\\[\\],: \u{e9}]{0,8}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map("(method|params|_meta|[a-z\"]{0,4})", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A message in an envelope is unchanged byte by byte.
    #[test]
    fn messages_survive_wrapping_and_unwrapping(method in "[a-z/_\"\\\\\u{e9}]{1,12}", params in any_json(), pretty: bool, asks: bool) {
        let method = serde_json::Value::from(method).to_string();
        let params = if pretty { format!("{params:#}").replace('\n', " ") } else { params.to_string() };
        let has_params = params.starts_with(['{', '[']);
        let params = if has_params { format!(",\"params\":{params}") } else { String::new() };
        let id = if asks { "\"id\":\"x\"," } else { "" };
        let line = format!("{{\"jsonrpc\":\"2.0\",{id}\"method\":{method}{params}}}");
        let wrapped = wrap_in_envelope(asks.then_some("\"x\""), &Frame::parse(line.clone().into()));
        prop_assert_eq!(open_envelope(&Frame::parse(wrapped)).unwrap(), line.as_bytes());
    }

    /// Whatever a conductor sends, each request gets at most one answer, and other messages get none.
    #[test]
    fn no_envelope_causes_a_panic(envelope in any_json(), id in prop::option::of(0_u8..3)) {
        let id = id.map(|id| format!("\"id\":{id},")).unwrap_or_default();
        let mut fixture = Fixture::default();
        fixture.send_conductor(&format!(r#"{{"jsonrpc":"2.0",{id}"method":"proxy/successor","params":{envelope}}}"#));
        prop_assert!(fixture.seen.len() <= 1);
        prop_assert!(!id.is_empty() || fixture.seen.iter().all(|line| line.starts_with("successor > ")));
        for line in &fixture.seen {
            let (_, line) = line.split_once(' ').unwrap();
            let kind = Frame::parse(Bytes::from(line[2..].to_owned())).kind();
            prop_assert!(!matches!(kind, Kind::Invalid(_)), "{}", line);
        }
    }
}
