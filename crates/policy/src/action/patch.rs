//! Finds the paths in a patch.

use std::path::PathBuf;

/// Prefix of the headers of a patch format that agents apply themselves, such as `*** Update File: PATH`.
const STARS: &str = "*** ";

const HEADERS: [&str; 6] = ["+++ ", "--- ", "rename from ", "rename to ", "copy from ", "copy to "];

/// Header with both paths of a file. A change of mode, or an empty file, has no other header with a path.
const BOTH: &str = "diff --git ";

pub(super) fn is_patch(text: &str) -> bool {
    ["--- ", "+++ ", BOTH].iter().any(|header| text.starts_with(header))
        || ["*** Begin Patch", "*** Update File:", "*** Add File:", "\n+++ ", "\ndiff --git "]
            .iter()
            .any(|part| text.contains(part))
}

/// Returns the paths in the headers of a patch, without the prefixes `a/` and `b/`.
pub(super) fn paths(text: &str) -> impl Iterator<Item = PathBuf> {
    text.lines().flat_map(|line| {
        let mut found: Vec<PathBuf> = Vec::new();
        let mut push = |path: &str| {
            if !path.is_empty() && path != "/dev/null" {
                found.push(PathBuf::from(path));
            }
        };
        if let Some(names) = line.strip_prefix(BOTH) {
            both(names.trim_end()).iter().for_each(|name| push(bare(name)));
        } else if let Some((_, name)) = line.strip_prefix(STARS).and_then(|rest| rest.split_once(':')) {
            // Every operation that a header names counts.
            push(&unquoted(name.trim()));
        } else if let Some(header) = HEADERS.iter().find(|header| line.starts_with(**header)) {
            let name = line[header.len()..].split('\t').next().unwrap_or_default().trim();
            let name = unquoted(name);
            push(if header.len() == 4 { bare(&name) } else { &name });
        }
        found
    })
}

fn bare(name: &str) -> &str {
    name.strip_prefix("a/").or_else(|| name.strip_prefix("b/")).unwrap_or(name)
}

/// Returns both names in a `diff --git` header. A space separates them, and they may contain spaces.
fn both(names: &str) -> Vec<String> {
    if names.contains('"') {
        let mut rest = names;
        let mut found = Vec::new();
        while !rest.is_empty() {
            let end = match rest.strip_prefix('"') {
                Some(inner) => {
                    let mut escaped = false;
                    let closes = |letter: char| {
                        let is_end = letter == '"' && !escaped;
                        escaped = letter == '\\' && !escaped;
                        is_end
                    };
                    inner.find(closes).map_or(rest.len(), |at| at + 2)
                }
                None => rest.find(" \"").unwrap_or(rest.len()),
            };
            found.push(unquoted(rest[..end].trim()));
            rest = rest[end..].trim_start();
        }
        return found;
    }
    // If the names differ, the file is renamed, and a rename has other headers with the paths.
    let halves = |at: usize| (bare(&names[..at]), bare(&names[at + 1..]));
    let blanks = || names.match_indices(' ').map(|(at, _)| at);
    let same = blanks().find(|at| halves(*at).0 == halves(*at).1);
    match same.or_else(|| names.find(" b/")).or_else(|| blanks().next()) {
        Some(at) => vec![names[..at].to_owned(), names[at + 1..].to_owned()],
        None => vec![names.to_owned()],
    }
}

/// Unquotes a name in the form of git: a name with unusual characters is in quotation marks, with C escapes.
fn unquoted(name: &str) -> String {
    let Some(inner) = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return name.to_owned();
    };
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.bytes().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(digit @ b'0'..=b'7') => {
                let mut value = u32::from(digit - b'0');
                for _ in 0..2 {
                    let Some(digit) = rest.next_if(|byte| matches!(byte, b'0'..=b'7')) else { break };
                    value = value * 8 + u32::from(digit - b'0');
                }
                u8::try_from(value & 0xff).unwrap_or_default()
            }
            Some(other) => other,
            None => b'\\',
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
        check("*** Begin Patch\n*** Update File: a\n*** Rename To:/etc/x\n*** End Patch", &["a", "/etc/x"]);
        check("diff --git a/.env b/.env\nnew file mode 100644\n", &[".env", ".env"]);
        check("diff --git a/x y b/x y\nold mode 100644\n", &["x y", "x y"]);
        check("diff --git a/x b/y\nrename from x\nrename to y\n", &["x", "y", "x", "y"]);
        check("diff --git \"a/\\056env\" \"b/\\056env\"\n", &[".env", ".env"]);
        check("+++ \"b/a\\tb\"\n", &["a\tb"]);
        check("diff --git a/x b/x\ncopy from x\ncopy to z\n", &["x", "x", "x", "z"]);
        assert!(!is_patch("some text"));
    }
}
