//! The protocol of the admin socket: one line of JSON in each direction.

use std::collections::{HashMap, HashSet};

use narrows_audit::{Approval, jcs};
use narrows_govern::{ApprovalRequest, ApprovalSummary};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(super) const MAX_REQUEST_BYTES: u64 = 4 << 20;

/// Maximum size of a response. A tool input may be as long as a message, and gets longer when it is
/// serialized again.
pub(super) const MAX_RESPONSE_BYTES: u64 = 128 << 20;

/// Most actions of a list. Gates bound each of them.
const MAX_LISTED_ACTIONS: usize = 512;

/// Most bytes of an input in one line.
const MAX_SUMMARY_BYTES: usize = 4 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SocketRequest {
    List,
    Show(String),
    Approval(Box<Approval>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SocketResponse {
    Open(PendingList),
    /// The requested action, if it is still pending.
    Whole(Option<Box<PendingAction>>),
    Counted,
    Refused(String),
}

/// The pending actions of all gates.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingList {
    pub(super) actions: Vec<PendingActionSummary>,
    /// Number of pending actions that are not in the list.
    pub(super) omitted: usize,
}

/// An action that waits for approvals.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingAction {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) tool: String,
    pub(super) input: Value,
    /// The kinds of the action, separated by commas.
    #[serde(default)]
    pub(super) kinds: String,
    /// SHA-256 of everything that the gate judged and shows, in hexadecimal.
    #[serde(default)]
    pub(super) digest: String,
    pub(super) reason: String,
    #[serde(default)]
    pub(super) needs: String,
    #[serde(default)]
    pub(super) given: Vec<String>,
    /// The id of the client whose session requests the action.
    #[serde(default)]
    pub(super) client: String,
    /// Content of the tool call that the agent shows besides the input.
    #[serde(default)]
    pub(super) content: Value,
    /// The time until which the action can be approved, in seconds since 1970.
    #[serde(default)]
    pub(super) until: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingActionSummary {
    pub(super) id: String,
    pub(super) tool: String,
    /// The tool input, or its beginning together with its length and digest.
    pub(super) input: String,
    pub(super) reason: String,
    #[serde(default)]
    pub(super) needs: String,
    #[serde(default)]
    pub(super) until: u64,
}

impl From<ApprovalSummary> for PendingActionSummary {
    fn from(summary: ApprovalSummary) -> Self {
        let ApprovalSummary { id, tool, input, reason, needs, until, client: _ } = summary;
        Self { id, tool, input, reason, needs, until }
    }
}

impl PendingList {
    /// Returns the list of these actions, or of an equal share of each client if there are too many, and of each
    /// gate of a client: a client cannot hide the actions of others. `gates` are the actions of each gate.
    pub(super) fn new(gates: Vec<Vec<ApprovalSummary>>) -> Self {
        // In the order in which they get a place: first actions of gates, then second ones.
        let mut candidates: Vec<(usize, usize, &str)> = Vec::new();
        for (gate, actions) in gates.iter().enumerate() {
            candidates.extend(actions.iter().enumerate().map(|(at, action)| (at, gate, &*action.client)));
        }
        candidates.sort_unstable();
        let mut of_client: HashMap<&str, usize> = HashMap::new();
        let mut ranked: Vec<(usize, usize, usize)> = Vec::with_capacity(candidates.len());
        for (at, gate, client) in candidates {
            let rank = of_client.entry(client).or_default();
            ranked.push((*rank, at, gate));
            *rank += 1;
        }
        ranked.sort_unstable();
        let omitted = ranked.len().saturating_sub(MAX_LISTED_ACTIONS);
        let kept: HashSet<(usize, usize)> =
            ranked.into_iter().take(MAX_LISTED_ACTIONS).map(|(_, at, gate)| (gate, at)).collect();
        let all = gates.into_iter().enumerate().flat_map(|(gate, actions)| {
            actions.into_iter().enumerate().map(move |(at, action)| ((gate, at), action))
        });
        let actions =
            all.filter(|(place, _)| kept.contains(place)).map(|(_, action)| action.into()).collect();
        Self { actions, omitted }
    }
}

impl From<ApprovalRequest> for PendingAction {
    fn from(open: ApprovalRequest) -> Self {
        let ApprovalRequest {
            id,
            session,
            tool,
            input,
            kinds,
            content,
            reason,
            requirements: needs,
            approved_by: given,
            client,
            expires_at: until,
            ..
        } = open;
        let digest = hex(&open.digest);
        Self { id, session, tool, input, kinds, digest, reason, needs, given, client, content, until }
    }
}

impl PendingAction {
    /// Returns the input in one line, shortened if it is long.
    pub(super) fn input_summary(&self) -> String {
        let mut text = self.input.to_string();
        if text.len() > MAX_SUMMARY_BYTES {
            let (length, digest) = (text.len(), hex(&Sha256::digest(&text)));
            let end =
                (0..=MAX_SUMMARY_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            text.truncate(end);
            let id = &self.id;
            text.push_str(&format!(
                "… ({length} bytes, sha256:{digest}; in full: narrows approve {id} --show)"
            ));
        }
        text
    }

    /// Returns the text that an approver signs: the id and a digest of the whole action, so that the
    /// signature is valid for nothing else.
    pub(super) fn signed_artifact(&self) -> Result<String, jcs::TooDeep> {
        let Self { id, session, tool, input, kinds, digest, .. } = self;
        let content = json!({
            "id": id, "session": session, "tool": tool, "input": input, "kinds": kinds, "call": digest,
        });
        Ok(format!("{id}#sha256:{}", hex(&Sha256::digest(jcs::to_vec(&content)?))))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_input_is_summarized_and_signed_as_a_whole() {
        let action = |input: &str| PendingAction {
            id: "n-1".into(),
            session: "s".into(),
            tool: "t".into(),
            input: json!(input),
            reason: "r".into(),
            ..PendingAction::default()
        };
        let end = MAX_SUMMARY_BYTES - 2;
        assert_eq!(action(&"a".repeat(end)).input_summary(), format!("\"{}\"", "a".repeat(end)));
        for long in ["a".repeat(5 << 20), "é".repeat(5 << 20)] {
            let (one, other) = (action(&long), action(&format!("{long}!")));
            assert!(one.input_summary().ends_with("; in full: narrows approve n-1 --show)"));
            let told = one.input_summary();
            assert!(told.len() < MAX_SUMMARY_BYTES + 180 && told.starts_with(&format!("\"{}", &long[..8])));
            assert!(told.contains(&format!("… ({} bytes, sha256:", long.len() + 2)));
            assert_ne!(one.input_summary(), other.input_summary());
            assert_ne!(
                one.signed_artifact().expect("the action is not nested too deeply"),
                other.signed_artifact().expect("the action is not nested too deeply")
            );
        }
    }

    #[test]
    fn a_list_has_a_share_of_every_client_and_gate() {
        let gate = |gate: usize, client: &str, actions: usize| -> Vec<ApprovalSummary> {
            let action = |at| ApprovalSummary {
                id: format!("{gate}-{at}"),
                client: client.to_owned(),
                ..ApprovalSummary::default()
            };
            (0..actions).map(action).collect()
        };
        let ids = |list: &PendingList, gate: usize| {
            list.actions.iter().filter(|action| action.id.starts_with(&format!("{gate}-"))).count()
        };
        let few = PendingList::new(vec![gate(0, "b", 2), gate(1, "a", 1), Vec::new()]);
        let order: Vec<&str> = few.actions.iter().map(|action| &*action.id).collect();
        assert_eq!((order, few.omitted), (vec!["0-0", "0-1", "1-0"], 0));
        // Many connections of one client, and two of another one.
        let mut gates: Vec<_> = (0..48).map(|number| gate(number, "attacker", 64)).collect();
        gates.extend([gate(48, "other", 3), gate(49, "other", 1)]);
        let all: usize = gates.iter().map(Vec::len).sum();
        let list = PendingList::new(gates);
        assert_eq!((list.actions.len(), list.omitted), (MAX_LISTED_ACTIONS, all - MAX_LISTED_ACTIONS));
        assert_eq!((ids(&list, 48), ids(&list, 49)), (3, 1));
        // One client: each connection has its share.
        let list = PendingList::new((0..64).map(|number| gate(number, "one", 64)).collect());
        assert!((0..64).all(|number| ids(&list, number) == MAX_LISTED_ACTIONS / 64));
    }

    #[test]
    fn the_signed_artifact_covers_every_field_of_the_action() {
        let action = PendingAction {
            id: "n-1".into(),
            session: "s".into(),
            tool: "t".into(),
            input: json!({"b": 1, "a": 2}),
            reason: "r".into(),
            ..PendingAction::default()
        };
        let artifact =
            |action: &PendingAction| action.signed_artifact().expect("the action is not nested too deeply");
        assert!(artifact(&action).starts_with("n-1#sha256:"));
        assert_eq!(artifact(&action), artifact(&PendingAction { reason: "other".into(), ..action.clone() }));
        assert_ne!(artifact(&action), artifact(&PendingAction { tool: "u".into(), ..action.clone() }));
        assert_ne!(
            artifact(&action),
            artifact(&PendingAction { input: json!({"b": 2, "a": 2}), ..action.clone() })
        );
        assert_ne!(artifact(&action), artifact(&PendingAction { kinds: "delete".into(), ..action.clone() }));
        assert_ne!(artifact(&action), artifact(&PendingAction { digest: "00".into(), ..action.clone() }));
        let line = serde_json::to_string(&SocketRequest::List).expect("JSON");
        assert_eq!(line, "\"list\"");
    }
}
