//! Reads permission requests and reports them as events.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use narrows_acp::{Version, method};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::call::{Call, Patch};
use super::read::{Fields, Problem, check_unambiguous, list, object, string};
use super::{Emit, Mapper, surrogates};
use crate::Approval;
use crate::event::{EventBody, Json, Payload, PermissionRequested, PermissionResolved, RuntimeEvent};
use crate::peer_json::{self, PeerJsonError};

const NO_SUBJECT: &str = "the request has no subject";

/// An offered option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedOption {
    pub option_id: String,
    pub kind: String,
    pub name: String,
}

/// A tool call of a permission request, other than its first.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherCall {
    pub call: Call,
    /// MCP server and tool of the call; see [`ReadRequest::mcp`].
    pub mcp: Option<(String, String)>,
}

/// A permission request, as far as it could be parsed. Decisions use only these fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadRequest {
    /// The tool call as the agent has reported it so far. Its id is empty if the request has no call.
    pub call: Call,
    pub title: Option<String>,
    pub description: Option<String>,
    /// Further tool calls of the same request. The agent may mean any of these calls, so the policy judges
    /// all.
    pub other_calls: Vec<OtherCall>,
    /// Command line, if the request contains one (v2).
    pub command: Option<String>,
    pub cwd: Option<String>,
    /// Other members of the object that contains the command, such as arguments. The policy judges them with
    /// the command.
    pub beside_command: Option<Json>,
    /// Members of the request, of its tool calls, and of a subject without a command that the protocol does
    /// not define. The agent may mean any of them, so the policy judges all.
    pub unknown: Vec<Json>,
    /// Offered options. Unreadable options are omitted.
    pub options: Vec<OfferedOption>,
    /// MCP server and tool that the request is about, if the client hosts the server.
    pub mcp: Option<(String, String)>,
    /// Approval that the request asks for, if it comes from a governance gate in front of the agent.
    pub approval: Option<Approval>,
    /// Reason why the request could not be read completely or unambiguously. If set, the requested action is
    /// unknown.
    pub problem: Option<String>,
    /// `true` if the request contains only a title. Version 2 permits such a request.
    pub is_bare: bool,
}

impl ReadRequest {
    /// Returns the command of the request as the input of a tool call.
    pub(crate) fn command_input(&self) -> Option<Value> {
        let command = self.command.as_ref()?;
        let mut input = match self.beside_command.as_ref().map(Json::value) {
            Some(Value::Object(members)) => members,
            _ => Map::new(),
        };
        input.insert("command".to_owned(), command.as_str().into());
        input.insert("cwd".to_owned(), self.cwd.as_deref().into());
        Some(Value::Object(input))
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        std::iter::once(&self.call).chain(self.other_calls.iter().map(|other| &other.call))
    }

    /// Returns the reason why the policy cannot judge the request.
    fn reason_unjudged(&self) -> Option<String> {
        self.problem.clone().or_else(|| self.is_bare.then(|| NO_SUBJECT.to_owned()))
    }
}

/// A permission request of version 1 or 2. Each member is parsed separately.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Request<'a> {
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_call: Option<&'a RawValue>,
    #[serde(borrow)]
    subject: Option<&'a RawValue>,
    #[serde(borrow)]
    options: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_call_id: Option<&'a RawValue>,
}

/// Members that the protocol defines for a request, its tool call or its subject. Others are unknown.
const REQUEST_MEMBERS: &[&str] =
    &["sessionId", "title", "description", "toolCall", "toolCallId", "subject", "options", "_meta"];
const CALL_MEMBERS: &[&str] = &[
    "toolCallId",
    "title",
    "name",
    "kind",
    "status",
    "content",
    "locations",
    "rawInput",
    "rawOutput",
    "_meta",
];
const SUBJECT_MEMBERS: &[&str] = &["type", "toolCall", "toolCallId", "terminalId", "command", "cwd", "_meta"];

/// Members of a JSON object, with their values as written.
type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// Returns the members of the object `text` that are neither `known` nor null.
fn other_members<'a>(text: &'a str, known: &[&str]) -> Members<'a> {
    let mut members: Members<'a> = object(text).unwrap_or_default();
    members.retain(|name, value| !known.contains(&&**name) && value.get() != "null");
    members
}

/// Returns `true` if `value` is the `capabilities` object of a version 2 tool call and has no unknown
/// members.
fn is_capabilities(value: &RawValue) -> bool {
    let has_only_meta = |value: &RawValue| {
        object::<Members<'_>>(value.get()).is_ok_and(|all| all.keys().all(|key| key == "_meta"))
    };
    object::<Members<'_>>(value.get()).is_ok_and(|members| {
        members.iter().all(|(key, value)| match &**key {
            "_meta" => true,
            "cancel" => value.get() == "null" || has_only_meta(value),
            _ => false,
        })
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    aip44: Option<Gate>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Gate {
    approval: Option<String>,
    reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Subject<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    tool_call: Option<&'a RawValue>,
    #[serde(borrow)]
    command: Option<Cow<'a, str>>,
    #[serde(borrow)]
    cwd: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tool_call_id: Option<Cow<'a, str>>,
}

impl Subject<'_> {
    /// Returns the reason why the requested action is unknown: the members of an unknown type may mean
    /// anything.
    fn problem(&self) -> Option<String> {
        match &*self.r#type {
            "tool_call" if self.tool_call.is_some() => None,
            "command" if self.command.is_some() => None,
            "tool_call" | "command" => Some("the subject is incomplete".to_owned()),
            _ => Some("the subject has an unknown type".to_owned()),
        }
    }
}

