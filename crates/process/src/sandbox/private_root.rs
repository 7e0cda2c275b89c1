//! A private root: the file system of a worker that sees only parts of the machine.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use super::protected_paths::{self, PathEnd};
use super::secrets::Hidden;
use crate::SpawnError;

/// A directory or file of this machine, and its path inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path outside of the sandbox. The path must exist, be absolute and contain no links.
    pub source: PathBuf,
    /// Path inside the sandbox. The path must not collide with the system's own paths.
    pub at: PathBuf,
    pub writable: bool,
}

impl Mount {
    /// Creates a mount whose path inside equals its path outside.
    pub fn here(path: impl Into<PathBuf>, writable: bool) -> Self {
        let path = path.into();
        Self { source: path.clone(), at: path, writable }
    }
}

/// Directories with programs, libraries and certificates. They contain no homes, temporary files or service
/// data.
const SYSTEM_DIRECTORIES: [&str; 15] = [
    "/bin",
    "/etc",
    "/gnu",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/opt",
    "/run/current-system",
    "/run/opengl-driver",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib/ca-certificates",
];

/// Directories that every private root provides itself. No mount may be at or in them.
const OWN_DIRECTORIES: [&str; 4] = ["/dev", "/proc", "/sys", "/tmp"];

pub(super) const PRIVATE_HOME: &str = "/tmp/home";

/// An entry of the system directories on disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SystemEntry {
    Same(PathBuf),
    Link { at: PathBuf, to: PathBuf },
}

pub(crate) fn system() -> Vec<SystemEntry> {
    let found = SYSTEM_DIRECTORIES.iter().map(PathBuf::from).filter_map(|path| {
        let metadata = path.symlink_metadata().ok()?;
        Some(match metadata.is_symlink() {
            true => SystemEntry::Link { to: fs::read_link(&path).ok()?, at: path },
            false => SystemEntry::Same(path),
        })
    });
    found.collect()
}

/// Returns the mounts in the order in which they must be made, with read-only mounts for the protected paths.
pub(crate) fn pieces(mounts: &[Mount], protected: &[PathBuf]) -> Result<Vec<Mount>, SpawnError> {
    let mut pieces: Vec<Mount> = Vec::new();
    for mount in mounts {
        check_mount(mount)?;
        match pieces.iter_mut().find(|piece| piece.at == mount.at) {
            Some(piece) if piece.source == mount.source => piece.writable &= mount.writable,
            Some(_) => return Err(unusable(&mount.at, "two mounts have this path")),
            None => pieces.push(mount.clone()),
        }
    }
    for mount in pieces.clone().iter().filter(|mount| mount.writable) {
        let source = std::slice::from_ref(&mount.source);
        let mut sealed = protected_paths::protected(protected, source)?;
        sealed.extend(protected_paths::links(protected, source));
        sealed.extend(protected_paths::parents_of_missing(protected, source)?);
        sealed.sort();
        sealed.dedup();
        let pinned: Vec<PathBuf> =
            protected_paths::pinned(&sealed, source).into_iter().map(Path::to_owned).collect();
        let inner = pinned
            .into_iter()
            .map(|path| (path, true))
            .chain(sealed.iter().cloned().map(|path| (path, false)));
        for (path, writable) in inner {
            let Ok(rest) = path.strip_prefix(&mount.source) else { continue };
            let at = mount.at.join(rest);
            match pieces.iter_mut().find(|piece| piece.at == at) {
                Some(piece) => piece.writable &= writable,
                None => pieces.push(Mount { source: path, at, writable }),
            }
        }
    }
    // Outer mounts come before inner ones, because a later mount covers an earlier one.
    pieces.sort_by(|a, b| a.at.cmp(&b.at));
    for (index, piece) in pieces.iter().enumerate() {
        // A mount inside another mount needs a mount point there.
        let outer = pieces[..index].iter().rfind(|outer| piece.at.starts_with(&outer.at));
        let host = match outer {
            Some(outer) => piece.at.strip_prefix(&outer.at).ok().map(|rest| outer.source.join(rest)),
            None => is_system(&piece.at).then(|| piece.at.clone()),
        };
        if let Some(host) = host.filter(|host| *host != piece.source)
            && !host
                .symlink_metadata()
                .is_ok_and(|found| found.is_dir() == piece.source.is_dir() && !found.is_symlink())
        {
            return Err(match outer {
                Some(outer) if piece.at == piece.source => unusable(
                    &outer.at,
                    format!("the sandbox also shows {}, which is below it", piece.at.display()),
                ),
                _ => unusable(&piece.at, "the mount point does not exist"),
            });
        }
    }
    Ok(pieces)
}

