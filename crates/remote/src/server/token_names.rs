//! Names of tokens in all token files of a server. The name is the identity: if one name had different tokens
//! in two files, two clients would share one identity.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use narrows_base::sync::lock;

use crate::tokens::{Digest, TokenError, Tokens};

/// The names and tokens in each token file as last read. The key is the real path of the file.
#[derive(Debug, Default)]
pub(super) struct TokenNames {
    by_file: Mutex<HashMap<PathBuf, HashMap<String, Digest>>>,
}

impl TokenNames {
    /// Records the content of a file, even if it is refused: files with equal tokens may be changed one after
    /// the other. Fails if a name in `tokens` has another token in another file. Entries that are already in
    /// `accepted`, the content in use, are not checked.
    pub(super) fn record(&self, path: &Path, tokens: &Tokens, accepted: &Tokens) -> Result<(), TokenError> {
        let own = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut by_file = lock(&self.by_file);
        let named = tokens.named().map(|(name, digest)| (name.to_owned(), *digest)).collect();
        by_file.insert(own.clone(), named);
        let others = by_file.iter().filter(|(file, _)| **file != own);
        let new: Vec<_> =
            tokens.named().filter(|entry| accepted.named().all(|known| known != *entry)).collect();
        for (other, names) in others {
            let conflict =
                new.iter().find(|(name, digest)| names.get(*name).is_some_and(|known| known != *digest));
            if let Some((name, _)) = conflict {
                return Err(TokenError::Elsewhere {
                    path: path.to_owned(),
                    name: (*name).to_owned(),
                    other: other.clone(),
                });
            }
        }
        Ok(())
    }
}
