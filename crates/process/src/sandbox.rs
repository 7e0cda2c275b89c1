//! Sandboxes for workers, and the search for those that this machine supports.

mod bubblewrap;
pub(crate) mod filter;
mod landlock;
pub(crate) mod mounts;
mod private_root;
mod probe;
mod protected_paths;
pub(crate) mod scratch;
mod secrets;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::getuid;

use self::filter::{Families, Pids};
use self::landlock::Readable;
use self::mounts::{Mounts, Namespaces, Right};
pub use self::private_root::Mount;
use self::private_root::{Layout, PRIVATE_HOME};
use self::probe::{ProbeError, probe, probe_mounts};
pub use self::protected_paths::is_missing;
use self::scratch::Scratch;
use self::secrets::Hidden;
use crate::enter_sandbox::{GATEWAY_PORT, Processes};
use crate::spawn::{WorkerCommand, above_stdio};
use crate::sys::Instruction;
use crate::{SpawnError, sys};

/// The permissions of a worker's tree on this machine: read all files, change the given paths, use the
/// network or not. The tree can use harmless devices such as `/dev/null`, and no terminals.
///
/// The tree has its own temporary directory, named by `TMPDIR` and removed with the tree. If this program
/// ends first, a directory on disk stays until another sandbox is created there, and is then removed in the
/// background.
///
/// The tree cannot open sockets to services of this machine (`AF_UNIX`), because these act outside the
/// sandbox for their clients; pairs of stream sockets work. With the network it reaches TCP and UDP
/// listeners of this machine. It cannot act on processes outside (limits, priorities, scheduling, memory,
/// System V IPC). It gains no privileges: set-user-id programs run as the user that starts them, and root
/// has only its powers over files.
///
/// Under bubblewrap `argv[0]` is the path of the program. A program that was ended by a signal has the
/// status 128 plus the number of the signal. A program that cannot be executed after all ends with a status
/// and a line on stderr.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub support: Support,
    /// Paths whose content may be changed. The paths must exist, be absolute and contain no links, because
    /// the target of a link may change after a check.
    pub writable: Vec<PathBuf>,
    /// Paths within `writable` that must not be changed, if they exist at the start and the mechanism can
    /// protect them ([`Confined::protected`]). If a path cannot be examined, the nearest directory around
    /// it that can be is protected. With a `view`, that is also done for a path that does not exist, so that
    /// nothing can be created there; it is an error if that directory is a mount.
    pub protected: Vec<PathBuf>,
    /// The visible paths besides the system's programs and libraries. `None` shows everything. If set, the
    /// mounts also define the writable paths, and `writable` must be empty. The tree then has a private
    /// `/tmp` and home, and can only inspect its own processes.
    pub view: Option<Vec<Mount>>,
    /// Files and directories that must appear empty in `view`, if they exist at the start.
    pub hidden: Vec<PathBuf>,
    pub network: bool,
    /// `true` to give the worker its own network, with only a listener at [`Sandbox::GATEWAY`]. This program
    /// serves the listener ([`Child::take_gateway`](crate::Child::take_gateway)), so it decides on every
    /// connection to the outside.
    pub gateway: bool,
    /// Parent of the private temporary directory. Unused if that directory is in memory.
    pub temp: PathBuf,
}

impl Sandbox {
    /// The gateway's address inside the sandbox.
    pub const GATEWAY: std::net::SocketAddrV4 =
        std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, GATEWAY_PORT);

    /// Creates a sandbox that can change nothing and has no network.
    pub fn new(support: Support) -> Self {
        Self {
            support,
            writable: Vec::new(),
            protected: Vec::new(),
            view: None,
            hidden: Vec::new(),
            network: false,
            gateway: false,
            temp: PathBuf::from("/tmp"),
        }
    }

    /// Returns the best mechanism of this machine: Landlock with namespaces, or bubblewrap if it is
    /// installed and works, or Landlock alone. Bubblewrap comes second because read-only mounts prevent
    /// neither writing to a named pipe outside nor root from changing the modes of devices. Starts
    /// processes, so the result is worth keeping.
    pub async fn support() -> Support {
        let namespaces = Support::namespaces().await;
        if namespaces.confined().files {
            return namespaces;
        }
        let launcher = Support::bubblewrap().await;
        if launcher.confined().files {
            return launcher;
        }
        let kernel = Support::landlock();
        if kernel.confined().files {
            return kernel;
        }
        Support::unsupported(format!("{launcher}, {kernel}"))
    }

    /// Checks that this sandbox works, by starting a trivial program in it.
    ///
    /// # Errors
    /// The reason why it does not work.
    pub async fn try_out(&self, cwd: impl Into<PathBuf>) -> Result<(), String> {
        probe::try_out(self.clone(), cwd.into(), "").await.map_err(|error| error.to_string())
    }
}

