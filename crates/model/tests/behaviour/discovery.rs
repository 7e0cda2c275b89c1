//! Model lists of endpoints, and the traits that follow from them.

use std::time::{Duration, Instant};

use narrows_model::{Client, Effort, ErrorKind, ModelInfo, Provider};
use narrows_testkit::model::{ModelServer, Plan, Reply, Step, preset};
use serde_json::json;

use crate::support::{ask, client, client_of, client_with, request};

const LONG: Duration = Duration::from_secs(8);

fn plain() -> Plan {
    Plan::from(Reply::text("ok"))
}

async fn models(provider: Provider, plan: Plan) -> Vec<ModelInfo> {
    let server = ModelServer::start(plan);
    client_of(&server, provider).models(LONG).await.expect("a list")
}

fn named(id: &str) -> ModelInfo {
    ModelInfo { id: id.to_owned(), ..ModelInfo::default() }
}

#[tokio::test]
async fn lists_are_parsed_with_all_their_fields() {
    let found = models(Provider::OpenAi, plain().models(preset::openai::models())).await;
    let ids: Vec<&str> = found.iter().map(|model| model.id.as_str()).collect();
    assert_eq!(ids, ["gpt-4o", "o3-mini"]);

    let found = models(Provider::OpenRouter, plain().models(preset::openrouter::models())).await;
    let claude = ModelInfo {
        id: "anthropic/claude-sonnet-4".to_owned(),
        name: Some("Name of anthropic/claude-sonnet-4".to_owned()),
        window: Some(200_000),
        images: Some(true),
        audio: Some(false),
        tools: Some(true),
    };
    assert_eq!(found[0], claude);
    assert_eq!((found[1].window, found[1].images, found[1].tools), (Some(4096), Some(false), Some(false)));

    let found = models(Provider::Vllm, plain().models(preset::vllm::models())).await;
    assert_eq!((found[0].id.as_str(), found[0].window), ("qwen3", Some(32768)));

    let found = models(Provider::LlamaCpp, plain().models(preset::llamacpp::models())).await;
    assert_eq!((found[0].id.as_str(), found[0].window), ("local", Some(256)), "of one slot, not as trained");
}

#[tokio::test]
async fn lists_come_in_several_forms() {
    for body in [
        json!({"object": "list", "data": [{"id": "a"}, {"id": "b"}]}),
        json!([{"id": "a"}, {"id": "b", "object": "model"}]),
        json!({"data": [{"id": "a"}, {"id": "b"}, {"no": "id"}, 7]}),
    ] {
        let found = models(Provider::Other, plain().models(Reply::json(200, &body))).await;
        assert_eq!(found, [named("a"), named("b")], "{body}");
    }
    assert_eq!(models(Provider::Other, plain().models(Reply::models(&[]))).await, []);
}

#[tokio::test]
async fn lists_are_requested_with_the_same_settings_as_chats() {
    let server = ModelServer::start(plain());
    let client = client_with(&server, |endpoint| {
        endpoint.key = Some("sk-secret-key".into());
        endpoint.base_url.push('/');
        endpoint.headers.push(("x-team".to_owned(), "one".into()));
    });
    client.models(LONG).await.expect("a list");
    let seen = &server.seen()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("GET", "/v1/models"));
    assert_eq!(seen.header("authorization"), Some("Bearer sk-secret-key"));
    assert_eq!(seen.header("x-team"), Some("one"));
}

#[tokio::test]
async fn a_missing_list_is_an_error() {
    for (reply, kind) in [
        (Reply::refused(401, "who is it?"), ErrorKind::Auth),
        (Reply::refused(404, "no such thing"), ErrorKind::Http),
        (Reply::document(200, "text/html", "<html><title>Welcome</title></html>"), ErrorKind::Garbage),
        (Reply::document(200, "application/json", ""), ErrorKind::Garbage),
        (Reply::json(200, &json!({"hello": "world"})), ErrorKind::Garbage),
        (Reply::close(), ErrorKind::Network),
    ] {
        let shown = format!("{reply:?}");
        let server = ModelServer::start(plain().models(reply));
        let error = client(&server).models(LONG).await.expect_err("no list");
        assert_eq!(error.kind, kind, "{shown}: {error:?}");
        assert_eq!(error.url, server.url("/v1/models"));
    }
}

#[tokio::test]
async fn queries_end_at_the_deadline() {
    let server = ModelServer::start(plain().models(Reply::hang()));
    let started = Instant::now();
    let error = client(&server).models(Duration::from_millis(50)).await.expect_err("no list");
    assert_eq!(error.kind, ErrorKind::Timeout, "{error:?}");
    client(&server).learn("test-model", Duration::from_millis(50)).await;
    assert!(started.elapsed() < Duration::from_secs(4));
    let slow = Reply::models(&["a"]).after(0, Step::Forever(b" ".to_vec(), Duration::from_millis(5)));
    server.replan(plain().models(slow.no_content_length()));
    let error = client(&server).models(Duration::from_millis(50)).await.expect_err("no list");
    assert_eq!(error.kind, ErrorKind::Timeout, "{error:?}");
}

/// Returns the traits of `model` after a query to the endpoint.
async fn traits_after_query(provider: Provider, plan: Plan, model: &str) -> narrows_model::ModelTraits {
    let server = ModelServer::start(plan);
    let client = client_of(&server, provider);
    client.learn(model, LONG).await;
    client.clone().traits_of(model)
}

