//! Every method of both versions: its direction, kind and scope.
//!
//! The table describes the protocol, not the methods that a role implements. A request for a method that
//! [`find`] does not know, or that the role does not serve, is answered with -32601; such a notification is
//! ignored. `proxy/*` has no rows, because neither agents nor clients serve it.

use crate::version::{Version, Versions};

pub const INITIALIZE: &str = "initialize";
/// Logs in (v1).
pub const AUTHENTICATE: &str = "authenticate";
/// Logs out (v1).
pub const LOGOUT: &str = "logout";
/// Logs in (v2).
pub const AUTH_LOGIN: &str = "auth/login";
/// Logs out (v2).
pub const AUTH_LOGOUT: &str = "auth/logout";
pub const AUTH_STATUS: &str = "auth/status";
pub const AUTH_STATUS_UPDATE: &str = "auth/status_update";
pub const PROVIDERS_LIST: &str = "providers/list";
pub const PROVIDERS_SET: &str = "providers/set";
pub const PROVIDERS_DISABLE: &str = "providers/disable";
pub const SESSION_NEW: &str = "session/new";
/// Opens a stored session and replays its history (v1).
pub const SESSION_LOAD: &str = "session/load";
/// Opens a stored session. In v2 the history is replayed on request.
pub const SESSION_RESUME: &str = "session/resume";
pub const SESSION_FORK: &str = "session/fork";
pub const SESSION_LIST: &str = "session/list";
/// Stops the work of a session and frees its resources.
pub const SESSION_CLOSE: &str = "session/close";
pub const SESSION_DELETE: &str = "session/delete";
pub const SESSION_ARCHIVE: &str = "session/archive";
pub const SESSION_UNARCHIVE: &str = "session/unarchive";
pub const SESSION_STATUS: &str = "session/status";
pub const SESSION_SET_TITLE: &str = "session/set_title";
/// Chooses a mode (v1).
pub const SESSION_SET_MODE: &str = "session/set_mode";
/// Chooses a model. Removed from the schema, but some v1 clients still send it.
pub const SESSION_SET_MODEL: &str = "session/set_model";
pub const SESSION_SET_CONFIG_OPTION: &str = "session/set_config_option";
/// Sends a prompt. In v1 the answer ends the turn; in v2 it only confirms that the message was inserted.
pub const SESSION_PROMPT: &str = "session/prompt";
pub const SESSION_CANCEL: &str = "session/cancel";
pub const TOOL_CALL_CANCEL: &str = "tool_call/cancel";
/// Ends the process of one of the agent's terminals (v2). Unrelated to [`TERMINAL_KILL`].
pub const TERMINAL_CANCEL: &str = "terminal/cancel";
pub const SESSION_UPDATE: &str = "session/update";
pub const SESSION_REQUEST_PERMISSION: &str = "session/request_permission";
pub const FS_READ_TEXT_FILE: &str = "fs/read_text_file";
pub const FS_WRITE_TEXT_FILE: &str = "fs/write_text_file";
pub const TERMINAL_CREATE: &str = "terminal/create";
pub const TERMINAL_OUTPUT: &str = "terminal/output";
pub const TERMINAL_WAIT_FOR_EXIT: &str = "terminal/wait_for_exit";
/// Kills a command and keeps its terminal (v1).
pub const TERMINAL_KILL: &str = "terminal/kill";
pub const TERMINAL_RELEASE: &str = "terminal/release";
pub const ELICITATION_CREATE: &str = "elicitation/create";
/// Reports that input requested by URL has arrived.
pub const ELICITATION_COMPLETE: &str = "elicitation/complete";
/// Carries a message of an MCP server that runs in the client.
pub const MCP_MESSAGE: &str = "mcp/message";
/// Opens an MCP server in the client, in an older form of MCP over ACP.
pub const MCP_CONNECT: &str = "mcp/connect";
/// Closes an MCP server in the client, in an older form of MCP over ACP.
pub const MCP_DISCONNECT: &str = "mcp/disconnect";
/// Initializes a proxy that has a successor in a proxy chain.
pub const PROXY_INITIALIZE: &str = "proxy/initialize";
/// Carries a message between a proxy and its successor, through their conductor.
pub const PROXY_SUCCESSOR: &str = "proxy/successor";
/// Cancels a request. The request is still answered.
pub const CANCEL_REQUEST: &str = "$/cancel_request";

