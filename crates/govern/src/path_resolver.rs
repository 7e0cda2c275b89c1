//! Resolves symbolic links, so that a path is judged by the file that it leads to.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use narrows_base::text::quoted;
use narrows_policy::{Action, DiskEntry, Kind, RepositoryDisk, WordLink, is_unusual_repository};
use sha2::{Digest as _, Sha256};

use crate::call::Digest;

/// Reason why a path is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathRefusal {
    #[error("the path is not absolute")]
    Relative,
    #[error("the path contains `..` or a NUL")]
    NotPlain,
    /// An existing part of the path could not be read.
    #[error("cannot resolve the path")]
    Unresolved,
    #[error("the path is outside the operator's directories")]
    OutsideRoots,
}

impl PathRefusal {
    /// Returns the reason with the path and the roots, for peers that may see paths of this machine.
    pub(crate) fn describe(&self, path: &Path, roots: &[PathBuf]) -> String {
        let shown = |path: &Path| quoted(&path.to_string_lossy(), MAX_SHOWN_CHARS);
        let roots: Vec<String> = roots.iter().map(|root| format!("\"{}\"", shown(root))).collect();
        format!("{self}: \"{}\" is not in {}", shown(path), roots.join(" or "))
    }
}

/// Maximum number of files that are compared with a file that has several hard links.
const MAX_LOOKED_AT: usize = 10_000;

/// Maximum size of a `.git` file. A larger file is not read.
const MAX_GIT_FILE_BYTES: u64 = 64 << 10;

/// Limit of lookups for one action. The lookups of a path cost its number of names times its length. 4096
/// paths with 25 names and 250 bytes each are below the limit.
const MAX_LOOKUP_COST: usize = 64 << 20;

const MAX_PATH_BYTES: usize = 4096;

/// Maximum length of a path in messages. A longer path is shortened.
const MAX_SHOWN_CHARS: usize = 1000;

/// Access to the file system, replaceable in tests.
pub trait PathResolver: fmt::Debug + Send + Sync {
    /// Returns an existing path with all links resolved.
    ///
    /// # Errors
    ///
    /// If the path does not exist or cannot be read.
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf>;

    /// Returns the path of `name` in `directory` with all links resolved. `directory` must not contain links.
    ///
    /// # Errors
    ///
    /// As for [`PathResolver::canonicalize`].
    fn canonicalize_in(&self, directory: &Path, name: &OsStr) -> io::Result<PathBuf> {
        self.canonicalize(&directory.join(name))
    }

    /// Returns `true` if the file at `path` has more than one hard link.
    fn has_several_names(&self, path: &Path) -> bool {
        _ = path;
        false
    }

    /// Returns the entry at `path`, without following links.
    fn entry(&self, path: &Path) -> DiskEntry {
        _ = path;
        DiskEntry::Missing
    }

    /// Returns the paths of the entries of a directory. A directory that cannot be read has none.
    fn files_in(&self, directory: &Path) -> Vec<PathBuf> {
        _ = directory;
        Vec::new()
    }

    /// Returns `true` if the file at `path` is a hard link to one of `places` or to a file in them. A file
    /// that cannot be read counts as one.
    fn is_linked_to(&self, path: &Path, places: &[PathBuf]) -> bool {
        _ = (path, places);
        false
    }
}

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemPathResolver;

impl PathResolver for SystemPathResolver {
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn canonicalize_in(&self, directory: &Path, name: &OsStr) -> io::Result<PathBuf> {
        let path = directory.join(name);
        if path.symlink_metadata()?.is_symlink() { path.canonicalize() } else { Ok(path) }
    }