#[tokio::test]
async fn windows_are_read_from_every_kind_of_server() {
    let window = async |provider, plan, model: &str| traits_after_query(provider, plan, model).await.window;
    assert_eq!(window(Provider::Vllm, plain().models(preset::vllm::models()), "qwen3").await, Some(32768));
    assert_eq!(
        window(Provider::LlamaCpp, plain().models(preset::llamacpp::models()), "local").await,
        Some(256)
    );
    let routed = || plain().models(preset::openrouter::models());
    assert_eq!(window(Provider::OpenRouter, routed(), "small/plain").await, Some(4096));
    assert_eq!(window(Provider::OpenRouter, routed(), "no/such").await, None);
    let studio = || plain().at("/api/v0/models", preset::lmstudio::models());
    assert_eq!(window(Provider::LmStudio, studio(), "qwen3-8b").await, Some(8192), "as it was loaded");
    assert_eq!(window(Provider::LmStudio, studio(), "gemma-vlm").await, Some(131_072), "as it can be");
    // An unknown server may run one of these models.
    assert_eq!(window(Provider::Other, plain().models(preset::vllm::models()), "qwen3").await, Some(32768));
}

#[tokio::test]
async fn llama_cpp_has_one_model_whatever_it_is_called() {
    let traits =
        traits_after_query(Provider::LlamaCpp, plain().models(preset::llamacpp::models()), "gpt-4o").await;
    assert_eq!(traits.window, Some(256));
}

#[tokio::test]
async fn ollama_reports_the_configured_window() {
    let shown = |num_ctx| plain().at("/api/show", preset::ollama::show(num_ctx));
    let traits = traits_after_query(Provider::Ollama, shown(Some(16384)), "qwen3:8b").await;
    assert_eq!((traits.window, traits.images, traits.tools), (Some(16384), Some(true), Some(true)));

    let server = ModelServer::start(shown(None));
    let client = client_of(&server, Provider::Ollama);
    client.learn("qwen3:8b", LONG).await;
    let asked = server.seen().into_iter().find(|seen| seen.path == "/api/show").expect("it was asked");
    assert_eq!(asked.method, "POST");
    assert!(asked.body["model"] == "qwen3:8b" || asked.body["name"] == "qwen3:8b", "{}", asked.body);
    // Ollama drops the oldest text silently, so overestimating the window is worse than underestimating it.
    let window = client.traits_of("qwen3:8b").window;
    assert!(window.is_none_or(|window| window <= 40960), "{window:?}");
}

#[tokio::test]
async fn image_support_is_learned() {
    let traits =
        traits_after_query(Provider::OpenRouter, plain().models(preset::openrouter::models()), "small/plain")
            .await;
    assert_eq!((traits.images, traits.tools), (Some(false), Some(false)));
    let traits = traits_after_query(
        Provider::LmStudio,
        plain().at("/api/v0/models", preset::lmstudio::models()),
        "gemma-vlm",
    )
    .await;
    assert_eq!(traits.images, Some(true));
}

#[tokio::test]
async fn a_configured_window_takes_precedence() {
    let server = ModelServer::start(plain().models(preset::vllm::models()));
    let client = client_with(&server, |endpoint| {
        endpoint.provider = Some(Provider::Vllm);
        endpoint.context_window = Some(1000);
    });
    assert_eq!(client.traits_of("qwen3").window, Some(1000));
    client.learn("qwen3", LONG).await;
    assert_eq!(client.traits_of("qwen3").window, Some(1000));
}

#[tokio::test]
async fn the_window_is_learned_from_an_overflow() {
    let server = ModelServer::start(preset::llamacpp::overflow());
    let client = client(&server);
    assert_eq!(ask(&client, &request()).await.failed().window, Some(256));
    assert_eq!(client.traits_of("test-model").window, Some(256));
}

#[tokio::test]
async fn a_failed_query_about_a_model_is_ignored() {
    for reply in [Reply::refused(500, "no"), Reply::close(), Reply::document(200, "text/html", "<html>")] {
        for provider in
            [Provider::Other, Provider::Ollama, Provider::LmStudio, Provider::Vllm, Provider::OpenRouter]
        {
            let plan = plain()
                .models(reply.clone())
                .at("/api/show", reply.clone())
                .at("/api/v0/models", reply.clone());
            assert_eq!(traits_after_query(provider, plan, "test-model").await.window, None, "{provider:?}");
        }
    }
}

#[tokio::test]
async fn traits_need_no_request() {
    let server = ModelServer::start(plain());
    let client: Client = client(&server);
    let _ = client.traits_of("test-model");
    assert_eq!(server.connections(), 0);
}

#[test]
fn efforts_are_known_by_name() {
    let efforts = |provider: Provider, url: &str, model: &str| {
        let mut endpoint = crate::support::endpoint(url);
        endpoint.provider = Some(provider);
        Client::new(endpoint).expect("the settings are good").traits_of(model).efforts
    };
    let openai = "https://api.openai.com/v1";
    assert!(efforts(Provider::OpenAi, openai, "o3-mini").contains(&Effort::High));
    assert!(efforts(Provider::OpenAi, openai, "gpt-5").contains(&Effort::Minimal));
    assert_eq!(efforts(Provider::OpenAi, openai, "gpt-4o"), []);
    assert_eq!(efforts(Provider::Other, "http://localhost:9/v1", "anything"), []);
}
