//! Caches digests of the parts of a call, and whether a part contains secrets.
//!
//! An agent may send many small updates of a large call. An unchanged part is hashed and searched once.

use std::sync::OnceLock;

use serde_json::json;

use super::{Call, Digest, value_digest};
use crate::audit_events::has_secret;

/// Digest of one part of a call, and whether the part contains a secret. Replaced when the part changes.
#[derive(Clone, Debug, Default)]
pub(super) struct PartCache {
    digest: OnceLock<Digest>,
    has_secret: OnceLock<bool>,
}

impl PartCache {
    fn hex(&self, value: impl FnOnce() -> Digest) -> String {
        self.digest.get_or_init(value).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct PartCaches {
    pub(super) input: PartCache,
    pub(super) changes: PartCache,
    /// Cache for the locations and the command of the last permission request.
    pub(super) others: PartCache,
}

impl Call {
    pub(super) fn input_digest(&self) -> String {
        self.part_caches.input.hex(|| value_digest(&self.input))
    }

    pub(super) fn changes_digest(&self) -> String {
        self.part_caches.changes.hex(|| value_digest(&json!(self.changes)))
    }

    /// Returns `true` if the input, as it is approved and recorded, contains a secret.
    pub(crate) fn has_secret(&self) -> bool {
        let PartCaches { input, changes, others } = &self.part_caches;
        if self.extra_members.is_some() {
            return *others.has_secret.get_or_init(|| has_secret(self.approval_input().into_owned()));
        }
        *input.has_secret.get_or_init(|| has_secret(self.input.clone()))
            || *changes.has_secret.get_or_init(|| has_secret(json!(self.changes)))
            || *others.has_secret.get_or_init(|| {
                let asked = self.asked_command.clone().unwrap_or_default();
                has_secret(json!([self.locations, self.unusual_locations])) || has_secret(asked)
            })
    }
}

#[cfg(test)]
impl PartCache {
    pub(super) fn is_new(&self) -> bool {
        self.digest.get().is_none() && self.has_secret.get().is_none()
    }
}
