//! Permission requests.

use narrows_acp::permission::selected_option;
use narrows_acp::{Version, method, v1};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::encode;
use crate::script::step::{Ask, Choice};
use crate::step_runner::{StepResult, StepRunner};

impl StepRunner {
    /// Requests permission, and runs the steps of the chosen option.
    pub(crate) async fn ask_permission(&mut self, ask: &Ask) -> StepResult {
        let version = self.agent.version();
        let params = self.permission_params(version, ask);
        if version == Version::V2 {
            self.send_update(encode::state("requires_action")).await?;
        }
        let answer = self.call(method::SESSION_REQUEST_PERMISSION, &params).await?;
        if version == Version::V2 {
            self.send_update(encode::state("running")).await?;
        }
        let offered: Vec<v1::PermissionOption> = ask.options.iter().filter_map(to_option).collect();
        let answer = answer.and_then(|answer| to_raw_value(&answer).map_err(|error| error.to_string()));
        let chosen = match &answer {
            Ok(answer) => selected_option(answer, &offered)
                .and_then(|chosen| ask.options.iter().find(|choice| *choice.id == *chosen.option_id.0)),
            Err(_) => None,
        };
        self.values.last = match (chosen, answer) {
            (Some(choice), _) => choice.id.clone(),
            (None, Ok(_)) => "cancelled".to_owned(),
            (None, Err(error)) => error,
        };
        let allowed = chosen.is_some_and(|choice| choice.kind.starts_with("allow"));
        self.run_steps(if allowed { &ask.on_allow } else { &ask.on_reject }).await
    }

    fn permission_params(&self, version: Version, ask: &Ask) -> Value {
        let title = self.values.fill(&ask.title);
        let options: Vec<Value> = ask
            .options
            .iter()
            .map(|choice| json!({"optionId": choice.id, "name": choice.name, "kind": choice.kind}))
            .collect();
        let tool = ask.tool.as_ref().map(|tool| self.values.fill(tool));
        match version {
            Version::V1 => json!({
                "sessionId": self.values.session,
                // Version 1 requires a tool call, so a request without one gets an invented call.
                "toolCall": {"toolCallId": tool.unwrap_or_else(|| "permission".to_owned()), "title": title},
                "options": options,
            }),
            Version::V2 => {
                let mut params =
                    json!({"sessionId": self.values.session, "title": title, "options": options});
                if let Some(tool) = tool {
                    params["subject"] = json!({"type": "tool_call", "toolCall": {"toolCallId": tool}});
                }
                params
            }
        }
    }
}

fn to_option(choice: &Choice) -> Option<v1::PermissionOption> {
    let kind = serde_json::from_value(json!(choice.kind)).ok()?;
    Some(v1::PermissionOption::new(choice.id.clone(), choice.name.clone(), kind))
}
