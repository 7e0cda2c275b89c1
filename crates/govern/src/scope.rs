//! Scopes of single tools: the directories and hosts that calls of a tool may touch.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use narrows_base::text::quoted;
use narrows_manifest::types::operator::{Operator, Scope, ToolRef};
use narrows_policy::{Action, Kind};

use crate::call::Call;
use crate::config::GateConfig;
use crate::path_resolver::{PathResolver, resolve_in_roots};

/// Returns the scopes of an operator's tools, by tool id. A tool that is listed with and without a scope has
/// no limit.
pub(crate) fn tool_scopes(operator: &Operator) -> BTreeMap<String, Vec<Scope>> {
    let mut named: BTreeMap<String, Option<Vec<Scope>>> = BTreeMap::new();
    for tool in &operator.tools {
        let (id, scope) = match tool {
            ToolRef::Id(id) => (id, None),
            ToolRef::Full(tool) => (&tool.id, tool.scope.clone()),
            ToolRef::Mcp(_) => continue,
        };
        let scopes = named.entry(id.clone()).or_insert_with(|| Some(Vec::new()));
        match (scopes.as_mut(), scope) {
            (Some(scopes), Some(scope)) => scopes.push(scope),
            _ => *scopes = None,
        }
    }
    named.into_iter().filter_map(|(id, scopes)| Some((id, scopes?))).collect()
}

/// Returns the reason why a call is outside the scope of its tool. A call whose input does not show all paths
/// and hosts that it touches is outside.
pub(crate) fn scope_violation(
    call: &Call,
    config: &GateConfig,
    resolver: &dyn PathResolver,
) -> Option<String> {
    let (name, None) = call.name_and_server() else { return None };
    let is_granted = |name: &str| config.tools.as_ref().is_some_and(|tools| tools.has(None, name));
    if let Some(scopes) = name.and_then(|name| config.scopes.get(name)) {
        return violation_of_all(call, scopes, config, resolver);
    }
    // The scope of a tool kind does not apply to tools that are granted by name.
    if name.is_some_and(is_granted) {
        return None;
    }
    // The call must be within the scopes of the kind that the agent reports, and of each kind that the input
    // shows.
    let mut kinds: Vec<&str> = call.action().kinds().into_iter().map(Kind::name).collect();
    kinds.push(call.kind());
    let scopes = kinds.iter().filter_map(|kind| config.scopes.get(&format!("kind:{kind}")));
    scopes.into_iter().find_map(|scopes| violation_of_all(call, scopes, config, resolver))
}

/// Returns a reason if none of these scopes admits the call.
fn violation_of_all(
    call: &Call,
    scopes: &[Scope],
    config: &GateConfig,
    resolver: &dyn PathResolver,
) -> Option<String> {
    let action = call.action();
    let mut why = None;
    for scope in scopes {
        why = Some(check_scope(scope, &action, &config.roots, resolver).err()?);
    }
    why.map(|why| format!("`{}` is beyond the scope of this tool: {why}", call.tool()))
}

fn check_scope(
    scope: &Scope,
    action: &Action,
    roots: &[PathBuf],
    resolver: &dyn PathResolver,
) -> Result<(), String> {
    let Scope { workspace, network, .. } = scope;
    if workspace.is_none() && network.is_none() {
        return Ok(());
    }
    if action.command.is_some() {
        return Err("the effects of a command are unknown".to_owned());
    }
    let mut is_shown = false;
    if let Some(place) = workspace {
        let below =
            scope_directory(place).ok_or_else(|| format!("`{}` is not a valid scope", quoted(place, 200)))?;
        let places: Vec<PathBuf> = roots.iter().map(|root| root.join(&below)).collect();
        for path in &action.paths {
            let path = roots.first().map_or_else(|| path.clone(), |root| root.join(path));
            resolve_in_roots(&path, &places, resolver)
                .map_err(|_| format!("{:?} is outside of the scope", path.display().to_string()))?;
            is_shown = true;
        }
    }
    if let Some(hosts) = network {
        for url in &action.urls {
            let host = url_host(url).filter(|host| hosts.iter().any(|named| host_matches(named, host)));
            host.ok_or_else(|| format!("`{}` is outside of the scope", quoted(url, 200)))?;
            is_shown = true;
        }
    }
    if is_shown { Ok(()) } else { Err("the input does not show what the call touches".to_owned()) }
}

