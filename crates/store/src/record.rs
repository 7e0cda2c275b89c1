//! What is stored: sessions, their turns, and when something happened.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment, in milliseconds since 1970; shown as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        // Before 1970 the clock is wrong anyway.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// The moment so many milliseconds after the start of 1970.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the start of 1970.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Outside the years that can be written, the nearest one that can.
        let end = if self.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        let moment = jiff::Timestamp::from_millisecond(self.0).unwrap_or(end);
        write!(f, "{moment:.3}")
    }
}

/// A session to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSession {
    /// Its id, of 1 to 64 bytes.
    pub id: String,
    /// The directory it works in.
    pub cwd: String,
    /// Further directories it may use.
    pub roots: Vec<String>,
    /// Whatever the caller keeps with it.
    pub settings: String,
}

/// What is known of a session besides its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its id.
    pub id: String,
    /// The directory it works in.
    pub cwd: String,
    /// Further directories it may use.
    pub roots: Vec<String>,
    /// What it is called.
    pub title: Option<String>,
    /// When it was made.
    pub created: Timestamp,
    /// When its last turn was stored, or it was made.
    pub updated: Timestamp,
    /// Whatever the caller keeps with it.
    pub settings: String,
    /// How many turns it has; the number of the last one.
    pub turns: u64,
}

impl Record {
    /// When its last turn was stored, in RFC 3339.
    #[must_use]
    pub fn updated_at(&self) -> String {
        self.updated.to_string()
    }
}

/// One turn of a session, or the summary of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Its place in the session, from 1; given by the store. A summary has the number of the last turn it covers.
    pub number: u64,
    /// What the model gets, each an opaque text.
    pub messages: Vec<String>,
    /// What the client is shown when the session is loaded, each an opaque text.
    pub replay: Vec<String>,
}

impl Turn {
    /// A turn to be stored.
    #[must_use]
    pub fn new(messages: Vec<String>, replay: Vec<String>) -> Self {
        Self { number: 0, messages, replay }
    }
}

/// What can be changed in a session besides its history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// What it is called, or that it has no title any more.
    Title(Option<String>),
    /// What the caller keeps with it.
    Settings(String),
    /// Where it works.
    Place {
        /// The directory it works in.
        cwd: String,
        /// Further directories it may use.
        roots: Vec<String>,
    },
}

/// A part of the list of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The sessions, the one used last first.
    pub sessions: Vec<Record>,
    /// Where the list goes on, if it does.
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
    fn a_moment_is_shown_in_rfc_3339() {
        check(0, "1970-01-01T00:00:00.000Z");
        check(1_700_000_000_123, "2023-11-14T22:13:20.123Z");
        check(-1, "1969-12-31T23:59:59.999Z");
        check(i64::MAX, "9999-12-30T22:00:00.999Z");
        check(i64::MIN, "-009999-01-02T01:59:59.000Z");
    }
}
