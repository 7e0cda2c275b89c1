//! Validates scopes, which name the tools that an identity may use.

use narrows_base::text::quoted;

use crate::kind::Kind;

const MAX_SHOWN_CHARS: usize = 64;

/// Reason why a scope matches no tool, with a hint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    #[error("a scope is empty; write the name of a tool, SERVER/TOOL, SERVER/* or kind:read")]
    Empty,
    /// The scope names a kind that no tool has.
    #[error("no tool is of the kind `{}`; {hint}", quoted(kind, MAX_SHOWN_CHARS))]
    Kind {
        kind: String,
        /// Suggestion for the author of the scope.
        hint: String,
    },
    /// The scope is a pattern. The only allowed pattern is `SERVER/*`, for all tools of a server.
    #[error("`{}` names no tool; a `*` stands for all tools of a server, as in SERVER/*", quoted(.0, MAX_SHOWN_CHARS))]
    Pattern(String),
    #[error("`{}` names no tool; write the name of a tool, SERVER/TOOL, SERVER/* or kind:read", quoted(.0, MAX_SHOWN_CHARS))]
    Form(String),
}

/// Checks that a scope can match a tool: `read_file`, `notes/add`, `notes/*`, `kind:read`.
///
/// # Errors
/// If it cannot, because the identity would get fewer permissions than intended.
pub fn check_scope(scope: &str) -> Result<(), ScopeError> {
    if scope.is_empty() {
        return Err(ScopeError::Empty);
    }
    if let Some(kind) = scope.strip_prefix("kind:") {
        return match Kind::correction(kind) {
            Some(hint) => Err(ScopeError::Kind { kind: kind.to_owned(), hint }),
            None => Ok(()),
        };
    }
    let name = scope.strip_suffix("/*").unwrap_or(scope);
    if name.is_empty() || name.contains('*') {
        return Err(ScopeError::Pattern(scope.to_owned()));
    }
    Ok(())
}

/// Checks a new scope more strictly: a tool name has no space and no empty part.
///
/// # Errors
/// If it cannot, or can hardly, match a tool.
pub fn check_new_scope(scope: &str) -> Result<(), ScopeError> {
    check_scope(scope)?;
    let is_name =
        |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control());
    match scope.split_once('/').map_or(is_name(scope), |(server, tool)| is_name(server) && is_name(tool)) {
        true => Ok(()),
        false => Err(ScopeError::Form(scope.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(scope: &str, expected: Option<&str>) {
        let found = check_scope(scope).err().map(|error| error.to_string());
        match expected {
            Some(part) => assert!(found.as_ref().is_some_and(|found| found.contains(part)), "{found:?}"),
            None => assert_eq!(found, None, "{scope}"),
        }
    }

    #[test]
    fn a_scope_names_a_tool_or_is_refused_with_a_hint() {
        for fine in ["read_file", "notes/add", "notes/*", "kind:read", "kind:switch_mode", "kind:_levitate"] {
            check(fine, None);
        }
        check("", Some("a scope is empty"));
        check("kind:exec", Some("no tool is of the kind `exec`; did you mean kind:execute?"));
        check("kind:raed", Some("did you mean kind:read?"));
        check("kind:purchase", Some("write kind: and one of think, read, search,"));
        check("kind:*", Some("no tool is of the kind `*`"));
        check("kind:", Some("no tool is of the kind ``"));
        check("*", Some("`*` names no tool"));
        check("/*", Some("`/*` names no tool"));
        check("read_*", Some("SERVER/*"));
        check("notes/*/x", Some("SERVER/*"));
    }

    #[test]
    fn new_scopes_have_a_strict_form() {
        for fine in ["read_file", "notes/add", "notes/*", "kind:read", "Größe", "a/b/c"] {
            assert_eq!(check_new_scope(fine), Ok(()), "{fine}");
        }
        for bad in ["foo bar", " a", "a\n", "notes/", "/add", "notes/a b"] {
            assert_eq!(
                (check_scope(bad), check_new_scope(bad)),
                (Ok(()), Err(ScopeError::Form(bad.to_owned())))
            );
        }
        assert_eq!(check_new_scope(""), Err(ScopeError::Empty));
    }

    proptest! {
        #[test]
        fn scope_errors_are_one_line(scope in any::<String>()) {
            if let Err(error) = check_scope(&scope) {
                prop_assert!(!error.to_string().contains('\n'));
            }
            let kind = check_scope(&format!("kind:{scope}"));
            prop_assert_eq!(kind.is_ok(), scope.starts_with('_') || Kind::ALL.iter().any(|kind| kind.name() == scope));
        }
    }
}
