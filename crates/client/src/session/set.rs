//! Sets a model, a mode or another option of a session, by the method that the agent offers.

use std::sync::Mutex;

use narrows_acp::method::{SESSION_SET_CONFIG_OPTION, SESSION_SET_MODE, SESSION_SET_MODEL};
use serde_json::{Value, json};

use super::locked;
use crate::runtime::Shared;
use crate::snapshot::Snapshot;

/// Sets the option of this category to the value with this id or name. Returns the reason if that fails.
pub(super) async fn try_set(
    shared: &Shared,
    session: &str,
    snapshot: &Mutex<Snapshot>,
    category: &str,
    wanted: &str,
) -> Result<(), String> {
    let (method, params, note) = setting_request(session, &locked(snapshot), category, wanted)?;
    let limit = shared.agent.deadlines.small;
    let answer: Result<Value, _> = shared.peer.request(method, &params, limit).await;
    let answer = answer.map_err(|error| refusal(&error))?;
    let mut snapshot = locked(snapshot);
    snapshot.opened(&answer);
    note(&mut snapshot);
    // Some agents confirm a change without making it, so the reported value is compared.
    match snapshot.option(category).map(|option| option.current.clone()) {
        Some(current) if params.get("value").is_some_and(|value| *value != current) => {
            Err(format!("the agent kept {current}"))
        }
        _ => Ok(()),
    }
}

/// Returns the method and params for the form of settings that the agent supports, and the change that
/// success makes to the snapshot.
#[expect(clippy::type_complexity, reason = "three things, used once")]
fn setting_request(
    session: &str,
    snapshot: &Snapshot,
    category: &str,
    wanted: &str,
) -> Result<(&'static str, Value, Box<dyn FnOnce(&mut Snapshot) + Send>), String> {
    if let Some(option) = snapshot.option(category) {
        let known = || first_names(option.values.iter().map(|value| value.id.as_str()));
        let value =
            option.value(wanted).ok_or_else(|| format!("unknown {category}; available: {}", known()))?;
        let params = json!({"sessionId": session, "configId": option.id, "value": value.id});
        return Ok((SESSION_SET_CONFIG_OPTION, params, Box::new(|_| {})));
    }
    let (older, method, key): (_, _, fn(&mut Snapshot) -> &mut Option<crate::snapshot::Selection>) =
        match category {
            "model" => (&snapshot.models, SESSION_SET_MODEL, |snapshot| &mut snapshot.models),
            "mode" => (&snapshot.modes, SESSION_SET_MODE, |snapshot| &mut snapshot.modes),
            _ => return Err(format!("the agent does not support choosing a {category}")),
        };
    let Some(choices) = older else {
        return Err(format!("the agent does not support choosing a {category}"));
    };
    let known = || first_names(choices.available.iter().map(|choice| choice.id.as_str()));
    let choice = choices.find(wanted).ok_or_else(|| format!("unknown {category}; available: {}", known()))?;
    let id = choice.id.clone();
    let params = match category {
        "model" => json!({"sessionId": session, "modelId": id}),
        _ => json!({"sessionId": session, "modeId": id}),
    };
    let note = move |snapshot: &mut Snapshot| {
        if let Some(choices) = key(snapshot) {
            choices.current = id;
        }
    };
    Ok((method, params, Box::new(note)))
}

/// Joins the first names, and the number of the others. Some agents have hundreds of models.
fn first_names<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let mut words = names.by_ref().take(10).collect::<Vec<_>>().join(", ");
    let more = names.count();
    if more > 0 {
        words.push_str(&format!(", … {more} more"));
    }
    words
}

/// Returns the reason of a rejection. Many agents put the reason into the error's details.
fn refusal(error: &narrows_rpc::CallError) -> String {
    if let narrows_rpc::CallError::Refused(error) = error
        && let Some(details) =
            error.data.as_ref().and_then(|data| data.get("details")).and_then(Value::as_str)
    {
        return format!("{}: {details}", error.message);
    }
    error.to_string()
}