/// A mechanism of this machine, found by trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Support {
    mechanism: Mechanism,
}

/// A sandbox mechanism, or the result of the search for one. `Untried` means that the search failed, for
/// example because the disk is full. No command is started then: another user may have caused the failure to
/// make commands run in a weaker sandbox or in none.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mechanism {
    Bubblewrap { program: PathBuf, nesting: Nesting },
    Landlock { version: i32, mounts: Option<Namespaces> },
    None { why: String },
    Untried { why: String },
}

/// Ability of programs inside bubblewrap to create user namespaces. In a user namespace, a program has every
/// capability over its own mounts. That does not affect the outside, but exposes more of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nesting {
    Disabled,
    /// Programs can create user namespaces, because bubblewrap before 0.8 cannot forbid it.
    Possible,
}

/// Guarantees of a sandbox mechanism.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Confined {
    /// `true` if nothing outside of the writable paths can be created, changed or removed. Landlock alone
    /// does not prevent changes of mode, owner and times, but prevents changes of extended attributes and
    /// flags everywhere.
    pub files: bool,
    /// `true` if no data can leave this machine without [`Sandbox::network`].
    pub network: bool,
    /// `true` if existing protected paths cannot be changed. Only private mounts guarantee that: Landlock
    /// rules cannot take a permission away, and bubblewrap follows links that a command creates in a path.
    pub protected: bool,
    /// `true` if the worker can neither stop nor kill its guardian.
    pub guardian: bool,
    pub view: bool,
    pub gateway: bool,
}

impl Support {
    /// Returns bubblewrap from one of the usual install paths, if it works here.
    pub async fn bubblewrap() -> Self {
        match bubblewrap::INSTALL_PATHS.iter().map(Path::new).find(|path| path.is_file()) {
            Some(path) => Self::bubblewrap_at(path).await,
            None => Self::unsupported("bubblewrap is not installed"),
        }
    }

    /// Returns the bubblewrap at this path if it works here. Bubblewrap does not work where user namespaces
    /// are unavailable.
    pub async fn bubblewrap_at(program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        let mut reason = String::new();
        for nesting in [Nesting::Disabled, Nesting::Possible] {
            let mechanism = Mechanism::Bubblewrap { program: program.clone(), nesting };
            let support = Self { mechanism };
            match probe(&support).await {
                Ok(()) => return support,
                Err(ProbeError::Lacking(why)) => reason = why,
                Err(ProbeError::Untried(why)) => return Self { mechanism: Mechanism::Untried { why } },
            }
        }
        Self::unsupported(format!("bubblewrap does not work here ({reason})"))
    }

    /// Returns Landlock in its own mount namespace, if that works here. Only writable paths can be changed
    /// there, except protected ones. Users other than root need a user namespace for it. If possible, the
    /// mechanism also has a PID namespace, so that no process outside can be signalled.
    pub async fn namespaces() -> Self {
        Self::namespaces_in(Path::new("/tmp")).await
    }

    /// Like [`Support::namespaces`], with another parent for temporary directories.
    async fn namespaces_in(temp: &Path) -> Self {
        let alone = Self::landlock();
        let Mechanism::Landlock { version, .. } = alone.mechanism else { return alone };
        let mut reason = String::new();
        for namespaces in Namespaces::candidates() {
            let support = Self { mechanism: Mechanism::Landlock { version, mounts: Some(namespaces) } };
            match probe_mounts(&support, temp).await {
                Ok(()) => return support,
                Err(ProbeError::Lacking(why)) => reason = why,
                Err(ProbeError::Untried(why)) => return Self { mechanism: Mechanism::Untried { why } },
            }
        }
        Self::unsupported(format!("mount namespaces are unavailable ({reason})"))
    }

    /// Returns Landlock with a system call filter for operations that Landlock does not cover. Requires a
    /// kernel with both.
    pub fn landlock() -> Self {
        match sys::landlock_version() {
            Some(version) if version < landlock::MIN_VERSION => Self::unsupported(format!(
                "version {version} of Landlock in this kernel is too old: {} is needed",
                landlock::MIN_VERSION
            )),
            Some(_) if !filter::IS_SUPPORTED || !sys::filters_available() => {
                Self::unsupported("this kernel lacks seccomp filters, which are needed with Landlock")
            }
            Some(version) => Self { mechanism: Mechanism::Landlock { version, mounts: None } },
            None => Self::unsupported("this kernel has no Landlock"),
        }
    }

