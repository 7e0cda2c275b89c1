//! A token, which is never shown.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A token. Wiped from memory when dropped, never shown.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// The header that shows it to a server; `None` if it has characters that no header can have.
    pub(super) fn bearer(&self) -> Option<reqwest::header::HeaderValue> {
        let text = SecretString::from(format!("Bearer {}", self.0.expose_secret()));
        let mut value = reqwest::header::HeaderValue::from_str(text.expose_secret()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
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
    fn a_token_is_not_shown() {
        let token = Secret::from("t0ken".to_owned());
        assert_eq!(format!("{token:?} {:?}", token.bearer().unwrap()), "[secret] Sensitive");
        assert_eq!(token.bearer().unwrap().as_bytes(), b"Bearer t0ken");
        assert!(Secret::from("a\nb".to_owned()).bearer().is_none());
    }
}
