//! The result of resolving a manifest.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use narrows_base::text::quoted;
use narrows_policy::GovernanceRuleset;
use serde::Serialize;
use serde_json::Value;

use super::reader::ManifestReader;
use super::{Agent, AuditTarget, BoundPolicy, EffectiveGovernance, SandboxPlan, Skill, ToolSet};
use crate::capabilities::Capabilities;
use crate::code::Code;
use crate::document::Document;
use crate::finding::{Draft, Findings};
use crate::types::acp::{Acp, McpServer, Role};
use crate::types::operator::Operator;
use crate::yaml::SourcePos;

/// A manifest and its path.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// Path of the file, relative to the root of the workspace.
    pub path: PathBuf,
    pub(super) document: Document<T>,
}

impl<T> Loaded<T> {
    /// Returns the directory of the file.
    pub fn directory(&self) -> PathBuf {
        self.path.parent().map(Path::to_path_buf).unwrap_or_default()
    }

    /// Returns the line and column of the key at `path`, or of its last parent that exists.
    pub fn place_of(&self, path: &[&str]) -> (usize, usize) {
        let SourcePos { line, column } = self.place(path);
        (line, column)
    }

    /// Returns the line and column of an item of the list at `path`.
    pub fn place_of_item(&self, path: &[&str], number: usize) -> (usize, usize) {
        let item = self.document.node.find(path).and_then(|list| list.items().get(number));
        item.map_or_else(|| self.place_of(path), |item| (item.at.line, item.at.column))
    }

    pub(super) fn place(&self, path: &[&str]) -> SourcePos {
        self.document.node.place(path)
    }
}

impl<T> Deref for Loaded<T> {
    type Target = Document<T>;
    fn deref(&self) -> &Document<T> {
        &self.document
    }
}

/// A file that was read, with its digest. An approval of a manifest covers all such files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Pin {
    /// Path of the file, relative to the root of the workspace.
    pub path: PathBuf,
    /// The SHA-256 of the bytes that were parsed, in hexadecimal.
    pub sha256: String,
}

/// An MCP server of a manifest with its description.
#[derive(Debug, Clone, PartialEq)]
pub struct McpBinding {
    pub server: McpServer,
    /// Front matter of the file that describes the server.
    pub description: Option<Value>,
}

/// A manifest with the content of all files that it refers to.
#[derive(Debug, Clone)]
pub struct Bundle {
    pub acp: Loaded<Acp>,
    pub role: Role,
    /// Protocol version of the revision that the manifest names. `None` if that revision is not a known
    /// release.
    pub protocol_version: Option<u16>,
    pub capabilities: Capabilities,
    pub operator: Option<Loaded<Operator>>,
    pub governance: Option<EffectiveGovernance>,
    pub policies: Vec<BoundPolicy>,
    pub(super) ruleset: GovernanceRuleset,
    /// `true` if every turn needs an approval before it begins.
    pub per_turn_approval: bool,
    pub sandbox: Option<SandboxPlan>,
    pub skills: Vec<Skill>,
    pub tools: ToolSet,
    pub agent: Option<Agent>,
    pub audit: AuditTarget,
    /// MCP servers of every session.
    pub mcp_servers: Vec<McpBinding>,
    /// Every file that was read, in the order of reading.
    pub pins: Vec<Pin>,
    pub warnings: Findings,
}

pub(super) fn mcp_servers(reader: &mut ManifestReader<'_>, acp: &Loaded<Acp>) -> Vec<McpBinding> {
    let mut bindings = Vec::new();
    for server in &acp.front.metadata.aip44.mcp_servers {
        let mut description = None;
        if let Some(reference) = &server.r#ref {
            let at = acp.place(&["metadata", "aip44", "mcp_servers"]);
            match reader.read_reference(acp, reference) {
                Ok((_, bytes)) => description = crate::document::front_matter(&bytes),
                Err(error) => {
                    let (name, file) = (quoted(&server.name, 64), quoted(reference, 200));
                    let message = format!(
                        "the description `{file}` of the MCP server `{name}` cannot be read: {error}"
                    );
                    let draft = Draft::warning(Code::NotFound, at, message).key("metadata.aip44.mcp_servers");
                    reader.find(acp, draft.value(reference));
                }
            }
        }
        bindings.push(McpBinding { server: server.clone(), description });
    }
    bindings
}
