//! Tests of invalid input. The connection stays usable after each line.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bytes::Bytes;
use narrows_link::{Link, Options as LinkOptions, memory};
use narrows_rpc::{Item, Options, start};
use serde_json::{Value, json};

/// Starts an agent that echoes the params of `ok`. Returns the link to it.
fn agent(options: &LinkOptions) -> Link {
    let (ours, theirs) = memory::pair(options);
    let serves = |method: &str| matches!(method, "ok" | "initialize" | "session/update");
    let (peer, mut inbox) = start(theirs, Options::agent(serves));
    tokio::spawn(async move {
        while let Some(item) = inbox.recv().await {
            if let Item::Request(request) = item {
                let params: Value = request.frame.read_params().unwrap();
                request.responder.respond(&params);
            }
        }
        drop(peer);
    });
    ours
}

/// Returns the responses to a line: everything before the response to a later request.
async fn answers(line: impl Into<Bytes>) -> Vec<Value> {
    let mut link = agent(&LinkOptions::default());
    exchange(&mut link, line.into()).await
}

async fn exchange(link: &mut Link, line: Bytes) -> Vec<Value> {
    link.sender.send(line).await.unwrap();
    let probe = Bytes::from_static(br#"{"jsonrpc":"2.0","id":"probe","method":"ok"}"#);
    link.sender.send(probe).await.unwrap();
    let mut answers = Vec::new();
    loop {
        let frame = link.receiver.recv().await.expect("the connection stays usable");
        let answer: Value = serde_json::from_slice(frame.bytes()).unwrap();
        if answer["id"] == "probe" {
            assert_eq!(answer["result"], json!({}));
            return answers;
        }
        answers.push(answer);
    }
}

/// Checks that `line` is answered with one error of this id and code.
async fn check(line: impl Into<Bytes>, id: Value, code: i64) {
    let line = line.into();
    let shown = String::from_utf8_lossy(&line[..line.len().min(120)]).into_owned();
    let answers = answers(line).await;
    assert_eq!(answers.len(), 1, "{shown}: {answers:?}");
    assert_eq!((&answers[0]["id"], &answers[0]["error"]["code"]), (&id, &json!(code)), "{shown}");
    assert_eq!(answers[0]["error"]["data"]["effects"], "none");
}

#[tokio::test]
async fn text_that_is_not_json_is_a_parse_error() {
    for line in [
        "{",
        "nonsense",
        "{\"a\":1,}",
        "{'a':1}",
        "\u{feff}{}",
        "{\"a\":\"\0\"}",
        "{\"a\":\"\t\"}",
        "{} {}",
        "[1,2",
    ] {
        check(line, Value::Null, -32700).await;
    }
    check(&b"{\"a\":\"\xff\xfe\"}"[..], Value::Null, -32700).await;
    check(&b"\xc0\x80"[..], Value::Null, -32700).await;
}

#[tokio::test]
async fn nesting_is_limited_and_never_overflows_the_stack() {
    for depth in [129, 100_000] {
        check("[".repeat(depth) + &"]".repeat(depth), Value::Null, -32700).await;
        check("{\"a\":".repeat(depth) + "1" + &"}".repeat(depth), Value::Null, -32700).await;
        check("[".repeat(depth), Value::Null, -32700).await;
    }
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ok","params":{{"a":{}{}}}}}"#,
        "[".repeat(100),
        "]".repeat(100)
    );
    assert_eq!(answers(deep).await[0]["id"], 1);
}

