//! Properties of models that follow from their names.

use crate::{Effort, Provider};

/// Known properties of a model: from its name, from the endpoint, and from refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelTraits {
    pub window: Option<u64>,
    /// `true` if the model accepts images; `None` if unknown.
    pub images: Option<bool>,
    /// `true` if the model accepts audio; `None` if unknown.
    pub audio: Option<bool>,
    /// `true` if the model can call tools; `None` if unknown.
    pub tools: Option<bool>,
    /// Supported thinking efforts; empty if unknown.
    pub efforts: &'static [Effort],
}

const ALL: &[Effort] = &Effort::ALL;
const STANDARD_EFFORTS: &[Effort] = &[Effort::Low, Effort::Medium, Effort::High];
const LOW_AND_HIGH: &[Effort] = &[Effort::Low, Effort::High];

/// Properties of all models whose name, without the vendor, has this prefix.
struct Row {
    prefix: &'static str,
    window: u64,
    images: bool,
    audio: bool,
}

const fn row(prefix: &'static str, window: u64, images: bool, audio: bool) -> Row {
    Row { prefix, window, images, audio }
}

/// Properties of hosted models. The first matching row counts, so longer prefixes come first.
const KNOWN: [Row; 27] = [
    row("gpt-5-chat", 128_000, true, false),
    row("gpt-5", 400_000, true, false),
    row("gpt-4.1", 1_047_576, true, false),
    row("gpt-4o-audio", 128_000, false, true),
    row("gpt-4o", 128_000, true, false),
    row("gpt-4-turbo", 128_000, true, false),
    row("gpt-4-32k", 32_768, false, false),
    row("gpt-4", 8_192, false, false),
    row("gpt-3.5-turbo", 16_385, false, false),
    row("gpt-oss", 131_072, false, false),
    row("chatgpt-4o", 128_000, true, false),
    row("o1-mini", 128_000, false, false),
    row("o1-preview", 128_000, false, false),
    row("o1", 200_000, true, false),
    row("o3-mini", 200_000, false, false),
    row("o3", 200_000, true, false),
    row("o4", 200_000, true, false),
    row("claude", 200_000, true, false),
    row("gemini", 1_048_576, true, true),
    row("deepseek-chat", 128_000, false, false),
    row("deepseek-reasoner", 128_000, false, false),
    row("deepseek-v3", 128_000, false, false),
    row("deepseek-r1", 128_000, false, false),
    row("grok-4", 256_000, true, false),
    row("grok-3", 131_072, false, false),
    row("codestral", 256_000, false, false),
    row("pixtral", 131_072, true, false),
];

/// Returns a model's name without its vendor, such as `gpt-4o` for `openai/gpt-4o`.
fn bare(model: &str) -> &str {
    let model = model.rsplit('/').next().unwrap_or(model);
    ["openai.", "us.anthropic.", "eu.anthropic.", "anthropic."]
        .iter()
        .find_map(|vendor| model.strip_prefix(vendor))
        .unwrap_or(model)
}

pub(crate) fn is_reasoning(model: &str) -> bool {
    let model = bare(model);
    let numbered = |letters: &str| {
        model.strip_prefix(letters).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    numbered("o") || model.starts_with("gpt-5")
}

/// Returns the properties that follow from the name of a model at this provider.
pub(crate) fn for_model(provider: Provider, model: &str) -> ModelTraits {
    if provider == Provider::Demo {
        return ModelTraits {
            window: Some(crate::demo::WINDOW_TOKENS),
            images: Some(false),
            audio: Some(false),
            tools: Some(true),
            efforts: &[],
        };
    }
    let lower = model.to_ascii_lowercase();
    let name = bare(&lower);
    let known = KNOWN.iter().find(|row| name.starts_with(row.prefix));
    ModelTraits {
        // The window of a local model depends on the settings of its server, not on the name.
        window: known.filter(|_| is_hosted(provider)).map(|row| row.window),
        images: known.map(|row| row.images),
        audio: known.map(|row| row.audio),
        tools: None,
        efforts: efforts(provider, name),
    }
}

fn is_hosted(provider: Provider) -> bool {
    !matches!(
        provider,
        Provider::Ollama
            | Provider::Vllm
            | Provider::LlamaCpp
            | Provider::LmStudio
            | Provider::Other
            | Provider::Demo
    )
}

fn efforts(provider: Provider, name: &str) -> &'static [Effort] {
    if name.starts_with("gpt-oss") || provider == Provider::OpenRouter {
        return STANDARD_EFFORTS;
    }
    match provider {
        Provider::OpenAi | Provider::AzureV1 | Provider::AzureDated | Provider::LiteLlm => {
            if name.starts_with("gpt-5-chat")
                || ["o1-mini", "o1-preview"].iter().any(|old| name.starts_with(old))
            {
                &[]
            } else if name == "gpt-5"
                || ["gpt-5-mini", "gpt-5-nano", "gpt-5-2"].iter().any(|first| name.starts_with(first))
            {
                ALL
            } else if is_reasoning(name) {
                STANDARD_EFFORTS
            } else {
                &[]
            }
        }
        Provider::Xai if name.starts_with("grok-3-mini") => LOW_AND_HIGH,
        Provider::Gemini if name.starts_with("gemini-2.5") || name.starts_with("gemini-3") => {
            STANDARD_EFFORTS
        }
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openais_reasoning_models_are_recognized_by_name() {
        for model in ["o1", "o3-mini", "o4-mini-2025-04-16", "gpt-5", "gpt-5.1-codex", "openai/o3"] {
            assert!(is_reasoning(model), "{model}");
        }
        for model in ["gpt-4o", "gpt-4.1", "olmo-2", "openchat", "omni", "gpt-oss-20b", ""] {
            assert!(!is_reasoning(model), "{model}");
        }
    }

    #[test]
    fn traits_follow_from_names() {
        let check = |provider, model: &str, window: Option<u64>, images, efforts: &[Effort]| {
            let found = for_model(provider, model);
            assert_eq!((found.window, found.images, found.efforts), (window, images, efforts), "{model}");
        };
        check(Provider::OpenAi, "gpt-4o", Some(128_000), Some(true), &[]);
        check(Provider::OpenAi, "gpt-5-mini", Some(400_000), Some(true), ALL);
        check(Provider::OpenAi, "gpt-5.1", Some(400_000), Some(true), STANDARD_EFFORTS);
        check(Provider::OpenAi, "o3-mini", Some(200_000), Some(false), STANDARD_EFFORTS);
        check(Provider::OpenAi, "something-new", None, None, &[]);
        check(
            Provider::OpenRouter,
            "anthropic/claude-sonnet-4.5",
            Some(200_000),
            Some(true),
            STANDARD_EFFORTS,
        );
        check(Provider::Bedrock, "openai.gpt-oss-20b-1:0", Some(131_072), Some(false), STANDARD_EFFORTS);
        check(Provider::Ollama, "gpt-oss:20b", None, Some(false), STANDARD_EFFORTS);
        check(Provider::Ollama, "llama3.2", None, None, &[]);
        check(Provider::Xai, "grok-3-mini", Some(131_072), Some(false), LOW_AND_HIGH);
        check(Provider::Xai, "grok-4", Some(256_000), Some(true), &[]);
        check(Provider::Gemini, "models/gemini-2.5-pro", Some(1_048_576), Some(true), STANDARD_EFFORTS);
    }
}
