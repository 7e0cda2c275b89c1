//! The signing keys of a running gate.
//!
//! The files are read for each signature, and before a gate adds an approval to those that it has counted.
//! While the gate runs, keys can only be removed. A revocation applies at once. A new key, or an old one that
//! is valid again, needs a restart, which compares the files with the pins. Until then every signature is
//! refused, because the gate cannot tell who changed the files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use narrows_audit::{PublicKey, Timestamp};
use narrows_base::sync::lock;
use narrows_govern::SignatureValidity;

use super::keys::{KeyFiles, Keys};

#[derive(Debug)]
pub(super) struct LiveKeys {
    root: PathBuf,
    files: KeyFiles,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The keys of the last accepted files. `None` if there was no file at the start.
    keys: Option<Keys>,
    /// `true` if the last files were refused, which is logged once.
    is_refusing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeysError {
    #[error(
        "no signing keys, so approvals from other processes are disabled; add keys to \
         .well-known/governance-keys.json"
    )]
    NoKeys,
    #[error("no signature counts: cannot read the signing keys: {0}")]
    Unreadable(String),
    #[error(
        "no signature counts: the signing keys changed by more than a revocation since the start of the gate; \
         restart it"
    )]
    Changed,
}

impl LiveKeys {
    pub(super) fn new(root: PathBuf, files: KeyFiles) -> Self {
        let state = State { keys: files.keys.clone(), is_refusing: false };
        Self { root, files, state: Mutex::new(state) }
    }

    /// Reads the files and returns the current keys. Blocks.
    ///
    /// # Errors
    /// Fails if there were no keys at the start, or if the files are unreadable or do more than revoke keys.
    pub(super) fn current(&self) -> Result<Keys, KeysError> {
        let mut state = lock(&self.state);
        let known = state.keys.as_ref().ok_or(KeysError::NoKeys)?;
        let read = self.files.reload(&self.root).map_err(KeysError::Unreadable);
        let accepted = read.and_then(|keys| match keys.is_narrowed_from(known) {
            true => Ok(keys),
            false => Err(KeysError::Changed),
        });
        match &accepted {
            Ok(keys) => {
                let revoked = known.len().saturating_sub(keys.len());
                if revoked > 0 {
                    tracing::info!(revoked, "signing keys revoked");
                }
                state.keys = Some(keys.clone());
                state.is_refusing = false;
            }
            Err(reason) => {
                if !state.is_refusing {
                    tracing::warn!(%reason, "signatures refused");
                }
                state.is_refusing = true;
            }
        }
        accepted
    }
}

/// The key of an approval that was counted. A gate cannot undo an approval, so it checks this key again
/// before it counts the next approval.
#[derive(Debug)]
pub(super) struct CountedKey {
    pub(super) keys: Arc<LiveKeys>,
    pub(super) key: PublicKey,
    /// The time at which the approval was counted. An expiry of the key after this time has no effect.
    pub(super) counted_at: Timestamp,
}