    /// Limits the version of Landlock that is used. Meant for tests.
    #[doc(hidden)]
    pub fn with_older_landlock(mut self, newest: i32) -> Self {
        if let Mechanism::Landlock { version, .. } = &mut self.mechanism {
            *version = newest.min(*version);
        }
        self
    }

    /// Disables PID namespaces. Meant for tests.
    #[doc(hidden)]
    pub fn without_pid_namespace(mut self) -> Self {
        if let Mechanism::Landlock { mounts: Some(namespaces), .. } = &mut self.mechanism {
            namespaces.processes = Processes::All;
        }
        self
    }

    fn unsupported(why: impl Into<String>) -> Self {
        Self { mechanism: Mechanism::None { why: why.into() } }
    }

    /// Returns the guarantees of the mechanism. Without a sandbox, nothing is guaranteed.
    pub fn confined(&self) -> Confined {
        match self.mechanism {
            Mechanism::Bubblewrap { .. } => Confined {
                files: true,
                network: true,
                protected: false,
                guardian: true,
                view: true,
                gateway: false,
            },
            Mechanism::Landlock { version, mounts } => Confined {
                files: true,
                network: true,
                protected: mounts.is_some(),
                guardian: version >= landlock::SIGNAL_SCOPE_VERSION
                    || mounts.is_some_and(|namespaces| namespaces.processes == Processes::Own),
                view: mounts.is_some(),
                gateway: mounts.is_some(),
            },
            Mechanism::None { .. } => Confined::default(),
            // No worker is ever started without a successful search.
            Mechanism::Untried { .. } => Confined {
                files: true,
                network: true,
                protected: true,
                guardian: true,
                view: true,
                gateway: true,
            },
        }
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mechanism {
            Mechanism::Bubblewrap { program, .. } => write!(f, "bubblewrap ({})", program.display()),
            Mechanism::Landlock { version, mounts } => {
                let namespaces = match mounts.map(|namespaces| (namespaces.right, namespaces.processes)) {
                    Some((Right::Own, Processes::All)) => ", a mount namespace",
                    Some((Right::Own, Processes::Own)) => ", a mount and a PID namespace",
                    Some((Right::UserNamespace, Processes::All)) => ", a user and a mount namespace",
                    Some((Right::UserNamespace, Processes::Own)) => ", a user, a mount and a PID namespace",
                    None => "",
                };
                write!(f, "Landlock (version {version}){namespaces} and seccomp")
            }
            Mechanism::None { why } => f.write_str(why),
            Mechanism::Untried { why } => write!(f, "the search for a sandbox failed ({why})"),
        }
    }
}

#[derive(Debug)]
pub(crate) enum PreparedSandbox {
    /// The worker confines itself before its exec, with Landlock and filters.
    Landlock {
        ruleset: OwnedFd,
        filters: Box<Filters>,
        scratch: Scratch,
        mounts: Option<Mounts>,
        gateway: Option<Gateway>,
    },
    /// The worker executes a launcher (bubblewrap), which reads its options and filter from these
    /// descriptors.
    Launcher { options: OwnedFd, filter: OwnedFd },
}

#[derive(Debug)]
pub(crate) struct Filters {
    pub(crate) main: Vec<Instruction>,
    pub(crate) without_ipc: Vec<Instruction>,
}

/// The socket pair that transfers the gateway's listener: the worker's end, and the supervisor's end.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) worker: OwnedFd,
    pub(crate) ours: OwnedFd,
}

impl Gateway {
    fn new() -> io::Result<Self> {
        let (worker, ours) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok(Self { worker: above_stdio(worker)?, ours: above_stdio(ours)? })
    }
}

impl PreparedSandbox {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Landlock { mounts: Some(mounts), .. } => mounts.size(),
            Self::Landlock { mounts: None, .. } | Self::Launcher { .. } => 0,
        }
    }
}

