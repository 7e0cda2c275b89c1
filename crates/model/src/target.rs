//! URLs and headers of an endpoint. They are checked once.

use narrows_base::text::quoted;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::endpoint::DEMO_URL;
use crate::provider::misnamed_bedrock;
use crate::{Endpoint, EndpointError, Provider};

/// Query parameter that Azure's dated API requires.
const API_VERSION: &str = "api-version";
/// Last stable version of Azure's dated API.
const AZURE_VERSION: &str = "2024-10-21";
/// Header in which Azure expects a key.
const API_KEY: HeaderName = HeaderName::from_static("api-key");
/// Placeholder keys that users set for servers without keys. They are not removed from messages, because
/// hosts and models may have the same names.
const PLACEHOLDERS: [&str; 6] = ["ollama", "lm-studio", "not-needed", "not_needed", "no-key", "placeholder"];
/// Path that users paste as a part of the base URL.
const CHAT: &str = "/chat/completions";

#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Base URL, without a trailing slash and without a query.
    base: Url,
    query: Vec<(String, String)>,
    /// Headers of every request. Secret ones are marked as sensitive.
    pub(crate) headers: HeaderMap,
    pub(crate) provider: Provider,
    pub(crate) notes: Vec<String>,
}

impl Target {
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self, EndpointError> {
        let given = endpoint.base_url.trim();
        let mut base = Url::parse(given).map_err(|error| match given {
            "" => EndpointError::new("base_url", "is not set"),
            _ => EndpointError::new("base_url", format!("is not a URL: {error}")),
        })?;
        let mut notes = Vec::new();
        if given == DEMO_URL {
            return Ok(Self {
                base,
                query: Vec::new(),
                headers: HeaderMap::new(),
                provider: Provider::Demo,
                notes,
            });
        }
        if !matches!(base.scheme(), "http" | "https") {
            return Err(EndpointError::new("base_url", "must begin with http:// or https://"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(EndpointError::new("base_url", "contains a user or password: set the key as `key`"));
        }
        if let Some(note) = move_bedrock(&mut base) {
            notes.push(note);
        }
        let provider = endpoint.provider.unwrap_or_else(|| Provider::from_url(&base));
        if provider == Provider::Demo {
            return Err(EndpointError::new(
                "provider",
                format!("is the demo provider, which needs the URL {DEMO_URL}"),
            ));
        }
        let query = query(endpoint, &base, provider);
        base.set_query(None);
        base.set_fragment(None);
        let path = base.path().trim_end_matches('/');
        let path = path.strip_suffix(CHAT).unwrap_or(path).trim_end_matches('/').to_owned();
        base.set_path(&path);
        let headers = headers(endpoint, provider)?;
        Ok(Self { base, query, headers, provider, notes })
    }

    pub(crate) fn chat(&self) -> Url {
        self.below(self.base.path(), CHAT)
    }

    pub(crate) fn models(&self) -> Url {
        self.below(self.base.path(), "/models")
    }

    /// Returns the URL of a server path that is not part of the Chat Completions API.
    pub(crate) fn beside(&self, path: &str) -> Url {
        let base = self.base.path().trim_end_matches('/');
        self.below(base.strip_suffix("/v1").unwrap_or(base), path)
    }

    fn below(&self, base: &str, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", base.trim_end_matches('/')));
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }

    /// Returns the deployment name that the URL of Azure's dated API contains.
    pub(crate) fn deployment(&self) -> Option<&str> {
        let (_, rest) = self.base.path().split_once("/deployments/")?;
        rest.split('/').next().filter(|name| !name.is_empty())
    }

    pub(crate) fn hide_secrets(endpoint: &Endpoint, error: &mut crate::ModelError) {
        let headers = endpoint.headers.iter().map(|(_, value)| value);
        for secret in endpoint.key.iter().chain(headers) {
            let secret = secret.expose().trim();
            // A shorter value is no key, and may be part of ordinary words.
            if secret.len() >= 6 && !PLACEHOLDERS.contains(&secret) {
                error.hide(secret);
            }
        }
    }
}

/// Replaces a Bedrock host that many documents name but that does not exist.
fn move_bedrock(base: &mut Url) -> Option<String> {
    let wrong = base.host_str()?.to_owned();
    let right = format!("bedrock-runtime.{}.amazonaws.com", misnamed_bedrock(&wrong)?);
    base.set_host(Some(&right)).ok()?;
    Some(format!("base_url: there is no host {wrong}; {right} is used"))
}

/// Returns the query parameters: first those of the URL, then the configured ones, then Azure's.
fn query(endpoint: &Endpoint, base: &Url, provider: Provider) -> Vec<(String, String)> {
    let mut query: Vec<(String, String)> = base
        .query_pairs()
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .filter(|(name, _)| endpoint.query.iter().all(|(set, _)| set != name))
        .collect();
    query.extend(endpoint.query.iter().cloned());
    if provider == Provider::AzureDated && query.iter().all(|(name, _)| name != API_VERSION) {
        query.push((API_VERSION.to_owned(), AZURE_VERSION.to_owned()));
    }
    query
}

fn headers(endpoint: &Endpoint, provider: Provider) -> Result<HeaderMap, EndpointError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = endpoint.key.as_ref().filter(|key| !key.is_empty()) {
        let token = key.expose().trim();
        // Azure expects a key in a header of its own. An Entra token is a JWT, and uses the usual header.
        let own = provider.is_azure() && !token.starts_with("eyJ");
        if own {
            headers.insert(API_KEY, sensitive("key", token)?);
        } else {
            headers.insert(AUTHORIZATION, sensitive("key", &format!("Bearer {token}"))?);
        }
    }
    for (name, value) in &endpoint.headers {
        let setting = || format!("headers.{}", quoted(name, 64));
        let Ok(header) = HeaderName::from_bytes(name.trim().as_bytes()) else {
            return Err(EndpointError::new(setting(), "is not a valid header name"));
        };
        if header == AUTHORIZATION || header == API_KEY {
            headers.remove(AUTHORIZATION);
            headers.remove(API_KEY);
        }
        headers.insert(header, sensitive(&setting(), value.expose().trim())?);
    }
    Ok(headers)
}

fn sensitive(setting: &str, value: &str) -> Result<HeaderValue, EndpointError> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| EndpointError::new(setting, "has characters that a header cannot carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
