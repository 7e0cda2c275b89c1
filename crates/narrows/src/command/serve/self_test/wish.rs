//! Calls to try a manifest with, found among its own tools and policies.

use std::path::{Path, PathBuf};

use narrows_govern::{Mandate, Principal, Reach, foresee};
use narrows_manifest::{BoundPolicy, Bundle};
use narrows_policy::{Class, Kind, Policy, Ruling};
use serde_json::{Value, json};

/// A tool that no operator has.
const STRANGER: &str = "narrows-self-test-unknown";

/// A call of a tool, and what is to become of it.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// The tool by name, if its manifest names it.
    pub(super) name: Option<String>,
    pub(super) kind: Kind,
    pub(super) input: Value,
    pub(super) ruling: Ruling,
}

impl Wish {
    /// What a log calls the tool.
    pub(super) fn tool(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("kind:{}", self.kind))
    }

    /// What decides it, in a word.
    pub(super) fn decided_by(&self) -> &str {
        self.ruling.decided_by().unwrap_or("default")
    }
}

/// What is tried. `None`: the manifest has nothing of the kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    /// A call that is allowed.
    pub(super) allowed: Option<Wish>,
    /// A call that is denied: by a policy if there is one that denies.
    pub(super) denied: Option<Wish>,
    /// A call that needs an approval.
    pub(super) approved: Option<Wish>,
    /// A call of a tool that the operator does not have.
    pub(super) stranger: Option<Wish>,
    /// The policies that no tool has the name for.
    pub(super) missed: Vec<String>,
    /// The policies about actions that are never asked for.
    pub(super) unasked: Vec<String>,
    /// Other policies that are about nothing of what was thought of.
    pub(super) untried: Vec<String>,
}

impl Wishes {
    /// Those of a manifest.
    pub(super) fn of(bundle: &Bundle, mandate: &Mandate, who: &Principal, policy: &Policy) -> Self {
        let root = mandate.roots.first().map_or(Path::new("/"), PathBuf::as_path);
        let paths = paths(bundle, root);
        let wish = |name: Option<&str>, kind: Kind, input: Value| {
            let ruling = foresee(mandate, who, policy, (name, kind.name()), &input);
            Wish { name: name.map(str::to_owned), kind, input, ruling }
        };
        let mut wishes: Vec<Wish> = tools(mandate)
            .into_iter()
            .flat_map(|(name, kind)| {
                let tried: Vec<Wish> = inputs(kind, &paths)
                    .into_iter()
                    .map(|input| wish(name.as_deref(), kind, input))
                    .collect();
                tried
            })
            .collect();
        wishes.sort_by_key(|wish| wish.kind.risk());
        let first = |fits: &dyn Fn(&Wish) -> bool| wishes.iter().find(|wish| fits(wish)).cloned();
        let stranger = wish(Some(STRANGER), Kind::Other, json!({"note": "self-test"}));
        let stranger = Some(stranger).filter(|it| mandate.tools.is_some() && it.ruling.class == Class::Deny);
        let is = |wish: &Wish, class: Class| wish.ruling.class == class;
        let by_policy = |wish: &Wish| wish.ruling.decided_by().is_some();
        let asks = |wish: &Wish| is(wish, Class::RequireApproval) || is(wish, Class::Escalate);
        let denied = first(&|wish| is(wish, Class::Deny) && by_policy(wish));
        let slug = |bound: &BoundPolicy| bound.policy.front.slug.clone();
        let missed: Vec<String> = Reach::of(bundle).missed().into_iter().map(slug).collect();
        let has_matched = |slug: &String| wishes.iter().any(|wish| is_heard(slug, &wish.ruling));
        let unasked: Vec<String> = Reach::of(bundle).unasked().into_iter().map(slug).collect();
        let is_told = |slug: &String| missed.contains(slug) || unasked.contains(slug);
        let untried = bundle.policies.iter().map(slug).filter(|slug| !is_told(slug) && !has_matched(slug));
        Self {
            untried: untried.collect(),
            missed,
            unasked,
            allowed: first(&|wish| is(wish, Class::Allow)),
            denied: denied.or_else(|| first(&|wish| is(wish, Class::Deny))).or_else(|| stranger.clone()),
            approved: first(&|wish| asks(wish) && by_policy(wish)).or_else(|| first(&asks)),
            stranger,
        }
    }
}

/// Whether a policy has a say in a ruling.
fn is_heard(slug: &str, ruling: &Ruling) -> bool {
    ruling.clauses.iter().any(|clause| clause == slug) || ruling.notes.iter().any(|note| note.clause == slug)
}

