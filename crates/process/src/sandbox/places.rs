//! Which places a sandbox has to treat in which way, going by what lies on disk now.

use std::io;
use std::path::{Path, PathBuf};

use crate::SpawnError;

/// The writable places that are not in another one. In there a worker may have put a link in the place of a
/// directory, so that no path is to be followed.
pub(crate) fn outermost(places: &[PathBuf]) -> Result<Vec<PathBuf>, SpawnError> {
    let mut kept: Vec<PathBuf> = Vec::new();
    let mut sorted: Vec<&PathBuf> = places.iter().collect();
    sorted.sort();
    for path in sorted {
        if kept.iter().any(|outer| path.starts_with(outer)) {
            continue;
        }
        let unusable = |source| SpawnError::SandboxPlace { path: path.clone(), source };
        // Compared as text: components would hide a dot.
        if path.canonicalize().map_err(unusable)?.as_os_str() != path.as_os_str() {
            return Err(unusable(io::Error::other(
                "its path leads through a link, or is not absolute and plain",
            )));
        }
        kept.push(path.clone());
    }
    Ok(kept)
}

/// Where protected places lead, as far as that exists within the writable ones.
pub(crate) fn protected(places: &[PathBuf], writable: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = places
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| is_inside(path, writable))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The protected places that are links themselves, within the writable ones. Who replaces a link need not touch
/// where it leads.
pub(crate) fn links(places: &[PathBuf], writable: &[PathBuf]) -> Vec<PathBuf> {
    let is_link = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    let mut found: Vec<PathBuf> = places
        .iter()
        .filter(|path| is_link(path))
        .filter_map(|path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?)))
        .filter(|path| is_inside(path, writable))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The directories between a writable place and a protected one. A place that is mounted cannot be moved away, but
/// the directory around it could, and a new one put there instead; mounted themselves, they cannot either.
pub(crate) fn pinned<'a>(protected: &'a [PathBuf], writable: &[PathBuf]) -> Vec<&'a Path> {
    let mut pinned: Vec<&Path> = Vec::new();
    for place in protected {
        pinned.extend(place.ancestors().skip(1).take_while(|path| is_inside(path, writable)));
    }
    // Outer directories before inner ones: a later mount covers an earlier one.
    pinned.sort();
    pinned.dedup();
    pinned
}

fn is_inside(path: &Path, writable: &[PathBuf]) -> bool {
    writable.iter().any(|root| path.starts_with(root) && path != root)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_writable_place_is_reached_through_another() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let [a, b] = ["a", "b"].map(|name| top.join(name));
        fs::create_dir_all(&a).unwrap();
        fs::create_dir_all(&b).unwrap();
        symlink("/", a.join("link")).unwrap();
        symlink(&b, top.join("link")).unwrap();
        let inner = a.join("link");
        assert_eq!(outermost(&[b.clone(), inner, a.clone(), a.clone()]).unwrap(), [a.clone(), b.clone()]);
        let beside = top.join("a-b");
        fs::create_dir(&beside).unwrap();
        assert_eq!(outermost(&[a.clone(), beside.clone()]).unwrap(), [a.clone(), beside]);
        let refused = ["link", "missing", "a/../b", "b/.", "b/"].map(|name| top.join(name));
        for path in refused.into_iter().chain([PathBuf::from("src")]) {
            let error = outermost(std::slice::from_ref(&path)).unwrap_err();
            assert!(
                matches!(&error, SpawnError::SandboxPlace { path: named, .. } if *named == path),
                "{error:?}"
            );
        }
    }

    #[test]
    fn what_is_protected_is_looked_for_where_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let root = top.join("root");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(top.join("outside"), "").unwrap();
        symlink("a/b", root.join("soft")).unwrap();
        symlink("../outside", root.join("out")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        let names = ["a/b/c", "soft", "out", "dangling", "missing", "soft/c", ""];
        let places = names.map(|name| root.join(name));
        let writable = [root.clone()];
        let within = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<Vec<_>>();
        let found = protected(&places, &writable);
        assert_eq!(found, within(&["a/b", "a/b/c"]));
        assert_eq!(links(&places, &writable), within(&["dangling", "out", "soft"]));
        assert_eq!(pinned(&found, &writable), within(&["a", "a/b"]));
    }
}
