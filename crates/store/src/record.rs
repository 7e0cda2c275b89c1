//! Stored data: sessions, turns and times.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time in milliseconds since 1970, displayed as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Returns the current time.
    #[must_use]
    pub fn now() -> Self {
        // A clock before 1970 counts as 1970.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns the time this many milliseconds after the start of 1970.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the start of 1970.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Times outside the years of RFC 3339 are shown as the nearest possible time.
        let end = if self.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        let moment = jiff::Timestamp::from_millisecond(self.0).unwrap_or(end);
        write!(f, "{moment:.3}")
    }
}

/// A session to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSession {
    /// The id of the session, of 1 to 64 bytes.
    pub id: String,
    pub cwd: String,
    pub roots: Vec<String>,
    pub settings: String,
}

/// A stored session without its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub id: String,
    pub cwd: String,
    pub roots: Vec<String>,
    pub title: Option<String>,
    pub created: Timestamp,
    /// Time of the last turn, or of the creation if there is no turn.
    pub updated: Timestamp,
    pub settings: String,
    /// Number of turns; also the number of the last turn.
    pub turns: u64,
}

impl Record {
    /// Returns the time of the last turn in RFC 3339.
    #[must_use]
    pub fn updated_at(&self) -> String {
        self.updated.to_string()
    }
}

/// One turn of a session, or the summary of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Position in the session, from 1; assigned by the store. A summary has the number of the last turn it
    /// covers.
    pub number: u64,
    /// Opaque texts that the model receives.
    pub messages: Vec<String>,
    /// Opaque texts that the client receives when the session is loaded.
    pub replay: Vec<String>,
}

impl Turn {
    /// Creates a turn to be stored.
    #[must_use]
    pub fn new(messages: Vec<String>, replay: Vec<String>) -> Self {
        Self { number: 0, messages, replay }
    }
}

/// A change of a session, apart from its history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// `None` removes the title.
    Title(Option<String>),
    Settings(String),
    Place {
        cwd: String,
        roots: Vec<String>,
    },
}

/// A page of the list of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The most recently used session comes first.
    pub sessions: Vec<Record>,
    /// Cursor of the next page. `None` on the last page.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(millis: i64, expected: &str) {
        assert_eq!(Timestamp::from_millis(millis).to_string(), expected);
    }

    #[test]
    fn a_timestamp_is_shown_in_rfc_3339() {
        check(0, "1970-01-01T00:00:00.000Z");
        check(1_700_000_000_123, "2023-11-14T22:13:20.123Z");
        check(-1, "1969-12-31T23:59:59.999Z");
        check(i64::MAX, "9999-12-30T22:00:00.999Z");
        check(i64::MIN, "-009999-01-02T01:59:59.000Z");
    }
}
