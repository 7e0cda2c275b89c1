//! Decides how a sandbox treats protected paths, from the current state of the disk.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::SpawnError;

/// Returns the writable paths that are not inside another writable path. Inner paths are not followed,
/// because a worker may have replaced a directory by a link.
pub(crate) fn outermost(places: &[PathBuf]) -> Result<Vec<PathBuf>, SpawnError> {
    let mut kept: Vec<PathBuf> = Vec::new();
    let mut sorted: Vec<&PathBuf> = places.iter().collect();
    sorted.sort();
    for path in sorted {
        if kept.iter().any(|outer| path.starts_with(outer)) {
            continue;
        }
        let unusable = |source| SpawnError::SandboxPlace { path: path.clone(), source };
        // The paths are compared as text, because comparing components ignores `.`.
        if path.canonicalize().map_err(unusable)?.as_os_str() != path.as_os_str() {
            return Err(unusable(io::Error::other(
                "its path contains a symbolic link, or is not absolute and normalized",
            )));
        }
        kept.push(path.clone());
    }
    Ok(kept)
}

/// Returns the paths that must be read-only so that `places` within the writable paths stay unchanged.
///
/// Only paths that certainly do not exist need no protection. If a directory cannot be searched, all of it
/// is protected: a worker that owns the directory could have removed the permission, and could restore it
/// afterwards.
pub(crate) fn protected(places: &[PathBuf], writable: &[PathBuf]) -> Result<Vec<PathBuf>, SpawnError> {
    let is_within = |path: &Path| writable.iter().any(|root| path.starts_with(root));
    let mut found: Vec<PathBuf> = Vec::new();
    for path in places {
        match follow(path).end {
            PathEnd::Missing(_) => {}
            PathEnd::At(end) => found.extend(is_within(&end).then_some(end)),
            PathEnd::Unknown(directory) => {
                found.extend(writable.iter().filter(|root| root.starts_with(&directory)).cloned());
                found.extend(is_within(&directory).then_some(directory));
            }
        }
    }
    found.sort();
    found.dedup();
    // A mount on the root directory does not cover it for processes that are in it already.
    match found.iter().find(|path| *path == Path::new("/")) {
        Some(root) => Err(SpawnError::SandboxPlace {
            path: root.clone(),
            source: io::Error::other("a protected path in it cannot be examined"),
        }),
        None => Ok(found),
    }
}

/// Returns the directories that must be read-only so that nothing can be created at those `places` that do
/// not exist.
///
/// # Errors
/// If such a directory is a writable path itself.
pub(crate) fn parents_of_missing(
    places: &[PathBuf],
    writable: &[PathBuf],
) -> Result<Vec<PathBuf>, SpawnError> {
    let mut found: Vec<PathBuf> = Vec::new();
    for path in places {
        let PathEnd::Missing(parent) = follow(path).end else { continue };
        if writable.contains(&parent) {
            let why = "it must be protected and does not exist; create it, or use a path in a subdirectory";
            return Err(SpawnError::SandboxPlace { path: path.clone(), source: io::Error::other(why) });
        }
        found.extend(is_inside(&parent, writable).then_some(parent));
    }
    Ok(found)
}

/// Returns the links on the way to protected paths, including the paths themselves, within the writable
/// ones. A link can be replaced without changing its target.
pub(crate) fn links(places: &[PathBuf], writable: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        places.iter().flat_map(|path| follow(path).links).filter(|path| is_inside(path, writable)).collect();
    found.sort();
    found.dedup();
    found
}

const MAX_LINKS: usize = 40;

pub(crate) struct Followed {
    pub(crate) end: PathEnd,
    /// Links that were followed, each by a path without links.
    links: Vec<PathBuf>,
}

/// Result of following all links of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathEnd {
    /// The path without links.
    At(PathBuf),
    /// Nothing, or a cycle of links: there is nothing with the next name in this directory.
    Missing(PathBuf),
    /// This directory, after which the path cannot be followed: the directory may not be searchable, or the
    /// disk fails.
    Unknown(PathBuf),
}