/// The role of a peer in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that runs turns.
    Agent,
    /// The side with the user.
    Client,
}

/// The direction in which a method is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToAgent,
    ToClient,
    Both,
}

/// Kind of a method: request or notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Has an id and gets exactly one response.
    Request,
    /// Has no id. If a message with this method has an id, it is a request and must be answered.
    Notification,
}

/// The unit that a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Connection,
    /// The session named by `params.sessionId`.
    Session,
    /// The session that the params name, or the connection if the params name no session.
    ByParams,
}

/// Stability of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The method is in the stable part of the version.
    Stable,
    /// The method is behind an unstable feature of the schema crate.
    Unstable,
    /// The method was removed from the schema, but peers still use it.
    Legacy,
}

/// A row of the method table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    pub name: &'static str,
    pub direction: Direction,
    pub kind: Kind,
    /// The unit that messages with this method belong to.
    pub scope: Scope,
    pub versions: Versions,
    pub status: Status,
}

impl Method {
    /// Returns `true` if `side` may receive this method.
    pub fn is_received_by(&self, side: Side) -> bool {
        match self.direction {
            Direction::ToAgent => side == Side::Agent,
            Direction::ToClient => side == Side::Client,
            Direction::Both => true,
        }
    }

    /// Returns the side that answers a request: its receiver. `None` for a notification.
    pub fn answering_side(&self) -> Option<Side> {
        match (self.kind, self.direction) {
            (Kind::Request, Direction::ToAgent) => Some(Side::Agent),
            (Kind::Request, Direction::ToClient) => Some(Side::Client),
            (Kind::Request, Direction::Both) | (Kind::Notification, _) => None,
        }
    }
}

/// Returns the row for method `name` as received by `side` on a connection of `version`.
pub fn find(side: Side, version: Version, name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| {
        method.name == name && method.is_received_by(side) && method.versions.contains(version)
    })
}

/// Returns `true` if `side` may receive a method of this name in `version`. Ignores extensions.
pub fn knows(side: Side, version: Version, name: &str) -> bool {
    find(side, version, name).is_some()
}

/// Returns `true` if the protocol reserves the name for extensions.
pub fn is_extension(name: &str) -> bool {
    name.starts_with('_')
}

/// Returns `true` if later entries of a batch wait for this method.
///
/// These methods change the meaning of later messages. A prompt is not one of them: it may itself wait for
/// later entries of the batch.
pub fn is_lifecycle(name: &str) -> bool {
    matches!(
        name,
        INITIALIZE
            | PROXY_INITIALIZE
            | AUTHENTICATE
            | AUTH_LOGIN
            | SESSION_NEW
            | SESSION_LOAD
            | SESSION_RESUME
    )
}

