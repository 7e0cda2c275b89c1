//! Who is at the other end.

use std::fmt;

/// By what somebody is known. What one proof calls somebody is another than what another proof does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// By nothing but being on this machine.
    Place,
    /// By the user whose socket the other end is. Their name is their number.
    User,
    /// By a token.
    Token,
    /// By a certificate.
    Certificate,
    /// By whoever handed the connection over.
    Handed,
}

/// The name under which sessions belong to somebody, and what that somebody may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// By what they are known.
    pub proof: Proof,
    /// From the file of tokens, from a client's certificate, or [`Identity::local`].
    pub name: String,
    /// What it is narrowed to; `None` is not narrowed at all.
    pub scopes: Option<Vec<String>>,
    /// The only pools of a bus that it may use; `None` is all of them.
    pub pools: Option<Vec<String>>,
}

impl Identity {
    /// Whoever comes where nobody is asked for a token: somebody on this machine.
    #[must_use]
    pub fn local() -> Self {
        Self::new(Proof::Place, "local")
    }

    /// An identity that is restricted in nothing.
    #[must_use]
    pub fn new(proof: Proof, name: impl Into<String>) -> Self {
        Self { proof, name: name.into(), scopes: None, pools: None }
    }

    /// Returns `true` if the socket itself shows that it is the user of this number.
    #[must_use]
    pub fn is_user(&self, user: u32) -> bool {
        self.proof == Proof::User && self.name == user.to_string()
    }
}

/// A name that nobody else has by another proof.
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

/// Whether `name` may name somebody: it goes into logs, files and answers as it is.
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
    fn nobody_takes_anothers_name_by_another_proof() {
        let named = |proof| Identity::new(proof, "7").to_string();
        assert_eq!(named(Proof::User), "uid:7");
        assert_eq!(named(Proof::Token), "token:7");
        assert_eq!(named(Proof::Certificate), "cert:7");
        assert_eq!(named(Proof::Handed), "7");
        assert_eq!(Identity::local().to_string(), "local");
    }
}
