//! Asking the user whether a call may run.

use std::time::Duration;

use narrows_acp::method::SESSION_REQUEST_PERMISSION;
use narrows_acp::permission::{Offered, approved_option};
use narrows_acp::{Version, v1, v2};
use narrows_rpc::CallError;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::dialect;
use crate::shown::ToolCall;
use crate::turn::Turn;
use crate::voice::Gone;

/// How long a user may take to decide. After that the answer is no.
pub(super) const PATIENCE: Duration = Duration::from_secs(3600);

const ONCE: &str = "allow_once";
const SESSION: &str = "allow_session";
const REJECT: &str = "reject_once";

/// What a user is asked to allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// What an answer for the whole session is remembered by.
    pub(super) key: String,
    /// What such an answer covers, in words that go after "Allow". Without it there is no such answer, because the user is
    /// not shown all that it would cover.
    pub(super) scope: Option<String>,
}

impl Turn {
    /// Whether the user allows a call. Whatever is not clearly a yes is a no.
    pub(super) async fn allowed(&self, call: &ToolCall, grant: &Grant) -> Result<bool, Gone> {
        if self.session.state().grants.contains(&grant.key) {
            return Ok(true);
        }
        let version = self.voice.version();
        self.voice.state("requires_action").await?;
        let for_session = grant.scope.as_ref().map(|scope| {
            json!({"optionId": SESSION, "name": format!("Allow {scope} for this session"), "kind": "allow_always"})
        });
        let options: Value = [json!({"optionId": ONCE, "name": "Allow once", "kind": "allow_once"})]
            .into_iter()
            .chain(for_session)
            .chain([json!({"optionId": REJECT, "name": "Reject", "kind": "reject_once"})])
            .collect();
        let fields = Value::Object(dialect::tool_call_fields(version, call));
        let params = match version {
            Version::V1 => json!({"sessionId": &*self.session.id, "toolCall": fields, "options": options}),
            Version::V2 => json!({
                "sessionId": &*self.session.id,
                "title": call.title,
                "subject": {"type": "tool_call", "toolCall": fields},
                "options": options,
            }),
        };
        let asked: Result<Box<RawValue>, _> =
            self.peer.request(SESSION_REQUEST_PERMISSION, &params, PATIENCE).await;
        let chosen = match asked {
            Ok(answer) => match version {
                Version::V1 => choice::<v1::PermissionOption>(&answer, &options),
                Version::V2 => choice::<v2::PermissionOption>(&answer, &options),
            },
            Err(CallError::Lost { .. }) => return Err(Gone),
            Err(error) => {
                tracing::warn!(%error, "a permission could not be asked for");
                None
            }
        };
        self.voice.state("running").await?;
        if chosen.as_deref() == Some(SESSION) {
            self.session.state().grants.insert(grant.key.clone());
        }
        Ok(chosen.is_some())
    }
}

/// The id of the option that allows, if one was chosen.
fn choice<O: Offered + serde::de::DeserializeOwned>(answer: &RawValue, options: &Value) -> Option<String> {
    let options: Vec<O> = serde_json::from_value(options.clone()).ok()?;
    approved_option(answer, &options).map(|option| option.id().to_owned())
}
