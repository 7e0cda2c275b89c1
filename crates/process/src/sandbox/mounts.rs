//! What a worker sees of the file system in a mount namespace of its own, prepared before the fork.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};

use super::places;
use crate::cage::{IdentityPlan, MOST_WRITABLE, ViewPlan};
use crate::sys::Arena;

/// How a worker comes by the right to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// It has it: it is root. Then it needs no namespace in which the files of others belong to nobody.
    Own,
    /// In a user namespace everybody has it.
    UserNamespace,
}

impl Right {
    /// Those that may work here, the better one first.
    pub(crate) fn candidates() -> impl Iterator<Item = Self> {
        let own = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        own.then_some(Self::Own).into_iter().chain([Self::UserNamespace])
    }
}

/// The mounts, as the worker makes them.
#[derive(Debug)]
pub(crate) struct Mounts {
    /// The user and the group, as the kernel reads them.
    identity: Option<[CString; 2]>,
    writable: Vec<CString>,
    pinned: Vec<CString>,
    sealed: Vec<CString>,
}

impl Mounts {
    /// For `writable` places and the worker's own `scratch`, without those that are `protected`.
    pub(crate) fn new(
        right: Right,
        writable: &[PathBuf],
        scratch: &Path,
        protected: &[PathBuf],
    ) -> io::Result<Self> {
        let mut sealed = places::protected(protected, writable);
        sealed.extend(places::links(protected, writable));
        sealed.sort();
        let pinned = places::pinned(&sealed, writable).into_iter().map(text).collect::<io::Result<_>>()?;
        let is_inside = |path: &Path| writable.iter().any(|root| path.starts_with(root));
        let shown = writable.iter().map(PathBuf::as_path).chain((!is_inside(scratch)).then_some(scratch));
        // If everything is writable, nothing is to be made read-only.
        let everything = writable.iter().any(|root| root == Path::new("/"));
        let writable: Vec<CString> =
            if everything { Vec::new() } else { shown.map(text).collect::<io::Result<_>>()? };
        if writable.len() > MOST_WRITABLE {
            return Err(io::Error::other(format!("there are more than {MOST_WRITABLE} places to write to")));
        }
        let identity = match right {
            Right::Own => None,
            Right::UserNamespace => {
                let [user, group] = [geteuid().as_raw(), getegid().as_raw()];
                Some([CString::new(format!("{user} {user} 1"))?, CString::new(format!("{group} {group} 1"))?])
            }
        };
        Ok(Self {
            identity,
            writable,
            pinned,
            sealed: sealed.iter().map(|path| text(path)).collect::<io::Result<_>>()?,
        })
    }

    /// Bytes and pointers in the arena.
    pub(crate) fn size(&self) -> usize {
        let lists = [&self.writable, &self.pinned, &self.sealed];
        let strings = lists.into_iter().flatten().chain(self.identity.iter().flatten());
        strings.map(|string| string.count_bytes() + 1 + 2 * size_of::<usize>()).sum()
    }

    /// The same in the arena.
    pub(crate) fn plan<'a>(&self, arena: &'a Arena) -> io::Result<ViewPlan<'a>> {
        let identity = match &self.identity {
            Some([user, group]) => {
                Some(IdentityPlan { user: arena.string(user)?, group: arena.string(group)? })
            }
            None => None,
        };
        Ok(ViewPlan {
            identity,
            writable: arena.strings(&self.writable)?,
            pinned: arena.strings(&self.pinned)?,
            sealed: arena.strings(&self.sealed)?,
        })
    }
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
