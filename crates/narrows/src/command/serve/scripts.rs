//! Executable files of the workspace. An agent could change them, and they are run for the next client.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use narrows_govern::mcp_server_config;
use narrows_manifest::Bundle;
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Scripts(BTreeMap<PathBuf, Script>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Script {
    /// While this stamp is the same, the content is unchanged and is not read again.
    stamp: FileStamp,
    digest: String,
}

/// Device, inode, length, and the change times of content and inode. The inode change time cannot be forged.
type FileStamp = [i128; 5];

impl Scripts {
    /// Reads all workspace files that the manifest runs: the programs of the agent and of MCP servers, and
    /// files in their arguments.
    pub(super) fn read(root: &Path, bundle: &Bundle) -> io::Result<Self> {
        let mut found = BTreeMap::new();
        for place in script_paths(root, bundle) {
            let script = Script { stamp: stamp(&place)?, digest: sha256_hex(&std::fs::read(&place)?) };
            found.insert(place, script);
        }
        Ok(Self(found))
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    /// Returns the SHA-256 of each file.
    pub(super) fn digests(&self) -> impl Iterator<Item = (PathBuf, String)> {
        self.0.iter().map(|(path, script)| (path.clone(), script.digest.clone()))
    }

    /// Returns the first file that was changed, removed or added since the start.
    pub(super) fn changed(&self, root: &Path, bundle: &Bundle) -> Option<PathBuf> {
        self.first_change(script_paths(root, bundle))
    }

    fn first_change(&self, now: Vec<PathBuf>) -> Option<PathBuf> {
        if let Some(new) = now.into_iter().find(|place| !self.0.contains_key(place)) {
            return Some(new);
        }
        let is_same = |path: &Path, script: &Script| {
            stamp(path).is_ok_and(|now| now == script.stamp)
                || std::fs::read(path).is_ok_and(|bytes| sha256_hex(&bytes) == script.digest)
        };
        self.0.iter().find(|(path, script)| !is_same(path, script)).map(|(path, _)| path.clone())
    }
}

/// Returns the workspace files that commands of the manifest name, each also by its link target.
fn script_paths(root: &Path, bundle: &Bundle) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(agent) = &bundle.agent {
        let beside = root.join(agent.cli.directory());
        let sandboxes = [&agent.sandbox, &bundle.sandbox].into_iter().flatten();
        // The directory in which a program starts depends on the sandboxes.
        let starts = sandboxes.flat_map(|plan| {
            plan.cwd.iter().chain(plan.mounts.iter().map(|mount| &mount.source)).map(|path| root.join(path))
        });
        let starts: Vec<PathBuf> = [root.to_owned(), beside.clone()].into_iter().chain(starts).collect();
        if agent.launch.program.contains('/') {
            places.extend(workspace_paths(root, &beside, &agent.launch.program));
        }
        for start in &starts {
            places.extend(agent.launch.args.iter().flat_map(|arg| argument_files(root, start, arg)));
        }
    }
    for server in bundle.mcp_servers.iter().filter_map(mcp_server_config) {
        let command = server["command"].as_str().filter(|command| command.contains('/'));
        places.extend(command.into_iter().flat_map(|command| workspace_paths(root, root, command)));
        let args = server["args"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        places.extend(args.flat_map(|arg| argument_files(root, root, arg)));
    }
    places.sort();
    places.dedup();
    places
}

/// Returns the files that an argument names: as a whole, or after `=`.
fn argument_files(root: &Path, start: &Path, arg: &str) -> Vec<PathBuf> {
    let value = arg.split_once('=').map(|(_, value)| value);
    [Some(arg), value].into_iter().flatten().flat_map(|path| workspace_paths(root, start, path)).collect()
}

/// Returns the path of an existing file and its link target, without a path outside of the workspace.
fn workspace_paths(root: &Path, start: &Path, path: &str) -> Vec<PathBuf> {
    let path = start.join(path);
    if !path.is_file() {
        return Vec::new();
    }
    let (Some(above), Some(name)) =
        (path.parent().and_then(|above| above.canonicalize().ok()), path.file_name())
    else {
        return Vec::new();
    };
    let both = [Some(above.join(name)), path.canonicalize().ok()];
    both.into_iter().flatten().filter(|path| path.starts_with(root)).collect()
}

fn stamp(path: &Path) -> io::Result<FileStamp> {
    let found = path.metadata()?;
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Ok([
        found.dev().into(),
        found.ino().into(),
        found.len().into(),
        nanoseconds(found.mtime(), found.mtime_nsec()),
        nanoseconds(found.ctime(), found.ctime_nsec()),
    ])
}

pub(super) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_argument_names_the_files_of_the_workspace() {
        let directory = tempfile::tempdir().expect("a directory");
        let top = directory.path().canonicalize().expect("it exists");
        let root = top.join("w");
        std::fs::create_dir_all(root.join("lib")).expect("a directory");
        for name in ["w/a.sh", "w/lib/b.js", "outside"] {
            std::fs::write(top.join(name), "").expect("a file");
        }
        symlink("a.sh", root.join("inner")).expect("a link");
        symlink(top.join("outside"), root.join("outer")).expect("a link");
        let check = |arg: &str, expected: &[&str]| {
            let expected: Vec<PathBuf> = expected.iter().map(|path| root.join(path)).collect();
            let mut found = argument_files(&root, &root, arg);
            found.dedup();
            assert_eq!(found, expected, "{arg}");
        };
        check("a.sh", &["a.sh"]);
        check("./lib/../a.sh", &["a.sh"]);
        check("--require=lib/b.js", &["lib/b.js"]);
        check("inner", &["inner", "a.sh"]);
        // The target is a system file, but the link is in the workspace.
        check("outer", &["outer"]);
        check("../outside", &[]);
        check("lib", &[]);
        check("missing", &[]);
        check("", &[]);
    }

    #[test]
    fn a_changed_file_is_found_and_a_touched_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.sh");
        std::fs::write(&path, "one").expect("a file");
        let script = Script { stamp: stamp(&path).expect("the file exists"), digest: sha256_hex(b"one") };
        let scripts = Scripts(BTreeMap::from([(path.clone(), script)]));
        let changed = || scripts.first_change(vec![path.clone()]);
        assert_eq!(changed(), None);
        std::fs::write(&path, "one").expect("a file");
        assert_eq!(changed(), None);
        std::fs::write(&path, "two").expect("a file");
        assert_eq!(changed(), Some(path.clone()));
        std::fs::remove_file(&path).expect("the file exists");
        assert_eq!(changed(), Some(path.clone()));
        assert_eq!(Scripts::default().first_change(vec![path.clone()]), Some(path.clone()));
    }
}
