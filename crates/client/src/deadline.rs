//! How long an agent may take for each thing.

use std::time::Duration;

/// How long an agent may take for each thing. None of them is for ever: an agent that never answers is the most common
/// failure of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// To answer `initialize`; long, because some install themselves first.
    pub initialize: Duration,
    /// To log in without anybody's help.
    pub login: Duration,
    /// To open a session.
    pub open: Duration,
    /// To load or resume one: histories are long.
    pub resume: Duration,
    /// To answer anything small: a list, an option.
    pub small: Duration,
    /// To end a turn that was cancelled.
    pub cancel: Duration,
    /// To end a turn that was cancelled because its time was over. Shorter: a limit for the turn is a promise to
    /// whoever set it, and what follows the cancellation takes up to 1.5 s more.
    pub cancel_late: Duration,
    /// To close a session.
    pub close: Duration,
    /// To say anything at all during a turn; zero means as long as it takes.
    pub silence: Duration,
    /// For a person to answer a permission request. Without an answer it is denied.
    pub permission: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            initialize: Duration::from_secs(30),
            login: Duration::from_secs(30),
            open: Duration::from_secs(60),
            resume: Duration::from_secs(120),
            small: Duration::from_secs(15),
            cancel: Duration::from_secs(10),
            cancel_late: Duration::from_secs(2),
            close: Duration::from_secs(5),
            silence: Duration::from_secs(15 * 60),
            permission: Duration::from_secs(5 * 60),
        }
    }
}
