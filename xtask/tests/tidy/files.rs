//! The Rust files of the repository, and which of their lines are tests.

use std::path::Path;

use crate::code;

/// Directories with Rust files.
const ROOTS: [&str; 5] = ["bench", "crates", "fuzz", "interop", "xtask"];

/// Directories that hold what was built or found, not what was written.
const SKIPPED: [&str; 3] = ["target", "artifacts", "corpus"];

/// A Rust file.
pub(crate) struct Source {
    /// Its path from the root of the repository, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments, strings and characters blanked out.
    pub(crate) code: String,
    /// The index of the first line that is a test or serves one; the number of lines if there is none.
    tests_from: usize,
}

impl Source {
    /// A file with this text.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = code::blank(text);
        let tests_from = if is_test_file(path) { 0 } else { test_module(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, tests_from }
    }

    /// Returns `true` if the file contains the unit tests of the module beside it.
    pub(crate) fn is_unit_test_file(&self) -> bool {
        is_unit_test_file(&self.path)
    }

    /// The lines that ship: their numbers, from 1, and their code.
    pub(crate) fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().take(self.tests_from)
    }

    /// The lines of tests: their numbers, from 1, and their code.
    pub(crate) fn tests(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().skip(self.tests_from)
    }

    /// All lines: their numbers, from 1, and their code.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// All Rust files, in the order of their paths.
pub(crate) fn all() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root");
    let mut sources = Vec::new();
    let mut directories: Vec<_> = ROOTS.iter().map(|name| root.join(name)).collect();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                if !SKIPPED.iter().any(|skipped| name == *skipped) {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("source is UTF-8");
                let path = path.strip_prefix(root).expect("below the root");
                sources.push(Source::new(&path.to_string_lossy(), &text));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Files of tests and the programs they use: in a folder `tests` or `examples`, or called so.
fn is_test_file(path: &str) -> bool {
    path.split('/').any(|folder| folder == "tests" || folder == "examples")
        || path.starts_with("crates/testkit/")
        || is_unit_test_file(path)
}

fn is_unit_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.contains("/src/") && (name == "tests.rs" || name.ends_with("_tests.rs"))
}

/// The line on which a module of tests begins; by convention it is the last thing in its file.
fn test_module(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().collect();
    let begins = |index: &usize| {
        let module = lines[*index..].iter().skip(1).find(|line| !line.trim_start().starts_with("#["));
        lines[*index].trim_start().starts_with("#[cfg(test)]")
            && module
                .is_some_and(|line| line.trim_start().starts_with("mod ") && line.trim_end().ends_with('{'))
    };
    (0..lines.len()).find(begins).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[usize]) {
        let source = Source::new(path, text);
        assert_eq!(source.tests().map(|(number, _)| number).collect::<Vec<_>>(), expected);
        assert_eq!(source.product().count() + source.tests().count(), text.lines().count());
    }

    #[test]
    fn lines_of_tests_are_told_from_the_product() {
        check("crates/a/src/a.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n}\n", &[2, 3, 4]);
        check("crates/a/src/a.rs", "#[cfg(test)]\nmod tests;\nfn f() {}\n", &[]);
        check("crates/a/src/a.rs", "#[cfg(test)]\nfn f() {}\nfn g() {}\n", &[]);
        check("crates/a/tests/it.rs", "fn f() {}\n", &[1]);
        check("crates/a/src/a/tests.rs", "fn f() {}\n", &[1]);
        check("crates/a/examples/echo.rs", "fn f() {}\n", &[1]);
        check("crates/testkit/src/lib.rs", "fn f() {}\n", &[1]);
    }
}
