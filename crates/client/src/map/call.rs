//! A tool call, as far as the agent has reported it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Not as _;
use std::sync::Arc;

use narrows_acp::Version;
use narrows_base::json::{MAX_PEER_VALUES, count_values};
use narrows_policy::Action;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::read::{Fields, Object, Problem, head, list, string_or_null};
use crate::event::{Json, ToolOutput};
use crate::peer_json;

/// Maximum number of bytes kept of one call's content, and of one call's output.
const MAX_CONTENT_BYTES: usize = 4 << 20;
/// Maximum number of bytes kept of a title or a name.
const MAX_LABEL_BYTES: usize = 16 << 10;

/// A tool call, as far as the agent has reported it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Call {
    pub id: Arc<str>,
    pub title: Option<String>,
    pub name: Option<String>,
    pub kind: Option<String>,
    pub status: Option<String>,
    pub raw_input: Option<Json>,
    pub raw_output: Option<Json>,
    /// Affected files, as the agent lists them.
    pub locations: Option<Json>,
    content: Vec<Json>,
    lost: Lost,
    /// Names of the tool in `_meta`, where some known agents put them.
    known_as: Vec<String>,
    pub(super) stage: Stage,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lost {
    input: bool,
    output: bool,
    locations: bool,
    content: bool,
}

/// Events of a tool call that were already emitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    New,
    Announced,
    /// The call began before the run and is not part of it, so it gets no events.
    Foreign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Waiting,
    Running,
    Over,
}

impl Call {
    pub(super) fn new(id: &str) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Returns the tool's own name, if the agent reports one. The title of the call never counts as a name.
    pub fn own_name(&self) -> Option<&str> {
        self.names().next()
    }

