//! Usage: the places of the numbers, and that the last ones count.

use narrows_model::{Provider, Usage};
use narrows_testkit::model::{Reply, chunk, delta, finish, preset};
use serde_json::{Value, json};

use crate::support::{body_of, play, request};

async fn check(chunks: &[Value], expected: Option<Usage>) {
    let completion = play(Reply::sse(chunks.to_vec())).await.whole();
    assert_eq!(completion.usage, expected, "{chunks:#?}");
}

fn plain(input: u64, output: u64) -> Option<Usage> {
    Some(Usage { input, output, total: input + output, ..Usage::default() })
}

fn numbers(input: u64, output: u64) -> Value {
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output})
}

fn with(mut chunk: Value, usage: &Value) -> Value {
    chunk["usage"] = usage.clone();
    chunk
}

fn hello() -> Value {
    delta(&json!({"content": "Hello"}))
}

#[tokio::test]
async fn usage_is_requested() {
    for provider in [Provider::Other, Provider::OpenAi, Provider::LlamaCpp, Provider::Ollama] {
        let sent = body_of(provider, &request()).await;
        assert_eq!(sent["stream_options"], json!({"include_usage": true}), "{provider:?}");
        assert_eq!(sent["stream"], true, "{provider:?}");
    }
}

#[tokio::test]
async fn mistral_reports_usage_without_a_request() {
    // Mistral also refuses the option.
    assert_eq!(body_of(Provider::Mistral, &request()).await.get("stream_options"), None);
}

#[tokio::test]
async fn usage_is_found_in_many_places() {
    let usage = numbers(7, 3);
    let empty = with(chunk(&json!([])), &usage);
    let idle = with(delta(&json!({})), &usage);
    let ending = with(finish("stop"), &usage);
    check(&[hello(), finish("stop"), empty.clone()], plain(7, 3)).await;
    check(&[hello(), finish("stop"), idle], plain(7, 3)).await;
    check(&[hello(), ending.clone()], plain(7, 3)).await;
    check(&[hello(), ending, empty], plain(7, 3)).await;
    check(&[hello(), finish("stop")], None).await;
    check(&[with(hello(), &Value::Null), with(finish("stop"), &Value::Null)], None).await;
}

#[tokio::test]
async fn the_last_counts_replace_earlier_ones() {
    let so_far = |output: u64| with(hello(), &numbers(7, output));
    check(&[so_far(1), so_far(2), so_far(3), with(finish("stop"), &numbers(7, 3))], plain(7, 3)).await;
    check(
        &[so_far(1), with(finish("stop"), &Value::Null), with(chunk(&json!([])), &numbers(7, 5))],
        plain(7, 5),
    )
    .await;
    check(&[so_far(4), with(finish("stop"), &Value::Null)], plain(7, 4)).await;
}

#[tokio::test]
async fn counts_may_be_missing() {
    check(
        &[hello(), with(finish("stop"), &json!({"prompt_tokens": 7, "completion_tokens": 3}))],
        plain(7, 3),
    )
    .await;
    let only_total = json!({"prompt_tokens": 7, "total_tokens": 10});
    let completion = play(Reply::sse([hello(), with(finish("stop"), &only_total)])).await.whole();
    let usage = completion.usage.expect("some came");
    assert_eq!((usage.input, usage.total), (7, 10));
    let nonsense = json!({"prompt_tokens": null, "completion_tokens": "many"});
    play(Reply::sse([hello(), with(finish("stop"), &nonsense)])).await.whole();
}

#[tokio::test]
async fn cache_hits_have_three_names() {
    for more in [
        json!({"prompt_tokens_details": {"cached_tokens": 5}}),
        json!({"prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 2}),
        json!({"cached_tokens": 5}),
    ] {
        let mut usage = numbers(7, 3);
        usage.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let expected = plain(7, 3).map(|usage| Usage { cached: Some(5), ..usage });
        check(&[hello(), with(finish("stop"), &usage)], expected).await;
    }
}

#[tokio::test]
async fn reasoning_and_cost_are_reported() {
    let mut usage = numbers(7, 3);
    usage["completion_tokens_details"] = json!({"reasoning_tokens": 2});
    usage["cost"] = json!(0.25);
    let expected = plain(7, 3).map(|usage| Usage { reasoning: Some(2), cost: Some(0.25), ..usage });
    check(&[hello(), with(finish("stop"), &usage)], expected).await;
    let null = json!({
        "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "cost": null,
        "prompt_tokens_details": null, "completion_tokens_details": {"reasoning_tokens": null},
    });
    check(&[hello(), with(finish("stop"), &null)], plain(7, 3)).await;
}

#[tokio::test]
async fn every_provider_reports_usage_in_its_own_fields() {
    for (reply, expected) in [
        (preset::openai::text(), (19, 10, 29, Some(8), Some(4), None)),
        (preset::openrouter::text(), (20, 9, 29, Some(5), Some(3), Some(0.00031))),
        (preset::deepseek::text(), (30, 12, 42, Some(24), Some(5), None)),
        (preset::groq::text(), (15, 6, 21, None, None, None)),
        (preset::together::text(), (11, 3, 14, Some(4), None, None)),
        (preset::mistral::text(), (8, 4, 12, None, None, None)),
        (preset::gemini::text(), (6, 3, 40, None, None, None)),
        (preset::ollama::text(), (12, 5, 17, None, None, None)),
        (preset::vllm::text(), (7, 4, 11, None, None, None)),
        (preset::litellm::text(), (16, 5, 21, Some(2), None, Some(0.002))),
        (preset::llamacpp::text(), (9, 4, 13, None, None, None)),
        (preset::lmstudio::text(), (5, 2, 7, None, None, None)),
    ] {
        let usage = play(reply).await.whole().usage.expect("usage came");
        let Usage { input, output, total, cached, reasoning, cost } = usage;
        assert_eq!((input, output, total, cached, reasoning, cost), expected);
    }
    assert_eq!(play(preset::azure::text()).await.whole().usage, None);
}
