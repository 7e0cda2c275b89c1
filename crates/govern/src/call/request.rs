//! Calls that stand for a request of the agent to its client: files, commands, and MCP servers in the client.

use std::path::{Path, PathBuf};

use narrows_acp::method;
use narrows_policy::{Action, Kind};
use serde_json::{Map, Value};

use super::Call;
use super::part_cache::{PartCache, PartCaches};
use crate::resource_uri::ResourceUri;

impl Call {
    /// Sets the path of a client request with all links resolved. The client receives this path. The path
    /// that the agent named is judged, too.
    pub(crate) fn with_resolved_path(self, resolved_path: PathBuf) -> Self {
        let named = ["path", "cwd"].iter().find_map(|member| self.input[member].as_str());
        let is_named = named.is_none_or(|named| Path::new(named) == resolved_path);
        let locations = if is_named { Vec::new() } else { vec![resolved_path.clone()] };
        let part_caches = PartCaches { others: PartCache::default(), ..self.part_caches };
        Self { locations, resolved_path: Some(resolved_path), part_caches, ..self }
    }

    pub(crate) fn resolved_path(&self) -> Option<&Path> {
        self.resolved_path.as_deref()
    }

    /// Adds the members of an MCP tool request other than name and arguments. An empty map changes nothing.
    pub(crate) fn with_extra_members(self, members: Map<String, Value>) -> Self {
        let extra_members = (!members.is_empty()).then(|| Value::Object(members));
        let part_caches = PartCaches { others: PartCache::default(), ..self.part_caches };
        Self { extra_members, part_caches, ..self }
    }

    /// Returns `true` if the MCP tool request has no members other than name and arguments.
    pub(crate) fn is_whole_input(&self) -> bool {
        self.extra_members.is_none()
    }

    /// Returns the effects of a client request. Only the members of its method count. The text of a written
    /// file is neither a patch nor a command, whatever the text contains.
    pub(super) fn client_request(&self) -> Option<Action> {
        let method = self.name.as_deref().filter(|_| self.server.is_none())?;
        let members = client_members(method)?;
        let kind = Kind::named(self.kind());
        if kind == Kind::Execute {
            let counts = |(name, _): &(&String, &Value)| members.contains(&name.as_str());
            let input = self.input.as_object().into_iter().flatten().filter(counts);
            let input = input.map(|(name, value)| (name.clone(), value.clone())).collect();
            let read = Action::read(Some(self.kind()), Some(method), &Value::Object(input), &[]);
            let real_cwd = self.locations.first().cloned();
            return Some(Action { real_cwd, ..read });
        }
        let named = self.input["path"].as_str().map(PathBuf::from);
        let paths = named.into_iter().chain(self.locations.iter().cloned()).collect();
        Some(Action { tool: Some(method.to_owned()), paths, ..Action::new(kind) })
    }
}

/// Returns the member names of a client request, without `sessionId` and `_meta`. Returns `None` for other
/// methods.
fn client_members(method: &str) -> Option<&'static [&'static str]> {
    match method {
        method::FS_READ_TEXT_FILE => Some(&["path", "line", "limit"]),
        method::FS_WRITE_TEXT_FILE => Some(&["path", "content"]),
        method::TERMINAL_CREATE => Some(&["command", "args", "cwd", "env", "outputByteLimit"]),
        _ => None,
    }
}

/// Returns the effects of a read from an MCP server. A file URI names a file of this machine, and any other
/// URI is opaque. An ambiguous URI may have any effect on every file that it may name.
pub(super) fn mcp_read_action(server: &str, method: &str, input: &Value) -> Action {
    let all = [input.get("uri"), input.pointer("/ref/uri")];
    let mut action =
        Action { server: Some(server.to_owned()), tool: Some(method.to_owned()), ..Action::new(Kind::Read) };
    for uri in all.into_iter().flatten() {
        match uri.as_str().map(ResourceUri::parse) {
            Some(ResourceUri::OtherScheme) => {}
            Some(ResourceUri::File(path)) => action.paths.push(path),
            Some(ResourceUri::Unclear(paths)) => {
                action.kind = Kind::Other;
                action.paths.extend(paths);
            }
            None => return Action::mcp(server, method, input),
        }
    }
    action
}
