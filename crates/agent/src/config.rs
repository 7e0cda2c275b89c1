//! What a user can choose in a session: the model, and how much it is to think.

use narrows_acp::Version;
use narrows_model::Effort;
use narrows_wire::RpcError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::catalog::{Catalog, Choice, Offer};
use crate::read::invalid;

/// The option that chooses the model.
pub(crate) const MODEL: &str = "model";

/// The option that chooses how much the model thinks.
pub(crate) const THOUGHT: &str = "thought_level";

/// The value that leaves the thinking to the endpoint.
const AUTO: &str = "auto";

/// The model that is named while no endpoint is configured.
const NOMINAL: &str = "gpt-4o";

/// What is stored of a session's settings.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Stored {
    /// The name of the endpoint it is held with.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// Where that is: an endpoint that is elsewhere now is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// The model as the endpoint calls it, if somebody has chosen it. What nobody has chosen is what the settings say,
    /// also when they have changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<Effort>,
}

/// What is stored of `choice`; `chosen` if somebody has made it.
pub(crate) fn store(catalog: &Catalog, choice: Option<&Choice>, chosen: bool) -> String {
    let made = choice.filter(|_| chosen);
    let stored = Stored {
        endpoint: choice.map(|choice| catalog.endpoint(choice).to_owned()),
        url: choice.map(|choice| catalog.route(choice).endpoint.base_url.clone()),
        model: made.map(|choice| choice.model.clone()),
        effort: made.and_then(|choice| choice.effort),
    };
    // Strings always can be written.
    serde_json::to_string(&stored).unwrap_or_default()
}

/// The choice that was stored, or the default; and what the user should know if the conversation goes to another
/// endpoint than before.
pub(crate) fn recall(catalog: &Catalog, settings: &str) -> (Option<Choice>, Option<String>) {
    let stored: Stored = serde_json::from_str(settings).unwrap_or_default();
    let (Some(endpoint), Some(url)) = (stored.endpoint, stored.url) else {
        return (catalog.default_choice(), None);
    };
    let same = |choice: &Choice| catalog.route(choice).endpoint.base_url == url;
    match catalog.recall(&endpoint, stored.model, stored.effort).filter(same) {
        Some(choice) => (Some(choice), None),
        None => {
            let choice = catalog.default_choice();
            let now = choice.as_ref().map(|choice| catalog.route(choice).endpoint.base_url.as_str());
            let told = now.filter(|now| *now != url).map(|now| {
                format!("This session was held with {url}, which is not configured any more; {now} gets it from now on.")
            });
            (choice, told)
        }
    }
}

/// All options as they stand.
pub(crate) fn options(version: Version, catalog: &Catalog, choice: &Choice, offers: &[Offer]) -> Vec<Value> {
    let models: Vec<Value> =
        offers.iter().map(|offer| json!({"value": offer.id, "name": offer.name})).collect();
    let mut options =
        vec![select(version, MODEL, "Model", "The model that answers", &catalog.id(choice), &models)];
    let efforts = catalog.traits(choice).efforts;
    if !efforts.is_empty() {
        let mut levels = vec![json!({"value": AUTO, "name": "Automatic"})];
        levels.extend(efforts.iter().map(|effort| json!({"value": effort.name(), "name": title(*effort)})));
        let current = choice.effort.filter(|effort| efforts.contains(effort)).map_or(AUTO, Effort::name);
        options.push(select(
            version,
            THOUGHT,
            "Thinking",
            "How much the model thinks before it answers",
            current,
            &levels,
        ));
    }
    options
}

fn title(effort: Effort) -> &'static str {
    match effort {
        Effort::Minimal => "Minimal",
        Effort::Low => "Low",
        Effort::Medium => "Medium",
        Effort::High => "High",
    }
}

/// An option with a flat list of values: some clients do not see grouped ones.
fn select(
    version: Version,
    id: &str,
    name: &str,
    description: &str,
    current: &str,
    values: &[Value],
) -> Value {
    let key = if version == Version::V1 { "id" } else { "configId" };
    json!({
        key: id,
        "name": name,
        "description": description,
        "category": id,
        "type": "select",
        "currentValue": current,
        "options": values,
    })
}

/// What is told of the model when no endpoint is configured: the one that would be asked if only its key were there.
pub(crate) fn unconfigured(version: Version, result: &mut Value) {
    let models = [json!({"value": NOMINAL, "name": NOMINAL})];
    let option = select(version, MODEL, "Model", "The model that answers", NOMINAL, &models);
    result["configOptions"] = json!([option]);
    if version == Version::V1 {
        let models = json!([{"modelId": NOMINAL, "name": NOMINAL}]);
        result["models"] = json!({"currentModelId": NOMINAL, "availableModels": models});
    }
}

/// The models in the form that older clients of version 1 read.
pub(crate) fn legacy_models(catalog: &Catalog, choice: &Choice, offers: &[Offer]) -> Value {
    let models: Vec<Value> =
        offers.iter().map(|offer| json!({"modelId": offer.id, "name": offer.name})).collect();
    json!({"currentModelId": catalog.id(choice), "availableModels": models})
}

/// The choice with the option `id` set to `value`; `field` is where the value stood.
pub(crate) fn set(
    catalog: &Catalog,
    choice: &Choice,
    offers: &[Offer],
    id: &str,
    value: &Value,
    field: &str,
) -> Result<Choice, RpcError> {
    let Value::String(value) = value else { return Err(invalid(field, "must be a string")) };
    match id {
        MODEL => {
            let offer = offers.iter().find(|offer| offer.id == *value);
            let offer = offer.ok_or_else(|| invalid(field, "names a model that is not offered"))?;
            Ok(catalog.choose(offer, choice.effort))
        }
        THOUGHT => {
            let effort = match value.as_str() {
                AUTO => None,
                name => {
                    let known = Effort::from_name(name);
                    let effort = known.filter(|effort| catalog.traits(choice).efforts.contains(effort));
                    Some(effort.ok_or_else(|| invalid(field, "names a level that is not offered"))?)
                }
            };
            Ok(Choice { effort, ..choice.clone() })
        }
        _ => Err(invalid("configId", "names an option that is not offered")),
    }
}