/// Returns the paths inside at which `pieces` show a path that must be `hidden`. Removes mounts that are
/// inside hidden paths.
pub(crate) fn hide(pieces: &mut Vec<Mount>, hidden: &[PathBuf]) -> Vec<Hidden> {
    let mut found: Vec<Hidden> = Vec::new();
    let ends = hidden.iter().filter_map(|path| match protected_paths::follow(path).end {
        PathEnd::At(end) => Some(end),
        // The path cannot be followed, so the whole directory is hidden.
        PathEnd::Unknown(directory) => Some(directory),
        PathEnd::Missing(_) => None,
    });
    for path in ends {
        found.extend(pieces.iter().filter_map(|piece| {
            let is_directory = piece.source.is_dir();
            match path.strip_prefix(&piece.source) {
                Ok(rest) if rest != Path::new("") => {
                    Some(Hidden { path: piece.at.join(rest), is_directory: path.is_dir() })
                }
                _ if piece.source.starts_with(&path) => Some(Hidden { path: piece.at.clone(), is_directory }),
                _ => None,
            }
        }));
    }
    let is_within = |path: &Path, outer: &Hidden| path != outer.path && path.starts_with(&outer.path);
    let all = found.clone();
    found.retain(|one| !all.iter().any(|outer| is_within(&one.path, outer)));
    found.sort();
    found.dedup();
    pieces.retain(|piece| !found.iter().any(|outer| is_within(&piece.at, outer)));
    found
}

fn check_mount(mount: &Mount) -> Result<(), SpawnError> {
    protected_paths::outermost(std::slice::from_ref(&mount.source))?;
    let mut components = mount.at.components();
    let is_plain = components.next() == Some(Component::RootDir)
        && components.all(|component| matches!(component, Component::Normal(_)));
    if !is_plain || mount.at == Path::new("/") {
        return Err(unusable(&mount.at, "the mount point is not an absolute, plain path"));
    }
    let covers = SYSTEM_DIRECTORIES
        .iter()
        .chain(&OWN_DIRECTORIES)
        .any(|place| Path::new(place).starts_with(&mount.at));
    let is_within =
        OWN_DIRECTORIES.iter().any(|own| mount.at.starts_with(own)) && !mount.at.starts_with("/tmp");
    if covers || is_within {
        return Err(unusable(&mount.at, "the mount point belongs to the system"));
    }
    Ok(())
}

fn is_system(path: &Path) -> bool {
    SYSTEM_DIRECTORIES.iter().any(|place| path.starts_with(place))
}

/// Returns `true` if `pieces` show a path of this machine at the same path inside.
pub(crate) fn shows(pieces: &[Mount], path: &Path) -> bool {
    let innermost = pieces.iter().rfind(|piece| path.starts_with(&piece.at));
    match innermost {
        Some(piece) => piece.source == piece.at,
        None => is_system(path),
    }
}

fn unusable(path: &Path, why: impl Into<String>) -> SpawnError {
    SpawnError::SandboxPlace { path: path.to_owned(), source: io::Error::other(why.into()) }
}

/// Harmless devices that programs expect.
const SHOWN_DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// The directory on disk that becomes a worker's root, with a mount point for every mount.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
    /// Writable directories for temporary files, in addition to the mounts.
    pub(crate) temporary: [PathBuf; 2],
    /// The mounts, outer ones first. Their targets are on disk, below the root.
    pub(crate) mounts: Vec<Mount>,
}

