//! Chooses an option of a permission request by its kind, never by its position or label.

use serde::{Deserialize, Serialize};

/// An option of a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    pub option_id: String,
    /// Label for people.
    #[serde(default)]
    pub name: String,
    /// Kind: `allow_once`, `allow_always`, `reject_once`, `reject_always`, or something unknown.
    pub kind: String,
}

/// The answer to a permission request, in the format of both versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PermissionAnswer {
    outcome: Outcome,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<Meta>,
}

/// Members of `_meta` that a gate in front of the agent reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Meta {
    #[serde(rename = "narrows/by")]
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Outcome {
    #[serde(rename_all = "camelCase")]
    Selected {
        option_id: String,
    },
    Cancelled,
}

impl PermissionAnswer {
    pub(crate) const CANCELLED: Self = Self { outcome: Outcome::Cancelled, meta: None };

    fn selected(option: &PermissionOption) -> Self {
        Self { outcome: Outcome::Selected { option_id: option.option_id.clone() }, meta: None }
    }

    /// Marks the answer as not given by a person. `by` names the cause.
    pub(crate) fn unasked(self, by: &'static str) -> Self {
        Self { meta: Some(Meta { by }), ..self }
    }

    pub(crate) fn option_id(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Selected { option_id } => Some(option_id),
            Outcome::Cancelled => None,
        }
    }
}

/// Returns the answer that allows the request once. If no option allows it once and `may_always` is set,
/// allows it for good. `None` if no such option exists.
pub(crate) fn allow(options: &[PermissionOption], may_always: bool) -> Option<PermissionAnswer> {
    let always = || unambiguous(options, "allow_always").filter(|_| may_always);
    unambiguous(options, "allow_once").or_else(always).map(PermissionAnswer::selected)
}

/// Returns the answer that rejects the request. If no option rejects, the answer cancels the request.
pub(crate) fn reject(options: &[PermissionOption]) -> PermissionAnswer {
    let option = unambiguous(options, "reject_once").or_else(|| unambiguous(options, "reject_always"));
    option.map_or(PermissionAnswer::CANCELLED, PermissionAnswer::selected)
}

/// Returns the answer that selects the option `id`, if exactly one option has this id.
pub(crate) fn exactly(options: &[PermissionOption], id: &str) -> Option<PermissionAnswer> {
    let mut named = options.iter().filter(|option| option.option_id == id);
    let option = named.next()?;
    named.next().is_none().then(|| PermissionAnswer::selected(option))
}

/// Returns the first option of this kind whose id no other option has. With a duplicate id, the agent could
/// mean the other option.
fn unambiguous<'a>(options: &'a [PermissionOption], kind: &str) -> Option<&'a PermissionOption> {
    let shares = |option: &PermissionOption| {
        options.iter().filter(|other| other.option_id == option.option_id).count() > 1
    };
    options.iter().find(|option| option.kind == kind && !shares(option))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Vec<PermissionOption> {
        let option = |word: &str| {
            let (id, kind) = word.split_once(':').expect("id:kind");
            PermissionOption { option_id: id.to_owned(), name: "Allow!".to_owned(), kind: kind.to_owned() }
        };
        text.split_whitespace().map(option).collect()
    }

    #[track_caller]
    fn check(text: &str, once: Option<&str>, always: Option<&str>, rejected: Option<&str>) {
        let options = options(text);
        assert_eq!(allow(&options, false).as_ref().and_then(PermissionAnswer::option_id), once, "{text}");
        assert_eq!(allow(&options, true).as_ref().and_then(PermissionAnswer::option_id), always, "{text}");
        assert_eq!(reject(&options).option_id(), rejected, "{text}");
    }

    #[test]
    fn the_kind_decides_and_never_the_position() {
        check("y:allow_once n:reject_once", Some("y"), Some("y"), Some("n"));
        check("A:allow_always y:allow_once N:reject_always n:reject_once", Some("y"), Some("y"), Some("n"));
        check("A:allow_always N:reject_always", None, Some("A"), Some("N"));
        check("reject_once:allow_once", Some("reject_once"), Some("reject_once"), None);
        check("x:_reject y:allow z:", None, None, None);
        check("", None, None, None);
    }

    #[test]
    fn an_ambiguous_option_id_is_not_chosen() {
        check("x:allow_once x:reject_once", None, None, None);
        check("x:allow_once x:reject_once n:reject_always", None, None, Some("n"));
        let options = options("x:allow_once x:reject_once y:allow_once");
        for (id, taken) in [("x", None), ("y", Some("y")), ("z", None), ("", None)] {
            assert_eq!(exactly(&options, id).as_ref().and_then(PermissionAnswer::option_id), taken, "{id}");
        }
    }

    #[test]
    fn answers_are_valid_in_both_versions() {
        let yes = allow(&options("y:allow_once"), false).expect("an answer");
        let written = |answer: &PermissionAnswer| serde_json::to_string(answer).expect("plain data");
        assert_eq!(written(&yes), r#"{"outcome":{"outcome":"selected","optionId":"y"}}"#);
        assert_eq!(written(&PermissionAnswer::CANCELLED), r#"{"outcome":{"outcome":"cancelled"}}"#);
    }
}
