//! Checks the version that a program prints against the version that a manifest requires.

use std::str::FromStr;

use narrows_base::text::quoted;
use regex::{Regex, RegexBuilder};
use semver::{Version, VersionReq};
use thiserror::Error;

use crate::types::cli::VersionCheck;

/// The reason why a version is rejected or cannot be checked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VersionError {
    #[error("invalid pattern: {0}")]
    Pattern(String),
    #[error("`{0}` is not a version range")]
    Range(String),
    #[error("no version in the output of the program: `{0}`")]
    NotFound(String),
    #[error("`{0}` is not a version")]
    NotOne(String),
    /// The version is outside of the required range.
    #[error("version {found} is not in {range}")]
    Outside { found: Version, range: String },
}

const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// A range of versions in npm syntax: `>=1.2 <2`, `^1.2`, `1.x || 2.0.0`, `1.0 - 2.0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range(Vec<VersionReq>);

impl Range {
    /// Returns `true` if `version` is in the range.
    pub fn contains(&self, version: &Version) -> bool {
        self.0.iter().any(|range| range.matches(version))
    }
}

impl FromStr for Range {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let error = || VersionError::Range(quoted(text, 80));
        let alternatives = text.split("||").map(|part| alternative(part).ok_or_else(error));
        alternatives.collect::<Result<_, _>>().map(Self)
    }
}

/// Parses a list of comparisons. A version must match all of them.
fn alternative(text: &str) -> Option<VersionReq> {
    let text = text.trim();
    if text.is_empty() {
        return Some(VersionReq::STAR);
    }
    if let Some((from, to)) = text.split_once(" - ") {
        return VersionReq::parse(&format!(">={}, <={}", from.trim(), to.trim())).ok();
    }
    let mut comparisons: Vec<String> = Vec::new();
    let mut open = String::new();
    for word in text.split([' ', '\t', ',']).filter(|word| !word.is_empty()) {
        open.push_str(word);
        // Blanks may separate a comparison operator from its version.
        if open.chars().all(|letter| "<>=^~".contains(letter)) {
            continue;
        }
        let comparison = std::mem::take(&mut open);
        let comparison = comparison.strip_prefix('v').map(ToOwned::to_owned).unwrap_or(comparison);
        // A version without an operator stands for exactly that version.
        let bare = comparison.starts_with(|letter: char| letter.is_ascii_digit())
            && !comparison.contains(['x', 'X', '*']);
        comparisons.push(if bare { format!("={comparison}") } else { comparison });
    }
    if !open.is_empty() {
        return None;
    }
    VersionReq::parse(&comparisons.join(", ")).ok()
}

/// Compiles the pattern that finds a version, within size limits. Its first group is the version.
pub(crate) fn pattern(text: &str) -> Result<Regex, VersionError> {
    let regex = RegexBuilder::new(text).size_limit(1 << 18).dfa_size_limit(1 << 18).build();
    let regex = regex.map_err(|error| {
        let last = error.to_string();
        VersionError::Pattern(quoted(last.lines().last().unwrap_or_default(), 120))
    })?;
    match regex.captures_len() {
        1 => Err(VersionError::Pattern("it has no group".into())),
        _ => Ok(regex),
    }
}

/// Checks the version in the output of a program.
pub fn judge(check: &VersionCheck, output: &str) -> Result<Version, VersionError> {
    let range: Range = check.range.parse()?;
    let regex = pattern(&check.parse)?;
    let mut end = output.len().min(MAX_OUTPUT_BYTES);
    while !output.is_char_boundary(end) {
        end -= 1;
    }
    let output = output[..end].trim();
    let found = regex.captures(output).and_then(|captures| captures.get(1));
    let found = found.ok_or_else(|| VersionError::NotFound(quoted(output, 80)))?.as_str();
    let version = full(found).ok_or_else(|| VersionError::NotOne(quoted(found, 80)))?;
    if range.contains(&version) {
        return Ok(version);
    }
    Err(VersionError::Outside { found: version, range: quoted(&check.range, 80) })
}

/// Parses a version. A number that is missing at the end counts as zero.
fn full(text: &str) -> Option<Version> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let dots = text.split(['-', '+']).next()?.matches('.').count();
    match dots {
        0 => Version::parse(&format!("{text}.0.0")).ok(),
        1 => Version::parse(&format!("{text}.0")).ok(),
        _ => Version::parse(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(range: &str, fits: &[&str], not: &[&str]) {
        let parsed: Range = range.parse().expect(range);
        for version in fits {
            assert!(parsed.contains(&full(version).unwrap()), "{version} is in {range}");
        }
        for version in not {
            assert!(!parsed.contains(&full(version).unwrap()), "{version} is not in {range}");
        }
    }

    #[test]
    fn ranges_follow_npm_syntax() {
        check(">=0.13.0 <1.0.0", &["0.13.0", "0.99.1"], &["0.12.9", "1.0.0"]);
        check(">= 1.2", &["1.2", "3"], &["1.1.9"]);
        check("1.2.3", &["1.2.3"], &["1.2.4", "1.3.0"]);
        check("1.x || >=3", &["1.9.0", "3.0.0"], &["2.0.0"]);
        check("^1.2.0", &["1.9.9"], &["2.0.0"]);
        check("~1.2.0", &["1.2.9"], &["1.3.0"]);
        check("1.0.0 - 2.0.0", &["1.0.0", "2.0.0"], &["2.0.1"]);
        check("*", &["0.0.1"], &[]);
        for wrong in [">=", "latest", "1.2.3.4", ">=1 <<2", "a || b"] {
            assert!(wrong.parse::<Range>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_version_in_program_output_is_checked() {
        let check = |parse: &str, range: &str| VersionCheck {
            cmd: "hermes --version".into(),
            parse: parse.into(),
            range: range.into(),
            timeout_ms: 5000,
        };
        let hermes = check(r"^hermes\s+(\d+\.\d+\.\d+)", ">=0.13.0 <1.0.0");
        assert_eq!(judge(&hermes, "hermes 0.13.4\n"), Ok(Version::new(0, 13, 4)));
        assert!(matches!(judge(&hermes, "hermes 1.0.0"), Err(VersionError::Outside { .. })));
        assert!(matches!(judge(&hermes, "command not found"), Err(VersionError::NotFound(_))));
        assert!(matches!(judge(&check("(.*)", "*"), "new"), Err(VersionError::NotOne(_))));
        assert!(matches!(judge(&check("(", "*"), "1"), Err(VersionError::Pattern(_))));
        assert!(matches!(judge(&check("a", "*"), "1"), Err(VersionError::Pattern(_))));
        assert!(matches!(judge(&check("(a{500}){500}", "*"), "1"), Err(VersionError::Pattern(_))));
        assert!(matches!(judge(&check("(a)", "new"), "1"), Err(VersionError::Range(_))));
    }
}
