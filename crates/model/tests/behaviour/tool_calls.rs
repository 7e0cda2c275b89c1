//! Tool calls: how deltas are assigned, which calls may run, and how they are sent back.

use narrows_model::{Call, Finish, Message, Provider, Request};
use narrows_testkit::model::{ModelServer, Reply, chunk, delta, finish, preset};
use serde_json::{Value, json};

use crate::support::{
    ask, body_of, call, calls, client, client_of, deltas, play, request, result, tool, with_tools,
};

fn piece(call: &Value) -> Value {
    json!({"tool_calls": [call]})
}

/// Checks the id, name and arguments of the calls in a stream of these deltas.
async fn check(pieces: &[Value], expected: &[(&str, &str, &str)]) {
    let outcome = play(deltas(pieces, "tool_calls")).await;
    let names: Vec<&str> = expected.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(outcome.calling(), names, "each is announced once: {pieces:#?}");
    let completion = outcome.whole();
    assert_eq!(completion.finish, Finish::Calls);
    assert_eq!(completion.broken_calls, []);
    let found: Vec<(&str, &str, &str)> = completion
        .message
        .calls
        .iter()
        .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
        .collect();
    assert_eq!(found, expected, "{pieces:#?}");
}

#[tokio::test]
async fn deltas_are_joined_by_index() {
    let begin = |index: u64, id: &str, name: &str| {
        piece(
            &json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}),
        )
    };
    let more = |index: u64, text: &str| piece(&json!({"index": index, "function": {"arguments": text}}));
    check(&[begin(0, "a", "f"), more(0, "{\"x\""), more(0, ":1}")], &[("a", "f", "{\"x\":1}")]).await;
    let mixed = [
        begin(0, "a", "f"),
        begin(1, "b", "g"),
        more(1, "{\"y\""),
        more(0, "{\"x\""),
        more(0, ":1}"),
        more(1, ":2}"),
    ];
    check(&mixed, &[("a", "f", "{\"x\":1}"), ("b", "g", "{\"y\":2}")]).await;
}

#[tokio::test]
async fn calls_are_in_the_order_of_their_indices() {
    let at = |index: u64, id: &str| {
        piece(&json!({"index": index, "id": id, "function": {"name": id, "arguments": "{}"}}))
    };
    let outcome = play(deltas(&[at(1, "b"), at(0, "a"), at(2, "c")], "tool_calls")).await;
    let ids: Vec<String> = outcome.whole().message.calls.into_iter().map(|call| call.id).collect();
    assert_eq!(ids, ["a", "b", "c"]);
}

#[tokio::test]
async fn without_an_index_the_id_decides() {
    let one = |id: &str, name: &str, arguments: &str| {
        piece(&json!({"id": id, "function": {"name": name, "arguments": arguments}}))
    };
    let pieces = [one("a", "f", "{\"x\""), one("b", "g", "{}"), one("a", "", ":1}")];
    check(&pieces, &[("a", "f", "{\"x\":1}"), ("b", "g", "{}")]).await;
}

#[tokio::test]
async fn without_index_and_id_the_position_decides() {
    let both = json!({"tool_calls": [
        {"function": {"name": "f", "arguments": "{\"x\":1}"}},
        {"function": {"name": "g", "arguments": "{}"}},
    ]});
    let completion = play(deltas(&[both], "tool_calls")).await.whole();
    let made: Vec<(&str, &str)> =
        completion.message.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(made, [("f", "{\"x\":1}"), ("g", "{}")]);
}

#[tokio::test]
async fn a_new_id_at_a_used_index_is_a_new_call() {
    let at_0 = |id: &str, name: &str, arguments: &str| {
        piece(&json!({"index": 0, "id": id, "function": {"name": name, "arguments": arguments}}))
    };
    let pieces = [
        at_0("a", "f", "{\"x\":1}"),
        at_0("b", "g", "{\"y\""),
        piece(&json!({"index": 0, "function": {"arguments": ":2}"}})),
    ];
    check(&pieces, &[("a", "f", "{\"x\":1}"), ("b", "g", "{\"y\":2}")]).await;
}

#[tokio::test]
async fn a_name_may_be_repeated() {
    let every = |arguments: &str| {
        piece(
            &json!({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}),
        )
    };
    check(&[every(""), every("{\"x\""), every(":1}")], &[("a", "f", "{\"x\":1}")]).await;
    let empty = piece(&json!({"index": 0, "id": "", "function": {"name": "", "arguments": "1}"}}));
    let null = piece(&json!({"index": 0, "id": null, "function": {"name": null, "arguments": null}}));
    check(&[every("{\"x\":"), null, empty], &[("a", "f", "{\"x\":1}")]).await;
}

