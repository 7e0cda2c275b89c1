//! Client of one endpoint.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use narrows_base::sync::lock;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use url::Url;

use crate::body::Profile;
use crate::http::{self, Outgoing, Transport};
use crate::repair::{RequestPart, RequestParts};
use crate::target::Target;
use crate::{
    Endpoint, EndpointError, ErrorKind, ModelError, ModelInfo, ModelTraits, Provider, Reply, Request, demo,
    model_list, traits,
};

const MAX_KNOWN_MODELS: usize = 2048;
/// Maximum number of bytes of an endpoint's answer about its models.
const MAX_LIST_BYTES: usize = 16 << 20;

/// A client of one endpoint. Clones are cheap, and share connections and what the client has learned about
/// models.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    target: Target,
    transport: Transport,
    /// HTTP client, built on first use because TLS costs time and memory.
    http: OnceLock<reqwest::Client>,
    known: Mutex<HashMap<String, KnownModel>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownModel {
    refused: RequestParts,
    window: Option<u64>,
    images: Option<bool>,
    audio: Option<bool>,
    tools: Option<bool>,
}

impl fmt::Debug for Client {
    /// Secrets are omitted from the output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.inner.endpoint)
            .field("provider", &self.provider())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client after checking the settings. TLS is loaded, and a connection is opened, only for the
    /// first request.
    pub fn new(endpoint: Endpoint) -> Result<Self, EndpointError> {
        let target = Target::new(&endpoint)?;
        let transport = Transport::new(&endpoint, &target.chat())?;
        let known = Mutex::default();
        Ok(Self { inner: Arc::new(Inner { endpoint, target, transport, http: OnceLock::new(), known }) })
    }

    /// Returns the settings as given.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// Returns the provider.
    #[must_use]
    pub fn provider(&self) -> Provider {
        self.inner.target.provider
    }

