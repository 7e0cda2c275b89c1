//! Timeouts of a gate. The option `--deadline` uses the same names.

use std::time::Duration;

use narrows_acp::method;

/// Timeouts of a gate. Each field names an event that must happen in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateTimeouts {
    /// The agent answers `initialize`.
    pub initialize: Duration,
    /// A user logs in.
    pub authenticate: Duration,
    /// The agent creates a session.
    pub new: Duration,
    /// The agent opens a stored session.
    pub load: Duration,
    /// The agent changes a setting of a session.
    pub set: Duration,
    /// The agent answers any other request.
    pub other: Duration,
    /// The agent sends any message during a turn. Otherwise the turn is stopped.
    pub silence: Duration,
    /// A stopped turn ends. Otherwise the agent is ended.
    pub cancel: Duration,
    /// The agent closes a session, or exits after the end of its input. Otherwise it is terminated.
    pub close: Duration,
    /// The agent exits after SIGTERM. Otherwise it is killed.
    pub terminate: Duration,
    /// The agent reads from its full input. Otherwise it is ended.
    pub write: Duration,
    /// An approval is given. Otherwise the action is denied.
    pub approval: Duration,
    /// The client performs an allowed request. Otherwise the agent gets an error.
    pub service: Duration,
}

impl Default for GateTimeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            initialize: secs(30),
            authenticate: secs(300),
            new: secs(60),
            load: secs(120),
            set: secs(10),
            other: secs(120),
            silence: secs(600),
            cancel: secs(10),
            close: secs(5),
            terminate: secs(5),
            write: secs(10),
            approval: secs(300),
            service: secs(600),
        }
    }
}

impl GateTimeouts {
    /// Names of all timeouts, ordered by the phase in which they apply.
    pub const NAMES: [&'static str; 13] = [
        "initialize",
        "authenticate",
        "new",
        "load",
        "set",
        "other",
        "silence",
        "cancel",
        "close",
        "terminate",
        "write",
        "permission",
        "service",
    ];

    /// Returns the timeout of this name.
    pub fn by_name_mut(&mut self, name: &str) -> Option<&mut Duration> {
        Some(match name {
            "initialize" => &mut self.initialize,
            "authenticate" => &mut self.authenticate,
            "new" => &mut self.new,
            "load" => &mut self.load,
            "set" => &mut self.set,
            "other" => &mut self.other,
            "silence" => &mut self.silence,
            "cancel" => &mut self.cancel,
            "close" => &mut self.close,
            "terminate" => &mut self.terminate,
            "write" => &mut self.write,
            "permission" => &mut self.approval,
            "service" => &mut self.service,
            _ => return None,
        })
    }

    /// Returns the time within which the agent must answer a request of this method. Returns `None` for a
    /// prompt: [`Self::silence`] limits a turn.
    pub(crate) fn for_method(&self, method: &str) -> Option<Duration> {
        Some(match method {
            method::INITIALIZE => self.initialize,
            method::AUTHENTICATE | method::AUTH_LOGIN => self.authenticate,
            method::SESSION_NEW | method::SESSION_FORK => self.new,
            method::SESSION_LOAD | method::SESSION_RESUME => self.load,
            method::SESSION_CLOSE | method::SESSION_DELETE => self.close,
            method::SESSION_PROMPT => return None,
            _ if method.starts_with("session/set_") => self.set,
            _ => self.other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timeout_has_a_name_and_the_default_of_point_29() {
        let seconds = [30, 300, 60, 120, 10, 120, 600, 10, 5, 5, 10, 300, 600];
        let mut timeouts = GateTimeouts::default();
        for (name, seconds) in GateTimeouts::NAMES.into_iter().zip(seconds) {
            assert_eq!(timeouts.by_name_mut(name).copied(), Some(Duration::from_secs(seconds)), "{name}");
        }
        assert_eq!(timeouts.by_name_mut("patience"), None);
    }

    #[test]
    fn every_method_but_a_prompt_has_a_timeout() {
        let timeouts = GateTimeouts::default();
        let check = |method: &str, seconds: Option<u64>| {
            assert_eq!(timeouts.for_method(method), seconds.map(Duration::from_secs), "{method}");
        };
        check("initialize", Some(30));
        check("authenticate", Some(300));
        check("session/new", Some(60));
        check("session/fork", Some(60));
        check("session/load", Some(120));
        check("session/resume", Some(120));
        check("session/set_mode", Some(10));
        check("session/set_config_option", Some(10));
        check("session/close", Some(5));
        check("session/list", Some(120));
        check("_vendor/thing", Some(120));
        check("session/prompt", None);
    }
}
