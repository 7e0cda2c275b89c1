//! Finds the program before the fork, so that common mistakes get a clear error.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::{SpawnError, Spec};

/// Search path if the worker's environment has no `PATH`, as a shell would use it.
const FALLBACK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns the absolute path of the file that [`spawn`](crate::spawn) would execute for `spec`.
///
/// # Errors
/// If no such file can be executed.
pub fn program(spec: &Spec) -> Result<PathBuf, SpawnError> {
    if let Some(cwd) = &spec.cwd {
        directory(cwd)?;
    }
    if spec.program.as_bytes().contains(&b'/') {
        let given = match &spec.cwd {
            Some(cwd) => cwd.join(&spec.program),
            None => PathBuf::from(&spec.program),
        };
        // The path is made absolute, because the worker changes its directory before it executes the program.
        let path = std::path::absolute(given).map_err(SpawnError::setup("find the working directory"))?;
        return match candidate(&path) {
            Candidate::Usable => Ok(path),
            Candidate::Missing => Err(SpawnError::NotFound { program: spec.program.clone(), searched: None }),
            Candidate::Directory => Err(SpawnError::IsDirectory { path }),
            Candidate::NotExecutable => Err(SpawnError::NotExecutable { path }),
        };
    }
    search(&spec.program, spec.env.get("PATH").unwrap_or(OsStr::new(FALLBACK_PATH)))
}

/// Searches for a program in `search_path`. Skips relative and empty entries: otherwise the working
/// directory, possibly a foreign repository, would decide which program runs.
fn search(name: &OsStr, search_path: &OsStr) -> Result<PathBuf, SpawnError> {
    let mut unusable = None;
    for directory in std::env::split_paths(search_path).filter(|entry| entry.is_absolute()) {
        let path = directory.join(name);
        match candidate(&path) {
            Candidate::Usable if !name.is_empty() => return Ok(path),
            Candidate::NotExecutable => _ = unusable.get_or_insert(path),
            Candidate::Usable | Candidate::Missing | Candidate::Directory => {}
        }
    }
    Err(match unusable {
        Some(path) => SpawnError::NotExecutable { path },
        None => {
            SpawnError::NotFound { program: name.to_owned(), searched: Some(OsString::from(search_path)) }
        }
    })
}

enum Candidate {
    Usable,
    Missing,
    Directory,
    NotExecutable,
}

fn candidate(path: &Path) -> Candidate {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Candidate::NotExecutable,
        Err(_) => Candidate::Missing,
        Ok(metadata) if metadata.is_dir() => Candidate::Directory,
        Ok(_) if accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_err() => Candidate::NotExecutable,
        Ok(_) => Candidate::Usable,
    }
}

fn directory(path: &Path) -> Result<(), SpawnError> {
    let unusable = |source| SpawnError::Cwd { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(unusable)?.is_dir() {
        return Err(unusable(io::ErrorKind::NotADirectory.into()));
    }
    accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).map_err(|errno| unusable(errno.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn spec(program: impl Into<OsString>, path: &str) -> Spec {
        let mut spec = Spec::new(program);
        spec.env.set("PATH", path);
        spec
    }

    #[test]
    fn the_workers_path_is_searched_in_order_for_executables() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| dir.path().join(name));
        for each in [&a, &b, &c] {
            fs::create_dir(each).unwrap();
        }
        file(&a.join("tool"), 0o644);
        file(&b.join("tool"), 0o755);
        file(&c.join("tool"), 0o755);
        fs::create_dir(a.join("nested")).unwrap();
        let path = format!("{}:{}:{}", a.display(), b.display(), c.display());
        assert_eq!(program(&spec("tool", &path)).unwrap(), b.join("tool"));

        let only_a = a.to_str().unwrap();
        assert!(
            matches!(program(&spec("tool", only_a)), Err(SpawnError::NotExecutable { path }) if path == a.join("tool"))
        );
        for missing in ["nothing", "nested", ""] {
            assert!(
                matches!(program(&spec(missing, only_a)), Err(SpawnError::NotFound { .. })),
                "{missing:?}"
            );
        }
    }

    #[test]
    fn a_relative_path_entry_never_finds_a_program() {
        // Tests run in the directory of `Cargo.toml`, where `src` is a relative path.
        let error = program(&spec("lib.rs", "src:.:")).unwrap_err();
        assert!(matches!(error, SpawnError::NotFound { .. }), "{error:?}");
    }

    #[test]
    fn a_relative_program_is_taken_from_cwd() {
        let dir = tempfile::tempdir().unwrap();
        file(&dir.path().join("tool"), 0o755);
        let mut spec = spec("./tool", "/bin");
        spec.cwd = Some(dir.path().to_owned());
        let found = program(&spec).unwrap();
        assert!(found.is_absolute());
        assert_eq!(fs::canonicalize(found).unwrap(), fs::canonicalize(dir.path().join("tool")).unwrap());
    }

    #[test]
    fn a_cwd_that_is_a_file_is_refused() {
        let mut spec = spec("sh", "/bin");
        spec.cwd = Some("/proc/self/stat".into());
        let error = program(&spec).unwrap_err();
        assert!(
            matches!(&error, SpawnError::Cwd { source, .. } if source.kind() == io::ErrorKind::NotADirectory)
        );
    }
}