    fn has_several_names(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|found| found.is_file() && found.nlink() > 1)
    }

    fn entry(&self, path: &Path) -> DiskEntry {
        let found = match path.symlink_metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return DiskEntry::Missing,
            Err(_) => return DiskEntry::Unknown,
        };
        match found.is_dir() {
            true => DiskEntry::Directory,
            false if found.is_file() && found.len() <= MAX_GIT_FILE_BYTES => {
                std::fs::read_to_string(path).map_or(DiskEntry::Unknown, DiskEntry::File)
            }
            false => DiskEntry::Unknown,
        }
    }

    fn files_in(&self, directory: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }

    fn is_linked_to(&self, path: &Path, places: &[PathBuf]) -> bool {
        let found = match path.symlink_metadata() {
            Ok(found) => found,
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        // Most files have one hard link, so no search is needed.
        if !found.is_file() || found.nlink() < 2 {
            return false;
        }
        let mut open = places.to_vec();
        let mut looked_at = 0;
        while let Some(place) = open.pop() {
            let Ok(other) = place.symlink_metadata() else { continue };
            if (other.dev(), other.ino()) == (found.dev(), found.ino()) {
                return true;
            }
            if other.is_dir() {
                open.extend(
                    std::fs::read_dir(&place).into_iter().flatten().flatten().map(|entry| entry.path()),
                );
            }
            looked_at += 1;
            if looked_at > MAX_LOOKED_AT {
                return true;
            }
        }
        false
    }
}

/// Returns the resolved path if it is in one of `roots`, which must not contain links.
///
/// # Errors
///
/// If the path is outside the roots, or cannot be resolved.
pub fn resolve_in_roots(
    path: &Path,
    roots: &[PathBuf],
    resolver: &dyn PathResolver,
) -> Result<PathBuf, PathRefusal> {
    if !path.is_absolute() {
        return Err(PathRefusal::Relative);
    }
    let is_plain = |component| !matches!(component, Component::ParentDir);
    if !path.components().all(is_plain) || path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(PathRefusal::NotPlain);
    }
    // A trailing slash or dot would make the lookup follow the last link of the path, which must be checked.
    let plain: PathBuf = path.components().collect();
    let real = resolve_existing(&plain, resolver)?;
    if roots.iter().any(|root| real.starts_with(root)) { Ok(real) } else { Err(PathRefusal::OutsideRoots) }
}

/// Resolves the longest existing part of `path`, and appends the rest unchanged.
pub(crate) fn resolve_existing(path: &Path, resolver: &dyn PathResolver) -> Result<PathBuf, PathRefusal> {
    if let Some(real) = canonicalize_existing(path, resolver)? {
        return Ok(real);
    }
    let parents: Vec<&Path> = path.ancestors().skip(1).collect();
    // Everything below a missing directory is missing, so a binary search finds the longest existing parent.
    let (mut missing, mut from) = (0, parents.len());
    let mut found = None;
    while missing < from {
        let middle = usize::midpoint(missing, from);
        match canonicalize_existing(parents[middle], resolver)? {
            Some(real) => (found, from) = (Some((middle, real)), middle),
            None => missing = middle + 1,
        }
    }
    let (parent, real) = found.ok_or(PathRefusal::Unresolved)?;
    let rest = path.strip_prefix(parents[parent]).map_err(|_| PathRefusal::Unresolved)?;
    Ok(real.join(rest))
}

/// Returns `path` with all links resolved. Returns `None` if it does not exist.
fn canonicalize_existing(path: &Path, resolver: &dyn PathResolver) -> Result<Option<PathBuf>, PathRefusal> {
    match resolver.canonicalize(path) {
        Ok(real) => Ok(Some(real)),
        // A dangling link counts as existing, because a write to the link creates its target.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link(path) => Ok(None),
        Err(_) => Err(PathRefusal::Unresolved),
    }
}

/// An action with each of its paths as named and with all links resolved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResolvedAction {
    pub(crate) action: Action,
    /// Digest of all lookups for the action. A changed link changes the digest.
    pub(crate) resolved_digest: Digest,
}

fn lookup_cost(path: &Path) -> usize {
    path.components().count() * path.as_os_str().len()
}

