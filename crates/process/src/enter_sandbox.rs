//! The worker's entry into its sandbox, between fork and exec.
//!
//! As in the guardian, code here must not allocate, lock or panic.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::net::{Ipv4Addr, SocketAddrV4};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, FdFlags, fcntl_setfd, write};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, bind,
    listen, sendmsg, socket_with,
};
use rustix::process::{DumpableBehavior, chdir, dumpable_behavior, pivot_root, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, set_capabilities, set_no_new_privs};

use crate::sys::{self, StringArray};

pub(crate) const MAX_WRITABLE_MOUNTS: usize = 64;
pub(crate) const MAX_ROOT_MOUNTS: usize = 256;
/// The port of the gateway in the worker's own network.
pub(crate) const GATEWAY_PORT: u16 = 3128;
/// Maximum number of connections to the gateway that wait to be accepted.
const GATEWAY_BACKLOG: i32 = 128;

#[derive(Clone, Copy)]
pub(crate) enum SandboxPlan<'a> {
    None,
    Landlock {
        ruleset: BorrowedFd<'a>,
        filter: &'a [sys::Instruction],
        /// Additional filter for a worker without an IPC namespace.
        without_ipc: &'a [sys::Instruction],
        view: Option<MountPlan<'a>>,
        /// Socket to which the worker sends the listener of its own network. `None` if the worker has no own
        /// network.
        gateway: Option<BorrowedFd<'a>>,
        /// Capabilities that the worker may keep. A user namespace would grant more.
        powers: CapabilitySet,
    },
    /// The worker executes a launcher (bubblewrap), which reads its options and filter from these
    /// descriptors.
    Launcher {
        options: BorrowedFd<'a>,
        filter: BorrowedFd<'a>,
    },
}

/// The mounts that the worker makes in its own namespace. Paths are absolute and contain no links. Outer
/// paths precede inner ones.
#[derive(Clone, Copy)]
pub(crate) struct MountPlan<'a> {
    /// Id mapping of a user namespace, in which the worker keeps its ids. `None` if mounting needs no user
    /// namespace.
    pub(crate) identity: Option<IdentityPlan<'a>>,
    pub(crate) processes: Processes,
    pub(crate) shape: ShapePlan<'a>,
}

/// The processes that are visible in the tree's procfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processes {
    /// Only processes of the tree are visible, because it has a PID namespace.
    Own,
    /// All processes of the machine.
    All,
}

#[derive(Clone, Copy)]
pub(crate) enum ShapePlan<'a> {
    /// The whole file system stays visible.
    All {
        /// Paths that stay writable, at most [`MAX_WRITABLE_MOUNTS`]. If empty, the whole file system stays
        /// writable.
        writable: StringArray<'a>,
        /// Directories that the worker must not be able to move.
        pinned: StringArray<'a>,
        /// Paths below writable ones that must be read-only.
        sealed: StringArray<'a>,
    },
    /// Only parts of the file system are visible, in a private root.
    Pieces {
        root: &'a CStr,
        proc: &'a CStr,
        /// Sources of the mounts, at most [`MAX_ROOT_MOUNTS`].
        sources: StringArray<'a>,
        places: StringArray<'a>,
        /// One byte per mount, which is nonzero if the mount is writable.
        writable: &'a [u8],
    },
}

/// Id mapping of a user namespace in which the worker keeps the ids that it has outside.
#[derive(Clone, Copy)]
pub(crate) struct IdentityPlan<'a> {
    pub(crate) user: &'a CStr,
    pub(crate) group: &'a CStr,
}

impl<'a> SandboxPlan<'a> {
    pub(crate) fn descriptors(self) -> [Option<BorrowedFd<'a>>; 2] {
        match self {
            Self::None => [None, None],
            Self::Landlock { ruleset, gateway, .. } => [Some(ruleset), gateway],
            Self::Launcher { options, filter } => [Some(options), Some(filter)],
        }
    }

    /// Returns the namespaces in which the first process of the tree is forked. `None` if that process is the
    /// worker itself. The process that creates a PID namespace stays outside; only its children are inside.
    pub(crate) fn init_namespaces(self) -> Option<UnshareFlags> {
        match self {
            Self::Landlock { view: Some(MountPlan { identity, processes: Processes::Own, .. }), .. } => {
                // Both namespaces are created in one call, so that the user namespace owns the PID namespace.
                // Otherwise procfs could not be mounted.
                let user = if identity.is_some() { UnshareFlags::NEWUSER } else { UnshareFlags::empty() };
                Some(UnshareFlags::NEWPID | user)
            }
            Self::None | Self::Landlock { .. } | Self::Launcher { .. } => None,
        }
    }

