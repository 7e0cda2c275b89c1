//! Providers, and how to detect one from a URL.

use std::net::IpAddr;

use url::{Host, Url};

/// Provider of an endpoint. Only providers that need different handling are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    OpenAi,
    /// Azure with the undated API, in which the model is the name of the deployment.
    AzureV1,
    /// Azure with a dated API, in which the URL contains the deployment.
    AzureDated,
    Bedrock,
    OpenRouter,
    DeepSeek,
    Groq,
    Together,
    Mistral,
    /// Google's Gemini.
    Gemini,
    Xai,
    Fireworks,
    Cerebras,
    DeepInfra,
    Ollama,
    Vllm,
    /// LiteLLM's proxy.
    LiteLlm,
    /// llama.cpp's server.
    LlamaCpp,
    LmStudio,
    Demo,
    /// Any other Chat Completions server.
    Other,
}

/// All providers with their names in the configuration.
const NAMES: [(Provider, &str); 21] = [
    (Provider::OpenAi, "openai"),
    (Provider::AzureV1, "azure"),
    (Provider::AzureDated, "azure-dated"),
    (Provider::Bedrock, "bedrock"),
    (Provider::OpenRouter, "openrouter"),
    (Provider::DeepSeek, "deepseek"),
    (Provider::Groq, "groq"),
    (Provider::Together, "together"),
    (Provider::Mistral, "mistral"),
    (Provider::Gemini, "gemini"),
    (Provider::Xai, "xai"),
    (Provider::Fireworks, "fireworks"),
    (Provider::Cerebras, "cerebras"),
    (Provider::DeepInfra, "deepinfra"),
    (Provider::Ollama, "ollama"),
    (Provider::Vllm, "vllm"),
    (Provider::LiteLlm, "litellm"),
    (Provider::LlamaCpp, "llama.cpp"),
    (Provider::LmStudio, "lmstudio"),
    (Provider::Demo, "demo"),
    (Provider::Other, "other"),
];

/// Host names of providers. Subdomains count too.
const HOSTS: [(&str, Provider); 17] = [
    ("api.openai.com", Provider::OpenAi),
    ("openai.azure.com", Provider::AzureV1),
    ("openai.azure.us", Provider::AzureV1),
    ("cognitiveservices.azure.com", Provider::AzureV1),
    ("services.ai.azure.com", Provider::AzureV1),
    ("openrouter.ai", Provider::OpenRouter),
    ("deepseek.com", Provider::DeepSeek),
    ("groq.com", Provider::Groq),
    ("together.xyz", Provider::Together),
    ("together.ai", Provider::Together),
    ("mistral.ai", Provider::Mistral),
    ("generativelanguage.googleapis.com", Provider::Gemini),
    ("x.ai", Provider::Xai),
    ("fireworks.ai", Provider::Fireworks),
    ("cerebras.ai", Provider::Cerebras),
    ("deepinfra.com", Provider::DeepInfra),
    ("ollama.com", Provider::Ollama),
];

/// Default ports of local model servers.
const PORTS: [(u16, Provider); 5] = [
    (11434, Provider::Ollama),
    (8000, Provider::Vllm),
    (4000, Provider::LiteLlm),
    (8080, Provider::LlamaCpp),
    (1234, Provider::LmStudio),
];

impl Provider {
    /// Returns all providers that have a name.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(provider, _)| *provider)
    }

    /// Returns the name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(provider, _)| *provider == self).map_or("other", |(_, name)| name)
    }

    /// Returns the provider with that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(provider, _)| *provider)
    }

    /// Detects the provider by host, port and path of a URL.
    #[must_use]
    pub fn from_url(url: &Url) -> Self {
        let host = url.host_str().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        if is_bedrock(&host) {
            return Self::Bedrock;
        }
        if let Some((_, provider)) = HOSTS.iter().find(|(name, _)| is_below(&host, name)) {
            return match provider {
                Self::AzureV1 if url.path().contains("/deployments/") => Self::AzureDated,
                provider => *provider,
            };
        }
        let local = url.scheme() == "http";
        match PORTS.iter().find(|(port, _)| url.port() == Some(*port)) {
            Some((_, provider)) if local => *provider,
            _ => Self::Other,
        }
    }

    pub(crate) fn is_azure(self) -> bool {
        matches!(self, Self::AzureV1 | Self::AzureDated)
    }

    /// Returns `true` if the provider serves OpenAI's models with OpenAI's request format.
    pub(crate) fn is_openai(self) -> bool {
        matches!(self, Self::OpenAi | Self::AzureV1 | Self::AzureDated)
    }

    /// Returns `true` if the provider refuses messages with unknown fields.
    pub(crate) fn is_strict(self) -> bool {
        self.is_openai() || matches!(self, Self::Mistral | Self::Groq | Self::Cerebras)
    }
}

