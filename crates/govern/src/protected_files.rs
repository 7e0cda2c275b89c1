//! Denies changes of the files that govern the agent.

use std::path::{Path, PathBuf};

use narrows_policy::Kind;

use crate::call::Call;
use crate::config::GateConfig;
use crate::path_resolver::{PathResolver, resolve_path};

/// Maximum number of files of one call that have several hard links. Each of them is compared with all
/// protected files.
const MAX_LINKED_FILES: usize = 64;

/// Returns the reason to deny a call whatever the policy says: the call changes a protected path, or one of
/// its paths cannot be resolved. Relative paths start in `roots`, the directories of the session.
pub(crate) fn protected_violation(
    call: &Call,
    config: &GateConfig,
    roots: &[PathBuf],
    resolver: &dyn PathResolver,
) -> Option<String> {
    if config.protected.is_empty() && config.log.is_none() {
        return None;
    }
    let action = call.action();
    let kinds = action.kinds();
    let looks = |kind: &Kind| matches!(kind, Kind::Think | Kind::Read | Kind::Search | Kind::Fetch);
    if kinds.iter().all(looks) || action.only_reads() {
        return None;
    }
    // Moving or deleting a directory also moves or deletes its content.
    let takes_along = kinds.iter().any(|kind| matches!(kind, Kind::Move | Kind::Delete));
    let starts: Vec<&Path> = action.cwd.iter().chain(roots).map(PathBuf::as_path).collect();
    let mut linked = 0;
    for path in &action.paths {
        let candidates = match path.is_absolute() {
            true => vec![path.clone()],
            false => starts.iter().map(|start| start.join(path)).collect(),
        };
        for candidate in candidates {
            let shown = path.display().to_string();
            let Some(real) = resolve_path(&candidate, resolver) else {
                return Some(format!("cannot resolve {shown:?}"));
            };
            let is_in = |protected: &PathBuf| {
                [&real, &candidate].iter().any(|at| at.starts_with(protected))
                    || (takes_along && protected.starts_with(&real))
            };
            let is_log = config.is_of_log(&real) || config.is_of_log(&candidate);
            linked += usize::from(resolver.has_several_names(&real));
            if linked > MAX_LINKED_FILES {
                return Some("too many files have several hard links".to_owned());
            }
            if is_log
                || config.protected.iter().chain(&config.log).any(is_in)
                || resolver.is_linked_to(&real, &config.protected)
                || is_linked_to_log(&real, config, resolver)
            {
                return Some(format!("{shown:?} is protected because it governs the agent"));
            }
        }
    }
    None
}

