//! Where operators come in, if the settings do not say: in a directory of the user's own.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use narrows_bus::admin::Admin;
use narrows_bus::config::{self, Door};

use crate::failure::Failure;
use crate::terminal::line;

/// The usual name.
const USUAL: &str = "admin.sock";

/// Opens them. A bus whose settings name no socket can do without one.
pub(super) fn open(settings: &config::Admin, directory: Option<&Path>) -> Result<Admin, Failure> {
    if settings.socket.is_some() {
        return Admin::bind(settings).map_err(|error| Failure::door(&error));
    }
    let Some(directory) = directory else {
        tracing::warn!("there is no admin socket: neither XDG_RUNTIME_DIR nor HOME says where it could be");
        return Admin::bind(settings).map_err(|error| Failure::door(&error));
    };
    let usual = config::Admin { socket: Some(free(directory)), ..settings.clone() };
    Admin::bind(&usual).or_else(|error| {
        let without = Admin::bind(settings).map_err(|error| Failure::door(&error))?;
        tracing::warn!("there is no admin socket: {}", line(&error.to_string()));
        Ok(without)
    })
}

/// Where operators come in by these settings, in words.
pub(super) fn named(settings: &config::Admin) -> String {
    let socket =
        settings.socket.as_ref().map_or("the usual socket".to_owned(), |path| path.display().to_string());
    settings.port.iter().fold(socket, |named, port| format!("{named} and {port}"))
}

/// A door as whoever comes in has to name it: HTTP is spoken at a port.
pub(super) fn spoken(door: &Door) -> String {
    match door {
        Door::Tcp(address) => format!("http://{address}"),
        door => door.to_string(),
    }
}

/// The usual socket, or another if a bus of this user has it.
fn free(directory: &Path) -> PathBuf {
    let usual = directory.join(USUAL);
    match is_live(&usual) {
        true => directory.join(format!("admin-{}.sock", std::process::id())),
        false => usual,
    }
}

fn is_live(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// The sockets of the buses that run.
pub(super) fn live(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == USUAL || (name.starts_with("admin-") && name.ends_with(".sock"))
    };
    let mut paths: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_ours).collect();
    paths.retain(|path| is_live(path));
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn settings_have_words() {
        let mut settings = config::Admin::default();
        assert_eq!(named(&settings), "the usual socket");
        settings =
            config::Admin { socket: Some("/a".into()), port: Some("127.0.0.1:1".to_owned()), is_open: false };
        assert_eq!(named(&settings), "/a and 127.0.0.1:1");
    }

    #[test]
    fn what_runs_is_found_and_its_place_is_left_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert_eq!(free(directory.path()), path(USUAL));
        assert!(live(&path("none")).unwrap().is_empty());
        drop(UnixListener::bind(path("admin-1.sock")).unwrap());
        let _stranger = UnixListener::bind(path("other.sock")).unwrap();
        assert!(live(directory.path()).unwrap().is_empty(), "one is dead, one is no bus");
        let _usual = UnixListener::bind(path(USUAL)).unwrap();
        let _second = UnixListener::bind(path("admin-2.sock")).unwrap();
        assert_eq!(live(directory.path()).unwrap(), [path("admin-2.sock"), path(USUAL)]);
        assert_ne!(free(directory.path()), path(USUAL));
    }
}
