//! The admin socket at a configured path, which a group of signers may use.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use narrows_bus::config::ListenAddr;
use narrows_bus::listen::{Listener, bind};
use narrows_manifest::Bundle;
use tokio::net::UnixListener;

use crate::cli::Serve;
use crate::failure::Failure;

const GROUP_FILE: &str = "/etc/group";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminSocketConfig {
    path: PathBuf,
    group: Option<u32>,
}

impl AdminSocketConfig {
    pub(super) fn from_args(args: &Serve, bundle: &Bundle, root: &Path) -> Result<Option<Self>, Failure> {
        let Some(path) = &args.admin_socket else { return Ok(None) };
        if bundle.governance.is_none() {
            return Err(Failure::admin_socket_ungoverned());
        }
        let path = std::path::absolute(path).map_err(|error| Failure::cwd_unusable(path, &error))?;
        // The directory must exist: one created here would be accessible to its owner only.
        let above = path.parent().and_then(|above| above.canonicalize().ok());
        let above = above.ok_or_else(|| Failure::admin_directory_missing(&path))?;
        if above.starts_with(root) {
            return Err(Failure::admin_socket_in_workspace(&path));
        }
        let group = match &args.admin_group {
            Some(group) => {
                let groups = std::fs::read_to_string(GROUP_FILE).unwrap_or_default();
                Some(group_id(group, &groups).ok_or_else(|| Failure::unknown_group(group))?)
            }
            None => None,
        };
        Ok(Some(Self { path, group }))
    }

    /// Returns `true` if other users than the owner may connect. The mode of the file decides which.
    pub(super) fn is_shared(&self) -> bool {
        self.group.is_some()
    }

    /// Opens the socket for its owner, then for the group. The file is removed when the returned listener is dropped.
    pub(super) fn open(&self) -> Result<(UnixListener, Listener), Failure> {
        let (listener, _) =
            bind(&ListenAddr::Unix(self.path.clone())).map_err(|error| Failure::serve_listener(&error))?;
        let opened = || -> io::Result<UnixListener> {
            if let Some(group) = self.group {
                chown(&self.path, None, Some(group))?;
                std::fs::set_permissions(&self.path, Permissions::from_mode(0o660))?;
            }
            UnixListener::from_std(listener.socket()?.into())
        };
        let opened = opened().map_err(|error| Failure::admin_group_unusable(&self.path, &error))?;
        Ok((opened, listener))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn group_id(group: &str, groups: &str) -> Option<u32> {
    if let Ok(number) = group.parse() {
        return Some(number);
    }
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (name == group && !name.is_empty()).then(|| number.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_is_found_by_name_or_number() {
        let groups = "root:x:0:\n+nis\nsigners:x:1007:ada,bob\nbroken:x:many:\n:x:7:\n";
        let check =
            |group: &str, expected: Option<u32>| assert_eq!(group_id(group, groups), expected, "{group}");
        check("signers", Some(1007));
        check("root", Some(0));
        check("42", Some(42));
        check("broken", None);
        check("ada", None);
        check("", None);
        check("-1", None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(groups in "[a-z:0-9\n]{0,80}", group in "[a-z:]{0,8}") {
            if group_id(&group, &groups).is_some() {
                prop_assert!(groups.contains(&group));
            }
        }
    }
}
