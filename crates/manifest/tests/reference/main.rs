//! docs/manifests.md is what the types say of every key, with what we enforce of it; a key that nobody wrote about fails.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these files are all tests")]

mod fields;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use narrows_manifest::{Kind, schema};

use fields::{Field, fields};

/// What is done about each key, in a line each: `KEY = WORDS` below the name of its file, where `KEY.*` stands for all below it.
const ENFORCED: &str = include_str!("enforced.txt");

const HEAD: &str = "\
# Keys of manifests

Every key of every file that [governance.md](governance.md) speaks of, with its form, what holds where it is left out, what it means, and what
Narrows does about it. `name[]` is an entry of a list. A key that is needed says so in place of a default; *in some forms* means that a
map may have several forms, and not all of them have it. `narrows check` knows the form of each, with the line of a mistake and what to
write; `narrows check --print-schema KIND` prints all of it as a JSON Schema.

*Not used* means that the key may stand there, for other programs or for people, and changes nothing here. A manifest that
relies on such a key is served all the same.

";

/// The words for one file, by its keys.
fn enforced(file: &str) -> Vec<(&'static str, &'static str)> {
    let mut lines = ENFORCED.lines().skip_while(|line| *line != file).skip(1);
    let own = lines.by_ref().take_while(|line| line.contains(" = "));
    own.filter_map(|line| line.split_once(" = ")).collect()
}

/// What is said of a key: by itself, or by the nearest above it that speaks for all below.
fn words<'a>(table: &[(&'a str, &'a str)], key: &str) -> Option<(&'a str, &'a str)> {
    let exact = table.iter().find(|(known, _)| *known == key);
    let below = |known: &str| {
        known.strip_suffix(".*").is_some_and(|above| {
            key[..].starts_with(&format!("{above}.")) || key.starts_with(&format!("{above}[]"))
        })
    };
    let general = table.iter().filter(|(known, _)| below(known)).max_by_key(|(known, _)| known.len());
    exact.or(general).copied()
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for kind in Kind::ALL {
        let table = enforced(kind.file_name());
        let mut used = BTreeSet::new();
        writeln!(page, "## {}\n", kind.file_name()).unwrap();
        writeln!(page, "| key | form | default | meaning | what is done about it |\n|---|---|---|---|---|")
            .unwrap();
        for Field { key, form, default, meaning } in fields(&schema(kind)) {
            let (known, words) = words(&table, &key)
                .unwrap_or_else(|| panic!("enforced.txt says nothing of {key} of {}", kind.file_name()));
            used.insert(known);
            writeln!(page, "| `{key}` | {form} | {default} | {meaning} | {words} |").unwrap();
        }
        let idle: Vec<&str> = table.iter().map(|(key, _)| *key).filter(|key| !used.contains(key)).collect();
        assert!(idle.is_empty(), "enforced.txt speaks of keys that {} has not: {idle:?}", kind.file_name());
        page.push('\n');
    }
    page.trim_end().to_owned() + "\n"
}

#[test]
fn the_page_says_what_the_types_say() {
    let (wanted, path) = (page(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manifests.md"));
    if std::fs::read_to_string(&path).unwrap_or_default() != wanted {
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manifests.md");
        std::fs::write(&copy, &wanted).unwrap();
        panic!("docs/manifests.md is out of date; what it should be is in {}: copy it there", copy.display());
    }
}

#[test]
fn a_key_that_another_key_makes_required_is_not_listed_as_optional() {
    let wanted = page();
    assert!(wanted.contains("| `acp` | text | needed with `protocol: acp` |"), "{wanted}");
    assert!(
        wanted.contains("| `metadata.aip44.sandbox` | text | needed with `tier: sandboxed` |"),
        "{wanted}"
    );
}

#[test]
fn a_key_is_spoken_of_by_itself_or_from_above() {
    let table = [("a", "one"), ("a.*", "below"), ("a.b.*", "deeper"), ("a.b.c", "exact")];
    for (key, expected) in [
        ("a", Some("one")),
        ("a.x", Some("below")),
        ("a[].x", Some("below")),
        ("a.b", Some("below")),
        ("a.b.x", Some("deeper")),
        ("a.b.c", Some("exact")),
        ("ab", None),
    ] {
        assert_eq!(words(&table, key).map(|(_, words)| words), expected, "{key}");
    }
}
