//! Client identities and how they are proven.

use std::fmt;

/// How an identity was proven. The same name with another proof is another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The client has proven nothing but that it runs on this machine.
    Place,
    /// The user that owns the peer socket. The name is the user id.
    User,
    Token,
    Certificate,
    /// Another component of the program has authenticated the client and handed the connection over.
    Handed,
}

/// The owner of connections and sessions, and its permissions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub proof: Proof,
    /// The name from the token file or the client certificate, or that of [`Identity::local`].
    pub name: String,
    /// Scopes of the tools that the identity may use; `None` is all tools.
    pub scopes: Option<Vec<String>>,
    /// Pools of a bus that the identity may use; `None` is all pools.
    pub pools: Option<Vec<String>>,
}

impl Identity {
    /// Returns the identity of unauthenticated clients on this machine.
    #[must_use]
    pub fn local() -> Self {
        Self::new(Proof::Place, "local")
    }

    /// Returns an identity without restrictions.
    #[must_use]
    pub fn new(proof: Proof, name: impl Into<String>) -> Self {
        Self { proof, name: name.into(), scopes: None, pools: None }
    }

    /// Returns `true` if the identity is the user id `user`, proven by the owner of the peer socket.
    #[must_use]
    pub fn is_user(&self, user: u32) -> bool {
        self.proof == Proof::User && self.name == user.to_string()
    }
}

/// The prefix of the text names the proof, so that no identity can take the name of another.
impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proof, name, .. } = self;
        match proof {
            Proof::Place | Proof::Handed => out.write_str(name),
            Proof::User => write!(out, "uid:{name}"),
            Proof::Token => write!(out, "token:{name}"),
            Proof::Certificate => write!(out, "cert:{name}"),
        }
    }
}

/// Returns `true` if `name` may be the name of an identity. Names are written to logs, files and responses unescaped.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@' | b'+');
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "laptop", "ci-1", "me@bus.example", "v1.2_x+y", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "a\n", "a/b", "\u{e9}", "a\"", "../x", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn the_name_of_an_identity_is_unique_across_proofs() {
        let named = |proof| Identity::new(proof, "7").to_string();
        assert_eq!(named(Proof::User), "uid:7");
        assert_eq!(named(Proof::Token), "token:7");
        assert_eq!(named(Proof::Certificate), "cert:7");
        assert_eq!(named(Proof::Handed), "7");
        assert_eq!(Identity::local().to_string(), "local");
    }
}
