//! Builds the arguments of bubblewrap.
//!
//! Bubblewrap follows links in the source and the destination of a mount. A command that runs at the same
//! time can replace a directory that it may change by a link, and bubblewrap would mount the link's target.
//! So no source or destination of a mount is below a writable directory.

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Nesting;
use super::private_root::{self, Mount, PRIVATE_HOME, SystemEntry};
use super::secrets::Hidden;
use crate::{Environment, SpawnError};

/// Usual install paths of bubblewrap. The worker's `PATH` is not searched, because an agent may choose it.
pub(crate) const INSTALL_PATHS: [&str; 4] =
    ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap"];

/// Directories that are replaced by empty ones. `/run` contains sockets of services that would act outside of
/// the sandbox for a worker.
pub(crate) const PRIVATE_DIRECTORIES: [&str; 2] = ["/run", "/tmp"];
/// Parts of [`PRIVATE_DIRECTORIES`] that programs need.
const SHOWN_IN_PRIVATE: [&str; 3] = ["/run/current-system", "/run/opengl-driver", "/run/systemd/resolve"];

/// Maximum number of arguments, called `MAX_ARGS` in bubblewrap. If it is exceeded, bubblewrap exits with a
/// status that looks like the command's.
const MAX_ARGUMENTS: usize = 9000;

/// Capabilities that root keeps: those over files, because the mounts confine them.
const ROOT_CAPABILITIES: [&str; 3] = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"];

/// The input from which the arguments are built. Every path is absolute and contains no links.
pub(crate) struct BubblewrapPlan<'a> {
    /// The visible parts of the file system: system entries, hidden paths in them, and mounts. `None` shows
    /// everything.
    pub(crate) pieces: Option<(&'a [SystemEntry], &'a [Hidden], &'a [Mount])>,
    pub(crate) writable: &'a [PathBuf],
    /// Entries of [`PRIVATE_DIRECTORIES`] that exist on this machine.
    pub(crate) private: &'a [&'a str],
    pub(crate) network: bool,
    pub(crate) cwd: &'a Path,
    pub(crate) env: &'a Environment,
    pub(crate) root: bool,
    pub(crate) nesting: Nesting,
    pub(crate) filter: RawFd,
}

impl BubblewrapPlan<'_> {
    /// Returns `true` if a file is visible at `path` inside the sandbox.
    pub(crate) fn shows(&self, path: &Path) -> bool {
        if let Some((_, _, pieces)) = self.pieces {
            return private_root::shows(pieces, path);
        }
        let hidden = self.private.iter().any(|place| path.starts_with(place));
        let shown = SHOWN_IN_PRIVATE.iter().map(Path::new).chain(self.writable.iter().map(PathBuf::as_path));
        !hidden || shown.into_iter().any(|place| path.starts_with(place))
    }

    /// Returns the options. They are passed by a descriptor, because every process could read the environment
    /// in a command line.
    pub(crate) fn options(&self) -> Vec<OsString> {
        let mut options = Options(Vec::new());
        match self.pieces {
            Some((system, hidden, pieces)) => options.show(system, hidden, pieces),
            None => self.show_all(&mut options),
        }
        options.push(["--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"]);
        if self.nesting == Nesting::Disabled {
            options.push(["--unshare-user", "--disable-userns"]);
        }
        if !self.network {
            options.push(["--unshare-net"]);
        }
        options.push(["--cap-drop", "ALL"]);
        if self.root {
            // If /proc were writable, root could change kernel settings such as `kernel.core_pattern`.
            options.push(["--remount-ro", "/proc"]);
            for capability in ROOT_CAPABILITIES {
                options.push(["--cap-add", capability]);
            }
        }
        options.push(["--seccomp", &self.filter.to_string()]);
        options.0.extend(["--chdir".into(), self.cwd.into()]);
        for (name, value) in self.env.iter() {
            options.0.extend(["--setenv".into(), name.into(), value.into()]);
        }
        options.0
    }

    fn show_all(&self, options: &mut Options) {
        let everything = Path::new("/");
        let (outermost, roots): (Vec<&PathBuf>, Vec<&PathBuf>) =
            self.writable.iter().partition(|path| *path == everything);
        options.mount(if outermost.is_empty() { "--ro-bind" } else { "--bind" }, everything);
        options.push(["--dev", "/dev", "--proc", "/proc"]);
        for place in self.private {
            options.push(["--tmpfs", *place]);
        }
        for place in
            SHOWN_IN_PRIVATE.iter().filter(|place| self.private.iter().any(|other| place.starts_with(other)))
        {
            options.mount("--ro-bind-try", Path::new(place));
        }
        for root in outer_first(roots) {
            options.mount("--bind", root);
        }
    }
}

