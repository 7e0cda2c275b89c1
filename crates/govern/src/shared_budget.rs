//! Budget use of other gates, read from the audit log that they share.

use std::fmt::Debug;
use std::path::PathBuf;

use narrows_audit::{Entry, Filter, LogReader, ReadError, Timestamp};
use serde::{Deserialize, Serialize};

use crate::audit_events::DECISION;

const DAY: i64 = 86_400;

/// The largest cost in an audit entry: the largest integer that all JSON readers represent exactly. It stands
/// for all larger costs.
pub(crate) const MAX_CENTS: u64 = (1 << 53) - 1;

/// Budget use of one allowed call, as the audit entry about the decision records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetUse {
    pub gate: String,
    /// Policies whose budgets are charged.
    pub policies: Vec<String>,
    /// Cost in cents, if the input of the call states a cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cents: Option<u64>,
    /// Time of the audit entry in seconds since 1970.
    #[serde(skip)]
    pub at: u64,
}

/// Reports the budget use of other gates.
pub trait BudgetSource: Debug + Send {
    /// Returns the budget use since the previous call of this method. The first call returns the use since
    /// the beginning of the day. The use of the calling gate may be included.
    ///
    /// # Errors
    ///
    /// If the use cannot be determined. Every budget then counts as exhausted.
    fn read_new(&mut self) -> Result<Vec<BudgetUse>, BudgetError>;
}

/// Reason why the budget use is unknown.
#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    #[error("budget use unknown: {0}")]
    Read(#[from] ReadError),
    #[error("budget use unknown: {0}")]
    Unreadable(String),
}

/// Reads the budget use from an audit log.
#[derive(Debug)]
pub struct AuditLogBudget {
    path: PathBuf,
    reader: Option<LogReader>,
    /// Time in seconds since 1970. Older entries are ignored.
    from: i64,
    /// Use that was read and not returned, because reading failed later.
    news: Vec<BudgetUse>,
    /// Reason why an entry cannot be read. The budget use then stays unknown, because the entry is not read
    /// again.
    unreadable: Option<String>,
}

impl AuditLogBudget {
    /// Creates a reader of the log at `path` that starts at the beginning of the day of `now`, in seconds
    /// since 1970.
    #[must_use]
    pub fn new(path: PathBuf, now: u64) -> Self {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        Self { path, reader: None, from: now - now.rem_euclid(DAY), news: Vec::new(), unreadable: None }
    }
}

