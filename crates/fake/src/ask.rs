//! Requests for permission.

use narrows_acp::permission::selected_option;
use narrows_acp::{Version, method, v1};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::dialect;
use crate::player::{Flow, Player};
use crate::script::step::{Ask, Choice};

impl Player {
    /// Asks for permission, and goes on as it is given or not.
    pub(crate) async fn ask(&mut self, ask: &Ask) -> Flow {
        let version = self.agent.version();
        let params = self.permission(version, ask);
        if version == Version::V2 {
            self.tell(dialect::state("requires_action")).await?;
        }
        let answer = self.call(method::SESSION_REQUEST_PERMISSION, &params).await?;
        if version == Version::V2 {
            self.tell(dialect::state("running")).await?;
        }
        let offered: Vec<v1::PermissionOption> = ask.options.iter().filter_map(option).collect();
        let answer = answer.and_then(|answer| to_raw_value(&answer).map_err(|error| error.to_string()));
        let chosen = match &answer {
            Ok(answer) => selected_option(answer, &offered)
                .and_then(|chosen| ask.options.iter().find(|choice| *choice.id == *chosen.option_id.0)),
            Err(_) => None,
        };
        self.facts.last = match (chosen, answer) {
            (Some(choice), _) => choice.id.clone(),
            (None, Ok(_)) => "cancelled".to_owned(),
            (None, Err(error)) => error,
        };
        let allowed = chosen.is_some_and(|choice| choice.kind.starts_with("allow"));
        self.play(if allowed { &ask.on_allow } else { &ask.on_reject }).await
    }

    fn permission(&self, version: Version, ask: &Ask) -> Value {
        let title = self.facts.fill(&ask.title);
        let options: Vec<Value> = ask
            .options
            .iter()
            .map(|choice| json!({"optionId": choice.id, "name": choice.name, "kind": choice.kind}))
            .collect();
        let tool = ask.tool.as_ref().map(|tool| self.facts.fill(tool));
        match version {
            Version::V1 => json!({
                "sessionId": self.facts.session,
                // There is no asking without a tool call here, so one is made up.
                "toolCall": {"toolCallId": tool.unwrap_or_else(|| "permission".to_owned()), "title": title},
                "options": options,
            }),
            Version::V2 => {
                let mut params = json!({"sessionId": self.facts.session, "title": title, "options": options});
                if let Some(tool) = tool {
                    params["subject"] = json!({"type": "tool_call", "toolCall": {"toolCallId": tool}});
                }
                params
            }
        }
    }
}

/// The choice in the form that the reader of answers wants.
fn option(choice: &Choice) -> Option<v1::PermissionOption> {
    let kind = serde_json::from_value(json!(choice.kind)).ok()?;
    Some(v1::PermissionOption::new(choice.id.clone(), choice.name.clone(), kind))
}
