use std::fmt::Write as _;

use super::*;

/// Checks the kind and fields of a message with both implementations and both checks.
#[track_caller]
fn check(text: &str, kind: Kind, fields: &[(&str, &str)]) {
    let bytes = text.as_bytes();
    for (found, envelope) in [
        scan(bytes, Check::Grammar),
        scan(bytes, Check::Envelope),
        scan_portable(bytes, Check::Grammar),
        scan_portable(bytes, Check::Envelope),
    ] {
        assert_eq!(found, kind, "{text}");
        assert_eq!(list(text, &envelope), fields, "{text}");
    }
}

fn list<'a>(text: &'a str, envelope: &Envelope) -> Vec<(&'static str, &'a str)> {
    let Envelope {
        version, id, method, params, result, error, session, request_id, top_session, pool, ..
    } = *envelope;
    [
        ("jsonrpc", version),
        ("id", id),
        ("method", method),
        ("params", params),
        ("result", result),
        ("error", error),
        ("session", session),
        ("request_id", request_id),
        ("top_session", top_session),
        ("pool", pool),
    ]
    .into_iter()
    .filter_map(|(name, span)| Some((name, std::str::from_utf8(span.slice(text.as_bytes())?).ok()?)))
    .collect()
}

#[track_caller]
fn refused(text: &str, fault: Fault) {
    let bytes = text.as_bytes();
    assert_eq!(scan(bytes, Check::Grammar).0, Kind::Invalid(fault), "{text}");
    assert_eq!(scan_portable(bytes, Check::Grammar).0, Kind::Invalid(fault), "{text}");
}

const V: (&str, &str) = ("jsonrpc", "\"2.0\"");

