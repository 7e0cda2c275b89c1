//! Configuration options of a session: the model and its thinking effort.

use narrows_acp::Version;
use narrows_model::Effort;
use narrows_wire::RpcError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::catalog::{Catalog, Choice, Offer};
use crate::params::invalid;

pub(crate) const MODEL_OPTION: &str = "model";

pub(crate) const THOUGHT_OPTION: &str = "thought_level";

/// Value that leaves the thinking effort to the endpoint.
const AUTO_EFFORT: &str = "auto";

/// Model id that is shown while no endpoint is configured.
const PLACEHOLDER_MODEL: &str = "gpt-4o";

/// A session's model choice, in the stored form.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StoredChoice {
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// URL of the endpoint. With another URL, an endpoint of the same name is a different endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// Model that the user chose. If `None`, the session uses the configured model, even after the
    /// configuration changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<Effort>,
}

/// Serializes `choice`. `chosen` is `true` if the user has chosen the model.
pub(crate) fn serialize_choice(catalog: &Catalog, choice: Option<&Choice>, chosen: bool) -> String {
    let made = choice.filter(|_| chosen);
    let stored = StoredChoice {
        endpoint: choice.map(|choice| catalog.endpoint_name(choice).to_owned()),
        url: choice.map(|choice| catalog.route(choice).endpoint.base_url.clone()),
        model: made.map(|choice| choice.model.clone()),
        effort: made.and_then(|choice| choice.effort),
    };
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Returns the stored choice, or else the default. Also returns a warning if the conversation now goes to
/// another endpoint.
pub(crate) fn restore_choice(catalog: &Catalog, settings: &str) -> (Option<Choice>, Option<String>) {
    let stored: StoredChoice = serde_json::from_str(settings).unwrap_or_default();
    let (Some(endpoint), Some(url)) = (stored.endpoint, stored.url) else {
        return (catalog.default_choice(), None);
    };
    let same = |choice: &Choice| catalog.route(choice).endpoint.base_url == url;
    match catalog.restore_choice(&endpoint, stored.model, stored.effort).filter(same) {
        Some(choice) => (Some(choice), None),
        None => {
            let choice = catalog.default_choice();
            let now = choice.as_ref().map(|choice| catalog.route(choice).endpoint.base_url.as_str());
            let warning = now.filter(|now| *now != url).map(|now| {
                format!(
                    "This session used {url}, which is not configured any more; from now on it uses {now}."
                )
            });
            (choice, warning)
        }
    }
}

pub(crate) fn options(version: Version, catalog: &Catalog, choice: &Choice, offers: &[Offer]) -> Vec<Value> {
    let models: Vec<Value> =
        offers.iter().map(|offer| json!({"value": offer.id, "name": offer.name})).collect();
    let mut options = vec![select_option(
        version,
        MODEL_OPTION,
        "Model",
        "The model that answers",
        &catalog.model_id(choice),
        &models,
    )];
    let efforts = catalog.traits(choice).efforts;
    if !efforts.is_empty() {
        let mut levels = vec![json!({"value": AUTO_EFFORT, "name": "Automatic"})];
        levels.extend(
            efforts.iter().map(|effort| json!({"value": effort.name(), "name": effort_title(*effort)})),
        );
        let current =
            choice.effort.filter(|effort| efforts.contains(effort)).map_or(AUTO_EFFORT, Effort::name);
        options.push(select_option(
            version,
            THOUGHT_OPTION,
            "Thinking",
            "How much the model thinks before it answers",
            current,
            &levels,
        ));
    }
    options
}

fn effort_title(effort: Effort) -> &'static str {
    match effort {
        Effort::Minimal => "Minimal",
        Effort::Low => "Low",
        Effort::Medium => "Medium",
        Effort::High => "High",
    }
}

/// Returns an option with a flat list of values: some clients do not show grouped values.
fn select_option(
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

/// Adds a model option to `result` while no endpoint is configured. Its only value is the model that would be
/// used if a key were set.
pub(crate) fn add_placeholder_options(version: Version, result: &mut Value) {
    let models = [json!({"value": PLACEHOLDER_MODEL, "name": PLACEHOLDER_MODEL})];
    let option =
        select_option(version, MODEL_OPTION, "Model", "The model that answers", PLACEHOLDER_MODEL, &models);
    result["configOptions"] = json!([option]);
    if version == Version::V1 {
        let models = json!([{"modelId": PLACEHOLDER_MODEL, "name": PLACEHOLDER_MODEL}]);
        result["models"] = json!({"currentModelId": PLACEHOLDER_MODEL, "availableModels": models});
    }
}

/// Returns the models in the format that older clients of version 1 read.
pub(crate) fn legacy_models(catalog: &Catalog, choice: &Choice, offers: &[Offer]) -> Value {
    let models: Vec<Value> =
        offers.iter().map(|offer| json!({"modelId": offer.id, "name": offer.name})).collect();
    json!({"currentModelId": catalog.model_id(choice), "availableModels": models})
}

/// Returns `choice` with the option `id` set to `value`. An error names `field` as the invalid parameter.
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
        MODEL_OPTION => {
            let offer = offers.iter().find(|offer| offer.id == *value);
            let offer = offer.ok_or_else(|| invalid(field, "is not an offered model"))?;
            Ok(catalog.choose(offer, choice.effort))
        }
        THOUGHT_OPTION => {
            let effort = match value.as_str() {
                AUTO_EFFORT => None,
                name => {
                    let known = Effort::from_name(name);
                    let effort = known.filter(|effort| catalog.traits(choice).efforts.contains(effort));
                    Some(effort.ok_or_else(|| invalid(field, "is not an offered level"))?)
                }
            };
            Ok(Choice { effort, ..choice.clone() })
        }
        _ => Err(invalid("configId", "is not an offered option")),
    }
}
