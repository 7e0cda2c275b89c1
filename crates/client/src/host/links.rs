//! Adds the link targets of a request's paths.
//!
//! The policy compares names and does not read the disk. An agent that requests permission opens the file
//! itself, so links in its path must be found here. Each target is judged together with its name, and the
//! stricter decision counts.

use std::path::{Component, Path, PathBuf};

use narrows_policy::{Action, DiskEntry, Kind, RepositoryDisk, WordLink, is_unusual_repository};
use rustix::io::Errno;

use super::files::follow;
use super::indirect_git_files::{Extent, LookupBudget};
use super::protected::ProtectedFiles;

const MAX_PATHS: usize = 1000;

const MAX_PATH_BYTES: usize = 4096;

const MAX_GIT_FILE_BYTES: u64 = 64 << 10;

/// Error for a path that cannot be followed to its end, so that its target is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a path of the request cannot be followed")]
pub struct Unfollowed;

/// Adds to `action` the targets of its paths, of its directory and of the words of its command. Also adds the
/// repository that git would use there. Relative paths start in `cwd`, and `~` is the home directory of the
/// policy. A missing path is followed as far as it exists. Blocks.
///
/// # Errors
/// [`Unfollowed`] if a path is a loop or too long, or if there are too many paths.
pub fn follow_links(action: &mut Action, cwd: &Path, files: &ProtectedFiles) -> Result<(), Unfollowed> {
    let home = files.policy().home();
    let here = match &action.cwd {
        Some(own) => absolute(own, cwd, home),
        None => cwd.to_owned(),
    };
    // The session's directory is trusted. Only a directory named in the request is also judged by its name.
    let real = real(&here)?;
    action.real_cwd =
        action.cwd.is_some().then(|| real.clone()).flatten().filter(|real| *real != plain(&here));
    follow_from(action, &here, real.as_deref(), files)
}

/// Like [`follow_links`], for a command that will run in `directory`, which contains no links. Does not look
/// up the directory's name again, because its target may have changed. Blocks.
///
/// # Errors
/// See [`follow_links`].
pub(crate) fn follow_links_in(
    action: &mut Action,
    directory: &Path,
    files: &ProtectedFiles,
) -> Result<(), Unfollowed> {
    follow_from(action, directory, Some(directory), files)
}

/// Follows links from `here`. `real` is its target, or `None` if that is unknown.
fn follow_from(
    action: &mut Action,
    here: &Path,
    real: Option<&Path>,
    files: &ProtectedFiles,
) -> Result<(), Unfollowed> {
    let home = files.policy().home();
    if action.reads_repository() {
        action.unusual_repository = real.is_none_or(|real| is_unusual_repository(real, &LocalDisk));
    }
    action.word_links = word_links(action, real.unwrap_or(here), home);
    if action.paths.len() > MAX_PATHS {
        return Err(Unfollowed);
    }
    let mut found = Vec::new();
    for path in &action.paths {
        let named = absolute(path, here, home);
        for real in both(&named)? {
            if real != plain(&named) && !action.paths.contains(&real) && !found.contains(&real) {
                found.push(real);
            }
        }
    }
    action.paths.extend(found);
    add_counterparts(action, here, files);
    Ok(())
}

/// Adds the `.git` paths that the paths of `action` are equivalent to, and the protected names that are links
/// to its paths. So protected files are protected under every name. Every function that judges a path of this
/// machine calls this, directly or through [`follow_links`]. If the configuration of a surrounding repository
/// cannot be read completely, a change also counts as an unknown kind of action. Blocks.
fn add_counterparts(action: &mut Action, here: &Path, files: &ProtectedFiles) {
    let kinds = action.kinds();
    let is_tree = kinds.iter().any(|kind| matches!(kind, Kind::Move | Kind::Delete));
    let extent = if is_tree { Extent::Tree } else { Extent::File };
    let mut is_complete = true;
    let mut budget = LookupBudget::new();
    for path in action.paths.clone() {
        let path = absolute(&path, here, files.policy().home());
        let found = files.names_of(&path, extent, &mut budget);
        is_complete &= found.is_complete;
        for path in found.paths {
            if !action.paths.contains(&path) {
                action.paths.push(path);
            }
        }
    }
    let only_reads = |kind: &Kind| {
        matches!(kind, Kind::Think | Kind::Read | Kind::Search | Kind::Fetch | Kind::SwitchMode)
    };
    if !is_complete && !kinds.iter().all(only_reads) {
        action.also.push(Kind::Other);
    }
}

/// Returns the action for a file that was requested as `asked` and found at `found`, which contains no links.
/// Does not follow the name again, because its target may have changed. Blocks.
pub(crate) fn file_action(kind: Kind, asked: &Path, found: &Path, files: &ProtectedFiles) -> Action {
    let mut action = Action::file(kind, found);
    if asked != found {
        action.paths.push(asked.to_owned());
    }
    add_counterparts(&mut action, Path::new("/"), files);
    action
}

