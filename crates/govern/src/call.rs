//! A call of a tool as an agent tells of it, bit by bit.

mod changes;
mod content;
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
use self::request::mcp_read_action;
use crate::coverage::NON_TOOL_ACTIONS;
use crate::gate::value_bytes;
use crate::unique_keys::UnambiguousJson;

/// What stands in front of a kind where a name could be.
const KIND_PREFIX: &str = "kind:";

/// A SHA-256.
pub(crate) type Digest = [u8; 32];

/// How far a call is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallStatus {
    /// It has not begun.
    #[default]
    Pending,
    /// It is under way.
    #[serde(rename = "in_progress")]
    Running,
    /// It has ended well.
    Completed,
    /// It has ended otherwise.
    Failed,
    /// Something that nobody knows: then it may have begun.
    #[serde(other)]
    Unknown,
}

impl CallStatus {
    fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// What one message says about a call. A member that stands there twice makes it unreadable, and so does whatever in it is
/// read by some in one way and by others in another, or not at all.
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
    /// What is told of a call that runs a command, by somebody who has no message about it.
    pub(crate) fn for_command(
        kind: &'static str,
        input: Option<Value>,
        status: Option<CallStatus>,
        output: Option<UnambiguousJson>,
    ) -> CallUpdate<'static> {
        let (kind, raw_input) = (Some(Cow::Borrowed(kind)), input.map(UnambiguousJson));
        CallUpdate { kind, raw_input, status, raw_output: output, ..CallUpdate::default() }
    }

    /// Estimates the memory that a call takes for it at most.
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

    /// The ids of the terminals that its content shows.
    pub(crate) fn terminals(&self) -> Vec<String> {
        let Some(UnambiguousJson(content)) = &self.content else { return Vec::new() };
        let shown = blocks(content).into_iter().filter(|block| block["type"] == "terminal");
        shown.filter_map(|block| block["terminalId"].as_str().map(str::to_owned)).collect()
    }

    /// Returns `true` if its content shows a change of files.
    pub(crate) fn is_change(&self) -> bool {
        self.content.as_ref().is_some_and(|UnambiguousJson(content)| !change_blocks(content).is_empty())
    }

    /// Returns `true` if it says that the call has not begun: an announcement without a status does.
    fn is_pending(&self) -> bool {
        match self.status {
            Some(status) => status == CallStatus::Pending,
            None => self.is_announcement(),
        }
    }

    /// Returns `true` if it announces a call, which version 1 does once for each.
    fn is_announcement(&self) -> bool {
        self.session_update.as_deref() == Some("tool_call")
    }
}

/// A place that a call names. A member in it that the protocol does not have may name another.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "UnambiguousJson")]
struct Location {
    path: PathBuf,
    /// All of it, if it has such members.
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

/// A call of a tool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    name: Option<String>,
    /// What an agent calls it that would pass for something which only we say of a call.
    claimed: Option<String>,
    kind: Option<String>,
    server: Option<String>,
    /// By which name an agent tells of it that says so beforehand.
    reported_name: Option<String>,
    pub(crate) progress: CallStatus,
    /// Whether it was ever said to run, whatever was said about it before or after.
    began: bool,
    /// Whether something was told to have come of it, and not only to be wanted of it.
    yielded: bool,
    pub(crate) input: Value,
    pub(crate) output: Value,
    /// A digest of the output that was recorded.
    recorded: Option<Digest>,
    locations: Vec<PathBuf>,
    /// Those of its locations that have members which the protocol does not have.
    unusual_locations: Vec<Value>,
    /// The blocks of its content that show a change of files.
    changes: Vec<Value>,
    /// The command that its agent last asked about as a part of it, if its input is another: an object with `command` and `cwd`.
    asked: Option<Value>,
    /// The changes that were last shown as the result of an allowed call, if their text is another than that of `changes`.
    reported: Option<Vec<Value>>,
    /// It was allowed as it is: another text of the same change reports what it does, and replaces nothing that was shown.
    is_allowed: bool,
    /// It is a wish of the client's about its session, and no tool of the operator.
    is_session_change: bool,
    /// It has an MCP server show something, and does no more.
    reads: bool,
    /// Where the file or the directory of a request to the client really is.
    real: Option<PathBuf>,
    /// What a request for a tool of an MCP server has beside the name and the arguments: an object. A server may act on it.
    beside: Option<Value>,
}

