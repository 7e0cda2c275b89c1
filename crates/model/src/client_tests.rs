//! Properties that a client remembers, and those that it knows without a request.

use super::*;
use crate::Effort;

fn client(endpoint: Endpoint) -> Client {
    Client::new(endpoint).unwrap()
}

#[test]
fn refusals_are_remembered_by_all_clones() {
    let client = client(Endpoint::new("test", "https://api.openai.com/v1"));
    assert_eq!(client.traits_of("gpt-5-mini").efforts, Effort::ALL);
    let twin = client.clone();
    for part in [RequestPart::Images, RequestPart::Tools, RequestPart::Effort] {
        twin.remember_refused("gpt-5-mini", part);
    }
    let traits = client.traits_of("gpt-5-mini");
    let expected = ModelTraits {
        window: Some(400_000),
        images: Some(false),
        audio: Some(false),
        tools: Some(false),
        efforts: &[],
    };
    assert_eq!(traits, expected);
    assert_eq!(client.traits_of("gpt-5").images, Some(true), "another model");
}

#[test]
fn the_most_reliable_window_counts() {
    let window = |client: &Client| client.traits_of("gpt-4o").window;
    let mut endpoint = Endpoint::new("test", "https://api.openai.com/v1");
    let plain = client(endpoint.clone());
    assert_eq!(window(&plain), Some(128_000), "by name");
    plain.remember_info(&ModelInfo { id: "gpt-4o".to_owned(), window: Some(64_000), ..ModelInfo::default() });
    assert_eq!(window(&plain), Some(64_000), "as the endpoint says");
    plain.remember_info(&ModelInfo { id: "gpt-4o".to_owned(), images: Some(false), ..ModelInfo::default() });
    assert_eq!(window(&plain), Some(64_000), "info without a window changes nothing");
    plain.remember_window("gpt-4o", 32_000);
    assert_eq!(window(&plain), Some(32_000), "as an overflow says");
    endpoint.context_window = Some(1000);
    assert_eq!(window(&client(endpoint)), Some(1000), "as configured");
}

#[test]
fn the_number_of_known_models_is_limited() {
    let client = client(Endpoint::new("test", "http://localhost:9/v1"));
    for number in 0..MAX_KNOWN_MODELS + 10 {
        client.remember_refused(&number.to_string(), RequestPart::Images);
    }
    assert_eq!(client.inner.known.lock().unwrap().len(), MAX_KNOWN_MODELS);
    client.remember_refused("0", RequestPart::Tools);
    assert_eq!(client.traits_of("0").tools, Some(false), "known models can still be updated");
}

#[tokio::test]
async fn some_model_lists_need_no_request() {
    let demo = client(Endpoint::demo());
    assert_eq!(demo.provider(), Provider::Demo);
    assert_eq!(demo.models(Duration::ZERO).await.unwrap()[0].id, "demo");
    assert_eq!(demo.traits_of("demo").window, Some(8192));
    let azure = client(Endpoint::new("test", "https://res.openai.azure.com/openai/deployments/dep"));
    let ids: Vec<_> = azure.models(Duration::ZERO).await.unwrap().into_iter().map(|info| info.id).collect();
    assert_eq!(ids, ["dep"]);
    assert!(demo.inner.http.get().is_none() && azure.inner.http.get().is_none(), "nothing was built");
}

#[test]
fn the_debug_form_holds_no_secrets() {
    let mut endpoint = Endpoint::new("test", "https://localhost/v1?sig=hidden-1");
    endpoint.key = Some("hidden-2".into());
    endpoint.query.push(("code".to_owned(), "hidden-3".to_owned()));
    endpoint.proxy = Some("http://me:hidden-4@proxy:1".to_owned());
    let shown = format!("{:?}", client(endpoint));
    assert!(shown.contains("Client") && !shown.contains("hidden"), "{shown}");
}
