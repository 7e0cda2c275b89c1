//! Parses model lists. Every kind of server has its own fields.

use serde_json::Value;

use crate::Provider;

/// A model of an endpoint's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    pub id: String,
    /// Display name, if it differs from the id.
    pub name: Option<String>,
    pub window: Option<u64>,
    /// `true` if the model accepts images; `None` if unknown.
    pub images: Option<bool>,
    /// `true` if the model accepts audio; `None` if unknown.
    pub audio: Option<bool>,
    /// `true` if the model can call tools; `None` if unknown.
    pub tools: Option<bool>,
}

/// Fields that may contain the window size, the most exact ones first.
const WINDOWS: [&str; 12] = [
    // LM Studio: the window of the loaded model, not the largest possible window.
    "/loaded_context_length",
    // Field of vLLM.
    "/max_model_len",
    // Field of llama.cpp.
    "/meta/n_ctx",
    // OpenRouter: the window at the chosen provider.
    "/top_provider/context_length",
    "/context_length",
    "/context_window",
    "/max_context_length",
    "/max_input_tokens",
    "/model_info/max_input_tokens",
    "/inputTokenLimit",
    "/limits/max_context_window_tokens",
    "/meta/n_ctx_train",
];

/// Parses a list of models under `data`, under `models`, or at the top. `None` if there is no list.
pub(crate) fn parse_list(answer: &Value, provider: Provider) -> Option<Vec<ModelInfo>> {
    let all = answer
        .get("data")
        .filter(|data| data.is_array())
        .or_else(|| answer.get("models"))
        .unwrap_or(answer)
        .as_array()?;
    // llama.cpp lists capabilities in a second list, which is meant for Ollama clients.
    let abilities = answer.get("models").and_then(Value::as_array);
    let models = all.iter().enumerate().filter_map(|(at, entry)| {
        let mut info = model(entry, provider)?;
        if let Some(twin) = abilities.and_then(|twins| twins.get(at)) {
            let (images, audio, tools) = capabilities(twin);
            info.images = info.images.or(images);
            info.audio = info.audio.or(audio);
            info.tools = info.tools.or(tools);
        }
        Some(info)
    });
    Some(models.collect())
}

fn model(entry: &Value, provider: Provider) -> Option<ModelInfo> {
    let id = ["id", "model", "name"].iter().find_map(|field| entry.get(field)?.as_str())?;
    let id = match provider {
        // Ids in Gemini's list have a prefix that users do not type.
        Provider::Gemini => id.strip_prefix("models/").unwrap_or(id),
        _ => id,
    };
    let name = ["display_name", "name"].iter().find_map(|field| entry.get(field)?.as_str());
    let (images, audio, tools) = capabilities(entry);
    Some(ModelInfo {
        id: id.to_owned(),
        name: name.filter(|name| !name.is_empty() && *name != id).map(str::to_owned),
        window: WINDOWS.iter().find_map(|path| number(entry.pointer(path)?)),
        images,
        audio,
        tools,
    })
}

/// Parses a size. The size 0 counts as unknown.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).filter(|size| *size > 0)
}

/// Returns if the model supports images, audio and tools. `None` for what the entry does not state.
fn capabilities(entry: &Value) -> (Option<bool>, Option<bool>, Option<bool>) {
    let words = |path: &str| -> Option<Vec<&str>> {
        Some(entry.pointer(path)?.as_array()?.iter().filter_map(Value::as_str).collect())
    };
    let inputs = ["/architecture/input_modalities", "/input_modalities", "/modalities/input"];
    let inputs = inputs.iter().find_map(|path| words(path));
    let can = words("/capabilities");
    let takes = |names: &[&str]| -> Option<bool> {
        let listed = |words: &Vec<&str>| words.iter().any(|word| names.contains(word));
        // Capabilities that are an object have one flag per feature.
        let flag = names.iter().find_map(|name| entry.pointer("/capabilities")?.get(name)?.as_bool());
        match (&inputs, &can) {
            (Some(inputs), Some(can)) => Some(listed(inputs) || listed(can)),
            (Some(known), None) | (None, Some(known)) => Some(listed(known)),
            (None, None) => flag,
        }
    };
    let parameters = words("/supported_parameters").map(|all| all.contains(&"tools"));
    let tools = parameters.or_else(|| {
        let listed =
            can.as_ref()?.iter().any(|word| matches!(*word, "tools" | "tool_use" | "function_calling"));
        // llama.cpp lists a single capability, from which nothing follows about tools.
        (listed || can.as_ref()?.len() > 1).then_some(listed)
    });
    let tools = tools.or_else(|| entry.pointer("/capabilities/function_calling")?.as_bool());
    // In LM Studio, the type of a model shows if it accepts images.
    let seeing = || match entry.get("type")?.as_str()? {
        "vlm" => Some(true),
        "llm" => Some(false),
        _ => None,
    };
    (seeing().or_else(|| takes(&["image", "vision", "multimodal"])), takes(&["audio"]), tools)
}

/// Parses Ollama's `/api/show` response for one model.
pub(crate) fn parse_ollama_show(answer: &Value) -> ModelInfo {
    let trained = || {
        let info = answer.get("model_info")?.as_object()?;
        info.iter().find_map(|(name, size)| number(size).filter(|_| name.ends_with(".context_length")))
    };
    let set = || {
        let lines = answer.get("parameters")?.as_str()?.lines();
        let mut sizes = lines.filter_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
        sizes.next().filter(|size| *size > 0)
    };
    let (images, audio, tools) = capabilities(answer);
    // Ollama silently drops text beyond `num_ctx`, so this setting takes precedence over the model's own
    // window.
    ModelInfo { window: set().or_else(trained), images, audio, tools, ..ModelInfo::default() }
}