    /// Returns all names of the tool that the agent reports. The title of the call never counts as a name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.name.iter().chain(&self.known_as).map(String::as_str)
    }

    /// Returns the name of the tool if all reported names are the same.
    pub fn sole_name(&self) -> Option<&str> {
        let first = self.own_name()?;
        self.names().all(|name| name == first).then_some(first)
    }

    /// Returns the best available name: the tool's own name, the usual name of its kind, or the title.
    pub fn tool_name(&self) -> String {
        let name = self.own_name();
        let kind = self.kind.as_deref().and_then(|kind| match kind {
            "read" => Some("Read"),
            "edit" => Some("Edit"),
            "delete" => Some("Delete"),
            "move" => Some("Move"),
            "search" => Some("Search"),
            "execute" => Some("Bash"),
            "think" => Some("Think"),
            "fetch" => Some("WebFetch"),
            "switch_mode" => Some("SwitchMode"),
            _ => None,
        });
        name.or(kind).or(self.title.as_deref()).unwrap_or("Tool").to_owned()
    }

    /// Returns `true` if input, locations or content were too large to keep, so that the call cannot be
    /// judged by them.
    pub fn is_partial(&self) -> bool {
        self.lost.input || self.lost.locations || self.lost.content
    }

    /// Returns `true` if a part of the call, or all its content blocks together, have more JSON values than a
    /// peer may send.
    pub(crate) fn has_too_many_values(&self) -> bool {
        let parts = [&self.raw_input, &self.locations];
        parts.into_iter().flatten().any(Json::has_too_many_values)
            || self.readable_content().len() < self.content.len()
    }

    /// Returns the leading content blocks that together stay within the limit of JSON values.
    fn readable_content(&self) -> &[Json] {
        let mut left = Some(MAX_PEER_VALUES);
        let fits = |block: &&Json| {
            left = left.and_then(|left| left.checked_sub(count_values(block.text().as_bytes(), left)));
            left.is_some()
        };
        &self.content[..self.content.iter().take_while(fits).count()]
    }

    pub(crate) fn content_values(&self) -> Vec<serde_json::Value> {
        self.readable_content().iter().map(Json::value).collect()
    }

    /// Returns `true` if readers may disagree on the action: an object has a duplicate key, or a location has
    /// no path.
    pub fn is_ambiguous(&self) -> bool {
        let parts = [&self.raw_input, &self.locations].into_iter().flatten().chain(&self.content);
        let unread = |locations: &Json| {
            !locations.is_empty()
                && serde_json::from_str::<Vec<Json>>(locations.text())
                    .is_ok_and(|each| each.len() == self.paths().len())
                    .not()
        };
        parts.into_iter().any(Json::is_ambiguous) || self.locations.as_ref().is_some_and(unread)
    }

    /// Returns `true` if the agent has reported a part of the action: input, files or file changes.
    pub fn shows_action(&self) -> bool {
        let changes = || self.content_values().iter().any(Action::is_change);
        self.has_input() || self.is_partial() || !self.paths().is_empty() || changes()
    }

    /// Returns the content blocks, which include file changes.
    pub fn content(&self) -> &[Json] {
        &self.content
    }

    /// Returns `true` if the agent has reported the input. For a command, the input must contain more than a
    /// directory and settings, because some agents send those first.
    pub(super) fn has_input(&self) -> bool {
        let runs = self.kind.as_deref() == Some("execute");
        let says_nothing = |input: &Json| input.is_empty() || runs && only_surrounds(input.text());
        self.lost.input || self.raw_input.as_ref().is_some_and(|input| !says_nothing(input))
    }

    /// Returns the input of the call; `{}` if the agent has not reported it.
    pub(super) fn input(&self) -> Json {
        self.raw_input.clone().filter(|input| !input.is_empty()).unwrap_or_else(Json::nothing)
    }

    /// Returns the paths of the call's locations.
    pub fn paths(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Location {
            path: String,
        }
        let Some(locations) = &self.locations else { return Vec::new() };
        // Each location is parsed separately, so that an unreadable one does not discard the others.
        let each: Vec<Json> = peer_json::read(locations.text().as_bytes()).unwrap_or_default();
        let path = |location: &Json| serde_json::from_str::<Object<Location>>(location.text()).ok();
        each.iter().filter_map(path).map(|Object(Location { path })| path).collect()
    }

    /// Returns the call's locations as written by the agent.
    pub(crate) fn location_values(&self) -> Vec<serde_json::Value> {
        let read = |locations: &Json| peer_json::read(locations.text().as_bytes()).unwrap_or_default();
        self.locations.as_ref().map(read).unwrap_or_default()
    }

    pub(super) fn progress(&self, version: Version) -> Progress {
        match (self.status.as_deref(), version) {
            (None | Some("pending"), _) => Progress::Waiting,
            (Some("completed" | "failed"), _) | (Some("cancelled"), Version::V2) => Progress::Over,
            _ => Progress::Running,
        }
    }

    /// Converts the call to the output of `tool.result`.
    pub(super) fn output(self, status: Option<&str>) -> ToolOutput {
        let status = status.map(str::to_owned).or(self.status).unwrap_or_default();
        let Self { raw_output, content, locations, lost, .. } = self;
        let locations = locations.filter(|locations| !locations.is_empty());
        let truncated = lost.output || lost.locations || lost.content;
        ToolOutput { status, raw_output, content, locations, truncated }
    }

    pub(super) fn bytes(&self) -> usize {
        let json = [&self.raw_input, &self.raw_output, &self.locations].into_iter().flatten();
        let words = [&self.title, &self.name, &self.kind, &self.status];
        let words = words.into_iter().flatten().chain(&self.known_as).map(String::len);
        self.id.len() + json.chain(&self.content).map(Json::len).sum::<usize>() + words.sum::<usize>()
    }

    #[cfg(test)]
    pub(crate) fn with_content(self, blocks: &[serde_json::Value]) -> Self {
        Self { content: blocks.iter().map(Json::write).collect(), ..self }
    }

    pub(super) fn append(&mut self, item: &RawValue, room: usize) {
        let held = self.content.iter().map(Json::len).sum::<usize>();
        let length = item.get().len();
        // After a part was dropped, later content is dropped too, so that no text with an invisible gap is
        // shown.
        if self.lost.content || held + length > MAX_CONTENT_BYTES || self.bytes() + length > room {
            self.lost.content = true;
        } else {
            self.content.push(item.into());
        }
    }
}

pub(super) struct Patch<'a> {
    fields: Fields<'a>,
    title: Option<Option<Cow<'a, str>>>,
    name: Option<Option<Cow<'a, str>>>,
    kind: Option<Option<Cow<'a, str>>>,
    status: Option<Option<Cow<'a, str>>>,
    content: Option<Vec<&'a RawValue>>,
}

