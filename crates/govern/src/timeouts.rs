//! How long anything may take: every deadline by its name.

use std::time::Duration;

use narrows_acp::method;

/// How long anything may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateTimeouts {
    /// The agent to introduce itself.
    pub initialize: Duration,
    /// Somebody to log in.
    pub authenticate: Duration,
    /// The agent to make a session.
    pub new: Duration,
    /// The agent to open one that it has.
    pub load: Duration,
    /// The agent to change a setting of a session.
    pub set: Duration,
    /// The agent to answer anything else that is asked of it.
    pub other: Duration,
    /// The agent to say anything at all while it has a turn. Then the turn is stopped.
    pub silence: Duration,
    /// A turn to end that was told to. Then its agent is.
    pub cancel: Duration,
    /// The agent to close a session, or to go when its input ends. Then it is told to.
    pub close: Duration,
    /// The agent to go when it is told to. Then it is killed.
    pub terminate: Duration,
    /// The agent to read something of what waits for it. Then it is ended.
    pub write: Duration,
    /// Somebody to approve. Then it is denied.
    pub approval: Duration,
    /// The client to do what was allowed. Then the agent is told that it did not.
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
    /// The names of all of them, in the order in which things happen.
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

    /// The one of this name.
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

    /// How long the agent may take to answer a request of this method. A prompt takes as long as something is said.
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
    fn every_deadline_has_a_name_and_the_value_of_point_29() {
        let seconds = [30, 300, 60, 120, 10, 120, 600, 10, 5, 5, 10, 300, 600];
        let mut timeouts = GateTimeouts::default();
        for (name, seconds) in GateTimeouts::NAMES.into_iter().zip(seconds) {
            assert_eq!(timeouts.by_name_mut(name).copied(), Some(Duration::from_secs(seconds)), "{name}");
        }
        assert_eq!(timeouts.by_name_mut("patience"), None);
    }

    #[test]
    fn every_method_but_a_prompt_has_a_deadline() {
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