/// Returns `true` if an action has too many parts to be judged, or if looking up its paths would cost too
/// much.
pub(crate) fn is_too_large(action: &Action, roots: &[PathBuf]) -> bool {
    let start = roots.iter().chain(&action.cwd).map(|start| lookup_cost(start)).sum::<usize>();
    action.is_too_large()
        || action.paths.iter().map(|path| start + lookup_cost(path)).sum::<usize>() > MAX_LOOKUP_COST
}

/// Resolves the paths of `action`. Relative paths start in the first of `roots`.
///
/// A path that cannot be resolved may lead anywhere, so the effect of the action is then unknown. The same
/// holds if the directory no longer leads to a known `real_cwd`.
pub(crate) fn follow_links(
    mut action: Action,
    roots: &[PathBuf],
    resolver: &dyn PathResolver,
) -> ResolvedAction {
    let mut looked_up = BTreeSet::new();
    if let Some(root) = roots.first().filter(|_| !is_too_large(&action, roots)) {
        follow_links_from(&mut action, root, resolver, &mut looked_up);
    }
    let mut hasher = Sha256::new();
    for (named, found) in looked_up {
        let found = found.as_deref().map_or(b"".as_slice(), |found| found.as_os_str().as_bytes());
        for part in [named.as_os_str().as_bytes(), found] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.update([u8::from(action.unusual_repository)]);
    ResolvedAction { action, resolved_digest: hasher.finalize().into() }
}

/// Resolves the paths of `action` from `root`, and adds each lookup to the digest.
fn follow_links_from(
    action: &mut Action,
    root: &Path,
    resolver: &dyn PathResolver,
    looked_up: &mut BTreeSet<(PathBuf, Option<PathBuf>)>,
) {
    let mut real = |path: &Path| {
        let found = resolve_path(path, resolver);
        looked_up.insert((path.to_path_buf(), found.clone()));
        found
    };
    let here = action.cwd.as_ref().map_or_else(|| root.to_path_buf(), |cwd| root.join(cwd));
    match real(&here) {
        Some(real) if action.real_cwd.as_ref().is_some_and(|known| *known != real) => {
            action.also.push(Kind::Other);
        }
        // Roots are stored without links. A root that leads elsewhere now was replaced.
        Some(real) if real != here => action.real_cwd = Some(real),
        Some(_) => {}
        None => action.also.push(Kind::Other),
    }
    let real_here = action.real_cwd.clone().or_else(|| real(&here));
    if action.reads_repository() {
        let is_unusual = |real: &PathBuf| is_unusual_repository(real, &ResolverDisk(resolver));
        action.unusual_repository = real_here.as_ref().is_none_or(is_unusual);
    }
    let from = real_here.unwrap_or_else(|| here.clone());
    let mut cost = 0;
    for written in action.file_words() {
        let named = from.join(&written);
        cost += lookup_cost(&named);
        if cost > MAX_LOOKUP_COST {
            action.also.push(Kind::Other);
            break;
        }
        let real = real(&named).filter(|real| *real != named.components().collect::<PathBuf>());
        action.word_links.extend(real.and_then(|real| WordLink::new(written, &real, &from)));
    }
    let mut found = Vec::new();
    for path in &action.paths {
        let named = here.join(path);
        match real(&named) {
            Some(real) if real != named => found.push(real),
            Some(_) => {}
            None => action.also.push(Kind::Other),
        }
    }
    action.paths.extend(found);
}

/// Read access of the policy to git repositories, through a [`PathResolver`].
struct ResolverDisk<'a>(&'a dyn PathResolver);

impl RepositoryDisk for ResolverDisk<'_> {
    fn entry(&self, path: &Path) -> DiskEntry {
        self.0.entry(path)
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        self.0.canonicalize(path).ok()
    }
}