/// Rejects mounts that a command could redirect by a link.
pub(crate) fn check_pieces(pieces: &[Mount], hidden: &[Hidden]) -> Result<(), SpawnError> {
    let is_changeable = |path: &Path| {
        pieces.iter().any(|piece| piece.writable && path != piece.source && path.starts_with(&piece.source))
    };
    let sources = pieces.iter().map(|piece| (&piece.at, piece.source.clone()));
    let places = pieces.iter().map(|piece| &piece.at).chain(hidden.iter().map(|hidden| &hidden.path));
    let on_disk = places.map(|at| (at, path_on_disk(pieces, at)));
    match sources.chain(on_disk).find(|(_, path)| is_changeable(path)) {
        Some((at, _)) => Err(SpawnError::SandboxPlace {
            path: at.clone(),
            source: io::Error::other(
                "bubblewrap follows links, so it cannot protect, hide or mount anything in a writable directory",
            ),
        }),
        None => Ok(()),
    }
}

/// Returns the path outside of the sandbox that a mount at `at` covers.
fn path_on_disk(pieces: &[Mount], at: &Path) -> PathBuf {
    // Outer mounts come first, so the last match is the innermost one.
    let outer = pieces.iter().rfind(|piece| at != piece.at && at.starts_with(&piece.at));
    let inside = outer.and_then(|outer| Some(outer.source.join(at.strip_prefix(&outer.at).ok()?)));
    inside.unwrap_or_else(|| at.to_owned())
}

/// Sorts outer directories before inner ones, because a later mount covers an earlier one.
fn outer_first(mut paths: Vec<&PathBuf>) -> Vec<&PathBuf> {
    paths.sort();
    paths.dedup();
    paths
}

struct Options(Vec<OsString>);

impl Options {
    fn push<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.map(OsString::from));
    }

    fn show(&mut self, system: &[SystemEntry], hidden: &[Hidden], pieces: &[Mount]) {
        for place in system {
            match place {
                SystemEntry::Same(path) => self.mount("--ro-bind", path),
                SystemEntry::Link { at, to } => self.0.extend(["--symlink".into(), to.into(), at.into()]),
            }
        }
        let is_within = |hidden: &&Hidden| pieces.iter().any(|piece| hidden.path.starts_with(&piece.at));
        let (within, outside): (Vec<&Hidden>, Vec<&Hidden>) = hidden.iter().partition(is_within);
        self.hide(&outside);
        self.push(["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--dir", PRIVATE_HOME]);
        for Mount { source, at, writable } in pieces {
            let how = if *writable { "--bind" } else { "--ro-bind" };
            self.0.extend([how.into(), source.into(), at.into()]);
        }
        self.hide(&within);
        // The launcher has created the rest of the root directory for mounting, so it is made read-only now.
        self.push(["--remount-ro", "/"]);
    }

    fn hide(&mut self, hidden: &[&Hidden]) {
        for Hidden { path, is_directory } in hidden {
            match is_directory {
                true => self.0.extend(["--tmpfs".into(), path.into(), "--remount-ro".into(), path.into()]),
                false => self.0.extend(["--ro-bind".into(), "/dev/null".into(), path.into()]),
            }
        }
    }

    fn mount(&mut self, how: &str, path: &Path) {
        self.0.extend([how.into(), path.into(), path.into()]);
    }
}

/// Fails if the number of arguments, including those of the command, is too large for bubblewrap.
pub(crate) fn check_count(arguments: usize) -> Result<(), SpawnError> {
    if arguments <= MAX_ARGUMENTS {
        return Ok(());
    }
    let why = format!("{arguments} arguments exceed the limit of {MAX_ARGUMENTS}");
    Err(SpawnError::Sandbox { action: "pass all arguments to bubblewrap", source: io::Error::other(why) })
}

