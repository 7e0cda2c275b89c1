//! Known state of a session: title, commands and options.
//!
//! Agents differ most in how to select a model. Answers and updates are read leniently, so that an invalid
//! field that is not needed does not fail the session.

use serde::Serialize;
use serde_json::Value;

/// State of a session, as far as the agent has reported it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Slash commands that a prompt may begin with.
    pub commands: Vec<Command>,
    /// Options (current form of settings).
    pub options: Vec<ConfigOption>,
    /// Modes (older form of settings).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modes: Option<Selection>,
    /// Models (older form of settings).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Selection>,
}

/// A slash command of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Name without the slash.
    pub name: String,
    pub description: String,
    /// Hint about the text that follows the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// An option of a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigOption {
    pub id: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    pub current: Value,
    /// Possible values; empty for a boolean.
    pub values: Vec<OptionValue>,
}

/// A setting in the older form: the current value and the possible values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Selection {
    pub current: String,
    pub available: Vec<OptionValue>,
}

/// A possible value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OptionValue {
    pub id: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl Snapshot {
    /// Reads the state of the session from the answer that opens the session.
    pub(crate) fn opened(&mut self, answer: &Value) {
        if let Some(options) = answer.get("configOptions") {
            self.options = options_of(options);
        }
        // In version 2, the answer contains the commands.
        if let Some(known) = answer.get("availableCommands").filter(|known| known.is_array()) {
            self.commands = commands(known);
        }
        if let Some(modes) = answer.get("modes").filter(|modes| modes.is_object()) {
            self.modes = Some(choices(modes, "currentModeId", "availableModes", "id"));
        }
        if let Some(models) = answer.get("models").filter(|models| models.is_object()) {
            self.models = Some(choices(models, "currentModelId", "availableModels", "modelId"));
        }
    }

    /// Applies an update. Returns `false` if the update changes nothing in the snapshot.
    pub(crate) fn updated(&mut self, update: &Value) -> bool {
        match update.get("sessionUpdate").and_then(Value::as_str) {
            Some("available_commands_update") => self.commands = commands(&update["availableCommands"]),
            Some("config_option_update") => self.options = options_of(&update["configOptions"]),
            Some("current_mode_update") => {
                let Some(mode) = text(update, "currentModeId") else { return true };
                // Some agents have the mode in both forms of settings, but update only one.
                let id = self.option("mode").map(|option| option.id.clone());
                if let Some(option) = self.options.iter_mut().find(|option| Some(&option.id) == id.as_ref()) {
                    option.current = mode.clone().into();
                }
                if let Some(modes) = &mut self.modes {
                    modes.current = mode;
                }
            }
            Some("session_info_update") => match update.get("title") {
                Some(Value::String(title)) => self.title = Some(title.clone()),
                Some(Value::Null) => self.title = None,
                _ => {}
            },
            _ => return false,
        }
        true
    }

    /// Returns the option of this category.
    #[must_use]
    pub fn option(&self, category: &str) -> Option<&ConfigOption> {
        let is = |option: &&ConfigOption| option.category.as_deref() == Some(category);
        // If the agent reports no categories, the option's name is compared.
        self.options
            .iter()
            .find(is)
            .or_else(|| self.options.iter().find(|option| option.category.is_none() && option.id == category))
    }
}

impl ConfigOption {
    /// Returns the value with the id `wanted`, or with that name in any case.
    #[must_use]
    pub fn value(&self, wanted: &str) -> Option<&OptionValue> {
        find(&self.values, wanted)
    }
}

impl Selection {
    /// Returns the value with the id `wanted`, or with that name in any case.
    #[must_use]
    pub fn find(&self, wanted: &str) -> Option<&OptionValue> {
        find(&self.available, wanted)
    }
}

fn find<'a>(all: &'a [OptionValue], wanted: &str) -> Option<&'a OptionValue> {
    let named = |choice: &&OptionValue| choice.name.eq_ignore_ascii_case(wanted);
    all.iter().find(|choice| choice.id == wanted).or_else(|| all.iter().find(named))
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn commands(value: &Value) -> Vec<Command> {
    let command = |value: &Value| {
        Some(Command {
            name: text(value, "name")?,
            description: text(value, "description").unwrap_or_default(),
            hint: value.get("input").and_then(|input| text(input, "hint")),
        })
    };
    list(value).iter().filter_map(command).collect()
}

