//! Deadlines for the answers of an agent.

use std::time::Duration;

/// Deadlines for the answers of an agent. Each is finite, because an agent that never answers is the most
/// common failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Deadline for the answer to `initialize`. Long, because some agents first install themselves.
    pub initialize: Duration,
    pub login: Duration,
    pub open: Duration,
    /// Deadline for loading or resuming a session, which may have a long history.
    pub resume: Duration,
    /// Deadline for small requests, such as listing sessions or setting an option.
    pub small: Duration,
    pub cancel: Duration,
    /// Time for a turn to end after it was cancelled at its time limit. Short, because the caller relies on
    /// the limit, and killing the agent takes up to 1.5 s more.
    pub cancel_late: Duration,
    pub close: Duration,
    /// Maximum time without output of the agent during a turn; zero disables the limit.
    pub silence: Duration,
    /// Time for a person to answer a permission request. After this time, the request is denied.
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
