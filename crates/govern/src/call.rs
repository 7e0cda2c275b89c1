//! A tool call, assembled from the messages of an agent about it.

mod changes;
mod content;
mod part_cache;
mod recorded;
mod request;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use narrows_audit::jcs;
use narrows_policy::{Action, Kind};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use self::content::{blocks, change_blocks, is_empty};
use self::part_cache::{PartCache, PartCaches};
use self::recorded::RecordedParts;
use self::request::mcp_read_action;
use crate::coverage::NON_TOOL_ACTIONS;
use crate::gate::value_bytes;
use crate::unique_keys::UnambiguousJson;

/// Prefix of a tool kind in lists of tool names: `kind:read` stands for all tools of this kind.
const KIND_PREFIX: &str = "kind:";

pub(crate) use self::recorded::repeated_input;

pub(crate) type Digest = [u8; 32];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallStatus {
    #[default]
    Pending,
    #[serde(rename = "in_progress")]
    Running,
    Completed,
    Failed,
    /// Any status that the protocol does not have. The call counts as possibly started.
    #[serde(other)]
    Unknown,
}

impl CallStatus {
    fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// One message of the agent about a call. Duplicate or ambiguous members make the message invalid.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallUpdate<'a> {
    #[serde(borrow, default)]
    session_update: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) tool_call_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) status: Option<CallStatus>,
    #[serde(default)]
    raw_input: Option<UnambiguousJson>,
    #[serde(default)]
    raw_output: Option<UnambiguousJson>,
    #[serde(default)]
    content: Option<UnambiguousJson>,
    #[serde(default)]
    locations: Option<Vec<Location>>,
    #[serde(rename = "_meta", default)]
    meta: Option<UnambiguousJson>,
}

impl CallUpdate<'_> {
    /// Returns a call update for a command that the agent runs without a tool call message.
    pub(crate) fn for_command(
        kind: &'static str,
        input: Option<Value>,
        status: Option<CallStatus>,
        output: Option<UnambiguousJson>,
    ) -> CallUpdate<'static> {
        let (kind, raw_input) = (Some(Cow::Borrowed(kind)), input.map(UnambiguousJson));
        CallUpdate { kind, raw_input, status, raw_output: output, ..CallUpdate::default() }
    }

    /// Returns an upper bound of the memory that a call needs for this update.
    pub(crate) fn retained_bytes(&self) -> usize {
        let texts = [&self.tool_call_id, &self.name, &self.kind].into_iter().flatten();
        let values = [&self.raw_input, &self.raw_output, &self.content, &self.meta].into_iter().flatten();
        let locations = self.locations.iter().flatten().map(|location| {
            let unusual = location.unusual.as_ref().map_or(0, value_bytes);
            size_of::<Location>() + location.path.as_os_str().len() + unusual
        });
        texts.map(|text| text.len()).sum::<usize>()
            + values.map(|UnambiguousJson(value)| value_bytes(value)).sum::<usize>()
            + locations.sum::<usize>()
    }

    pub(crate) fn terminals(&self) -> Vec<String> {
        let Some(UnambiguousJson(content)) = &self.content else { return Vec::new() };
        let shown = blocks(content).into_iter().filter(|block| block["type"] == "terminal");
        shown.filter_map(|block| block["terminalId"].as_str().map(str::to_owned)).collect()
    }

    pub(crate) fn is_change(&self) -> bool {
        self.content.as_ref().is_some_and(|UnambiguousJson(content)| !change_blocks(content).is_empty())
    }

    /// Returns `true` if the update reports that the call has not started. An announcement without a status
    /// counts as such a report.
    fn is_pending(&self) -> bool {
        match self.status {
            Some(status) => status == CallStatus::Pending,
            None => self.is_announcement(),
        }
    }

    /// Returns `true` if the update announces a call. Version 1 announces each call once.
    fn is_announcement(&self) -> bool {
        self.session_update.as_deref() == Some("tool_call")
    }
}

