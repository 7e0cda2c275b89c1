//! What confines a worker besides its guardian, and what this machine has of it.

mod bubblewrap;
pub(crate) mod filter;
mod landlock;
pub(crate) mod scratch;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::getuid;

use self::filter::Families;
use self::scratch::Scratch;
use crate::spawn::{Start, above_stdio};
use crate::sys::Instruction;
use crate::{ExitClass, SpawnError, Spec, sys};

/// How long a launcher may take to start a program that does nothing.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);
/// Answered by the program of the probe, and by no launcher that fails.
const PROBE_STATUS: i32 = 42;

/// What a worker and its tree may do to this machine: read all of it, change the places named here, reach the
/// network or not.
///
/// It has a temporary directory of its own, named by `TMPDIR`, which goes with the tree; if this program is killed
/// before that, one on disk stays until another sandbox is made there.
///
/// It cannot open sockets to services of this machine (`AF_UNIX`), because these act for everybody outside the
/// sandbox; pairs of sockets work. It gains no privileges: set-user-id programs run as who starts them, and root has
/// only its powers over files.
///
/// Under bubblewrap `argv[0]` is the path of the program, a program that a signal ended has the status 128 and the
/// number of the signal, and one that cannot be executed after all ends with a status and a line on stderr.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// By what means, as [`Sandbox::support`] found them.
    pub support: Support,
    /// The places that may be changed, with everything in them. They must exist, and their paths must be absolute
    /// and lead through no links: where a link leads may have changed since somebody looked.
    pub writable: Vec<PathBuf>,
    /// Places within these that may not be changed, as far as they exist now and as far as the mechanism can
    /// ([`Confined::protected`]).
    pub protected: Vec<PathBuf>,
    /// Whether the network may be used.
    pub network: bool,
    /// Where the private temporary directory is made, unless it is in memory.
    pub temp: PathBuf,
}

impl Sandbox {
    /// Nothing may be changed, and there is no network.
    pub fn new(support: Support) -> Self {
        Self {
            support,
            writable: Vec::new(),
            protected: Vec::new(),
            network: false,
            temp: PathBuf::from("/tmp"),
        }
    }

    /// The best that this machine can enforce: bubblewrap if it is installed and works, or else Landlock. Starts
    /// a process, so it is worth keeping.
    pub async fn support() -> Support {
        let launcher = Support::bubblewrap().await;
        if launcher.confined().files {
            return launcher;
        }
        let kernel = Support::landlock();
        if kernel.confined().files {
            return kernel;
        }
        Support { mechanism: Mechanism::None { why: format!("{launcher}, {kernel}") } }
    }
}

/// What this machine can enforce, found out by trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Support {
    mechanism: Mechanism,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mechanism {
    Bubblewrap { program: PathBuf },
    Landlock { version: i32 },
    None { why: String },
}

/// What holds for whatever runs in a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Confined {
    /// Nothing outside the writable places is created, changed or removed. Landlock does not see changes of mode,
    /// owner and times, as far as the user may make them.
    pub files: bool,
    /// Without [`Sandbox::network`] nothing leaves this machine.
    pub network: bool,
    /// The protected places that exist are not changed either. Landlock cannot do that.
    pub protected: bool,
    /// The guardian can be neither stopped nor killed by what it guards.
    pub guardian: bool,
}

impl Support {
    /// Bubblewrap, from the places where systems install it, if it works here.
    pub async fn bubblewrap() -> Self {
        match bubblewrap::PLACES.iter().map(Path::new).find(|path| path.is_file()) {
            Some(path) => Self::bubblewrap_at(path).await,
            None => Self::none("bubblewrap is not installed"),
        }
    }

    /// The bubblewrap at this path, if it works here: it may not, for want of user namespaces.
    pub async fn bubblewrap_at(program: impl Into<PathBuf>) -> Self {
        let support = Self { mechanism: Mechanism::Bubblewrap { program: program.into() } };
        match probe(&support).await {
            Ok(()) => support,
            Err(why) => Self::none(format!("bubblewrap does not work here ({why})")),
        }
    }