/// Returns the directory that a scope denotes, relative to the workspace: `docs`, `/docs`, `/docs/*` and
/// `docs/**` are the same.
fn scope_directory(place: &str) -> Option<PathBuf> {
    let place = place.strip_prefix('/').unwrap_or(place);
    let place = match place {
        "*" | "**" => "",
        place => place.strip_suffix("/**").or_else(|| place.strip_suffix("/*")).unwrap_or(place),
    };
    let path = Path::new(place);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !place.contains(['*', '?', '[', '{', '\0'])).then(|| path.to_owned())
}

fn url_host(url: &str) -> Option<String> {
    let url = url.to_ascii_lowercase();
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let (host, port) = authority.split_once(':').unwrap_or((authority, "0"));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    (!host.is_empty() && host.bytes().all(is_plain) && port.parse::<u16>().is_ok()).then(|| host.to_owned())
}

/// Returns `true` if `host` equals `named`. A name like `*.example.com` stands for all subdomains.
fn host_matches(named: &str, host: &str) -> bool {
    let named = named.to_ascii_lowercase();
    match named.strip_prefix("*.") {
        Some(parent) => host.strip_suffix(parent).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        None => named == host,
    }
}

#[cfg(test)]
mod tests {
    use narrows_manifest::ToolSet;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::path_resolver::SystemPathResolver;

    fn scope(workspace: Option<&str>, network: Option<&[&str]>) -> Scope {
        Scope {
            workspace: workspace.map(str::to_owned),
            network: network.map(|hosts| hosts.iter().map(|host| (*host).to_owned()).collect()),
            secrets: None,
        }
    }