    /// Makes the mounts. Must be called before [`SandboxPlan::enter`], because Landlock forbids mounting. The
    /// working directory is `cwd` before and after the call.
    pub(crate) fn make_mounts(self, cwd: Option<&CStr>) -> Result<(), Errno> {
        let Self::Landlock { view: Some(view), ruleset, gateway, .. } = self else { return Ok(()) };
        view.apply(ruleset, gateway)?;
        // The working directory still is the directory below the new mounts, so it is entered again by its
        // path.
        cwd.map_or(Ok(()), chdir)
    }

    pub(crate) fn enter(self) -> Result<(), Errno> {
        match self {
            Self::None => Ok(()),
            Self::Landlock { ruleset, filter, without_ipc, view, powers, .. } => {
                // Creating the namespace fails on kernels without IPC namespaces.
                let has_own_ipc = view.is_some() && sys::unshare(UnshareFlags::NEWIPC).is_ok();
                set_no_new_privs(true)?;
                sys::landlock_restrict(ruleset)?;
                drop_capabilities(powers)?;
                sys::install_filter(filter)?;
                if has_own_ipc { Ok(()) } else { sys::install_filter(without_ipc) }
            }
            Self::Launcher { options, filter } => {
                fcntl_setfd(options, FdFlags::empty())?;
                fcntl_setfd(filter, FdFlags::empty())
            }
        }
    }
}

/// Drops all capabilities except root's over files, which the sandbox confines. Others lead out of the
/// sandbox, such as loading modules, or could undo it, such as those of a user namespace. Because of
/// no_new_privs, an exec restores none.
fn drop_capabilities(had: CapabilitySet) -> Result<(), Errno> {
    let kept = CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
    let kept = kept & had;
    let mut sets = capabilities(None)?;
    if kept.contains(sets.permitted) && sets.inheritable.is_empty() {
        return Ok(());
    }
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)
}

impl MountPlan<'_> {
    fn apply(self, ruleset: BorrowedFd<'_>, gateway: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let network = if gateway.is_some() { UnshareFlags::NEWNET } else { UnshareFlags::empty() };
        let namespaces = UnshareFlags::NEWNS | network;
        match (self.identity, self.processes) {
            (Some(identity), Processes::All) => identity.assume(UnshareFlags::NEWUSER | namespaces)?,
            // The process was already forked in a user namespace.
            (Some(identity), Processes::Own) => identity.assume(namespaces)?,
            (None, _) => sys::unshare(namespaces)?,
        }
        if let Some(gateway) = gateway {
            open_gateway(gateway)?;
        }
        // New mounts are invisible outside. If a disk is unmounted outside, it is unmounted here too, so that
        // no disk stays busy.
        mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
        match self.shape {
            ShapePlan::All { writable, pinned, sealed } => {
                mount_writable_paths(writable, pinned, sealed)?;
                if self.processes == Processes::All {
                    return Ok(());
                }
                let read_only = match writable.iter().next() {
                    Some(_) => MountAttrFlags::MOUNT_ATTR_RDONLY,
                    None => MountAttrFlags::empty(),
                };
                attach_mount(mount_procfs(read_only, None)?.as_fd(), open_path(c"/proc")?.as_fd())?;
                // The ruleset has a rule for the procfs that is now covered. It has no rule for the root
                // directory.
                sys::landlock_allow_reading(ruleset, open_path(c"/proc")?.as_fd())
            }
            ShapePlan::Pieces { root, proc, sources, places, writable } => {
                let processes = match self.processes {
                    Processes::Own => mount_procfs(MountAttrFlags::MOUNT_ATTR_RDONLY, None),
                    Processes::All => mount_procfs(MountAttrFlags::empty(), Some(c"ptraceable")),
                };
                let processes = match (processes, self.processes) {
                    // Without an own PID namespace, a process may not mount procfs again. Landlock prevents
                    // inspection of other processes.
                    (Err(Errno::PERM), Processes::All) => clone_mount(open_path(c"/proc")?.as_fd())?,
                    (processes, _) => processes?,
                };
                enter_private_root(root, (processes.as_fd(), proc), sources, places, writable)
            }
        }
    }
}