pub(crate) fn follow(path: &Path) -> Followed {
    let mut links = Vec::new();
    let end = follow_to_end(path, &mut links);
    Followed { end, links }
}

fn follow_to_end(path: &Path, links: &mut Vec<PathBuf>) -> PathEnd {
    let mut at = PathBuf::from("/");
    let Ok(path) = std::path::absolute(path) else { return PathEnd::Unknown(at) };
    // The components that remain to be followed, the next one last.
    let mut rest = reversed(&path);
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let looked = next.symlink_metadata().and_then(|metadata| {
            if metadata.is_symlink() { std::fs::read_link(&next).map(Some) } else { Ok(None) }
        });
        match looked {
            Ok(None) => at = next,
            Ok(Some(target)) => {
                links.push(next);
                if links.len() > MAX_LINKS {
                    return PathEnd::Missing(at);
                }
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                rest.extend(reversed(&target));
            }
            Err(error) if is_missing(&error) => return PathEnd::Missing(at),
            Err(_) => return PathEnd::Unknown(at),
        }
    }
    PathEnd::At(at)
}

fn reversed(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// Returns `true` if the error means that certainly no file exists at a path. Any other error means that the
/// path could not be examined.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns the directories between a writable path and a protected one. A mount point cannot be moved, but a
/// directory that contains it could be moved and replaced, unless the directory is a mount point too.
pub(crate) fn pinned<'a>(protected: &'a [PathBuf], writable: &[PathBuf]) -> Vec<&'a Path> {
    let mut pinned: Vec<&Path> = Vec::new();
    for place in protected {
        pinned.extend(place.ancestors().skip(1).take_while(|path| is_inside(path, writable)));
    }
    // Outer directories come before inner ones, because a later mount covers an earlier one.
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
    fn nested_writable_paths_are_dropped() {
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
    fn protected_paths_are_resolved_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let root = top.join("root");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(top.join("outside"), "").unwrap();
        symlink("a/b", root.join("soft")).unwrap();
        symlink("../outside", root.join("out")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink("round", root.join("round")).unwrap();
        symlink("soft", root.join("twice")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        let names = [
            "a/b/c",
            "soft",
            "out",
            "dangling",
            "missing",
            "soft/c",
            "round",
            "twice",
            "file/x",
            "a/../a/b/./c",
        ];
        let places = names.map(|name| root.join(name));
        let writable = [root.clone()];
        let within = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<Vec<_>>();
        let found = protected(&places, &writable).unwrap();
        assert_eq!(found, within(&["a/b", "a/b/c"]));
        assert_eq!(links(&places, &writable), within(&["dangling", "out", "round", "soft", "twice"]));
        assert_eq!(protected(&[root.clone(), top.clone()], &writable).unwrap(), writable);
        assert_eq!(pinned(&found, &writable), within(&["a", "a/b"]));
    }

    /// A name that is too long causes an error even for root, who may search every directory.
    #[test]
    fn an_unexaminable_path_protects_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let root = top.join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        let long = "x".repeat(300);
        symlink(format!("a/{long}"), root.join("link")).unwrap();
        symlink(format!("../{long}"), root.join("out")).unwrap();
        let sealed = |name: &str, writable: &[PathBuf]| protected(&[root.join(name)], writable);
        let writable = [root.clone()];
        assert_eq!(sealed(&format!("a/b/{long}/c"), &writable).unwrap(), [root.join("a/b")]);
        assert_eq!(sealed("link", &writable).unwrap(), [root.join("a")]);
        assert_eq!(sealed(&long, &writable).unwrap(), writable);
        // The link may lead to the root directory, so all of it is protected.
        assert_eq!(sealed("out", &writable).unwrap(), writable);
        assert_eq!(sealed(&format!("../{long}"), &[top.join("other")]).unwrap(), [top.join("other")]);
        let everything = [PathBuf::from("/")];
        let error = protected(&[Path::new("/").join(&long)], &everything).unwrap_err();
        assert!(matches!(error, SpawnError::SandboxPlace { .. }), "{error:?}");
        assert_eq!(sealed(&format!("a/{long}"), &everything).unwrap(), [root.join("a")]);
    }
}
