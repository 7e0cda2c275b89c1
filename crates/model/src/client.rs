//! One endpoint, ready to be asked.

use std::sync::Arc;
use std::time::Duration;

use crate::{Endpoint, EndpointError, Error, ModelInfo, ModelTraits, Provider, Reply, Request};

/// One endpoint, ready to be asked. Cheap to clone; clones share connections and what has been learnt.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    provider: Provider,
    notes: Vec<String>,
}

impl Client {
    /// Checks the settings. Nothing is connected, and no TLS loaded, before the first request.
    pub fn new(endpoint: Endpoint) -> Result<Self, EndpointError> {
        let provider = endpoint.provider.unwrap_or(Provider::Other);
        Ok(Self { inner: Arc::new(Inner { endpoint, provider, notes: Vec::new() }) })
    }

    /// The settings as given.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// Who stands behind it.
    #[must_use]
    pub fn provider(&self) -> Provider {
        self.inner.provider
    }

    /// What was changed in the settings so that they can work, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.inner.notes
    }

    /// The models the endpoint offers.
    pub async fn models(&self, deadline: Duration) -> Result<Vec<ModelInfo>, Error> {
        let _ = deadline;
        Err(Error::new(crate::Kind::Unconfigured, "", "not yet"))
    }

    /// What is known of a model, without asking.
    #[must_use]
    pub fn traits_of(&self, model: &str) -> ModelTraits {
        let _ = model;
        ModelTraits::default()
    }

    /// Asks the endpoint about a model, as far as it can tell; remembered for [`traits_of`](Self::traits_of).
    pub async fn learn(&self, model: &str, deadline: Duration) {
        let _ = (model, deadline);
    }

    /// Asks the model. Nothing is sent before the first [`Reply::next`].
    pub fn chat<'a>(&'a self, request: &'a Request) -> Reply<'a> {
        Reply::new(self, request)
    }
}
