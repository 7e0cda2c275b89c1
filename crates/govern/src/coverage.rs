//! Finds policies that no call can ever match, from the manifest alone.

use std::collections::BTreeSet;

use narrows_acp::method;
use narrows_manifest::types::acp::Role;
use narrows_manifest::{BoundPolicy, Bundle};
use narrows_policy::{GovernanceRule, Kind};

/// Tools of the built-in agent: files and terminals of its client, and its plan.
pub const BUILT_IN_TOOLS: [&str; 5] = ["read_file", "write_file", "edit_file", "run_command", "update_plan"];

/// Names of client requests, turns and session changes. Policies can match them, although they are not tools
/// of an operator.
pub(crate) const NON_TOOL_ACTIONS: [&str; 7] = [
    method::FS_READ_TEXT_FILE,
    method::FS_WRITE_TEXT_FILE,
    method::TERMINAL_CREATE,
    "turn",
    "session.set_mode",
    "session.set_model",
    "session.set_config_option",
];

/// Names of tools and actions that policies can match, as far as a manifest determines the names.
#[derive(Clone, Debug)]
pub struct PolicyCoverage<'a> {
    bundle: &'a Bundle,
    /// Names of tools. `None`: the agent may have tools with unknown names.
    tools: Option<BTreeSet<String>>,
}

impl<'a> PolicyCoverage<'a> {
    /// Collects the names from a manifest.
    #[must_use]
    pub fn new(bundle: &'a Bundle) -> Self {
        Self { bundle, tools: bundle.operator.as_ref().and_then(|_| known_tools(bundle)) }
    }

    /// Returns `true` for names that every operator has: built-in tools, and actions that are not tools.
    #[must_use]
    pub fn is_known_name(name: &str) -> bool {
        BUILT_IN_TOOLS.contains(&name) || NON_TOOL_ACTIONS.contains(&name)
    }

    /// Returns the policies that no call can match, because no tool has the name in the policy's subject. A
    /// policy with another kind of subject, or one that may match an unknown tool, is not returned.
    #[must_use]
    pub fn unmatched_policies(&self) -> Vec<&'a BoundPolicy> {
        let Some(tools) = &self.tools else { return Vec::new() };
        let clauses = self.bundle.ruleset().rules();
        let misses = |clause: &&GovernanceRule| {
            let is_name = |subject: &str| !subject.contains(':');
            let kinds = Kind::ALL.map(|kind| format!("kind:{kind}"));
            let mut names = tools
                .iter()
                .map(String::as_str)
                .chain(NON_TOOL_ACTIONS)
                .chain(kinds.iter().map(String::as_str));
            clause.is_known() && clause.tool().is_some_and(is_name) && !names.any(|name| clause.is_for(name))
        };
        let is_missed = |bound: &&BoundPolicy| {
            let mut own = clauses.iter().filter(|clause| clause.slug() == bound.policy.front.slug).peekable();
            own.peek().is_some() && own.all(|clause| misses(&clause))
        };
        self.bundle.policies.iter().filter(is_missed).collect()
    }

    /// Returns the policies whose action no call ever has.
    #[must_use]
    pub fn unknown_action_policies(&self) -> Vec<&'a BoundPolicy> {
        let clauses = self.bundle.ruleset().rules();
        let is_unasked = |bound: &&BoundPolicy| {
            let mut own = clauses.iter().filter(|clause| clause.slug() == bound.policy.front.slug).peekable();
            own.peek().is_some() && own.all(|clause| !clause.is_known())
        };
        self.bundle.policies.iter().filter(is_unasked).collect()
    }

    /// Returns the known tool names of the operator.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().flatten().map(String::as_str).filter(|name| !name.starts_with("kind:"))
    }
}

