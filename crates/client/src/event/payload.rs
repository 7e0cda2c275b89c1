//! What a `provider.event` tells.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::{Json, is_false};

/// What a `provider.event` tells. In JSON the `type` says which it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Payload {
    /// An update that no other event has, as the agent wrote it.
    #[serde(rename = "session.update")]
    Update {
        /// The update.
        update: Json,
        /// Whether it repeats what happened long ago.
        #[serde(skip_serializing_if = "is_false")]
        replay: bool,
        /// Why it could not be taken for what it says it is.
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// A message was rewritten: what was shown of it is no longer what it says.
    #[serde(rename = "message.replaced")]
    MessageReplaced {
        /// Which of the agent's two voices.
        role: Role,
        /// The message.
        message_id: Arc<str>,
        /// All of its text now.
        text: Arc<str>,
    },
    /// The agent asks for leave, or for an answer.
    #[serde(rename = "permission.requested")]
    PermissionRequested(Box<PermissionRequested>),
    /// What it was told.
    #[serde(rename = "permission.resolved")]
    PermissionResolved(Box<PermissionResolved>),
    /// The agent would not have a setting.
    #[serde(rename = "config.rejected")]
    ConfigRejected {
        /// What was to be set.
        option: String,
        /// To what.
        value: String,
        /// Why not.
        reason: String,
    },
    /// A notification that is no update.
    #[serde(rename = "notification")]
    Notification {
        /// Its method.
        method: String,
        /// Its params.
        params: Json,
    },
    /// Something else, by a name of its own.
    #[serde(rename = "other")]
    Other {
        /// Its name.
        name: String,
        /// What there is to say.
        data: Json,
    },
}

/// One of the agent's two voices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What it says.
    Assistant,
    /// What it thinks.
    Reasoning,
}

/// What an agent wants to do: all that is known of it when it asks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionRequested {
    /// Tells requests of one session apart.
    pub request_id: String,
    /// The method it came with.
    pub method: String,
    /// The tool call it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<Arc<str>>,
    /// The tool, by the best name there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// The MCP server that runs here and whose tool it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// What the tool is called there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_tool: Option<String>,
    /// What the agent calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// More of its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The kind of tool, as the agent names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The tool's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
    /// The files it concerns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<String>,
    /// The command line to run, if the request names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Where it would run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Further members of the subject that names the command, such as arguments and variables: an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_command: Option<Json>,
    /// Members that the protocol does not have where the agent wrote them, which are judged too: a list of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Json>,
    /// The answers it offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Json>,
    /// Whether more is known of the call than was kept, so that it cannot be judged by this.
    #[serde(skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Why the request could not be read in whole, so that it cannot be judged either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What an agent that asked was told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionResolved {
    /// The request.
    pub request_id: String,
    /// The tool call it was about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<Arc<str>>,
    /// `selected`, `cancelled`, or another word of the answer.
    pub outcome: String,
    /// The option that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// What choosing it means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_kind: Option<String>,
    /// The decision with its reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Json>,
}

impl Payload {
    /// An update as it came.
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
    /// Like the derived form, which cannot read JSON that is to be kept as it is.
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