#[tokio::test]
async fn a_call_may_come_in_one_piece() {
    let whole = json!({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}});
    check(
        &[json!({"role": "assistant", "content": null, "tool_calls": [whole]})],
        &[("a", "f", "{\"x\":1}")],
    )
    .await;
}

#[tokio::test]
async fn a_call_without_an_id_gets_one() {
    for id in [json!(""), Value::Null] {
        let at = |index: u64| {
            piece(&json!({"index": index, "id": id, "function": {"name": "f", "arguments": "{}"}}))
        };
        let completion = play(deltas(&[at(0), at(1)], "tool_calls")).await.whole();
        let ids: Vec<&str> = completion.message.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids.len(), 2);
        assert!(ids.iter().all(|id| !id.is_empty()) && ids[0] != ids[1], "{ids:?}");
    }
}

#[tokio::test]
async fn generated_ids_differ_between_answers() {
    let reply =
        deltas(&[piece(&json!({"index": 0, "function": {"name": "f", "arguments": "{}"}}))], "tool_calls");
    let server = ModelServer::start(reply);
    let client = client(&server);
    let first = ask(&client, &request()).await.whole().message.calls[0].id.clone();
    let second = ask(&client, &request()).await.whole().message.calls[0].id.clone();
    assert_ne!(first, second, "a history with both could not tell their results apart");
}

#[tokio::test]
async fn missing_arguments_become_an_empty_object() {
    let none = [
        json!({"name": "f"}),
        json!({"name": "f", "arguments": ""}),
        json!({"name": "f", "arguments": null}),
    ];
    for function in none {
        check(&[piece(&json!({"index": 0, "id": "a", "function": function}))], &[("a", "f", "{}")]).await;
    }
}

#[tokio::test]
async fn invalid_arguments_are_kept_for_the_model() {
    let bad = piece(&json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{oops"}}));
    check(&[bad], &[("a", "f", "{oops")]).await;
}

#[tokio::test]
async fn calls_count_for_any_finish_reason() {
    let one = piece(&json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}));
    for reason in ["stop", "", "end_turn", "function_call", "tool_calls"] {
        let completion = play(deltas(std::slice::from_ref(&one), reason)).await.whole();
        assert_eq!((completion.finish, completion.message.calls.len()), (Finish::Calls, 1), "{reason}");
    }
}

#[tokio::test]
async fn a_second_finish_changes_nothing() {
    let one = delta(&piece(&json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}})));
    let completion = play(Reply::sse([one, finish("tool_calls"), finish("stop")])).await.whole();
    assert_eq!((completion.finish, completion.message.calls.len()), (Finish::Calls, 1));

    let begin = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\""}});
    let end = json!({"index": 0, "function": {"arguments": ":1}"}});
    let beside = |call: Value| {
        chunk(&json!([{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]))
    };
    let completion = play(Reply::sse([beside(begin), beside(end)])).await.whole();
    assert_eq!(completion.message.calls[0].arguments, "{\"x\":1}");
}

#[tokio::test]
async fn the_old_form_of_a_call_is_understood() {
    let pieces = [
        json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": ""}}),
        json!({"function_call": {"arguments": "{\"x\""}}),
        json!({"function_call": {"arguments": ":1}"}}),
    ];
    let outcome = play(deltas(&pieces, "function_call")).await;
    assert_eq!(outcome.calling(), ["f"]);
    let completion = outcome.whole();
    assert_eq!(completion.finish, Finish::Calls);
    assert_eq!(completion.message.calls.len(), 1);
    let made = &completion.message.calls[0];
    assert_eq!((made.name.as_str(), made.arguments.as_str()), ("f", "{\"x\":1}"));
    assert!(!made.id.is_empty());
}

#[tokio::test]
async fn a_call_cut_off_by_the_limit_must_not_run() {
    let begin = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\": [1,"}});
    let completion = play(deltas(&[piece(&begin)], "length")).await.whole();
    assert_eq!(completion.finish, Finish::Length);
    assert_eq!(completion.message.calls, []);
    assert_eq!(completion.broken_calls, [call("a", "f", "{\"x\": [1,")]);

    let nothing = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}});
    let completion = play(deltas(&[piece(&nothing)], "length")).await.whole();
    assert_eq!((completion.message.calls.len(), completion.broken_calls.len()), (0, 1), "not begun");
}

#[tokio::test]
async fn a_call_before_a_cut_off_call_is_kept() {
    let pieces = [
        piece(&json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}})),
        piece(&json!({"index": 1, "id": "b", "function": {"name": "g", "arguments": "{\"y\""}})),
    ];
    let completion = play(deltas(&pieces, "length")).await.whole();
    let kept: Vec<&str> = completion.message.calls.iter().map(|call| call.id.as_str()).collect();
    let broken: Vec<&str> = completion.broken_calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!((kept, broken), (vec!["a"], vec!["b"]));
}

