//! Parses the token file and collects all findings.
//!
//! Findings quote names, keys and scopes only: any other text may be a token.

use std::path::Path;

use narrows_config::{Finding, Findings, Node, SettingValue, SourcePos, Table, ValueKind};
use narrows_policy::{check_new_scope, check_scope};

use super::{Digest, Known, TokenError, text};
use crate::identity::{Identity, Proof, is_name};

const ENTRY_KEYS: &[&str] = &["name", "hash", "scopes", "pools", "created"];

/// All findings about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedTokens {
    /// Errors of the file. Until all are fixed, the file admits no client.
    pub errors: Vec<Finding>,
    /// Parts of the file that may not mean what the author intended. The file can still be used.
    pub warnings: Vec<Finding>,
    /// The pools that tokens are restricted to. Whether a pool exists is known only from the configuration of
    /// a bus.
    pub pools: Vec<(String, SourcePos)>,
    /// The names of all valid tokens and their hashes. In all files of a bus, a name must have the same
    /// token.
    pub tokens: Vec<(String, Digest, SourcePos)>,
}

/// Inspects the file at `path`.
///
/// # Errors
/// If the file cannot be read, or every user can write it.
pub fn inspect(path: &Path) -> Result<InspectedTokens, TokenError> {
    Ok(inspect_text(path, &text(path)?))
}

fn inspect_text(path: &Path, text: &str) -> InspectedTokens {
    let file = path.display().to_string();
    let findings = Findings::new(&file, text);
    let node = Node::from_toml(&findings);
    let table = node.as_ref().and_then(|node| node.as_table(&findings));
    let TokenFile { known, names, pools } = table.map(read).unwrap_or_default();
    let tokens = known.into_iter().zip(names);
    let tokens = tokens.map(|(known, at)| (known.identity.name, known.digest, findings.pos(at))).collect();
    let pools = pools.into_iter().map(|(name, at)| (name, findings.pos(at))).collect();
    let (mistakes, warnings) = findings.into_errors_and_warnings();
    InspectedTokens { errors: mistakes, warnings, pools, tokens }
}

#[derive(Default)]
pub(super) struct TokenFile {
    pub(super) known: Vec<Known>,
    /// The byte offsets of the names of all tokens.
    names: Vec<usize>,
    /// The pools that tokens are restricted to, with their byte offsets.
    pools: Vec<(String, usize)>,
}

/// Reads all valid tokens. Invalid ones become findings.
pub(super) fn read(table: Table<'_>) -> TokenFile {
    table.only(&["token"], &[]);
    let mut file = TokenFile::default();
    let mut names = Vec::new();
    for table in table.read("token", SettingValue::tables).into_iter().flatten() {
        if let Some(known) = read_token(table, &mut names, &mut file.pools) {
            file.known.push(known);
            file.names.extend(names.last().map(|(_, at)| *at));
        }
    }
    file
}

fn read_token<'a>(
    table: Table<'a>,
    names: &mut Vec<(&'a str, usize)>,
    all_pools: &mut Vec<(String, usize)>,
) -> Option<Known> {
    table.only(ENTRY_KEYS, &[]);
    let name = table.required("name", None).and_then(|item| {
        let name = item.string()?;
        let is_taken = names.iter().any(|(known, _)| *known == name);
        names.push((name, item.node.at));
        match () {
            () if is_taken => item.error(TokenError::Taken(name.to_owned()).to_string(), None),
            () if !is_name(name) => item.error(TokenError::Name(name.to_owned()).to_string(), None),
            () => Some(name.to_owned()),
        }
    });
    let digest = table.required("hash", None).and_then(|item| {
        Digest::parse(item.string()?).or_else(|| item.error("the hash is not a SHA-256 in base64url", None))
    });
    let scopes = table.read("scopes", |item| Some(item.list("")?.filter_map(scope).collect()));
    let pools = table.read("pools", |item| {
        let pools: Vec<_> = item.list("")?.collect();
        if pools.is_empty() {
            return item.error(TokenError::NoPools.to_string(), None);
        }
        let pools: Vec<_> = pools.into_iter().filter_map(|item| Some((pool(item)?, item.node.at))).collect();
        all_pools.extend(pools.iter().cloned());
        Some(pools.into_iter().map(|(name, _)| name).collect())
    });
    let created = table.get("created").map(|item| match &item.node.kind {
        ValueKind::Text(text) => text.clone(),
        _ => item.node.to_json().to_string(),
    });
    let identity = Identity { proof: Proof::Token, name: name?, scopes, pools };
    Some(Known { digest: digest?, identity, created })
}