/// Encodes words in the format in which bubblewrap reads them from a descriptor.
pub(crate) fn encode(options: &[OsString]) -> Vec<u8> {
    options.iter().flat_map(|word| word.as_bytes().iter().copied().chain([0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    struct Case<'a> {
        writable: &'a [&'a str],
        private: &'a [&'a str],
        network: bool,
        root: bool,
    }

    const PLAIN: Case<'_> = Case {
        writable: &["/home/me/b", "/home/me/a"],
        private: &["/run", "/tmp"],
        network: false,
        root: false,
    };

    #[track_caller]
    fn check(case: &Case<'_>, expected: &str) {
        let mut env = Environment::empty();
        env.extend([("A", "1 2"), ("LD_PRELOAD", "x")]);
        let view = BubblewrapPlan {
            pieces: None,
            writable: &paths(case.writable),
            private: case.private,
            network: case.network,
            cwd: Path::new("/home/me/a"),
            env: &env,
            root: case.root,
            nesting: Nesting::Disabled,
            filter: 9,
        };
        let options: Vec<String> =
            view.options().into_iter().map(|word| word.into_string().unwrap()).collect();
        // Each option is printed on its own line.
        let text = options.join(" ").replace(" --", "\n--");
        assert_eq!(text, expected);
    }

    const TAIL: &str = "\
--seccomp 9
--chdir /home/me/a
--setenv A 1 2
--setenv LD_PRELOAD x";

    #[test]
    fn only_roots_are_writable() {
        check(
            &PLAIN,
            &format!(
                "\
--ro-bind / /
--dev /dev
--proc /proc
--tmpfs /run
--tmpfs /tmp
--ro-bind-try /run/current-system /run/current-system
--ro-bind-try /run/opengl-driver /run/opengl-driver
--ro-bind-try /run/systemd/resolve /run/systemd/resolve
--bind /home/me/a /home/me/a
--bind /home/me/b /home/me/b
--unshare-pid
--unshare-ipc
--die-with-parent
--new-session
--unshare-user
--disable-userns
--unshare-net
--cap-drop ALL
{TAIL}"
            ),
        );
    }

    #[test]
    fn nothing_is_mounted_where_a_command_could_put_a_link() {
        let mount =
            |source: &str, at: &str, writable| Mount { source: source.into(), at: at.into(), writable };
        let plain = [mount("/w", "/w", true), mount("/w", "/x", true), mount("/r/docs", "/docs", false)];
        let hide = |path: &str| [Hidden { path: path.into(), is_directory: false }];
        check_pieces(&plain, &hide("/docs/key")).unwrap();
        check_pieces(&plain, &hide("/etc/shadow")).unwrap();
        let refused = |more: Option<Mount>, hidden: &[Hidden]| {
            let mut pieces = plain.to_vec();
            pieces.extend(more);
            pieces.sort_by(|a, b| a.at.cmp(&b.at));
            matches!(check_pieces(&pieces, hidden), Err(SpawnError::SandboxPlace { .. }))
        };
        assert!(refused(Some(mount("/w/sub", "/y", false)), &[]), "the source of the mount can be a link");
        assert!(refused(Some(mount("/r/sub", "/x/sub", false)), &[]), "the mount point can be a link");
        assert!(refused(None, &hide("/w/key")));
        assert!(refused(None, &hide("/x/key")));
        // The path leads through a read-only mount of a directory that is writable at another path.
        assert!(refused(Some(mount("/", "/all", false)), &hide("/all/w/key")));
        assert!(!refused(Some(mount("/r", "/all", false)), &hide("/all/key")));
    }

    #[test]
    fn root_keeps_file_capabilities_and_slash_may_be_writable() {
        let case = Case { writable: &["/", "/w"], private: &[], network: true, root: true };
        check(
            &case,
            &format!(
                "\
--bind / /
--dev /dev
--proc /proc
--bind /w /w
--unshare-pid
--unshare-ipc
--die-with-parent
--new-session
--unshare-user
--disable-userns
--cap-drop ALL
--remount-ro /proc
--cap-add CAP_CHOWN
--cap-add CAP_DAC_OVERRIDE
--cap-add CAP_FOWNER
{TAIL}"
            ),
        );
    }

    #[test]
    fn a_view_has_the_system_and_its_mounts() {
        let system =
            [SystemEntry::Link { at: "/bin".into(), to: "usr/bin".into() }, SystemEntry::Same("/usr".into())];
        let pieces = [
            Mount::here("/home/me/a", true),
            Mount { source: "/home/me/a".into(), at: "/work".into(), writable: true },
            Mount { source: "/home/me/a/docs".into(), at: "/work/docs".into(), writable: false },
        ];
        let hidden = [("/etc/shadow", false), ("/etc/ssl/private", true)]
            .map(|(path, is_directory)| Hidden { path: path.into(), is_directory });
        let mut options = Options(Vec::new());
        options.show(&system, &hidden, &pieces);
        let words: Vec<String> = options.0.into_iter().map(|word| word.into_string().unwrap()).collect();
        let expected = "\
--symlink usr/bin /bin
--ro-bind /usr /usr
--ro-bind /dev/null /etc/shadow
--tmpfs /etc/ssl/private
--remount-ro /etc/ssl/private
--dev /dev
--proc /proc
--tmpfs /tmp
--dir /tmp/home
--bind /home/me/a /home/me/a
--bind /home/me/a /work
--ro-bind /home/me/a/docs /work/docs
--remount-ro /";
        assert_eq!(words.join(" ").replace(" --", "\n--"), expected);
    }

    #[test]
    fn hidden_paths_are_known_before_the_start() {
        let view = BubblewrapPlan {
            pieces: None,
            writable: &paths(&["/tmp/work"]),
            private: &PRIVATE_DIRECTORIES,
            network: true,
            cwd: Path::new("/"),
            env: &Environment::empty(),
            root: false,
            nesting: Nesting::Disabled,
            filter: 9,
        };
        for (path, shown) in [
            ("/usr/bin/env", true),
            ("/tmp/work/tool", true),
            ("/tmp/worker", false),
            ("/tmp", false),
            ("/run/current-system/sw/bin/sh", true),
            ("/run/user/1000/tool", false),
            ("/running", true),
        ] {
            assert_eq!(view.shows(Path::new(path)), shown, "{path}");
        }
    }

    #[test]
    fn words_are_separated_by_zeros() {
        assert_eq!(encode(&["--a".into(), "b c".into(), "".into()]), b"--a\0b c\0\0");
        assert_eq!(encode(&[]), b"");
    }
}