/// Returns the words of the command that are links. Ignores a word that cannot be followed: a program could
/// not open it either.
fn word_links(action: &Action, here: &Path, home: Option<&Path>) -> Vec<WordLink> {
    let mut links = Vec::new();
    for written in action.file_words() {
        let named = absolute(Path::new(&written), here, home);
        let mut found = both(&named).unwrap_or_default().into_iter().filter(|real| *real != plain(&named));
        links.extend(found.next().and_then(|real| WordLink::new(written, &real, here)));
    }
    links
}

/// Access to this machine's disk, to detect repositories.
struct LocalDisk;

impl RepositoryDisk for LocalDisk {
    fn entry(&self, path: &Path) -> DiskEntry {
        let found = match path.symlink_metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return DiskEntry::Missing,
            Err(_) => return DiskEntry::Unknown,
        };
        match found.is_dir() {
            true => DiskEntry::Directory,
            // An unreadable file counts as a file without a repository.
            false if found.is_file() => {
                let is_short = found.len() <= MAX_GIT_FILE_BYTES;
                let text = is_short.then(|| std::fs::read_to_string(path).ok()).flatten();
                DiskEntry::File(text.unwrap_or_default())
            }
            false => DiskEntry::Unknown,
        }
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        path.canonicalize().ok()
    }
}

/// Returns the target of `path` as the system resolves it, and as a program that first removes `..` resolves
/// it.
fn both(path: &Path) -> Result<Vec<PathBuf>, Unfollowed> {
    let (followed, tidied) = (real(path)?, real(&plain(path))?);
    Ok(followed.into_iter().chain(tidied).collect())
}

/// Returns the absolute `path` without links. `None` if the system would not resolve it, because a name
/// before a `..` is missing.
pub(crate) fn real(path: &Path) -> Result<Option<PathBuf>, Unfollowed> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.len() > MAX_PATH_BYTES || bytes.contains(&0) {
        return Err(Unfollowed);
    }
    match follow::guess(path) {
        Ok(real) => Ok(Some(real)),
        Err(Errno::NOENT) => Ok(None),
        Err(_) => Err(Unfollowed),
    }
}

fn absolute(path: &Path, cwd: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => cwd.join(path),
    }
}

