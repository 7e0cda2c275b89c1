//! The envelope of `session/update`, read without judging the update inside.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::raw::{Raw, ReadError, read_object};

/// A view of the params of `session/update`, with `U` the update type of the connection's version.
///
/// The schema's own notification types cannot be read at all when the update is of an unknown v1 variant.
/// This is a view for readers: what is stored or passed on is the notification's text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", bound = "")]
pub struct Update<U> {
    /// The session it belongs to.
    pub session_id: Arc<str>,
    /// The update, whatever it is.
    pub update: Raw<U>,
}

impl<U> Update<U> {
    /// Reads the envelope.
    ///
    /// # Errors
    /// [`ReadError::Shape`] if there is no session or no update in it.
    pub fn of(params: &RawValue) -> Result<Self, ReadError> {
        read_object(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn any_update_of_a_named_session_is_taken() {
        #[track_caller]
        fn check(params: &str, expected: Option<(&str, &str)>) {
            let update = Update::<v1::SessionUpdate>::of(serde_json::from_str(params).unwrap());
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
