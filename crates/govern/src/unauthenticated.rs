//! The gate for unauthenticated clients. It tells them the authentication method and refuses all requests.

use bytes::Bytes;
use narrows_acp::method;
use narrows_audit::Event;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::json;

use crate::audit_events::AuditContext;
use crate::config::GateConfig;
use crate::identity::Principal;

/// Answers the messages of an unauthenticated client. The client gets no agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnauthenticatedGate {
    pub id: String,
    pub name: String,
    pub description: String,
}

impl UnauthenticatedGate {
    /// Returns the answer to a message. Returns `None` if the message gets no answer.
    #[must_use]
    pub fn answer(&self, message: View<'_>) -> Option<Bytes> {
        let Self { id: method_id, name, description } = self;
        let id = match message.kind() {
            Kind::Request => message.id()?,
            Kind::Batch => b"null",
            Kind::Notification | Kind::Response => return None,
            Kind::Invalid(_) => return message.refusal(),
        };
        if message.kind() == Kind::Request && message.method()? == method::INITIALIZE {
            let result = json!({
                "protocolVersion": 1,
                "agentCapabilities": {},
                "authMethods": [{"id": method_id, "name": name, "description": description}],
            });
            return message::response(id, &result).ok();
        }
        Some(message::error(id, &RpcError::new(Code::AuthRequired, description.clone())))
    }

    /// Returns the audit event about a refused client.
    #[must_use]
    pub fn refused_event(config: &GateConfig, principal: &Principal) -> Event {
        let parties = AuditContext { config, principal, session: "", parent: None };
        parties.refused("client.refused", "unauthenticated", json!({"identity": principal.id}))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn answer(line: &str) -> Option<Value> {
        let gate =
            UnauthenticatedGate { id: "os-user".into(), name: "n".into(), description: "be somebody".into() };
        let answer = gate.answer(View::parse(line.as_bytes()))?;
        serde_json::from_slice(&answer).ok()
    }

    #[test]
    fn only_the_authentication_method_is_offered() {
        let offered =
            answer(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#);
        let offered = offered.expect("an answer");
        assert_eq!(offered["result"]["authMethods"].as_array().map(Vec::len), Some(1), "{offered}");
        for method in ["session/new", "session/load", "session/list", "session/prompt", "authenticate", "x"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{{}}}}"#);
            let refused = answer(&line).expect("an answer");
            assert_eq!(
                (&refused["error"]["code"], &refused["id"]),
                (&json!(-32000), &json!("a")),
                "{refused}"
            );
        }
        let several = answer(r#"[{"jsonrpc":"2.0","id":1,"method":"session/new"}]"#).expect("an answer");
        assert_eq!(several["error"]["code"], -32000);
        assert_eq!(answer(r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}"#), None);
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), None);
        assert_eq!(answer("{").expect("an answer")["error"]["code"], -32700);
    }
}