/// A file or directory that a call reports. Unknown members of a location may name another file.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "UnambiguousJson")]
struct Location {
    path: PathBuf,
    /// The complete location, if it has unknown members.
    unusual: Option<Value>,
}

impl TryFrom<UnambiguousJson> for Location {
    type Error = &'static str;

    fn try_from(UnambiguousJson(value): UnambiguousJson) -> Result<Self, Self::Error> {
        let path = value["path"].as_str().map(PathBuf::from).ok_or("a location has no path")?;
        let is_known = |name: &String| matches!(name.as_str(), "path" | "line" | "_meta");
        let is_usual = value.as_object().is_some_and(|members| members.keys().all(is_known));
        Ok(Self { path, unusual: (!is_usual).then_some(value) })
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    name: Option<String>,
    /// Reserved name, such as a tool kind, that the agent reported as the tool name. Only recorded, because
    /// the agent can report any name.
    claimed: Option<String>,
    kind: Option<String>,
    server: Option<String>,
    /// Tool name under which the built-in agent will announce the call.
    reported_name: Option<String>,
    pub(crate) progress: CallStatus,
    began: bool,
    /// `true` if the agent reported an output, or content of a failed call.
    has_result: bool,
    pub(crate) input: Value,
    pub(crate) output: Value,
    recorded: Option<Digest>,
    locations: Vec<PathBuf>,
    unusual_locations: Vec<Value>,
    changes: Vec<Value>,
    /// The command and `cwd` of the last permission request for this call, if they differ from the input.
    asked_command: Option<Value>,
    /// Diffs that the agent showed after the call was allowed, if their text differs from `changes`.
    result_diffs: Option<Vec<Value>>,
    /// `true` if the call is allowed with its current input. Another text of an approved diff then counts as
    /// a result.
    is_allowed: bool,
    /// `true` for a mode, model or option change by the client. Such a change needs no tool of the operator.
    is_session_change: bool,
    /// `true` for an MCP request that only reads, such as `resources/read`.
    is_mcp_read: bool,
    /// Path of a client request with all links resolved.
    resolved_path: Option<PathBuf>,
    /// Members of an MCP tool request other than name and arguments, as an object. The server may act on
    /// them.
    extra_members: Option<Value>,
    part_caches: PartCaches,
    /// What the log has of the input. Kept for further runs, which have the same input.
    recorded_parts: RecordedParts,
}

impl Call {
    pub(crate) fn session_change(name: &str, kind: &str, input: Value) -> Self {
        Self { is_session_change: true, ..Self::new(None, name, kind, input) }
    }

    pub(crate) fn new(server: Option<String>, name: &str, kind: &str, input: Value) -> Self {
        let (name, kind) = (Some(name.to_owned()), Some(kind.to_owned()));
        Self { name, kind, server, input, ..Self::default() }
    }

    /// Creates a read of an MCP server, such as a resource or a prompt.
    pub(crate) fn mcp_read(server: String, method: &str, input: Value) -> Self {
        Self { is_mcp_read: true, ..Self::new(Some(server), method, "read", input) }
    }

    /// Creates a call as a foreign agent reports it: by its kind, and by a name if it has one.
    pub(crate) fn reported(name: Option<&str>, kind: &str, input: Value) -> Self {
        let mut call = Self { kind: Some(kind.to_owned()), input, ..Self::default() };
        call.set_reported_name(name);
        call
    }

    pub(crate) fn with_reported_name(self, name: String) -> Self {
        Self { reported_name: Some(name), ..self }
    }

