//! Where signers of other accounts come in: a socket at a place that was named, for a group.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use narrows_bus::config::Door;
use narrows_bus::listen::{Listener, bind};
use narrows_manifest::Bundle;
use tokio::net::UnixListener;

use crate::cli::Serve;
use crate::failure::Failure;

/// Where groups have their names.
const GROUPS: &str = "/etc/group";

/// The place, and who may reach it beside its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Admin {
    path: PathBuf,
    group: Option<u32>,
}

impl Admin {
    /// What the arguments say, for a workspace.
    pub(super) fn of(args: &Serve, bundle: &Bundle, root: &Path) -> Result<Option<Self>, Failure> {
        let Some(path) = &args.admin_socket else { return Ok(None) };
        if bundle.governance.is_none() {
            return Err(Failure::nothing_governed());
        }
        let path = std::path::absolute(path).map_err(|error| Failure::cwd(path, &error))?;
        // One that is made for it would be for its owner alone.
        let above = path.parent().and_then(|above| above.canonicalize().ok());
        let above = above.ok_or_else(|| Failure::admin_nowhere(&path))?;
        if above.starts_with(root) {
            return Err(Failure::admin_inside(&path));
        }
        let group = match &args.admin_group {
            Some(group) => {
                let groups = std::fs::read_to_string(GROUPS).unwrap_or_default();
                Some(id_of(group, &groups).ok_or_else(|| Failure::no_group(group))?)
            }
            None => None,
        };
        Ok(Some(Self { path, group }))
    }

    /// Whether others than its owner may come in. Who that is the mode of the file says.
    pub(super) fn is_shared(&self) -> bool {
        self.group.is_some()
    }

    /// Opens it: at first for its owner alone, then for the group. The file goes with what is returned.
    pub(super) fn open(&self) -> Result<(UnixListener, Listener), Failure> {
        let (listener, _) =
            bind(&Door::Unix(self.path.clone())).map_err(|error| Failure::serve_door(&error))?;
        let opened = || -> io::Result<UnixListener> {
            if let Some(group) = self.group {
                chown(&self.path, None, Some(group))?;
                std::fs::set_permissions(&self.path, Permissions::from_mode(0o660))?;
            }
            UnixListener::from_std(listener.socket()?.into())
        };
        let opened = opened().map_err(|error| Failure::admin_group(&self.path, &error))?;
        Ok((opened, listener))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The number of a group, by its name or as it is.
fn id_of(group: &str, groups: &str) -> Option<u32> {
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
    fn a_group_is_known_by_name_or_number() {
        let groups = "root:x:0:\n+nis\nsigners:x:1007:ada,bob\nbroken:x:many:\n:x:7:\n";
        let check =
            |group: &str, expected: Option<u32>| assert_eq!(id_of(group, groups), expected, "{group}");
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
        fn whatever_stands_there_is_no_harm(groups in "[a-z:0-9\n]{0,80}", group in "[a-z:]{0,8}") {
            if id_of(&group, &groups).is_some() {
                prop_assert!(groups.contains(&group));
            }
        }
    }
}
