//! Builds audit events in the format of AIP-7, with the fields of AIP-44 in `metadata.aip44`.

use std::io;
use std::sync::LazyLock;

use narrows_audit::{Actor, Event, Fact, Facts, LoggedDecision, PolicyRef, Redaction, Subject};
use narrows_policy::{Class, GovernanceDecision};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::call::Call;
use crate::config::GateConfig;
use crate::identity::Principal;
use crate::lifecycle::OperatorState;
use crate::log_text::{gate_fact, identifier, peer_fact, shorten, tool_fact};
use crate::shared_budget::BudgetUse;
use crate::unique_keys;

/// An input or output above this size is logged as its length and digest.
const MAX_VALUE_BYTES: usize = 256 << 10;
pub(crate) const DECISION: &str = "policy.resolved";
/// Policy name in the entry about a decision that no rule made.
const DEFAULT_POLICY: &str = "default";

#[derive(Clone, Copy, Debug)]
pub(crate) struct AuditContext<'a> {
    pub(crate) config: &'a GateConfig,
    pub(crate) principal: &'a Principal,
    pub(crate) session: &'a str,
    /// Session whose agent announced `session` as a child.
    pub(crate) parent: Option<&'a str>,
}

impl AuditContext<'_> {
    fn event<const N: usize>(
        &self,
        action: &str,
        subject: Subject,
        about: [(&'static str, Option<Fact>); N],
    ) -> Event {
        let mut facts = Facts::from(about);
        facts.insert("operator", self.config.operator.clone());
        facts.insert("session", identifier(self.session));
        if let Some(parent) = self.parent {
            facts.insert("parentSessionId", identifier(parent));
        }
        facts.insert("identity", self.principal.id.clone());
        facts.insert("identity_method", self.principal.method.name());
        facts.insert("tier", self.config.tier.clone());
        Event {
            actor: Actor {
                id: clip(&format!("operator:{}", self.config.operator), 256),
                role: Some("operator".to_owned()),
            },
            action: action.to_owned(),
            subject,
            facts,
            ..Event::default()
        }
    }

    fn session_subject(&self) -> Subject {
        Subject {
            kind: "session".to_owned(),
            reference: Some(clip(&identifier(self.session), 256)),
            path: None,
        }
    }

    pub(crate) fn state_changed(&self, life: OperatorState, reason: Option<&str>) -> Event {
        let about = [("kind", Some("state".into())), ("reason", reason.map(peer_fact))];
        self.event(life.action(), self.session_subject(), about)
    }

    /// Returns the event for a client request that is about to be sent to the agent. The parameters of the
    /// request are recorded by length and digest.
    pub(crate) fn request_accepted(&self, action: &str, method: &str, params: &[u8]) -> Event {
        let about = [("kind", Some("request".into())), ("method", Some(clip(method, 128).into()))];
        let input = json!({"bytes": params.len(), "sha256": secret_safe_digest(params)});
        Event { input: Some(input), ..self.event(action, self.session_subject(), about) }
    }

    /// Returns the event for a message that was refused without involving a tool.
    pub(crate) fn refused(&self, what: &str, code: &str, input: Value) -> Event {
        let about = [("kind", Some("refusal".into())), ("code", Some(gate_fact(code)))];
        Event {
            input: Some(shorten_value(input)),
            policy: Some(PolicyRef {
                reference: DEFAULT_POLICY.to_owned(),
                decision: Some(LoggedDecision::Deny),
            }),
            ..self.event(what, self.session_subject(), about)
        }
    }

    /// Returns the event for a method without a rule of its own. `refused` is the code of the refusal; `None`
    /// means that the message was passed on.
    pub(crate) fn method(&self, sender: MessageSender, refused: Option<&'static str>, input: Value) -> Event {
        let about = [
            ("kind", Some("method".into())),
            ("sender", Some(sender.name().into())),
            ("code", refused.map(Fact::from)),
        ];
        let (action, decision) = match refused {
            Some(_) => ("method.refused", LoggedDecision::Deny),
            None => ("method.allowed", LoggedDecision::Allow),
        };
        Event {
            input: Some(shorten_value(input)),
            policy: Some(PolicyRef { reference: DEFAULT_POLICY.to_owned(), decision: Some(decision) }),
            ..self.event(action, self.session_subject(), about)
        }
    }

    pub(crate) fn members_removed(&self, sender: MessageSender, method: &str, names: &[String]) -> Event {
        let input = json!({"sender": sender.name(), "method": clip(method, 128), "members": names});
        self.refused("member.refused", "unknown_member", input)
    }

    /// Returns the event for an answer that is missing or late.
    pub(crate) fn deadline_passed(&self, what: &str, method: &str, reason: &str) -> Event {
        let about = [
            ("kind", Some("deadline".into())),
            ("method", Some(clip(method, 128).into())),
            ("reason", Some(peer_fact(reason))),
        ];
        self.event(what, self.session_subject(), about)
    }

    pub(crate) fn session_closed(&self, reason: &str) -> Event {
        let about = [("kind", Some("state".into())), ("reason", Some(peer_fact(reason)))];
        self.event("session.closed", self.session_subject(), about)
    }

    /// Returns the event for a decision about a call. `spent` is the budget use of the call, which other
    /// gates read from the log.
    pub(crate) fn call_decided(
        &self,
        call: &AuditedCall<'_>,
        ruling: &GovernanceDecision,
        approval: &ApprovalOutcome,
        spent: Option<&BudgetUse>,
    ) -> Event {
        let reason = ruling.to_string();
        let about = [
            ("kind", Some("decision".into())),
            ("tool", Some(tool_fact(call.tool))),
            ("toolCallId", Some(identifier(call.id).into())),
            ("claimedTool", call.claimed.map(tool_fact)),
            ("toolKinds", Some(call.kinds.join(", ").into())),
            ("approval", Some(approval.name(&reason))),
            ("reason", Some(peer_fact(&reason))),
            ("risk", Some(ruling.risk.into())),
            ("spent", spent.map(|spent| json!(spent).into())),
        ];
        let decision =
            if *approval == ApprovalOutcome::Pending { decision(ruling.class) } else { approval.decision() };
        Event {
            input: Some(call.shortened_input()),
            policy: Some(PolicyRef { reference: policy_name(ruling), decision: Some(decision) }),
            signatures: approval.signatures(),
            ..self.event(DECISION, tool_subject(call.tool), about)
        }
    }

    pub(crate) fn call_finished(
        &self,
        call: &AuditedCall<'_>,
        ruling: &GovernanceDecision,
        approval: &ApprovalOutcome,
        output: Value,
    ) -> Event {
        let about = [
            ("kind", Some("tool-call".into())),
            ("tool", Some(tool_fact(call.tool))),
            ("toolCallId", Some(identifier(call.id).into())),
            ("claimedTool", call.claimed.map(tool_fact)),
            ("toolKinds", Some(call.kinds.join(", ").into())),
            ("approval", Some(approval.name(&ruling.to_string()))),
        ];
        Event {
            input: Some(call.shortened_input()),
            output: Some(shorten_value(output)),
            policy: Some(PolicyRef { reference: policy_name(ruling), decision: Some(approval.decision()) }),
            signatures: approval.signatures(),
            ..self.event("tool.call", tool_subject(call.tool), about)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageSender {
    Client,
    Agent,
}

impl MessageSender {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Agent => "agent",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AuditedCall<'a> {
    pub(crate) tool: &'a str,
    pub(crate) id: &'a str,
    /// Reserved name that the agent reported as the tool name, such as a tool kind. A real tool never has a
    /// reserved name.
    pub(crate) claimed: Option<&'a str>,
    pub(crate) input: &'a Value,
    pub(crate) kinds: &'a [&'static str],
    /// The call that `input` belongs to, if any. `Call` caches whether its input contains a secret.
    pub(crate) call: Option<&'a Call>,
}

impl AuditedCall<'_> {
    fn shortened_input(&self) -> Value {
        shorten_unless(self.input.clone(), |value| match self.call {
            Some(call) => call.has_secret(),
            None => has_secret(value),
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ApprovalOutcome {
    #[default]
    Pending,
    /// The policy allowed the call without an approver.
    Auto,
    By {
        approvers: Vec<String>,
        signatures: Vec<String>,
    },
    Refused(String),
}

impl ApprovalOutcome {
    pub(crate) fn is_given(&self) -> bool {
        matches!(self, Self::Auto | Self::By { .. })
    }

    /// Returns the fact about who approved or refused. Only the `reason` of the policy contains texts of the
    /// peer.
    fn name(&self, reason: &str) -> Fact {
        match self {
            Self::Pending => "pending".into(),
            Self::Auto => "auto".into(),
            Self::By { approvers, .. } => gate_fact(&approvers.join(", ")),
            Self::Refused(why) if why == reason => Fact::peer(json!({"refused": shorten(why)})),
            Self::Refused(why) => json!({"refused": shorten(why)}).into(),
        }
    }

    fn decision(&self) -> LoggedDecision {
        match self {
            Self::Auto | Self::By { .. } => LoggedDecision::Allow,
            Self::Pending => LoggedDecision::RequireApproval,
            Self::Refused(_) => LoggedDecision::Deny,
        }
    }

    fn signatures(&self) -> Vec<String> {
        match self {
            Self::By { signatures, .. } => signatures.clone(),
            _ => Vec::new(),
        }
    }
}

fn tool_subject(name: &str) -> Subject {
    Subject { kind: "tool".to_owned(), reference: Some(clip(name, 256)), path: None }
}

fn decision(class: Class) -> LoggedDecision {
    match class {
        Class::Allow => LoggedDecision::Allow,
        Class::RequireApproval => LoggedDecision::RequireApproval,
        Class::Escalate => LoggedDecision::Escalate,
        Class::Deny => LoggedDecision::Deny,
    }
}

fn policy_name(ruling: &GovernanceDecision) -> String {
    ruling.decided_by().unwrap_or(DEFAULT_POLICY).to_owned()
}

fn clip(text: &str, most: usize) -> String {
    // The number of bytes is an upper bound of the number of characters, and is known without counting.
    if text.len() <= most {
        return text.to_owned();
    }
    text.chars().take(most).collect()
}

struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns an upper bound of a value's length as JSON, without serializing the value.
fn max_json_bytes(value: &Value) -> usize {
    // An escaped character takes up to six bytes.
    let text = |text: &str| 6 * text.len() + 2;
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 32,
        Value::String(string) => text(string),
        Value::Array(items) => 2 + items.iter().map(|item| max_json_bytes(item) + 1).sum::<usize>(),
        Value::Object(members) => {
            2 + members.iter().map(|(key, member)| text(key) + max_json_bytes(member) + 2).sum::<usize>()
        }
    }
}

struct HashedLength {
    length: Length,
    hasher: Sha256,
}

impl io::Write for HashedLength {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.length.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shorten_value(value: Value) -> Value {
    shorten_unless(value, has_secret)
}

/// Returns the value unchanged if it is short enough for the log, otherwise its length and digest. A value
/// that contains a secret, as `has_secret` reports, gets no digest.
fn shorten_unless(value: Value, has_secret: impl FnOnce(Value) -> bool) -> Value {
    if max_json_bytes(&value) <= MAX_VALUE_BYTES {
        return value;
    }
    let mut text = HashedLength { length: Length(0), hasher: Sha256::new() };
    let is_whole = serde_json::to_writer(&mut text, &value).is_ok();
    let HashedLength { length: Length(bytes), hasher } = text;
    if is_whole && bytes <= MAX_VALUE_BYTES {
        return value;
    }
    let digest = (is_whole && !has_secret(value)).then(|| hex(&hasher.finalize()));
    json!({"$truncated": true, "bytes": bytes, "sha256": digest})
}

/// Rules that find secrets in data which the log only contains as a digest.
static REDACTION: LazyLock<Redaction> = LazyLock::new(|| Redaction::default().for_search());

pub(crate) fn has_secret(value: Value) -> bool {
    REDACTION.is_in(value)
}

pub(crate) fn is_secret_text(text: &str) -> bool {
    REDACTION.is_secret(text)
}

/// Returns the SHA-256 of data that is not logged, in hexadecimal. Returns `None` if the data contains a
/// secret, because the digest would allow to verify guesses of the secret. Ambiguous JSON is searched as
/// text.
pub(crate) fn secret_safe_digest(bytes: &[u8]) -> Option<String> {
    let is_secret = match unique_keys::read(Some(bytes)) {
        Some(value) => has_secret(value),
        None => REDACTION.is_secret(&String::from_utf8_lossy(bytes)),
    };
    (!is_secret).then(|| hex(&Sha256::digest(bytes)))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn estimated_lengths_are_upper_bounds(text in "\\PC{0,8}[\0-\u{1f}\"]{0,8}", float: f64, number: i64) {
            let value = json!({text.clone(): [text, float, number, u64::MAX, null, true, false, {}, []]});
            proptest::prop_assert!(value.to_string().len() <= max_json_bytes(&value));
        }
    }

    #[test]
    fn long_values_are_logged_by_digest_unless_they_contain_a_secret() {
        let long = "x".repeat(MAX_VALUE_BYTES);
        assert!(shorten_value(json!({"text": long}))["sha256"].is_string());
        let secret = shorten_value(json!({"text": long, "password": "hunter2 or so"}));
        assert_eq!((&secret["$truncated"], &secret["sha256"]), (&json!(true), &Value::Null));
    }
}