    pub(crate) fn retained_bytes(&self) -> usize {
        let texts =
            [&self.name, &self.claimed, &self.kind, &self.server, &self.reported_name].into_iter().flatten();
        let lists = [&self.unusual_locations, &self.changes].into_iter().chain(&self.result_diffs).flatten();
        let values = [&self.input, &self.output]
            .into_iter()
            .chain(&self.asked_command)
            .chain(&self.extra_members)
            .chain(lists);
        let paths = self.locations.iter().chain(&self.resolved_path);
        size_of::<Self>()
            + self.recorded_parts.retained_bytes()
            + texts.map(String::len).sum::<usize>()
            + values.map(value_bytes).sum::<usize>()
            + paths.map(|path| size_of::<PathBuf>() + path.as_os_str().len()).sum::<usize>()
    }

    /// Merges an update. Returns `true` if the call must be decided again.
    pub(crate) fn apply_update(&mut self, call_update: CallUpdate<'_>) -> bool {
        let is_pending = call_update.is_pending();
        let known =
            call_update.name.as_deref().map(str::to_owned).or_else(|| known_name(call_update.meta.as_ref()));
        // The built-in agent announces a tool of a server under another name. Both names mean the same tool.
        let known = known.filter(|told| self.reported_name.as_ref() != Some(told));
        let renamed = self.set_reported_name(known.as_deref());
        let mut changed = renamed;
        if let Some(kind) = call_update
            .kind
            .as_deref()
            .filter(|kind| !kind.is_empty() && *kind != self.kind.as_deref().unwrap_or_default())
        {
            self.kind = Some(kind.to_owned());
            changed = true;
        }
        if let Some(UnambiguousJson(input)) = call_update.raw_input
            && input != self.input
        {
            self.input = input;
            self.part_caches.input = PartCache::default();
            changed = true;
        }
        if let Some(locations) = call_update.locations {
            let unusual: Vec<Value> =
                locations.iter().filter_map(|location| location.unusual.clone()).collect();
            let paths: Vec<PathBuf> = locations.into_iter().map(|location| location.path).collect();
            changed |= paths != self.locations || unusual != self.unusual_locations;
            (self.locations, self.unusual_locations) = (paths, unusual);
            self.part_caches.others = PartCache::default();
        }
        let has_ended =
            [Some(self.progress), call_update.status].iter().flatten().any(|progress| progress.is_end());
        let can_be_result = has_ended || self.is_allowed && !is_pending && !self.has_no_input();
        changed |= call_update
            .content
            .as_ref()
            .is_some_and(|UnambiguousJson(content)| self.apply_changes(content, can_be_result));
        if changed {
            // The agent may have shown a newer text of a diff as a result. The next decision is about that
            // text.
            self.adopt_reported();
        }
        if let Some(status) = call_update.status {
            self.progress = self.progress.max(status);
            self.began |= !matches!(status, CallStatus::Pending | CallStatus::Failed);
        }
        // Before the end of a call, its content may show a planned effect instead of a result.
        let content = call_update.content.as_ref().filter(|_| self.progress == CallStatus::Failed);
        self.has_result |=
            [call_update.raw_output.as_ref(), content].into_iter().flatten().any(|told| !is_empty(&told.0));
        // A call with an output has run, whatever its status. A failed call is excepted, because the agent
        // itself may have refused that call.
        self.began |= self.progress != CallStatus::Failed
            && call_update.raw_output.as_ref().is_some_and(|UnambiguousJson(output)| !is_empty(output));
        // An update with a single content block contains only a part of the output.
        if let Some(UnambiguousJson(output)) = call_update
            .raw_output
            .or(call_update.content.filter(|UnambiguousJson(content)| !content.is_object()))
        {
            self.output = output;
        }
        changed
    }