/// Returns `true` if `host` is `name` or a subdomain of it.
fn is_below(host: &str, name: &str) -> bool {
    host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns `true` for hosts of Bedrock, including a non-existent host that many documents name.
fn is_bedrock(host: &str) -> bool {
    (host.starts_with("bedrock-runtime") && is_below(host, "amazonaws.com"))
        || (host.starts_with("bedrock-mantle.") && is_below(host, "api.aws"))
        || misnamed_bedrock(host).is_some()
}

/// Returns the region if `host` is `REGION.bedrock.amazonaws.com`, which does not exist.
pub(crate) fn misnamed_bedrock(host: &str) -> Option<&str> {
    host.strip_suffix(".bedrock.amazonaws.com").filter(|region| !region.is_empty() && !region.contains('.'))
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => {
            name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).to_canonical().is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_is_detected_from_the_url() {
        let check = |url: &str, expected: Provider| {
            assert_eq!(Provider::from_url(&Url::parse(url).unwrap()), expected, "{url}");
        };
        check("https://api.openai.com/v1", Provider::OpenAi);
        check("https://us.api.openai.com/v1", Provider::OpenAi);
        check("https://eu-west-1.bedrock.amazonaws.com/openai/v1", Provider::Bedrock);
        check("https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", Provider::Bedrock);
        check("https://bedrock-runtime-fips.us-east-1.amazonaws.com/openai/v1", Provider::Bedrock);
        check("https://bedrock-mantle.us-east-1.api.aws/openai/v1", Provider::Bedrock);
        check("https://res.openai.azure.com/openai/deployments/dep", Provider::AzureDated);
        check("https://res.openai.azure.com/openai/v1", Provider::AzureV1);
        check("https://res.services.ai.azure.com/openai/v1/", Provider::AzureV1);
        check("https://openrouter.ai/api/v1", Provider::OpenRouter);
        check("https://api.deepseek.com/v1", Provider::DeepSeek);
        check("https://api.groq.com/openai/v1", Provider::Groq);
        check("https://api.together.xyz/v1", Provider::Together);
        check("https://api.mistral.ai/v1", Provider::Mistral);
        check("https://codestral.mistral.ai/v1", Provider::Mistral);
        check("https://generativelanguage.googleapis.com/v1beta/openai", Provider::Gemini);
        check("https://api.x.ai/v1", Provider::Xai);
        check("https://api.fireworks.ai/inference/v1", Provider::Fireworks);
        check("https://api.cerebras.ai/v1", Provider::Cerebras);
        check("https://api.deepinfra.com/v1/openai", Provider::DeepInfra);
        check("http://localhost:11434/v1", Provider::Ollama);
        check("http://gpu-box:11434/v1", Provider::Ollama);
        check("http://localhost:8000/v1", Provider::Vllm);
        check("http://localhost:4000/v1", Provider::LiteLlm);
        check("http://localhost:8080/v1", Provider::LlamaCpp);
        check("http://127.0.0.1:1234/v1", Provider::LmStudio);
        check("https://example.org/v1", Provider::Other);
        check("https://example.org:8000/v1", Provider::Other);
        check("https://phax.ai/v1", Provider::Other);
        check("https://api.openai.com.example.org/v1", Provider::Other);
        check("https://a.b.bedrock.amazonaws.com/openai/v1", Provider::Other);
    }

    #[test]
    fn every_name_parses_to_its_provider() {
        assert_eq!(Provider::all().count(), NAMES.len());
        for provider in Provider::all() {
            assert_eq!(Provider::from_name(provider.name()), Some(provider));
        }
        assert_eq!(Provider::from_name("OpenAI"), Some(Provider::OpenAi));
        assert_eq!(Provider::from_name("nobody"), None);
    }

    #[test]
    fn loopback_is_known_in_every_form() {
        let check = |url: &str, expected: bool| {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
        };
        check("http://localhost:1/", true);
        check("http://LOCALHOST/", true);
        check("http://api.localhost/", true);
        check("http://127.9.9.9/", true);
        check("http://[::1]:1/", true);
        check("http://[::ffff:127.0.0.1]/", true);
        check("http://localhost.example.org/", false);
        check("http://10.0.0.1/", false);
    }
}
