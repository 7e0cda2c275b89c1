//! The token file of a listener, and how long its last valid content stays in effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::watch;

use super::token_names::TokenNames;
use crate::tokens::{TokenError, Tokens};

/// Number of failed reads, one per check, after which the last content of the file admits no new clients. The
/// file may have been changed to revoke a token.
pub(super) const MAX_READ_FAILURES: u32 = 5;

#[derive(Debug)]
pub(super) struct TokenStore {
    path: PathBuf,
    names: Arc<TokenNames>,
    known: watch::Sender<Arc<Tokens>>,
    failures: AtomicU32,
}

impl TokenStore {
    pub(super) fn new(path: PathBuf, names: Arc<TokenNames>) -> Result<Self, TokenError> {
        let tokens = Tokens::read(&path)?;
        names.record(&path, &tokens, &Tokens::default())?;
        let known = watch::Sender::new(Arc::new(tokens));
        Ok(Self { path, names, known, failures: AtomicU32::new(0) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the last valid content of the file.
    pub(super) fn known(&self) -> &watch::Sender<Arc<Tokens>> {
        &self.known
    }

    pub(super) fn fails(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Returns `true` if reads have failed for so long that no new client is admitted.
    pub(super) fn is_unverified(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= MAX_READ_FAILURES
    }

    /// Reads the file again. Keeps the previous content if the file is invalid.
    pub(super) fn read(&self) -> Result<(), TokenError> {
        let was_unverified = self.is_unverified();
        let accepted = Arc::clone(&self.known.borrow());
        let read = Tokens::read(&self.path);
        match read.and_then(|tokens| self.names.record(&self.path, &tokens, &accepted).map(|()| tokens)) {
            Ok(tokens) => {
                self.known.send_replace(Arc::new(tokens));
                self.failures.store(0, Ordering::Relaxed);
                if was_unverified {
                    tracing::warn!(path = %self.path.display(), "token file valid again");
                }
                Ok(())
            }
            Err(error) => {
                let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
                self.failures.store(failures, Ordering::Relaxed);
                match failures {
                    1 => {
                        tracing::warn!(
                            %error,
                            "token file invalid, previous tokens stay valid for about 10 s"
                        );
                    }
                    MAX_READ_FAILURES => tracing::error!(
                        %error,
                        "token file still invalid, refusing clients with tokens"
                    ),
                    _ => {}
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::SystemTime;

    use super::*;
    use crate::tokens;

    #[test]
    fn tokens_are_unverified_after_some_failed_reads_until_one_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        tokens::add(&path, "one", None, SystemTime::UNIX_EPOCH).unwrap();
        let store = TokenStore::new(path.clone(), Arc::default()).unwrap();
        let good = fs::read(&path).unwrap();
        for bad in [None, Some("broken")] {
            match bad {
                None => fs::remove_file(&path).unwrap(),
                Some(text) => fs::write(&path, text).unwrap(),
            }
            for attempt in 1..=2 * MAX_READ_FAILURES {
                assert!(store.read().is_err());
                assert_eq!(
                    (store.fails(), store.is_unverified()),
                    (true, attempt >= MAX_READ_FAILURES),
                    "{attempt}"
                );
                assert_eq!(store.known().borrow().identities().count(), 1);
            }
            fs::write(&path, &good).unwrap();
            store.read().unwrap();
            assert!(!store.fails() && !store.is_unverified());
        }
    }

    #[test]
    fn a_name_has_one_token_in_all_files() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two] = ["one.toml", "two.toml"].map(|name| directory.path().join(name));
        let make =
            |path: &PathBuf, name: &str| tokens::add(path, name, None, SystemTime::UNIX_EPOCH).unwrap();
        let names = Arc::<TokenNames>::default();
        let open = |path: &PathBuf| TokenStore::new(path.clone(), Arc::clone(&names));
        make(&one, "alice");
        make(&two, "bob");
        let (first, second) = (open(&one).unwrap(), open(&two).unwrap());
        let again = open(&one).unwrap();
        // A file with another token of the same name is refused, and the file with the first token stays in
        // effect.
        make(&two, "alice");
        let error = second.read().unwrap_err().to_string();
        assert!(error.contains("the name \"alice\" has another token in"), "{error}");
        assert_eq!(second.known().borrow().identities().count(), 1);
        make(&one, "carol");
        first.read().unwrap();
        assert!(open(&two).is_err());
        tokens::remove(&two, "alice").unwrap();
        second.read().unwrap();
        // A name may get a new token in a file that several listeners use, or in copies of the file.
        tokens::remove(&one, "alice").unwrap();
        make(&one, "alice");
        first.read().unwrap();
        again.read().unwrap();
        fs::copy(&one, &two).unwrap();
        second.read().unwrap();
        tokens::remove(&one, "alice").unwrap();
        make(&one, "alice");
        assert!(first.read().is_err());
        fs::copy(&one, &two).unwrap();
        second.read().unwrap();
        first.read().unwrap();
    }
}
