//! Evaluates the answer to `session/request_permission`: only a clear approval allows anything.
//!
//! Options and outcomes have the same form in both versions. The text is read directly: the outcomes of v1
//! are a closed enum, so an unknown outcome would become a malformed answer instead of a refusal.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::raw::read_object;
use crate::{v1, v2};

/// An offered permission option of either version.
pub trait Offered {
    /// Returns the id of the option.
    fn id(&self) -> &str;

    /// Returns `true` if choosing the option allows the operation. Options of unknown kinds do not.
    fn allows(&self) -> bool;
}

impl Offered for v1::PermissionOption {
    fn id(&self) -> &str {
        &self.option_id.0
    }

    fn allows(&self) -> bool {
        use v1::PermissionOptionKind::{AllowAlways, AllowOnce};
        matches!(self.kind, AllowOnce | AllowAlways)
    }
}

impl Offered for v2::PermissionOption {
    fn id(&self) -> &str {
        &self.option_id.0
    }

    fn allows(&self) -> bool {
        use v2::PermissionOptionKind::{AllowAlways, AllowOnce};
        matches!(self.kind, AllowOnce | AllowAlways)
    }
}

/// Returns the offered option that `result`, the answer to a permission request, selects.
///
/// Returns `None` for an unknown outcome, an id that was not offered or was offered twice, a repeated
/// member, and a malformed answer.
pub fn selected_option<'o, O: Offered>(result: &RawValue, offered: &'o [O]) -> Option<&'o O> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        outcome: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Outcome {
        outcome: String,
        #[serde(rename = "optionId")]
        option_id: Option<String>,
    }
    let answer: Answer<'_> = read_object(result).ok()?;
    let Outcome { outcome, option_id } = read_object(answer.outcome).ok()?;
    let id = option_id.filter(|_| outcome == "selected")?;
    let mut named = offered.iter().filter(|option| option.id() == id);
    let option = named.next()?;
    named.next().is_none().then_some(option)
}

/// Returns the selected option if it allows the operation, and `None` for everything else.
pub fn approved_option<'o, O: Offered>(result: &RawValue, offered: &'o [O]) -> Option<&'o O> {
    selected_option(result, offered).filter(|option| option.allows())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &str = r#"[
        {"optionId":"once","name":"Allow","kind":"allow_once"},
        {"optionId":"always","name":"Always","kind":"allow_always"},
        {"optionId":"no","name":"Reject","kind":"reject_once"},
        {"optionId":"twice","name":"Allow","kind":"allow_once"},
        {"optionId":"twice","name":"Reject","kind":"reject_once"}]"#;

    /// Checks the id of the selected and of the approved option, in both versions.
    #[track_caller]
    fn check(result: &str, expected: (Option<&str>, Option<&str>)) {
        let result: &RawValue = serde_json::from_str(result).unwrap();
        let v1: Vec<v1::PermissionOption> = serde_json::from_str(OPTIONS).unwrap();
        let v2: Vec<v2::PermissionOption> = serde_json::from_str(OPTIONS).unwrap();
        let in_v1 =
            (selected_option(result, &v1).map(Offered::id), approved_option(result, &v1).map(Offered::id));
        let in_v2 =
            (selected_option(result, &v2).map(Offered::id), approved_option(result, &v2).map(Offered::id));
        assert_eq!(in_v1, expected, "v1: {result}");
        assert_eq!(in_v2, expected, "v2: {result}");
    }

    #[test]
    fn only_an_offered_allowing_option_approves() {
        check(r#"{"outcome":{"outcome":"selected","optionId":"once"}}"#, (Some("once"), Some("once")));
        check(
            r#"{"_meta":{},"outcome":{"optionId":"always","x":1,"outcome":"selected"}}"#,
            (Some("always"), Some("always")),
        );
        check(r#"{"outcome":{"outcome":"selected","optionId":"no"}}"#, (Some("no"), None));
    }

    #[test]
    fn every_other_answer_approves_nothing() {
        for result in [
            r#"{"outcome":{"outcome":"cancelled"}}"#,
            r#"{"outcome":{"outcome":"cancelled","optionId":"once"}}"#,
            r#"{"outcome":{"outcome":"_approved","optionId":"once"}}"#,
            r#"{"outcome":{"outcome":"SELECTED","optionId":"once"}}"#,
            r#"{"outcome":{"outcome":"selected","optionId":"allow"}}"#,
            r#"{"outcome":{"outcome":"selected","optionId":"twice"}}"#,
            r#"{"outcome":{"outcome":"selected","optionId":"no","optionId":"once"}}"#,
            r#"{"outcome":{"outcome":"cancelled","outcome":"selected","optionId":"once"}}"#,
            r#"{"outcome":{"outcome":"selected","optionId":0}}"#,
            r#"{"outcome":{"outcome":"selected","optionId":null}}"#,
            r#"{"outcome":{"outcome":"selected"}}"#,
            r#"{"outcome":["selected","once"]}"#,
            r#"[{"outcome":"selected","optionId":"once"}]"#,
            r#"{"outcome":"selected","optionId":"once"}"#,
            r#"{"outcome":null}"#,
            "{}",
            "null",
            "true",
        ] {
            check(result, (None, None));
        }
    }

    #[test]
    fn a_custom_kind_is_selected_but_allows_nothing() {
        let offered: Vec<v2::PermissionOption> =
            serde_json::from_str(r#"[{"optionId":"x","name":"X","kind":"_allow_today"}]"#).unwrap();
        let result: &RawValue =
            serde_json::from_str(r#"{"outcome":{"outcome":"selected","optionId":"x"}}"#).unwrap();
        assert_eq!(selected_option(result, &offered).map(Offered::id), Some("x"));
        assert_eq!(approved_option(result, &offered), None);
    }
}
