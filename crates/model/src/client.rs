//! One endpoint, ready to be asked.

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
use crate::repair::{Dropped, Parts};
use crate::target::Target;
use crate::{
    Endpoint, EndpointError, Error, Kind, ModelInfo, ModelTraits, Provider, Reply, Request, demo, discover,
    traits,
};

/// Of how many models something is remembered.
const MAX_KNOWN: usize = 2048;
/// The most bytes of what an endpoint tells about its models.
const MAX_LIST: usize = 16 << 20;

/// One endpoint, ready to be asked. Cheap to clone; clones share connections and what has been learnt.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    target: Target,
    transport: Transport,
    /// Built when it is first needed: TLS costs time and memory.
    http: OnceLock<reqwest::Client>,
    known: Mutex<HashMap<String, Known>>,
}

/// What has been learnt of a model.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    refused: Parts,
    window: Option<u64>,
    images: Option<bool>,
    audio: Option<bool>,
    tools: Option<bool>,
}

impl fmt::Debug for Client {
    /// The settings, without what may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.inner.endpoint)
            .field("provider", &self.provider())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Checks the settings. Nothing is connected, and no TLS loaded, before the first request.
    pub fn new(endpoint: Endpoint) -> Result<Self, EndpointError> {
        let target = Target::of(&endpoint)?;
        let transport = Transport::of(&endpoint, &target.chat())?;
        let known = Mutex::default();
        Ok(Self { inner: Arc::new(Inner { endpoint, target, transport, http: OnceLock::new(), known }) })
    }

    /// The settings as given.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// Who stands behind it.
    #[must_use]
    pub fn provider(&self) -> Provider {
        self.inner.target.provider
    }