fn pool(item: SettingValue<'_>) -> Option<String> {
    let name = item.string()?.to_owned();
    if is_name(&name) { Some(name) } else { item.error(TokenError::Pool(name).to_string(), None) }
}

fn scope(item: SettingValue<'_>) -> Option<String> {
    let scope = item.string()?;
    match (check_scope(scope), check_new_scope(scope)) {
        (Err(error), _) => return item.error(error.to_string(), None),
        (Ok(()), Err(error)) => item.findings.warning(item.node.at, error.to_string()),
        (Ok(()), Ok(())) => {}
    }
    Some(scope.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Tokens;
    use super::*;

    fn report(text: &str) -> String {
        let InspectedTokens { errors: mistakes, warnings, .. } = inspect_text(Path::new("t"), text);
        let line = |kind: &str, finding: &Finding| format!("{kind}{}: {}\n", finding.pos, finding.message);
        let mistakes = mistakes.iter().map(|finding| line("", finding));
        mistakes.chain(warnings.iter().map(|finding| line("warning ", finding))).collect()
    }

    #[test]
    fn all_findings_are_reported() {
        let hash = Digest::new("x").text();
        let good = format!("[[token]]\nname = \"a\"\nhash = \"{hash}\"\ncreated = \"x\"\n");
        assert_eq!((report(""), report(&good)), (String::new(), String::new()));
        let bad = format!(
            "{good}[[token]]\nname = \"a\"\nhsah = \"secret\"\nscopes = [\"kind:exec\", \"foo bar\", 1]\n\
             [[token]]\nname = \"b c\"\nhash = \"secret\"\nscopes = \"x\"\n[tokn]\nx = 1\n"
        );
        assert_eq!(
            report(&bad),
            "5:1: `hash` is missing in [token]\n\
             6:8: token \"a\" already exists\n\
             7:1: unknown setting `hsah` in [token]\n\
             8:11: no tool is of the kind `exec`; did you mean kind:execute?\n\
             8:35: `scopes` must be a text in quotes\n\
             10:8: invalid token name \"b c\"\n\
             11:8: the hash is not a SHA-256 in base64url\n\
             12:10: `scopes` must be a list\n\
             13:2: unknown setting `tokn`\n\
             warning 8:24: `foo bar` names no tool; write the name of a tool, SERVER/TOOL, SERVER/* or kind:read\n"
        );
        assert!(report("x = secret").starts_with("1:5: ") && !report("x = secret").contains("secret"));
    }

    proptest! {
        #[test]
        fn a_file_is_refused_if_and_only_if_it_has_an_error(
            lines in proptest::collection::vec(
                prop::sample::select(vec![
                    "[[token]]", "name = \"a\"", "name = \"b\"", "name = 1", "scopes = []", "scopes = [\"kind:x\"]",
                    "hash = \"n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg\"", "hash = \"\"", "created = 1", "[x]", "nonsense",
                ]),
                0..9,
            ),
        ) {
            let text = lines.join("\n");
            let mistakes = inspect_text(Path::new("t"), &text).errors;
            prop_assert_eq!(mistakes.is_empty(), Tokens::parse(Path::new("t"), &text).is_ok(), "{:?}", mistakes);
        }
    }
}
