//! The signed head of a log. A copy of the head that is stored elsewhere reveals if the log is truncated or
//! rewritten later.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::entry::SCHEMA;
use crate::jcs::TooDeep;
use crate::key::{PublicKey, Signature, SignatureError, SigningKey};

const DOCTYPE: &str = "head-pointer";

/// The state of a log at one time. The hash of the first entry identifies the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Name of the schema, always `agentgovernance/v1`.
    #[serde(rename = "$schema")]
    pub schema: String,
    /// Type of the document, always `head-pointer`.
    pub doctype: String,
    /// The hash of the first entry.
    pub log: String,
    /// Number of the last entry.
    #[serde(rename = "headSeq")]
    pub seq: u64,
    /// Hash of the last entry.
    #[serde(rename = "headHash")]
    pub hash: String,
    pub count: u64,
    #[serde(rename = "pinnedAt")]
    pub ts: String,
}

/// A head with its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHead {
    #[serde(flatten)]
    pub head: Head,
    pub signature: Signature,
}

impl Head {
    /// Creates the head of a log that has `count` entries. `hash` is the hash of the last entry, and `log` of
    /// the first.
    pub fn new(log: impl Into<String>, count: u64, hash: impl Into<String>, now: Timestamp) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            doctype: DOCTYPE.to_owned(),
            log: log.into(),
            seq: count.saturating_sub(1),
            hash: hash.into(),
            count,
            ts: format!("{now:.3}"),
        }
    }

    /// Signs the head.
    pub fn sign(self, key: &SigningKey) -> Result<SignedHead, TooDeep> {
        let signature = key.sign(&self.payload())?;
        Ok(SignedHead { head: self, signature })
    }

    fn payload(&self) -> Value {
        // A head contains only texts and numbers, so serializing it cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl SignedHead {
    /// Checks the signature with `key`. Without a `key`, uses the key that the signature names.
    pub fn verify(&self, key: Option<&PublicKey>) -> Result<(), SignatureError> {
        let key = key.unwrap_or(&self.signature.public_key_ref);
        key.verify(&self.head.payload(), &self.signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_covers_the_whole_head() {
        let key = SigningKey::generate().expect("a key");
        let head = Head::new("aa", 3, "bb", Timestamp::UNIX_EPOCH).sign(&key).expect("shallow");
        let text = serde_json::to_string(&head).expect("JSON");
        let read: SignedHead = serde_json::from_str(&text).expect("a head");
        assert_eq!(read, head);
        assert_eq!((read.verify(None), read.verify(Some(&key.public()))), (Ok(()), Ok(())));
        let other = SigningKey::generate().expect("a key");
        assert_eq!(read.verify(Some(&other.public())), Err(SignatureError::OtherKey));
        for (from, to) in [
            ("\"count\":3", "\"count\":2"),
            ("\"aa\"", "\"ab\""),
            ("00:00:00", "00:00:01"),
            ("\"headSeq\":2", "\"headSeq\":1"),
        ] {
            let changed: SignedHead = serde_json::from_str(&text.replace(from, to)).expect("a head");
            assert_eq!(changed.verify(None), Err(SignatureError::Wrong), "{from}");
        }
    }
}
