use serde_json::{Value, json};

use super::*;
use crate::Fault;

fn frame(line: impl AsRef<[u8]>) -> Frame {
    Frame::parse(Bytes::copy_from_slice(line.as_ref()))
}

/// Checks the id and code of the answer to a line; `None` means that the line gets no answer.
#[track_caller]
fn check(line: impl AsRef<[u8]>, expected: Option<(&str, i64)>) {
    check_answer(&frame(line), expected);
}

#[track_caller]
fn check_answer(frame: &Frame, expected: Option<(&str, i64)>) {
    let answer = frame.refusal();
    let parts = answer.as_ref().map(|answer| {
        let response = Frame::parse(answer.clone());
        assert_eq!(response.kind(), Kind::Response);
        assert!(!answer.contains(&b'\n'));
        let id = response.envelope().id.slice(answer).unwrap();
        (std::str::from_utf8(id).unwrap().to_owned(), response.error().unwrap().code)
    });
    let expected = expected.map(|(id, code)| (id.to_owned(), code));
    assert_eq!(parts, expected, "{frame:?}: {}", frame.bytes().escape_ascii());
}

#[test]
fn invalid_messages_are_answered() {
    let null = |code| Some(("null", code));
    for line in [
        "{",
        "{\"id\":",
        "{\"id\":\"a",
        "{\"id\":1,",
        "{\"id\":1,\"method\":",
        "nonsense",
        "\u{feff}{}",
        "{}\0",
    ] {
        check(line, null(-32700));
    }
    check(b"{\"id\":1,\"method\":\"\xff\"}", null(-32700));
    check(b"\xff\xfe", null(-32700));
    check(r#"{"jsonrpc":"2.0","id":1,"method":"a\u0000b\q"}"#, null(-32700));
    check("[".repeat(100_000), null(-32700));
    check("{\"params\":".repeat(100_000), null(-32700));

    check(r#""a string""#, null(-32600));
    check("17", null(-32600));
    check(r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, null(-32600));
    check(r#"{"jsonrpc":"2.0","id":1,"method":"m","id":1}"#, null(-32600));
    check(r#"{"jsonrpc":"2.0","id":1,"method":"m","\u0069d":1}"#, null(-32600));
    check(r#"{"jsonrpc":"2.0","method":"m","params":{"sessionId":"a","session\u0049d":"b"}}"#, null(-32600));

    check(r#"{"id":7,"method":"m"}"#, Some(("7", -32600)));
    check(r#"{"jsonrpc":"1.0","id":"x","method":"m"}"#, Some(("\"x\"", -32600)));
    check(r#"{"jsonrpc":"2.0","id":7}"#, Some(("7", -32600)));
    check(r#"{"jsonrpc":"2.0","id":7,"method":null}"#, Some(("7", -32600)));
    check(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":1}"#, Some(("7", -32600)));
    check(r#"{"jsonrpc":"2.0","id":7,"method":"m","result":1}"#, Some(("7", -32600)));
}

#[test]
fn valid_messages_and_responses_are_not_answered() {
    for line in [
        r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","method":"m"}"#,
        r#"{"jsonrpc":"2.0","method":"m","params":"wrong"}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":null}"#,
        r#"{"jsonrpc":"2.0","result":1}"#,
        r#"{"id":7,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":{},"error":1}"#,
        "[]",
    ] {
        check(line, None);
    }
}

#[test]
fn ids_are_echoed_byte_for_byte() {
    let long = format!("\"{}\"", "x".repeat(298));
    for id in
        ["1", "\"1\"", "1.5", "1.0", "1e2", "-5", "0", "9223372036854775808", "\"\"", r#""\u0061\"é""#, &long]
    {
        let request = frame(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
        assert_eq!((request.kind(), request.id()), (Kind::Request, Some(id.as_bytes())));
        check(format!(r#"{{"id":{id},"method":"m"}}"#), Some((id, -32600)));
    }
}

#[test]
fn an_overlong_line_is_answered_with_the_id_in_its_head() {
    let head = |line: &[u8]| Frame::too_long(Bytes::copy_from_slice(line));
    let request = br#"{"jsonrpc":"2.0","id":"abc","method":"m","params":{"text":"long"#;
    for cut in 0..=request.len() {
        let id = if cut > br#"{"jsonrpc":"2.0","id":"abc""#.len() { "\"abc\"" } else { "null" };
        check_answer(&head(&request[..cut]), Some((id, -32013)));
    }
    check_answer(&head(b"{\"id\":\"\xff\",\"method\":\"m\",\"params\":\""), Some(("null", -32013)));
    check_answer(&head(b"{\"id\":\"\x01\",\"method\":\"m\",\"params\":\""), Some(("null", -32013)));
    check_answer(&head(br#"{"id":1,"id":2,"params":""#), Some(("null", -32013)));
    check_answer(&head(br#"[{"id":1,"method":"m"},"#), Some(("null", -32013)));
    check_answer(&head(b"\xff\xff\xff"), Some(("null", -32013)));

    let response = head(br#"{"jsonrpc":"2.0","id":5,"result":{"content":"long"#);
    check_answer(&response, None);
    assert_eq!((response.kind(), response.id()), (Kind::Invalid(Fault::LongResponse), Some(&b"5"[..])));
    assert_eq!(response.result(), None, "it is cut");
}

#[test]
fn fields_are_read_without_their_escapes() {
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"a\/b","sessionId":"t\u00e9","pool":"p","params":{"sessionId":"s\n☃","requestId":"r"}}"#;
    let frame = frame(line);
    assert_eq!(frame.method().as_deref(), Some("a/b"));
    assert_eq!(frame.session().as_deref(), Some("s\n☃"));
    assert_eq!(frame.top_session().as_deref(), Some("té"));
    assert_eq!(frame.pool().as_deref(), Some("p"));
    assert_eq!(frame.request_id(), Some(&b"\"r\""[..]));
    assert_eq!(frame.read_params::<Value>().unwrap(), json!({"sessionId": "s\n☃", "requestId": "r"}));
    let odd = self::frame(r#"{"jsonrpc":"2.0","method":"m","params":{"sessionId":7},"pool":["p"]}"#);
    assert_eq!((odd.session(), odd.pool(), odd.top_session()), (None, None, None));
    let lone = self::frame(r#"{"jsonrpc":"2.0","method":"m","params":{"sessionId":"\ud800"}}"#);
    assert_eq!((lone.kind(), lone.session()), (Kind::Notification, None));
}

#[test]
fn absent_and_null_params_are_empty() {
    for params in ["", r#","params":null"#, r#","params":{}"#] {
        let frame = frame(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m"{params}}}"#));
        assert_eq!(frame.kind(), Kind::Request);
        assert_eq!(frame.read_params::<Value>().unwrap(), json!({}));
    }
}

#[test]
fn a_malformed_error_object_still_counts_as_an_error() {
    let error =
        |error: &str| frame(format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)).error().unwrap();
    assert_eq!(error(r#"{"code":-5,"message":"m","data":[1]}"#).data, Some(json!([1])));
    for odd in ["null", "\"x\"", "{}", r#"{"code":"5","message":"m"}"#, r#"{"code":1e400,"message":"m"}"#] {
        assert!(error(odd).is(crate::Code::Internal), "{odd}");
    }
}

#[test]
fn a_splice_changes_only_its_field() {
    let line = r#"{"z":[1, 2],"jsonrpc":"2.0", "id" : 12 ,"method":"m","params":{ "requestId":"r","sessionId" : "s" ,"x":"\u00e9"}} "#;
    let frame = frame(line);
    for (part, field) in [(Part::Id, " 12 "), (Part::RequestId, "\"r\""), (Part::Session, " \"s\" ")] {
        for raw in ["7", "\"a longer one\"", "\"\""] {
            let (before, after) = line.split_once(field).unwrap();
            let pad = if field.starts_with(' ') { " " } else { "" };
            let spliced = frame.splice(part, raw.as_bytes()).unwrap();
            assert_eq!(std::str::from_utf8(&spliced).unwrap(), format!("{before}{pad}{raw}{pad}{after}"));
        }
    }
    let bare = self::frame(r#"{"jsonrpc":"2.0","method":"m"}"#);
    for part in [Part::Id, Part::RequestId, Part::Session] {
        assert_eq!(bare.splice(part, b"1"), None);
    }
    // A line that is not JSON has no fields.
    assert_eq!(
        self::frame(r#"{"id":1,"method":"m","params":{"sessionId":"s"}"#).splice(Part::Id, b"2"),
        None
    );
}

#[test]
fn debug_shows_no_content() {
    let shown = format!("{:?}", frame(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"text":"secret"}}"#));
    assert!(shown.contains("Request") && !shown.contains("secret"), "{shown}");
    for cut in ["{\"id\":", "{\"id\":\"", "{\"method\":", "{\"params\":{\"sessionId\":"] {
        assert!(format!("{:?}", frame(cut)).contains("Syntax"));
        assert!(format!("{:?}", Frame::too_long(cut.into())).contains("TooLong"));
    }
}