impl Sandbox {
    /// Prepares the sandbox, and changes `start` so that the worker starts in the sandbox.
    pub(crate) fn prepare(&self, start: &mut WorkerCommand) -> Result<PreparedSandbox, SpawnError> {
        let writable = protected_paths::outermost(&self.writable)?;
        let pieces = match &self.view {
            Some(view) => Some(private_root::pieces(view, &self.protected)?),
            None => None,
        };
        let can = self.support.confined();
        if (pieces.is_some() && !can.view) || (self.gateway && !can.gateway) {
            return Err(SpawnError::NoSandbox { why: self.describe_missing() });
        }
        if let Some(pieces) = &pieces {
            self.ensure_visible(pieces, start)?;
        }
        let pieces = match pieces {
            Some(mut pieces) => {
                let mut hidden = hidden(&pieces)?;
                hidden.extend(private_root::hide(&mut pieces, &self.hidden));
                Some(Pieces { hidden, mounts: pieces })
            }
            None => None,
        };
        match self.mechanism() {
            Mechanism::Landlock { version, mounts } => {
                self.confine_to(*version, *mounts, &writable, pieces.as_ref(), start)
            }
            Mechanism::Bubblewrap { program, nesting } => {
                self.launch_in((program, *nesting), &writable, pieces.as_ref(), start)
            }
            Mechanism::None { .. } | Mechanism::Untried { .. } => {
                Err(SpawnError::NoSandbox { why: self.support.to_string() })
            }
        }
    }

    fn describe_missing(&self) -> String {
        match self.mechanism() {
            Mechanism::Bubblewrap { .. } => "bubblewrap supports no gateway".to_owned(),
            Mechanism::Landlock { .. } => {
                "mount and network namespaces are unavailable, and Landlock alone is not enough".to_owned()
            }
            Mechanism::None { .. } | Mechanism::Untried { .. } => self.support.to_string(),
        }
    }

    /// Checks that the program and its working directory are visible in the sandbox, and sets the home
    /// directory.
    fn ensure_visible(&self, pieces: &[Mount], start: &mut WorkerCommand) -> Result<(), SpawnError> {
        if !self.writable.is_empty() {
            return Err(setup("create the sandbox's root")(io::Error::other(
                "the mounts define the writable paths",
            )));
        }
        let program = start.program.canonicalize().unwrap_or_else(|_| start.program.clone());
        for path in [&start.program, &program].into_iter().chain(&start.cwd) {
            if !private_root::shows(pieces, path) {
                return Err(SpawnError::SandboxPlace {
                    path: path.clone(),
                    source: io::Error::other("the sandbox does not contain it"),
                });
            }
        }
        if start.cwd.is_none() {
            return Err(setup("create the sandbox's root")(io::Error::other(
                "the working directory is not in the sandbox",
            )));
        }
        start.env.set("HOME", PRIVATE_HOME);
        Ok(())
    }

    fn confine_to(
        &self,
        version: i32,
        namespaces: Option<Namespaces>,
        writable: &[PathBuf],
        pieces: Option<&Pieces>,
        start: &mut WorkerCommand,
    ) -> Result<PreparedSandbox, SpawnError> {
        let scratch = Scratch::new(&self.temp)
            .map_err(|source| SpawnError::SandboxPlace { path: self.temp.clone(), source })?;
        let network = self.network || self.gateway;
        let prepare = setup("prepare the mounts");
        let (ruleset, mounts) = match (pieces, namespaces) {
            (Some(Pieces { mounts, hidden }), Some(namespaces)) => {
                let layout = Layout::new(scratch.path(), mounts, hidden).map_err(&prepare)?;
                let changed =
                    mounts.iter().filter(|piece| piece.writable).map(|piece| piece.source.as_path());
                let changed = changed.chain(layout.temporary.iter().map(PathBuf::as_path));
                set_temp(start, Path::new("/tmp"));
                (
                    landlock::ruleset(version, Readable::Below(&layout.root), changed, network)?,
                    Some(Mounts::private_root(namespaces, &layout).map_err(&prepare)?),
                )
            }
            (_, namespaces) => {
                let places = writable.iter().map(PathBuf::as_path).chain([scratch.path()]);
                set_temp(start, scratch.path());
                let mounts = namespaces
                    .map(|namespaces| Mounts::new(namespaces, writable, scratch.path(), &self.protected))
                    .transpose()
                    .map_err(&prepare)?;
                (landlock::ruleset(version, Readable::Files, places, network)?, mounts)
            }
        };
        let ruleset = above_stdio(ruleset).map_err(setup("keep the Landlock ruleset"))?;
        let families = if network { Families::Internet } else { Families::None };
        let without_ipc = match namespaces {
            Some(_) => filter::no_system_v(),
            None => filter::no_system_v_nor_attributes(),
        };
        let filters = Filters { main: filter::program(families, Pids::Own), without_ipc };
        let gateway =
            self.gateway.then(Gateway::new).transpose().map_err(setup("make a gateway for the sandbox"))?;
        Ok(PreparedSandbox::Landlock { ruleset, filters: Box::new(filters), scratch, mounts, gateway })
    }

