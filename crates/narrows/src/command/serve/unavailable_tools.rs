//! Finds tools of an operator that the built-in agent does not have.

use narrows_base::suggest::nearest;
use narrows_govern::{BUILT_IN_TOOLS, PolicyCoverage};
use narrows_manifest::types::acp::Role;
use narrows_manifest::types::operator::{Operator, ToolRef};
use narrows_manifest::{Bundle, Capabilities, Code, Finding, Loaded, Severity};

use crate::terminal::line;

/// Returns findings about the tools of an operator that the built-in agent runs.
pub(super) fn findings(bundle: &Bundle) -> Vec<Finding> {
    let (Role::Server, None, Some(operator)) = (bundle.role, &bundle.agent, &bundle.operator) else {
        return Vec::new();
    };
    let declared = Capabilities::declared(&bundle.acp.front.metadata.aip44);
    let name = |tool: &ToolRef| match tool {
        ToolRef::Id(id) => Some(id.clone()),
        ToolRef::Full(tool) => Some(tool.id.clone()),
        ToolRef::Mcp(_) => None,
    };
    let tools = operator.front.tools.iter().map(name).enumerate();
    tools.filter_map(|(number, tool)| finding_for(bundle, operator, &declared, number, &tool?)).collect()
}

fn finding_for(
    bundle: &Bundle,
    operator: &Loaded<Operator>,
    declared: &Capabilities,
    number: usize,
    tool: &str,
) -> Option<Finding> {
    let (message, hint) = if let Some(lacking) = missing_capability(declared, tool) {
        (
            format!(
                "`{tool}` is never available: {} does not let the client offer it",
                bundle.acp.path.display()
            ),
            format!("add below metadata.aip44: capabilities: {{client: {{{lacking}}}}}"),
        )
    } else if PolicyCoverage::is_known_name(tool)
        || tool.starts_with("kind:")
        || tool.contains(['*', '?', '['])
    {
        return None;
    } else {
        let hint = match nearest(tool, BUILT_IN_TOOLS) {
            Some(near) => format!("did you mean {near}?"),
            None => format!(
                "valid tools are {}; write tools of MCP servers as {{kind: mcp, server: NAME}}",
                BUILT_IN_TOOLS.join(", ")
            ),
        };
        (format!("`{tool}` is not a tool of the built-in agent, which runs this operator"), hint)
    };
    let place = operator.place_of_item(&["tools"], number);
    let finding = Finding::new(Severity::Warning, Code::Tool, &operator.path, place, line(&message));
    Some(finding.with_key(format!("tools[{number}]")).with_hint(line(&hint)))
}

/// Returns the capability of the client that a tool needs and the manifest does not declare.
fn missing_capability(declared: &Capabilities, tool: &str) -> Option<&'static str> {
    let (read, write) = (declared.read_text_file, declared.write_text_file);
    match tool {
        "read_file" if !read => Some("fs: {readTextFile: true}"),
        "write_file" if !write => Some("fs: {writeTextFile: true}"),
        "edit_file" if !(read && write) => Some("fs: {readTextFile: true, writeTextFile: true}"),
        "run_command" if !declared.terminal => Some("terminal: true"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use narrows_manifest::{MemoryFiles, resolve};

    use super::*;

    fn findings_of(tools: &str, capabilities: &str) -> Vec<String> {
        let files = MemoryFiles::default()
            .with("n/ACP.md", format!("---\nname: n\nid: nn\ndescription: d\nversion: 1.0.0\nkind: server\ntransport: stdio\nmetadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n    capabilities: {{client: {{{capabilities}}}}}\n---\n"))
            .with("n/OPERATOR.md", format!("---\nname: N\nid: nn\npersona_summary: p\nversion: 1.0.0\nprofile: {{role: r, voice: v, boundaries: []}}\ntools: [{tools}]\ngovernance: {{audit_log: 'audit:default', autonomy: autonomous}}\n---\n"))
            .with("n/GOVERNANCE.md", "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\nautonomy: {level: 2}\npolicies: []\n---\n");
        let bundle = resolve(&files, Path::new("n/ACP.md")).unwrap_or_else(|findings| panic!("{findings}"));
        let told = |finding: &Finding| {
            let (line, column) = (finding.line, finding.column);
            format!("{line}:{column} {}: {}", finding.message, finding.hint.as_deref().unwrap_or_default())
        };
        findings(&bundle).iter().map(told).collect()
    }

    #[test]
    fn undeclared_client_capabilities_are_reported_with_a_fix() {
        assert_eq!(
            findings_of("{id: read_file}, {id: run_command}", ""),
            [
                "7:9 `read_file` is never available: n/ACP.md does not let the client offer it: add below metadata.aip44: \
                 capabilities: {client: {fs: {readTextFile: true}}}",
                "7:26 `run_command` is never available: n/ACP.md does not let the client offer it: add below \
                 metadata.aip44: capabilities: {client: {terminal: true}}",
            ]
        );
        assert_eq!(findings_of("{id: edit_file}, {id: update_plan}", "fs: {writeTextFile: true}").len(), 1);
        let all = "fs: {readTextFile: true, writeTextFile: true}, terminal: true";
        let tools =
            "{id: read_file}, {id: write_file}, {id: edit_file}, {id: run_command}, {id: update_plan}";
        assert_eq!(findings_of(tools, all), [""; 0]);
    }

    #[test]
    fn unknown_tools_are_reported_with_a_suggestion() {
        let told = |tools: &str| findings_of(tools, "terminal: true");
        assert_eq!(
            told("{id: run_comand}"),
            [
                "7:9 `run_comand` is not a tool of the built-in agent, which runs this operator: did you mean run_command?"
            ]
        );
        assert!(told("pay")[0].contains("as {kind: mcp, server: NAME}"));
        for fine in ["{kind: mcp, server: notes}", "{id: 'kind:read'}", "{id: fs/read_text_file}"] {
            assert_eq!(told(fine), [""; 0], "{fine}");
        }
    }
}
