//! The header that carries a token.

use narrows_base::Secret;
use reqwest::header::HeaderValue;

/// Returns the value of `Authorization` for `token`, or `None` if the token has characters that a header
/// cannot have.
pub(super) fn bearer(token: &Secret) -> Option<HeaderValue> {
    let text = Secret::from(format!("Bearer {}", token.expose()));
    let mut value = HeaderValue::from_str(text.expose()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let value = bearer(&"t0ken".into()).unwrap();
        assert_eq!(format!("{value:?}"), "Sensitive");
        assert_eq!(value.as_bytes(), b"Bearer t0ken");
        assert!(bearer(&"a\nb".into()).is_none());
    }
}