/// All methods. A name has two rows only if its kind depends on the direction.
pub static METHODS: &[Method] = {
    use Direction::{Both as EitherWay, ToAgent, ToClient};
    use Kind::{Notification, Request};
    use Scope::{ByParams, Connection, Session};
    use Status::{Legacy, Stable, Unstable};
    use Versions::{Both, OnlyV1, OnlyV2};
    &[
        row(INITIALIZE, ToAgent, Request, Connection, Both, Stable),
        row(AUTHENTICATE, ToAgent, Request, Connection, OnlyV1, Stable),
        row(LOGOUT, ToAgent, Request, Connection, OnlyV1, Stable),
        row(AUTH_LOGIN, ToAgent, Request, Connection, OnlyV2, Stable),
        row(AUTH_LOGOUT, ToAgent, Request, Connection, OnlyV2, Stable),
        row(AUTH_STATUS, ToAgent, Request, Connection, Both, Unstable),
        row(PROVIDERS_LIST, ToAgent, Request, Connection, Both, Unstable),
        row(PROVIDERS_SET, ToAgent, Request, Connection, Both, Unstable),
        row(PROVIDERS_DISABLE, ToAgent, Request, Connection, Both, Unstable),
        row(SESSION_NEW, ToAgent, Request, Connection, Both, Stable),
        row(SESSION_LOAD, ToAgent, Request, Session, OnlyV1, Stable),
        row(SESSION_RESUME, ToAgent, Request, Session, Both, Stable),
        row(SESSION_FORK, ToAgent, Request, Session, Both, Unstable),
        row(SESSION_LIST, ToAgent, Request, Connection, Both, Stable),
        row(SESSION_CLOSE, ToAgent, Request, Session, Both, Stable),
        row(SESSION_DELETE, ToAgent, Request, Session, Both, Stable),
        row(SESSION_ARCHIVE, ToAgent, Request, Session, Both, Unstable),
        row(SESSION_UNARCHIVE, ToAgent, Request, Session, Both, Unstable),
        row(SESSION_STATUS, ToAgent, Request, Session, Both, Unstable),
        row(SESSION_SET_TITLE, ToAgent, Request, Session, Both, Unstable),
        row(SESSION_SET_MODE, ToAgent, Request, Session, OnlyV1, Stable),
        row(SESSION_SET_MODEL, ToAgent, Request, Session, OnlyV1, Legacy),
        row(SESSION_SET_CONFIG_OPTION, ToAgent, Request, Session, Both, Stable),
        row(SESSION_PROMPT, ToAgent, Request, Session, Both, Stable),
        row(SESSION_CANCEL, ToAgent, Notification, Session, Both, Stable),
        row(TOOL_CALL_CANCEL, ToAgent, Request, Session, OnlyV2, Stable),
        row(TERMINAL_CANCEL, ToAgent, Request, Session, OnlyV2, Stable),
        row(MCP_MESSAGE, ToAgent, Notification, Connection, Both, Unstable),
        row(SESSION_UPDATE, ToClient, Notification, Session, Both, Stable),
        row(SESSION_REQUEST_PERMISSION, ToClient, Request, Session, Both, Stable),
        row(FS_READ_TEXT_FILE, ToClient, Request, Session, OnlyV1, Stable),
        row(FS_WRITE_TEXT_FILE, ToClient, Request, Session, OnlyV1, Stable),
        row(TERMINAL_CREATE, ToClient, Request, Session, OnlyV1, Stable),
        row(TERMINAL_OUTPUT, ToClient, Request, Session, OnlyV1, Stable),
        row(TERMINAL_WAIT_FOR_EXIT, ToClient, Request, Session, OnlyV1, Stable),
        row(TERMINAL_KILL, ToClient, Request, Session, OnlyV1, Stable),
        row(TERMINAL_RELEASE, ToClient, Request, Session, OnlyV1, Stable),
        row(ELICITATION_CREATE, ToClient, Request, ByParams, Both, Stable),
        row(ELICITATION_COMPLETE, ToClient, Notification, Connection, Both, Stable),
        row(AUTH_STATUS_UPDATE, ToClient, Notification, Connection, Both, Unstable),
        row(MCP_MESSAGE, ToClient, Request, Connection, Both, Unstable),
        row(MCP_CONNECT, ToClient, Request, Connection, Both, Legacy),
        row(MCP_DISCONNECT, ToClient, Request, Connection, Both, Legacy),
        row(CANCEL_REQUEST, EitherWay, Notification, Connection, Both, Stable),
    ]
};

