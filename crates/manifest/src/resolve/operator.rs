//! The operator of a manifest, its skills and its tools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::plan::Loaded;
use super::reader::ManifestReader;
use crate::code::Code;
use crate::document::front_matter;
use crate::files::FilesError;
use crate::finding::Draft;
use crate::types::acp::Acp;
use crate::types::operator::{Autonomy, Operator, SkillRef, ToolRef};

const SKILL_FILE: &str = "SKILL.md";

/// A skill of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    pub id: String,
    /// Path of the file, relative to the root of the workspace.
    pub path: PathBuf,
    pub description: String,
    pub body: String,
    /// Tools of the operator that the skill may use. `None` if the skill does not list its tools.
    pub allow: Option<Vec<String>>,
}

/// The tools that an operator may use, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolSet {
    /// Tools that do not belong to a server.
    pub names: BTreeSet<String>,
    /// Tools of MCP servers, by server name. `None` stands for all tools of a server.
    pub servers: BTreeMap<String, Option<BTreeSet<String>>>,
}

impl ToolSet {
    pub(super) fn new(operator: &Loaded<Operator>, skills: &[Skill]) -> Self {
        let mut set = Self::default();
        for tool in &operator.front.tools {
            match tool {
                ToolRef::Id(id) => {
                    set.names.insert(id.clone());
                }
                ToolRef::Full(tool) => {
                    set.names.insert(tool.id.clone());
                }
                ToolRef::Mcp(tools) => {
                    let allow =
                        tools.allow.as_ref().map(|names| names.iter().cloned().collect::<BTreeSet<_>>());
                    let both = match (set.servers.remove(&tools.server), allow) {
                        // The operator names the server twice, so the tools of both entries count.
                        (Some(Some(mut known)), Some(more)) => {
                            known.extend(more);
                            Some(known)
                        }
                        (None, allow) => allow,
                        (Some(_), _) => None,
                    };
                    set.servers.insert(tools.server.clone(), both);
                }
            }
        }
        set.names.extend(skills.iter().filter_map(|skill| skill.allow.as_ref()).flatten().cloned());
        set
    }

    /// Returns `true` if a tool is allowed. `None` as the server stands for tools that belong to no server.
    pub fn has(&self, server: Option<&str>, tool: &str) -> bool {
        match server {
            None => self.names.contains(tool),
            Some(server) => match self.servers.get(server) {
                Some(Some(allow)) => allow.contains(tool),
                Some(None) => true,
                None => false,
            },
        }
    }

    /// Returns `true` if no tool is allowed.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.servers.is_empty()
    }
}

/// Returns `true` if every turn needs an approval before it begins.
pub(super) fn is_gated(operator: &Loaded<Operator>) -> bool {
    operator.front.governance.as_ref().is_some_and(|binding| binding.autonomy == Autonomy::Gated)
}

pub(super) fn load(reader: &mut ManifestReader<'_>, acp: &Loaded<Acp>) -> Option<Loaded<Operator>> {
    let reference = acp.front.metadata.aip44.operator.as_ref()?;
    let at = acp.place(&["metadata", "aip44", "operator"]);
    reader.read_manifest_reference::<Operator, _>(acp, reference, at, "metadata.aip44.operator", None)
}

/// Loads the skills of an operator. A missing skill is an error, because the operator would work without the
/// skill's instructions.
pub(super) fn skills(reader: &mut ManifestReader<'_>, operator: &Loaded<Operator>) -> Vec<Skill> {
    let mut skills = Vec::new();
    for (number, reference) in operator.front.skills.iter().enumerate() {
        match skill(reader, operator, reference) {
            Ok(skill) => skills.push(skill),
            Err(why) => {
                let item = operator.node.get("skills").and_then(|list| list.items().get(number));
                let at = item.map_or(operator.node.at, |item| item.at);
                let message = format!("the skill cannot be loaded: {why}");
                let draft = Draft::error(Code::Skill, at, message).key(format!("skills[{number}]"));
                let hint = format!("put it into skills/{}/{SKILL_FILE} beside the operator", reference.id());
                reader.find(operator, draft.value(reference.id()).hint(hint));
            }
        }
    }
    skills
}

fn skill(
    reader: &mut ManifestReader<'_>,
    operator: &Loaded<Operator>,
    reference: &SkillRef,
) -> Result<Skill, String> {
    let (path, bytes) = match reference.source() {
        Some(source) if source.contains("://") || source.starts_with('@') => {
            return Err(format!("`{}` is not in this workspace", narrows_base::text::quoted(source, 80)));
        }
        Some(source) => {
            let inside = format!("{}/{SKILL_FILE}", source.trim_end_matches('/'));
            let file = reader.read_reference(operator, &inside);
            if source.ends_with(".md") { reader.read_reference(operator, source) } else { file }
        }
        None => {
            let name = Path::new("skills").join(reference.id()).join(SKILL_FILE);
            let beside = operator.directory().join(&name);
            match reader.bytes(&beside) {
                Err(FilesError::NotFound) => reader.bytes(&name).map(|bytes| (name, bytes)),
                found => found.map(|bytes| (beside, bytes)),
            }
        }
    }
    .map_err(|error| error.to_string())?;
    let front = front_matter(&bytes).ok_or("the front matter of the skill is invalid")?;
    let text = |key: &str| front.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let description = text("description").ok_or("the skill has no description")?.to_owned();
    text("name").ok_or("the skill has no name")?;
    let whole = std::str::from_utf8(&bytes).map_err(|_| "the skill is not UTF-8")?;
    let body = crate::yaml::split(whole).map(|front| front.body.to_owned()).unwrap_or_default();
    let allow = match reference {
        SkillRef::Id(_) => None,
        SkillRef::Full(skill) => skill.allow.clone(),
    };
    Ok(Skill { id: reference.id().to_owned(), path, description, body, allow })
}