/// Resolves a path that may contain `..`. Returns `None` if the path cannot be resolved.
pub(crate) fn resolve_path(path: &Path, resolver: &dyn PathResolver) -> Option<PathBuf> {
    let is_crooked = path.components().any(|part| part == Component::ParentDir);
    if is_crooked {
        if path.as_os_str().len() > MAX_PATH_BYTES || path.as_os_str().as_bytes().contains(&0) {
            return None;
        }
        // If a link precedes `..`, the parent is that of the link's target. So each step starts at a resolved
        // path.
        let mut at = PathBuf::from("/");
        // Number of names at the end of `at` that do not exist. Nothing below them is looked up.
        let mut missing = 0_usize;
        for part in path.components() {
            match part {
                Component::ParentDir => {
                    at.pop();
                    missing = missing.saturating_sub(1);
                }
                Component::Normal(name) if missing > 0 => {
                    at.push(name);
                    missing += 1;
                }
                Component::Normal(name) => match resolver.canonicalize_in(&at, name) {
                    Ok(real) => at = real,
                    Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link(&at.join(name)) => {
                        at.push(name);
                        missing = 1;
                    }
                    Err(_) => return None,
                },
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        return Some(at);
    }
    let plain: PathBuf = path.components().collect();
    resolve_existing(&plain, resolver).ok()
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_symlink())
}

#[cfg(test)]
mod cost;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    /// A file system whose use fails the test.
    #[derive(Debug)]
    struct Unasked;

    impl PathResolver for Unasked {
        fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
            panic!("{} is looked up", path.display())
        }
    }

    #[test]
    fn nothing_is_looked_up_for_a_request_that_is_too_large() {
        let paths = (0..5_000).map(|number| PathBuf::from(format!("/w/{number}")));
        let action = Action { paths: paths.collect(), ..Action::new(Kind::Edit) };
        assert_eq!(follow_links(action.clone(), &["/w".into()], &Unasked).action, action);
    }

    #[test]
    fn a_refusal_names_path_and_roots_on_one_line() {
        let roots = ["/w".into(), "/v".into()];
        assert_eq!(
            PathRefusal::OutsideRoots.describe(Path::new("/a\n\"b"), &roots),
            "the path is outside the operator's directories: \"/a\\n\"b\" is not in \"/w\" or \"/v\""
        );
        assert!(
            PathRefusal::OutsideRoots.describe(Path::new(&"/é".repeat(5000)), &roots).len()
                < 2 * MAX_SHOWN_CHARS
        );
    }

    #[test]
    fn only_paths_within_the_roots_are_admitted() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        for name in ["root/sub", "rooted", "other"] {
            std::fs::create_dir_all(home.join(name)).unwrap();
        }
        symlink(home.join("other"), home.join("root/out")).unwrap();
        symlink(home.join("root"), home.join("in")).unwrap();
        symlink(home.join("nowhere"), home.join("root/dangling")).unwrap();
        std::fs::write(home.join("root/file"), "").unwrap();
        let roots = [home.join("root")];
        let check = |path: &str, expected: Result<&str, PathRefusal>| {
            let found = resolve_in_roots(&home.join(path), &roots, &SystemPathResolver);
            assert_eq!(found, expected.map(|path| home.join(path)), "{path}");
        };
        check("root", Ok("root"));
        check("root/sub", Ok("root/sub"));
        check("root/./sub/new/deep", Ok("root/sub/new/deep"));
        check("in/sub", Ok("root/sub"));
        check("rooted", Err(PathRefusal::OutsideRoots));
        check("other", Err(PathRefusal::OutsideRoots));
        check("root/out", Err(PathRefusal::OutsideRoots));
        check("root/out/new", Err(PathRefusal::OutsideRoots));
        check("root/dangling", Err(PathRefusal::Unresolved));
        check("root/dangling/x", Err(PathRefusal::Unresolved));
        check("root/dangling/", Err(PathRefusal::Unresolved));
        check("root/dangling/.", Err(PathRefusal::Unresolved));
        check("root/out/", Err(PathRefusal::OutsideRoots));
        check("root/file/x", Err(PathRefusal::Unresolved));
        check("root/../root", Err(PathRefusal::NotPlain));
        check("root/a\0b", Err(PathRefusal::NotPlain));
        assert_eq!(
            resolve_in_roots(Path::new("root"), &roots, &SystemPathResolver),
            Err(PathRefusal::Relative)
        );
        assert_eq!(
            resolve_in_roots(Path::new("/"), &roots, &SystemPathResolver),
            Err(PathRefusal::OutsideRoots)
        );
    }

    /// Path components: existing names, links into and out of the root, circular and dangling links, and
    /// unusual names.
    const PIECES: [&str; 20] = [
        "sub",
        "out",
        "..",
        ".",
        "up",
        "new",
        "root",
        "",
        "rooted",
        "ROOT",
        "Sub",
        "abs",
        "loop",
        "dangling",
        "file",
        "a\0b",
        "..\u{2215}",
        "....",
        "%2e%2e",
        "in",
    ];

    /// Returns the entries of `home` outside the root. Writing to a resolved path must not change them.
    fn outside(home: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut waiting = vec![home.to_path_buf()];
        while let Some(directory) = waiting.pop() {
            for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
                if entry.path() == home.join("root") {
                    continue;
                }
                found.push(entry.path());
                if entry.file_type().unwrap().is_dir() {
                    waiting.push(entry.path());
                }
            }
        }
        found.sort();
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A write to a resolved path creates the file in the root, whatever links the path contains.
        #[test]
        fn no_write_leaves_the_roots(
            start in prop::sample::select(vec!["", "root", "rooted", "in", "root/sub", "ROOT"]),
            steps in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..8),
        ) {
            let home = tempfile::tempdir().unwrap();
            let home = home.path().canonicalize().unwrap();
            for name in ["root/sub", "rooted", "other"] {
                std::fs::create_dir_all(home.join(name)).unwrap();
            }
            std::fs::write(home.join("root/file"), "").unwrap();
            for (to, at) in [
                ("..", "root/sub/up"), ("../..", "root/sub/out"), ("sub/out", "root/out"), ("root", "in"),
                ("loop", "root/loop"), ("../nowhere", "root/dangling"), ("../rooted", "root/rooted"),
            ] {
                symlink(to, home.join(at)).unwrap();
            }
            symlink(home.join("other"), home.join("root/abs")).unwrap();
            let before = outside(&home);
            let root = home.join("root");
            let path = PathBuf::from(format!("{}/{start}/{}", home.display(), steps.join("/")));
            if let Ok(real) = resolve_in_roots(&path, std::slice::from_ref(&root), &SystemPathResolver) {
                prop_assert!(real.starts_with(&root), "{path:?} {real:?}");
                prop_assert_eq!(resolve_in_roots(&real, std::slice::from_ref(&root), &SystemPathResolver), Ok(real.clone()), "it stays admitted");
                // Creating the path under its requested name also stays in the root, or fails.
                if std::fs::create_dir_all(&path).is_ok() {
                    prop_assert!(path.canonicalize().unwrap().starts_with(&root), "{path:?}");
                }
                prop_assert_eq!(outside(&home), before, "{:?}", path);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// A resolved path is in the root, whatever names and links the requested path contains.
        #[test]
        fn no_path_leaves_the_roots(steps in prop::collection::vec(prop_oneof![
            Just("sub"), Just("out"), Just(".."), Just("."), Just("up"), Just("new"), Just("root"), Just("")
        ], 0..7)) {
            let home = tempfile::tempdir().unwrap();
            let home = home.path().canonicalize().unwrap();
            std::fs::create_dir_all(home.join("root/sub")).unwrap();
            symlink("..", home.join("root/sub/up")).unwrap();
            symlink("../..", home.join("root/sub/out")).unwrap();
            symlink("sub/out", home.join("root/out")).unwrap();
            let root = home.join("root");
            let path = PathBuf::from(format!("{}/{}", root.display(), steps.join("/")));
            if let Ok(real) = resolve_in_roots(&path, std::slice::from_ref(&root), &SystemPathResolver) {
                prop_assert!(real.starts_with(&root), "{path:?} {real:?}");
                std::fs::create_dir_all(&real).unwrap();
                prop_assert!(path.canonicalize().unwrap().starts_with(&root), "{path:?}");
            }
        }
    }
}
