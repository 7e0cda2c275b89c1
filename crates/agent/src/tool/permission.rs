//! Asks the user for permission to run a call.

use std::time::Duration;

use narrows_acp::method::SESSION_REQUEST_PERMISSION;
use narrows_acp::permission::{Offered, approved_option};
use narrows_acp::{Version, v1, v2};
use narrows_rpc::CallError;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::encode_update;
use crate::transcript::ToolCall;
use crate::turn::Turn;
use crate::update_writer::Disconnected;

/// Time for the user to decide. After this time, the call is denied.
pub(super) const PERMISSION_TIMEOUT: Duration = Duration::from_secs(3600);

const ALLOW_ONCE_ID: &str = "allow_once";
const ALLOW_SESSION_ID: &str = "allow_session";
const REJECT_ID: &str = "reject_once";

/// Scope of a permission for the whole session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PermissionScope {
    /// Key under which the session remembers the permission.
    pub(super) key: String,
    /// Description of the scope, as the words after "Allow" in a button. `None` offers no permission for the
    /// session, because the user does not see everything that it would allow.
    pub(super) scope: Option<String>,
}

impl Turn {
    /// Asks the user about a call. Returns `true` only for a clear approval.
    pub(super) async fn ask_permission(
        &self,
        call: &ToolCall,
        grant: &PermissionScope,
    ) -> Result<bool, Disconnected> {
        if self.session.state().grants.contains(&grant.key) {
            return Ok(true);
        }
        let version = self.updates.version();
        self.updates.send_state("requires_action").await?;
        let for_session = grant.scope.as_ref().map(|scope| {
            json!({"optionId": ALLOW_SESSION_ID, "name": format!("Allow {scope} for this session"), "kind": "allow_always"})
        });
        let options: Value = [json!({"optionId": ALLOW_ONCE_ID, "name": "Allow once", "kind": "allow_once"})]
            .into_iter()
            .chain(for_session)
            .chain([json!({"optionId": REJECT_ID, "name": "Reject", "kind": "reject_once"})])
            .collect();
        let fields = Value::Object(encode_update::tool_call_fields(version, call));
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
            self.peer.request(SESSION_REQUEST_PERMISSION, &params, PERMISSION_TIMEOUT).await;
        let chosen = match asked {
            Ok(answer) => match version {
                Version::V1 => chosen_option_id::<v1::PermissionOption>(&answer, &options),
                Version::V2 => chosen_option_id::<v2::PermissionOption>(&answer, &options),
            },
            Err(CallError::Lost { .. }) => return Err(Disconnected),
            Err(error) => {
                tracing::warn!(%error, "permission request failed");
                None
            }
        };
        self.updates.send_state("running").await?;
        if chosen.as_deref() == Some(ALLOW_SESSION_ID) {
            self.session.state().grants.insert(grant.key.clone());
        }
        Ok(chosen.is_some())
    }
}

/// Returns the id of the chosen option if the option allows the call.
fn chosen_option_id<O: Offered + serde::de::DeserializeOwned>(
    answer: &RawValue,
    options: &Value,
) -> Option<String> {
    let options: Vec<O> = serde_json::from_value(options.clone()).ok()?;
    approved_option(answer, &options).map(|option| option.id().to_owned())
}
