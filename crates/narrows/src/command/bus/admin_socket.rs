//! The default admin socket, in a directory of the user.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use narrows_bus::admin::AdminServer;
use narrows_bus::config::{self, ListenAddr};

use crate::failure::Failure;
use crate::terminal::line;

const DEFAULT_NAME: &str = "admin.sock";

/// Opens the admin sockets. A failure to open the default socket is only a warning.
pub(super) fn open(settings: &config::AdminConfig, directory: Option<&Path>) -> Result<AdminServer, Failure> {
    if settings.socket.is_some() {
        return AdminServer::bind(settings).map_err(|error| Failure::listener(&error));
    }
    let Some(directory) = directory else {
        tracing::warn!("no admin socket: neither XDG_RUNTIME_DIR nor HOME is set");
        return AdminServer::bind(settings).map_err(|error| Failure::listener(&error));
    };
    let usual = config::AdminConfig { socket: Some(free_path(directory)), ..settings.clone() };
    AdminServer::bind(&usual).or_else(|error| {
        let without = AdminServer::bind(settings).map_err(|error| Failure::listener(&error))?;
        tracing::warn!("no admin socket: {}", line(&error.to_string()));
        Ok(without)
    })
}

pub(super) fn describe(settings: &config::AdminConfig) -> String {
    let socket =
        settings.socket.as_ref().map_or("the default socket".to_owned(), |path| path.display().to_string());
    settings.port.iter().fold(socket, |named, port| format!("{named} and {port}"))
}

/// Returns the address in the form for clients: a TCP port as an `http://` URL.
pub(super) fn client_url(address: &ListenAddr) -> String {
    match address {
        ListenAddr::Tcp(address) => format!("http://{address}"),
        address => address.to_string(),
    }
}

/// Returns the default path of the admin socket, or another path if a running bus of this user has the
/// default one.
fn free_path(directory: &Path) -> PathBuf {
    let usual = directory.join(DEFAULT_NAME);
    match is_live(&usual) {
        true => directory.join(format!("admin-{}.sock", std::process::id())),
        false => usual,
    }
}

fn is_live(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

pub(super) fn running(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == DEFAULT_NAME || (name.starts_with("admin-") && name.ends_with(".sock"))
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
    fn settings_are_described() {
        let mut settings = config::AdminConfig::default();
        assert_eq!(describe(&settings), "the default socket");
        settings = config::AdminConfig {
            socket: Some("/a".into()),
            port: Some("127.0.0.1:1".to_owned()),
            is_open: false,
        };
        assert_eq!(describe(&settings), "/a and 127.0.0.1:1");
    }

    #[test]
    fn running_buses_are_found_and_keep_their_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert_eq!(free_path(directory.path()), path(DEFAULT_NAME));
        assert!(running(&path("none")).unwrap().is_empty());
        drop(UnixListener::bind(path("admin-1.sock")).unwrap());
        let _stranger = UnixListener::bind(path("other.sock")).unwrap();
        assert!(
            running(directory.path()).unwrap().is_empty(),
            "one process has ended, and one file is not an admin socket"
        );
        let _usual = UnixListener::bind(path(DEFAULT_NAME)).unwrap();
        let _second = UnixListener::bind(path("admin-2.sock")).unwrap();
        assert_eq!(running(directory.path()).unwrap(), [path("admin-2.sock"), path(DEFAULT_NAME)]);
        assert_ne!(free_path(directory.path()), path(DEFAULT_NAME));
    }
}