impl Mapper {
    /// Reads a request for permission or other user input, and pushes it as `permission.requested`.
    /// `request_id` is unique in the session.
    pub fn permission_requested(
        &mut self,
        request_id: &str,
        method: &str,
        params: &[u8],
        now_ms: u64,
        out: &mut Vec<RuntimeEvent>,
    ) -> ReadRequest {
        let repaired = surrogates::repaired(params);
        let text = std::str::from_utf8(repaired.as_deref().unwrap_or(params)).unwrap_or("null");
        let checked =
            std::str::from_utf8(params).ok().filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
        let emit = &mut Emit { now_ms, out, params: checked, raw: None };
        let (mut asked, options) = self.read_request(method, text, emit);
        if asked.problem.is_none() {
            asked.problem = check_unambiguous(text).err();
        }
        asked.mcp = self.hosted_tool_of(&asked.call);
        for other in &mut asked.other_calls {
            other.mcp = self.hosted_tool_of(&other.call);
        }
        // The MCP tool is ignored if the request has a command, because the command is another action.
        let mcp = asked.mcp.as_ref().filter(|_| asked.command.is_none());
        let told = |id: &str| (!id.is_empty()).then(|| Arc::from(id));
        let call = &asked.call;
        let requested = PermissionRequested {
            request_id: request_id.to_owned(),
            method: method.to_owned(),
            call_id: told(&call.id),
            tool_name: (*call != Call::default()).then(|| call.tool_name()),
            server: mcp.map(|(server, _)| server.clone()),
            server_tool: mcp.map(|(_, tool)| tool.clone()),
            title: asked.title.clone().or_else(|| call.title.clone()),
            description: asked.description.clone(),
            kind: call.kind.clone(),
            input: call.raw_input.clone(),
            locations: call.paths(),
            command: asked.command.clone(),
            cwd: asked.cwd.clone(),
            beside_command: asked.beside_command.clone(),
            unknown: (!asked.unknown.is_empty()).then(|| Json::write(&asked.unknown)),
            options,
            truncated: call.is_partial(),
            problem: asked.reason_unjudged(),
        };
        let payload = Payload::PermissionRequested(Box::new(requested));
        let provider = Arc::clone(&self.provider);
        let body = EventBody::Provider { provider, payload };
        self.push_with_raw(emit, body);
        asked
    }

    /// Returns the MCP server and tool of `call`, if the client hosts the server. `None` if the names in the
    /// call disagree.
    fn hosted_tool_of(&self, call: &Call) -> Option<(String, String)> {
        call.sole_name().and_then(|name| self.hosted_tool(name))
    }