    /// Landlock, with a filter of system calls for what it does not cover, if this kernel has both.
    pub fn landlock() -> Self {
        match sys::landlock_version() {
            Some(version) if version < landlock::OLDEST => Self::none(format!(
                "this kernel's Landlock has version {version} and needs {}",
                landlock::OLDEST
            )),
            Some(_) if !filter::KNOWN || !sys::filters_available() => {
                Self::none("this kernel has no seccomp filters to go with Landlock")
            }
            Some(version) => Self { mechanism: Mechanism::Landlock { version } },
            None => Self::none("this kernel has no Landlock"),
        }
    }

    fn none(why: impl Into<String>) -> Self {
        Self { mechanism: Mechanism::None { why: why.into() } }
    }

    /// What holds in a sandbox of this kind; nothing does if there is none.
    pub fn confined(&self) -> Confined {
        match self.mechanism {
            Mechanism::Bubblewrap { .. } => {
                Confined { files: true, network: true, protected: true, guardian: true }
            }
            Mechanism::Landlock { version } => Confined {
                files: true,
                network: true,
                protected: false,
                guardian: version >= landlock::SIGNALS_SINCE,
            },
            Mechanism::None { .. } => Confined::default(),
        }
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mechanism {
            Mechanism::Bubblewrap { program } => write!(f, "bubblewrap ({})", program.display()),
            Mechanism::Landlock { version } => write!(f, "Landlock (version {version}) and seccomp"),
            Mechanism::None { why } => f.write_str(why),
        }
    }
}

/// Runs a program in the sandbox.
async fn probe(support: &Support) -> Result<(), String> {
    let mut spec = Spec::new("sh");
    spec.args = vec!["-c".into(), format!("exit {PROBE_STATUS}").into()];
    spec.cwd = Some(PathBuf::from("/"));
    spec.sandbox = Some(Sandbox::new(support.clone()));
    let child = crate::spawn(spec).await.map_err(|error| error.to_string())?;
    match tokio::time::timeout(PROBE_PATIENCE, child.wait()).await {
        Ok(exit) if exit.class == ExitClass::Failed && exit.code == Some(PROBE_STATUS) => Ok(()),
        Ok(exit) => match child.stderr().tail(1) {
            words if words.is_empty() => Err(exit.to_string()),
            words => Err(words),
        },
        Err(_elapsed) => Err("it takes too long".into()),
    }
}

/// A sandbox that is ready for a fork.
#[derive(Debug)]
pub(crate) enum Cage {
    /// The worker confines itself before its exec.
    Landlock { ruleset: OwnedFd, filter: Vec<Instruction>, scratch: Scratch },
    /// The worker executes a launcher, which reads these.
    Launcher { options: OwnedFd, filter: OwnedFd },
}

impl Sandbox {
    /// Makes the sandbox, and changes what is started so that it starts in there.
    pub(crate) fn prepare(&self, start: &mut Start) -> Result<Cage, SpawnError> {
        let writable = outermost(&self.writable)?;
        match self.mechanism() {
            Mechanism::Landlock { version } => {
                let scratch = Scratch::new(&self.temp)
                    .map_err(|source| SpawnError::SandboxPlace { path: self.temp.clone(), source })?;
                let places = writable.iter().map(PathBuf::as_path).chain([scratch.path()]);
                let ruleset = landlock::ruleset(*version, places, self.network)?;
                let ruleset = above_stdio(ruleset).map_err(setup("keep the Landlock ruleset"))?;
                let families = if self.network { Families::Network } else { Families::None };
                set_temp(start, scratch.path());
                Ok(Cage::Landlock { ruleset, filter: filter::program(families), scratch })
            }
            Mechanism::Bubblewrap { program } => self.launch_in(program, &writable, start),
            Mechanism::None { why } => Err(SpawnError::NoSandbox { why: why.clone() }),
        }
    }

    fn mechanism(&self) -> &Mechanism {
        &self.support.mechanism
    }

