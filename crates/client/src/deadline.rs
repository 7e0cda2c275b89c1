//! Deadlines for the answers of an agent.

use std::time::Duration;

/// Deadlines for the answers of an agent. Each is finite, because an agent that never answers is the most
/// common failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For `initialize`. Long, because some agents first install themselves.
    pub initialize: Duration,
    pub login: Duration,
    pub open: Duration,
    /// For loading or resuming a session with a long history.
    pub resume: Duration,
    /// For small requests, such as a list or an option.
    pub small: Duration,
    pub cancel: Duration,
    /// For the end of a turn that was cancelled at its time limit. Shorter, because the caller relies on the
    /// limit, and killing the agent takes up to 1.5 s more.
    pub cancel_late: Duration,
    pub close: Duration,
    /// For any output during a turn; zero disables the limit.
    pub silence: Duration,
    /// For a person to answer a permission request. After that it is denied.
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
