//! Identities of clients and approvers: name, proof, scopes, and ownership of sessions.

use std::fmt;
use std::io;

use crate::call::Call;

/// The identity of a client or an approver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    /// Name, such as `user:ada` or `uid:1000`.
    pub id: String,
    pub method: IdentityMethod,
    pub roles: Vec<String>,
    /// Tools that the agent may use for this identity, such as `read_file`, `notes/add`, `notes/*` or
    pub scopes: Option<Vec<String>>,
    /// Further restriction that follows from the proof, such as the scopes of a token. A call must be allowed
    /// by both lists.
    pub narrowed: Option<Vec<String>>,
}

/// Method by which an identity is proven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityMethod {
    #[default]
    Process,
    /// The operating system reports the user of the peer of a unix socket.
    UnixPeer,
    /// The operating system reports the owner of the peer's socket on a loopback connection.
    SocketOwner,
    Token,
    Certificate,
    /// The bus that started this process reports the name of the client.
    Bus,
    Signature,
    Unauthenticated,
}

impl IdentityMethod {
    /// Returns the name of the method, as the audit log contains it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::UnixPeer => "unix-peer",
            Self::SocketOwner => "socket-owner",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::Bus => "bus",
            Self::Signature => "signature",
            Self::Unauthenticated => "none",
        }
    }
}

/// Owners of sessions, across all connections and processes.
pub trait SessionOwners: fmt::Debug + Send + Sync {
    /// Returns `true` if `owner` owns `session`. A session whose owner is unknown belongs to no identity.
    fn is_owner(&self, owner: &str, session: &str) -> bool;

    /// Returns `true` if any identity owns `session`.
    fn has_owner(&self, session: &str) -> bool;

    /// Stores that `owner` owns `session`. Later processes know it, too.
    ///
    /// # Errors
    ///
    /// If the owner cannot be stored.
    fn set_owner(&self, owner: &str, session: &str) -> io::Result<()>;
}

impl Principal {
    /// Returns `true` for users of this machine, who may see paths in error messages.
    pub(crate) fn is_local(&self) -> bool {
        match self.method {
            IdentityMethod::Process | IdentityMethod::UnixPeer | IdentityMethod::SocketOwner => true,
            // A bus reports a user of its unix socket as `user:…` or `uid:…`, and any other client as
            // `bus:…`.
            IdentityMethod::Bus => self.id.starts_with("user:") || self.id.starts_with("uid:"),
            IdentityMethod::Token
            | IdentityMethod::Certificate
            | IdentityMethod::Signature
            | IdentityMethod::Unauthenticated => false,
        }
    }

    /// Returns `true` if the scopes allow this call. Each kind that the input shows must be in scope, even if
    /// the agent reports another kind.
    pub(crate) fn may_use(&self, call: &Call) -> bool {
        [&self.scopes, &self.narrowed].into_iter().flatten().all(|scopes| is_in_scope(call, scopes))
    }
}

fn is_in_scope(call: &Call, scopes: &[String]) -> bool {
    let names = |wanted: &str| scopes.iter().any(|scope| scope == wanted);
    if names(&call.tool()) {
        return true;
    }
    if let (_, Some(server)) = call.name_and_server() {
        return names(&format!("{server}/*"));
    }
    call.is_only(|kind| names(&format!("kind:{kind}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn call(server: Option<&str>, name: &str, kind: &str, input: serde_json::Value) -> Call {
        Call::new(server.map(str::to_owned), name, kind, input)
    }

    #[track_caller]
    fn check(scopes: &[&str], call: &Call, expected: bool) {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        let principal = Principal { scopes: Some(scopes), ..Principal::default() };
        assert_eq!(principal.may_use(call), expected, "{} {:?}", call.tool(), principal.scopes);
    }

    #[test]
    fn scopes_name_tools_servers_and_kinds() {
        let read = call(None, "Read", "read", json!({"path": "/a"}));
        check(&[], &read, false);
        check(&["Read"], &read, true);
        check(&["kind:read"], &read, true);
        check(&["kind:edit", "read"], &read, false);
        let add = call(Some("notes"), "add", "other", json!({}));
        check(&["notes/add"], &add, true);
        check(&["notes/*"], &add, true);
        check(&["note/*", "add", "kind:other", "*"], &add, false);
    }

    #[test]
    fn a_claimed_kind_is_not_enough_for_a_scope() {
        let hidden = call(None, "Look", "read", json!({"command": "rm -rf /"}));
        check(&["kind:read"], &hidden, false);
        check(&["kind:execute"], &hidden, false);
        check(&["kind:read", "kind:execute"], &hidden, true);
    }

    #[test]
    fn a_name_that_imitates_a_reserved_name_is_not_in_scope() {
        let rm = json!({"command": "rm -rf x"});
        let claimed = |name: &str| Call::reported(Some(name), "execute", rm.clone());
        check(&["kind:read"], &claimed("kind:read"), false);
        check(&["notes/add", "notes/*"], &claimed("notes/add"), false);
        check(&["fs/read_text_file"], &claimed("fs/read_text_file"), false);
        check(&["kind:execute"], &claimed("kind:read"), true);
    }

    proptest! {
        #[test]
        fn two_lists_are_narrower_than_one(
            scopes in prop::option::of(prop::collection::vec("kind:(read|edit)|Read", 0..3)),
            narrowed in prop::option::of(prop::collection::vec("kind:(read|edit)|Read", 0..3)),
            kind in "read|edit|execute",
        ) {
            let call = call(None, "Read", &kind, json!({}));
            let may = |scopes: &Option<Vec<String>>, narrowed: &Option<Vec<String>>| {
                let (scopes, narrowed) = (scopes.clone(), narrowed.clone());
                Principal { scopes, narrowed, ..Principal::default() }.may_use(&call)
            };
            prop_assert_eq!(may(&scopes, &narrowed), may(&scopes, &None) && may(&None, &narrowed));
        }

        /// A call that is allowed by some scopes is also allowed by more scopes. An empty list allows
        /// nothing.
        #[test]
        fn scopes_only_narrow(
            scopes in prop::collection::vec("(kind:)?(read|edit|notes/\\*|notes/add|Read)", 0..4),
            more in "(kind:)?(read|edit|notes/\\*|Read)",
            kind in "read|edit|execute",
            server in prop::option::of("notes|db"),
        ) {
            let call = call(server.as_deref(), "Read", &kind, json!({}));
            let with = |scopes: Option<Vec<String>>| Principal { scopes, ..Principal::default() }.may_use(&call);
            let mut both = scopes.clone();
            both.push(more);
            prop_assert!(with(None) && !with(Some(Vec::new())));
            prop_assert!(!with(Some(scopes)) || with(Some(both)));
        }
    }
}
