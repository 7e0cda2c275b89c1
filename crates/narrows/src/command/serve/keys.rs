//! The signing keys of approvers that a governance names.

use std::path::{Path, PathBuf};

use narrows_audit::{PublicKey, Timestamp};
use narrows_govern::{IdentityMethod, Principal};
use narrows_manifest::types::governance::Approver;
use narrows_manifest::{
    Bundle, Code, EffectiveGovernance, Files, FilesError, Finding, Findings, MAX_MANIFEST_BYTES, Severity,
    Workspace,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::os_users::approver_roles;
use super::revoked_keys::{RevokedKeys, read_key};

pub(super) const DEFAULT_KEYS_FILE: &str = ".well-known/governance-keys.json";

/// The name of the file of revoked keys, in the directory of the keys file.
const REVOKED_KEYS_FILE: &str = "governance-revoked.json";

const KEYS_HINT: &str = "write {\"keys\": [{\"id\": \"did:key:z6Mk…\", \"subject\": {\"id\": \"ada\", \"role\": \"lead\"}}]}; \
                    `narrows audit keygen FILE` prints the id of a new key";

/// The keys files, as they were when the manifest was loaded.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyFiles {
    /// The existing files: the path relative to the workspace root, and the content.
    pub(super) files: Vec<(PathBuf, Vec<u8>)>,
    pub(super) keys: Option<Keys>,
    /// The path of the keys file, relative to the root. The file may not exist. `None` if the manifest has no
    /// governance.
    path: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyHolder {
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
struct Keyring<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
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

impl Entry {
    /// Returns `true` if `revokedAt` is set, to any value.
    fn is_revoked(&self) -> bool {
        self.revoked_at.as_ref().is_some_and(|at| !at.is_null())
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Keys(Vec<KeyHolder>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyRejection {
    #[error("unknown key")]
    Unknown,
    #[error("the key is not valid yet, or expired")]
    NotValidNow,
}

impl KeyFiles {
    /// Reads the keys files. A missing file is an error only if the governance names it.
    pub(super) fn read(root: &Path, bundle: &Bundle, findings: &mut Findings) -> Self {
        let Some(governance) = &bundle.governance else { return Self::default() };
        let path =
            governance.keyring().map_or_else(|| governance.scope.join(DEFAULT_KEYS_FILE), |(_, path)| path);
        let read = Self::read_at(root, path, findings);
        if read.keys.is_none() {
            note_missing(governance, findings);
        }
        read
    }

    /// Reads the keys file at `path`, relative to the root, and the file of revoked keys beside it.
    pub(super) fn read_at(root: &Path, path: PathBuf, findings: &mut Findings) -> Self {
        let mut read = |path: &Path| {
            let bytes = match Workspace::open(root) {
                Ok(workspace) => workspace.read(path, MAX_MANIFEST_BYTES),
                Err(error) => Err(FilesError::Other(error.to_string())),
            };
            match bytes {
                Ok(bytes) => Some(bytes),
                // A link without a target is an error, not an absent file.
                Err(FilesError::NotFound) if !root.join(path).is_symlink() => None,
                Err(error) => {
                    let message = format!("cannot read the signing keys: {error}");
                    findings.push(
                        Finding::new(Severity::Error, Code::Keyring, path, (1, 1), message)
                            .with_hint("create it in the workspace, as a file that you can read"),
                    );
                    None
                }
            }
        };
        let beside = path.with_file_name(REVOKED_KEYS_FILE);
        let (keys, revoked) = (read(&path), read(&beside));
        let named = revoked.as_deref().map(|bytes| RevokedKeys::parse(&beside, bytes, findings));
        let Some(bytes) = keys else {
            return Self { path: Some(path), ..Self::default() };
        };
        let keys = parse(&path, &bytes, named.unwrap_or_default(), findings);
        let mut files = vec![(path.clone(), bytes)];
        files.extend(revoked.map(|bytes| (beside, bytes)));
        Self { files, keys: Some(keys), path: Some(path) }
    }

    /// Reads the current keys.
    ///
    /// # Errors
    /// Returns the first error in the files.
    pub(super) fn reload(&self, root: &Path) -> Result<Keys, String> {
        let missing = || "missing file".to_owned();
        let path = self.path.clone().ok_or_else(missing)?;
        let mut findings = Findings::default();
        let read = Self::read_at(root, path, &mut findings);
        match findings.iter().find(|finding| finding.severity == Severity::Error) {
            Some(Finding { file, line, message, .. }) => Err(format!("{}:{line}: {message}", file.display())),
            None => read.keys.ok_or_else(missing),
        }
    }

    /// Returns the paths of the keys file and the file of revoked keys, relative to the root. The files may
    /// not exist.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.path.iter().flat_map(|path| [path.clone(), path.with_file_name(REVOKED_KEYS_FILE)])
    }
}

/// Reports a keyring that the governance names and that is missing, unless it was reported already.
fn note_missing(governance: &EffectiveGovernance, findings: &mut Findings) {
    if findings.has(Code::Keyring) {
        return;
    }
    let Some((source, path)) = governance.keyring() else { return };
    let place = source.place_of(&["signing", "keyring"]);
    let message = format!("missing file {}, so no approval can be signed", path.display());
    let finding = Finding::new(Severity::Error, Code::Keyring, &source.path, place, message);
    findings.push(finding.with_key("signing.keyring").with_hint(format!("create it: {KEYS_HINT}")));
}

/// Parses a keys file. Reports invalid keys, and a file without keys.
fn parse(path: &Path, bytes: &[u8], mut revoked: RevokedKeys, findings: &mut Findings) -> Keys {
    let broken = |place, why: String| {
        let message = format!("invalid signing keys: {why}");
        Finding::new(Severity::Error, Code::Keyring, path, place, message).with_hint(KEYS_HINT)
    };
    let Ok(text) = std::str::from_utf8(bytes) else {
        findings.push(broken((1, 1), "not UTF-8".to_owned()));
        return Keys::default();
    };
    let ring: Keyring<'_> = match serde_json::from_str(text) {
        Ok(ring) => ring,
        Err(error) => {
            findings.push(broken((error.line().max(1), error.column().max(1)), without_place(&error)));
            return Keys::default();
        }
    };
    let mut entries = Vec::new();
    for (number, raw) in ring.keys.into_iter().enumerate() {
        let place = place_of(text, raw);
        match serde_json::from_str::<Entry>(raw.get()) {
            Ok(entry) => entries.push((number, place, entry)),
            Err(error) => {
                findings.push(broken(place, format!("keys[{number}]: {}", without_place(&error))));
            }
        }
    }
    // A revocation applies to all entries with the same key, in whatever form they have it.
    let of_entries = entries.iter().filter(|(_, _, entry)| entry.is_revoked());
    of_entries.filter_map(|(_, _, entry)| read_key(&entry.id)).for_each(|key| revoked.insert(key));
    let mut keys = Keys::default();
    for (number, place, entry) in entries {
        let doubt = |key: &str, why: String, hint: &str| {
            let finding = Finding::new(Severity::Warning, Code::Keyring, path, place, why);
            finding.with_key(format!("keys[{number}]{key}")).with_hint(hint)
        };
        match holder(entry, &revoked) {
            Ok(Some(holder)) if keys.0.iter().any(|known| known.key == holder.key) => {
                let why = "duplicate key; only its first entry counts".to_owned();
                findings.push(doubt(".id", why, "use one key per person"));
            }
            Ok(holder) => keys.0.extend(holder),
            Err((key, why, hint)) => {
                findings.push(doubt(key, format!("invalid key: {why}"), hint));
            }
        }
    }
    keys
}

/// Returns the holder of a key, or `None` if the key is revoked. An unreadable part is an error with field,
/// message and fix, because otherwise the key could count for longer than its author meant.
fn holder(
    entry: Entry,
    revoked: &RevokedKeys,
) -> Result<Option<KeyHolder>, (&'static str, String, &'static str)> {
    let Entry { id, subject, valid_from, expires_at, revoked_at: _ } = entry;
    let key = id.parse().map_err(|error: narrows_audit::key::KeyError| {
        (
            ".id",
            error.to_string(),
            "use the output of `narrows audit keygen FILE`, or the content of FILE.pub",
        )
    })?;
    if revoked.contains(&key) {
        return Ok(None);
    }
    let time = |key, text: Option<String>| {
        let read = |text: String| {
            let wrong = |_| (key, format!("invalid time {text:?}"), "use the form 2027-01-01T00:00:00Z");
            text.parse::<Timestamp>().map_err(wrong)
        };
        text.map(read).transpose()
    };
    let (from, until) = (time(".validFrom", valid_from)?, time(".expiresAt", expires_at)?);
    Ok(Some(KeyHolder { key, subject, from, until }))
}

/// Returns the message of a JSON error without its position.
pub(super) fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
}

/// Returns line and column of a part of a text, counted from 1.
pub(super) fn place_of(text: &str, part: &RawValue) -> (usize, usize) {
    let at = (part.get().as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let before = text.get(..at).unwrap_or_default();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (before.bytes().filter(|byte| *byte == b'\n').count() + 1, column)
}

impl Keys {
    /// Returns the approver with this key, if the key is valid now.
    pub(super) fn holder(
        &self,
        key: &PublicKey,
        now: Timestamp,
        approvers: &[Approver],
    ) -> Result<Principal, KeyRejection> {
        let holder = self.0.iter().find(|holder| holder.key == *key).ok_or(KeyRejection::Unknown)?;
        if holder.is_valid_at(now) { Ok(holder.principal(approvers)) } else { Err(KeyRejection::NotValidNow) }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if `earlier` also has every key of this set, for the same subject, and valid at least
    /// as long.
    pub(super) fn is_narrowed_from(&self, earlier: &Self) -> bool {
        let is_known = |holder: &KeyHolder| earlier.0.iter().any(|known| holder.is_narrowed_from(known));
        self.0.iter().all(is_known)
    }

    /// Returns all approvers with a valid key, each once.
    pub(super) fn holders(&self, now: Timestamp, approvers: &[Approver]) -> Vec<Principal> {
        let timely = self.0.iter().filter(|holder| holder.is_valid_at(now));
        let mut holders: Vec<Principal> = timely.map(|holder| holder.principal(approvers)).collect();
        holders.sort_by(|one, other| one.id.cmp(&other.id));
        holders.dedup_by(|next, first| {
            let same = next.id == first.id;
            if same {
                first.roles.append(&mut next.roles);
            }
            same
        });
        holders
    }
}

impl KeyHolder {
    fn is_valid_at(&self, now: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= now) && self.until.is_none_or(|until| now < until)
    }

    fn is_narrowed_from(&self, earlier: &Self) -> bool {
        // A start of `None` is earlier than any other start, and an end of `None` later than any other end.
        let starts_later = self.from >= earlier.from;
        let ends_earlier = earlier.until.is_none_or(|end| self.until.is_some_and(|until| until <= end));
        self.key == earlier.key && self.subject == earlier.subject && starts_later && ends_earlier
    }

    fn principal(&self, approvers: &[Approver]) -> Principal {
        let Subject { id, role } = &self.subject;
        let name = id.strip_prefix("user:").unwrap_or(id);
        let mut roles = approver_roles(name, approvers);
        roles.extend(role.clone());
        // The id is the one that the client side of the gate uses, so that a person counts once.
        Principal {
            id: format!("user:{name}"),
            method: IdentityMethod::Signature,
            roles,
            ..Principal::default()
        }
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

    fn read(text: &str, revoked: &str) -> (Keys, Vec<String>) {
        let mut findings = Findings::default();
        let revoked = match revoked {
            "" => RevokedKeys::default(),
            text => RevokedKeys::parse(Path::new("r.json"), text.as_bytes(), &mut findings),
        };
        let keys = parse(Path::new("k.json"), text.as_bytes(), revoked, &mut findings);
        (keys, findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn only_named_and_valid_keys_count() {
        let key = SigningKey::generate().expect("a key").public();
        let check = |more: serde_json::Value, revoked: &str, expected: Result<&str, KeyRejection>| {
            let mut entry =
                json!({"id": key.to_string(), "alg": "Ed25519", "subject": {"id": "ada", "role": "lead"}});
            entry.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
            let ring = json!({"doctype": "keyring", "keys": [{"id": "did:key:zBad", "subject": {"id": "x"}}, entry]});
            let (keys, told) = read(&ring.to_string(), revoked);
            let holder = keys.holder(&key, now(), &[]).map(|who| format!("{} {:?}", who.id, who.roles));
            assert_eq!(holder, expected.map(str::to_owned), "{ring}");
            assert!(told[0].contains("warning[keyring]: keys[0].id: invalid key: "), "{told:?}");
            assert_eq!(keys.holders(now(), &[]).len(), usize::from(expected.is_ok()));
        };
        check(json!({}), "", Ok(r#"user:ada ["lead"]"#));
        check(json!({"expiresAt": "2027-01-01T00:00:00.000Z"}), "[]", Ok(r#"user:ada ["lead"]"#));
        check(json!({"expiresAt": "2026-01-01T00:00:00Z"}), "", Err(KeyRejection::NotValidNow));
        check(json!({"validFrom": "2027-01-01T00:00:00Z"}), "", Err(KeyRejection::NotValidNow));
        check(json!({"expiresAt": "soon"}), "", Err(KeyRejection::Unknown));
        check(json!({"revokedAt": "2026-01-01"}), "", Err(KeyRejection::Unknown));
        check(json!({}), &format!(r#"{{"revoked": ["{key}"]}}"#), Err(KeyRejection::Unknown));
        check(
            json!({}),
            &format!(r#"["{}"]"#, key.to_string().trim_start_matches("did:key:")),
            Err(KeyRejection::Unknown),
        );
        let other = SigningKey::generate().expect("a key").public();
        assert_eq!(Keys::default().holder(&other, now(), &[]).map(|who| who.id), Err(KeyRejection::Unknown));
    }

    #[test]
    fn a_revoked_key_stays_revoked_in_another_entry() {
        let key = SigningKey::generate().expect("a key").public();
        let entry = |id: String, more: &str| format!(r#"{{"id": "{id}", "subject": {{"id": "ada"}}{more}}}"#);
        let revoked = entry(format!("{key}#1"), r#", "revokedAt": true"#);
        for entries in [[&revoked, &entry(key.to_string(), "")], [&entry(key.to_string(), ""), &revoked]] {
            let (keys, _) = read(&format!(r#"{{"keys": [{}, {}]}}"#, entries[0], entries[1]), "");
            assert!(keys.0.is_empty(), "{keys:?}");
        }
    }

    #[test]
    fn findings_have_positions() {
        let check = |text: &str, expected: &[&str]| {
            let (_, told) = read(text, "");
            assert_eq!(told.len(), expected.len(), "{told:?}");
            for (told, expected) in told.iter().zip(expected) {
                assert!(told.contains(expected), "{told}");
            }
        };
        check("{\"keys\": []}", &[]);
        check("{\"keys\": [\n", &["k.json:2:1: error[keyring]: invalid signing keys: EOF while parsing"]);
        check("[]", &["invalid signing keys: invalid length 0"]);
        check("{}", &["missing field `keys`; write {\"keys\""]);
        check(
            "{\"keys\": [\n  {\"id\": 5}]}",
            &["k.json:2:3: error[keyring]: invalid signing keys: keys[0]: invalid type"],
        );
        let entry =
            |id: &str, more: &str| format!("{{\"id\": \"{id}\", \"subject\": {{\"id\": \"ada\"}}{more}}}");
        check(
            &format!("{{\"keys\": [{}]}}", entry("ada", "")),
            &["k.json:1:11: warning[keyring]: keys[0].id: invalid key: it is not an Ed25519 public key"],
        );
        let key = SigningKey::generate().expect("a key").public().to_string();
        check(
            &format!("{{\"keys\": [{}]}}", entry(&key, ", \"expiresAt\": \"soon\"")),
            &["keys[0].expiresAt: invalid key: invalid time \"soon\"; use the form 2027-"],
        );
        check(&format!("{{\"keys\": [{0}, {0}]}}", entry(&key, "")), &["keys[1].id: duplicate key; "]);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(bytes in "[{}\\[\\]\",:a-z]{0,60}", entry in "[{}\",:a-z]{0,30}") {
            read(&bytes, "");
            read(&format!("{{\"keys\": [{entry}]}}"), "");
        }
    }
}