impl Layout {
    /// Creates the root in `scratch`, an otherwise unused directory. `hidden` paths are empty in the root.
    pub(crate) fn new(scratch: &Path, pieces: &[Mount], hidden: &[Hidden]) -> io::Result<Self> {
        let [root, temp, shm, empty] = ["root", "tmp", "shm", "empty"].map(|name| scratch.join(name));
        let blank = scratch.join("blank");
        for path in [&root, &temp, &shm, &empty, &root.join("dev/shm"), &root.join("proc"), &root.join("tmp")]
        {
            fs::create_dir_all(path)?;
        }
        fs::write(&blank, "")?;
        fs::create_dir(temp.join("home"))?;
        let inside = |at: &Path| root.join(at.strip_prefix("/").unwrap_or(at));
        let mut mounts = Vec::new();
        for place in system() {
            match place {
                SystemEntry::Same(path) => {
                    fs::create_dir_all(inside(&path))?;
                    mounts.push(Mount { at: inside(&path), source: path, writable: false });
                }
                SystemEntry::Link { at, to } => {
                    fs::create_dir_all(inside(&at).parent().unwrap_or(&root))?;
                    symlink(to, inside(&at))?;
                }
            }
        }
        for (name, to) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            symlink(format!("/proc/self/fd{to}"), root.join("dev").join(name))?;
        }
        for name in SHOWN_DEVICES {
            let (source, at) = (Path::new("/dev").join(name), root.join("dev").join(name));
            if source.exists() {
                fs::write(&at, "")?;
                // Devices are mounted read-only. That still allows writing to the device, but not changing
                // the mode and owner of its file.
                mounts.push(Mount { source, at, writable: false });
            }
        }
        mounts.push(Mount { source: shm.clone(), at: root.join("dev/shm"), writable: true });
        mounts.push(Mount { source: temp.clone(), at: root.join("tmp"), writable: true });
        for (index, piece) in pieces.iter().enumerate() {
            let within =
                pieces[..index].iter().any(|outer| piece.at.starts_with(&outer.at)) || is_system(&piece.at);
            if !within {
                // A mount point below /tmp is created in the private temporary directory.
                let place = match piece.at.strip_prefix("/tmp") {
                    Ok(rest) => temp.join(rest),
                    Err(_) => inside(&piece.at),
                };
                prepare(&place, piece.source.is_dir())?;
            }
            mounts.push(Mount { at: inside(&piece.at), ..piece.clone() });
        }
        for Hidden { path, is_directory } in hidden {
            let source = if *is_directory { empty.clone() } else { blank.clone() };
            mounts.push(Mount { source, at: inside(path), writable: false });
        }
        // The later of two mounts at one path is the visible one, so hidden paths come last.
        mounts.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(Self { root, temporary: [temp, shm], mounts })
    }
}

