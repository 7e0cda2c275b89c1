//! Cookies for the life of a connection: a load balancer may use them to find the same server again.

use std::collections::BTreeMap;
use std::sync::Mutex;

use reqwest::header::{HeaderMap, HeaderValue, SET_COOKIE};

use narrows_base::sync::lock;

const MAX_COOKIES: usize = 32;

const MAX_COOKIE_BYTES: usize = 4096;

/// Cookies of one endpoint. They are sent only to this endpoint, so most attributes of a cookie can be
/// ignored.
#[derive(Debug, Default)]
pub(super) struct Cookies(Mutex<BTreeMap<String, String>>);

impl Cookies {
    pub(super) fn store(&self, headers: &HeaderMap) {
        let mut kept = lock(&self.0);
        for set in headers.get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok()) {
            let mut parts = set.split(';').map(str::trim);
            let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else { continue };
            let (name, value) = (name.trim(), value.trim());
            let is_over = parts.any(|part| {
                let age = part.split_once('=').filter(|(key, _)| key.trim().eq_ignore_ascii_case("max-age"));
                age.is_some_and(|(_, age)| age.trim().parse::<i64>().is_ok_and(|age| age <= 0))
            });
            if is_over {
                kept.remove(name);
            } else if !name.is_empty()
                && set.len() <= MAX_COOKIE_BYTES
                && (kept.len() < MAX_COOKIES || kept.contains_key(name))
            {
                kept.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    pub(super) fn header(&self) -> Option<HeaderValue> {
        let kept = lock(&self.0);
        let pairs: Vec<String> = kept.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut header = (!pairs.is_empty()).then(|| HeaderValue::from_str(&pairs.join("; ")).ok())??;
        header.set_sensitive(true);
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn stored_cookies_always_form_a_header(set in proptest::collection::vec("[ -~]{0,20}", 0..50)) {
            let cookies = Cookies::default();
            let header = |set: &String| HeaderValue::from_str(set).ok().map(|value| (SET_COOKIE, value));
            cookies.store(&set.iter().filter_map(header).collect());
            let kept = cookies.0.lock().unwrap().len();
            proptest::prop_assert!(kept <= MAX_COOKIES);
            proptest::prop_assert_eq!(cookies.header().is_some(), kept > 0);
        }
    }

    #[test]
    fn cookies_are_kept_until_they_expire() {
        let cookies = Cookies::default();
        let store = |set: &[&'static str]| {
            let headers = set.iter().map(|set| (SET_COOKIE, HeaderValue::from_static(set))).collect();
            cookies.store(&headers);
            cookies.header().map(|header| header.to_str().unwrap().to_owned())
        };
        assert_eq!(store(&[]), None);
        assert_eq!(
            store(&["a=1; Path=/; HttpOnly", " b = 2=3 ;Secure", "bad", "=x"]).as_deref(),
            Some("a=1; b=2=3")
        );
        assert_eq!(store(&["a=4;max-age=60"]).as_deref(), Some("a=4; b=2=3"));
        assert_eq!(store(&["a=; Max-Age=0", "b=5"]).as_deref(), Some("b=5"));
    }
}
