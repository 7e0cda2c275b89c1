//! What is written into the audit log, in the words of AIP-7 with `metadata.aip44`.

use std::io;

use narrows_audit::{Actor, Decision, Event, Fact, Facts, PolicyRef, Redaction, Subject};
use narrows_policy::{Class, Ruling};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::config::Mandate;
use crate::identity::Principal;
use crate::lifecycle::Life;
use crate::shared_budget::Spent;

/// The longest input or output that is logged as it is.
const LONGEST: usize = 256 << 10;
/// The action of an entry about a decision.
pub(crate) const DECISION: &str = "policy.resolved";
/// The name of the policy of what no clause decides.
const UNNAMED: &str = "default";

/// Who is at work, as every line of a log names them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parties<'a> {
    pub(crate) mandate: &'a Mandate,
    pub(crate) who: &'a Principal,
    pub(crate) session: &'a str,
    /// The session that announced this one as its child.
    pub(crate) parent: Option<&'a str>,
}

impl Parties<'_> {
    fn event<const N: usize>(
        &self,
        action: &str,
        subject: Subject,
        about: [(&'static str, Option<Fact>); N],
    ) -> Event {
        let mut facts = Facts::from(about);
        facts.insert("operator", self.mandate.operator.clone());
        facts.insert("session", self.session.to_owned());
        if let Some(parent) = self.parent {
            facts.insert("parentSessionId", parent.to_owned());
        }
        facts.insert("identity", self.who.id.clone());
        facts.insert("identity_method", self.who.method.name());
        facts.insert("tier", self.mandate.tier.clone());
        Event {
            actor: Actor {
                id: clipped(&format!("operator:{}", self.mandate.operator), 256),
                role: Some("operator".to_owned()),
            },
            action: action.to_owned(),
            subject,
            facts,
            ..Event::default()
        }
    }

    fn of_session(&self) -> Subject {
        Subject { kind: "session".to_owned(), reference: Some(clipped(self.session, 256)), path: None }
    }

    /// A step in the life of the operator.
    pub(crate) fn step(&self, life: Life, reason: Option<&str>) -> Event {
        let about = [("kind", Some("state".into())), ("reason", reason.map(told))];
        self.event(life.action(), self.of_session(), about)
    }

    /// A request of the client is about to be sent to the agent. Its parameters are known by their length and a digest.
    pub(crate) fn accepted(&self, action: &str, method: &str, params: &[u8]) -> Event {
        let about = [("kind", Some("request".into())), ("method", Some(clipped(method, 128).into()))];
        let input = json!({"bytes": params.len(), "sha256": digest(params)});
        Event { input: Some(input), ..self.event(action, self.of_session(), about) }
    }

    /// Something was refused before any tool was in question.
    pub(crate) fn refused(&self, what: &str, code: &str, input: Value) -> Event {
        let about = [("kind", Some("refusal".into())), ("code", Some(told(code)))];
        Event {
            input: Some(bounded(input)),
            policy: Some(PolicyRef { reference: UNNAMED.to_owned(), decision: Some(Decision::Deny) }),
            ..self.event(what, self.of_session(), about)
        }
    }

    /// A method for which there is no rule was passed on, or refused with this code.
    pub(crate) fn method(&self, sender: Sender, refused: Option<&'static str>, input: Value) -> Event {
        let about = [
            ("kind", Some("method".into())),
            ("sender", Some(sender.name().into())),
            ("code", refused.map(Fact::from)),
        ];
        let (action, decision) = match refused {
            Some(_) => ("method.refused", Decision::Deny),
            None => ("method.allowed", Decision::Allow),
        };
        Event {
            input: Some(bounded(input)),
            policy: Some(PolicyRef { reference: UNNAMED.to_owned(), decision: Some(decision) }),
            ..self.event(action, self.of_session(), about)
        }
    }

    /// Members that the protocol does not have were taken out of a message.
    pub(crate) fn members(&self, sender: Sender, method: &str, names: &[String]) -> Event {
        let input = json!({"sender": sender.name(), "method": clipped(method, 128), "members": names});
        self.refused("member.refused", "unknown_member", input)
    }

    /// Somebody did not answer in time, or answered after it.
    pub(crate) fn deadline(&self, what: &str, method: &str, reason: &str) -> Event {
        let about = [
            ("kind", Some("deadline".into())),
            ("method", Some(clipped(method, 128).into())),
            ("reason", Some(told(reason))),
        ];
        self.event(what, self.of_session(), about)
    }

    /// The session is over.
    pub(crate) fn closed(&self, reason: &str) -> Event {
        let about = [("kind", Some("state".into())), ("reason", Some(told(reason)))];
        self.event("session.closed", self.of_session(), about)
    }

    /// What was decided about a call, before anything of it is done or shown.
    /// What it takes of budgets is told to whoever shares them.
    pub(crate) fn resolved(
        &self,
        call: &Case<'_>,
        ruling: &Ruling,
        approval: &Approved,
        spent: Option<&Spent>,
    ) -> Event {
        let about = [
            ("kind", Some("decision".into())),
            ("tool", Some(told(call.tool))),
            ("toolCallId", Some(told(call.id))),
            ("claimedTool", call.posed.map(told)),
            ("toolKinds", Some(call.kinds.join(", ").into())),
            ("approval", Some(approval.name())),
            ("reason", Some(ruling.to_string().into())),
            ("risk", Some(ruling.risk.into())),
            ("spent", spent.map(|spent| json!(spent).into())),
        ];
        let decision =
            if *approval == Approved::Pending { decision(ruling.class) } else { approval.decision() };
        Event {
            input: Some(bounded(call.input.clone())),
            policy: Some(PolicyRef { reference: named(ruling), decision: Some(decision) }),
            signatures: approval.signatures(),
            ..self.event(DECISION, tool(call.tool), about)
        }
    }

    /// What came of a call, with all that there is to know about it.
    pub(crate) fn called(
        &self,
        call: &Case<'_>,
        ruling: &Ruling,
        approval: &Approved,
        output: Value,
    ) -> Event {
        let about = [
            ("kind", Some("tool-call".into())),
            ("tool", Some(told(call.tool))),
            ("toolCallId", Some(told(call.id))),
            ("claimedTool", call.posed.map(told)),
            ("toolKinds", Some(call.kinds.join(", ").into())),
            ("approval", Some(approval.name())),
        ];
        Event {
            input: Some(bounded(call.input.clone())),
            output: Some(bounded(output)),
            policy: Some(PolicyRef { reference: named(ruling), decision: Some(approval.decision()) }),
            signatures: approval.signatures(),
            ..self.event("tool.call", tool(call.tool), about)
        }
    }
}

/// The end of a connection that sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Client,
    Agent,
}