/// Makes the whole file system read-only, except the given paths.
fn mount_writable_paths(
    writable: StringArray<'_>,
    pinned: StringArray<'_>,
    sealed: StringArray<'_>,
) -> Result<(), Errno> {
    let mut trees = [const { None::<OwnedFd> }; MAX_WRITABLE_MOUNTS];
    for (tree, path) in trees.iter_mut().zip(writable.iter()) {
        *tree = Some(clone_mount(open_path(path)?.as_fd())?);
    }
    if trees.first().is_some_and(Option::is_some) {
        sys::make_read_only(open_path(c"/")?.as_fd())?;
    }
    for (tree, path) in trees.iter().flatten().zip(writable.iter()) {
        attach_mount(tree.as_fd(), open_path(path)?.as_fd())?;
    }
    for path in pinned.iter() {
        bind_onto_itself(path, false)?;
    }
    for path in sealed.iter() {
        bind_onto_itself(path, true)?;
    }
    Ok(())
}

/// Builds a private root and enters it. No other part of the file system is reachable from there.
fn enter_private_root(
    root: &CStr,
    (processes, proc): (BorrowedFd<'_>, &CStr),
    sources: StringArray<'_>,
    places: StringArray<'_>,
    writable: &[u8],
) -> Result<(), Errno> {
    let mut trees = [const { None::<OwnedFd> }; MAX_ROOT_MOUNTS];
    for ((tree, path), writable) in trees.iter_mut().zip(sources.iter()).zip(writable) {
        let copied = clone_mount(open_path(path)?.as_fd())?;
        if *writable == 0 {
            sys::make_read_only(copied.as_fd())?;
        }
        *tree = Some(copied);
    }
    let whole = clone_mount(open_path(root)?.as_fd())?;
    sys::make_read_only(whole.as_fd())?;
    attach_mount(whole.as_fd(), open_path(root)?.as_fd())?;
    for (tree, path) in trees.iter().flatten().zip(places.iter()) {
        attach_mount(tree.as_fd(), open_path(path)?.as_fd())?;
    }
    attach_mount(processes, open_path(proc)?.as_fd())?;
    chdir(root)?;
    // `pivot_root` stacks the old root on the new one. The next call detaches the old root.
    pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    chdir(c"/")
}

/// Opens a detached procfs of the process's PID namespace. `hidepid` hides some processes in it.
///
/// In its own PID namespace a tree sees all of procfs: the guardian must find processes that cannot be
/// traced, such as an SSH agent, in order to end them.
fn mount_procfs(more: MountAttrFlags, hidepid: Option<&CStr>) -> Result<OwnedFd, Errno> {
    let processes = fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some(hidepid) = hidepid {
        fsconfig_set_string(processes.as_fd(), c"hidepid", hidepid)?;
    }
    fsconfig_create(processes.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(processes.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags | more)
}

/// Opens the gateway's listener in the worker's own network, and sends the listener to the supervisor.
fn open_gateway(to: BorrowedFd<'_>) -> Result<(), Errno> {
    sys::start_loopback()?;
    let listener = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, GATEWAY_PORT))?;
    listen(&listener, GATEWAY_BACKLOG)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener.as_fd()];
    if !message.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(to, &[IoSlice::new(b"g")], &mut message, SendFlags::NOSIGNAL).map(|_| ())
}

impl IdentityPlan<'_> {
    /// Creates namespaces, and restores the process's ids in the new user namespace.
    fn assume(self, namespaces: UnshareFlags) -> Result<(), Errno> {
        let before = dumpable_behavior()?;
        sys::unshare(namespaces)?;
        // While a process cannot be traced, its files in procfs belong to root, and it cannot write to them.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        let written = [
            // Groups can be mapped only after this write. It also keeps supplementary groups, which may deny
            // access to files.
            (c"/proc/self/setgroups", c"deny"),
            (c"/proc/self/uid_map", self.user),
            (c"/proc/self/gid_map", self.group),
        ]
        .into_iter()
        .try_for_each(|(path, text)| {
            let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            write(&file, text.to_bytes()).map(|_| ())
        });
        set_dumpable_behavior(before)?;
        written
    }
}

/// Opens the file at a path without following a final link.
fn open_path(path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Returns a detached copy of the mounts at and below a path.
fn clone_mount(place: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(place, c"", flags)
}

fn attach_mount(tree: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, c"", place, c"", flags)
}

/// Mounts a path onto itself, so that it cannot be moved or removed. A missing path is skipped.
fn bind_onto_itself(path: &CStr, read_only: bool) -> Result<(), Errno> {
    let place = match open_path(path) {
        Err(Errno::NOENT) => return Ok(()),
        place => place?,
    };
    let tree = clone_mount(place.as_fd())?;
    if read_only {
        sys::make_read_only(tree.as_fd())?;
    }
    attach_mount(tree.as_fd(), place.as_fd())
}
