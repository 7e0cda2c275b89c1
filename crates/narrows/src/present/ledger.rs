//! What the agent asked for, and what of it was refused.

use std::collections::HashMap;

use narrows_acp::method::SESSION_REQUEST_PERMISSION;
use narrows_client::{Json, Payload, PermissionResolved};
use serde_json::Value;

use crate::terminal::line;

/// How many questions that were not settled, and how many refusals, are remembered.
const MOST: usize = 64;

/// Who has refused what had to be approved by others.
pub(crate) const GATE: &str = "gate";

/// Who has refused what was asked here: the person at the terminal, or the program that answers.
pub(crate) const ANSWER: &str = "answer";

/// Something that was refused.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Refusal {
    /// What the agent wanted, in its words, safe to show.
    pub(crate) wanted: String,
    /// Why it was refused, safe to show.
    pub(crate) words: String,
    /// Who refused it.
    pub(crate) by: String,
    /// What the rules said, as events have it; null where they were not asked.
    pub(crate) because: Value,
    /// The MCP server and its tool, if it was a call of one that runs here.
    pub(crate) mcp: Option<(String, String)>,
    /// The agent asked for permission, so it is not known who would do it.
    pub(crate) is_asked_first: bool,
}

/// Something that is not settled.
#[derive(Debug, Default)]
struct Wanted {
    title: String,
    mcp: Option<(String, String)>,
    is_asked_first: bool,
}

/// What was asked, and what was refused.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// What is not settled, by id.
    asked: HashMap<String, Wanted>,
    /// What was refused, by whomever. What was given up with the turn is none of it.
    denied: Vec<Refusal>,
}

impl Ledger {
    /// Whether something is not settled.
    pub(super) fn is_open(&self) -> bool {
        !self.asked.is_empty()
    }

    /// What was refused: by the rules, by whoever was asked, or because nobody could be.
    pub(super) fn denied(&self) -> &[Refusal] {
        &self.denied
    }

    /// Takes note of what was asked and how it was settled. What was refused is told.
    pub(super) fn note(&mut self, payload: &Payload) -> Option<Refusal> {
        match payload {
            Payload::PermissionRequested(asked) => {
                let title = asked.title.clone().or_else(|| asked.tool_name.clone()).unwrap_or_default();
                let mcp = asked.server.as_deref().zip(asked.server_tool.as_deref());
                let mcp = mcp.map(|(server, tool)| (line(server), line(tool)));
                let is_asked_first = asked.method == SESSION_REQUEST_PERMISSION;
                if self.asked.len() < MOST {
                    self.asked.insert(asked.request_id.clone(), Wanted { title, mcp, is_asked_first });
                }
                None
            }
            Payload::PermissionResolved(resolved) => {
                let wanted = self.asked.remove(&resolved.request_id).unwrap_or_default();
                let refusal = refusal(resolved, wanted)?;
                let is_meant = !matches!(refusal.by.as_str(), "" | "cancelled");
                if is_meant && self.denied.len() < MOST {
                    self.denied.push(refusal.clone());
                }
                Some(refusal)
            }
            // What is told of it says so itself.
            Payload::Other { name, data } if name == "approval" => {
                let told = data.value();
                let text = |key: &str| line(told[key].as_str().unwrap_or_default());
                if text("state") == "refused" && self.denied.len() < MOST {
                    let (wanted, words) = (text("tool"), text("reason"));
                    let by = GATE.to_owned();
                    self.denied.push(Refusal { wanted, words, by, ..Refusal::default() });
                }
                None
            }
            _ => None,
        }
    }
}

/// Why something was refused, if it was.
fn refusal(resolved: &PermissionResolved, wanted: Wanted) -> Option<Refusal> {
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
        ANSWER => "you said no".to_owned(),
        "timed out" => "nobody answered in time".to_owned(),
        "nobody to ask" => {
            format!("nobody can be asked; {}", line(said.strip_prefix("ask: ").unwrap_or(said)))
        }
        "" => line(&resolved.outcome),
        by => line(by),
    };
    let because = decision["because"].clone();
    let Wanted { title, mcp, is_asked_first } = wanted;
    Some(Refusal { wanted: line(&title), words, by: by.to_owned(), because, mcp, is_asked_first })
}