impl BudgetSource for AuditLogBudget {
    fn read_new(&mut self) -> Result<Vec<BudgetUse>, BudgetError> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => {
                let moment = Timestamp::from_second(self.from).unwrap_or(Timestamp::MIN);
                let filter = Filter { text: Some("\"spent\":{"), ..Filter::default() };
                match LogReader::since(&self.path, filter, moment) {
                    Ok(reader) => self.reader.insert(reader),
                    // The log does not exist yet, so no budget was used.
                    Err(_) if !self.path.exists() => return Ok(Vec::new()),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        while self.unreadable.is_none() {
            let entry = match reader.next_entry() {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(std::mem::take(&mut self.news)),
                Err(error @ ReadError::Line { .. }) => {
                    self.unreadable = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            match parse_budget_use(&entry, self.from) {
                Ok(spent) => self.news.extend(spent),
                Err(Unreadable) => {
                    self.unreadable = Some(format!("entry {} has an unreadable budget use", entry.seq));
                }
            }
        }
        Err(BudgetError::Unreadable(self.unreadable.clone().unwrap_or_default()))
    }
}

/// The error for a budget use that cannot be read.
struct Unreadable;

/// Returns the budget use in an audit entry. Returns `None` if there is none or the entry is too old.
///
/// # Errors
///
/// If the entry has a budget use that is unreadable. A call that was counted must not count as nothing.
fn parse_budget_use(entry: &Entry, from: i64) -> Result<Option<BudgetUse>, Unreadable> {
    // Only the gate's own metadata counts. An agent may copy the same text into the input of a call.
    let Some(told) = entry.metadata.get("aip44").and_then(|facts| facts.get("spent")) else {
        return Ok(None);
    };
    let Ok(at) = entry.ts.parse::<Timestamp>().map(Timestamp::as_second) else { return Err(Unreadable) };
    if at < from {
        return Ok(None);
    }
    match BudgetUse::deserialize(told) {
        Ok(spent) if entry.action == DECISION => Ok(Some(BudgetUse {
            at: u64::try_from(at).unwrap_or_default(),
            cents: spent.cents.map(|cents| if cents < MAX_CENTS { cents } else { u64::MAX }),
            ..spent
        })),
        _ => Err(Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use narrows_audit::{Actor, Event, Log, LogOptions, Subject};
    use serde_json::json;

    use super::*;

    fn event(action: &str, metadata: &serde_json::Value) -> Event {
        Event {
            actor: Actor { id: "operator:notes".into(), role: None },
            action: action.to_owned(),
            subject: Subject { kind: "tool".into(), reference: None, path: None },
            input: Some(json!({"spent": {"gate": "evil", "policies": ["few"]}})),
            metadata: metadata.as_object().cloned().unwrap_or_default(),
            ..Event::default()
        }
    }

    #[test]
    fn budget_use_is_read_once() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit-log.jsonl");
        let now = u64::try_from(Timestamp::now().as_second()).unwrap();
        let mut budget_source = AuditLogBudget::new(path.clone(), now);
        assert_eq!(budget_source.read_new().unwrap(), []);
        let log = Log::open(&path, LogOptions::default()).unwrap();
        let spends = json!({"aip44": {"spent": {"gate": "a", "policies": ["few"], "cents": 7}}});
        let append = |event: Event| log.append(event).wait().unwrap();
        append(event("policy.resolved", &spends));
        append(event("tool.call", &json!({})));
        append(event("policy.resolved", &json!({})));
        let news = budget_source.read_new().unwrap();
        let [spent] = news.as_slice() else { panic!("{news:?}") };
        assert_eq!(
            (spent.gate.as_str(), spent.cents, spent.policies.as_slice()),
            ("a", Some(7), ["few".to_owned()].as_slice())
        );
        assert!(spent.at.abs_diff(now) < 1_000);
        assert_eq!(budget_source.read_new().unwrap(), []);
        append(event("policy.resolved", &spends));
        assert_eq!(budget_source.read_new().unwrap().len(), 1);
        // A reader that starts on the next day ignores the use.
        assert_eq!(AuditLogBudget::new(path.clone(), now + 86_400).read_new().unwrap(), []);
        assert_eq!(AuditLogBudget::new(path, now).read_new().unwrap().len(), 2);
    }

    #[track_caller]
    fn check_unknown(action: &str, spent: serde_json::Value) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit-log.jsonl");
        let now = u64::try_from(Timestamp::now().as_second()).unwrap();
        let mut budget_source = AuditLogBudget::new(path.clone(), now);
        let log = Log::open(&path, LogOptions::default()).unwrap();
        let good = json!({"gate": "a", "policies": ["few"]});
        for (action, spent) in [(action, spent), ("policy.resolved", good)] {
            log.append(event(action, &json!({"aip44": {"spent": spent}}))).wait().unwrap();
        }
        for _ in 0..2 {
            assert!(budget_source.read_new().is_err());
        }
        // A reader of the next day ignores it.
        assert_eq!(AuditLogBudget::new(path, now + 86_400).read_new().unwrap(), []);
    }

    #[test]
    fn an_unreadable_use_is_not_taken_for_none() {
        check_unknown("policy.resolved", json!({}));
        check_unknown(
            "policy.resolved",
            json!({"gate": "a", "policies": ["few"], "cents": "18446744073709551615"}),
        );
        check_unknown("policy.resolved", json!({"gate": "a", "policies": [{"$redacted": true}]}));
        check_unknown("redacted", json!({"gate": "a", "policies": ["few"]}));
    }

    #[test]
    fn every_cost_is_read_as_it_was_counted() {
        for (cents, expected) in [(7, 7), (MAX_CENTS - 1, MAX_CENTS - 1), (MAX_CENTS, u64::MAX)] {
            let home = tempfile::tempdir().unwrap();
            let path = home.path().join("audit-log.jsonl");
            let log = Log::open(&path, LogOptions::default()).unwrap();
            let spent =
                BudgetUse { gate: "a".into(), policies: vec!["few".into()], cents: Some(cents), at: 0 };
            log.append(event("policy.resolved", &json!({"aip44": {"spent": spent}}))).wait().unwrap();
            let news = AuditLogBudget::new(path, 0).read_new().unwrap();
            assert_eq!(news.iter().map(|spent| spent.cents).collect::<Vec<_>>(), [Some(expected)]);
        }
    }

    #[test]
    fn an_unreadable_log_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit-log.jsonl");
        std::fs::write(&path, "{\"spent\":{}}\n").unwrap();
        let mut budget_source = AuditLogBudget::new(path, 0);
        for _ in 0..2 {
            assert!(budget_source.read_new().is_err(), "the line is not skipped");
        }
    }
}
