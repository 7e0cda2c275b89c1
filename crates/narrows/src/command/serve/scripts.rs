//! The files of the workspace that are run: whoever works there could change them for the next one.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use narrows_govern::provided;
use narrows_manifest::Bundle;
use sha2::{Digest, Sha256};

/// What is run of a workspace, as it was when it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Scripts(BTreeMap<PathBuf, Script>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Script {
    /// By which it is known to be the same without being read.
    stamp: Stamp,
    digest: String,
}

/// Device, inode, length, and the times at which content and inode were changed; the last cannot be set.
type Stamp = [i128; 5];

impl Scripts {
    /// The program of the agent, what its arguments and those of MCP servers name, and the programs of these.
    pub(super) fn read(root: &Path, bundle: &Bundle) -> io::Result<Self> {
        let mut found = BTreeMap::new();
        for place in places(root, bundle) {
            let script = Script { stamp: stamp(&place)?, digest: digest(&std::fs::read(&place)?) };
            found.insert(place, script);
        }
        Ok(Self(found))
    }

    /// Where they are.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    /// The SHA-256 of each.
    pub(super) fn digests(&self) -> impl Iterator<Item = (PathBuf, String)> {
        self.0.iter().map(|(path, script)| (path.clone(), script.digest.clone()))
    }

    /// The first that is not what it was, is gone, or is new.
    pub(super) fn changed(&self, root: &Path, bundle: &Bundle) -> Option<PathBuf> {
        self.differs(places(root, bundle))
    }

    fn differs(&self, now: Vec<PathBuf>) -> Option<PathBuf> {
        if let Some(new) = now.into_iter().find(|place| !self.0.contains_key(place)) {
            return Some(new);
        }
        let is_same = |path: &Path, script: &Script| {
            stamp(path).is_ok_and(|now| now == script.stamp)
                || std::fs::read(path).is_ok_and(|bytes| digest(&bytes) == script.digest)
        };
        self.0.iter().find(|(path, script)| !is_same(path, script)).map(|(path, _)| path.clone())
    }
}

/// The files in the workspace that are named where something is started, each also where a link leads.
fn places(root: &Path, bundle: &Bundle) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(agent) = &bundle.agent {
        let beside = root.join(agent.cli.directory());
        let sandboxes = [&agent.sandbox, &bundle.sandbox].into_iter().flatten();
        // Where it starts depends on its sandboxes.
        let starts = sandboxes.flat_map(|plan| {
            plan.cwd.iter().chain(plan.mounts.iter().map(|mount| &mount.source)).map(|path| root.join(path))
        });
        let starts: Vec<PathBuf> = [root.to_owned(), beside.clone()].into_iter().chain(starts).collect();
        if agent.launch.program.contains('/') {
            places.extend(within(root, &beside, &agent.launch.program));
        }
        for start in &starts {
            places.extend(agent.launch.args.iter().flat_map(|arg| named(root, start, arg)));
        }
    }
    for server in bundle.mcp_servers.iter().filter_map(provided) {
        let command = server["command"].as_str().filter(|command| command.contains('/'));
        places.extend(command.into_iter().flat_map(|command| within(root, root, command)));
        let args = server["args"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        places.extend(args.flat_map(|arg| named(root, root, arg)));
    }
    places.sort();
    places.dedup();
    places
}

/// The files that an argument names: all of it, or what follows `=`.
fn named(root: &Path, start: &Path, arg: &str) -> Vec<PathBuf> {
    let value = arg.split_once('=').map(|(_, value)| value);
    [Some(arg), value].into_iter().flatten().flat_map(|path| within(root, start, path)).collect()
}

/// A file by the name that lies in the workspace, and by that to which its links lead.
fn within(root: &Path, start: &Path, path: &str) -> Vec<PathBuf> {
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

fn stamp(path: &Path) -> io::Result<Stamp> {
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

/// The SHA-256 of something, in hexadecimal.
pub(super) fn digest(bytes: &[u8]) -> String {
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
            let mut found = named(&root, &root, arg);
            found.dedup();
            assert_eq!(found, expected, "{arg}");
        };
        check("a.sh", &["a.sh"]);
        check("./lib/../a.sh", &["a.sh"]);
        check("--require=lib/b.js", &["lib/b.js"]);
        check("inner", &["inner", "a.sh"]);
        // Where it leads is the system's, the link itself is not.
        check("outer", &["outer"]);
        check("../outside", &[]);
        check("lib", &[]);
        check("missing", &[]);
        check("", &[]);
    }

    #[test]
    fn a_change_is_seen_and_a_touch_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.sh");
        std::fs::write(&path, "one").expect("a file");
        let script = Script { stamp: stamp(&path).expect("it is there"), digest: digest(b"one") };
        let scripts = Scripts(BTreeMap::from([(path.clone(), script)]));
        let changed = || scripts.differs(vec![path.clone()]);
        assert_eq!(changed(), None);
        std::fs::write(&path, "one").expect("a file");
        assert_eq!(changed(), None);
        std::fs::write(&path, "two").expect("a file");
        assert_eq!(changed(), Some(path.clone()));
        std::fs::remove_file(&path).expect("it was there");
        assert_eq!(changed(), Some(path.clone()));
        assert_eq!(Scripts::default().differs(vec![path.clone()]), Some(path.clone()));
    }
}
