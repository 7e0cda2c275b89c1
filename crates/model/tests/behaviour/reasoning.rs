//! Reasoning: its field names, its tags, and the providers that get it back.

use narrows_model::{Assistant, Message, Provider, ReplyEvent, Request};
use narrows_testkit::model::{ModelServer, Reply, preset};
use serde_json::{Value, json};

use crate::support::{ask, body_of, call, calls, client_of, deltas, play, request, result, with_tools};

async fn check(pieces: &[Value], thought: &str, text: &str) {
    let outcome = play(deltas(pieces, "stop")).await;
    assert_eq!((outcome.thought().as_str(), outcome.text().as_str()), (thought, text), "{pieces:?}");
    outcome.whole();
}

#[tokio::test]
async fn reasoning_has_two_field_names() {
    for name in ["reasoning_content", "reasoning"] {
        let thoughts =
            [json!({name: "Let me"}), json!({name: " see"}), json!({name: null, "content": "Hello"})];
        check(&thoughts, "Let me see", "Hello").await;
        check(&[json!({name: "a", "content": "b"})], "a", "b").await;
        check(&[json!({name: "", "content": "b"})], "", "b").await;
    }
}

#[tokio::test]
async fn reasoning_in_both_fields_is_shown_once() {
    let both = |thought: &str| json!({"reasoning_content": thought, "reasoning": thought});
    check(&[both("Let me"), both(" see"), json!({"content": "Hello"})], "Let me see", "Hello").await;
    let one = json!({"reasoning_content": null, "reasoning": "a"});
    let other = json!({"reasoning_content": "b", "reasoning": ""});
    check(&[one, other, json!({"content": "Hello"})], "ab", "Hello").await;
}

#[tokio::test]
async fn reasoning_in_details_is_not_shown_twice() {
    let detail = json!([{"type": "reasoning.text", "text": "Let me see"}]);
    let delta = json!({"reasoning": "Let me see", "reasoning_details": detail});
    check(&[delta, json!({"content": "Hello"})], "Let me see", "Hello").await;
}

fn pieces(text: &str, size: usize) -> Vec<Value> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(size).map(|piece| json!({"content": piece.iter().collect::<String>()})).collect()
}

#[tokio::test]
async fn tags_at_the_start_contain_reasoning() {
    for size in [1, 2, 5, 100] {
        check(&pieces("<think>Let me see</think>Hello", size), "Let me see", "Hello").await;
    }
}

#[tokio::test]
async fn white_space_around_tags_is_dropped() {
    for size in [1, 3, 100] {
        let outcome = play(deltas(&pieces("\n<think>\nLet me see\n</think>\n\nHello", size), "stop")).await;
        assert_eq!(outcome.text(), "Hello", "in pieces of {size}");
        assert_eq!(outcome.thought().trim(), "Let me see", "in pieces of {size}");
        outcome.whole();
    }
}

#[tokio::test]
async fn tags_elsewhere_are_text() {
    for text in
        ["Use <think> tags</think>.", "a < b", "<thin ice", "<", "<thinking hard> is fun", "1 <think>"]
    {
        for size in [1, 100] {
            check(&pieces(text, size), "", text).await;
        }
    }
    check(&pieces("<think>a</think>b <think>c</think>", 1), "a", "b <think>c</think>").await;
}

#[tokio::test]
async fn reasoning_without_a_closing_tag_is_kept() {
    check(&pieces("<think>Let me see", 1), "Let me see", "").await;
    check(&pieces("<think>a </thin", 1), "a </thin", "").await;
}

#[tokio::test]
async fn tags_are_found_beside_reasoning_fields() {
    let mut deltas = vec![json!({"reasoning": "One."})];
    deltas.extend(pieces("<think>Two.</think>Hello", 4));
    check(&deltas, "One.Two.", "Hello").await;
}

#[tokio::test]
async fn reasoning_is_shown_while_it_arrives() {
    let outcome = play(deltas(&pieces("<think>one two three</think>four", 4), "stop")).await;
    let thoughts = outcome.events.iter().filter(|event| matches!(event, ReplyEvent::Thought(_))).count();
    assert!(thoughts > 1, "{:?}", outcome.events);
}

/// Returns a conversation in which a model has reasoned and called a tool.
fn after_a_call(assistant: Assistant) -> Request {
    let messages = vec![Message::user("Hi"), Message::Assistant(assistant), result("c1", "found")];
    with_tools(messages)
}

fn thoughtful() -> Assistant {
    Assistant { reasoning: "Let me see".to_owned(), ..calls(&[call("c1", "read_file", "{}")]) }
}

#[tokio::test]
async fn details_go_back_to_openrouter_unchanged() {
    let server = ModelServer::start([preset::openrouter::call(), Reply::text("done")]);
    let client = client_of(&server, Provider::OpenRouter);
    let outcome = ask(&client, &request()).await;
    assert_eq!((outcome.thought().as_str(), outcome.calling()), (preset::THOUGHT, vec![preset::TOOL]));
    let message = outcome.whole().message;
    assert_eq!(message.extra["reasoning_details"], preset::openrouter::reasoning_details());

    let mut next = after_a_call(message);
    let Message::Tool(given) = &mut next.messages[2] else { unreachable!("it is a result") };
    given.call = "toolu_1".to_owned();
    ask(&client, &next).await.whole();
    let sent = &server.seen()[1].messages()[1].clone();
    assert_eq!(sent["reasoning_details"], preset::openrouter::reasoning_details());
    assert_eq!(sent["tool_calls"][0]["id"], "toolu_1");
    assert_eq!(
        sent["tool_calls"][0]["function"],
        json!({"name": preset::TOOL, "arguments": preset::ARGUMENTS})
    );
}

#[tokio::test]
async fn details_survive_storage() {
    let message = play(preset::openrouter::call()).await.whole().message;
    let stored = serde_json::to_string(&message).expect("it can be stored");
    assert_eq!(serde_json::from_str::<Assistant>(&stored).expect("and read again"), message);
}

#[tokio::test]
async fn deepseek_gets_its_reasoning_back_within_a_tool_loop() {
    let sent = body_of(Provider::DeepSeek, &after_a_call(thoughtful())).await;
    assert_eq!(sent["messages"][1]["reasoning_content"], "Let me see");
    assert_eq!(sent["messages"][1]["content"], "", "some servers refuse null beside reasoning");
}

#[tokio::test]
async fn strict_endpoints_get_no_reasoning() {
    for provider in [Provider::OpenAi, Provider::Mistral, Provider::Groq] {
        let sent = body_of(provider, &after_a_call(thoughtful())).await;
        let message = sent["messages"][1].as_object().expect("a message");
        assert!(
            !message.keys().any(|key| key.starts_with("reasoning")),
            "{provider:?}: {message:?} must have nothing the endpoint does not know"
        );
    }
}

#[tokio::test]
async fn an_endpoint_that_requires_reasoning_gets_it() {
    let plan = narrows_testkit::model::Plan::from(Reply::text("done")).unless(|seen| {
        (!seen.messages()[1]["reasoning_content"].is_string()).then(preset::deepseek::thoughts_missing)
    });
    let server = ModelServer::start(plan);
    let outcome = ask(&client_of(&server, Provider::Other), &after_a_call(thoughtful())).await;
    assert_eq!(outcome.whole().message.text, "done");
}
