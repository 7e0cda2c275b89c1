//! All that is wrong with a file of tokens and all that is strange in it, for whoever looks before it is used.
//!
//! No text of the file is told but names, keys and scopes: somebody may have put a token there.

use std::borrow::Cow;
use std::path::Path;

use narrows_policy::{check_new_scope, check_scope};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::{Digest, TokenError, Tokens, place_of, text};
use crate::identity::is_name;

/// What may stand outside of any table.
const TOP: &[&str] = &["token"];

/// What may stand in `[[token]]`.
const ENTRY: &[&str] = &["name", "hash", "scopes", "pools", "created"];

/// Something that is wrong or strange, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
    /// What.
    pub what: String,
    /// A key that there is not, and those there are.
    pub stranger: Option<(String, &'static [&'static str])>,
}

/// All that can be said about a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspected {
    /// Nobody is let in by it before these are put right.
    pub mistakes: Vec<Fault>,
    /// It can be used, but this is perhaps not meant.
    pub warnings: Vec<Fault>,
    /// The pools that tokens are kept to, each as `what`: whether a bus has them shows only with its settings.
    pub pools: Vec<Fault>,
    /// How many tokens there are.
    pub tokens: usize,
}

/// Looks at the file at `path`.
///
/// # Errors
/// When it cannot be read at all, or everybody can write it.
pub fn inspect(path: &Path) -> Result<Inspected, TokenError> {
    Ok(of_text(path, &text(path)?))
}

fn of_text(path: &Path, text: &str) -> Inspected {
    let mut seen = Seen { text, names: Vec::new(), found: Inspected::default() };
    match DeTable::parse(text) {
        Ok(table) => seen.file(table.get_ref()),
        Err(error) => seen.wrong(error.span().map_or(0, |span| span.start), error.message().to_owned()),
    }
    let mut found = seen.found;
    // Whatever else it is refused for.
    if found.mistakes.is_empty()
        && let Err(error) = Tokens::parse(path, text)
    {
        let (line, column, what) = match error {
            TokenError::Syntax { line, column, error, .. } => (line, column, error),
            error => (1, 1, error.to_string()),
        };
        found.mistakes.push(Fault { line, column, what, stranger: None });
    }
    found.mistakes.sort_by_key(|fault| (fault.line, fault.column));
    found.warnings.sort_by_key(|fault| (fault.line, fault.column));
    found
}

/// What has been seen of a file.
struct Seen<'a> {
    text: &'a str,
    names: Vec<String>,
    found: Inspected,
}

