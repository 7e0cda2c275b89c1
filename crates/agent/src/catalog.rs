//! The models of all endpoints, under the ids that clients use.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use narrows_base::sync::lock;
use narrows_model::{Client, Effort, EndpointError, ModelTraits, Provider};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::settings::ModelRoute;

/// Timeout for fetching a list of models: opening a session must not wait for a dead endpoint.
const LIST_TIMEOUT: Duration = Duration::from_millis(800);

const LIST_TTL: Duration = Duration::from_secs(300);

/// Delay before an endpoint that returned no list is queried again.
const LIST_RETRY_DELAY: Duration = Duration::from_secs(15);

/// Maximum number of models offered per endpoint.
const MAX_MODELS: usize = 1000;

/// Id under which no model is offered, because some clients use `default` for "no model chosen".
const RESERVED_ID: &str = "default";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) route: usize,
    pub(crate) model: String,
    pub(crate) effort: Option<Effort>,
}

/// Time at which an endpoint is queried about a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LearnStage {
    BeforeAnswer,
    /// After the first answer of the model. An endpoint that loads a model on first use knows the size of the
    /// context window only then.
    AfterAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) id: String,
    pub(crate) name: String,
    route: usize,
    model: String,
}

pub(crate) struct Catalog {
    entries: Vec<Entry>,
    /// Models that were already looked up at their endpoint, each with the stage of the lookup.
    learned: std::sync::Mutex<HashSet<(usize, String, LearnStage)>>,
}

struct Entry {
    route: ModelRoute,
    client: Client,
    /// Cached list of models. Locked while the list is fetched, so that all waiting sessions share one
    /// request.
    cached: Mutex<Option<CachedList>>,
}

/// Ids and names of an endpoint's models.
type Models = Vec<(String, String)>;

struct CachedList {
    models: Models,
    until: Instant,
}

impl Catalog {
    pub(crate) fn new(routes: Vec<ModelRoute>) -> Result<Self, EndpointError> {
        let entry = |route: ModelRoute| {
            let client = Client::new(route.endpoint.clone())?;
            Ok(Entry { route, client, cached: Mutex::new(None) })
        };
        let entries = routes.into_iter().map(entry).collect::<Result<_, EndpointError>>()?;
        Ok(Self { entries, learned: std::sync::Mutex::default() })
    }

    pub(crate) fn default_choice(&self) -> Option<Choice> {
        self.entries.first().map(|entry| entry.choice(0))
    }

    pub(crate) fn route(&self, choice: &Choice) -> &ModelRoute {
        &self.entries[choice.route].route
    }

    pub(crate) fn client(&self, choice: &Choice) -> &Client {
        &self.entries[choice.route].client
    }

    pub(crate) fn traits(&self, choice: &Choice) -> ModelTraits {
        self.client(choice).traits_of(&choice.model)
    }

    /// Returns `true` to the first caller for this model and stage. That caller must query the endpoint about
    /// the model.
    pub(crate) fn start_learning(&self, choice: &Choice, stage: LearnStage) -> bool {
        let loads = matches!(self.client(choice).provider(), Provider::Ollama | Provider::LmStudio);
        if stage == LearnStage::AfterAnswer && !loads {
            return false;
        }
        let mut learned = lock(&self.learned);
        learned.len() < MAX_MODELS && learned.insert((choice.route, choice.model.clone(), stage))
    }

    pub(crate) fn model_id(&self, choice: &Choice) -> String {
        self.public_id(choice.route, &choice.model)
    }

    /// Returns the id that clients use for a model. Models of the first endpoint keep their ids, and those of
    /// other endpoints get its name as a prefix.
    fn public_id(&self, route: usize, model: &str) -> String {
        if route == 0 {
            return model.to_owned();
        }
        format!("{}/{model}", self.entries[route].route.endpoint.name)
    }

    pub(crate) fn endpoint_name(&self, choice: &Choice) -> &str {
        &self.route(choice).endpoint.name
    }

