//! Checks that go beyond the schema of one file: common mistakes, names, contradictions, and obstacles to
//! running.

mod acp;
mod agent_cli;
mod governance;
mod sandbox;

pub use acp::is_listable;
pub(crate) use governance::action_of_other_program;

use std::path::Path;

use crate::code::Code;
use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::yaml::Node;

/// Checks a file, which need not match its schema.
pub(crate) fn lint(kind: ManifestKind, path: &Path, node: &Node, found: &mut Vec<Draft>) {
    match kind {
        ManifestKind::Acp => acp::lint(path, node, found),
        ManifestKind::Operator => governance::operator(node, found),
        ManifestKind::Governance => governance::lint(node, found),
        ManifestKind::Policy => governance::policy(path, node, found),
        ManifestKind::Sandbox => sandbox::lint(node, "", found),
        ManifestKind::Runner => sandbox::runner(node, "", found),
        ManifestKind::AgentCli => agent_cli::lint(path, node, found),
    }
}

/// Returns the name that a file should contain: the part of its file name before the kind, or the name of its
/// directory.
fn expected_name(path: &Path, kind: ManifestKind) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    match file.strip_suffix(kind.file_name())?.strip_suffix('.') {
        Some(slug) if !slug.is_empty() => Some(slug.to_owned()),
        _ => Some(path.parent()?.file_name()?.to_str()?.to_owned()),
    }
}

/// Warns if the name in a file differs from the expected one.
fn named(path: &Path, kind: ManifestKind, key: &str, node: &Node, found: &mut Vec<Draft>) {
    let Some(given) = node.get(key) else { return };
    let (Some(name), Some(expected)) = (given.text(), expected_name(path, kind)) else { return };
    if name != expected {
        let expected = narrows_base::text::quoted(&expected, 80);
        let message = format!("the name differs from its directory or file, `{expected}`");
        let draft = Draft::warning(Code::Name, given.at, message).key(key).value(name);
        found.push(draft.hint(format!("write {key}: {expected}, or move the file")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_directories_or_file_names() {
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(expected_name(Path::new(path), ManifestKind::Acp).as_deref(), expected, "{path}");
        };
        check("a/notes/ACP.md", Some("notes"));
        check("a/notes/hermes.ACP.md", Some("hermes"));
        check("ACP.md", None);
        check("/ACP.md", None);
        check("../ACP.md", None);
    }
}
