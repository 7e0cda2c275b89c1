//! Every provider end to end: the request, and the stream.

use narrows_model::{Client, Endpoint, ErrorKind, Finish, Message, Provider, ReplyEvent, Request};
use narrows_testkit::model::{ModelServer, Reply, preset};

use crate::support::{ask, client_of, client_with, request, result, tool};

#[tokio::test]
async fn every_stream_is_the_same_answer() {
    use preset::{
        azure, deepseek, gemini, groq, litellm, llamacpp, lmstudio, mistral, ollama, openai, openrouter,
        together, vllm,
    };
    for (provider, reply, thinks) in [
        (Provider::OpenAi, openai::text(), false),
        (Provider::AzureV1, azure::text(), false),
        (Provider::AzureDated, azure::text(), false),
        (Provider::OpenRouter, openrouter::text(), true),
        (Provider::DeepSeek, deepseek::text(), true),
        (Provider::Groq, groq::text(), true),
        (Provider::Together, together::text(), false),
        (Provider::Mistral, mistral::text(), true),
        (Provider::Gemini, gemini::text(), false),
        (Provider::Ollama, ollama::text(), true),
        (Provider::Vllm, vllm::text(), true),
        (Provider::Vllm, vllm::older_text(), true),
        (Provider::LiteLlm, litellm::text(), true),
        (Provider::LlamaCpp, llamacpp::text(), true),
        (Provider::LmStudio, lmstudio::text(), false),
    ] {
        let thought = if thinks { preset::THOUGHT } else { "" };
        for reply in
            [reply.clone(), reply.clone().at_once(), reply.clone().split_every(7), reply.without_done()]
        {
            let server = ModelServer::start(reply);
            let outcome = ask(&client_of(&server, provider), &request()).await;
            assert_eq!(outcome.thought(), thought, "{provider:?}");
            assert_eq!(outcome.text(), preset::TEXT, "{provider:?}");
            let completion = outcome.whole();
            assert_eq!(completion.finish, Finish::Stop, "{provider:?}");
            assert!(completion.message.calls.is_empty(), "{provider:?}");
        }
    }
}

#[tokio::test]
async fn every_call_is_the_same_call() {
    use preset::{deepseek, groq, llamacpp, mistral, ollama, openai, openrouter, together};
    for (provider, reply) in [
        (Provider::OpenAi, openai::call()),
        (Provider::OpenRouter, openrouter::call()),
        (Provider::DeepSeek, deepseek::call()),
        (Provider::Groq, groq::call()),
        (Provider::Together, together::call()),
        (Provider::Mistral, mistral::call()),
        (Provider::Ollama, ollama::call()),
        (Provider::LlamaCpp, llamacpp::call()),
    ] {
        let server = ModelServer::start([reply, Reply::text("done")]);
        let client = client_of(&server, provider);
        let asked = Request { tools: vec![tool(preset::TOOL)], ..request() };
        let outcome = ask(&client, &asked).await;
        assert_eq!((outcome.text().as_str(), outcome.calling()), ("", vec![preset::TOOL]), "{provider:?}");
        let completion = outcome.whole();
        assert_eq!(completion.finish, Finish::Calls, "{provider:?}");
        let [call] = &completion.message.calls[..] else { panic!("{provider:?}: {completion:?}") };
        assert_eq!(
            (call.name.as_str(), call.arguments.as_str()),
            (preset::TOOL, preset::ARGUMENTS),
            "{provider:?}"
        );

        let id = call.id.clone();
        let messages =
            vec![Message::user("Hi"), Message::Assistant(completion.message), result(&id, "found")];
        ask(&client, &Request { messages, ..asked }).await.whole();
        let seen = server.seen();
        let sent = seen[1].messages();
        assert_eq!(sent[1]["tool_calls"][0]["function"]["arguments"], preset::ARGUMENTS, "{provider:?}");
        assert_eq!(sent[1]["tool_calls"][0]["id"], sent[2]["tool_call_id"], "{provider:?}");
        assert_eq!(sent[2]["content"], "found", "{provider:?}");
    }
}