/// Returns `true` if the file is a hard link to a file that the log has now.
fn is_linked_to_log(real: &Path, config: &GateConfig, resolver: &dyn PathResolver) -> bool {
    let Some(directory) = config.log.as_deref().and_then(Path::parent) else { return false };
    if !resolver.has_several_names(real) {
        return false;
    }
    let files: Vec<PathBuf> =
        resolver.files_in(directory).into_iter().filter(|path| config.is_of_log(path)).collect();
    resolver.is_linked_to(real, &files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::path_resolver::SystemPathResolver;

    #[test]
    fn protected_files_cannot_be_changed_by_another_name() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("w/audit")).unwrap();
        std::fs::create_dir_all(home.join("w/sub")).unwrap();
        for name in ["w/GOVERNANCE.md", "w/audit/log", "w/GOVERNANCE.md.txt"] {
            std::fs::write(home.join(name), "").unwrap();
        }
        symlink(home.join("w"), home.join("w/sub/up")).unwrap();
        symlink(home.join("w/GOVERNANCE.md"), home.join("w/innocent")).unwrap();
        std::fs::hard_link(home.join("w/audit/log"), home.join("w/innocent.txt")).unwrap();
        std::fs::hard_link(home.join("w/GOVERNANCE.md"), home.join("w/sub/other.md")).unwrap();
        std::fs::write(home.join("w/twice"), "").unwrap();
        std::fs::hard_link(home.join("w/twice"), home.join("w/thrice")).unwrap();
        let root = home.join("w");
        let protected = vec![root.join("GOVERNANCE.md"), root.join("audit"), root.join("signatures")];
        let config = GateConfig { protected, ..GateConfig::default() };
        let roots = [root.clone()];
        let check = |kind: &str, path: &str, refused: bool| {
            for path in [path.to_owned(), root.join(path).display().to_string()] {
                let call = Call::new(None, "x", kind, json!({"path": path}));
                let found = protected_violation(&call, &config, &roots, &SystemPathResolver);
                assert_eq!(found.is_some(), refused, "{kind} {path} {found:?}");
            }
        };
        for path in [
            "GOVERNANCE.md",
            "./GOVERNANCE.md",
            "innocent",
            "innocent.txt",
            "sub/other.md",
            "sub/../GOVERNANCE.md",
            "sub/up/GOVERNANCE.md",
            "sub/up/sub/../audit/new",
            "audit",
            "audit/log",
            "signatures/new.json",
        ] {
            for kind in ["edit", "delete", "move", "other"] {
                check(kind, path, true);
            }
        }
        let with_ls = |kind: &str, more: serde_json::Value, refused: bool| {
            let mut input = json!({"path": root.join("GOVERNANCE.md"), "command": "ls"});
            input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let server = Call::new(Some("notes".into()), "x", "other", input.clone());
            assert!(protected_violation(&server, &config, &roots, &SystemPathResolver).is_some(), "{input}");
            let call = Call::new(None, "x", kind, input);
            assert_eq!(
                protected_violation(&call, &config, &roots, &SystemPathResolver).is_some(),
                refused,
                "{kind} {:?}",
                call.input
            );
        };
        for kind in ["edit", "delete", "move", "other", "switch_mode"] {
            with_ls(kind, json!({}), true);
        }
        for kind in ["execute", "read", "search", "think"] {
            with_ls(kind, json!({}), false);
            with_ls(kind, json!({"content": "x"}), true);
            with_ls(kind, json!({"command": "make"}), true);
            with_ls(kind, json!({"env": {"LD_PRELOAD": "/x"}}), true);
        }
        check("edit", "GOVERNANCE.md.txt", false);
        check("edit", "sub/new", false);
        check("edit", "twice", false);
        check("read", "innocent.txt", false);
        check("read", "GOVERNANCE.md", false);
        check("delete", ".", true);
        check("delete", "sub", false);
    }

    #[test]
    fn files_that_a_rotation_of_the_log_adds_are_protected() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("sub")).unwrap();
        let config = GateConfig { log: Some(root.join("log.jsonl")), ..GateConfig::default() };
        let roots = [root.clone()];
        let check = |kind: &str, path: &str, refused: bool| {
            for path in [path.to_owned(), root.join(path).display().to_string()] {
                let call = Call::new(None, "x", kind, json!({"path": path}));
                let found = protected_violation(&call, &config, &roots, &SystemPathResolver);
                assert_eq!(found.is_some(), refused, "{kind} {path} {found:?}");
            }
        };
        let rotated = "log.000000000123.jsonl";
        let names = ["log.jsonl", rotated, "log.jsonl.lock", "log.jsonl.sealing", "log.jsonl.gates"];
        for name in names.into_iter().chain(["sub/../log.000000000007.jsonl"]) {
            check("edit", name, true);
            check("delete", name, true);
            check("read", name, false);
        }
        std::fs::write(root.join(rotated), "").unwrap();
        std::fs::hard_link(root.join(rotated), root.join("sub/innocent")).unwrap();
        symlink(root.join(rotated), root.join("sub/soft")).unwrap();
        check("edit", "sub/innocent", true);
        check("edit", "sub/soft", true);
        check("move", ".", true);
        for name in ["log.txt", "sub/log.jsonl", "log.1.jsonl", "other.jsonl"] {
            check("edit", name, false);
        }
    }
}
