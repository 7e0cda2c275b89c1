//! Detects the kind of a file.

use std::path::Path;

use narrows_base::suggest::nearest;
use narrows_remote::tokens;

/// A file that can be checked and is not a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// `bus.toml`, or the JSON of stdio Bus.
    Bus,
    Identities,
    Settings,
    Rules,
    Tokens,
}

/// The top-level keys that identify each kind of file.
const KEYS: &[(FileKind, &[&str])] = &[
    (FileKind::Bus, &["pool", "listen", "admin"]),
    (
        FileKind::Settings,
        &[
            "endpoint",
            "agents",
            "acp",
            "default",
            "system",
            "errors",
            "data_dir",
            "store",
            "pace",
            "deadlines",
        ],
    ),
    (FileKind::Rules, &["rule", "access", "network", "web_search"]),
    (FileKind::Tokens, &["token"]),
    (FileKind::Identities, &["identity"]),
];

const NAMES: &[(&str, FileKind)] = &[
    ("bus.toml", FileKind::Bus),
    ("narrows.toml", FileKind::Settings),
    ("rules.toml", FileKind::Rules),
    ("policy.toml", FileKind::Rules),
    ("tokens.toml", FileKind::Tokens),
    ("identities.toml", FileKind::Identities),
];

impl FileKind {
    /// Detects the kind of a file: from JSON syntax, the known keys, the header of a token file, the file
    /// name, or misspelled keys, in this order.
    pub(super) fn detect(path: &Path, text: &str) -> Option<Self> {
        let is_json = text.trim_start_matches('\u{feff}').trim_start().starts_with('{');
        if is_json || path.extension().is_some_and(|extension| extension == "json") {
            return Some(Self::Bus);
        }
        let keys = top_level_keys(text);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let by_name = || NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        most_frequent(keys.iter().filter_map(|key| kind_of_key(key)))
            .or_else(|| tokens::is_marked(text).then_some(Self::Tokens))
            .or_else(by_name)
            .or_else(|| most_frequent(keys.iter().filter_map(|key| kind_of_misspelled_key(key))))
    }
}

fn kind_of_key(key: &str) -> Option<FileKind> {
    KEYS.iter().find(|(_, keys)| keys.contains(&key)).map(|(kind, _)| *kind)
}

fn kind_of_misspelled_key(key: &str) -> Option<FileKind> {
    nearest(key, KEYS.iter().flat_map(|(_, keys)| keys.iter().copied())).and_then(kind_of_key)
}

/// Returns the kind that occurs most often, or the first of several such kinds.
fn most_frequent(kinds: impl Iterator<Item = FileKind>) -> Option<FileKind> {
    let kinds: Vec<FileKind> = kinds.collect();
    let count = |kind: FileKind| kinds.iter().filter(|other| **other == kind).count();
    kinds.iter().rev().copied().max_by_key(|kind| count(*kind))
}

/// Returns the top-level keys and the first parts of table names, even if the file is not valid TOML.
fn top_level_keys(text: &str) -> Vec<String> {
    if let Ok(table) = text.parse::<toml::Table>() {
        return table.keys().map(|key| key.replace('-', "_")).collect();
    }
    let is_key = |key: &&str| !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
    let (mut keys, mut in_table) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        let header = line.strip_prefix('[').map(|rest| rest.trim_start_matches('['));
        in_table |= header.is_some();
        let key = match header {
            Some(header) => header.split(['.', ']']).next(),
            None if in_table => None,
            None => line.split_once('=').map(|(key, _)| key),
        };
        keys.extend(key.map(str::trim).filter(is_key).map(|key| key.replace('-', "_")));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_recognized_by_its_content_and_then_by_its_name() {
        #[track_caller]
        fn check(name: &str, text: &str, expected: Option<FileKind>) {
            assert_eq!(FileKind::detect(Path::new(name), text), expected, "{name} {text}");
        }
        check("a.toml", "[[listen]]\nurl = 'stdio:'\n[[pool]]\n", Some(FileKind::Bus));
        check("a.toml", "[limits]\n[[listen]]\n", Some(FileKind::Bus));
        check("a", "{\"pools\": []}", Some(FileKind::Bus));
        check("a.toml", "[endpoint.a]\nmodel = 'pool'\n[limits]\n", Some(FileKind::Settings));
        check("bus.toml", "[agents.a]\ncommand = 'a'\n", Some(FileKind::Settings));
        check("a.toml", "data-dir = '/d'\n", Some(FileKind::Settings));
        check("narrows.toml", "[limits]\n", Some(FileKind::Settings));
        check("narrows.toml", "", Some(FileKind::Settings));
        check("a.toml", "access = 'low'\n", Some(FileKind::Rules));
        check("bus.toml", "[[rule]]\neffect = 'deny'\n", Some(FileKind::Rules));
        check("a.toml", "[[token]]\n", Some(FileKind::Tokens));
        check("a.toml", "[[identity]]\n", Some(FileKind::Identities));
        check("tokens.toml", "", Some(FileKind::Tokens));
        // Syntax errors do not change the detected kind.
        check("a.toml", "[[rule]]\neffect = deny\n", Some(FileKind::Rules));
        check("a.toml", "[[pool]]\ncommand = [\n[[rul", Some(FileKind::Bus));
        check("a.toml", "[[pol]]\n", Some(FileKind::Bus));
        check("a.toml", "[[rules]]\n", Some(FileKind::Rules));
        check("a.toml", "", None);
        check("a.toml", "[package]\nname = 'a'\n", None);
        check("a.toml", "[limits]\nmemory = 1\n", None);
    }

    #[test]
    fn a_file_without_tokens_is_recognized_by_its_header() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("made");
        tokens::add(&path, "a", None, std::time::SystemTime::UNIX_EPOCH).expect("a token");
        tokens::remove(&path, "a").expect("the token");
        let text = std::fs::read_to_string(&path).expect("the file");
        assert_eq!(FileKind::detect(&path, &text), Some(FileKind::Tokens));
    }
}
