//! The agent of a bridge, of a client, or of an operator that names one.

use std::path::Path;

use semver::Version;
use serde_json::Value;

use super::plan::Loaded;
use super::reader::ManifestReader;
use super::sandbox::{self, RunnerPlan, SandboxPlan};
use crate::argv::Launch;
use crate::code::Code;
use crate::document;
use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::types::acp::{Acp, Role};
use crate::types::agent_cli::{AgentCli, Block};
use crate::types::operator::{Operator, RuntimeConfig, RuntimeKind};
use crate::types::runner::Runner;
use crate::version::{self, VersionError};

/// An agent that Narrows can start.
#[derive(Debug, Clone)]
pub struct Agent {
    pub cli: Loaded<AgentCli>,
    pub launch: Launch,
    pub sandbox: Option<SandboxPlan>,
    /// The runner that the agent's manifest names, or the RUNNER.md beside that manifest.
    pub runner: Option<RunnerPlan>,
    /// The ACP.md that describes the agent's ACP support, if there is one.
    pub acp: Option<Box<Acp>>,
}

impl Agent {
    /// Checks the version that the agent has printed.
    pub fn judge_version(&self, output: &str) -> Result<Version, VersionError> {
        version::judge(&self.cli.front.version_check, output)
    }
}

pub(super) fn load(
    reader: &mut ManifestReader<'_>,
    acp: &Loaded<Acp>,
    operator: Option<&Loaded<Operator>>,
) -> Option<Agent> {
    let runtime = operator.and_then(|operator| operator.front.runtime.as_ref());
    let wanted = runtime.filter(|runtime| runtime.kind == RuntimeKind::AgentCli);
    let cli = match (wanted.and_then(|runtime| runtime.r#ref.as_deref()), operator) {
        (Some(reference), Some(operator)) => {
            let at = operator.place(&["runtime", "ref"]);
            let key = "runtime.ref";
            let file = if reference.ends_with(".md") {
                reference.to_owned()
            } else {
                format!("{}/{}", reference.trim_end_matches('/'), ManifestKind::AgentCli.file_name())
            };
            reader.read_manifest_reference::<AgentCli, _>(operator, &file, at, key, Some(Code::AgentCli))?
        }
        _ if acp.front.kind == Role::Server => return None,
        _ => {
            let path = acp.directory().join(ManifestKind::AgentCli.file_name());
            let errors = reader.findings.len();
            match reader.optional::<AgentCli>(&path) {
                Some(cli) => cli,
                None => {
                    // The manifest names an operator that could not be loaded and might have named an agent.
                    let lost = acp.front.metadata.aip44.operator.is_some() && operator.is_none();
                    if reader.findings.len() == errors && !lost {
                        missing(reader, acp);
                    }
                    return None;
                }
            }
        }
    };
    let config = runtime.and_then(|runtime| runtime.config.clone()).unwrap_or_default();
    let launch = launch(reader, &cli, operator, &config);
    let sandbox = match &cli.front.sandbox {
        Block::Path(reference) => {
            let at = cli.place(&["sandbox"]);
            sandbox::at(reader, &cli, reference, at, "sandbox")
        }
        Block::Inline(value) => sandbox::inline(reader, &cli, value, &["sandbox"]),
    };
    let runner = match &cli.front.runner {
        Some(Block::Path(reference)) => {
            sandbox::runner(reader, &cli, &Value::String(reference.clone()), "runner")
        }
        Some(Block::Inline(value)) => sandbox::runner(reader, &cli, &Value::Object(value.clone()), "runner"),
        None => {
            let beside = cli.directory().join(ManifestKind::Runner.file_name());
            reader.optional::<Runner>(&beside).map(|loaded| RunnerPlan::new(&loaded.front))
        }
    };
    let acp = described(reader, &cli);
    Some(Agent { launch: launch?, sandbox, runner, acp, cli })
}

fn missing(reader: &mut ManifestReader<'_>, acp: &Loaded<Acp>) {
    let at = acp.place(&["kind"]);
    let kind = acp.front.kind.name();
    let draft = Draft::error(Code::AgentCli, at, format!("a {kind} needs an agent, but none is declared"));
    let hint = "put an AGENT-CLI.md beside this file, or name one in the operator's runtime.ref";
    reader.find(acp, draft.key("kind").value(kind).hint(hint));
}

fn launch(
    reader: &mut ManifestReader<'_>,
    cli: &Loaded<AgentCli>,
    operator: Option<&Loaded<Operator>>,
    config: &RuntimeConfig,
) -> Option<Launch> {
    match Launch::new(&cli.front, config) {
        Ok(launch) => Some(launch),
        Err(error) => {
            // The check of the file has already reported an unsupported protocol.
            if error.code() == Code::Config.name() {
                let draft = |at| {
                    let draft = Draft::error(Code::Config, at, error.to_string()).key("runtime.config");
                    draft.hint("use a value that the AGENT-CLI.md declares")
                };
                match operator {
                    Some(operator) => reader.find(operator, draft(operator.place(&["runtime", "config"]))),
                    None => reader.find(cli, draft(cli.place(&["options"]))),
                }
            }
            None
        }
    }
}

/// Reads the optional description of the agent's ACP support. Problems in it are only warnings.
fn described(reader: &mut ManifestReader<'_>, cli: &Loaded<AgentCli>) -> Option<Box<Acp>> {
    let reference = cli.front.acp.as_deref()?;
    let at = cli.place(&["acp"]);
    let doubt = |reader: &mut ManifestReader<'_>, message: String| {
        let draft = Draft::warning(Code::AgentCli, at, message).key("acp").value(reference);
        reader.find(cli, draft.hint("the agent is treated as tier basic"));
    };
    match reader.read_reference(cli, reference) {
        Err(error) => {
            doubt(reader, format!("the agent's protocol description cannot be read: {error}"));
            None
        }
        Ok((path, bytes)) => {
            let read = document::read::<Acp>(Path::new(&path), &bytes);
            match read.document {
                Some(document) => Some(Box::new(document.front)),
                None => {
                    let count = read.findings.len();
                    doubt(reader, format!("the agent's protocol description is invalid ({count} findings)"));
                    None
                }
            }
        }
    }
}