    #[track_caller]
    fn check(scopes: &[(&str, Scope)], call: (&str, &str), input: &Value, allowed: bool) {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("docs")).unwrap();
        std::os::unix::fs::symlink("..", home.join("docs/up")).unwrap();
        let mut all: BTreeMap<String, Vec<Scope>> = BTreeMap::new();
        for (id, scope) in scopes {
            all.entry((*id).to_owned()).or_default().push(scope.clone());
        }
        let tools =
            ToolSet { names: ["plain".to_owned(), "kind:read".to_owned()].into(), ..ToolSet::default() };
        let config =
            GateConfig { tools: Some(tools), scopes: all, roots: vec![home], ..GateConfig::default() };
        let told = Call::new(None, call.0, call.1, input.clone());
        let found = scope_violation(&told, &config, &SystemPathResolver);
        assert_eq!(found.is_none(), allowed, "{scopes:?} {call:?} {input} {found:?}");
    }

    #[test]
    fn a_tool_may_touch_only_paths_in_its_scope() {
        let docs = || [("write", scope(Some("/docs/*"), None))];
        check(&docs(), ("write", "edit"), &json!({"path": "docs/a.md"}), true);
        check(&docs(), ("write", "edit"), &json!({"path": "docs/new/a.md"}), true);
        check(&docs(), ("write", "edit"), &json!({"path": "src/a.md"}), false);
        check(&docs(), ("write", "edit"), &json!({"path": "docs/../src/a.md"}), false);
        check(&docs(), ("write", "edit"), &json!({"path": "docs/up/src"}), false);
        check(&docs(), ("write", "edit"), &json!({"path": "/etc/passwd"}), false);
        check(&docs(), ("write", "edit"), &json!({"text": "no path"}), false);
        check(&docs(), ("write", "edit"), &json!({"path": "docs/a", "command": "rm x"}), false);
        check(&docs(), ("other", "edit"), &json!({"path": "src/a.md"}), true);
        check(&[("write", scope(Some("d*/x"), None))], ("write", "edit"), &json!({"path": "docs/a"}), false);
        let either = [("write", scope(Some("docs"), None)), ("write", scope(Some("src"), None))];
        check(&either, ("write", "edit"), &json!({"path": "src/a.md"}), true);
        check(&either, ("write", "edit"), &json!({"path": "a.md"}), false);
    }

    #[test]
    fn a_tool_reaches_the_hosts_of_its_scope() {
        let fetch = || [("fetch", scope(None, Some(&["example.com", "*.example.org"])))];
        for (url, allowed) in [
            ("https://example.com/a", true),
            ("HTTP://EXAMPLE.com:80?x", true),
            ("https://a.example.org", true),
            ("https://example.org", false),
            ("https://example.com.evil.net/", false),
            ("https://example.com@evil.net/", false),
            ("https://evil.net\\@example.com/", false),
            ("https://evilexample.org/", false),
            ("ftp://example.com/", false),
        ] {
            check(&fetch(), ("fetch", "fetch"), &json!({"url": url}), allowed);
        }
        check(&fetch(), ("fetch", "fetch"), &json!({}), false);
    }

    #[test]
    fn the_scope_of_a_kind_applies_to_tools_not_granted_by_name() {
        let docs = || [("kind:read", scope(Some("docs"), None))];
        check(&docs(), ("Look", "read"), &json!({"path": "src/a"}), false);
        check(&docs(), ("Look", "read"), &json!({"path": "docs/a"}), true);
        check(&docs(), ("plain", "read"), &json!({"path": "src/a"}), true);
    }

    #[test]
    fn a_call_must_be_within_the_scopes_of_all_its_kinds() {
        let docs = || [("kind:edit", scope(Some("/docs/*"), None))];
        let diff = "--- a/src/a\n+++ b/src/a\n@@ -1 +1 @@\n-a\n+b\n";
        for kind in ["edit", "read", "search", "think", "fetch", "other", "_mine"] {
            check(&docs(), ("Any", kind), &json!({"path": "src/a", "content": "x"}), false);
            check(&docs(), ("Any", kind), &json!({"path": "src/a", "diff": "x"}), false);
            check(&docs(), ("Any", kind), &json!(diff), false);
            check(&docs(), ("Any", kind), &json!({"path": "docs/a", "content": "x"}), true);
        }
        check(&docs(), ("Any", "read"), &json!({"path": "src/a"}), true);
        check(&docs(), ("plain", "read"), &json!({"path": "src/a", "content": "x"}), true);
        let both = || [("kind:edit", scope(Some("docs"), None)), ("kind:read", scope(Some("src"), None))];
        check(&both(), ("Any", "read"), &json!({"path": "docs/a", "content": "x"}), false);
        check(&both(), ("Any", "edit"), &json!({"path": "docs/a"}), true);
        check(&both(), ("Any", "read"), &json!({"path": "src/a"}), true);
        let runs = || [("kind:execute", scope(Some("docs"), None))];
        check(&runs(), ("Any", "read"), &json!({"path": "docs/a", "command": "ls"}), false);
        let hosts = || [("kind:fetch", scope(None, Some(&["example.com"])))];
        check(&hosts(), ("Any", "read"), &json!({"url": "https://evil.net"}), false);
        check(&hosts(), ("Any", "read"), &json!({"url": "https://example.com/a"}), true);
    }

    #[test]
    fn scopes_are_those_that_the_operator_gives_its_tools() {
        let operator: Operator = serde_json::from_value(json!({
            "name": "N", "id": "nn", "persona_summary": "p", "version": "1.0.0",
            "profile": {"role": "r", "voice": "v", "boundaries": []},
            "tools": ["plain", {"id": "write", "scope": {"workspace": "docs"}}, {"id": "both", "scope": {}}, "both",
                {"kind": "mcp", "server": "s"}],
        }))
        .unwrap();
        let scopes = tool_scopes(&operator);
        assert_eq!(scopes.keys().collect::<Vec<_>>(), ["write"]);
    }

    proptest! {
        #[test]
        fn no_scope_leads_out_of_the_workspace(place in "\\PC{0,20}", url in "(https?://)?[a-z.:@/\\\\\\[\\]]{0,20}") {
            if let Some(path) = scope_directory(&place) {
                prop_assert!(Path::new("/w").join(path).starts_with("/w"));
            }
            let _ = url_host(&url);
        }
    }
}