    /// Returns the choice of `model`, or else of the configured model, at the endpoint with this name. `None`
    /// if the endpoint is no longer configured. Does not check that the endpoint still has the model.
    pub(crate) fn restore_choice(
        &self,
        endpoint: &str,
        model: Option<String>,
        effort: Option<Effort>,
    ) -> Option<Choice> {
        let route = self.entries.iter().position(|entry| entry.route.endpoint.name == endpoint)?;
        let configured = self.entries[route].choice(route);
        Some(match model {
            Some(model) => Choice { route, model, effort },
            None => configured,
        })
    }

    /// Returns the models that clients can choose. `current` is always among them.
    pub(crate) async fn offers(&self, current: &Choice) -> Vec<Offer> {
        let deadline = Instant::now() + LIST_TIMEOUT;
        // Fetch all lists at the same time, so that the waits do not add up.
        let lists = join_all(self.entries.iter().map(|entry| entry.models(deadline))).await;
        let mut offers = Vec::new();
        // If two models have the same id, the id means the first model, both in this list and when a client
        // chooses.
        let mut known = HashSet::new();
        for (route, models) in lists.into_iter().enumerate() {
            let configured = &self.entries[route].route.model;
            let mut chosen: Vec<&str> = vec![configured];
            if route == current.route && current.model != *configured {
                chosen.push(&current.model);
            }
            let is_listed = |id: &str| models.iter().any(|(model, _)| model == id);
            let missing =
                chosen.into_iter().filter(|id| !is_listed(id)).map(|id| (id.to_owned(), id.to_owned()));
            for (model, name) in missing.chain(models.clone()) {
                let id = self.public_id(route, &model);
                // With several endpoints, a displayed name contains the endpoint: two endpoints may have the
                // same model.
                let name = match self.entries.len() {
                    1 => name,
                    _ => format!("{name} ({})", self.entries[route].route.endpoint.name),
                };
                if known.insert(id.clone()) {
                    offers.push(Offer { id, name, route, model });
                }
            }
        }
        offers
    }

    /// Returns the choice of the model of `offer`. Drops `effort` if the model does not support it.
    pub(crate) fn choose(&self, offer: &Offer, effort: Option<Effort>) -> Choice {
        let mut choice = Choice { route: offer.route, model: offer.model.clone(), effort };
        if let Some(effort) = effort
            && !self.traits(&choice).efforts.contains(&effort)
        {
            choice.effort = None;
        }
        choice
    }
}

impl Entry {
    fn choice(&self, route: usize) -> Choice {
        Choice { route, model: self.route.model.clone(), effort: self.route.effort }
    }

    /// Returns ids and names of the models. Empty if the endpoint does not answer in time.
    async fn models(&self, deadline: Instant) -> Models {
        let Ok(mut cached) = tokio::time::timeout_at(deadline, self.cached.lock()).await else {
            return Vec::new();
        };
        if let Some(CachedList { models, until }) = &*cached
            && Instant::now() < *until
        {
            return models.clone();
        }
        let timeout = deadline.saturating_duration_since(Instant::now());
        let (models, ttl) = match tokio::time::timeout(timeout, self.client.models(timeout)).await {
            Ok(Ok(models)) => {
                let usable =
                    models.into_iter().filter(|model| !model.id.is_empty() && model.id != RESERVED_ID);
                let pair = usable.map(|model| (model.id.clone(), model.name.unwrap_or(model.id)));
                (pair.take(MAX_MODELS).collect(), LIST_TTL)
            }
            Ok(Err(error)) => {
                tracing::info!(endpoint = self.route.endpoint.name, %error, "model list unavailable");
                (Vec::new(), LIST_RETRY_DELAY)
            }
            Err(_) => {
                tracing::info!(endpoint = self.route.endpoint.name, "model list timed out");
                (Vec::new(), LIST_RETRY_DELAY)
            }
        };
        *cached = Some(CachedList { models: models.clone(), until: Instant::now() + ttl });
        models
    }
}