#[test]
fn kinds_and_fields() {
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"sessionId":"s","requestId":7}}"#,
        Kind::Request,
        &[
            V,
            ("id", "1"),
            ("method", "\"m\""),
            ("params", r#"{"sessionId":"s","requestId":7}"#),
            ("session", "\"s\""),
            ("request_id", "7"),
        ],
    );
    check(
        r#" { "params" : [ ] , "method" : "m" , "jsonrpc" : "2.0" } "#,
        Kind::Notification,
        &[V, ("method", "\"m\""), ("params", "[ ]")],
    );
    check(
        r#"{"jsonrpc":"2.0","id":"a","result":{"requestId":1,"sessionId":"s"}}"#,
        Kind::Response,
        &[V, ("id", "\"a\""), ("result", r#"{"requestId":1,"sessionId":"s"}"#), ("session", "\"s\"")],
    );
    check(
        r#"{"jsonrpc":"2.0","id":null,"error":{"sessionId":"no"}}"#,
        Kind::Response,
        &[V, ("id", "null"), ("error", r#"{"sessionId":"no"}"#)],
    );
    check(
        r#"{"jsonrpc":"2.0","method":"m","sessionId":"top","pool":"p","x":{"sessionId":"no","id":9}}"#,
        Kind::Notification,
        &[V, ("method", "\"m\""), ("top_session", "\"top\""), ("pool", "\"p\"")],
    );
    // A session id counts only at one level, and only as a key.
    check(
        r#"{"jsonrpc":"2.0","method":"m","params":{"a":{"sessionId":"no"},"b":"\"sessionId\":1","c":["sessionId"]}}"#,
        Kind::Notification,
        &[
            V,
            ("method", "\"m\""),
            ("params", r#"{"a":{"sessionId":"no"},"b":"\"sessionId\":1","c":["sessionId"]}"#),
        ],
    );
    // Escaped spellings of a key count as the key; keys that only look similar do not.
    check(
        r#"{"\u006asonrpc":"2.0","\u0069\u0064":1,"m\u0065thod":"\u006d","par\u0061ms":{"session\u0049d":"s"}}"#,
        Kind::Request,
        &[
            V,
            ("id", "1"),
            ("method", r#""\u006d""#),
            ("params", r#"{"session\u0049d":"s"}"#),
            ("session", "\"s\""),
        ],
    );
    check(
        r#"{"jsonrpc":"2.0","method":"m","i\u0064\u0000":1,"\u0169d":2,"i\\d":3,"\u0069dentification number":5,"":6}"#,
        Kind::Notification,
        &[V, ("method", "\"m\"")],
    );
    check("[]", Kind::Batch, &[]);
    check(r#" [{"jsonrpc":"2.0"},7] "#, Kind::Batch, &[]);
}

#[test]
fn invalid_messages_are_refused_for_the_right_fault() {
    for text in
        ["", " ", "\u{feff}{}", "{}\0", "\0", "{", "[", "nul", "{}{}", "{} x", r#"{"id":"#, r#"{"id":"a"#]
    {
        refused(text, Fault::Syntax);
    }
    for text in ["1", "\"x\"", "null", " true "] {
        refused(text, Fault::NotAMessage);
    }
    refused("{}", Fault::Version);
    refused(r#"{"jsonrpc":"2.1","id":1,"method":"m"}"#, Fault::Version);
    refused(r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#, Fault::Version);
    refused(r#"{"jsonrpc":"2.0"}"#, Fault::NoMethod);
    refused(r#"{"jsonrpc":"2.0","id":1}"#, Fault::NoMethod);
    refused(r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Fault::BadMethod);
    refused(r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#, Fault::BadMethod);
    refused(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":"p"}"#, Fault::BadParams);
    refused(r#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#, Fault::Mixed);
    refused(r#"{"jsonrpc":"2.0","method":"m","error":{}}"#, Fault::Mixed);
    for id in ["null", "true", "[]", "{}", &format!("\"{}\"", "x".repeat(5000))] {
        refused(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#), Fault::BadId);
    }
    refused(r#"{"jsonrpc":"2.0","result":1}"#, Fault::BadResponse);
    refused(r#"{"jsonrpc":"2.0","id":[],"result":1}"#, Fault::BadResponse);
    refused(r#"{"id":1,"result":1}"#, Fault::BadResponse);
}

#[test]
fn a_repeated_routing_key_in_any_spelling() {
    let good = r#""jsonrpc":"2.0","id":1,"method":"m","sessionId":"s","pool":"p","params":{"sessionId":"s","requestId":1}"#;
    check_good(good);
    for key in ["jsonrpc", "id", "method", "params", "sessionId", "pool"] {
        for spelling in spellings(key) {
            refused(&format!(r#"{{{good},"{spelling}":1}}"#), Fault::RepeatedKey);
            refused(&format!(r#"{{"{spelling}":1,{good}}}"#), Fault::RepeatedKey);
            // A fault in the rest of the message is worse.
            refused(&format!(r#"{{{good},"{spelling}":1"#), Fault::Syntax);
        }
    }
    for key in ["sessionId", "requestId"] {
        for spelling in spellings(key) {
            refused(
                &format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"{key}":1,"x":0,"{spelling}":1}}}}"#),
                Fault::RepeatedKey,
            );
        }
    }
    refused(r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"a","sessionId":"a"}}"#, Fault::RepeatedKey);
    refused(r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#, Fault::RepeatedKey);
    refused(r#"{"jsonrpc":"2.0","id":1,"error":{},"error":{}}"#, Fault::RepeatedKey);
    // Other keys may be repeated, because they do not affect routing.
    let harmless =
        r#"{"jsonrpc":"2.0","method":"m","x":1,"x":2,"params":{"id":1,"id":2,"method":1,"method":2}}"#;
    assert_eq!(scan(harmless.as_bytes(), Check::Grammar).0, Kind::Notification);
}

#[track_caller]
fn check_good(members: &str) {
    assert_eq!(scan(format!("{{{members}}}").as_bytes(), Check::Grammar).0, Kind::Request);
}

/// Returns a key as it is, with one character escaped, and with all of them escaped.
fn spellings(key: &str) -> [String; 4] {
    let escape = |escaped: fn(usize) -> bool| {
        let mut spelled = String::new();
        for (index, character) in key.chars().enumerate() {
            let _ = match character {
                _ if !escaped(index) => write!(spelled, "{character}"),
                _ if index % 2 == 0 => write!(spelled, "\\u{:04x}", character as u32),
                _ => write!(spelled, "\\u{:04X}", character as u32),
            };
        }
        spelled
    };
    [key.to_owned(), escape(|index| index == 0), escape(|index| index == 1), escape(|_| true)]
}

#[test]
fn the_head_of_a_cut_message() {
    let whole = r#"{"jsonrpc":"2.0","id":"abc\n","method":"m","params":{"sessionId":"s","text":"long"#;
    let id_ends = whole.find(",\"method").unwrap();
    for cut in 0..=whole.len() {
        let head = &whole.as_bytes()[..cut];
        let envelope = scan_head(head);
        let expected = (cut > id_ends).then_some(&br#""abc\n""#[..]);
        assert_eq!(envelope.id.slice(head), expected, "{}", head.escape_ascii());
    }
    let id = |head: &[u8]| scan_head(head).id.slice(head).map(<[u8]>::to_vec);
    assert_eq!(id(br#"{"id":12"#), None, "more digits may follow");
    assert_eq!(id(br#"{"id":12,"#), Some(b"12".to_vec()));
    assert_eq!(id(br#"{"id":1,"id":2,"x":""#), None, "either id may be meant");
    assert_eq!(id(br#"{"id":1,"i\u0064":2,"x":""#), None, "either id may be meant");
    assert_eq!(id(b"{\"id\":\"\xff\",\"x\":\""), None, "an answer must be UTF-8");
    assert_eq!(id(b"{\"id\":\"\\q\",\"x\":\""), None, "an answer must be JSON");
    assert_eq!(id(br#"[{"id":1,"#), None, "the id of an entry, not of the batch");
    assert!(scan_head(br#"{"id":1,"result":"#).result.is_some());
    assert!(scan_head(br#"{"id":1,"error":{"message":"#).error.is_some());
}

#[test]
fn entries_of_an_array() {
    let list = |text: &str, max| -> Vec<String> {
        entries(text.as_bytes(), max).into_iter().map(|range| text[range].to_owned()).collect()
    };
    assert_eq!(list("[]", 9), [""; 0]);
    assert_eq!(list(" [ ] ", 9), [""; 0]);
    assert_eq!(list("[1]", 9), ["1"]);
    assert_eq!(
        list(r#" [ {"a":"]"} , [2,[3]],"x,\"y" ,null,-1.5e3 ] "#, 9),
        [r#"{"a":"]"}"#, "[2,[3]]", r#""x,\"y""#, "null", "-1.5e3"]
    );
    assert_eq!(list("[1,2,3,4]", 2), ["1", "2"], "no more than asked for");
}
