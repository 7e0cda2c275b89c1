//! Compares the verdicts of Narrows with those of the official schemas, for published examples and mutations
//! of them. Does nothing if the schemas are not available.
//!
//! `NARROWS_AIP` names their directory. Without it, `shared/spec/aip` beside the repository is used.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "these files are all tests")]

mod judge;
mod mutate;

use std::path::{Path, PathBuf};

use judge::Judge;
use mutate::{Random, mutated};
use narrows_manifest::{Code, ManifestKind, Severity, check};
use serde_json::Value;

/// Returns the directory. Prints a message if it is missing.
fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec/aip");
    let folder = std::env::var_os("NARROWS_AIP").map_or(beside, PathBuf::from);
    if folder.join("schemas").is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: there are no official schemas in {}", folder.display());
    None
}

fn examples(folder: &Path) -> Vec<(ManifestKind, PathBuf)> {
    let mut found = Vec::new();
    let mut open = vec![folder.join("examples")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match ManifestKind::from_path(&path) {
                _ if path.is_dir() => open.push(path),
                Some(kind) => found.push((kind, path)),
                None => {}
            }
        }
    }
    found.sort();
    found
}

/// Returns the errors, except those of points 5 to 8 and 13, which no schema contains.
fn errors(kind: ManifestKind, path: &Path, bytes: &[u8]) -> Vec<String> {
    let findings = check(kind, path, bytes);
    let counts = |code: Code| code != Code::Contradiction;
    let errors =
        findings.iter().filter(|finding| finding.severity == Severity::Error && counts(finding.code));
    errors.map(ToString::to_string).collect()
}

#[test]
fn published_examples_get_the_official_verdict() {
    /// Published files that are invalid: a placeholder for a hash, and renamed keys.
    const FAIL: &[(&str, &str, usize)] =
        &[("hermes/AGENT-CLI.md", "pattern", 1), ("SANDBOX.md", "unknown-key", 2)];
    let Some(folder) = folder() else { return };
    let judge = Judge::new(&folder);
    let examples = examples(&folder);
    assert!(examples.len() >= 24, "{examples:?}");
    for (kind, path) in examples {
        let bytes = std::fs::read(&path).unwrap();
        let findings = check(kind, &path, &bytes);
        let errors: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        match FAIL.iter().find(|(name, ..)| path.ends_with(name)) {
            Some((_, code, count)) => {
                assert_eq!(errors.len(), *count, "{}\n{findings}", path.display());
                assert!(errors.iter().all(|finding| finding.code.name() == *code), "{findings}");
            }
            None => assert!(errors.is_empty(), "{}\n{findings}", path.display()),
        }
        let strange = findings.iter().find(|finding| {
            !matches!(
                finding.code,
                Code::UnknownRevision
                    | Code::Unbound
                    | Code::Provider
                    | Code::ProtocolProprietary
                    | Code::ProtocolMcp
                    | Code::Ignored
            ) && finding.severity == Severity::Warning
        });
        assert_eq!(strange, None);
        let value = judge::front_matter(&bytes);
        assert_eq!(judge.accepts(kind, &value), errors.is_empty(), "{}", path.display());
    }
}

#[test]
fn mutations_get_the_same_verdict() {
    let Some(folder) = folder() else { return };
    let judge = Judge::new(&folder);
    let seed = std::env::var("NARROWS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(44);
    let rounds = std::env::var("NARROWS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(40);
    let mut random = Random::new(seed);
    let mut verdicts = [0, 0];
    let mut sources: Vec<(ManifestKind, PathBuf, Value)> = examples(&folder)
        .into_iter()
        .map(|(kind, path)| (kind, path.clone(), judge::front_matter(&std::fs::read(path).unwrap())))
        .collect();
    sources.extend(
        mutate::full().into_iter().map(|(kind, value)| (kind, PathBuf::from(kind.file_name()), value)),
    );
    for (kind, path, source) in sources {
        for round in 0..rounds {
            let mut value = source.clone();
            for _ in 0..=round % 3 {
                value = mutated(value, &judge.words[&kind], &mut random);
            }
            let text = format!("---\n{value}\n---\n");
            let official = judge.accepts(kind, &value);
            let errors = errors(kind, &path, text.as_bytes());
            assert_eq!(
                errors.is_empty(),
                official,
                "{kind}, seed {seed}\n{value}\nofficial: {:?}\nours: {errors:#?}",
                judge.complaints(kind, &value)
            );
            verdicts[usize::from(official)] += 1;
        }
    }
    assert!(verdicts[0] > 150 && verdicts[1] > 150, "one-sided: {verdicts:?}");
}

#[test]
fn printed_schemas_match_the_checker() {
    let judge = Judge::of_ours();
    let mut random = Random::new(7);
    let mut verdicts = [0, 0];
    for (kind, source) in mutate::full() {
        for round in 0..150 {
            let mut value = source.clone();
            for _ in 0..round % 3 {
                value = mutated(value, &judge.words[&kind], &mut random);
            }
            let text = format!("---\n{value}\n---\n");
            let errors = errors(kind, Path::new(kind.file_name()), text.as_bytes());
            let printed = judge.accepts(kind, &value);
            assert_eq!(
                errors.is_empty(),
                printed,
                "{kind}\n{value}\n{:?}\n{errors:#?}",
                judge.complaints(kind, &value)
            );
            verdicts[usize::from(printed)] += 1;
        }
    }
    assert!(verdicts[0] > 150 && verdicts[1] > 150, "one-sided: {verdicts:?}");
}
