//! Caches the digests of the parts of a call, and whether they contain secrets.
//!
//! An agent may update a large call very often and change little each time. An unchanged part is hashed and
//! searched once.

use std::sync::OnceLock;

use serde_json::json;

use super::{Call, Digest, value_digest};
use crate::audit_events::has_secret;

/// The digest of one part, and whether it contains a secret. Replaced when the part changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    digest: OnceLock<Digest>,
    has_secret: OnceLock<bool>,
}

impl Memo {
    fn hex(&self, value: impl FnOnce() -> Digest) -> String {
        self.digest.get_or_init(value).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Memos {
    pub(super) input: Memo,
    pub(super) changes: Memo,
    /// For the locations, and the command of a permission request.
    pub(super) others: Memo,
}

impl Call {
    pub(super) fn input_digest(&self) -> String {
        self.memos.input.hex(|| value_digest(&self.input))
    }

    pub(super) fn changes_digest(&self) -> String {
        self.memos.changes.hex(|| value_digest(&json!(self.changes)))
    }

    /// Returns `true` if the input, as it is approved and recorded, contains a secret.
    pub(crate) fn has_secret(&self) -> bool {
        let Memos { input, changes, others } = &self.memos;
        if self.beside.is_some() {
            return *others.has_secret.get_or_init(|| has_secret(self.approval_input().into_owned()));
        }
        *input.has_secret.get_or_init(|| has_secret(self.input.clone()))
            || *changes.has_secret.get_or_init(|| has_secret(json!(self.changes)))
            || *others.has_secret.get_or_init(|| {
                let asked = self.asked.clone().unwrap_or_default();
                has_secret(json!([self.locations, self.unusual_locations])) || has_secret(asked)
            })
    }
}

#[cfg(test)]
impl Memo {
    pub(super) fn is_new(&self) -> bool {
        self.digest.get().is_none() && self.has_secret.get().is_none()
    }
}