#[tokio::test]
async fn json_that_is_not_a_message_is_an_invalid_request() {
    for (line, id) in [
        (r#""text""#, json!(null)),
        ("17", json!(null)),
        ("null", json!(null)),
        ("[]", json!(null)),
        (" [ ] ", json!(null)),
        ("{}", json!(null)),
        (r#"{"id":5,"method":"ok"}"#, json!(5)),
        (r#"{"jsonrpc":"1.0","id":"a","method":"ok"}"#, json!("a")),
        (r#"{"jsonrpc":"2.0","id":6}"#, json!(6)),
        (r#"{"jsonrpc":"2.0","id":6,"method":7}"#, json!(6)),
        (r#"{"jsonrpc":"2.0","id":6,"method":"ok","params":"text"}"#, json!(6)),
        (r#"{"jsonrpc":"2.0","id":6,"method":"ok","result":1}"#, json!(6)),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ok"}"#, json!(null)),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ok"}"#, json!(null)),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ok"}"#, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ok"}"#, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1,"\u0069d":2,"method":"ok"}"#, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ok","params":{},"params":{}}"#, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ok","params":{"sessionId":"a","sessionId":"b"}}"#, json!(null)),
    ] {
        check(line, id, -32600).await;
    }
}

#[tokio::test]
async fn blank_lines_and_responses_are_never_answered() {
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
        r#"{"id":1,"result":{}}"#,
        r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#,
        r#"[{"id":1,"result":{}}]"#,
    ] {
        assert_eq!(answers(line).await, Vec::<Value>::new(), "{line}");
    }
}

#[tokio::test]
async fn an_invalid_notification_is_never_answered() {
    for params in ["{}", "[]", "17", "\"text\"", "null", r#"{"sessionId":5}"#] {
        for method in ["session/update", "ok", "unknown", "_ext/x", "$/cancel_request", "$/other"] {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
            assert_eq!(answers(line.clone()).await, Vec::<Value>::new(), "{line}");
            assert_eq!(answers(format!("[{line}]")).await, Vec::<Value>::new(), "[{line}]");
        }
    }
}

#[tokio::test]
async fn notifications_with_positional_params_are_dropped() {
    let (link, theirs) = memory::pair(&LinkOptions::default());
    let (_peer, mut inbox) = start(theirs, Options::agent(|_| true));
    for params in ["[1]", "17", "{}"] {
        let line = format!(r#"{{"jsonrpc":"2.0","method":"n","params":{params}}}"#);
        link.sender.send(line.into()).await.unwrap();
    }
    let Some(Item::Notification(frame)) = inbox.recv().await else { panic!() };
    assert_eq!(frame.params(), Some(&b"{}"[..]));
}

#[tokio::test]
async fn unknown_methods_and_positional_params_are_refused() {
    check(r#"{"jsonrpc":"2.0","id":1,"method":"_ext/unknown"}"#, json!(1), -32601).await;
    check(r#"{"jsonrpc":"2.0","id":1,"method":"ok","params":[1]}"#, json!(1), -32602).await;
}

#[tokio::test]
async fn ids_are_echoed_byte_for_byte() {
    let long = format!("\"{}\"", "x".repeat(300));
    for id in [
        "1",
        "\"1\"",
        "1.5",
        "-5",
        "9223372036854775808",
        "1e3",
        "1.0",
        "\"\"",
        "\"\\u0041\"",
        "\"ü\"",
        &long,
    ] {
        let mut link = agent(&LinkOptions::default());
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ok","params":{{"x":1}}}}"#);
        link.sender.send(line.into()).await.unwrap();
        let frame = link.receiver.recv().await.unwrap();
        let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":1}}}}"#);
        assert_eq!(std::str::from_utf8(frame.bytes()).unwrap(), expected);
    }
    check(format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ok"}}"#, "x".repeat(5000)), Value::Null, -32600)
        .await;
}

#[tokio::test]
async fn an_overlong_line_is_answered_with_an_id_in_its_head() {
    let options = LinkOptions { max_line: 200_000, ..LinkOptions::default() };
    let filler = "x".repeat(200_000);
    for (line, id) in [
        (format!(r#"{{"jsonrpc":"2.0","id":"me","method":"ok","params":{{"x":"{filler}"}}}}"#), json!("me")),
        (format!(r#"{{"jsonrpc":"2.0","method":"ok","params":{{"x":"{filler}"}},"id":5}}"#), json!(null)),
        (filler.clone() + "x", json!(null)),
    ] {
        let mut link = agent(&options);
        let answers = exchange(&mut link, line.into()).await;
        assert_eq!(answers.len(), 1);
        assert_eq!((&answers[0]["id"], &answers[0]["error"]["code"]), (&id, &json!(-32013)));
    }
}

#[tokio::test]
async fn a_second_request_with_an_id_in_flight_is_refused_and_the_first_unharmed() {
    let (mut link, theirs) = memory::pair(&LinkOptions::default());
    let (_peer, mut inbox) = start(theirs, Options { max_requests: 2, ..Options::agent(|_| true) });
    let send = |id: u32| Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ok"}}"#));
    link.sender.send(send(1)).await.unwrap();
    let Some(Item::Request(first)) = inbox.recv().await else { panic!() };
    for (id, code) in [(1, -32014), (2, 0), (3, -32012)] {
        link.sender.send(send(id)).await.unwrap();
        if code == 0 {
            continue;
        }
        let answer: Value = serde_json::from_slice(link.receiver.recv().await.unwrap().bytes()).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(code)));
    }
    first.responder.respond(&json!("first"));
    let answer: Value = serde_json::from_slice(link.receiver.recv().await.unwrap().bytes()).unwrap();
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 1, "result": "first"}));
    link.sender.send(send(1)).await.unwrap();
    let Some(Item::Request(second)) = inbox.recv().await else { panic!() };
    assert_eq!(second.responder.id().as_bytes(), b"2");
    let Some(Item::Request(again)) = inbox.recv().await else { panic!() };
    assert_eq!(again.responder.id().as_bytes(), b"1", "an answered id is free again");
}
