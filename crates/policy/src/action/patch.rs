//! The paths a patch names.

use std::path::PathBuf;

/// What stands before a path in the headers of patches, of both customary forms.
const HEADERS: [&str; 8] = [
    "*** Add File: ",
    "*** Update File: ",
    "*** Delete File: ",
    "*** Move to: ",
    "+++ ",
    "--- ",
    "rename from ",
    "rename to ",
];

/// Whether `text` looks like a patch.
pub(super) fn is_patch(text: &str) -> bool {
    text.contains("*** Begin Patch") || text.starts_with("--- ") || text.contains("\n+++ ")
}

/// The paths in its headers, without the prefixes `a/` and `b/` of diffs.
pub(super) fn paths(text: &str) -> impl Iterator<Item = PathBuf> {
    text.lines().filter_map(|line| {
        let header = HEADERS.iter().find(|header| line.starts_with(**header))?;
        let path = line[header.len()..].split('\t').next().unwrap_or_default().trim();
        let stripped = if header.len() == 4 {
            path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path)
        } else {
            path
        };
        (!path.is_empty() && path != "/dev/null").then(|| PathBuf::from(stripped))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(patch: &str, expected: &[&str]) {
        assert!(is_patch(patch));
        assert_eq!(paths(patch).collect::<Vec<_>>(), expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn headers_name_paths() {
        check("--- a/src/x.rs\t2024\n+++ b/src/x.rs\n@@ -1 +1 @@\n-a\n+b\n", &["src/x.rs", "src/x.rs"]);
        check("--- /dev/null\n+++ b/.env\n", &[".env"]);
        check(
            "*** Begin Patch\n*** Update File: a.rs\n*** Move to: ../b.rs\n*** Delete File: c\n*** End Patch",
            &["a.rs", "../b.rs", "c"],
        );
        assert!(!is_patch("some text"));
    }
}
