//! A value that is never shown.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A key, or the value of a header that may be one. Wiped from memory when dropped, never shown, never stored.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// The value itself, for the one place that sends it.
    pub(crate) fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value.into())
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::from("sk-123".to_owned());
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "[secret] Some([secret])");
        assert_eq!(secret.expose(), "sk-123");
    }
}
