//! Builds the Landlock ruleset for files and TCP before the fork.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, Scope,
};

use crate::SpawnError;

/// Minimum version of Landlock. With older versions, a file can be truncated without the right to write it.
pub(crate) const MIN_VERSION: i32 = 3;
/// First version that can prevent a process from signalling processes outside.
pub(crate) const SIGNAL_SCOPE_VERSION: i32 = 6;
/// The newest tested version of the Landlock ABI. A newer kernel is used as if it had this version.
const MAX_TESTED_VERSION: i32 = 7;

/// Harmless devices that programs expect to be writable.
const WRITABLE_DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

const DEVICE_DIRECTORY: &str = "/dev";
/// The only directory in /dev that holds ordinary files.
const SHARED_MEMORY: &str = "/dev/shm";

#[derive(Debug, Clone, Copy)]
pub(crate) enum Readable<'a> {
    /// All files except devices. A process that could read a terminal would take away the terminal's input.
    Files,
    Below(&'a Path),
}

/// Builds the ruleset for a kernel with this version of Landlock. `writable` paths may be changed.
pub(crate) fn ruleset<'a>(
    version: i32,
    readable: Readable<'_>,
    writable: impl IntoIterator<Item = &'a Path>,
    network: bool,
) -> Result<OwnedFd, SpawnError> {
    let abi = ABI::from(version.min(MAX_TESTED_VERSION));
    // The kernel must support every requested restriction. Otherwise some restrictions would be dropped
    // silently.
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let mut ruleset = ruleset.handle_access(AccessFs::from_all(abi)).map_err(refused)?;
    let ports = AccessNet::from_all(abi);
    if !network && !ports.is_empty() {
        ruleset = ruleset.handle_access(ports).map_err(refused)?;
    }
    let scope = Scope::from_all(abi);
    if !scope.is_empty() {
        ruleset = ruleset.scope(scope).map_err(refused)?;
    }
    let mut rules = ruleset.create().map_err(refused)?;
    let mut allow = |path: &Path, access: BitFlags<AccessFs>| -> Result<(), SpawnError> {
        let place = PathFd::new(path).map_err(refused)?;
        if access.contains(AccessFs::WriteFile) {
            check_path(&place, path).map_err(refused)?;
        }
        (&mut rules).add_rule(PathBeneath::new(place, access)).map_err(refused)?;
        Ok(())
    };
    let read = AccessFs::from_read(abi);
    match readable {
        Readable::Below(root) => allow(root, read)?,
        // The root directory gets no rule, because a rule cannot take back a right that another rule grants.
        Readable::Files => {
            allow(Path::new("/"), AccessFs::ReadDir.into())?;
            for (path, is_directory) in top_level().map_err(refused)? {
                let access = if is_directory { read } else { read & AccessFs::from_file(abi) };
                if let Err(error) = allow(&path, access) {
                    tracing::debug!(?path, %error, "not readable in sandbox");
                }
            }
        }
    }
    // Creating a device is not allowed, because the device would also work outside of the sandbox.
    let change = AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    for path in writable {
        let access = if path.is_dir() { change } else { change & AccessFs::from_file(abi) };
        allow(path, access)?;
    }
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    for path in WRITABLE_DEVICES.map(Path::new).into_iter().filter(|path| path.exists()) {
        allow(path, device & AccessFs::from_file(abi))?;
    }
    Option::<OwnedFd>::from(rules).ok_or_else(|| refused(io::Error::from(io::ErrorKind::Unsupported)))
}

/// Fails if the opened path contained links. A command of another session may have created a link since the
/// path was checked.
fn check_path(opened: &PathFd, path: &Path) -> io::Result<()> {
    let real = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()))?;
    if real.as_os_str() == path.as_os_str() {
        return Ok(());
    }
    Err(io::Error::other(format!("{} contains a symbolic link", path.display())))
}

/// Returns the entries of the root directory. `true` marks a directory. Links are omitted, because they lead
/// to other entries.
fn top_level() -> io::Result<Vec<(PathBuf, bool)>> {
    let mut found = vec![(PathBuf::from(SHARED_MEMORY), true)];
    for entry in std::fs::read_dir("/")? {
        let entry = entry?;
        let Ok(kind) = entry.file_type() else { continue };
        if (kind.is_dir() || kind.is_file()) && entry.path() != Path::new(DEVICE_DIRECTORY) {
            found.push((entry.path(), kind.is_dir()));
        }
    }
    Ok(found)
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> SpawnError {
    SpawnError::Sandbox { action: "make the Landlock ruleset", source: io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_in_the_path_of_a_writable_directory_is_not_followed() {
        let top = tempfile::tempdir().unwrap();
        let [real, link] = ["real", "link"].map(|name| top.path().canonicalize().unwrap().join(name));
        std::fs::create_dir_all(real.join("inner")).unwrap();
        symlink(&real, &link).unwrap();
        let check = |path: &Path| check_path(&PathFd::new(path).unwrap(), path);
        check(&real.join("inner")).unwrap();
        check(Path::new("/")).unwrap();
        assert!(check(&link).is_err());
        assert!(check(&link.join("inner")).is_err());
    }
}
