//! Generates docs/reference/manifests.md from the types and `enforced.txt`. A key that is missing in
//! `enforced.txt` is an error.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these files are all tests")]

mod fields;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use narrows_manifest::{ManifestKind, schema};

use fields::{Field, fields};

/// The effect of each key, one `KEY = EFFECT` per line below the name of its file. `KEY.*` stands for all
/// keys below `KEY`.
const ENFORCED: &str = include_str!("enforced.txt");

/// The effect of a key that is listed separately, unless the key is required.
const NOT_USED: &str = "not used";

const HEAD: &str = "\
# Manifests

Every key of the files that `narrows serve` and `narrows check` read.
[Governance](../concepts/governance.md) explains the files.

- `name[]` is an entry of a list.
- *Required in some forms*: a map may have several forms, and not all of them have the key.
- *Trusted*: a change needs `narrows serve --approve`; see [Trust](serve.md#trust).
- *An error*: `narrows check` and `narrows serve` refuse the manifest.

`narrows check` reports each error with its line and a hint.
`narrows check --print-schema KIND` prints a JSON Schema of a file.
Keys that change nothing are [at the end](#keys-that-are-not-used).

";

const NOT_USED_HEAD: &str = "\
## Keys that are not used

These keys are checked, and change nothing in Narrows; other programs or people may use them.
What is below such a key is not used either.

";

/// Returns the effects of the keys of one file.
fn enforced(file: &str) -> Vec<(&'static str, &'static str)> {
    let mut lines = ENFORCED.lines().skip_while(|line| *line != file).skip(1);
    let own = lines.by_ref().take_while(|line| line.contains(" = "));
    own.filter_map(|line| line.split_once(" = ")).collect()
}

/// Returns the effect of a key: its own, or that of the nearest parent that stands for all keys below.
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

fn is_below(key: &str, above: &str) -> bool {
    key.strip_prefix(above).is_some_and(|rest| rest.starts_with('.') || rest.starts_with("[]."))
}

/// Returns `true` if a key is listed separately, because it has no effect and is never required.
fn is_apart(field: &Field, effect: &str, apart: &[String]) -> bool {
    let below = apart.iter().any(|above| is_below(&field.key, above));
    effect == NOT_USED && (below || !field.default.starts_with("required"))
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut not_used = NOT_USED_HEAD.to_owned();
    for kind in ManifestKind::ALL {
        let table = enforced(kind.file_name());
        let mut used = BTreeSet::new();
        let mut apart = Vec::new();
        writeln!(page, "## {}\n", kind.file_name()).unwrap();
        writeln!(page, "| key | form | default | meaning | effect |\n|---|---|---|---|---|").unwrap();
        for field in fields(&schema(kind)) {
            let (known, effect) = words(&table, &field.key).unwrap_or_else(|| {
                panic!("enforced.txt says nothing of {} of {}", field.key, kind.file_name())
            });
            used.insert(known);
            if is_apart(&field, effect, &apart) {
                apart.push(field.key);
                continue;
            }
            let Field { key, form, default, meaning } = field;
            writeln!(page, "| `{key}` | {form} | {default} | {meaning} | {effect} |").unwrap();
        }
        let idle: Vec<&str> = table.iter().map(|(key, _)| *key).filter(|key| !used.contains(key)).collect();
        assert!(idle.is_empty(), "enforced.txt speaks of keys that {} has not: {idle:?}", kind.file_name());
        page.push('\n');
        list_tops(&mut not_used, kind.file_name(), &apart);
    }
    page.push_str(&not_used);
    page.trim_end().to_owned() + "\n"
}

/// Lists the keys of a file, without those that are below another listed key.
fn list_tops(list: &mut String, file: &str, keys: &[String]) {
    if keys.is_empty() {
        return;
    }
    writeln!(list, "{file}:\n").unwrap();
    let is_top = |key: &&String| !keys.iter().any(|above| is_below(key, above));
    keys.iter().filter(is_top).for_each(|key| writeln!(list, "- `{key}`").unwrap());
    list.push('\n');
}

#[test]
fn the_page_matches_the_types() {
    let (wanted, path) =
        (page(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/manifests.md"));
    if std::fs::read_to_string(&path).unwrap_or_default() != wanted {
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manifests.md");
        std::fs::write(&copy, &wanted).unwrap();
        panic!("docs/reference/manifests.md is out of date; copy {} there", copy.display());
    }
}

#[test]
fn a_key_that_another_key_makes_required_is_not_listed_as_optional() {
    let wanted = page();
    assert!(wanted.contains("| `acp` | text | required with `protocol: acp` |"), "{wanted}");
    assert!(
        wanted.contains("| `metadata.aip44.sandbox` | text | required with `tier: sandboxed` |"),
        "{wanted}"
    );
}

#[test]
fn each_key_has_its_own_effect_or_that_of_a_parent() {
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