    fn mechanism(&self) -> &Mechanism {
        &self.support.mechanism
    }

    fn launch_in(
        &self,
        (launcher, nesting): (&Path, Nesting),
        writable: &[PathBuf],
        pieces: Option<&Pieces>,
        start: &mut WorkerCommand,
    ) -> Result<PreparedSandbox, SpawnError> {
        if let Some(Pieces { mounts, hidden }) = pieces {
            bubblewrap::check_pieces(mounts, hidden)?;
        }
        set_temp(start, Path::new("/tmp"));
        let cwd = match &start.cwd {
            Some(cwd) => cwd.canonicalize(),
            None => std::env::current_dir(),
        };
        let cwd = cwd.map_err(setup("find the working directory"))?;
        let private: Vec<&str> =
            bubblewrap::PRIVATE_DIRECTORIES.into_iter().filter(|path| Path::new(path).is_dir()).collect();
        // Without network access, the launcher creates an empty network, in which internet sockets are
        // harmless.
        let filter = filter::program(Families::Internet, Pids::Namespace);
        let filter = memory_file(&filter::bytes(&filter))?;
        let system = pieces.map(|_| private_root::system()).unwrap_or_default();
        let view = bubblewrap::BubblewrapPlan {
            pieces: pieces.map(|Pieces { mounts, hidden }| (&*system, &**hidden, &**mounts)),
            writable,
            private: &private,
            network: self.network,
            cwd: &cwd,
            env: &start.env,
            root: getuid().is_root(),
            nesting,
            filter: filter.as_raw_fd(),
        };
        let program = start.program.canonicalize().unwrap_or_else(|_| start.program.clone());
        for path in [&program, &cwd] {
            if !view.shows(path) {
                return Err(SpawnError::SandboxPlace {
                    path: path.clone(),
                    source: io::Error::other("it is in a directory that the sandbox replaces"),
                });
            }
        }
        let options = view.options();
        let option_count = options.len();
        let options = memory_file(&bubblewrap::encode(&options))?;
        let mut argv = vec![OsString::from("bwrap"), "--args".into()];
        argv.extend([options.as_raw_fd().to_string().into(), "--".into(), start.program.clone().into()]);
        argv.extend(start.argv.drain(..).skip(1));
        bubblewrap::check_count(option_count + argv.len())?;
        // The environment must not affect the launcher itself: a preloaded library would run outside of the
        // sandbox.
        *start = WorkerCommand {
            program: launcher.to_owned(),
            argv,
            env: crate::Environment::empty(),
            cwd: start.cwd.take(),
        };
        Ok(PreparedSandbox::Launcher { options, filter })
    }
}

struct Pieces {
    mounts: Vec<Mount>,
    hidden: Vec<Hidden>,
}

/// Returns the settings that only root can read, which must be hidden. Omits those that contain a mount.
fn hidden(mounts: &[Mount]) -> Result<Vec<Hidden>, SpawnError> {
    let mut hidden = secrets::hidden().map_err(setup("hide files that only root can read"))?;
    hidden.retain(|hidden| !mounts.iter().any(|mount| mount.at.starts_with(&hidden.path)));
    Ok(hidden)
}

/// Sets the variables for the temporary directory. `TMPDIR` is always set, and others only if they exist.
fn set_temp(start: &mut WorkerCommand, path: &Path) {
    start.env.set("TMPDIR", path);
    for name in ["TMP", "TEMP", "TEMPDIR"] {
        if start.env.get(name).is_some() {
            start.env.set(name, path);
        }
    }
}

fn memory_file(contents: &[u8]) -> Result<OwnedFd, SpawnError> {
    let write = || -> io::Result<OwnedFd> {
        let mut file = std::fs::File::from(memfd_create(c"narrows-sandbox", MemfdFlags::CLOEXEC)?);
        file.write_all(contents)?;
        io::Seek::rewind(&mut file)?;
        above_stdio(file.into())
    };
    write().map_err(setup("pass options to the launcher"))
}

fn setup(action: &'static str) -> impl Fn(io::Error) -> SpawnError {
    move |source| SpawnError::Sandbox { action, source }
}
