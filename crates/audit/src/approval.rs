//! A signed decision about one artifact.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::entry::SCHEMA;
use crate::event::PolicyRef;
use crate::jcs::TooDeep;
use crate::key::{PublicKey, Signature, SignatureError, SigningKey};

/// A signed decision, as stored in a `.signature.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// Name of the schema, always `agentgovernance/v1`.
    #[serde(rename = "$schema")]
    pub schema: String,
    /// Type of the document, always `signature`.
    pub doctype: String,
    pub artifact: String,
    pub decision: ApprovalDecision,
    /// Reason of the decision. Required for a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub signer: ApprovalSigner,
    pub signed_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// Signature over artifact, decision, signer, time and policy. `None` until the approval is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// The decision of a signer about an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApprovalDecision {
    Approve,
    Reject,
    Abstain,
}

/// The person who signs a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalSigner {
    /// Id of the signer, such as a mail address or a `did:key`.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// The reason why an approval does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalError {
    #[error("the approval is not signed")]
    Unsigned,
    #[error("a rejection needs a reason")]
    NoReason,
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

impl Approval {
    /// Creates an unsigned approval.
    pub fn new(
        artifact: impl Into<String>,
        decision: ApprovalDecision,
        signer: ApprovalSigner,
        signed_at: impl Into<String>,
    ) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            doctype: "signature".to_owned(),
            artifact: artifact.into(),
            decision,
            reason: None,
            signer,
            signed_at: signed_at.into(),
            policy: None,
            signature: None,
        }
    }

    /// Signs the approval.
    pub fn sign(mut self, key: &SigningKey) -> Result<Self, TooDeep> {
        self.signature = Some(key.sign(&self.payload())?);
        Ok(self)
    }

    /// Checks that the approval is complete and was signed by the owner of `key`.
    pub fn verify(&self, key: &PublicKey) -> Result<(), ApprovalError> {
        if self.decision == ApprovalDecision::Reject && self.reason.as_ref().is_none_or(String::is_empty) {
            return Err(ApprovalError::NoReason);
        }
        let signature = self.signature.as_ref().ok_or(ApprovalError::Unsigned)?;
        Ok(key.verify(&self.payload(), signature)?)
    }

    fn payload(&self) -> Value {
        let mut payload = json!({
            "artifact": self.artifact,
            "decision": self.decision,
            "signer": self.signer,
            "signedAt": self.signed_at,
        });
        if let Some(policy) = &self.policy {
            payload["policy"] = json!(policy);
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_is_of_one_thing_by_one_signer() {
        let key = SigningKey::generate().expect("a key");
        let signer = ApprovalSigner { id: "ann@example.com".into(), role: None, display_name: None };
        let approval = Approval::new("call_1", ApprovalDecision::Approve, signer, "2026-11-15T18:00:00.000Z");
        assert_eq!(approval.verify(&key.public()), Err(ApprovalError::Unsigned));
        let mut approval = approval;
        approval.policy = Some(PolicyRef { reference: "finance-write".into(), decision: None });
        let approval = approval.sign(&key).expect("shallow");
        assert_eq!(approval.verify(&key.public()), Ok(()));
        let other = Approval { artifact: "call_2".into(), ..approval.clone() };
        assert_eq!(other.verify(&key.public()), Err(ApprovalError::Signature(SignatureError::Wrong)));
        let other = Approval { policy: None, ..approval.clone() };
        assert_eq!(other.verify(&key.public()), Err(ApprovalError::Signature(SignatureError::Wrong)));
        let read: Approval = serde_json::from_value(json!(approval)).expect("an approval");
        assert_eq!(read, approval);
    }

    #[test]
    fn a_rejection_needs_a_reason() {
        let key = SigningKey::generate().expect("a key");
        let signer = ApprovalSigner { id: "ann".into(), role: None, display_name: None };
        let rejection = Approval::new("call_1", ApprovalDecision::Reject, signer, "2026-11-15T18:00:00.000Z")
            .sign(&key)
            .expect("shallow");
        assert_eq!(rejection.verify(&key.public()), Err(ApprovalError::NoReason));
        let rejection = Approval { reason: Some("too dear".into()), ..rejection };
        assert_eq!(rejection.verify(&key.public()), Ok(()));
    }
}