    /// Returns the hosted MCP server and the tool that `name` means. Agents write `SERVER__TOOL`, some with
    /// the prefix `mcp__`. `None` if `name` is ambiguous.
    fn hosted_tool(&self, name: &str) -> Option<(String, String)> {
        let name = name.strip_prefix("mcp__").unwrap_or(name);
        let mut found = self.servers.iter().filter_map(|server| {
            // Models accept only these characters in tool names.
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            let plain = server.replace(|c: char| !is_plain(c), "_");
            let rest = name.strip_prefix(server.as_str()).or_else(|| name.strip_prefix(&plain))?;
            let tool = rest.strip_prefix("__")?;
            (!tool.is_empty()).then(|| (server.clone(), tool.to_owned()))
        });
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Pushes the answer to a request as `permission.resolved`.
    pub fn permission_resolved(
        &self,
        resolved: PermissionResolved,
        now_ms: u64,
        out: &mut Vec<RuntimeEvent>,
    ) {
        self.push_payload(&mut Emit::new(now_ms, out), Payload::PermissionResolved(Box::new(resolved)));
    }

    fn read_request<'a>(
        &mut self,
        method: &str,
        params: &'a str,
        emit: &mut Emit<'_>,
    ) -> (ReadRequest, Option<Json>) {
        let mut asked = ReadRequest::default();
        // A request with too many values cannot be judged anyway, so its unknown members are not listed.
        let has_too_many_values = peer_json::has_too_many_values(params.as_bytes());
        let other_members = |text: &'a str, known: &[&str]| match has_too_many_values {
            true => Members::default(),
            false => other_members(text, known),
        };
        let request: Request<'a> = object(params).unwrap_or_else(|problem| {
            asked.problem = Some(problem);
            Request::default()
        });
        let words = |text: Option<&RawValue>| text.and_then(|text| string(text).ok()).map(Cow::into_owned);
        asked.title = words(request.title.or(request.message));
        let meta: Meta = request.meta.and_then(|meta| object(meta.get()).ok()).unwrap_or_default();
        let gate = meta.aip44.unwrap_or_default();
        let reason = gate.reason.unwrap_or_default();
        asked.approval = gate.approval.map(|id| Approval { id, reason });
        let asks = asked.approval.as_ref().filter(|approval| !approval.reason.is_empty());
        let reason = asks.map(|approval| format!("governance requires an approval: {}", approval.reason));
        asked.description = words(request.description).or(reason);
        let subject: Subject<'a> = match request.subject.map(|subject| object(subject.get())) {
            Some(Ok(subject)) => subject,
            Some(Err(problem)) => {
                asked.problem = Some(problem);
                Subject::default()
            }
            None => Subject::default(),
        };
        if request.subject.is_some() && asked.problem.is_none() {
            asked.problem = subject.problem();
        }
        // The command counts even if the type of the subject does not define a command.
        asked.command = subject.command.map(Cow::into_owned);
        asked.cwd = subject.cwd.map(Cow::into_owned);
        let mut unknown = vec![other_members(params, REQUEST_MEMBERS)];
        if let Some(subject) = request.subject {
            let beside = other_members(subject.get(), SUBJECT_MEMBERS);
            match asked.command {
                Some(_) => asked.beside_command = (!beside.is_empty()).then(|| Json::write(&beside)),
                None => unknown.push(beside),
            }
        }
        let mut calls: Vec<Call> = Vec::new();
        for call in [request.tool_call, subject.tool_call].into_iter().flatten() {
            let mut others = other_members(call.get(), CALL_MEMBERS);
            others.retain(|name, value| name != "capabilities" || !is_capabilities(value));
            unknown.push(others);
            match self.read_call(call) {
                Ok(patch) if calls.is_empty() => calls.push(self.ask_for(patch, emit)),
                Ok(patch) => calls.push(self.known_with(patch)),
                Err(problem) => asked.problem = Some(problem),
            }
        }
        for id in
            [subject.tool_call_id.map(Cow::into_owned), words(request.tool_call_id)].into_iter().flatten()
        {
            if calls.iter().any(|call| *call.id == *id) {
                continue;
            }
            if calls.is_empty() {
                calls.push(self.calls.get(&id).cloned().unwrap_or_else(|| Call::new(&id)));
                self.advance(&id, true, emit);
            } else if let Some(call) = self.calls.get(&id) {
                calls.push(call.clone());
            }
        }
        let mut calls = calls.into_iter();
        asked.call = calls.next().unwrap_or_default();
        asked.other_calls = calls.map(|call| OtherCall { call, mcp: None }).collect();
        if method == method::SESSION_REQUEST_PERMISSION && request.tool_call.or(request.subject).is_none() {
            match self.version {
                Version::V2 if asked.problem.is_none() => asked.is_bare = true,
                _ => _ = asked.problem.get_or_insert_with(|| NO_SUBJECT.to_owned()),
            }
        }
        if has_too_many_values || asked.calls().any(Call::has_too_many_values) {
            asked.problem.get_or_insert_with(|| PeerJsonError::TooManyValues.to_string());
        }
        if asked.problem.is_none() && asked.calls().any(Call::is_ambiguous) {
            let reason = "in the tool call a key appears twice, or a location has no path";
            asked.problem = Some(reason.to_owned());
        }
        asked.unknown = unknown.iter().filter(|members| !members.is_empty()).map(Json::write).collect();
        asked.options = request.options.map(read_options).unwrap_or_default();
        (asked, request.options.map(Json::from))
    }

    fn read_call<'a>(&self, call: &'a RawValue) -> Result<Patch<'a>, Problem> {
        let fields: Fields<'_> = object(call.get())?;
        let patch = Patch::from_fields(fields)?;
        self.calls.check(patch.id())?;
        Ok(patch)
    }

    /// Returns the known call merged with the fields of the request. The merged call is not stored.
    fn known_with(&self, patch: Patch<'_>) -> Call {
        let mut call = self.calls.get(patch.id()).cloned().unwrap_or_else(|| Call::new(patch.id()));
        patch.merge(&mut call, self.version, usize::MAX);
        call
    }

    /// Merges the fields of the request into the stored call, and returns the call.
    fn ask_for(&mut self, patch: Patch<'_>, emit: &mut Emit<'_>) -> Call {
        let id: Arc<str> = patch.id().into();
        if self.calls.is_completed(&id, false) {
            // The stored call with this id has completed, perhaps because the agent reuses ids. Only the
            // fields of the request describe the new call.
            let mut call = Call::new(&id);
            patch.merge(&mut call, self.version, usize::MAX);
            return call;
        }
        self.merge(&id, patch);
        let call = self.calls.get(&id).cloned().unwrap_or_default();
        self.advance(&id, true, emit);
        call
    }
}

fn read_options(options: &RawValue) -> Vec<OfferedOption> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Option {
        option_id: String,
        kind: String,
        #[serde(default)]
        name: String,
    }
    let read = |option: &RawValue| object::<Option>(option.get()).ok();
    let each = list(options).unwrap_or_default().into_iter().filter_map(read);
    each.map(|Option { option_id, kind, name }| OfferedOption { option_id, kind, name }).collect()
}
