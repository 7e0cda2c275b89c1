//! Which models there are, over all endpoints, under ids that clients choose by.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use narrows_base::sync::lock;
use narrows_model::{Client, Effort, EndpointError, ModelTraits, Provider};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::settings::Route;

/// How long a list of models is waited for: a session must not wait for a dead endpoint.
const PATIENCE: Duration = Duration::from_millis(800);

/// How long a list is good for.
const FRESH: Duration = Duration::from_secs(300);

/// How long an endpoint that gave none is not asked again.
const SPARED: Duration = Duration::from_secs(15);

/// How many models of one endpoint are offered.
const MOST: usize = 1000;

/// Means "none chosen" to some clients, so no model is offered under it.
const RESERVED: &str = "default";

/// Which model a session uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The place of its endpoint among the settings.
    pub(crate) route: usize,
    /// The model as the endpoint calls it.
    pub(crate) model: String,
    pub(crate) effort: Option<Effort>,
}

/// When a model is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Before its first answer.
    Asked,
    /// After it: endpoints that load a model when it is first used know only then how much it takes.
    Answered,
}

/// A model that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// What clients choose it by.
    pub(crate) id: String,
    pub(crate) name: String,
    route: usize,
    model: String,
}

/// All endpoints.
pub(crate) struct Catalog {
    entries: Vec<Entry>,
    /// The models that somebody has asked about.
    learnt: std::sync::Mutex<HashSet<(usize, String, Stage)>>,
}

struct Entry {
    route: Route,
    client: Client,
    /// Held while it is fetched, so that it is fetched once for all who wait.
    listed: Mutex<Option<Listed>>,
}

/// What an endpoint offers: ids and names.
type Models = Vec<(String, String)>;

/// A list of models, and until when it is good.
struct Listed {
    models: Models,
    until: Instant,
}

impl Catalog {
    pub(crate) fn new(routes: Vec<Route>) -> Result<Self, EndpointError> {
        let entry = |route: Route| {
            let client = Client::new(route.endpoint.clone())?;
            Ok(Entry { route, client, listed: Mutex::new(None) })
        };
        let entries = routes.into_iter().map(entry).collect::<Result<_, EndpointError>>()?;
        Ok(Self { entries, learnt: std::sync::Mutex::default() })
    }

    /// What a session begins with, if anything is configured.
    pub(crate) fn default_choice(&self) -> Option<Choice> {
        self.entries.first().map(|entry| entry.choice(0))
    }

    pub(crate) fn route(&self, choice: &Choice) -> &Route {
        &self.entries[choice.route].route
    }

    pub(crate) fn client(&self, choice: &Choice) -> &Client {
        &self.entries[choice.route].client
    }

    pub(crate) fn traits(&self, choice: &Choice) -> ModelTraits {
        self.client(choice).traits_of(&choice.model)
    }

    /// Whether the endpoint is still to be asked about this model. Whoever asks this first is told to.
    pub(crate) fn to_be_learnt(&self, choice: &Choice, stage: Stage) -> bool {
        let loads = matches!(self.client(choice).provider(), Provider::Ollama | Provider::LmStudio);
        if stage == Stage::Answered && !loads {
            return false;
        }
        // A set is as it should be whatever happened to whoever held it.
        let mut learnt = lock(&self.learnt);
        learnt.len() < MOST && learnt.insert((choice.route, choice.model.clone(), stage))
    }

    /// The id under which clients know the model of `choice`.
    pub(crate) fn id(&self, choice: &Choice) -> String {
        self.public_id(choice.route, &choice.model)
    }

    /// The models of the first endpoint go by their own names, those of the others have its name in front.
    fn public_id(&self, route: usize, model: &str) -> String {
        if route == 0 {
            return model.to_owned();
        }
        format!("{}/{model}", self.entries[route].route.endpoint.name)
    }

    /// The name of the endpoint that `choice` uses.
    pub(crate) fn endpoint(&self, choice: &Choice) -> &str {
        &self.route(choice).endpoint.name
    }

    /// The choice of `model`, or of what is configured there, at the endpoint of this name, if that is still there.
    /// Whether the model is, only it can tell.
    pub(crate) fn recall(
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

    /// What can be chosen, `current` among it whatever the endpoints say.
    pub(crate) async fn offers(&self, current: &Choice) -> Vec<Offer> {
        let deadline = Instant::now() + PATIENCE;
        // All at once: one after the other they would add up.
        let lists = join_all(self.entries.iter().map(|entry| entry.models(deadline))).await;
        let mut offers = Vec::new();
        // An id stands for one model: the first, as when one of it is chosen.
        let mut known = HashSet::new();
        for (route, models) in lists.into_iter().enumerate() {
            let configured = &self.entries[route].route.model;
            let mut chosen: Vec<&str> = vec![configured];
            if route == current.route && current.model != *configured {
                chosen.push(&current.model);
            }
            let listed = |id: &str| models.iter().any(|(model, _)| model == id);
            let missing =
                chosen.into_iter().filter(|id| !listed(id)).map(|id| (id.to_owned(), id.to_owned()));
            for (model, name) in missing.chain(models.clone()) {
                let id = self.public_id(route, &model);
                // Menus show names, and two endpoints may have the same model.
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

    /// The choice that `offer` stands for, with as much of the thinking as its model allows.
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

    /// Ids and names, none if the endpoint does not tell in time.
    async fn models(&self, deadline: Instant) -> Models {
        let Ok(mut listed) = tokio::time::timeout_at(deadline, self.listed.lock()).await else {
            return Vec::new();
        };
        if let Some(Listed { models, until }) = &*listed
            && Instant::now() < *until
        {
            return models.clone();
        }
        let patience = deadline.saturating_duration_since(Instant::now());
        let (models, lasts) = match tokio::time::timeout(patience, self.client.models(patience)).await {
            Ok(Ok(models)) => {
                let usable = models.into_iter().filter(|model| !model.id.is_empty() && model.id != RESERVED);
                let pair = usable.map(|model| (model.id.clone(), model.name.unwrap_or(model.id)));
                (pair.take(MOST).collect(), FRESH)
            }
            Ok(Err(error)) => {
                tracing::info!(endpoint = self.route.endpoint.name, %error, "no list of models");
                (Vec::new(), SPARED)
            }
            Err(_) => {
                tracing::info!(endpoint = self.route.endpoint.name, "no list of models in time");
                (Vec::new(), SPARED)
            }
        };
        *listed = Some(Listed { models: models.clone(), until: Instant::now() + lasts });
        models
    }
}
