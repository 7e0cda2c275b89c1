//! Who is at the other end, how that is known, what they may cause, and whose a session is.

use std::fmt;
use std::io;

use crate::call::Call;

/// Who is at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    /// Such as `user:ada` or `uid:1000`.
    pub id: String,
    /// How that is known.
    pub method: IdentityMethod,
    /// What it is in this governance.
    pub roles: Vec<String>,
    /// The tools it may cause to be used: `read_file`, `notes/add`, `notes/*`, `kind:read`. Of the operator's tools only
    /// those are left. `None`: all of them.
    pub scopes: Option<Vec<String>>,
    /// What the proof of who it is narrows that to besides, such as the scopes of a token: a call has to be in both.
    pub narrowed: Option<Vec<String>>,
}

/// How it is known who somebody is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityMethod {
    /// They have started this process.
    #[default]
    Process,
    /// The system names the user at the other end of a unix socket.
    UnixPeer,
    /// The system names the user whose the other socket of a loopback connection is.
    SocketOwner,
    /// They have shown a token of ours.
    Token,
    /// They have shown a certificate of an authority that we trust.
    Certificate,
    /// A bus that has started this process says so.
    Bus,
    /// They have signed with a key that the governance names.
    Signature,
    /// It is not known.
    Unauthenticated,
}

impl IdentityMethod {
    /// The name by which a log calls it.
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

/// Whose a session is, on whichever connection and in whichever process it was made.
pub trait SessionOwners: fmt::Debug + Send + Sync {
    /// Whether `session` is the one of `owner`. One that nobody is known to have made is nobody's.
    fn is_owner(&self, owner: &str, session: &str) -> bool;

    /// Returns `true` if any identity is known to have made `session`.
    fn has_owner(&self, session: &str) -> bool;

    /// Notes that `owner` has made `session`, so that it is known after a restart too.
    ///
    /// # Errors
    /// When that cannot be kept.
    fn set_owner(&self, owner: &str, session: &str) -> io::Result<()>;
}

impl Principal {
    /// Whether it is a user of this machine, who may know where things lie here.
    pub(crate) fn is_local(&self) -> bool {
        match self.method {
            IdentityMethod::Process | IdentityMethod::UnixPeer | IdentityMethod::SocketOwner => true,
            // A bus names users whom it knows by its unix socket, and others as `bus:…`.
            IdentityMethod::Bus => self.id.starts_with("user:") || self.id.starts_with("uid:"),
            IdentityMethod::Token
            | IdentityMethod::Certificate
            | IdentityMethod::Signature
            | IdentityMethod::Unauthenticated => false,
        }
    }

    /// Whether it may cause this call, as far as its scopes go. A kind is that which the call turns out to be: whatever an
    /// agent calls it, each of them has to be in scope.
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
    fn a_kind_that_is_only_claimed_is_not_in_scope() {
        let hidden = call(None, "Look", "read", json!({"command": "rm -rf /"}));
        check(&["kind:read"], &hidden, false);
        check(&["kind:execute"], &hidden, false);
        check(&["kind:read", "kind:execute"], &hidden, true);
    }

    #[test]
    fn a_name_that_poses_as_a_kind_or_a_tool_of_a_server_is_not_in_scope() {
        let rm = json!({"command": "rm -rf x"});
        let claimed = |name: &str| Call::reported(Some(name), "execute", rm.clone());
        check(&["kind:read"], &claimed("kind:read"), false);
        check(&["notes/add", "notes/*"], &claimed("notes/add"), false);
        check(&["fs/read_text_file"], &claimed("fs/read_text_file"), false);
        check(&["kind:execute"], &claimed("kind:read"), true);
    }

    proptest! {
        /// A call is in both or it is in none.
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

        /// Whatever the scopes are, more of them allow at least as much, and none allows nothing.
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
