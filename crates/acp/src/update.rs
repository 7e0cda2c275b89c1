//! The envelope of `session/update`, read without the update inside.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::raw::{Raw, ReadError, read_object};

/// A view of the params of `session/update`. `U` is the update type of the connection's version.
///
/// The schema's notification types fail to parse if the update is an unknown v1 variant. Code that stores
/// or forwards a notification keeps its text instead of this view.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
pub struct Update<U> {
    pub session_id: Arc<str>,
    /// The update, possibly of an unknown kind.
    pub update: Raw<U>,
}

impl<U> Update<U> {
    /// Reads the envelope.
    ///
    /// # Errors
    /// [`ReadError::Shape`] if the session or the update is missing.
    pub fn from_params(params: &RawValue) -> Result<Self, ReadError> {
        read_object(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn any_update_with_a_session_id_is_read() {
        #[track_caller]
        fn check(params: &str, expected: Option<(&str, &str)>) {
            let update = Update::<v1::SessionUpdate>::from_params(serde_json::from_str(params).unwrap());
            let found = update.as_ref().ok().map(|update| (&*update.session_id, update.update.text()));
            assert_eq!(found, expected, "{params}");
        }
        check(r#"{"sessionId":"s","update":{ "x":1 },"_meta":7}"#, Some(("s", r#"{ "x":1 }"#)));
        check(r#"{"update":null,"sessionId":""}"#, Some(("", "null")));
        check(r#"{"sessionId":"s"}"#, None);
        check(r#"{"sessionId":1,"update":{}}"#, None);
        check(r#"{"sessionId":"a","sessionId":"b","update":{}}"#, None);
        check(r#"["s",{}]"#, None);
    }
}