    /// Records the command of a permission request for this call. Returns `true` if the call must be decided
    /// again.
    pub(crate) fn set_asked_command(&mut self, command: Value) -> bool {
        let asked = Self { kind: Some("execute".to_owned()), input: command.clone(), ..Self::default() };
        let (told, asked) = (self.action(), asked.action());
        let is_told = asked.command.is_some()
            && told.command == asked.command
            && told.cwd == asked.cwd
            && asked.env.iter().all(|variable| told.env.contains(variable))
            && asked.paths.iter().all(|path| told.paths.contains(path))
            && asked.urls.iter().all(|url| told.urls.contains(url))
            && asked.kinds().iter().all(|kind| told.kinds().contains(kind));
        let asked = (!is_told).then_some(command);
        let changed = asked != self.asked_command;
        self.asked_command = asked;
        self.part_caches.others = PartCache::default();
        changed
    }

    /// Returns the command of the last permission request as a call of the same tool.
    pub(crate) fn asked_command(&self) -> Option<Self> {
        let input = self.asked_command.clone()?;
        let name = self.name.clone().filter(|_| self.server.is_none());
        let claimed = self.claimed.clone();
        Some(Self { name, claimed, kind: Some("execute".to_owned()), input, ..Self::default() })
    }

    /// Returns `true` if the call runs the command of `wanted` in the same directory. A command without a
    /// directory runs in `usual`.
    pub(crate) fn runs_command(&self, wanted: &Action, usual: Option<&Path>) -> bool {
        let is_same = |told: Action| {
            let (there, here) = (wanted.cwd.as_deref().or(usual), told.cwd.as_deref().or(usual));
            told.command.is_some() && told.command == wanted.command && there == here
        };
        is_same(self.action()) || self.asked_command().is_some_and(|asked| is_same(asked.action()))
    }

    /// Sets the tool name that the agent reported. A reserved name is only stored as a claim, and the call
    /// then has no name. Returns `true` if the name has changed.
    fn set_reported_name(&mut self, told: Option<&str>) -> bool {
        let Some(told) = told.filter(|told| !told.is_empty()) else { return false };
        let before = if self.claimed.is_some() { &self.claimed } else { &self.name };
        if before.as_deref() == Some(told) {
            return false;
        }
        if imitates_reserved_name(told) {
            (self.name, self.server, self.claimed) = (None, None, Some(told.to_owned()));
        } else {
            (self.name, self.claimed) = (Some(told.to_owned()), None);
        }
        true
    }

    pub(crate) fn claimed_name(&self) -> Option<&str> {
        self.claimed.as_deref()
    }

    /// Returns `true` if `is_among` accepts the kind that the agent reports, and every kind that the input of
    /// the call shows.
    pub(crate) fn is_only(&self, is_among: impl Fn(&str) -> bool) -> bool {
        is_among(self.kind()) && self.action().kinds().into_iter().map(Kind::name).all(is_among)
    }

    /// Returns a new call of the same tool if this call has ended and `call_update` reports another run:
    /// another input or a running status under the same id. The caller applies `call_update` to the new call.
    pub(crate) fn new_run(&self, call_update: &CallUpdate<'_>) -> Option<Self> {
        let mut fresh = Self {
            progress: CallStatus::Pending,
            began: false,
            has_result: false,
            output: Value::Null,
            recorded: None,
            asked_command: None,
            is_allowed: false,
            ..self.clone()
        };
        fresh.part_caches.others = PartCache::default();
        // A different text of a diff alone may still be the result of the ended call.
        let changed = Self { is_allowed: true, ..fresh.clone() }.apply_update(call_update.clone());
        let runs = matches!(call_update.status, Some(CallStatus::Pending | CallStatus::Running));
        let is_other_result =
            call_update.status.is_some_and(CallStatus::is_end) && self.is_unrecorded_output(call_update);
        fresh.adopt_reported();
        (changed || runs || call_update.is_announcement() || is_other_result).then_some(fresh)
    }

    pub(crate) fn is_unrecorded_output(&self, call_update: &CallUpdate<'_>) -> bool {
        let output = call_update
            .raw_output
            .as_ref()
            .map(|UnambiguousJson(output)| output)
            .filter(|output| !is_empty(output));
        output.is_some_and(|output| self.recorded.is_some_and(|recorded| recorded != value_digest(output)))
    }

