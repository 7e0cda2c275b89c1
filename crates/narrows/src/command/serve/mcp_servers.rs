//! MCP servers of the built-in agent in the sandbox of the tier.

use narrows_agent::Settings;
use narrows_audit::Log;
use narrows_egress::{HostAllowList, Target};
use narrows_govern::mcp_server_config;
use narrows_process::Spec;
use serde_json::{Value, json};
use url::Url;

use super::agent::{agent_event, record, refusal_details, with_search_path};
use super::manifest::LoadedManifest;
use super::sandbox::AgentSandbox;
use super::sandbox_bounds::Unenforceable;
use crate::failure::Failure;

/// Returns the settings with confined MCP servers, if the tier is `sandboxed`. Fails if a restriction cannot
/// be enforced. Records the enforced restrictions.
pub(super) async fn confined(
    manifest: &LoadedManifest,
    log: Option<&Log>,
    settings: Settings,
) -> Result<Settings, Failure> {
    let Some(plan) = manifest.bundle.sandbox.as_ref().filter(|_| manifest.is_sandboxed()) else {
        return Ok(settings);
    };
    let id = manifest.bundle.acp.front.id.as_str();
    let servers: Vec<Value> = manifest.bundle.mcp_servers.iter().filter_map(mcp_server_config).collect();
    let commands: Vec<Spec> =
        servers.iter().filter_map(|server| server["command"].as_str()).map(Spec::new).collect();
    let unlisted = HostAllowList::parse(&plan.egress).ok().and_then(|list| unlisted_server(&servers, &list));
    let refused = match unlisted {
        Some(refused) => Err(refused),
        // Without MCP servers there is no process to confine.
        None if commands.is_empty() => Ok(None),
        None => {
            AgentSandbox::build(manifest, None, &with_search_path(&manifest.root, &commands)).await.map(Some)
        }
    };
    let sandbox = match refused {
        Ok(sandbox) => sandbox,
        Err(refused) => {
            record(manifest, log, "sandbox.refused", id, refusal_details(&refused)).await?;
            return Err(Failure::unenforceable(&refused, refused.code, &refused.hint));
        }
    };
    let mut about = sandbox
        .as_ref()
        .map_or_else(|| json!({"enforced": true, "processes": "none"}), |sandbox| sandbox.enforced.clone());
    about["kind"] = json!("sandbox");
    record(manifest, log, "sandbox.applied", id, about).await?;
    let Some(sandbox) = sandbox else { return Ok(settings) };
    Ok(Settings {
        server_env: sandbox.environment(),
        server_confinement: sandbox
            .mcp_confinement(log, agent_event(manifest, "egress.denied", id, json!({}))),
        ..settings
    })
}

/// Returns an error for the first server whose host is not listed.
fn unlisted_server(servers: &[Value], list: &HostAllowList) -> Option<Unenforceable> {
    let is_listed = |address: &str| {
        let url = Url::parse(address).ok()?;
        let target = Target::parse(url.host_str()?, url.port_or_known_default()).ok()?;
        Some(list.permits(&target))
    };
    let mut addresses = servers.iter().filter_map(|server| server["url"].as_str());
    let address = addresses.find(|address| is_listed(address) != Some(true))?;
    Some(Unenforceable {
        code: "egress_denied",
        file: "ACP.md".to_owned(),
        field: "metadata.aip44.mcp_servers",
        why: format!("the sandbox does not permit connections to {address}"),
        hint: "add its host to network.egress of the sandbox".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_outside_the_host_list_are_refused() {
        let list = HostAllowList::parse(["mcp.example.com", "localhost:8080"]).expect("a list");
        let check = |url: &str, expected: bool| {
            assert_eq!(
                unlisted_server(&[json!({"name": "x", "url": url})], &list).is_none(),
                expected,
                "{url}"
            );
        };
        check("https://mcp.example.com/x", true);
        check("http://localhost:8080", true);
        check("https://mcp.example.com:8443/x", false);
        check("https://other.example.com", false);
        check("http://127.0.0.1:8080", false);
        check("nonsense", false);
        assert_eq!(unlisted_server(&[json!({"name": "x", "command": "y"})], &list), None);
    }
}