fn prepare(place: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory {
        return fs::create_dir_all(place);
    }
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(place, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(source: &Path, at: &str, writable: bool) -> Mount {
        Mount { source: source.to_owned(), at: at.into(), writable }
    }

    /// Describes the mounts of a workspace in which `lib/keep` is protected.
    fn describe_pieces(mounts: &dyn Fn(&Path) -> Vec<Mount>) -> String {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("lib/keep")).unwrap();
        fs::create_dir_all(top.join("docs")).unwrap();
        match pieces(&mounts(&top), &[top.join("lib/keep"), top.join("lib/keep/none")]) {
            Ok(pieces) => {
                let name = |path: &Path| path.display().to_string().replace(&*top.to_string_lossy(), "WS");
                let line = |Mount { source, at, writable }: &Mount| {
                    format!("{} {} {}", name(source), name(at), if *writable { "rw" } else { "ro" })
                };
                pieces.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            Err(error) => {
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
            }
        }
    }

    #[test]
    fn inner_mounts_come_later_and_protected_paths_stay_protected() {
        let both = |top: &Path| {
            vec![
                mount(top, "/work", true),
                Mount::here(top, true),
                mount(&top.join("docs"), "/work/docs", false),
            ]
        };
        assert_eq!(
            describe_pieces(&both),
            "WS WS rw\nWS/lib WS/lib rw\nWS/lib/keep WS/lib/keep ro\nWS /work rw\nWS/docs /work/docs ro\nWS/lib /work/lib rw\n\
             WS/lib/keep /work/lib/keep ro"
        );
        let read_only = |top: &Path| vec![mount(top, "/work", false), mount(top, "/work", true)];
        assert_eq!(describe_pieces(&read_only), "WS /work ro", "the stricter of two mounts counts");
    }

    #[test]
    fn nothing_can_be_created_at_a_protected_path() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("etc/keys")).unwrap();
        symlink("etc/none", top.join("dangling")).unwrap();
        let check = |protected: &str, source: &Path, writable: bool, expected: Option<&str>| {
            let found = pieces(&[mount(source, "/work", writable)], &[top.join(protected)]);
            let kept = found.ok().map(|pieces| {
                let kept = pieces.iter().filter(|piece| !piece.writable);
                kept.map(|piece| piece.at.display().to_string()).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(kept.as_deref(), expected, "{protected}");
        };
        check("etc/keys/none", &top, true, Some("/work/etc/keys"));
        check("etc/keys/none/deep", &top, true, Some("/work/etc/keys"));
        check("etc/none", &top, true, Some("/work/etc"));
        check("dangling", &top, true, Some("/work/dangling /work/etc"));
        // All of a mount would become read-only.
        check("none", &top, true, None);
        check("none/deep", &top, true, None);
        check("etc/keys/none", &top.join("etc/keys"), true, None);
        check("etc/none", &top.join("etc/keys"), true, Some(""));
        check("none", &top, false, Some("/work"));
    }

    #[test]
    fn invalid_mount_points_are_refused() {
        let system = "the mount point belongs to the system";
        for (at, expected) in [
            ("/", "the mount point is not an absolute, plain path"),
            ("work", "the mount point is not an absolute, plain path"),
            ("/work/../etc", "the mount point is not an absolute, plain path"),
            ("/usr", system),
            ("/var", system),
            ("/tmp", system),
            ("/proc/self", system),
            ("/dev/shm", system),
            ("/sys/fs", system),
            ("/usr/no/such/directory", "the mount point does not exist"),
        ] {
            assert_eq!(describe_pieces(&|top| vec![mount(top, at, true)]), expected, "{at}");
        }
        let nowhere =
            |top: &Path| vec![mount(top, "/work", true), mount(&top.join("docs"), "/work/new", false)];
        assert_eq!(describe_pieces(&nowhere), "the mount point does not exist");
        let twice = |top: &Path| vec![mount(top, "/work", true), mount(&top.join("docs"), "/work", false)];
        assert_eq!(describe_pieces(&twice), "two mounts have this path");
        let covered = |top: &Path| {
            vec![Mount::here(top.join("docs"), true), mount(&top.join("lib"), top.to_str().unwrap(), true)]
        };
        let why = describe_pieces(&covered);
        assert!(
            why.starts_with("the sandbox also shows ") && why.ends_with("/docs, which is below it"),
            "{why}"
        );
        assert_eq!(
            describe_pieces(&|top| vec![mount(&top.join("none"), "/work", true)]),
            "No such file or directory (os error 2)"
        );
    }

    #[test]
    fn visible_paths_are_known_before_the_start() {
        let pieces = [Mount::here("/home/me/ws", true), mount(Path::new("/home/me/ws"), "/work", true)];
        for (path, expected) in [
            ("/usr/bin/env", true),
            ("/home/me/ws/tool", true),
            ("/home/me/tool", false),
            ("/work/tool", false),
            ("/tmp/tool", false),
            ("/var/tool", false),
        ] {
            assert_eq!(shows(&pieces, Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_layout_has_a_mount_point_for_every_mount() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let [scratch, source] = ["scratch", "source"].map(|name| top.join(name));
        fs::create_dir_all(&scratch).unwrap();
        fs::create_dir_all(&source).unwrap();
        fs::write(top.join("file"), "x").unwrap();
        let pieces = [
            mount(&source, "/a/b", true),
            mount(&top.join("file"), "/c/file", false),
            mount(&source, "/tmp/x/y", false),
        ];
        let hidden = [Hidden { path: "/etc/shadow".into(), is_directory: false }];
        let layout = Layout::new(&scratch, &pieces, &hidden).unwrap();
        assert!(layout.root.join("a/b").is_dir() && layout.root.join("c/file").is_file());
        assert!(layout.temporary[0].join("x/y").is_dir() && layout.temporary[0].join("home").is_dir());
        let at =
            |path: &str| layout.mounts.iter().position(|mount| mount.at == layout.root.join(path)).unwrap();
        assert!(at("tmp") < at("tmp/x/y") && at("etc") < at("etc/shadow"));
        assert_eq!(fs::read(&layout.mounts[at("etc/shadow")].source).unwrap(), b"");
        assert!(!layout.mounts[at("usr")].writable && layout.mounts[at("a/b")].writable);
    }
}