    fn launch_in(
        &self,
        launcher: &Path,
        writable: &[PathBuf],
        start: &mut Start,
    ) -> Result<Cage, SpawnError> {
        set_temp(start, Path::new("/tmp"));
        let cwd = match &start.cwd {
            Some(cwd) => cwd.canonicalize(),
            None => std::env::current_dir(),
        };
        let cwd = cwd.map_err(setup("find the working directory"))?;
        let protected: Vec<PathBuf> = self
            .protected
            .iter()
            .filter_map(|path| path.canonicalize().ok())
            .filter(|path| writable.iter().any(|root| path.starts_with(root) && path != root))
            .collect();
        let private: Vec<&str> =
            bubblewrap::PRIVATE.into_iter().filter(|path| Path::new(path).is_dir()).collect();
        let families = if self.network { Families::Network } else { Families::OwnNetwork };
        let filter = descriptor(&filter::bytes(&filter::program(families)))?;
        let view = bubblewrap::View {
            writable,
            protected: &protected,
            private: &private,
            network: self.network,
            cwd: &cwd,
            env: &start.env,
            root: getuid().is_root(),
            filter: filter.as_raw_fd(),
        };
        let program = start.program.canonicalize().unwrap_or_else(|_| start.program.clone());
        for path in [&program, &cwd] {
            if !view.shows(path) {
                return Err(SpawnError::SandboxPlace {
                    path: path.clone(),
                    source: io::Error::other("it is in a directory that the sandbox replaces by its own"),
                });
            }
        }
        let options = descriptor(&bubblewrap::encode(&view.options()))?;
        let mut argv = vec![OsString::from("bwrap"), "--args".into()];
        argv.extend([options.as_raw_fd().to_string().into(), "--".into(), start.program.clone().into()]);
        argv.extend(start.argv.drain(..).skip(1));
        // Nothing of the environment acts on the launcher itself: a preloaded library would run outside.
        *start = Start {
            program: launcher.to_owned(),
            argv,
            env: crate::Environment::empty(),
            cwd: start.cwd.take(),
        };
        Ok(Cage::Launcher { options, filter })
    }
}

/// The writable places that are not in another one. In there a worker may have put a link in the place of a
/// directory, so that no path is to be followed.
fn outermost(places: &[PathBuf]) -> Result<Vec<PathBuf>, SpawnError> {
    let mut kept: Vec<PathBuf> = Vec::new();
    let mut sorted: Vec<&PathBuf> = places.iter().collect();
    sorted.sort();
    for path in sorted {
        if kept.iter().any(|outer| path.starts_with(outer)) {
            continue;
        }
        let unusable = |source| SpawnError::SandboxPlace { path: path.clone(), source };
        // Compared as text: components would hide a dot.
        if path.canonicalize().map_err(unusable)?.as_os_str() != path.as_os_str() {
            return Err(unusable(io::Error::other(
                "its path leads through a link, or is not absolute and plain",
            )));
        }
        kept.push(path.clone());
    }
    Ok(kept)
}

/// Programs look at several variables; those besides the first matter only where they are in use.
fn set_temp(start: &mut Start, path: &Path) {
    start.env.set("TMPDIR", path);
    for name in ["TMP", "TEMP", "TEMPDIR"] {
        if start.env.get(name).is_some() {
            start.env.set(name, path);
        }
    }
}

/// A file in memory, to be read from its start.
fn descriptor(contents: &[u8]) -> Result<OwnedFd, SpawnError> {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_writable_place_is_reached_through_another() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let [a, b] = ["a", "b"].map(|name| top.join(name));
        std::fs::create_dir_all(&a).unwrap();
        std::fs::create_dir_all(&b).unwrap();
        symlink("/", a.join("link")).unwrap();
        symlink(&b, top.join("link")).unwrap();
        let inner = a.join("link");
        assert_eq!(outermost(&[b.clone(), inner, a.clone(), a.clone()]).unwrap(), [a.clone(), b.clone()]);
        let beside = top.join("a-b");
        std::fs::create_dir(&beside).unwrap();
        assert_eq!(outermost(&[a.clone(), beside.clone()]).unwrap(), [a.clone(), beside]);
        let refused = ["link", "missing", "a/../b", "b/.", "b/"].map(|name| top.join(name));
        for path in refused.into_iter().chain([PathBuf::from("src")]) {
            let error = outermost(std::slice::from_ref(&path)).unwrap_err();
            assert!(
                matches!(&error, SpawnError::SandboxPlace { path: named, .. } if *named == path),
                "{error:?}"
            );
        }
    }
}