impl Seen<'_> {
    fn fault(&self, at: usize, what: String) -> Fault {
        let (line, column) = place_of(self.text, at);
        Fault { line, column, what, stranger: None }
    }

    fn wrong(&mut self, at: usize, what: String) {
        let fault = self.fault(at, what);
        self.found.mistakes.push(fault);
    }

    fn stranger(&mut self, key: &Spanned<Cow<'_, str>>, known: &'static [&'static str], place: &str) {
        let name = key.get_ref();
        let fault = self.fault(key.span().start, format!("there is no setting {name:?}{place}"));
        self.found.mistakes.push(Fault { stranger: Some((name.to_string(), known)), ..fault });
    }

    fn file(&mut self, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let at = value.span().start;
            match (&**key.get_ref(), value.get_ref()) {
                ("token", DeValue::Array(entries)) => entries.iter().for_each(|entry| self.entry(entry)),
                ("token", _) => self.wrong(at, "`token` must be a list of tables: [[token]]".to_owned()),
                _ => self.stranger(key, TOP, ""),
            }
        }
    }

    fn entry(&mut self, entry: &Spanned<DeValue<'_>>) {
        self.found.tokens += 1;
        let at = entry.span().start;
        let DeValue::Table(table) = entry.get_ref() else {
            return self.wrong(at, "a token must be a table".to_owned());
        };
        for needed in ["name", "hash"] {
            if !table.contains_key(needed) {
                self.wrong(at, format!("`{needed}` is missing in [[token]]"));
            }
        }
        for (key, value) in table.iter() {
            let at = value.span().start;
            match (&**key.get_ref(), value.get_ref()) {
                ("name", DeValue::String(name)) => self.name(at, name),
                ("hash", DeValue::String(hash)) if Digest::parse(hash).is_some() => {}
                ("hash", DeValue::String(_)) => {
                    self.wrong(at, "the hash is not a SHA-256 in base64url".to_owned());
                }
                ("scopes", DeValue::Array(scopes)) => scopes.iter().for_each(|scope| self.scope(scope)),
                ("pools", DeValue::Array(pools)) => self.pools(at, pools),
                ("created", _) => {}
                (key @ ("name" | "hash"), _) => self.wrong(at, format!("`{key}` must be a text in quotes")),
                (key @ ("scopes" | "pools"), _) => self.wrong(at, format!("`{key}` must be a list")),
                _ => self.stranger(key, ENTRY, " in [[token]]"),
            }
        }
    }

    fn name(&mut self, at: usize, name: &str) {
        if self.names.iter().any(|other| other == name) {
            self.wrong(at, TokenError::Taken(name.to_owned()).to_string());
        } else if !is_name(name) {
            self.wrong(at, TokenError::Name(name.to_owned()).to_string());
        }
        self.names.push(name.to_owned());
    }

    fn pools(&mut self, at: usize, pools: &DeArray<'_>) {
        if pools.is_empty() {
            self.wrong(at, TokenError::NoPools.to_string());
        }
        for pool in pools.iter() {
            match pool.get_ref() {
                DeValue::String(name) if is_name(name) => {
                    let fault = self.fault(pool.span().start, name.to_string());
                    self.found.pools.push(fault);
                }
                DeValue::String(name) => {
                    self.wrong(pool.span().start, TokenError::Pool(name.to_string()).to_string());
                }
                _ => self.wrong(pool.span().start, "a pool must be a text in quotes".to_owned()),
            }
        }
    }

    fn scope(&mut self, scope: &Spanned<DeValue<'_>>) {
        let at = scope.span().start;
        let DeValue::String(scope) = scope.get_ref() else {
            return self.wrong(at, "a scope must be a text in quotes".to_owned());
        };
        match (check_scope(scope), check_new_scope(scope)) {
            (Err(error), _) => self.wrong(at, error.to_string()),
            (Ok(()), Err(error)) => {
                let fault = self.fault(at, error.to_string());
                self.found.warnings.push(fault);
            }
            (Ok(()), Ok(())) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(text: &str) -> String {
        let Inspected { mistakes, warnings, .. } = of_text(Path::new("t"), text);
        let line =
            |kind: &str, fault: &Fault| format!("{kind}{}:{}: {}\n", fault.line, fault.column, fault.what);
        let mistakes = mistakes.iter().map(|fault| line("", fault));
        mistakes.chain(warnings.iter().map(|fault| line("warning ", fault))).collect()
    }

    #[test]
    fn everything_is_told_at_once() {
        let hash = Digest::of("x").text();
        let good = format!("[[token]]\nname = \"a\"\nhash = \"{hash}\"\ncreated = \"x\"\n");
        assert_eq!((told(""), told(&good)), (String::new(), String::new()));
        let bad = format!(
            "{good}[[token]]\nname = \"a\"\nhsah = \"secret\"\nscopes = [\"kind:exec\", \"foo bar\", 1]\n\
             [[token]]\nname = \"b c\"\nhash = \"secret\"\nscopes = \"x\"\n[tokn]\nx = 1\n"
        );
        assert_eq!(
            told(&bad),
            "5:1: `hash` is missing in [[token]]\n\
             6:8: there is a token of the name \"a\" already\n\
             7:1: there is no setting \"hsah\" in [[token]]\n\
             8:11: no tool is of the kind `exec`; did you mean kind:execute?\n\
             8:35: a scope must be a text in quotes\n\
             10:8: \"b c\" is not a name for a token\n\
             11:8: the hash is not a SHA-256 in base64url\n\
             12:10: `scopes` must be a list\n\
             13:2: there is no setting \"tokn\"\n\
             warning 8:24: `foo bar` names no tool; write the name of a tool, SERVER/TOOL, SERVER/* or kind:read\n"
        );
        assert!(told("x = secret").starts_with("1:5: ") && !told("x = secret").contains("secret"));
    }

    proptest! {
        #[test]
        fn what_is_refused_has_a_mistake_and_nothing_else_has(
            lines in proptest::collection::vec(
                prop::sample::select(vec![
                    "[[token]]", "name = \"a\"", "name = \"b\"", "name = 1", "scopes = []", "scopes = [\"kind:x\"]",
                    "hash = \"n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg\"", "hash = \"\"", "created = 1", "[x]", "nonsense",
                ]),
                0..9,
            ),
        ) {
            let text = lines.join("\n");
            let mistakes = of_text(Path::new("t"), &text).mistakes;
            prop_assert_eq!(mistakes.is_empty(), Tokens::parse(Path::new("t"), &text).is_ok(), "{:?}", mistakes);
        }
    }
}