impl Call {
    /// Something that the client wants of its session and that no tool does.
    pub(crate) fn session_change(name: &str, kind: &str, input: Value) -> Self {
        Self { is_session_change: true, ..Self::new(None, name, kind, input) }
    }

    /// A call of a known tool with all of its input.
    pub(crate) fn new(server: Option<String>, name: &str, kind: &str, input: Value) -> Self {
        let (name, kind) = (Some(name.to_owned()), Some(kind.to_owned()));
        Self { name, kind, server, input, ..Self::default() }
    }

    /// Something that an MCP server is to show: a resource, a prompt.
    pub(crate) fn mcp_read(server: String, method: &str, input: Value) -> Self {
        Self { reads: true, ..Self::new(Some(server), method, "read", input) }
    }

    /// A call as another agent would tell of it: by a name if it tells one, and by its kind.
    pub(crate) fn reported(name: Option<&str>, kind: &str, input: Value) -> Self {
        let mut call = Self { kind: Some(kind.to_owned()), input, ..Self::default() };
        call.set_reported_name(name);
        call
    }

    /// The same call, of which an agent will tell by this name.
    pub(crate) fn with_reported_name(self, name: String) -> Self {
        Self { reported_name: Some(name), ..self }
    }

    /// Estimates the memory that it takes.
    pub(crate) fn retained_bytes(&self) -> usize {
        let texts =
            [&self.name, &self.claimed, &self.kind, &self.server, &self.reported_name].into_iter().flatten();
        let lists = [&self.unusual_locations, &self.changes].into_iter().chain(&self.reported).flatten();
        let values =
            [&self.input, &self.output].into_iter().chain(&self.asked).chain(&self.beside).chain(lists);
        let paths = self.locations.iter().chain(&self.real);
        size_of::<Self>()
            + texts.map(String::len).sum::<usize>()
            + values.map(value_bytes).sum::<usize>()
            + paths.map(|path| size_of::<PathBuf>() + path.as_os_str().len()).sum::<usize>()
    }

    /// Takes in what is said about it. Tells whether that changes what is to be decided.
    pub(crate) fn apply_update(&mut self, said: CallUpdate<'_>) -> bool {
        let is_pending = said.is_pending();
        let known = said.name.as_deref().map(str::to_owned).or_else(|| known_name(said.meta.as_ref()));
        // By whichever of its names a tool of a server is told of, it is the same.
        let known = known.filter(|told| self.reported_name.as_ref() != Some(told));
        let renamed = self.set_reported_name(known.as_deref());
        let mut changed = renamed;
        if let Some(kind) = said
            .kind
            .as_deref()
            .filter(|kind| !kind.is_empty() && *kind != self.kind.as_deref().unwrap_or_default())
        {
            self.kind = Some(kind.to_owned());
            changed = true;
        }
        if let Some(UnambiguousJson(input)) = said.raw_input
            && input != self.input
        {
            self.input = input;
            changed = true;
        }
        if let Some(locations) = said.locations {
            let unusual: Vec<Value> =
                locations.iter().filter_map(|location| location.unusual.clone()).collect();
            let paths: Vec<PathBuf> = locations.into_iter().map(|location| location.path).collect();
            changed |= paths != self.locations || unusual != self.unusual_locations;
            (self.locations, self.unusual_locations) = (paths, unusual);
        }
        let has_ended = [Some(self.progress), said.status].iter().flatten().any(|progress| progress.is_end());
        let can_be_result = has_ended || self.is_allowed && !is_pending && !self.has_no_input();
        changed |= said
            .content
            .as_ref()
            .is_some_and(|UnambiguousJson(content)| self.apply_changes(content, can_be_result));
        if changed {
            // It is judged anew, and by what was last shown of it.
            self.adopt_reported();
        }
        if let Some(status) = said.status {
            self.progress = self.progress.max(status);
            self.began |= !matches!(status, CallStatus::Pending | CallStatus::Failed);
        }
        // Before it has ended the content of a call may show what it is going to do.
        let content = said.content.as_ref().filter(|_| self.progress == CallStatus::Failed);
        self.yielded |=
            [said.raw_output.as_ref(), content].into_iter().flatten().any(|told| !is_empty(&told.0));
        // What has a result has run, whatever its status is said to be. One that failed may have been refused by the agent.
        self.began |= self.progress != CallStatus::Failed
            && said.raw_output.as_ref().is_some_and(|UnambiguousJson(output)| !is_empty(output));
        // A piece of content that is told by itself is not all of it.
        if let Some(UnambiguousJson(output)) =
            said.raw_output.or(said.content.filter(|UnambiguousJson(content)| !content.is_object()))
        {
            self.output = output;
        }
        changed
    }