    /// What was changed in the settings so that they can work, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.inner.target.notes
    }

    /// The models the endpoint offers.
    pub async fn models(&self, deadline: Duration) -> Result<Vec<ModelInfo>, Error> {
        let target = &self.inner.target;
        let models = match (target.provider, target.deployment()) {
            (Provider::Demo, _) => demo::models(),
            // The URL is the model's, and there is no list below it.
            (Provider::AzureDated, Some(name)) => {
                vec![ModelInfo { id: name.to_owned(), ..ModelInfo::default() }]
            }
            _ => self.listed(target.models(), deadline).await?,
        };
        for info in &models {
            self.note(info);
        }
        Ok(models)
    }

    async fn listed(&self, url: Url, deadline: Duration) -> Result<Vec<ModelInfo>, Error> {
        let answer = self.ask(url.clone(), None, deadline).await?;
        discover::list(&answer, self.provider())
            .ok_or_else(|| Error::new(Kind::Garbage, url.as_str(), "what came is no list of models"))
    }

    /// What is known of a model, without asking.
    #[must_use]
    pub fn traits_of(&self, model: &str) -> ModelTraits {
        let named = traits::of(self.provider(), model);
        let known = self.known(model);
        let told = |refusal: Dropped, learnt: Option<bool>, named: Option<bool>| {
            if known.refused.has(refusal) { Some(false) } else { learnt.or(named) }
        };
        ModelTraits {
            window: self.inner.endpoint.context_window.or(known.window).or(named.window),
            images: told(Dropped::Images, known.images, named.images),
            audio: told(Dropped::Audio, known.audio, named.audio),
            tools: told(Dropped::Tools, known.tools, named.tools),
            efforts: if known.refused.has(Dropped::Effort) { &[] } else { named.efforts },
        }
    }

    /// Asks the endpoint about a model, as far as it can tell; remembered for [`traits_of`](Self::traits_of).
    pub async fn learn(&self, model: &str, deadline: Duration) {
        // Several questions share the deadline.
        if timeout(deadline, self.learn_from(model, deadline)).await.is_err() {
            tracing::debug!(endpoint = self.inner.endpoint.name, model, "no word about the model in time");
        }
    }

    async fn learn_from(&self, model: &str, deadline: Duration) {
        let target = &self.inner.target;
        match target.provider {
            Provider::Demo | Provider::AzureDated => {}
            Provider::Ollama => {
                let question = json!({ "model": model });
                if let Ok(answer) = self.ask(target.beside("/api/show"), Some(question), deadline).await {
                    self.note(&ModelInfo { id: model.to_owned(), ..discover::shown(&answer) });
                }
                if let Ok(answer) = self.ask(target.beside("/api/ps"), None, deadline).await {
                    let window = discover::loaded(&answer, model);
                    self.note(&ModelInfo { id: model.to_owned(), window, ..ModelInfo::default() });
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

    async fn learn_list(&self, url: Url, model: &str, deadline: Duration) -> Result<(), Error> {
        let models = self.listed(url, deadline).await.inspect_err(|error| {
            tracing::debug!(endpoint = self.inner.endpoint.name, model, %error, "no word about the model");
        })?;
        for info in &models {
            self.note(info);
        }
        // llama.cpp has one model, whatever it is asked by.
        if let (Provider::LlamaCpp, [only]) = (self.provider(), models.as_slice()) {
            self.note(&ModelInfo { id: model.to_owned(), ..only.clone() });
        }
        Ok(())
    }

    /// Asks the model. Nothing is sent before the first [`Reply::next`].
    pub fn chat<'a>(&'a self, request: &'a Request) -> Reply<'a> {
        Reply::new(self, request)
    }

    /// Asks something else than a model, and reads JSON.
    async fn ask(&self, url: Url, question: Option<Value>, deadline: Duration) -> Result<Value, Error> {
        let headers = self.inner.target.headers.clone();
        let body = question.map(|question| Bytes::from(question.to_string()));
        let outgoing = Outgoing { url: url.clone(), headers, body };
        let fail = |kind, message: &str| Error::new(kind, url.as_str(), message);
        let answer = async {
            let mut response =
                http::send(self.http()?, outgoing, Instant::now() + deadline, deadline).await?;
            let mut body = Vec::new();
            let broken = |error: reqwest::Error| fail(Kind::Cut, &http::causes(&error.without_url()));
            while let Some(bytes) = response.chunk().await.map_err(broken)? {
                if body.len() + bytes.len() > MAX_LIST {
                    return Err(fail(Kind::Garbage, "the answer is too long"));
                }
                body.extend_from_slice(&bytes);
            }
            serde_json::from_slice(&body).map_err(|_| fail(Kind::Garbage, "the answer is no JSON"))
        };
        let answer = timeout(deadline, answer).await;
        answer
            .unwrap_or_else(|_| Err(fail(Kind::Timeout, "no answer in time")))
            .map_err(|error| self.hidden(error))
    }

    /// The HTTP client, built now if it is the first time.
    pub(crate) fn http(&self) -> Result<reqwest::Client, Error> {
        if let Some(http) = self.inner.http.get() {
            return Ok(http.clone());
        }
        let built = self.inner.transport.build(&self.inner.target.chat())?;
        // Whoever came first counts.
        Ok(self.inner.http.get_or_init(|| built).clone())
    }

    /// A chat request with this body.
    pub(crate) fn outgoing(&self, body: Vec<u8>) -> Outgoing {
        let target = &self.inner.target;
        Outgoing { url: target.chat(), headers: target.headers.clone(), body: Some(body.into()) }
    }

    /// Where chats go.
    pub(crate) fn chat_url(&self) -> Url {
        self.inner.target.chat()
    }

    /// `error` without the endpoint's secrets.
    pub(crate) fn hidden(&self, mut error: Error) -> Error {
        Target::hide_secrets(&self.inner.endpoint, &mut error);
        error
    }

    /// What the endpoint takes of a request for `model`.
    pub(crate) fn profile(&self, model: &str) -> Profile {
        let known = self.known(model);
        let named = traits::of(self.provider(), model);
        Profile {
            provider: self.provider(),
            refused: known.refused,
            images: known.images.or(named.images),
            audio: known.audio.or(named.audio),
        }
    }

    /// Remembers that `model` is to be asked without `what`.
    pub(crate) fn refuse(&self, model: &str, what: Dropped) {
        self.remember(model, |known| known.refused.insert(what));
    }

    /// Remembers the window that an overflow told.
    pub(crate) fn note_window(&self, model: &str, window: u64) {
        self.remember(model, |known| known.window = Some(window));
    }

    fn note(&self, info: &ModelInfo) {
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

    fn remember(&self, model: &str, change: impl FnOnce(&mut Known)) {
        let mut all = lock(&self.inner.known);
        if let Some(known) = all.get_mut(model) {
            change(known);
        } else if all.len() < MAX_KNOWN {
            change(all.entry(model.to_owned()).or_default());
        }
    }

    fn known(&self, model: &str) -> Known {
        let all = lock(&self.inner.known);
        all.get(model).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