#[tokio::test]
async fn an_aborted_stream_leaves_no_call_to_run() {
    let begin = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\""}});
    let reply = deltas(&[json!({"content": "Hello"}), piece(&begin)], "tool_calls").only(2);
    let outcome = play(reply).await;
    assert!(outcome.failed().shown);
    assert_eq!(outcome.completion.message.calls, Vec::<Call>::new());
}

#[tokio::test]
async fn signatures_are_sent_back_with_their_call() {
    let server = ModelServer::start([preset::gemini::calls(), Reply::text("done")]);
    let client = client_of(&server, Provider::Gemini);
    let completion = ask(&client, &request()).await.whole();
    assert_eq!(completion.finish, Finish::Calls);
    let made = &completion.message.calls;
    assert_eq!(made.len(), 2);
    assert_eq!(made[0].extra["extra_content"], preset::gemini::signature());
    assert!(made[1].extra.is_empty() && !made[1].id.is_empty(), "{made:?}");
    assert_eq!(
        (made[0].arguments.as_str(), made[1].arguments.as_str()),
        (preset::ARGUMENTS, "{\"path\":\"b.txt\"}")
    );

    let (first, second) = (made[0].id.clone(), made[1].id.clone());
    let mut messages = vec![Message::user("Hi"), Message::Assistant(completion.message)];
    messages.extend([result(&first, "one"), result(&second, "two")]);
    ask(&client, &with_tools(messages)).await.whole();
    let sent = server.seen()[1].messages().to_vec();
    let back = &sent[1]["tool_calls"];
    assert_eq!(back[0]["extra_content"], preset::gemini::signature());
    assert_eq!(back[1].get("extra_content"), None);
    assert_eq!((&back[0]["id"], &back[1]["id"]), (&sent[2]["tool_call_id"], &sent[3]["tool_call_id"]));
}

#[tokio::test]
async fn results_are_sent_in_the_order_of_their_calls() {
    let asked = calls(&[call("a", "f", "{}"), call("b", "g", "{\"x\":1}")]);
    let messages =
        vec![Message::user("Hi"), Message::Assistant(asked), result("b", "two"), result("a", "one")];
    let sent = body_of(Provider::Other, &with_tools(messages)).await;
    let sent = sent["messages"].as_array().expect("messages");
    assert_eq!(sent[1]["role"], "assistant");
    let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
    let expected = json!([
        {"id": "a", "type": "function", "function": function("f", "{}")},
        {"id": "b", "type": "function", "function": function("g", "{\"x\":1}")},
    ]);
    assert_eq!(sent[1]["tool_calls"], expected);
    assert_eq!((&sent[2]["tool_call_id"], &sent[2]["content"]), (&json!("a"), &json!("one")));
    assert_eq!((&sent[3]["tool_call_id"], &sent[3]["content"]), (&json!("b"), &json!("two")));
    assert!(sent[2..].iter().all(|message| message["role"] == "tool"));
}

#[tokio::test]
async fn mistral_gets_ids_of_nine_characters() {
    let asked = calls(&[call("call_very_long_1", "f", "{}"), call("call_very_long_2", "f", "{}")]);
    let messages = vec![
        Message::user("Hi"),
        Message::Assistant(asked),
        result("call_very_long_1", "one"),
        result("call_very_long_2", "two"),
    ];
    let request = with_tools(messages);
    let sent = body_of(Provider::Mistral, &request).await;
    let ids: Vec<&str> =
        (0..2).filter_map(|at| sent["messages"][1]["tool_calls"][at]["id"].as_str()).collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
    for (at, id) in ids.iter().enumerate() {
        assert!(id.len() == 9 && id.chars().all(|character| character.is_ascii_alphanumeric()), "{id}");
        assert_eq!(sent["messages"][2 + at]["tool_call_id"], *id);
    }
    assert_eq!(sent, body_of(Provider::Mistral, &request).await, "the prefix must be the same every time");
    let own = calls(&[call("a1B2c3D4e", "f", "{}")]);
    let messages = vec![Message::user("Hi"), Message::Assistant(own), result("a1B2c3D4e", "one")];
    let sent = body_of(Provider::Mistral, &with_tools(messages)).await;
    assert_eq!(sent["messages"][1]["tool_calls"][0]["id"], "a1B2c3D4e", "its own ids stay");
}

#[tokio::test]
async fn tools_are_sent_in_the_order_given() {
    let request = Request { tools: vec![tool("zebra"), tool("ant")], ..request() };
    let sent = body_of(Provider::Other, &request).await;
    let expected = |name: &str| {
        let tool = tool(name);
        let (name, description, parameters) = (tool.name, tool.description, tool.parameters);
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
    };
    assert_eq!(sent["tools"], json!([expected("zebra"), expected("ant")]));
    assert!(body_of(Provider::Other, &crate::support::request()).await.get("tools").is_none());
}
