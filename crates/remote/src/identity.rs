//! Who is at the other end.

/// The name under which sessions belong to somebody, and what that somebody may do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// From the file of tokens, from a client's certificate, or [`Identity::local`].
    pub name: String,
    /// What it is narrowed to; `None` is not narrowed at all.
    pub scopes: Option<Vec<String>>,
}

impl Identity {
    /// Whoever comes where nobody is asked for a token: somebody on this machine.
    #[must_use]
    pub fn local() -> Self {
        Self { name: "local".to_owned(), scopes: None }
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
}
