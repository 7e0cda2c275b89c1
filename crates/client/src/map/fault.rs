//! Failures that an agent reports instead of an answer.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A failure that an agent reports instead of an answer, in `_meta["narrows/error"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Fault {
    /// Kind of failure, such as `auth` or `rate_limit`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The endpoint's message, or the cause.
    pub message: String,
    /// `true` if the same prompt may succeed later.
    pub retryable: bool,
}

/// Known members of a `_meta`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Marks<'a> {
    #[serde(rename = "narrows/error", borrow)]
    error: Option<&'a RawValue>,
    #[serde(rename = "narrows/separator", borrow)]
    separator: Option<&'a RawValue>,
    /// Usage of a model call, which some agents report only in chunks.
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

impl<'a> Marks<'a> {
    /// Reads the known members of a `_meta`. If `meta` is not an object, all members are missing.
    pub(super) fn from_meta(meta: Option<&'a RawValue>) -> Self {
        meta.filter(|meta| meta.get().starts_with('{'))
            .and_then(|meta| serde_json::from_str(meta.get()).ok())
            .unwrap_or_default()
    }

    pub(super) fn is_none(&self) -> bool {
        self.error.is_none() && self.separator.is_none() && self.usage.is_none()
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        // A failure that cannot be parsed still counts as a failure, with default values.
        self.error.map(|error| serde_json::from_str(error.get()).unwrap_or_default())
    }

    pub(super) fn usage(&self) -> Option<&'a RawValue> {
        self.usage.filter(|usage| usage.get().starts_with('{'))
    }

    /// Returns `true` if the text only separates a failure from the answer, so that it is not part of the
    /// answer.
    pub(super) fn separates(&self) -> bool {
        self.separator.is_some()
    }
}

impl Fault {
    /// Returns the failure that an agent reports in the `_meta` of a result.
    pub fn from_result(result: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        struct Marked<'a> {
            #[serde(rename = "_meta", borrow)]
            meta: Option<&'a RawValue>,
        }
        let text = result.get();
        let marked: Marked<'_> = text.starts_with('{').then(|| serde_json::from_str(text).ok())??;
        Marks::from_meta(marked.meta).fault()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_mark_is_a_failure() {
        #[track_caller]
        fn check(meta: &str, expected: Option<(&str, bool)>) {
            let result = format!(r#"{{"stopReason":"end_turn","_meta":{meta}}}"#);
            let fault = Fault::from_result(serde_json::from_str(&result).unwrap());
            assert_eq!(fault.as_ref().map(|fault| (&*fault.message, fault.retryable)), expected, "{meta}");
        }
        check("null", None);
        check("7", None);
        check("[]", None);
        check("{}", None);
        check(r#"{"narrows/error":null}"#, None);
        check(r#"{"narrows/error":{"kind":"x","message":"m","retryable":true}}"#, Some(("m", true)));
        check(r#"{"narrows\/error":{"message":"m"}}"#, Some(("m", false)));
        check(
            r#"{"narrows/error":{"kind":"auth","status":null,"url":"","message":"m","requestId":"r"}}"#,
            Some(("m", false)),
        );
        check(r#"{"narrows/error":{"message":7}}"#, Some(("", false)));
        check(r#"{"narrows/error":"no"}"#, Some(("", false)));
    }
}
