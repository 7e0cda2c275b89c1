//! Timeouts of a gate, by the names of the `--deadline` option.

use std::time::Duration;

use narrows_acp::method;

/// Timeouts of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateTimeouts {
    /// For the agent to answer `initialize`.
    pub initialize: Duration,
    /// For a user to log in.
    pub authenticate: Duration,
    /// For the agent to create a session.
    pub new: Duration,
    /// For the agent to open a stored session.
    pub load: Duration,
    /// For the agent to change a setting of a session.
    pub set: Duration,
    /// For the agent to answer any other request.
    pub other: Duration,
    /// For the agent to send anything during a turn. Then the turn is stopped.
    pub silence: Duration,
    /// For a stopped turn to end. Then the agent is ended.
    pub cancel: Duration,
    /// For the agent to close a session, or to exit after the end of its input. Then it is terminated.
    pub close: Duration,
    /// For the agent to exit after SIGTERM. Then it is killed.
    pub terminate: Duration,
    /// For the agent to read from a full input. Then it is ended.
    pub write: Duration,
    /// For an approval. Then the action is denied.
    pub approval: Duration,
    /// For the client to perform an allowed request. Then the agent gets an error.
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
    /// Names of all timeouts, in the order in which they apply.
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

    /// Returns how long the agent may take to answer a request of this method. A prompt is limited by
    /// [`Self::silence`] instead.
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