    /// Returns the output for the log entry, and remembers its digest.
    pub(crate) fn take_output(&mut self) -> Value {
        let output = std::mem::take(&mut self.output);
        self.recorded = Some(value_digest(&output));
        output
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.began
    }

    /// Returns `true` if the call failed but has a result, so it was attempted.
    pub(crate) fn was_tried(&self) -> bool {
        self.progress == CallStatus::Failed && self.has_result
    }

    /// Copies status, output and locations of the announced call into this call, which was decided before the
    /// announcement.
    pub(crate) fn continue_decided(&mut self, told: Self) {
        (self.progress, self.began, self.has_result) = (told.progress, told.began, told.has_result);
        (self.output, self.locations, self.changes) = (told.output, told.locations, told.changes);
        (self.unusual_locations, self.result_diffs) = (told.unusual_locations, told.result_diffs);
        (self.part_caches.changes, self.part_caches.others) =
            (told.part_caches.changes, PartCache::default());
    }

    /// Returns the tool name, or the kind if the tool has no name. Never returns the title, which the agent
    /// chooses freely.
    pub(crate) fn tool(&self) -> String {
        match (&self.server, &self.name) {
            (Some(server), Some(name)) => format!("{server}/{name}"),
            (None, Some(name)) => name.clone(),
            _ => format!("kind:{}", self.kind.as_deref().unwrap_or("other")),
        }
    }

    pub(crate) fn name_and_server(&self) -> (Option<&str>, Option<&str>) {
        (self.name.as_deref(), self.server.as_deref())
    }

    pub(crate) fn is_session_change(&self) -> bool {
        self.is_session_change
    }

    /// Returns `true` if the announced call `told` may be a call of the same tool. A call without a name may
    /// be of any tool.
    pub(crate) fn is_named_like(&self, told: &Self) -> bool {
        let name = if told.claimed.is_some() { &told.claimed } else { &told.name };
        name.is_none() || *name == self.reported_name
    }

    pub(crate) fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("other")
    }

    /// Returns `true` if the call has not started and nothing is known about its input.
    pub(crate) fn is_bare(&self) -> bool {
        self.has_no_input()
            && self.locations.is_empty()
            && self.changes.is_empty()
            && self.progress == CallStatus::Pending
    }

    fn has_no_input(&self) -> bool {
        matches!(self.input, Value::Null | Value::Object(_)) && is_empty(&self.input)
    }