    /// Takes in a command that its agent asks about as a part of it. Tells whether that changes what is to be decided.
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
        let changed = asked != self.asked;
        self.asked = asked;
        changed
    }

    /// The command that its agent asks about as a part of it, as a call of the same tool.
    pub(crate) fn asked_command(&self) -> Option<Self> {
        let input = self.asked.clone()?;
        let name = self.name.clone().filter(|_| self.server.is_none());
        let claimed = self.claimed.clone();
        Some(Self { name, claimed, kind: Some("execute".to_owned()), input, ..Self::default() })
    }

    /// Returns `true` if it runs the command of `wanted` in the same directory: the one it names, or `usual`.
    pub(crate) fn runs_command(&self, wanted: &Action, usual: Option<&Path>) -> bool {
        let is_same = |told: Action| {
            let (there, here) = (wanted.cwd.as_deref().or(usual), told.cwd.as_deref().or(usual));
            told.command.is_some() && told.command == wanted.command && there == here
        };
        is_same(self.action()) || self.asked_command().is_some_and(|asked| is_same(asked.action()))
    }

    /// Takes in by which name it is told of. One that looks like a kind, or like a tool of a server, proves nothing: then it is
    /// a call without a name. Tells whether it is another than before.
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

    /// The name it was told of by, if that is none that a tool of an agent can have.
    pub(crate) fn claimed_name(&self) -> Option<&str> {
        self.claimed.as_deref()
    }

    /// Whether all that it is, as it is said and as it turns out, is among these kinds.
    pub(crate) fn is_only(&self, is_among: impl Fn(&str) -> bool) -> bool {
        is_among(self.kind()) && self.action().kinds().into_iter().map(Kind::name).all(is_among)
    }

    /// The call that this is if something is said about one that has ended: a call of the same tool that has not begun and is
    /// not allowed, if what is said is another or says that it runs. The caller has it [`Self::hear`] what is said. An id that is used again does not make two calls one.
    pub(crate) fn new_run(&self, said: &CallUpdate<'_>) -> Option<Self> {
        let mut fresh = Self {
            progress: CallStatus::Pending,
            began: false,
            yielded: false,
            output: Value::Null,
            recorded: None,
            asked: None,
            is_allowed: false,
            ..self.clone()
        };
        // Another text alone may still be the result of the call that has ended.
        let changed = Self { is_allowed: true, ..fresh.clone() }.apply_update(said.clone());
        let runs = matches!(said.status, Some(CallStatus::Pending | CallStatus::Running));
        let is_other_result = said.status.is_some_and(CallStatus::is_end) && self.is_unrecorded_output(said);
        fresh.adopt_reported();
        (changed || runs || said.is_announcement() || is_other_result).then_some(fresh)
    }

    /// Returns `true` if another output was recorded of it than what is said.
    pub(crate) fn is_unrecorded_output(&self, said: &CallUpdate<'_>) -> bool {
        let output =
            said.raw_output.as_ref().map(|UnambiguousJson(output)| output).filter(|output| !is_empty(output));
        output.is_some_and(|output| self.recorded.is_some_and(|recorded| recorded != value_digest(output)))
    }

    /// Takes out what came of it, to be recorded.
    pub(crate) fn take_output(&mut self) -> Value {
        let output = std::mem::take(&mut self.output);
        self.recorded = Some(value_digest(&output));
        output
    }

    /// Whether it was ever said to run.
    pub(crate) fn has_begun(&self) -> bool {
        self.began
    }

    /// Whether it is said to have failed and something came of it all the same: then it was tried.
    pub(crate) fn was_tried(&self) -> bool {
        self.progress == CallStatus::Failed && self.yielded
    }

    /// Goes on with a call that was decided before it is told of: what is told is how far it is, and where.
    pub(crate) fn continue_decided(&mut self, told: Self) {
        (self.progress, self.began, self.yielded) = (told.progress, told.began, told.yielded);
        (self.output, self.locations, self.changes) = (told.output, told.locations, told.changes);
        (self.unusual_locations, self.reported) = (told.unusual_locations, told.reported);
    }

    /// The tool: by its name, or where an agent tells none by its kind. Never by its title, which an agent words.
    pub(crate) fn tool(&self) -> String {
        match (&self.server, &self.name) {
            (Some(server), Some(name)) => format!("{server}/{name}"),
            (None, Some(name)) => name.clone(),
            _ => format!("kind:{}", self.kind.as_deref().unwrap_or("other")),
        }
    }

    /// The name of the tool, and the MCP server that it belongs to.
    pub(crate) fn name_and_server(&self) -> (Option<&str>, Option<&str>) {
        (self.name.as_deref(), self.server.as_deref())
    }

    /// Whether it is no tool, but something that the client wants of its session.
    pub(crate) fn is_session_change(&self) -> bool {
        self.is_session_change
    }

    /// Whether another call, as it is told of, can be of the same tool: one that has no name can be any.
    pub(crate) fn is_named_like(&self, told: &Self) -> bool {
        let name = if told.claimed.is_some() { &told.claimed } else { &told.name };
        name.is_none() || *name == self.reported_name
    }

    /// The kind it is said to be.
    pub(crate) fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("other")
    }

    /// Whether nothing is known yet of what it is called with, and it has not begun.
    pub(crate) fn is_bare(&self) -> bool {
        self.has_no_input()
            && self.locations.is_empty()
            && self.changes.is_empty()
            && self.progress == CallStatus::Pending
    }

    fn has_no_input(&self) -> bool {
        matches!(self.input, Value::Null | Value::Object(_)) && is_empty(&self.input)
    }

    /// What it is called with, as it is approved and recorded: its input, and the places and changes that the agent tells of
    /// beside it. A place that the input names is not repeated.
    pub(crate) fn approval_input(&self) -> Cow<'_, Value> {
        match &self.asked {
            Some(asked) => Cow::Owned(json!({"input": self.reported_input(), "command": asked})),
            None => self.reported_input(),
        }
    }

    /// The files that its content shows changes of.
    pub(crate) fn changed_files(&self) -> BTreeSet<PathBuf> {
        Action::default().with_content(&self.changes).paths.into_iter().collect()
    }

    fn reported_input(&self) -> Cow<'_, Value> {
        if let Some(beside) = &self.beside {
            let mut matter = beside.clone();
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

    /// The call as it is asked about: in the members that a client reads, and judges by itself.
    pub(crate) fn permission_tool_call(&self, id: &str) -> Value {
        let input = match self.has_no_input() || self.asked.is_some() || self.beside.is_some() {
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

    /// All kinds that it is of. A kind that the agent has not said adds none to those that its input shows.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = self.action().kinds();
        if self.kind.is_none() && kinds.len() > 1 {
            kinds.retain(|kind| *kind != Kind::Other);
        }
        kinds.into_iter().map(Kind::name).collect()
    }

    /// A digest of all that is judged and shown of it. An approval is for this, and for nothing else.
    pub(crate) fn digest(&self) -> Digest {
        let paths: BTreeSet<PathBuf> = self.action().paths.into_iter().collect();
        let mut all = json!({
            "tool": self.tool(), "claimed": self.claimed, "kinds": self.kinds(), "input": self.input,
            "paths": paths, "changes": self.changes, "asked": self.asked,
        });
        if !self.unusual_locations.is_empty() {
            all["locations"] = self.unusual_locations.clone().into();
        }
        if let Some(real) = &self.real {
            all["real"] = json!(real);
        }
        if let Some(beside) = &self.beside {
            all["beside"] = beside.clone();
        }
        Sha256::digest(jcs::to_vec(&all).unwrap_or_else(|_| all.to_string().into_bytes())).into()
    }

    /// What it does, as far as its input shows.
    pub(crate) fn action(&self) -> Action {
        if let (Some(server), Some(name)) = (&self.server, &self.name) {
            return match self.reads {
                true => mcp_read_action(server, name, &self.input),
                false => Action::mcp(server, name, &self.input).with_locations(self.beside.as_slice()),
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

/// Whether the name that an agent has for a tool is of the shape of something which only we say: a kind, a tool of a server, a
/// request to the client, a wish about a session.
fn imitates_reserved_name(name: &str) -> bool {
    let is_kind = name.get(..KIND_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(KIND_PREFIX));
    is_kind || name.contains('/') || NON_TOOL_ACTIONS.contains(&name)
}

/// The tool's name, where agents without a place for it are known to put it.
fn known_name(meta: Option<&UnambiguousJson>) -> Option<String> {
    let UnambiguousJson(meta) = meta?;
    let places = ["/toolName", "/tool_name", "/claudeCode/toolName"];
    let name = places.iter().find_map(|place| meta.pointer(place)?.as_str())?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests;
