//! Sample calls for a manifest, taken from its tools and policies.

use std::path::{Path, PathBuf};

use narrows_govern::{GateConfig, PolicyCoverage, Principal, preview_decision};
use narrows_manifest::{BoundPolicy, Bundle};
use narrows_policy::{Class, GovernanceDecision, Kind, Policy};
use serde_json::{Value, json};

const UNKNOWN_TOOL: &str = "narrows-self-test-unknown";

#[derive(Clone, Debug)]
pub(super) struct SampleCall {
    /// `None` if the manifest does not name the tool.
    pub(super) name: Option<String>,
    pub(super) kind: Kind,
    pub(super) input: Value,
    pub(super) ruling: GovernanceDecision,
}

impl SampleCall {
    pub(super) fn tool(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("kind:{}", self.kind))
    }

    /// Returns the rule that decides the call.
    pub(super) fn decided_by(&self) -> &str {
        self.ruling.decided_by().unwrap_or("default")
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct SampleCalls {
    pub(super) allowed: Option<SampleCall>,
    /// A call that is denied, if possible by a policy.
    pub(super) denied: Option<SampleCall>,
    pub(super) approved: Option<SampleCall>,
    /// A call of a tool that the operator does not have.
    pub(super) unknown: Option<SampleCall>,
    /// Policies about tools that do not exist, so that they never match.
    pub(super) unknown_tool_policies: Vec<String>,
    /// Policies about actions that no agent requests.
    pub(super) unrequested_action_policies: Vec<String>,
    /// Other policies that match none of the samples.
    pub(super) unmatched_policies: Vec<String>,
}

impl SampleCalls {
    pub(super) fn find(bundle: &Bundle, mandate: &GateConfig, who: &Principal, policy: &Policy) -> Self {
        let root = mandate.roots.first().map_or(Path::new("/"), PathBuf::as_path);
        let paths = paths(bundle, root);
        let sample = |name: Option<&str>, kind: Kind, input: Value| {
            let ruling = preview_decision(mandate, who, policy, (name, kind.name()), &input);
            SampleCall { name: name.map(str::to_owned), kind, input, ruling }
        };
        let mut samples: Vec<SampleCall> = tools(mandate)
            .into_iter()
            .flat_map(|(name, kind)| {
                let tried: Vec<SampleCall> = inputs(kind, &paths)
                    .into_iter()
                    .map(|input| sample(name.as_deref(), kind, input))
                    .collect();
                tried
            })
            .collect();
        samples.sort_by_key(|sample| sample.kind.risk());
        let first = |fits: &dyn Fn(&SampleCall) -> bool| samples.iter().find(|sample| fits(sample)).cloned();
        let unknown = sample(Some(UNKNOWN_TOOL), Kind::Other, json!({"note": "self-test"}));
        let unknown = Some(unknown).filter(|it| mandate.tools.is_some() && it.ruling.class == Class::Deny);
        let is = |sample: &SampleCall, class: Class| sample.ruling.class == class;
        let by_policy = |sample: &SampleCall| sample.ruling.decided_by().is_some();
        let asks = |sample: &SampleCall| is(sample, Class::RequireApproval) || is(sample, Class::Escalate);
        let denied = first(&|sample| is(sample, Class::Deny) && by_policy(sample));
        let slug = |bound: &BoundPolicy| bound.policy.front.slug.clone();
        let unknown_tool_policies: Vec<String> =
            PolicyCoverage::new(bundle).unmatched_policies().into_iter().map(slug).collect();
        let has_matched = |slug: &String| samples.iter().any(|sample| decides(slug, &sample.ruling));
        let unrequested_action_policies: Vec<String> =
            PolicyCoverage::new(bundle).unknown_action_policies().into_iter().map(slug).collect();
        let is_told = |slug: &String| {
            unknown_tool_policies.contains(slug) || unrequested_action_policies.contains(slug)
        };
        let unmatched_policies =
            bundle.policies.iter().map(slug).filter(|slug| !is_told(slug) && !has_matched(slug));
        Self {
            unmatched_policies: unmatched_policies.collect(),
            unknown_tool_policies,
            unrequested_action_policies,
            allowed: first(&|sample| is(sample, Class::Allow)),
            denied: denied.or_else(|| first(&|sample| is(sample, Class::Deny))).or_else(|| unknown.clone()),
            approved: first(&|sample| asks(sample) && by_policy(sample)).or_else(|| first(&asks)),
            unknown,
        }
    }
}

fn decides(slug: &str, ruling: &GovernanceDecision) -> bool {
    ruling.clauses.iter().any(|clause| clause == slug) || ruling.notes.iter().any(|note| note.clause == slug)
}

/// Returns the tools of an operator as an agent reports them. Without an operator, any tool may be requested.
fn tools(mandate: &GateConfig) -> Vec<(Option<String>, Kind)> {
    const LIKELY_KINDS: [Kind; 5] = [Kind::Read, Kind::Edit, Kind::Execute, Kind::Delete, Kind::Other];
    let Some(tools) = &mandate.tools else {
        return Kind::ALL.into_iter().map(|kind| (None, kind)).collect();
    };
    let of_name = |name: &String| match name.strip_prefix("kind:") {
        Some(kind) => vec![(None, Kind::named(kind))],
        None => LIKELY_KINDS.into_iter().map(|kind| (Some(name.clone()), kind)).collect(),
    };
    tools.names.iter().flat_map(of_name).collect()
}

/// Returns paths in the workspace: one that policies are unlikely to name, and one for every path in a policy.
fn paths(bundle: &Bundle, root: &Path) -> Vec<String> {
    let named = bundle.policies.iter().filter_map(|bound| bound.policy.front.r#match.subject.as_deref());
    let inside = named.filter_map(|subject| {
        let path =
            subject.strip_prefix("workspace:").or_else(|| subject.starts_with('/').then_some(subject))?;
        let path = path.trim_start_matches('/').replace("**", "self-test").replace('*', "self-test");
        Some(if path.is_empty() { "self-test".to_owned() } else { path })
    });
    let all = std::iter::once("self-test.txt".to_owned()).chain(inside);
    all.map(|path| root.join(path).to_string_lossy().into_owned()).collect()
}

fn inputs(kind: Kind, paths: &[String]) -> Vec<Value> {
    match kind {
        Kind::Read | Kind::Search | Kind::Edit | Kind::Delete => {
            paths.iter().map(|path| json!({"path": path})).collect()
        }
        Kind::Move => {
            paths.iter().map(|path| json!({"path": path, "destination": format!("{path}.moved")})).collect()
        }
        Kind::Execute => vec![json!({"command": "true"})],
        Kind::Fetch => vec![json!({"url": "https://example.invalid/"})],
        Kind::Think | Kind::SwitchMode | Kind::Other => vec![json!({"note": "self-test"})],
    }
}

#[cfg(test)]
mod tests {
    use narrows_govern::bundle_policy;
    use narrows_manifest::{MemoryFiles, resolve};

    use super::*;

    fn samples(tools: &str, policy: &str) -> SampleCalls {
        let files = MemoryFiles::default()
            .with("n/ACP.md", "---\nname: n\nid: nn\ndescription: d\nversion: 1.0.0\nkind: server\ntransport: stdio\nmetadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n---\n")
            .with("n/OPERATOR.md", format!("---\nname: N\nid: nn\npersona_summary: p\nversion: 1.0.0\nprofile: {{role: r, voice: v, boundaries: []}}\ntools: [{tools}]\ngovernance: {{audit_log: 'audit:default', autonomy: autonomous}}\n---\n"))
            .with("n/GOVERNANCE.md", "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\nautonomy: {level: 2}\npolicies: [{id: p, ref: ./POLICY.md}]\n---\n")
            .with("n/POLICY.md", format!("---\nschema: agentgovernance/v1\ndoctype: policy\nslug: pp\nversion: 1.0.0\n{policy}\n---\n"));
        let bundle = resolve(&files, Path::new("n/ACP.md")).unwrap_or_else(|findings| panic!("{findings}"));
        let mandate = GateConfig::from_bundle(&bundle, vec!["/w".into()]);
        SampleCalls::find(&bundle, &mandate, &Principal::default(), &bundle_policy(&bundle))
    }

    #[test]
    fn sample_calls_come_from_tools_and_policies() {
        let check = |tools: &str, policy: &str, expected: [Option<&str>; 3]| {
            let found = samples(tools, policy);
            let told = [found.allowed, found.approved, found.denied]
                .map(|sample| sample.as_ref().map(SampleCall::tool));
            assert_eq!(told.each_ref().map(Option::as_deref), expected, "{tools} {policy}");
        };
        let deny = "match: {action: tool.call, subject: 'kind:execute'}\ndecision: deny";
        check(
            "{id: 'kind:read'}, {id: 'kind:edit'}, {id: 'kind:execute'}",
            deny,
            [Some("kind:read"), Some("kind:edit"), Some("kind:execute")],
        );
        check("{id: 'kind:read'}", deny, [Some("kind:read"), None, Some(UNKNOWN_TOOL)]);
        check("note", deny, [Some("note"), Some("note"), Some("note")]);
        check("", deny, [None, None, Some(UNKNOWN_TOOL)]);
        let path = "match: {action: workspace.write, subject: 'workspace:/finance/**'}\ndecision: deny";
        check("{id: 'kind:edit'}", path, [None, Some("kind:edit"), Some("kind:edit")]);
    }

    #[test]
    fn policies_that_match_nothing_are_listed() {
        let check = |tools: &str,
                     policy: &str,
                     unknown_tool_policies: &[&str],
                     unmatched_policies: &[&str]| {
            let found = samples(tools, &format!("match: {{action: tool.call, {policy}}}\ndecision: deny"));
            assert_eq!(
                (found.unknown_tool_policies.as_slice(), found.unmatched_policies.as_slice()),
                (
                    unknown_tool_policies.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>().as_slice(),
                    unmatched_policies.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>().as_slice(),
                ),
                "{tools} {policy}"
            );
        };
        check("{id: run_command}", "subject: run_command", &[], &[]);
        check("{id: run_command}", "subject: run_comand", &["pp"], &[]);
        check("{id: run_command}", "subject: 'workspace:/finance/**'", &[], &[]);
        check("{id: run_command}", "subject: session.set_mode", &[], &["pp"]);
        let found = samples("{id: run_command}", "match: {action: tool.cal}\ndecision: deny");
        assert_eq!(
            (found.unrequested_action_policies, found.unknown_tool_policies, found.unmatched_policies),
            (vec!["pp".to_owned()], vec![], vec![])
        );
    }
}
