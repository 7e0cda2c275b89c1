//! What comes of resolving a manifest.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use narrows_base::text::quoted;
use narrows_policy::Charter;
use serde::Serialize;
use serde_json::Value;

use super::reader::ManifestReader;
use super::{Agent, AuditTarget, BoundPolicy, EffectiveGovernance, SandboxPlan, Skill, ToolSet};
use crate::capabilities::Capabilities;
use crate::code::Code;
use crate::document::Document;
use crate::finding::{Draft, Findings};
use crate::types::acp::{Acp, Kind as Role, McpServer};
use crate::types::operator::Operator;
use crate::yaml::SourcePos;

/// A manifest and where it lies.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// Its path, from the root of the workspace on.
    pub path: PathBuf,
    pub(super) document: Document<T>,
}

impl<T> Loaded<T> {
    /// The directory it lies in.
    pub fn directory(&self) -> PathBuf {
        self.path.parent().map(Path::to_path_buf).unwrap_or_default()
    }

    /// The line and the column of the last of these keys, one below the other, that is there.
    pub fn place_of(&self, path: &[&str]) -> (usize, usize) {
        let SourcePos { line, column } = self.place(path);
        (line, column)
    }

    /// The same of one item of the list there, by its number.
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

/// One file that was read, and what was in it: what a manifest was approved with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Pin {
    /// Its path, from the root of the workspace on.
    pub path: PathBuf,
    /// The SHA-256 of its bytes, the same that were parsed, in hexadecimal.
    pub sha256: String,
}

/// An MCP server of a manifest with its description.
#[derive(Debug, Clone, PartialEq)]
pub struct McpBinding {
    /// What the manifest says.
    pub server: McpServer,
    /// The front matter of the file that describes it.
    pub description: Option<Value>,
}

/// A manifest with everything it leads to.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// The manifest itself.
    pub acp: Loaded<Acp>,
    /// Which side it is on.
    pub role: Role,
    /// The version of the protocol, if its revision is one we know.
    pub protocol_version: Option<u16>,
    /// What it declares to support.
    pub capabilities: Capabilities,
    /// The operator.
    pub operator: Option<Loaded<Operator>>,
    /// The governance, with everything it inherits.
    pub governance: Option<EffectiveGovernance>,
    /// Every policy that holds.
    pub policies: Vec<BoundPolicy>,
    pub(super) charter: Charter,
    /// Whether no turn may begin without somebody's word.
    pub per_turn_approval: bool,
    /// The sandbox of the tier.
    pub sandbox: Option<SandboxPlan>,
    /// The skills of the operator.
    pub skills: Vec<Skill>,
    /// The tools of the operator.
    pub tools: ToolSet,
    /// The agent behind a bridge, a client, or an operator that has one.
    pub agent: Option<Agent>,
    /// Where decisions and calls are recorded.
    pub audit: AuditTarget,
    /// MCP servers that sessions get.
    pub mcp_servers: Vec<McpBinding>,
    /// Every file that was read, in that order.
    pub pins: Vec<Pin>,
    /// What was found that is no error.
    pub warnings: Findings,
}

pub(super) fn mcp_servers(reader: &mut ManifestReader<'_>, acp: &Loaded<Acp>) -> Vec<McpBinding> {
    let mut bindings = Vec::new();
    for server in &acp.front.metadata.aip44.mcp_servers {
        let mut description = None;
        if let Some(reference) = &server.r#ref {
            let at = acp.place(&["metadata", "aip44", "mcp_servers"]);
            match reader.bytes_at(acp, reference) {
                Ok((_, bytes)) => description = crate::document::front_matter(&bytes),
                Err(error) => {
                    let (name, file) = (quoted(&server.name, 64), quoted(reference, 200));
                    let message =
                        format!("the description `{file}` of the MCP server `{name}` cannot be had: {error}");
                    let draft = Draft::warning(Code::NotFound, at, message).key("metadata.aip44.mcp_servers");
                    reader.find(acp, draft.value(reference));
                }
            }
        }
        bindings.push(McpBinding { server: server.clone(), description });
    }
    bindings
}