/// Returns every name that a tool can have. Returns `None` if any name is possible.
fn known_tools(bundle: &Bundle) -> Option<BTreeSet<String>> {
    let is_ours = bundle.role == Role::Server && bundle.agent.is_none();
    let by_kind = bundle.tools.names.iter().any(|name| name.starts_with("kind:"));
    // The operator has all tools of a kind. A foreign agent may have such tools under any name.
    if by_kind && !is_ours {
        return None;
    }
    let mut names = bundle.tools.names.clone();
    if is_ours {
        names.extend(BUILT_IN_TOOLS.map(str::to_owned));
    }
    for (server, allow) in &bundle.tools.servers {
        // A server without a list of allowed tools may have a tool of any name.
        for tool in allow.as_ref()? {
            names.extend([tool.clone(), format!("{server}/{tool}")]);
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use narrows_manifest::{MemoryFiles, resolve};

    use super::*;

    fn bundle(kind: &str, tools: &str, matching: &str, decision: &str) -> Bundle {
        let files = MemoryFiles::default()
            .with("n/ACP.md", format!("---\nname: n\nid: nn\ndescription: d\nversion: 1.0.0\nkind: {kind}\ntransport: stdio\nmetadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n---\n"))
            .with("n/AGENT-CLI.md", "---\nname: n\nid: nn\ndescription: d\nversion: 1.0.0\nbin: a\nbin_args: []\ninstall: [{method: npm, package: h}]\nprotocol: acp\nacp: ./ACP.md\nversion_check: {cmd: a --version, parse: '(\\d+)', range: '>=1.0.0'}\nsandbox: {provider: local, config: {}}\n---\n")
            .with("n/OPERATOR.md", format!("---\nname: N\nid: nn\npersona_summary: p\nversion: 1.0.0\nprofile: {{role: r, voice: v, boundaries: []}}\ntools: [{tools}]\ngovernance: {{audit_log: 'audit:default', autonomy: autonomous}}\n---\n"))
            .with("n/GOVERNANCE.md", "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\nautonomy: {level: 2}\npolicies: [{id: p, ref: ./POLICY.md}]\n---\n")
            .with("n/POLICY.md", format!("---\nschema: agentgovernance/v1\ndoctype: policy\nslug: pp\nversion: 1.0.0\nmatch: {{{matching}}}\ndecision: {decision}\n---\n"));
        resolve(&files, Path::new("n/ACP.md")).unwrap_or_else(|findings| panic!("{findings}"))
    }

    /// Returns `true` if no call can match a policy with this subject. The operator of the manifest is of
    /// this kind and has these tools.
    fn is_unmatched(kind: &str, tools: &str, matching: &str, decision: &str) -> bool {
        !PolicyCoverage::new(&bundle(kind, tools, matching, decision)).unmatched_policies().is_empty()
    }

    #[test]
    fn an_unknown_action_is_reported_with_a_suggestion() {
        let check = |action: &str, decision: &str, expected: Option<&str>| {
            let bundle = bundle("server", "", &format!("action: '{action}'"), decision);
            let told: Vec<String> = bundle.warnings.iter().map(ToString::to_string).collect();
            let told: Vec<&String> = told.iter().filter(|it| it.contains("action-unmatched")).collect();
            assert_eq!(told.len(), usize::from(expected.is_some()), "{action}: {told:?}");
            assert!(told.iter().all(|it| it.contains(expected.unwrap_or_default())), "{told:?}");
            assert_eq!(PolicyCoverage::new(&bundle).unknown_action_policies().len(), told.len(), "{action}");
        };
        check("tool.call", "deny", None);
        check("workspace.*", "deny", None);
        check("tool.cal", "deny", Some("denies nothing; did you mean tool.call?"));
        check("payment.send", "deny", Some("denies nothing"));
        check("payment.send", "allow", Some("decides nothing"));
    }

    #[track_caller]
    fn check(tools: &str, subject: &str, expected: bool) {
        let matching = format!("action: tool.call, subject: '{subject}'");
        assert_eq!(is_unmatched("server", tools, &matching, "deny"), expected, "server: {tools}: {subject}");
        assert_eq!(is_unmatched("bridge", tools, &matching, "deny"), expected, "bridge: {tools}: {subject}");
    }

    #[test]
    fn a_subject_without_a_matching_tool_is_reported() {
        check("{id: run_command}", "run_comand", true);
        check("{id: run_command}", "run_command", false);
        check("{id: run_command}", "walk_*", true);
        check("{id: run_command}", "run_*", false);
        check("{id: run_command}", "*", false);
        check("", "pay", true);
        check("{kind: mcp, server: notes, allow: [add]}", "notes/add", false);
        check("{kind: mcp, server: notes, allow: [add]}", "add", false);
        check("{kind: mcp, server: notes, allow: [add]}", "notes/*", false);
        check("{kind: mcp, server: notes, allow: [add]}", "notse/add", true);
        check("{kind: mcp, server: notes, allow: [resources/read]}", "notes/resources/read", false);
    }

    #[test]
    fn possible_matches_are_not_reported() {
        // Subjects that are not names of tools.
        for subject in ["workspace:/finance/**", "/finance/**", "kind:execute", "kind:*", "k*", "invoice:7"] {
            check("{id: run_command}", subject, false);
        }
        for subject in NON_TOOL_ACTIONS {
            check("{id: run_command}", subject, false);
        }
        // The operator has all tools of the server `notes`, under any name.
        check("{kind: mcp, server: notes}, {id: run_command}", "run_comand", false);
        check("{kind: mcp, server: notes}", "notes/anything", false);
        // The tools of a foreign agent may have any names. The built-in agent has only known tools.
        let matching = "action: tool.call, subject: Bash";
        assert!(!is_unmatched("bridge", "{id: 'kind:execute'}", matching, "deny"));
        assert!(is_unmatched("server", "{id: 'kind:execute'}", matching, "deny"));
        assert!(!is_unmatched(
            "server",
            "{id: read_file}",
            "action: tool.call, subject: run_command",
            "deny"
        ));
        // Actions that Narrows does not decide on.
        assert!(!is_unmatched("server", "", "action: payment.send, subject: rent", "deny"));
        assert!(!is_unmatched("server", "", "action: tool.call", "deny"));
        // An allow policy matches only a tool name in the same case, so a name in another case matches no
        // call.
        let matching = "action: tool.call, subject: Run_Command";
        assert!(!is_unmatched("server", "{id: run_command}", matching, "deny"));
        assert!(is_unmatched("server", "{id: run_command}", matching, "allow"));
    }
}