#[tokio::test]
async fn failing_streams_report_the_error_after_their_text() {
    for (reply, said) in [
        (preset::openrouter::error_in_stream(), "went away"),
        (preset::litellm::error_in_stream(), "the upstream closed"),
        (preset::lmstudio::error_in_stream(), "has crashed"),
    ] {
        let server = ModelServer::start(reply);
        let outcome = ask(&client_of(&server, Provider::Other), &request()).await;
        assert_eq!(outcome.events, [ReplyEvent::Text("Hello".to_owned())]);
        let error = outcome.failed();
        assert_eq!((error.kind, error.shown), (ErrorKind::Provider, true), "{error:?}");
        assert!(error.message.contains(said), "{error:?}");
    }
}

#[tokio::test]
async fn filtered_answers_are_refusals() {
    for (reply, text) in
        [(preset::openai::refusal(), "I cannot help with that."), (preset::azure::filtered(), "Hel")]
    {
        let server = ModelServer::start(reply);
        let outcome = ask(&client_of(&server, Provider::OpenAi), &request()).await;
        assert_eq!(outcome.text(), text);
        assert_eq!(outcome.whole().finish, Finish::Refusal);
    }
}

#[tokio::test]
async fn azure_has_its_own_header_and_version() {
    let server = ModelServer::start(preset::azure::text());
    let deployment = server.url("/openai/deployments/dep");
    let client = client_with(&server, |endpoint| {
        endpoint.base_url.clone_from(&deployment);
        endpoint.provider = Some(Provider::AzureDated);
        endpoint.key = Some("azure-secret".into());
    });
    ask(&client, &request()).await.whole();
    let seen = &server.seen()[0];
    assert_eq!(seen.path, "/openai/deployments/dep/chat/completions");
    assert_eq!(seen.query, "api-version=2024-10-21");
    assert_eq!(seen.header("api-key"), Some("azure-secret"));
    assert_eq!(seen.header("authorization"), None);

    for base_url in [format!("{deployment}?api-version=2025-01-01"), deployment.clone()] {
        let in_url = base_url.contains('?');
        let client = client_with(&server, |endpoint| {
            endpoint.base_url = base_url;
            endpoint.provider = Some(Provider::AzureDated);
            if !in_url {
                endpoint.query.push(("api-version".to_owned(), "2025-01-01".to_owned()));
            }
        });
        ask(&client, &request()).await.whole();
        assert_eq!(server.seen().last().expect("it was asked").query, "api-version=2025-01-01");
    }
}

#[tokio::test]
async fn azure_without_a_date_needs_no_version() {
    let server = ModelServer::start(preset::azure::text());
    let client = client_with(&server, |endpoint| {
        endpoint.base_url = server.url("/openai/v1");
        endpoint.provider = Some(Provider::AzureV1);
        endpoint.key = Some("azure-secret".into());
    });
    ask(&client, &request()).await.whole();
    let seen = &server.seen()[0];
    assert_eq!((seen.path.as_str(), seen.query.as_str()), ("/openai/v1/chat/completions", ""));
    let bearer = seen.header("authorization") == Some("Bearer azure-secret");
    assert!(bearer || seen.header("api-key") == Some("azure-secret"), "{:?}", seen.headers);
}

#[tokio::test]
async fn a_configured_header_replaces_the_default_one() {
    let server = ModelServer::start(Reply::text("ok"));
    let client = client_with(&server, |endpoint| {
        endpoint.key = Some("sk-secret-key".into());
        endpoint.headers.push(("Authorization".to_owned(), "Basic abc".into()));
    });
    ask(&client, &request()).await.whole();
    let all = server.seen()[0].headers.iter().filter(|(name, _)| name == "authorization").count();
    assert_eq!((all, server.seen()[0].header("authorization")), (1, Some("Basic abc")));
}

