//! Whose signatures count: the keys that a governance names.

use std::path::{Path, PathBuf};

use narrows_audit::{PublicKey, Timestamp};
use narrows_govern::{Method, Principal};
use narrows_manifest::types::governance::Approver;
use narrows_manifest::{Bundle, Files, FilesError, LONGEST, Workspace};
use serde::Deserialize;

use super::person::roles_of;
use crate::failure::Failure;

/// Where the keys are if the governance does not say.
const USUAL: &str = ".well-known/governance-keys.json";

/// Where keys are that no longer count, beside them.
const REVOKED: &str = "governance-revoked.json";

/// The files with the keys, as they were when the manifest was loaded.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyFiles {
    /// Their paths from the root of the workspace on, and what is in them: those that count, and those that do not.
    pub(super) files: Vec<(PathBuf, Vec<u8>)>,
    revoked: Option<Vec<u8>>,
}

/// Somebody whose signature counts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    key: PublicKey,
    subject: Subject,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Subject {
    id: String,
    #[serde(default)]
    role: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Keyring {
    keys: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    id: String,
    subject: Subject,
    #[serde(default)]
    valid_from: Option<String>,
    #[serde(default)]
    expires_at: Option<String>,
    #[serde(default)]
    revoked_at: Option<serde_json::Value>,
}

/// The keys of a governance.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Holder>);

/// Why a key does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stranger {
    #[error("the governance knows no such key")]
    Unknown,
    #[error("the key is not valid yet, or no longer")]
    Untimely,
}

impl KeyFiles {
    /// Reads them. None is no mistake: then nobody approves from elsewhere.
    pub(super) fn read(root: &Path, bundle: &Bundle) -> Result<Self, Failure> {
        let Some(governance) = &bundle.governance else { return Ok(Self::default()) };
        let path = governance.keyring().unwrap_or_else(|| governance.scope.join(USUAL));
        let workspace =
            Workspace::open(root).map_err(|error| Failure::setup("open the workspace", &error))?;
        let read = |path: &Path| match workspace.read(path, LONGEST) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(FilesError::NotFound) => Ok(None),
            Err(error) => Err(Failure::bad_keys(&root.join(path), &error)),
        };
        let Some(keys) = read(&path)? else { return Ok(Self::default()) };
        let beside = path.with_file_name(REVOKED);
        let revoked = read(&beside)?;
        let mut files = vec![(path, keys)];
        files.extend(revoked.clone().map(|bytes| (beside, bytes)));
        Ok(Self { files, revoked })
    }

    /// The keys in them. `None`: there is no file.
    pub(super) fn keys(&self, root: &Path) -> Result<Option<Keys>, Failure> {
        let Some((path, bytes)) = self.files.first() else { return Ok(None) };
        let revoked = String::from_utf8_lossy(self.revoked.as_deref().unwrap_or_default()).into_owned();
        let keys = parse(bytes, &revoked).map_err(|error| Failure::bad_keys(&root.join(path), &error))?;
        Ok(Some(keys))
    }
}

fn parse(bytes: &[u8], revoked: &str) -> Result<Keys, serde_json::Error> {
    let ring: Keyring = serde_json::from_slice(bytes)?;
    let holders = ring.keys.into_iter().filter_map(|entry| {
        let Entry { id, subject, valid_from, expires_at, revoked_at } = entry;
        // Whatever form the list of revoked keys has, one that is named in it does not count.
        if revoked_at.is_some_and(|at| !at.is_null()) || revoked.contains(&id) {
            return None;
        }
        let time = |text: Option<String>| text.map(|text| text.parse::<Timestamp>()).transpose();
        // One that says something that nobody can read is not trusted with less than it says.
        let (from, until) = (time(valid_from).ok()?, time(expires_at).ok()?);
        Some(Holder { key: id.parse().ok()?, subject, from, until })
    });
    Ok(Keys(holders.collect()))
}

impl Keys {
    /// Who has this key, if it counts at this moment.
    pub(super) fn holder(
        &self,
        key: &PublicKey,
        now: Timestamp,
        approvers: &[Approver],
    ) -> Result<Principal, Stranger> {
        let holder = self.0.iter().find(|holder| holder.key == *key).ok_or(Stranger::Unknown)?;
        let is_timely =
            holder.from.is_none_or(|from| from <= now) && holder.until.is_none_or(|until| now < until);
        if !is_timely {
            return Err(Stranger::Untimely);
        }
        let Subject { id, role } = &holder.subject;
        let name = id.strip_prefix("user:").unwrap_or(id);
        let mut roles = roles_of(name, approvers);
        roles.extend(role.clone());
        // The same somebody as on the other side of the gate, so that nobody counts twice.
        Ok(Principal { id: format!("user:{name}"), method: Method::Signature, roles, ..Principal::default() })
    }
}

#[cfg(test)]
mod tests {
    use narrows_audit::SigningKey;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-16T10:00:00Z".parse().expect("a time")
    }

    #[test]
    fn only_keys_that_are_named_and_valid_count() {
        let key = SigningKey::generate().expect("a key").public();
        let check = |more: serde_json::Value, revoked: &str, expected: Result<&str, Stranger>| {
            let mut entry =
                json!({"id": key.to_string(), "alg": "Ed25519", "subject": {"id": "ada", "role": "lead"}});
            entry.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
            let ring = json!({"doctype": "keyring", "keys": [{"id": "did:key:zBad", "subject": {"id": "x"}}, entry]});
            let keys = parse(ring.to_string().as_bytes(), revoked).expect("a keyring");
            let holder = keys.holder(&key, now(), &[]).map(|who| format!("{} {:?}", who.id, who.roles));
            assert_eq!(holder, expected.map(str::to_owned), "{ring}");
        };
        check(json!({}), "", Ok(r#"user:ada ["lead"]"#));
        check(json!({"expiresAt": "2027-01-01T00:00:00.000Z"}), "[]", Ok(r#"user:ada ["lead"]"#));
        check(json!({"expiresAt": "2026-01-01T00:00:00Z"}), "", Err(Stranger::Untimely));
        check(json!({"validFrom": "2027-01-01T00:00:00Z"}), "", Err(Stranger::Untimely));
        check(json!({"expiresAt": "soon"}), "", Err(Stranger::Unknown));
        check(json!({"revokedAt": "2026-01-01"}), "", Err(Stranger::Unknown));
        check(json!({}), &format!(r#"{{"revoked": ["{key}"]}}"#), Err(Stranger::Unknown));
        let other = SigningKey::generate().expect("a key").public();
        assert_eq!(Keys::default().holder(&other, now(), &[]).map(|who| who.id), Err(Stranger::Unknown));
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_no_harm(bytes in "[{}\\[\\]\",:a-z]{0,60}") {
            let _ = parse(bytes.as_bytes(), "");
        }
    }
}
