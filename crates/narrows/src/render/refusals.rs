//! Tracks permission requests and denials of a turn.

use std::collections::HashMap;

use narrows_acp::method::SESSION_REQUEST_PERMISSION;
use narrows_client::{Json, Payload, PermissionResolved};
use serde_json::Value;

use crate::terminal::line;

/// Maximum number of tracked requests, and of tracked denials.
const MAX_TRACKED: usize = 64;

/// The value of `by` for a request that the approvers of a gate denied.
pub(crate) const BY_GATE: &str = "gate";

/// The value of `by` for a request that the user, or the program that answers requests, denied.
pub(crate) const BY_ANSWER: &str = "answer";

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Refusal {
    /// The request as the agent describes it, escaped.
    pub(crate) wanted: String,
    pub(crate) words: String,
    pub(crate) by: String,
    /// The decision of the rules, in the format of events. Null if the rules were not evaluated.
    pub(crate) because: Value,
    /// Server and tool of an MCP call that narrows would have run.
    pub(crate) mcp: Option<(String, String)>,
    /// `true` if the agent asked for permission. It is then unknown which program would have run the action.
    pub(crate) is_asked_first: bool,
}

#[derive(Debug, Default)]
struct OpenRequest {
    title: String,
    mcp: Option<(String, String)>,
    is_asked_first: bool,
}

#[derive(Debug, Default)]
pub(super) struct RefusalTracker {
    open: HashMap<String, OpenRequest>,
    /// Denied requests, except for those cancelled with the turn.
    denied: Vec<Refusal>,
}

impl RefusalTracker {
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns the requests that were denied by a rule or by an approver, or because there was no approver.
    pub(super) fn denied(&self) -> &[Refusal] {
        &self.denied
    }

    /// Records requests and their answers. Returns a denial to show, if there is one.
    pub(super) fn record(&mut self, payload: &Payload) -> Option<Refusal> {
        match payload {
            Payload::PermissionRequested(open) => {
                let title = open.title.clone().or_else(|| open.tool_name.clone()).unwrap_or_default();
                let mcp = open.server.as_deref().zip(open.server_tool.as_deref());
                let mcp = mcp.map(|(server, tool)| (line(server), line(tool)));
                let is_asked_first = open.method == SESSION_REQUEST_PERMISSION;
                if self.open.len() < MAX_TRACKED {
                    self.open.insert(open.request_id.clone(), OpenRequest { title, mcp, is_asked_first });
                }
                None
            }
            Payload::PermissionResolved(resolved) => {
                let wanted = self.open.remove(&resolved.request_id).unwrap_or_default();
                let refusal = denied_request(resolved, wanted)?;
                let is_meant = !matches!(refusal.by.as_str(), "" | "cancelled");
                if is_meant && self.denied.len() < MAX_TRACKED {
                    self.denied.push(refusal.clone());
                }
                Some(refusal)
            }
            // The text of the notice names its source.
            Payload::Other { name, data } if name == "approval" => {
                let told = data.value();
                let text = |key: &str| line(told[key].as_str().unwrap_or_default());
                if text("state") == "refused" && self.denied.len() < MAX_TRACKED {
                    let (wanted, words) = (text("tool"), text("reason"));
                    let by = BY_GATE.to_owned();
                    self.denied.push(Refusal { wanted, words, by, ..Refusal::default() });
                }
                None
            }
            _ => None,
        }
    }
}

fn denied_request(resolved: &PermissionResolved, wanted: OpenRequest) -> Option<Refusal> {
    let is_allowed = resolved.outcome == "allowed"
        || resolved.option_kind.as_deref().is_some_and(|kind| kind.starts_with("allow"));
    if is_allowed {
        return None;
    }
    let decision = resolved.decision.as_ref().map(Json::value).unwrap_or_default();
    let by = decision["by"].as_str().unwrap_or_default();
    let said = decision["words"].as_str().unwrap_or_default();
    let words = match by {
        "policy" => line(said),
        BY_ANSWER => "by you".to_owned(),
        "timed out" => "no answer in time".to_owned(),
        "nobody to ask" => {
            format!("cannot ask for permission; {}", line(said.strip_prefix("ask: ").unwrap_or(said)))
        }
        "" => line(&resolved.outcome),
        by => line(by),
    };
    let because = decision["because"].clone();
    let OpenRequest { title, mcp, is_asked_first } = wanted;
    Some(Refusal { wanted: line(&title), words, by: by.to_owned(), because, mcp, is_asked_first })
}
