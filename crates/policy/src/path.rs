//! Paths as lists of names, and patterns for paths. Nothing here uses the disk.

use std::path::{Component, Path, PathBuf};

use crate::text_pattern::{Case, PatternUnit, TextPattern, meet};

/// Name that stands for an unknown home directory.
const HOME: &str = "~";

/// Makes `path` absolute, relative to `cwd`, and removes `.` and `..`. The parent of the root directory is
/// the root directory.
pub(crate) fn resolve(path: &Path, cwd: Option<&Path>, home: Option<&Path>) -> PathBuf {
    let (base, rest) = match (path.strip_prefix(HOME), home) {
        (Ok(rest), Some(home)) => (Some(home), rest),
        (Ok(_), None) => (None, path),
        (Err(_), _) if path.is_absolute() => (None, path),
        (Err(_), _) => (cwd, path),
    };
    let base = base.unwrap_or(Path::new(""));
    let mut plain = PathBuf::with_capacity(base.as_os_str().len() + rest.as_os_str().len() + 1);
    for component in base.components().chain(rest.components()) {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

pub(crate) fn is_within(path: &Path, roots: &[PathBuf]) -> bool {
    path.is_absolute() && roots.iter().any(|root| path.starts_with(resolve(root, None, None)))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Name(TextPattern),
    /// Any number of directory and file names.
    Deep,
}

/// A path as a list of steps, which can contain unknown parts of patterns and expansions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Steps(pub(crate) Vec<Step>);

impl Steps {
    pub(crate) fn from_path(path: &Path) -> Self {
        let names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(Step::Name(TextPattern::exact(&name.to_string_lossy()))),
            _ => None,
        });
        Self(names.collect())
    }

    fn meets(&self, other: &Self, case: Case) -> bool {
        let deep = |step: &Step| *step == Step::Deep;
        meet(&self.0, &other.0, deep, deep, |a, b| match (a, b) {
            (Step::Name(a), Step::Name(b)) => a.meets(b, case),
            _ => true,
        })
    }
}

/// A path pattern of a rule. Names can contain `*` and `?`, and `**` stands for any number of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathPattern {
    start: Start,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Root,
    Home,
    AnyRoot,
}

/// Directories in which patterns start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PatternBase<'a> {
    /// Directories in which relative patterns start.
    pub(crate) roots: &'a [PathBuf],
    /// Directory that `~` stands for, if it is known.
    pub(crate) home: Option<&'a Path>,
}