impl<'a> Patch<'a> {
    pub(super) fn from_fields(fields: Fields<'a>) -> Result<Self, Problem> {
        let words = |text: Option<&'a RawValue>| text.map(string_or_null).transpose();
        Ok(Self {
            title: words(fields.title)?,
            name: words(fields.name)?,
            kind: words(fields.kind)?,
            status: words(fields.status)?,
            content: fields.content.map(list).transpose()?,
            fields,
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.fields.tool_call_id
    }

    /// Merges the update into `call`, keeping at most `room` bytes. A missing field leaves the call
    /// unchanged. A field that is null leaves the call unchanged in v1, and clears the field in v2.
    pub(super) fn merge(self, call: &mut Call, version: Version, room: usize) {
        let clears = version == Version::V2;
        let words = |kept: &mut Option<String>, new: Option<Option<Cow<'_, str>>>| match new {
            Some(Some(new)) => *kept = Some(head(&new, MAX_LABEL_BYTES).to_owned()),
            Some(None) if clears => *kept = None,
            _ => {}
        };
        // An empty title does not replace a title.
        words(&mut call.title, self.title.filter(|title| title.as_deref() != Some("")));
        words(&mut call.name, self.name.filter(|name| name.as_deref() != Some("")));
        words(&mut call.kind, self.kind);
        words(&mut call.status, self.status);
        let known_as = known_names(self.fields.meta);
        if !known_as.is_empty() {
            call.known_as = known_as.iter().map(|name| head(name, MAX_LABEL_BYTES).to_owned()).collect();
        }
        let others = call.bytes();
        let json = |kept: &mut Option<Json>, lost: &mut bool, new: Option<&RawValue>, most: usize| {
            let Some(new) = new else { return };
            if new.get() == "null" {
                *kept = kept.take().filter(|_| !clears);
                *lost &= !clears;
            } else {
                let room = most.min(room.saturating_sub(others));
                *lost = new.get().len() > room;
                *kept = (!*lost).then(|| new.into());
            }
        };
        json(&mut call.raw_input, &mut call.lost.input, self.fields.raw_input, usize::MAX);
        json(&mut call.raw_output, &mut call.lost.output, self.fields.raw_output, MAX_CONTENT_BYTES);
        json(&mut call.locations, &mut call.lost.locations, self.fields.locations, MAX_CONTENT_BYTES);
        let is_null = self.fields.content.is_some_and(|content| content.get() == "null");
        if let Some(items) = self.content
            && (clears || !is_null)
        {
            call.content.clear();
            call.lost.content = false;
            for item in items {
                call.append(item, room);
            }
        }
    }
}

/// Returns `true` if the input of a command contains only a directory and settings, but no command.
fn only_surrounds(input: &str) -> bool {
    const SURROUNDINGS: [&str; 7] =
        ["cwd", "workdir", "working_directory", "workingDirectory", "env", "timeout", "background"];
    let members = serde_json::from_str::<Object<BTreeMap<Cow<'_, str>, &RawValue>>>(input);
    members.is_ok_and(|Object(members)| members.keys().all(|name| SURROUNDINGS.contains(&&**name)))
}

/// Returns the tool names in `_meta`, where some agents put them.
fn known_names(meta: Option<&RawValue>) -> Vec<Cow<'_, str>> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Meta<'a> {
        #[serde(borrow)]
        tool_name: Option<Cow<'a, str>>,
        #[serde(rename = "toolName", borrow)]
        camel: Option<Cow<'a, str>>,
        #[serde(rename = "claudeCode", borrow)]
        claude_code: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Inner<'a> {
        #[serde(borrow)]
        tool_name: Cow<'a, str>,
    }
    let meta = meta.and_then(|meta| serde_json::from_str(meta.get()).ok());
    let Some(Object(Meta { tool_name, camel, claude_code })) = meta else { return Vec::new() };
    let inner = claude_code.and_then(|inner| serde_json::from_str::<Object<Inner<'_>>>(inner.get()).ok());
    let inner = inner.map(|Object(Inner { tool_name })| tool_name);
    let names = [tool_name, camel, inner].into_iter().flatten();
    names.filter(|name| !name.is_empty()).collect()
}
