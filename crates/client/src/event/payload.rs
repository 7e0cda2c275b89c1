//! Payload of a `provider.event`.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::{Json, is_false};

/// Payload of a `provider.event`. In JSON, the variant is its `type`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Payload {
    /// An update that has no event type of its own, as written by the agent.
    #[serde(rename = "session.update")]
    Update {
        update: Json,
        /// `true` if the update is a replay of the session's history.
        #[serde(skip_serializing_if = "is_false")]
        replay: bool,
        /// Reason why the update could not be parsed as its type.
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// The agent replaced the text of a message. Deltas of the earlier text are no longer valid.
    #[serde(rename = "message.replaced")]
    MessageReplaced { role: Role, message_id: Arc<str>, text: Arc<str> },
    #[serde(rename = "permission.requested")]
    PermissionRequested(Box<PermissionRequested>),
    #[serde(rename = "permission.resolved")]
    PermissionResolved(Box<PermissionResolved>),
    #[serde(rename = "config.rejected")]
    ConfigRejected { option: String, value: String, reason: String },
    /// A notification other than an update.
    #[serde(rename = "notification")]
    Notification { method: String, params: Json },
    /// Another event of the client, identified by `name`.
    #[serde(rename = "other")]
    Other { name: String, data: Json },
}

/// Role of a message of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Assistant,
    Reasoning,
}

/// A permission request, with all known members of its tool call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionRequested {
    /// Id of the request, unique in the session.
    pub request_id: String,
    pub method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// Name of the MCP server that provides the tool, if the client hosts that server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_tool: Option<String>,
    /// Title given by the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Kind of tool, as named by the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<String>,
    /// Command line, if the request names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Other members of the object that contains the command, such as arguments and variables, as a JSON
    /// object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_command: Option<Json>,
    /// Members that the protocol does not define, as a list of objects. The policy judges them too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Json>,
    /// `true` if parts of the call were too large to keep, so that this event is not enough to judge it.
    #[serde(skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Reason why the request could not be read completely, so that it cannot be judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The answer to a permission request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionResolved {
    pub request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<Arc<str>>,
    /// Outcome of the request, such as `selected` or `cancelled`.
    pub outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_kind: Option<String>,
    /// The decision with its reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Json>,
}

impl Payload {
    /// Wraps an update as it was received.
    pub fn update(update: Json) -> Self {
        Self::Update { update, replay: false, problem: None }
    }

    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Update { update, problem, .. } => update.len() + problem.as_ref().map_or(0, String::len),
            Self::MessageReplaced { message_id, text, .. } => message_id.len() + text.len(),
            Self::PermissionRequested(asked) => {
                let json = [&asked.input, &asked.options].into_iter().flatten().map(Json::len);
                let words = [&asked.title, &asked.description, &asked.command].into_iter().flatten();
                json.sum::<usize>() + words.chain(&asked.locations).map(String::len).sum::<usize>()
            }
            Self::PermissionResolved(told) => told.decision.as_ref().map_or(0, Json::len),
            Self::ConfigRejected { option, value, reason } => option.len() + value.len() + reason.len(),
            Self::Notification { method, params } => method.len() + params.len(),
            Self::Other { name, data } => name.len() + data.len(),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    /// The derived implementation cannot read members that are raw JSON.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Tag {
            r#type: String,
        }
        #[derive(Deserialize)]
        struct Update {
            update: Json,
            #[serde(default)]
            replay: bool,
            problem: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Replaced {
            role: Role,
            message_id: Arc<str>,
            text: Arc<str>,
        }
        #[derive(Deserialize)]
        struct Rejected {
            option: String,
            value: String,
            reason: String,
        }
        #[derive(Deserialize)]
        struct Notification {
            method: String,
            params: Json,
        }
        #[derive(Deserialize)]
        struct Other {
            name: String,
            data: Json,
        }
        fn read<'a, T: Deserialize<'a>, E: serde::de::Error>(text: &'a RawValue) -> Result<T, E> {
            serde_json::from_str(text.get()).map_err(E::custom)
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Tag { r#type } = read(&text)?;
        Ok(match &*r#type {
            "session.update" => {
                let Update { update, replay, problem } = read(&text)?;
                Self::Update { update, replay, problem }
            }
            "message.replaced" => {
                let Replaced { role, message_id, text } = read(&text)?;
                Self::MessageReplaced { role, message_id, text }
            }
            "permission.requested" => Self::PermissionRequested(read(&text)?),
            "permission.resolved" => Self::PermissionResolved(read(&text)?),
            "config.rejected" => {
                let Rejected { option, value, reason } = read(&text)?;
                Self::ConfigRejected { option, value, reason }
            }
            "notification" => {
                let Notification { method, params } = read(&text)?;
                Self::Notification { method, params }
            }
            "other" => {
                let Other { name, data } = read(&text)?;
                Self::Other { name, data }
            }
            other => {
                return Err(D::Error::custom(format_args!("unknown payload {other:?}")));
            }
        })
    }
}