impl PathPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (start, rest) = match text.strip_prefix('/') {
            Some(rest) => (Start::Root, rest),
            None if text == HOME => (Start::Home, ""),
            None => match text.strip_prefix("~/") {
                Some(rest) => (Start::Home, rest),
                None => (Start::AnyRoot, text),
            },
        };
        if text.is_empty() {
            return Err("a path must not be empty");
        }
        if text.starts_with('~') && start != Start::Home {
            return Err("only `~/` is supported, not the homes of other users");
        }
        let mut steps = Vec::new();
        for name in rest.split('/') {
            match name {
                "" | "." => {}
                ".." => return Err("a pattern must not have `..` in it"),
                "**" => steps.push(Step::Deep),
                name if name.contains("**") => return Err("`**` must stand alone between slashes"),
                name => steps.push(Step::Name(TextPattern::glob(name, true))),
            }
        }
        Ok(Self { start, steps })
    }

    fn bases(&self, pattern_base: PatternBase<'_>) -> Vec<Steps> {
        match self.start {
            Start::Root => vec![Steps::default()],
            Start::Home => {
                let unknown = Steps(vec![Step::Name(TextPattern::exact(HOME))]);
                vec![pattern_base.home.map_or(unknown, |home| Steps::from_path(&resolve(home, None, None)))]
            }
            Start::AnyRoot => {
                pattern_base.roots.iter().map(|root| Steps::from_path(&resolve(root, None, None))).collect()
            }
        }
    }

    /// Returns `true` if the pattern certainly matches `path`.
    pub(crate) fn covers(&self, path: &Steps, pattern_base: PatternBase<'_>) -> bool {
        let known = path.0.iter().all(|step| matches!(step, Step::Name(name) if name.text().is_some()));
        known
            && self.bases(pattern_base).into_iter().any(|mut base| {
                base.0.extend_from_slice(&self.steps);
                base.meets(path, Case::Different)
            })
    }

    /// Returns `true` if the pattern may match `path` or a directory above it.
    pub(crate) fn touches(&self, path: &Steps, pattern_base: PatternBase<'_>) -> bool {
        self.bases(pattern_base).into_iter().any(|mut base| {
            base.0.extend_from_slice(&self.steps);
            base.0.push(Step::Deep);
            base.meets(path, Case::Same)
        })
    }

    /// Returns `true` if everything that the pattern matches is certainly below `path`, and is removed
    /// together with `path`.
    pub(crate) fn lies_below(&self, path: &Steps, pattern_base: PatternBase<'_>) -> bool {
        let known = self
            .steps
            .iter()
            .take_while(|step| matches!(step, Step::Name(name) if !name.0.contains(&PatternUnit::Many)));
        let known: Vec<Step> = known.cloned().collect();
        self.bases(pattern_base).into_iter().any(|mut base| {
            base.0.extend_from_slice(&known);
            let mut below = path.clone();
            below.0.push(Step::Deep);
            base.meets(&below, Case::Same)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_resolve(path: &str, expected: &str) {
        let found = resolve(Path::new(path), Some(Path::new("/r/s")), Some(Path::new("/h")));
        assert_eq!(found, Path::new(expected), "{path}");
    }

    #[test]
    fn paths_are_normalized() {
        check_resolve("a", "/r/s/a");
        check_resolve("./a//b/", "/r/s/a/b");
        check_resolve("../a", "/r/a");
        check_resolve("../../../../a", "/a");
        check_resolve("/x/../y", "/y");
        check_resolve("~/x", "/h/x");
        check_resolve("~", "/h");
        check_resolve("~x", "/r/s/~x");
        check_resolve("a/~/b", "/r/s/a/~/b");
        check_resolve("", "/r/s");
    }

    #[test]
    fn roots_are_compared_by_names() {
        let roots = [PathBuf::from("/r/s/"), PathBuf::from("/t/../u")];
        for (path, expected) in [
            ("/r/s", true),
            ("/r/s/a", true),
            ("/r/sa", false),
            ("/r", false),
            ("/u/a", true),
            ("r/s", false),
        ] {
            assert_eq!(is_within(Path::new(path), &roots), expected, "{path}");
        }
    }

    #[track_caller]
    fn check(pattern: &str, path: &str, covers: bool, touches: bool) {
        let roots = [PathBuf::from("/r"), PathBuf::from("/q")];
        let pattern_base = PatternBase { roots: &roots, home: Some(Path::new("/h")) };
        let pattern = PathPattern::parse(pattern).unwrap();
        let steps = Steps::from_path(Path::new(path));
        let found = (pattern.covers(&steps, pattern_base), pattern.touches(&steps, pattern_base));
        assert_eq!(found, (covers, touches), "{pattern:?} {path}");
    }

    #[test]
    fn patterns_match_whole_names() {
        check("src", "/r/src", true, true);
        check("src", "/q/src", true, true);
        check("src", "/r/src/a", false, true);
        check("src", "/r/srcs", false, false);
        check("src", "/r/a/src", false, false);
        check("src", "/src", false, false);
        check("src/**", "/r/src", true, true);
        check("src/**", "/r/src/a/b", true, true);
        check("src/*", "/r/src/a", true, true);
        check("src/*", "/r/src/a/b", false, true);
        check("**/x", "/r/x", true, true);
        check("**/x", "/r/a/b/x", true, true);
        check("**/x", "/s/x", false, false);
        check("*.rs", "/r/a.rs", true, true);
        check("a?c", "/r/abc", true, true);
        check("a?c", "/r/ac", false, false);
        check("/x/**", "/x/y", true, true);
        check("~/x", "/h/x", true, true);
        check("~", "/h", true, true);
        check("Src", "/r/src", false, true);
        check("./src/", "/r/src", true, true);
        check("/", "/anything", false, true);
    }

    #[test]
    fn removing_a_directory_removes_what_is_below() {
        let roots = [PathBuf::from("/r")];
        let pattern_base = PatternBase { roots: &roots, home: None };
        let below = |pattern: &str, path: &str| {
            PathPattern::parse(pattern).unwrap().lies_below(&Steps::from_path(Path::new(path)), pattern_base)
        };
        assert!(below("a/b/**", "/r"));
        assert!(below("a/b/**", "/r/a"));
        assert!(below("a/b/**", "/r/a/b"));
        assert!(!below("a/b/**", "/r/b"));
        assert!(!below("a/b/**", "/r/a/b/c"));
        assert!(below("**/x", "/r"));
        assert!(!below("**/x", "/r/a"));
    }
}
