//! The names of a log's files.

use std::path::Path;

/// Returns `true` if `name` is a file of the log whose active file is `log`.
#[must_use]
pub fn is_log_file(log: &Path, name: &str) -> bool {
    LogFileNames::from_path(log).is_some_and(|names| {
        [names.current(), &names.lock(), &names.sealing()].contains(&name) || names.first(name).is_some()
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFileNames {
    current: String,
    /// Part of a sealed file's name before its number.
    stem: String,
    /// Part of a sealed file's name after its number.
    ending: String,
}

impl LogFileNames {
    /// Returns the names of the log whose active file has this path.
    pub(crate) fn from_path(path: &Path) -> Option<Self> {
        let current = path.file_name()?.to_str()?.to_owned();
        let (stem, ending) = match current.rsplit_once('.') {
            Some((stem, ending)) if !stem.is_empty() => (format!("{stem}."), format!(".{ending}")),
            _ => (format!("{current}."), String::new()),
        };
        Some(Self { current, stem, ending })
    }

    pub(crate) fn current(&self) -> &str {
        &self.current
    }

    /// Returns the name of the lock file, which a process locks before it writes.
    pub(crate) fn lock(&self) -> String {
        format!("{}.lock", self.current)
    }

    /// Returns the name of the copy that replaces a file after a failed sync, while the copy is made.
    pub(crate) fn sealing(&self) -> String {
        format!("{}.sealing", self.current)
    }

    /// Returns the name of the sealed file whose first entry has this number.
    pub(crate) fn sealed(&self, first: u64) -> String {
        format!("{}{first:012}{}", self.stem, self.ending)
    }

    /// Returns the number of the first entry of the sealed file with this name.
    pub(crate) fn first(&self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(&self.stem)?.strip_suffix(&self.ending)?;
        let number = digits.parse().ok()?;
        // The number must be spelled in the usual form, so that a sealed file has only one valid name.
        (self.sealed(number) == name).then_some(number)
    }

    pub(crate) fn sealed_among(&self, names: impl IntoIterator<Item = String>) -> Vec<(u64, String)> {
        let mut sealed: Vec<_> =
            names.into_iter().filter_map(|name| Some((self.first(&name)?, name))).collect();
        sealed.sort_unstable();
        sealed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_files_are_recognized_by_name() {
        let names = LogFileNames::from_path(Path::new("a/audit-log.jsonl")).expect("a name");
        assert_eq!(names.sealed(42), "audit-log.000000000042.jsonl");
        assert_eq!(names.lock(), "audit-log.jsonl.lock");
        for (name, first) in [
            ("audit-log.000000000042.jsonl", Some(42)),
            ("audit-log.1000000000000.jsonl", Some(1_000_000_000_000)),
            ("audit-log.42.jsonl", None),
            ("audit-log.jsonl", None),
            ("audit-log.jsonl.lock", None),
            ("other.000000000042.jsonl", None),
        ] {
            assert_eq!(names.first(name), first, "{name}");
        }
        let found = names.sealed_among(
            ["audit-log.1000000000000.jsonl", "audit-log.000000000042.jsonl", "x"].map(str::to_owned),
        );
        assert_eq!(found.iter().map(|(first, _)| *first).collect::<Vec<_>>(), [42, 1_000_000_000_000]);
    }

    #[test]
    fn a_name_needs_no_ending() {
        let names = LogFileNames::from_path(Path::new("log")).expect("a name");
        assert_eq!(names.sealed(1), "log.000000000001");
        assert_eq!(names.first("log.000000000001"), Some(1));
        assert_eq!(LogFileNames::from_path(Path::new("/")), None);
    }

    #[test]
    fn only_files_of_the_log_are_its_files() {
        for (log, name, expected) in [
            ("w/log.jsonl", "log.jsonl", true),
            ("w/log.jsonl", "log.jsonl.lock", true),
            ("w/log.jsonl", "log.000000000007.jsonl", true),
            ("w/log.jsonl", "logo.svg", false),
            ("w/log.jsonl", "login.rs", false),
            ("w/log.jsonl", "log.txt", false),
            ("w/.audit.jsonl", "README.md", false),
            ("w/.audit.jsonl", ".audit.000000000007.jsonl", true),
            ("/", "README.md", false),
        ] {
            assert_eq!(is_log_file(Path::new(log), name), expected, "{log} {name}");
        }
    }
}
