//! Where requests go: the URLs and headers of an endpoint, checked once.

use narrows_base::text::quoted;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::endpoint::DEMO_URL;
use crate::provider::misnamed_bedrock;
use crate::{Endpoint, EndpointError, Provider};

/// The parameter that Azure's dated API demands.
const API_VERSION: &str = "api-version";
/// The last stable version of that API.
const AZURE_VERSION: &str = "2024-10-21";
/// Azure's header for keys.
const API_KEY: HeaderName = HeaderName::from_static("api-key");
/// What people set as key where none is needed; hosts and models go by such names as well.
const PLACEHOLDERS: [&str; 6] = ["ollama", "lm-studio", "not-needed", "not_needed", "no-key", "placeholder"];
/// What people paste along with the base URL.
const CHAT: &str = "/chat/completions";

/// Where requests go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The base URL, without a slash at its end and without query.
    base: Url,
    /// The parameters of every request.
    query: Vec<(String, String)>,
    /// The headers of every request; those with secrets are marked as such.
    pub(crate) headers: HeaderMap,
    /// Who stands there.
    pub(crate) provider: Provider,
    /// What was changed so that it can work.
    pub(crate) notes: Vec<String>,
}

impl Target {
    /// Checks the URL, the key, the headers and the parameters of `endpoint`.
    pub(crate) fn of(endpoint: &Endpoint) -> Result<Self, EndpointError> {
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
            return Err(EndpointError::new("base_url", "holds a user or password: give the key as `key`"));
        }
        if let Some(note) = move_bedrock(&mut base) {
            notes.push(note);
        }
        let provider = endpoint.provider.unwrap_or_else(|| Provider::of(&base));
        if provider == Provider::Demo {
            return Err(EndpointError::new("provider", format!("is the demo, which only {DEMO_URL} is")));
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

    /// The URL for chats.
    pub(crate) fn chat(&self) -> Url {
        self.below(self.base.path(), CHAT)
    }

    /// The URL of the list of models.
    pub(crate) fn models(&self) -> Url {
        self.below(self.base.path(), "/models")
    }

    /// A URL beside the part of the server that speaks Chat Completions.
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

    /// The deployment in the URL of Azure's dated API.
    pub(crate) fn deployment(&self) -> Option<&str> {
        let (_, rest) = self.base.path().split_once("/deployments/")?;
        rest.split('/').next().filter(|name| !name.is_empty())
    }

    /// Takes every secret that is sent out of an error.
    pub(crate) fn hide_secrets(endpoint: &Endpoint, error: &mut crate::Error) {
        let headers = endpoint.headers.iter().map(|(_, value)| value);
        for secret in endpoint.key.iter().chain(headers) {
            let secret = secret.expose().trim();
            // A shorter value stands in innocent words, and is no key.
            if secret.len() >= 6 && !PLACEHOLDERS.contains(&secret) {
                error.hide(secret);
            }
        }
    }
}

/// Moves a URL from the host that many documents give for Bedrock, which does not exist, to the one that does.
fn move_bedrock(base: &mut Url) -> Option<String> {
    let wrong = base.host_str()?.to_owned();
    let right = format!("bedrock-runtime.{}.amazonaws.com", misnamed_bedrock(&wrong)?);
    base.set_host(Some(&right)).ok()?;
    Some(format!("base_url: there is no host {wrong}; {right} is used"))
}

/// The parameters of every request: those in the URL, then those set, then what Azure demands.
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
        // Azure's own keys go into a header of their own; tokens of Entra, which are JWTs, do not.
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
            return Err(EndpointError::new(setting(), "is no name for a header"));
        };
        if header == AUTHORIZATION || header == API_KEY {
            headers.remove(AUTHORIZATION);
            headers.remove(API_KEY);
        }
        headers.insert(header, sensitive(&setting(), value.expose().trim())?);
    }
    Ok(headers)
}

/// A header's value that is shown nowhere.
fn sensitive(setting: &str, value: &str) -> Result<HeaderValue, EndpointError> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| EndpointError::new(setting, "has characters that a header cannot carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
