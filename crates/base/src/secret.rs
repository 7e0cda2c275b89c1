//! A wrapper for secret values, which are never displayed.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// An API key, a token, or the value of a header that may hold one. Dropping the value clears its memory.
/// `Debug` and `Display` show a mask, and the value cannot be serialized.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Returns the secret value, for code that sends or compares it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Returns `true` if the secret value has no characters.
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

impl fmt::Display for Secret {
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
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "[secret] [secret] Some([secret])");
        assert_eq!(secret.expose(), "sk-123");
        assert!(!secret.is_empty() && Secret::from("").is_empty());
    }
}