fn choice(value: &Value, key: &str) -> Option<OptionValue> {
    let id = text(value, key)?;
    let name = text(value, "name").unwrap_or_else(|| id.clone());
    Some(OptionValue { id, name, description: text(value, "description") })
}

fn choices(value: &Value, current: &str, available: &str, id: &str) -> Selection {
    let all = value.get(available).map_or(&[][..], list);
    Selection {
        current: text(value, current).unwrap_or_default(),
        available: all.iter().filter_map(|value| choice(value, id)).collect(),
    }
}

fn options_of(value: &Value) -> Vec<ConfigOption> {
    let option = |value: &Value| {
        // In version 2, the id is called `configId`.
        let id = text(value, "id").or_else(|| text(value, "configId"))?;
        let mut values = Vec::new();
        for entry in value.get("options").map_or(&[][..], list) {
            // An entry with `options` is a group of values.
            match entry.get("options") {
                Some(inner) => values.extend(list(inner).iter().filter_map(|value| choice(value, "value"))),
                None => values.extend(choice(entry, "value")),
            }
        }
        Some(ConfigOption {
            name: text(value, "name").unwrap_or_else(|| id.clone()),
            id,
            category: text(value, "category"),
            current: value.get("currentValue").cloned().unwrap_or_default(),
            values,
        })
    };
    list(value).iter().filter_map(option).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_read_flat_and_in_groups() {
        let mut snapshot = Snapshot::default();
        snapshot.opened(&json!({"configOptions": [
            {"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "a",
             "options": [{"value": "a", "name": "Model A"}, {"value": "b", "name": "Model B", "description": "new"}]},
            {"id": "effort", "name": "Effort", "category": "thought_level", "type": "select", "currentValue": "low",
             "options": [{"group": "g", "name": "G", "options": [{"value": "low"}, {"value": "high"}]}]},
            {"configId": "fast", "name": "Fast", "type": "boolean", "currentValue": true},
            {"name": "nothing to call it by"},
        ]}));
        let model = snapshot.option("model").expect("an option");
        for (wanted, expected) in [("b", Some("b")), ("model a", Some("a")), ("c", None)] {
            assert_eq!(model.value(wanted).map(|choice| choice.id.as_str()), expected, "{wanted}");
        }
        let effort = snapshot.option("thought_level").expect("an option");
        assert_eq!(effort.values.len(), 2);
        assert_eq!(snapshot.option("fast").map(|option| &option.current), Some(&json!(true)));
        assert_eq!(snapshot.options.len(), 3);
    }

    #[test]
    fn older_forms_of_options_are_read() {
        let mut snapshot = Snapshot::default();
        snapshot.opened(&json!({
            "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "code"}]},
            "models": {"currentModelId": "x", "availableModels": [{"modelId": "x", "name": "X"}]},
            "availableCommands": [{"name": "plan", "description": "Make a plan"}],
        }));
        assert_eq!(snapshot.commands.len(), 1);
        let modes = snapshot.modes.clone().expect("modes");
        assert_eq!((modes.current.as_str(), modes.available.len()), ("ask", 2));
        assert_eq!(
            snapshot.models.as_ref().and_then(|models| models.find("x")).map(|model| &*model.name),
            Some("X")
        );
        assert!(snapshot.updated(&json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"})));
        assert_eq!(snapshot.modes.map(|modes| modes.current), Some("code".to_owned()));
    }

    #[test]
    fn updates_change_only_the_named_options() {
        let mut snapshot = Snapshot::default();
        for (update, known) in [
            (json!({"sessionUpdate": "session_info_update", "title": "T"}), true),
            (json!({"sessionUpdate": "session_info_update", "updatedAt": "now"}), true),
            (
                json!({"sessionUpdate": "available_commands_update", "availableCommands": [
                    {"name": "plan", "description": "Make a plan", "input": {"hint": "what for"}}, {"no": "name"}]}),
                true,
            ),
            (json!({"sessionUpdate": "agent_message_chunk"}), false),
            (json!(7), false),
        ] {
            assert_eq!(snapshot.updated(&update), known, "{update}");
        }
        assert_eq!(snapshot.title.as_deref(), Some("T"));
        let command =
            Command { name: "plan".into(), description: "Make a plan".into(), hint: Some("what for".into()) };
        assert_eq!(snapshot.commands, [command]);
        assert!(snapshot.updated(&json!({"sessionUpdate": "session_info_update", "title": null})));
        assert_eq!(snapshot.title, None);
    }
}