impl SignatureValidity for CountedKey {
    fn check(&self) -> Result<(), String> {
        let keys = self.keys.current().map_err(|error| error.to_string())?;
        match keys.holder(&self.key, self.counted_at, &[]) {
            Ok(_) => Ok(()),
            Err(_) => Err("a key that approved it was revoked".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use narrows_audit::SigningKey;
    use narrows_manifest::Findings;
    use serde_json::{Value, json};

    use super::*;

    const KEYS: &str = "governance-keys.json";
    const REVOKED: &str = "governance-revoked.json";

    struct Files {
        directory: tempfile::TempDir,
        ada: PublicKey,
        bob: PublicKey,
    }

    impl Files {
        fn new() -> Self {
            let key = || SigningKey::generate().expect("a key").public();
            let files = Self { directory: tempfile::tempdir().expect("a directory"), ada: key(), bob: key() };
            files.write(KEYS, &json!({"keys": [files.entry("ada"), files.entry("bob")]}));
            files
        }

        fn entry(&self, name: &str) -> Value {
            let key = if name == "ada" { self.ada } else { self.bob };
            json!({"id": key, "subject": {"id": name, "role": "lead"}, "expiresAt": "2100-01-01T00:00:00Z"})
        }

        fn write(&self, name: &str, value: &Value) {
            std::fs::write(self.directory.path().join(name), value.to_string()).expect("a file");
        }

        fn open(&self) -> LiveKeys {
            let mut findings = Findings::default();
            let files = KeyFiles::read_at(self.directory.path(), KEYS.into(), &mut findings);
            assert!(findings.is_empty(), "{findings:?}");
            LiveKeys::new(self.directory.path().to_owned(), files)
        }
    }

    fn holders(keys: &LiveKeys) -> Result<Vec<String>, KeysError> {
        Ok(keys.current()?.holders(Timestamp::now(), &[]).into_iter().map(|who| who.id).collect())
    }

    #[test]
    fn a_revocation_applies_at_once() {
        for way in ["revokedAt", "list", "removed", "expired"] {
            let files = Files::new();
            let keys = files.open();
            assert_eq!(holders(&keys).expect("keys"), ["user:ada", "user:bob"]);
            let mut ada = files.entry("ada");
            match way {
                "revokedAt" => ada["revokedAt"] = json!("2026-11-18T00:00:00Z"),
                "expired" => ada["expiresAt"] = json!("2026-01-01T00:00:00Z"),
                "list" => files.write(REVOKED, &json!([files.ada])),
                _ => ada = files.entry("bob"),
            }
            files.write(KEYS, &json!({"keys": [ada, files.entry("bob")], "note": "x"}));
            assert_eq!(holders(&keys).expect("keys"), ["user:bob"], "{way}");
        }
    }

    #[test]
    fn any_other_change_refuses_every_signature() {
        let files = Files::new();
        let whole = json!({"keys": [files.entry("ada"), files.entry("bob")]});
        let eve = SigningKey::generate().expect("a key").public();
        let mut renamed = files.entry("ada");
        renamed["subject"]["role"] = json!("owner");
        let mut longer = files.entry("ada");
        longer["expiresAt"] = json!("2200-01-01T00:00:00Z");
        let keys = files.open();
        for ring in [
            json!({"keys": [files.entry("bob"), {"id": eve, "subject": {"id": "ada", "role": "lead"}}]}),
            json!({"keys": [renamed]}),
            json!({"keys": [longer]}),
            json!({"keys": [{"id": files.ada, "subject": {"id": "ada", "role": "lead"}}]}),
        ] {
            files.write(KEYS, &ring);
            assert_eq!(holders(&keys), Err(KeysError::Changed), "{ring}");
        }
        files.write(KEYS, &whole);
        assert_eq!(holders(&keys).expect("keys").len(), 2, "the keys are unchanged");
        files.write(REVOKED, &json!({"revoked": [files.ada]}));
        assert_eq!(holders(&keys).expect("keys"), ["user:bob"]);
        files.write(REVOKED, &json!([]));
        assert_eq!(holders(&keys), Err(KeysError::Changed));
        assert_eq!(holders(&files.open()).expect("keys").len(), 2, "a new start reads them as they are");
    }

    #[test]
    fn files_that_cannot_be_read_refuse_every_signature() {
        let files = Files::new();
        let keys = files.open();
        let path = files.directory.path().join(REVOKED);
        for text in ["", "{", "{}", "[\"ada\"]"] {
            std::fs::write(&path, text).expect("a file");
            assert!(matches!(holders(&keys), Err(KeysError::Unreadable(_))), "{text}");
        }
        std::fs::remove_file(&path).expect("the file exists");
        std::fs::create_dir(&path).expect("a directory");
        assert!(matches!(holders(&keys), Err(KeysError::Unreadable(_))));
        std::fs::remove_dir(&path).expect("the file exists");
        assert!(holders(&keys).is_ok());
        std::fs::write(files.directory.path().join(KEYS), "{\"keys\": [").expect("a file");
        assert!(matches!(holders(&keys), Err(KeysError::Unreadable(_))));
        std::fs::remove_file(files.directory.path().join(KEYS)).expect("the file exists");
        assert!(matches!(holders(&keys), Err(KeysError::Unreadable(_))));
        let none = LiveKeys::new(files.directory.path().to_owned(), KeyFiles::default());
        assert_eq!(holders(&none), Err(KeysError::NoKeys));
    }
}
