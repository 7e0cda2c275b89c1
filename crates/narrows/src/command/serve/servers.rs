//! The MCP servers that an operator of our own starts or reaches, as the tier `sandboxed` has them.

use narrows_agent::Settings;
use narrows_audit::Log;
use narrows_egress::{HostAllowList, Target};
use narrows_govern::provided;
use narrows_process::Spec;
use serde_json::{Value, json};
use url::Url;

use super::agent::{event, located, record, refusal};
use super::bounds::Unenforceable;
use super::cage::Cage;
use super::charge::Charge;
use crate::failure::Failure;

/// The settings of the agent with its MCP servers in the sandbox of the tier, if it has one. What cannot be had is refused,
/// and what holds is in the log.
pub(super) async fn confined(
    charge: &Charge,
    log: Option<&Log>,
    settings: Settings,
) -> Result<Settings, Failure> {
    let Some(plan) = charge.bundle.sandbox.as_ref().filter(|_| charge.is_sandboxed()) else {
        return Ok(settings);
    };
    let id = charge.bundle.acp.front.id.as_str();
    let servers: Vec<Value> = charge.bundle.mcp_servers.iter().filter_map(provided).collect();
    let commands: Vec<Spec> =
        servers.iter().filter_map(|server| server["command"].as_str()).map(Spec::new).collect();
    let unlisted = HostAllowList::parse(&plan.egress).ok().and_then(|list| unlisted(&servers, &list));
    let refused = match unlisted {
        Some(refused) => Err(refused),
        // Nothing is started, so there is nothing to confine.
        None if commands.is_empty() => Ok(None),
        None => Cage::of(charge, None, &located(&charge.root, &commands)).await.map(Some),
    };
    let cage = match refused {
        Ok(cage) => cage,
        Err(refused) => {
            record(charge, log, "sandbox.refused", id, refusal(&refused)).await?;
            return Err(Failure::unenforceable(&refused, refused.code, &refused.hint));
        }
    };
    let mut about = cage
        .as_ref()
        .map_or_else(|| json!({"enforced": true, "processes": "none"}), |cage| cage.told.clone());
    about["kind"] = json!("sandbox");
    record(charge, log, "sandbox.applied", id, about).await?;
    let Some(cage) = cage else { return Ok(settings) };
    Ok(Settings {
        server_env: cage.environment(),
        server_confinement: cage.around_servers(log, event(charge, "egress.denied", id, json!({}))),
        ..settings
    })
}

/// The first server that would be reached although the list of hosts does not name it.
fn unlisted(servers: &[Value], list: &HostAllowList) -> Option<Unenforceable> {
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
        why: format!("the sandbox does not let out to {address}"),
        hint: "name its host in network.egress of the sandbox".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_reached_only_where_the_list_leads() {
        let list = HostAllowList::parse(["mcp.example.com", "localhost:8080"]).expect("a list");
        let check = |url: &str, expected: bool| {
            assert_eq!(unlisted(&[json!({"name": "x", "url": url})], &list).is_none(), expected, "{url}");
        };
        check("https://mcp.example.com/x", true);
        check("http://localhost:8080", true);
        check("https://mcp.example.com:8443/x", false);
        check("https://other.example.com", false);
        check("http://127.0.0.1:8080", false);
        check("nonsense", false);
        assert_eq!(unlisted(&[json!({"name": "x", "command": "y"})], &list), None);
    }
}