#[test]
fn the_bedrock_host_is_corrected() {
    let wrong = Endpoint::new("aws", "https://eu-west-1.bedrock.amazonaws.com/openai/v1");
    let client = Client::new(wrong).expect("it can be helped");
    assert_eq!(client.provider(), Provider::Bedrock);
    let [note] = client.notes() else { panic!("{:?}", client.notes()) };
    assert!(note.contains("bedrock-runtime.eu-west-1.amazonaws.com"), "{note}");
    let right = Endpoint::new("aws", "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1");
    assert_eq!(Client::new(right).expect("it is right").notes(), [] as [String; 0]);
}

#[test]
fn invalid_settings_are_named() {
    let check = |set: fn(&mut Endpoint), setting: &str| {
        let mut endpoint = Endpoint::new("x", "https://example.org/v1");
        endpoint.key = Some("sk-secret-key".into());
        set(&mut endpoint);
        let error = Client::new(endpoint).err().unwrap_or_else(|| panic!("{setting} is wrong"));
        assert!(error.setting.starts_with(setting), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    };
    check(|endpoint| endpoint.base_url = String::new(), "base_url");
    check(|endpoint| endpoint.base_url = "example.org/v1".to_owned(), "base_url");
    check(|endpoint| endpoint.base_url = "ftp://example.org/v1".to_owned(), "base_url");
    check(|endpoint| endpoint.base_url = "https://me:secret@example.org/v1".to_owned(), "base_url");
    check(|endpoint| endpoint.headers.push(("bad name".to_owned(), "x".into())), "headers");
    check(|endpoint| endpoint.headers.push(("x-team".to_owned(), "secret\nvalue".into())), "headers");
    check(|endpoint| endpoint.key = Some("secret\u{0}".into()), "key");
    check(|endpoint| endpoint.ca_file = Some("no/such/file.pem".into()), "ca_file");
    check(|endpoint| endpoint.proxy = Some("::nonsense::".to_owned()), "proxy");
}

#[tokio::test]
async fn a_proxy_is_not_used_for_loopback() {
    let proxy = ModelServer::start(Reply::text("proxied"));
    let server = ModelServer::start(Reply::text("direct"));
    let client = client_with(&server, |endpoint| endpoint.proxy = Some(proxy.url("")));
    assert_eq!(ask(&client, &request()).await.whole().message.text, "direct");
    assert_eq!(proxy.connections(), 0);
}

#[tokio::test]
async fn a_proxy_is_used_for_other_hosts() {
    let proxy = ModelServer::start(Reply::text("proxied"));
    let mut endpoint = crate::support::endpoint("http://model.example.org/v1");
    endpoint.proxy = Some(proxy.url(""));
    let client = Client::new(endpoint).expect("the settings are good");
    assert_eq!(ask(&client, &request()).await.whole().message.text, "proxied");
    assert_eq!(proxy.seen()[0].path, "http://model.example.org/v1/chat/completions");
}

#[tokio::test]
async fn the_built_in_model_answers_without_a_network() {
    let client = Client::new(Endpoint::demo()).expect("it is built in");
    assert_eq!(client.provider(), Provider::Demo);
    let asked = Request { model: "demo".to_owned(), ..request() };
    let outcome = ask(&client, &asked).await;
    assert!(!outcome.text().is_empty());
    let completion = outcome.whole();
    assert_eq!(completion.finish, Finish::Stop);
    assert!(completion.usage.is_some());
    let models = client.models(std::time::Duration::from_secs(1)).await.expect("a list");
    assert_eq!(models.iter().map(|model| model.id.as_str()).collect::<Vec<_>>(), ["demo"]);
    assert_eq!(client.traits_of("demo").window, Some(8192));

    let messages = vec![Message::user("read notes.txt")];
    let asked = Request { messages, tools: vec![tool("read_file")], ..asked };
    let completion = ask(&client, &asked).await.whole();
    assert_eq!(completion.finish, Finish::Calls);
    assert_eq!(completion.message.calls[0].name, "read_file");
    assert!(completion.message.calls[0].arguments.contains("notes.txt"));
}