    /// Returns corrections that were made to the settings, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.inner.target.notes
    }

    /// Returns the models that the endpoint offers.
    pub async fn models(&self, deadline: Duration) -> Result<Vec<ModelInfo>, ModelError> {
        let target = &self.inner.target;
        let models = match (target.provider, target.deployment()) {
            (Provider::Demo, _) => demo::models(),
            // In Azure's dated API, the URL names the model, and no list of models exists.
            (Provider::AzureDated, Some(name)) => {
                vec![ModelInfo { id: name.to_owned(), ..ModelInfo::default() }]
            }
            _ => self.fetch_list(target.models(), deadline).await?,
        };
        for info in &models {
            self.remember_info(info);
        }
        Ok(models)
    }

    async fn fetch_list(&self, url: Url, deadline: Duration) -> Result<Vec<ModelInfo>, ModelError> {
        let answer = self.fetch_json(url.clone(), None, deadline).await?;
        model_list::parse_list(&answer, self.provider()).ok_or_else(|| {
            ModelError::new(ErrorKind::Garbage, url.as_str(), "the response is not a list of models")
        })
    }

    /// Returns the known traits of a model, without a request.
    #[must_use]
    pub fn traits_of(&self, model: &str) -> ModelTraits {
        let named = traits::for_model(self.provider(), model);
        let known = self.known(model);
        let told = |refusal: RequestPart, learnt: Option<bool>, named: Option<bool>| {
            if known.refused.has(refusal) { Some(false) } else { learnt.or(named) }
        };
        ModelTraits {
            window: self.inner.endpoint.context_window.or(known.window).or(named.window),
            images: told(RequestPart::Images, known.images, named.images),
            audio: told(RequestPart::Audio, known.audio, named.audio),
            tools: told(RequestPart::Tools, known.tools, named.tools),
            efforts: if known.refused.has(RequestPart::Effort) { &[] } else { named.efforts },
        }
    }

    /// Queries the endpoint about a model and remembers the answer for [`traits_of`](Self::traits_of).
    pub async fn learn(&self, model: &str, deadline: Duration) {
        // All requests of this query share one deadline.
        if timeout(deadline, self.learn_from(model, deadline)).await.is_err() {
            tracing::debug!(endpoint = self.inner.endpoint.name, model, "model query timed out");
        }
    }

    async fn learn_from(&self, model: &str, deadline: Duration) {
        let target = &self.inner.target;
        match target.provider {
            Provider::Demo | Provider::AzureDated => {}
            Provider::Ollama => {
                let question = json!({ "model": model });
                if let Ok(answer) =
                    self.fetch_json(target.beside("/api/show"), Some(question), deadline).await
                {
                    self.remember_info(&ModelInfo {
                        id: model.to_owned(),
                        ..model_list::parse_ollama_show(&answer)
                    });
                }
                if let Ok(answer) = self.fetch_json(target.beside("/api/ps"), None, deadline).await {
                    let window = model_list::parse_ollama_ps(&answer, model);
                    self.remember_info(&ModelInfo { id: model.to_owned(), window, ..ModelInfo::default() });
                }
            }
            Provider::LmStudio => {
                if self.learn_list(target.beside("/api/v0/models"), model, deadline).await.is_err() {
                    let _ = self.learn_list(target.models(), model, deadline).await;
                }
            }
            _ => {
                let _ = self.learn_list(target.models(), model, deadline).await;
            }
        }
    }

    async fn learn_list(&self, url: Url, model: &str, deadline: Duration) -> Result<(), ModelError> {
        let models = self.fetch_list(url, deadline).await.inspect_err(|error| {
            tracing::debug!(endpoint = self.inner.endpoint.name, model, %error, "model query failed");
        })?;
        for info in &models {
            self.remember_info(info);
        }
        // A llama.cpp server has one model, and serves it under any id.
        if let (Provider::LlamaCpp, [only]) = (self.provider(), models.as_slice()) {
            self.remember_info(&ModelInfo { id: model.to_owned(), ..only.clone() });
        }
        Ok(())
    }

    /// Requests an answer. Nothing is sent before the first [`Reply::next`].
    pub fn chat<'a>(&'a self, request: &'a Request) -> Reply<'a> {
        Reply::new(self, request)
    }

    /// Sends a request other than a chat, and parses the JSON response.
    async fn fetch_json(
        &self,
        url: Url,
        question: Option<Value>,
        deadline: Duration,
    ) -> Result<Value, ModelError> {
        let headers = self.inner.target.headers.clone();
        let body = question.map(|question| Bytes::from(question.to_string()));
        let outgoing = Outgoing { url: url.clone(), headers, body };
        let fail = |kind, message: &str| ModelError::new(kind, url.as_str(), message);
        let answer = async {
            let mut response =
                http::send(self.http()?, outgoing, Instant::now() + deadline, deadline).await?;
            let mut body = Vec::new();
            let broken =
                |error: reqwest::Error| fail(ErrorKind::Cut, &http::error_chain(&error.without_url()));
            while let Some(bytes) = response.chunk().await.map_err(broken)? {
                if body.len() + bytes.len() > MAX_LIST_BYTES {
                    return Err(fail(ErrorKind::Garbage, "the response is too long"));
                }
                body.extend_from_slice(&bytes);
            }
            serde_json::from_slice(&body).map_err(|_| fail(ErrorKind::Garbage, "the response is not JSON"))
        };
        let answer = timeout(deadline, answer).await;
        answer
            .unwrap_or_else(|_| Err(fail(ErrorKind::Timeout, "no response in time")))
            .map_err(|error| self.without_secrets(error))
    }

    pub(crate) fn http(&self) -> Result<reqwest::Client, ModelError> {
        if let Some(http) = self.inner.http.get() {
            return Ok(http.clone());
        }
        let built = self.inner.transport.build(&self.inner.target.chat())?;
        // If two threads have built a client, both use the one that was stored first.
        Ok(self.inner.http.get_or_init(|| built).clone())
    }

    pub(crate) fn outgoing(&self, body: Vec<u8>) -> Outgoing {
        let target = &self.inner.target;
        Outgoing { url: target.chat(), headers: target.headers.clone(), body: Some(body.into()) }
    }

    pub(crate) fn chat_url(&self) -> Url {
        self.inner.target.chat()
    }

    pub(crate) fn without_secrets(&self, mut error: ModelError) -> ModelError {
        Target::hide_secrets(&self.inner.endpoint, &mut error);
        error
    }

    /// Returns what is known about the endpoint for `model`.
    pub(crate) fn profile(&self, model: &str) -> Profile {
        let known = self.known(model);
        let named = traits::for_model(self.provider(), model);
        Profile {
            provider: self.provider(),
            refused: known.refused,
            images: known.images.or(named.images),
            audio: known.audio.or(named.audio),
        }
    }

    pub(crate) fn remember_refused(&self, model: &str, what: RequestPart) {
        self.remember(model, |known| known.refused.insert(what));
    }

    pub(crate) fn remember_window(&self, model: &str, window: u64) {
        self.remember(model, |known| known.window = Some(window));
    }

    fn remember_info(&self, info: &ModelInfo) {
        let ModelInfo { id, name: _, window, images, audio, tools } = info;
        if window.is_none() && images.is_none() && audio.is_none() && tools.is_none() {
            return;
        }
        self.remember(id, |known| {
            known.window = window.or(known.window);
            known.images = images.or(known.images);
            known.audio = audio.or(known.audio);
            known.tools = tools.or(known.tools);
        });
    }

    fn remember(&self, model: &str, change: impl FnOnce(&mut KnownModel)) {
        let mut all = lock(&self.inner.known);
        if let Some(known) = all.get_mut(model) {
            change(known);
        } else if all.len() < MAX_KNOWN_MODELS {
            change(all.entry(model.to_owned()).or_default());
        }
    }

    fn known(&self, model: &str) -> KnownModel {
        let all = lock(&self.inner.known);
        all.get(model).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