/// Returns the window of `model` if Ollama's `/api/ps` lists it as loaded.
pub(crate) fn parse_ollama_ps(answer: &Value, model: &str) -> Option<u64> {
    let full = if model.contains(':') { model.to_owned() } else { format!("{model}:latest") };
    let mut models = answer.get("models")?.as_array()?.iter();
    let entry = models.find(|entry| {
        ["model", "name"].iter().any(|field| entry.get(field).and_then(Value::as_str) == Some(&full))
    })?;
    number(entry.get("context_length")?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn info(id: &str, window: Option<u64>) -> ModelInfo {
        ModelInfo { id: id.to_owned(), window, ..ModelInfo::default() }
    }

    #[test]
    fn every_servers_list_is_read() {
        let check = |answer: &Value, expected: ModelInfo| {
            assert_eq!(parse_list(answer, Provider::Gemini), Some(vec![expected]), "{answer}");
        };
        check(
            &json!({"object": "list", "data": [{"id": "gpt-4o", "object": "model"}]}),
            info("gpt-4o", None),
        );
        check(&json!({"data": [{"id": "a", "max_model_len": 4096}]}), info("a", Some(4096)));
        check(&json!({"data": [{"id": "a", "context_window": 131_072}]}), info("a", Some(131_072)));
        check(
            &json!({"data": [{"id": "a", "meta": {"n_ctx_train": 8192, "n_ctx": 256}}]}),
            info("a", Some(256)),
        );
        check(&json!({"data": [{"id": "a", "meta": {"n_ctx_train": 8192}}]}), info("a", Some(8192)));
        check(
            &json!({"data": [{"id": "a", "max_context_length": 32_768, "loaded_context_length": 4096}]}),
            info("a", Some(4096)),
        );
        check(
            &json!([{"id": "a", "display_name": "A", "context_length": "10"}]),
            ModelInfo { name: Some("A".to_owned()), ..info("a", Some(10)) },
        );
        check(&json!({"data": [{"id": "models/gemini-2.5-pro"}]}), info("gemini-2.5-pro", None));
        check(
            &json!({"data": [{
                "id": "x/y", "name": "X: Y", "context_length": 200_000,
                "architecture": {"input_modalities": ["text", "image"]}, "supported_parameters": ["tools"],
                "top_provider": {"context_length": 100_000},
            }]}),
            ModelInfo {
                name: Some("X: Y".to_owned()),
                images: Some(true),
                audio: Some(false),
                tools: Some(true),
                ..info("x/y", Some(100_000))
            },
        );
        check(
            &json!({"data": [{"id": "m", "capabilities": {"vision": false, "function_calling": true}}]}),
            ModelInfo { images: Some(false), tools: Some(true), ..info("m", None) },
        );
        check(
            &json!({
                "models": [{"name": "l", "model": "l", "capabilities": ["completion", "multimodal"]}],
                "data": [{"id": "l", "meta": {"n_ctx": 512}}],
            }),
            ModelInfo { images: Some(true), audio: Some(false), tools: Some(false), ..info("l", Some(512)) },
        );
    }

    #[test]
    fn other_json_is_not_a_list() {
        for answer in [json!({}), json!({"error": "no"}), json!(null), json!({"data": {"id": "a"}})] {
            assert_eq!(parse_list(&answer, Provider::Other), None, "{answer}");
        }
        assert_eq!(
            parse_list(&json!({"data": [1, {}, {"id": "a"}]}), Provider::Other),
            Some(vec![info("a", None)])
        );
    }

    #[test]
    fn ollamas_own_responses_are_parsed() {
        let answer = json!({
            "model_info": {"general.architecture": "llama", "llama.context_length": 131_072},
            "capabilities": ["completion", "tools", "vision"],
        });
        let skilled = ModelInfo {
            images: Some(true),
            audio: Some(false),
            tools: Some(true),
            ..info("", Some(131_072))
        };
        assert_eq!(parse_ollama_show(&answer), skilled);
        let mut set = answer;
        set["parameters"] =
            "stop                           \"<|eot|>\"\nnum_ctx                        8192".into();
        assert_eq!(parse_ollama_show(&set).window, Some(8192));
        let running = json!({"models": [{"name": "llama3.2:latest", "context_length": 4096}]});
        assert_eq!(parse_ollama_ps(&running, "llama3.2"), Some(4096));
        assert_eq!(parse_ollama_ps(&running, "llama3.2:latest"), Some(4096));
        assert_eq!(parse_ollama_ps(&running, "qwen3"), None);
    }

    proptest! {
        #[test]
        fn any_list_is_parsed_without_panic(
            id in proptest::option::of("[a-z/]{0,6}"),
            field in proptest::sample::select(vec!["context_length", "meta", "capabilities", "architecture", "name"]),
            value in prop_oneof![
                Just(json!(null)), Just(json!(-1)), Just(json!(1e300)), Just(json!("x")), Just(json!([1, null])),
                Just(json!({"n_ctx": []})), Just(json!({"vision": "yes"})),
            ],
        ) {
            let answer = json!({"data": [{"id": id, field: value}], "models": value});
            let found = parse_list(&answer, Provider::Other).unwrap();
            prop_assert!(found.len() <= 1);
            let _ = (parse_ollama_show(&answer), parse_ollama_ps(&answer, "x"));
        }
    }
}