    /// Returns the input as approvers see it and as it is recorded: with the locations and diffs that the
    /// agent reports beside the input. Locations that the input already names are left out.
    pub(crate) fn approval_input(&self) -> Cow<'_, Value> {
        match &self.asked_command {
            Some(asked) => Cow::Owned(json!({"input": self.reported_input(), "command": asked})),
            None => self.reported_input(),
        }
    }

    pub(crate) fn changed_files(&self) -> BTreeSet<PathBuf> {
        Action::default().with_content(&self.changes).paths.into_iter().collect()
    }

    fn reported_input(&self) -> Cow<'_, Value> {
        if let Some(extra_members) = &self.extra_members {
            let mut matter = extra_members.clone();
            matter["arguments"] = self.input.clone();
            return Cow::Owned(matter);
        }
        let (has_no_input, shows_nothing) = (self.has_no_input(), self.changes.is_empty());
        let is_in_input = || {
            let told = self.reported_action(&[]).paths;
            self.unusual_locations.is_empty() && self.locations.iter().all(|path| told.contains(path))
        };
        if shows_nothing && (self.locations.is_empty() || !has_no_input && is_in_input()) {
            return Cow::Borrowed(&self.input);
        }
        let mut matter = json!({"locations": self.locations});
        if !self.unusual_locations.is_empty() {
            matter["unusualLocations"] = self.unusual_locations.clone().into();
        }
        if !shows_nothing {
            matter["content"] = self.changes.clone().into();
        }
        if !has_no_input {
            matter["rawInput"] = self.input.clone();
        }
        Cow::Owned(matter)
    }

    pub(crate) fn permission_tool_call(&self, id: &str) -> Value {
        let input = match self.has_no_input() || self.asked_command.is_some() || self.extra_members.is_some()
        {
            true => self.approval_input(),
            false => Cow::Borrowed(&self.input),
        };
        let mut question = json!({
            "toolCallId": id, "title": self.tool(), "kind": self.kind(), "status": "pending", "rawInput": input,
        });
        if !self.locations.is_empty() {
            let paths = self.locations.iter().map(|path| json!({"path": path}));
            question["locations"] = paths.chain(self.unusual_locations.iter().cloned()).collect();
        }
        if !self.changes.is_empty() {
            question["content"] = self.changes.clone().into();
        }
        question
    }

    /// Returns all kinds of the call. If the agent reported no kind, only the kinds that the input shows
    /// count.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = self.action().kinds();
        if self.kind.is_none() && kinds.len() > 1 {
            kinds.retain(|kind| *kind != Kind::Other);
        }
        kinds.into_iter().map(Kind::name).collect()
    }

    /// Returns a digest of everything that is judged and shown. An approval holds for this digest only.
    pub(crate) fn digest(&self) -> Digest {
        let paths: BTreeSet<PathBuf> = self.action().paths.into_iter().collect();
        let mut all = json!({
            "tool": self.tool(), "claimed": self.claimed, "kinds": self.kinds(), "input": self.input_digest(),
            "paths": paths, "changes": self.changes_digest(), "asked": self.asked_command,
        });
        if !self.unusual_locations.is_empty() {
            all["locations"] = self.unusual_locations.clone().into();
        }
        if let Some(resolved_path) = &self.resolved_path {
            all["real"] = json!(resolved_path);
        }
        if let Some(extra_members) = &self.extra_members {
            all["beside"] = extra_members.clone();
        }
        Sha256::digest(jcs::to_vec(&all).unwrap_or_else(|_| all.to_string().into_bytes())).into()
    }

    /// Returns the effects that the input and the content of the call show.
    pub(crate) fn action(&self) -> Action {
        if let (Some(server), Some(name)) = (&self.server, &self.name) {
            return match self.is_mcp_read {
                true => mcp_read_action(server, name, &self.input),
                false => Action::mcp(server, name, &self.input).with_locations(self.extra_members.as_slice()),
            };
        }
        if let Some(action) = self.client_request() {
            return action;
        }
        let read = self.reported_action(&self.locations);
        let read = read.with_content(&self.changes).with_locations(&self.unusual_locations);
        Action { claimed: self.claimed.iter().cloned().collect(), ..read }
    }

    fn reported_action(&self, locations: &[PathBuf]) -> Action {
        Action::read(self.kind.as_deref(), self.name.as_deref(), &self.input, locations)
    }
}

fn value_digest(value: &Value) -> Digest {
    Sha256::digest(jcs::to_vec(value).unwrap_or_else(|_| value.to_string().into_bytes())).into()
}

/// Returns `true` if a tool name has a reserved form: a kind, a tool of a server, a client request or a
/// session change.
fn imitates_reserved_name(name: &str) -> bool {
    let is_kind = name.get(..KIND_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(KIND_PREFIX));
    is_kind || name.contains('/') || NON_TOOL_ACTIONS.contains(&name)
}

/// Returns the tool name from the places in `_meta` where known agents put it.
fn known_name(meta: Option<&UnambiguousJson>) -> Option<String> {
    let UnambiguousJson(meta) = meta?;
    let places = ["/toolName", "/tool_name", "/claudeCode/toolName"];
    let name = places.iter().find_map(|place| meta.pointer(place)?.as_str())?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests;