/// Removes `.` and `..` from `path` by name.
pub(super) fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::*;

    fn no_files() -> ProtectedFiles {
        ProtectedFiles::new(Arc::default(), &[], &[])
    }

    /// Creates a root `r` that contains links, and a directory `o` outside of it.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().expect("a directory");
        let top = place.path().canonicalize().expect("it is there");
        for directory in ["r/.git/hooks", "r/src/deep", "o/sub"] {
            fs::create_dir_all(top.join(directory)).expect("a directory");
        }
        fs::write(top.join("r/.env"), "").expect("a file");
        for (target, link) in [
            ("../o", "r/out"),
            (".git/hooks", "r/kk"),
            (".env", "r/notes"),
            ("../o/missing", "r/dangling"),
            ("loop", "r/loop"),
            ("src/deep", "r/deep"),
        ] {
            symlink(target, top.join(link)).expect("a link");
        }
        symlink(top.join("o/sub"), top.join("r/abs")).expect("a link");
        (place, top)
    }

    /// Between two lookups, the name could be changed and changed back.
    #[test]
    fn a_directory_is_looked_up_once() {
        let (_place, top) = tree();
        let (named, outside) = (top.join("r/src"), top.join("o"));
        let run = |real: Option<&Path>| Action {
            real_cwd: real.map(Path::to_owned),
            ..Action::execute(narrows_policy::Command::Argv(vec!["ls".to_owned()]), Some(named.clone()))
        };
        let mut action = run(Some(&outside));
        follow_links_in(&mut action, &outside, &no_files()).expect("followed");
        assert_eq!(action.real_cwd, Some(outside));
        let mut action = run(None);
        follow_links_in(&mut action, &named, &no_files()).expect("followed");
        assert_eq!(action.real_cwd, None);
    }

    #[test]
    fn link_targets_of_a_path_are_added() {
        let (_place, top) = tree();
        let check = |path: &str, more: &[&str]| {
            let mut action = Action::file(Kind::Edit, path);
            follow_links(&mut action, &top.join("r"), &no_files()).expect(path);
            let more: Vec<PathBuf> = more.iter().map(|name| top.join(name)).collect();
            assert_eq!(action.paths[1..], more, "{path}");
        };
        check("src/a", &[]);
        check("new/dir/a", &[]);
        check("out/x", &["o/x"]);
        check("out/new/x", &["o/new/x"]);
        check("kk/pre-commit", &["r/.git/hooks/pre-commit"]);
        check("notes", &["r/.env"]);
        check("dangling", &["o/missing"]);
        check("abs/x", &["o/sub/x"]);
        // The parent of the link target, then the path without both names.
        check("deep/../x", &["r/src/x"]);
        check("out/../kk/x", &["kk/x", "r/.git/hooks/x"]);
        check("missing/../kk/x", &["r/.git/hooks/x"]);
        check(top.join("r/out/x").to_str().expect("text"), &["o/x"]);
    }

    #[test]
    fn link_targets_of_a_directory_are_added() {
        let (_place, top) = tree();
        let check = |cwd: Option<&str>, real: Option<&str>| {
            let mut action = Action { cwd: cwd.map(Into::into), ..Action::file(Kind::Edit, "x") };
            follow_links(&mut action, &top.join("r"), &no_files()).expect("followed");
            assert_eq!(action.real_cwd, real.map(|real| top.join(real)), "{cwd:?}");
        };
        check(None, None);
        check(Some("src"), None);
        check(Some("out"), Some("o"));
        let mut action = Action { cwd: Some("kk".into()), ..Action::file(Kind::Edit, "x") };
        follow_links(&mut action, &top.join("r"), &no_files()).expect("followed");
        assert_eq!(action.paths, [PathBuf::from("x"), top.join("r/.git/hooks/x")]);
    }

    #[test]
    fn unfollowable_links_are_errors() {
        let (_place, top) = tree();
        let follow = |paths: Vec<PathBuf>| {
            let mut action = Action { paths, ..Action::new(Kind::Edit) };
            follow_links(&mut action, &top.join("r"), &no_files())
        };
        assert_eq!(follow(vec!["loop/x".into()]), Err(Unfollowed));
        assert_eq!(follow(vec!["loop".into()]), Err(Unfollowed));
        assert_eq!(follow(vec!["a\0b".into()]), Err(Unfollowed));
        assert_eq!(follow(vec!["a/".repeat(3000).into()]), Err(Unfollowed));
        assert_eq!(follow(vec!["a".into(); MAX_PATHS + 1]), Err(Unfollowed));
        assert_eq!(follow(Vec::new()), Ok(()));
    }

    #[test]
    fn link_targets_of_command_words_are_added() {
        let (_place, top) = tree();
        symlink("/bin/sh", top.join("r/ls")).expect("a link");
        symlink("src/run", top.join("r/run")).expect("a link");
        let check = |line: &str, expected: &[(&str, &str)]| {
            let mut action = Action::execute(narrows_policy::Command::Shell(line.to_owned()), None);
            follow_links(&mut action, &top.join("r"), &no_files()).expect(line);
            let found: Vec<(&str, &str)> =
                action.word_links.iter().map(|link| (&*link.written, &*link.real)).collect();
            assert_eq!(found, expected, "{line}");
        };
        let sh = Path::new("/bin/sh").canonicalize().expect("a shell");
        let sh = sh.to_str().expect("text");
        check("./ls -c x", &[("./ls", sh)]);
        check("sudo ./ls", &[("./ls", sh)]);
        check("true && ./run a", &[("./run", "src/run")]);
        // Programs are looked up in `PATH`, not here.
        check("ls missing", &[]);
        check("cat notes > deep/x", &[("notes", "./.env"), ("deep/x", "src/deep/x")]);
        check("cat loop $x", &[]);
    }

    #[test]
    fn a_directory_that_is_itself_a_repository_is_found() {
        let (_place, top) = tree();
        let root = top.join("r");
        let is_unusual = |line: &str| {
            let mut action = Action::execute(narrows_policy::Command::Shell(line.to_owned()), None);
            follow_links(&mut action, &root, &no_files()).expect(line);
            action.unusual_repository
        };
        for directory in ["objects", "refs"] {
            fs::create_dir(root.join(directory)).expect("a directory");
        }
        assert!(!is_unusual("git status"));
        fs::write(root.join("HEAD"), "ref: refs/heads/main").expect("a file");
        assert!(is_unusual("git status"));
        assert!(!is_unusual("ls"));
        fs::remove_file(root.join("HEAD")).expect("a file");
        fs::remove_dir_all(root.join(".git")).expect("a directory");
        fs::write(root.join(".git"), "gitdir: objects\n").expect("a file");
        assert!(is_unusual("git log"));
        fs::create_dir_all(top.join("o/.git/worktrees/r")).expect("a directory");
        fs::write(root.join(".git"), "gitdir: ../o/.git/worktrees/r\n").expect("a file");
        assert!(!is_unusual("git log"));
        // git ignores any number of trailing line ends, and accepts any encoding.
        fs::write(root.join(".git"), format!("gitdir: objects{}", "\n".repeat(1 << 17))).expect("a file");
        assert!(is_unusual("git log"));
        fs::write(root.join(".git"), b"gitdir: \xff").expect("a file");
        assert!(is_unusual("git log"));
    }
}
