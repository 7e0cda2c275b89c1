//! Compares the changes that an agent shows with the files on disk.
//!
//! An agent claims the old text of a change. If the client trusted a wrong claim, a permission request could
//! show only a part of a change, while the answer would cover the whole new text.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::permission_request::FileChange;

/// Maximum size of a file that is compared. The new text of a larger file is shown completely.
const MAX_COMPARED_BYTES: u64 = 10 << 20;

/// Part of the changes that a permission request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShownChange {
    /// The request shows all of each new text, or all of its differences from the file on disk.
    Whole,
    Part,
}

/// Removes the claimed old text of each change that does not match the file on disk. Relative paths start in
/// `cwd`.
pub(super) async fn compare_with_disk(
    changes: Vec<FileChange>,
    cwd: PathBuf,
) -> (Vec<FileChange>, ShownChange) {
    if changes.iter().all(|change| change.path.is_none() || change.old_text.is_none()) {
        return (changes, ShownChange::Whole);
    }
    let without_old = |change: &FileChange| FileChange { old_text: None, ..change.clone() };
    let fallback = changes.iter().map(without_old).collect();
    let comparing = tokio::task::spawn_blocking(move || compare(changes, &cwd));
    comparing.await.unwrap_or((fallback, ShownChange::Whole))
}

fn compare(mut changes: Vec<FileChange>, cwd: &Path) -> (Vec<FileChange>, ShownChange) {
    let mut shown = ShownChange::Whole;
    for change in &mut changes {
        let (Some(path), Some(old)) = (&change.path, &change.old_text) else { continue };
        match read(&cwd.join(path)) {
            Some(text) if text == *old => {}
            Some(text) if !old.is_empty() && text.contains(old.as_str()) => shown = ShownChange::Part,
            _ => change.old_text = None,
        }
    }
    (changes, shown)
}

/// Returns the text of a regular file. `None` for other types, large files and invalid text. Blocks.
fn read(path: &Path) -> Option<String> {
    // The file type is checked before the file is opened, because opening a pipe would block.
    let is_file =
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= MAX_COMPARED_BYTES);
    let mut text = String::new();
    let file = is_file.then(|| File::open(path).ok())??;
    file.take(MAX_COMPARED_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_claimed_old_text_is_compared_with_the_file() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a"), "one\ntwo\n").unwrap();
        let check = async |path: &str, old: Option<&str>, expected: (Option<&str>, ShownChange)| {
            let old_text = old.map(str::to_owned);
            let change = FileChange { path: Some(path.into()), old_text, new_text: "new".to_owned() };
            let (changes, shown) = compare_with_disk(vec![change], place.path().to_owned()).await;
            assert_eq!((changes[0].old_text.as_deref(), shown), expected, "{path} {old:?}");
        };
        check("a", Some("one\ntwo\n"), (Some("one\ntwo\n"), ShownChange::Whole)).await;
        check("a", Some("two"), (Some("two"), ShownChange::Part)).await;
        check("a", Some("new"), (None, ShownChange::Whole)).await;
        check("a", Some(""), (None, ShownChange::Whole)).await;
        check("a", None, (None, ShownChange::Whole)).await;
        check("missing", Some("new"), (None, ShownChange::Whole)).await;
        check("/dev/zero", Some("new"), (None, ShownChange::Whole)).await;
    }
}
