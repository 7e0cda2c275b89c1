//! Selects a read-only mode of the agent for low access.
//!
//! Many agents change files and run commands themselves, without asking. Low access cannot prevent that, but
//! a read-only mode of the agent can. So the client selects such a mode if the agent has one, and otherwise
//! reports that the agent has none.

use super::{Rejection, Session};
use crate::snapshot::{OptionValue, Snapshot};

/// Ids or names of modes in which an agent changes nothing by itself, the strictest first.
const READ_ONLY_MODES: [&str; 3] = ["readonly", "plan", "ask"];

/// Name of the requested mode in a report about an agent without a read-only mode.
const WANTED: &str = "read-only";

const NONE: &str = "the agent has no read-only mode";

/// Text in reports: the consequence if the agent is not in a read-only mode.
pub(super) const CONSEQUENCE: &str = "low access cannot prevent what it does without asking";

/// Selects a read-only mode, or reports that there is none.
pub(super) async fn restrict(session: &Session) {
    let rejection = match reading_mode(&session.snapshot()) {
        Some(Mode { id, is_current }) => {
            let rejection = if is_current { None } else { session.set_mode(&id).await.err() };
            if rejection.is_none() {
                session.mode_guard.set_mode(&id);
            }
            rejection
        }
        // The built-in agent needs no mode. Another agent may have its name, so an offered read-only mode is
        // selected.
        None if session.shared.known.is_built_in_agent() => None,
        None => {
            Some(Rejection { option: "mode".to_owned(), value: WANTED.to_owned(), reason: NONE.to_owned() })
        }
    };
    if let Some(rejection) = rejection {
        session.report_rejection(&with_consequence(rejection)).await;
    }
}

fn with_consequence(rejection: Rejection) -> Rejection {
    let reason = format!("{}, so {CONSEQUENCE}", rejection.reason);
    Rejection { reason, ..rejection }
}

struct Mode {
    id: String,
    is_current: bool,
}

pub(super) struct CurrentMode {
    pub(super) id: String,
    /// `true` if the agent changes nothing by itself in the mode.
    pub(super) only_reads: bool,
}

pub(super) fn current_mode(snapshot: &Snapshot) -> Option<CurrentMode> {
    let (id, available) = modes(snapshot)?;
    let name = available.iter().find(|choice| choice.id == id).map_or("", |choice| choice.name.as_str());
    let only_reads =
        [id.as_str(), name].map(plain).iter().any(|name| READ_ONLY_MODES.contains(&name.as_str()));
    Some(CurrentMode { id, only_reads })
}

fn reading_mode(snapshot: &Snapshot) -> Option<Mode> {
    let (current, available) = modes(snapshot)?;
    let is =
        |choice: &OptionValue, wanted: &str| plain(&choice.id) == wanted || plain(&choice.name) == wanted;
    let found =
        READ_ONLY_MODES.iter().find_map(|wanted| available.iter().find(|choice| is(choice, wanted)))?;
    Some(Mode { id: found.id.clone(), is_current: found.id == current })
}

/// Returns the id of the current mode and all modes, from the current or the older form.
fn modes(snapshot: &Snapshot) -> Option<(String, &[OptionValue])> {
    match (snapshot.option("mode"), &snapshot.modes) {
        (Some(option), _) => Some((option.current.as_str().unwrap_or_default().to_owned(), &option.values)),
        (None, Some(modes)) => Some((modes.current.clone(), &modes.available)),
        (None, None) => None,
    }
}

/// Normalizes a mode's id or name for comparison. Agents use forms such as `Read-only mode` and
/// `https://…/session-modes#plan`.
fn plain(name: &str) -> String {
    let last = name.rsplit(['#', '/']).next().unwrap_or(name);
    let letters: String =
        last.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    letters.strip_suffix("mode").map(str::to_owned).unwrap_or(letters)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(answer: &Value, expected: Option<(&str, bool)>) {
        let mut snapshot = Snapshot::default();
        snapshot.opened(answer);
        let found = reading_mode(&snapshot);
        let found = found.as_ref().map(|mode| (mode.id.as_str(), mode.is_current));
        assert_eq!(found, expected, "{answer}");
    }

    #[test]
    fn every_mode_failure_says_that_low_access_is_not_enforced() {
        let rejection = |reason: &str| Rejection {
            option: "mode".to_owned(),
            value: "plan".to_owned(),
            reason: reason.to_owned(),
        };
        let told = with_consequence(rejection("no (-32603)"));
        let expected = "no (-32603), so low access cannot prevent what it does without asking";
        assert_eq!((told.value.as_str(), told.reason.as_str()), ("plan", expected));
    }

    fn offered(current: &str, ids: &[&str]) -> Value {
        let all: Vec<Value> = ids.iter().map(|id| json!({"id": id, "name": id})).collect();
        json!({"modes": {"currentModeId": current, "availableModes": all}})
    }

    #[test]
    fn the_strictest_read_only_mode_is_found() {
        check(&json!({}), None);
        check(&offered("auto", &["auto", "full-access"]), None);
        check(&offered("auto", &["auto", "read-only", "full-access"]), Some(("read-only", false)));
        check(&offered("default", &["default", "plan", "yolo"]), Some(("plan", false)));
        check(&offered("code", &["ask", "code", "plan"]), Some(("plan", false)));
        check(&offered("ask", &["ask", "code"]), Some(("ask", true)));
        check(&offered("a", &["a", "https://agentclientprotocol.com/protocol/session-modes#plan"]), {
            Some(("https://agentclientprotocol.com/protocol/session-modes#plan", false))
        });
        // A name that only begins with the name of a read-only mode does not match.
        check(&offered("a", &["a", "ask-never", "planless", "task"]), None);
        let named = json!({"modes": {"currentModeId": "1", "availableModes": [
            {"id": "1", "name": "Agent"}, {"id": "2", "name": "Read-only mode"},
        ]}});
        check(&named, Some(("2", false)));
        let option = json!({"configOptions": [{"id": "m", "name": "Mode", "category": "mode", "type": "select", "currentValue": "auto",
            "options": [{"value": "auto", "name": "Auto"}, {"value": "read_only", "name": "Look"}]}]});
        check(&option, Some(("read_only", false)));
    }
}