impl Sender {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Agent => "agent",
        }
    }
}

/// A call as a line of the log names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) tool: &'a str,
    pub(crate) id: &'a str,
    /// What it was told to be, and is not.
    pub(crate) posed: Option<&'a str>,
    pub(crate) input: &'a Value,
    pub(crate) kinds: &'a [&'static str],
}

/// How it came that something may or may not be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Approved {
    /// It is not settled yet.
    #[default]
    Pending,
    /// By the policy alone.
    Auto,
    /// By somebody.
    By { approvers: Vec<String>, signatures: Vec<String> },
    /// Not at all.
    Refused(String),
}

impl Approved {
    pub(crate) fn is_given(&self) -> bool {
        matches!(self, Self::Auto | Self::By { .. })
    }

    fn name(&self) -> Fact {
        match self {
            Self::Pending => "pending".into(),
            Self::Auto => "auto".into(),
            Self::By { approvers, .. } => approvers.join(", ").into(),
            Self::Refused(why) => json!({"refused": why}).into(),
        }
    }

    fn decision(&self) -> Decision {
        match self {
            Self::Auto | Self::By { .. } => Decision::Allow,
            Self::Pending => Decision::RequireApproval,
            Self::Refused(_) => Decision::Deny,
        }
    }

    fn signatures(&self) -> Vec<String> {
        match self {
            Self::By { signatures, .. } => signatures.clone(),
            _ => Vec::new(),
        }
    }
}

fn told(text: &str) -> Fact {
    text.to_owned().into()
}

fn tool(name: &str) -> Subject {
    Subject { kind: "tool".to_owned(), reference: Some(clipped(name, 256)), path: None }
}

fn decision(class: Class) -> Decision {
    match class {
        Class::Allow => Decision::Allow,
        Class::RequireApproval => Decision::RequireApproval,
        Class::Escalate => Decision::Escalate,
        Class::Deny => Decision::Deny,
    }
}

fn named(ruling: &Ruling) -> String {
    ruling.decided_by().unwrap_or(UNNAMED).to_owned()
}

fn clipped(text: &str, most: usize) -> String {
    // Bytes are at least as many as characters, and cheaper to count.
    if text.len() <= most {
        return text.to_owned();
    }
    text.chars().take(most).collect()
}

/// How long something is that is not kept.
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

/// How long the text of a value is at most, which is quicker to find out than how long it is.
fn at_most(value: &Value) -> usize {
    // An escape has six bytes for one.
    let text = |text: &str| 6 * text.len() + 2;
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 32,
        Value::String(string) => text(string),
        Value::Array(items) => 2 + items.iter().map(|item| at_most(item) + 1).sum::<usize>(),
        Value::Object(members) => {
            2 + members.iter().map(|(key, member)| text(key) + at_most(member) + 2).sum::<usize>()
        }
    }
}

/// A value, or what identifies it if it is too long for a log.
fn bounded(value: Value) -> Value {
    if at_most(&value) <= LONGEST {
        return value;
    }
    let mut length = Length(0);
    if serde_json::to_writer(&mut length, &value).is_ok() && length.0 <= LONGEST {
        return value;
    }
    let text = value.to_string();
    json!({"$truncated": true, "bytes": text.len(), "sha256": digest(text.as_bytes())})
}

/// The SHA-256 of something that is not in the log itself, in hexadecimal. Nothing if a secret is in it: it could be found out
/// by that, one guess after the other.
pub(crate) fn digest(bytes: &[u8]) -> Option<String> {
    let redaction = Redaction::default();
    let is_secret = redaction.is_secret(&String::from_utf8_lossy(bytes))
        || serde_json::from_slice::<Value>(bytes).is_ok_and(|value| redaction.is_in(&value));
    (!is_secret).then(|| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_text_is_longer_than_it_can_be(text in "\\PC{0,8}[\0-\u{1f}\"]{0,8}", float: f64, number: i64) {
            let value = json!({text.clone(): [text, float, number, u64::MAX, null, true, false, {}, []]});
            proptest::prop_assert!(value.to_string().len() <= at_most(&value));
        }
    }

    #[test]
    fn what_is_too_long_is_known_by_a_digest_unless_a_secret_is_in_it() {
        let long = "x".repeat(LONGEST);
        assert!(bounded(json!({"text": long}))["sha256"].is_string());
        let secret = bounded(json!({"text": long, "password": "hunter2 or so"}));
        assert_eq!((&secret["$truncated"], &secret["sha256"]), (&json!(true), &Value::Null));
    }
}
