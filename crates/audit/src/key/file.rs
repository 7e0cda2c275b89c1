//! Keys in files. Only the owner can read a private key; the public key is in a file beside it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{KeyError, PublicKey, SigningKey};
use crate::secret::Secret;

const MAX_KEY_FILE_BYTES: u64 = 16 << 10;

/// The reason why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("other users can read the key file: its mode is {mode:o}, expected 600")]
    Exposed { mode: u32 },
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Writes a new key to `path`, and its public key beside it. Returns the path of the public key. Neither file
/// may exist.
pub fn write_new(path: &Path, key: &SigningKey) -> Result<PathBuf, KeyFileError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".pub");
    let beside = PathBuf::from(beside);
    let public = create(&beside, 0o644)?;
    let private = create(path, 0o600).inspect_err(|_| remove_quietly(&beside))?;
    if let Err(error) = write_synced(private, key.to_pem().expose())
        .and_then(|()| write_synced(public, &format!("{}\n", key.public())))
    {
        remove_quietly(path);
        remove_quietly(&beside);
        return Err(error.into());
    }
    Ok(beside)
}

/// Reads a private key. Fails if other users can read the file.
pub fn read_signing(path: &Path) -> Result<SigningKey, KeyFileError> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Exposed { mode });
    }
    Ok(SigningKey::from_pem(&Secret::new(read_text(file)?))?)
}

/// Reads a public key.
pub fn read_public(path: &Path) -> Result<PublicKey, KeyFileError> {
    Ok(read_text(File::open(path)?)?.parse()?)
}

fn read_text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MAX_KEY_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Removes a key file that could not be completed.
fn remove_quietly(path: &Path) {
    let _ = std::fs::remove_file(path);
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

fn write_synced(mut file: File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_files_are_readable_by_their_owner_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        let key = SigningKey::generate().expect("a key");
        let beside = write_new(&path, &key).expect("written");
        assert_eq!(beside, directory.path().join("key.pub"));
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        assert_eq!(read_signing(&path).expect("a key").public(), key.public());
        assert_eq!(read_public(&beside).expect("a key"), key.public());

        assert!(matches!(write_new(&path, &key), Err(KeyFileError::Io(_))));
        assert_eq!(read_public(&beside).expect("still there"), key.public());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("ours");
        assert!(matches!(read_signing(&path), Err(KeyFileError::Exposed { mode: 0o640 })));
        assert!(matches!(read_signing(&beside), Err(KeyFileError::Exposed { .. })));
        assert!(matches!(read_public(&path), Err(KeyFileError::Key(KeyError::Public))));
    }
}