const fn row(
    name: &'static str,
    direction: Direction,
    kind: Kind,
    scope: Scope,
    versions: Versions,
    status: Status,
) -> Method {
    Method { name, direction, kind, scope, versions, status }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Serialize;

    use super::*;
    use crate::{v1, v2};

    /// Returns the names in a list of the schema crate. The list depends on the features of that crate.
    fn exported(names: &impl Serialize) -> BTreeSet<String> {
        let names = serde_json::to_value(names).unwrap();
        names.as_object().unwrap().values().map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    #[track_caller]
    fn check(side: Side, version: Version, exported: &BTreeSet<String>) {
        for name in exported {
            let method = find(side, version, name).unwrap_or_else(|| panic!("{name} has no row"));
            assert_ne!(method.status, Status::Legacy, "{name} is in the schema");
        }
        for method in METHODS {
            let here = method.is_received_by(side) && method.versions.contains(version);
            let required =
                method.status == Status::Stable || method.name == SESSION_FORK || method.name == MCP_MESSAGE;
            if here && required && method.direction != Direction::Both {
                assert!(exported.contains(method.name), "{} is not in the schema", method.name);
            }
        }
    }

    #[test]
    fn the_table_is_that_of_the_schema() {
        check(Side::Agent, Version::V1, &exported(&v1::AGENT_METHOD_NAMES));
        check(Side::Client, Version::V1, &exported(&v1::CLIENT_METHOD_NAMES));
        check(Side::Agent, Version::V2, &exported(&v2::AGENT_METHOD_NAMES));
        check(Side::Client, Version::V2, &exported(&v2::CLIENT_METHOD_NAMES));
        assert_eq!(v1::PROTOCOL_LEVEL_METHOD_NAMES.cancel_request, CANCEL_REQUEST);
        assert_eq!(v2::PROTOCOL_LEVEL_METHOD_NAMES.cancel_request, CANCEL_REQUEST);
    }

    #[test]
    fn no_side_finds_two_rows_for_a_name() {
        for side in [Side::Agent, Side::Client] {
            let mut seen = BTreeSet::new();
            for method in METHODS.iter().filter(|method| method.is_received_by(side)) {
                assert!(seen.insert(method.name), "{} twice", method.name);
            }
        }
    }

    #[test]
    fn these_methods_are_notifications() {
        let notifications: Vec<_> = METHODS
            .iter()
            .filter(|method| method.kind == Kind::Notification)
            .map(|method| (method.name, method.direction))
            .collect();
        assert_eq!(
            notifications,
            [
                (SESSION_CANCEL, Direction::ToAgent),
                (MCP_MESSAGE, Direction::ToAgent),
                (SESSION_UPDATE, Direction::ToClient),
                (ELICITATION_COMPLETE, Direction::ToClient),
                (AUTH_STATUS_UPDATE, Direction::ToClient),
                (CANCEL_REQUEST, Direction::Both),
            ]
        );
    }

    #[test]
    fn sides_and_versions_know_different_methods() {
        use Side::{Agent, Client};
        use Version::{V1, V2};
        #[track_caller]
        fn check(name: &str, expected: &[(Side, Version)]) {
            for side in [Agent, Client] {
                for version in [V1, V2] {
                    let known = expected.contains(&(side, version));
                    assert_eq!(knows(side, version, name), known, "{name} {side:?} {version:?}");
                }
            }
        }
        check(SESSION_PROMPT, &[(Agent, V1), (Agent, V2)]);
        check(SESSION_LOAD, &[(Agent, V1)]);
        check(SESSION_SET_MODEL, &[(Agent, V1)]);
        check(AUTH_LOGIN, &[(Agent, V2)]);
        check(FS_READ_TEXT_FILE, &[(Client, V1)]);
        check(MCP_CONNECT, &[(Client, V1), (Client, V2)]);
        check(MCP_MESSAGE, &[(Agent, V1), (Agent, V2), (Client, V1), (Client, V2)]);
        check(CANCEL_REQUEST, &[(Agent, V1), (Agent, V2), (Client, V1), (Client, V2)]);
        check("_vendor/thing", &[]);
        check("Session/prompt", &[]);
        check("", &[]);
    }

    #[test]
    fn requests_are_answered_by_their_receiver() {
        for method in METHODS {
            let expected = (method.kind == Kind::Request)
                .then(|| if method.is_received_by(Side::Agent) { Side::Agent } else { Side::Client });
            assert_eq!(method.answering_side(), expected, "{}", method.name);
        }
    }

    #[test]
    fn batches_wait_for_six_methods_and_never_for_a_prompt() {
        let waited: Vec<_> =
            METHODS.iter().map(|method| method.name).filter(|name| is_lifecycle(name)).collect();
        assert_eq!(waited, [INITIALIZE, AUTHENTICATE, AUTH_LOGIN, SESSION_NEW, SESSION_LOAD, SESSION_RESUME]);
    }

    #[test]
    fn extensions_start_with_an_underscore() {
        assert!(is_extension("_narrows/ping"));
        assert!(!is_extension(CANCEL_REQUEST));
        assert!(METHODS.iter().all(|method| !is_extension(method.name)));
    }
}