/// The tools of an operator as an agent may tell of them. One without an operator may be asked for anything.
fn tools(mandate: &Mandate) -> Vec<(Option<String>, Kind)> {
    const LIKELY: [Kind; 5] = [Kind::Read, Kind::Edit, Kind::Execute, Kind::Delete, Kind::Other];
    let Some(tools) = &mandate.tools else {
        return Kind::ALL.into_iter().map(|kind| (None, kind)).collect();
    };
    let of_name = |name: &String| match name.strip_prefix("kind:") {
        Some(kind) => vec![(None, Kind::named(kind))],
        None => LIKELY.into_iter().map(|kind| (Some(name.clone()), kind)).collect(),
    };
    tools.names.iter().flat_map(of_name).collect()
}

/// Places in the workspace: one that no policy is likely to name, and one for every path that a policy does.
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

/// What a tool of a kind may be called with.
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
    use narrows_govern::policy_of;
    use narrows_manifest::{Memory, resolve};

    use super::*;

    fn wishes(tools: &str, policy: &str) -> Wishes {
        let files = Memory::default()
            .with("n/ACP.md", "---\nname: n\nid: nn\ndescription: d\nversion: 1.0.0\nkind: server\ntransport: stdio\nmetadata:\n  aip44:\n    acp_rev: \"272bf79\"\n    tier: governance-aware\n    operator: ./OPERATOR.md\n---\n")
            .with("n/OPERATOR.md", format!("---\nname: N\nid: nn\npersona_summary: p\nversion: 1.0.0\nprofile: {{role: r, voice: v, boundaries: []}}\ntools: [{tools}]\ngovernance: {{audit_log: 'audit:default', autonomy: autonomous}}\n---\n"))
            .with("n/GOVERNANCE.md", "---\nschema: governance.workspace/v1\nname: home\ntitle: t\ndescription: d\nversion: 1.0.0\nautonomy: {level: 2}\npolicies: [{id: p, ref: ./POLICY.md}]\n---\n")
            .with("n/POLICY.md", format!("---\nschema: agentgovernance/v1\ndoctype: policy\nslug: pp\nversion: 1.0.0\n{policy}\n---\n"));
        let bundle = resolve(&files, Path::new("n/ACP.md")).unwrap_or_else(|findings| panic!("{findings}"));
        let mandate = Mandate::of(&bundle, vec!["/w".into()]);
        Wishes::of(&bundle, &mandate, &Principal::default(), &policy_of(&bundle))
    }

    #[test]
    fn calls_are_found_among_tools_and_policies() {
        let check = |tools: &str, policy: &str, expected: [Option<&str>; 3]| {
            let found = wishes(tools, policy);
            let told =
                [found.allowed, found.approved, found.denied].map(|wish| wish.as_ref().map(Wish::tool));
            assert_eq!(told.each_ref().map(Option::as_deref), expected, "{tools} {policy}");
        };
        let deny = "match: {action: tool.call, subject: 'kind:execute'}\ndecision: deny";
        check(
            "{id: 'kind:read'}, {id: 'kind:edit'}, {id: 'kind:execute'}",
            deny,
            [Some("kind:read"), Some("kind:edit"), Some("kind:execute")],
        );
        check("{id: 'kind:read'}", deny, [Some("kind:read"), None, Some(STRANGER)]);
        check("note", deny, [Some("note"), Some("note"), Some("note")]);
        check("", deny, [None, None, Some(STRANGER)]);
        let path = "match: {action: workspace.write, subject: 'workspace:/finance/**'}\ndecision: deny";
        check("{id: 'kind:edit'}", path, [None, Some("kind:edit"), Some("kind:edit")]);
    }

    #[test]
    fn policies_that_match_nothing_are_named() {
        let check = |tools: &str, policy: &str, missed: &[&str], untried: &[&str]| {
            let found = wishes(tools, &format!("match: {{action: tool.call, {policy}}}\ndecision: deny"));
            assert_eq!(
                (found.missed.as_slice(), found.untried.as_slice()),
                (
                    missed.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>().as_slice(),
                    untried.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>().as_slice(),
                ),
                "{tools} {policy}"
            );
        };
        check("{id: run_command}", "subject: run_command", &[], &[]);
        check("{id: run_command}", "subject: run_comand", &["pp"], &[]);
        check("{id: run_command}", "subject: 'workspace:/finance/**'", &[], &[]);
        check("{id: run_command}", "subject: session.set_mode", &[], &["pp"]);
        let found = wishes("{id: run_command}", "match: {action: tool.cal}\ndecision: deny");
        assert_eq!((found.unasked, found.missed, found.untried), (vec!["pp".to_owned()], vec![], vec![]));
    }
}
