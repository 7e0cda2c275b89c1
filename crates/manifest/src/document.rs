//! Reads and checks a single manifest.

use std::ffi::OsStr;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::code::Code;
use crate::finding::{Draft, Findings};
use crate::kind::ManifestKind;
use crate::lint;
use crate::schema::Checker;
use crate::types::acp::Acp;
use crate::types::agent_cli::AgentCli;
use crate::types::governance::Governance;
use crate::types::operator::Operator;
use crate::types::policy::Policy;
use crate::types::runner::Runner;
use crate::types::sandbox::Sandbox;
use crate::yaml::{self, Node, SourcePos};

/// Bound for the size of a file, in bytes.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 10;

const MAX_FINDINGS: usize = 200;

/// A type that is the front matter of a manifest.
pub trait FrontMatter: DeserializeOwned {
    const KIND: ManifestKind;
}

macro_rules! front_matter {
    ($($kind:ident),+) => {
        $(impl FrontMatter for $kind {
            const KIND: ManifestKind = ManifestKind::$kind;
        })+
    };
}

front_matter!(Acp, Operator, Governance, Policy, Sandbox, Runner, AgentCli);

/// A manifest that was read.
#[derive(Debug, Clone)]
pub struct Document<T> {
    pub front: T,
    pub body: String,
    pub(crate) node: Node,
}

/// The result of reading a manifest.
#[derive(Debug, Clone)]
pub struct ReadResult<T> {
    /// The manifest. `None` if there is at least one error.
    pub document: Option<Document<T>>,
    pub findings: Findings,
}

/// Reads a manifest. Findings contain `path`, and the path determines which name the file should contain.
pub fn read<T: FrontMatter>(path: &Path, bytes: &[u8]) -> ReadResult<T> {
    read_in(None, path, bytes)
}

/// Like [`read`], for a file in a workspace. `path` is relative to the root of the workspace, and `root` is
/// the name of the root directory.
pub(crate) fn read_in<T: FrontMatter>(root: Option<&OsStr>, path: &Path, bytes: &[u8]) -> ReadResult<T> {
    let mut drafts = Vec::new();
    let whole = root.map(|root| Path::new(root).join(path));
    let document = attempt::<T>(whole.as_deref().unwrap_or(path), bytes, &mut drafts);
    let mut findings = Findings::default();
    drafts.into_iter().for_each(|draft| findings.push(draft.into_finding(path)));
    findings.sort();
    findings.truncate(MAX_FINDINGS);
    let document = if findings.has_errors() { None } else { document };
    ReadResult { document, findings }
}

/// Checks a manifest of this kind by itself, without the files that it refers to.
pub fn check(kind: ManifestKind, path: &Path, bytes: &[u8]) -> Findings {
    check_in(None, kind, path, bytes)
}

/// Like [`check`], for a manifest that will be served. If serving an ACP.md is not possible, that is an
/// error, unless the file only describes an external runtime.
pub fn check_for_serving(kind: ManifestKind, path: &Path, bytes: &[u8]) -> Findings {
    let mut findings = check(kind, path, bytes);
    if kind == ManifestKind::Acp && !findings.is_descriptive() {
        findings.for_running();
    }
    findings
}

/// Like [`check`], for a file in a workspace. What only prevents running the file is not an error.
pub(crate) fn check_in(root: Option<&OsStr>, kind: ManifestKind, path: &Path, bytes: &[u8]) -> Findings {
    match kind {
        ManifestKind::Acp => read_in::<Acp>(root, path, bytes).findings,
        ManifestKind::Operator => read_in::<Operator>(root, path, bytes).findings,
        ManifestKind::Governance => read_in::<Governance>(root, path, bytes).findings,
        ManifestKind::Policy => read_in::<Policy>(root, path, bytes).findings,
        ManifestKind::Sandbox => read_in::<Sandbox>(root, path, bytes).findings,
        ManifestKind::Runner => read_in::<Runner>(root, path, bytes).findings,
        ManifestKind::AgentCli => read_in::<AgentCli>(root, path, bytes).findings,
    }
}

fn attempt<T: FrontMatter>(path: &Path, bytes: &[u8], drafts: &mut Vec<Draft>) -> Option<Document<T>> {
    if bytes.len() as u64 > MAX_MANIFEST_BYTES {
        let message = format!("the file is longer than {} KiB", MAX_MANIFEST_BYTES >> 10);
        drafts.push(Draft::error(Code::TooLong, SourcePos::START, message).hint("make the file smaller"));
        return None;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let at = SourcePos { line, column: 1 };
            drafts.push(Draft::error(Code::Encoding, at, "invalid UTF-8").hint("save the file as UTF-8"));
            return None;
        }
    };
    let front = match yaml::split(text) {
        Ok(front) => front,
        Err(draft) => {
            drafts.push(draft);
            return None;
        }
    };
    // Line 1 of the file is the opening fence.
    let node = yaml::parse(front.yaml, 2, drafts);
    let Some(node) = node else {
        if drafts.is_empty() {
            let draft = Draft::error(Code::FrontMatter, SourcePos::START, "the front matter is empty");
            drafts.push(draft.hint("put the keys between the two lines `---`"));
        }
        return None;
    };
    let node = if T::KIND == ManifestKind::Runner { unwrapped(node, drafts) } else { node };
    drafts.extend(Checker::for_kind(T::KIND).check(&node, ""));
    lint::lint(T::KIND, path, &node, drafts);
    let wrong = drafts.iter().any(Draft::is_error);
    match serde_json::from_value(node.to_json()) {
        Ok(front_matter) => Some(Document { front: front_matter, body: front.body.to_owned(), node }),
        Err(_) if wrong => None,
        // The number matches the schema, but does not fit into a machine type.
        Err(error) => {
            let message =
                format!("this cannot be read: {}", narrows_base::text::quoted(&error.to_string(), 120));
            drafts.push(Draft::error(Code::UnusableValue, SourcePos { line: 2, column: 1 }, message));
            None
        }
    }
}

/// Moves the settings of a runner to the top level if they are nested below the runner's current or former
/// key.
fn unwrapped(mut node: Node, drafts: &mut Vec<Draft>) -> Node {
    let yaml::Content::Map(entries) = &mut node.content else { return node };
    match entries.as_slice() {
        [(key, inner)]
            if matches!(key.text.as_str(), "runner" | "runtime") && !inner.entries().is_empty() =>
        {
            if key.text == "runtime" {
                let message = "`runtime` is the former name of `runner`";
                let draft = Draft::warning(Code::Legacy, key.at, message).key("runtime");
                drafts.push(draft.hint("rename it to runner, or move its keys to the top level"));
            }
        }
        _ => return node,
    }
    match entries.pop() {
        Some((_, inner)) => inner,
        None => node,
    }
}

/// Returns the front matter of any file as JSON. Returns `None` if it is missing or not YAML.
pub fn front_matter(bytes: &[u8]) -> Option<serde_json::Value> {
    let front = yaml::split(std::str::from_utf8(bytes).ok()?).ok()?;
    yaml::parse(front.yaml, 2, &mut Vec::new()).map(|node| node.to_json())
}
