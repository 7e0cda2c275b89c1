//! `mcp`, `[[pool.mcp_server]]` and `client_meta`: the MCP servers and the metadata that clients of a pool
//! may send.

use narrows_config::{SettingValue, Table, quoted};

use super::super::mcp::{McpAccess, McpTarget, PoolMcpServer};
use super::super::{Pool, PoolProtocol};
use super::pool::env;
use super::set;

const SERVER_KEYS: &[&str] = &["name", "command", "url", "env"];

const KEY_HINTS: &[(&str, &str)] = &[
    ("args", "write the arguments in `command`, after the program"),
    ("type", "a server with `url` is of type http, one with `command` of type stdio"),
];

const MAX_NAME_BYTES: usize = 256;

/// Reads the MCP and `_meta` settings of a pool. Returns the byte offset of the command of each MCP server.
pub(super) fn read(table: Table<'_>, pool: &mut Pool) -> Vec<Option<usize>> {
    let choices = McpAccess::ALL.map(|access| (access.name(), access));
    set(table, "mcp", &mut pool.mcp, |item| item.one_of(&choices).map(Some));
    let listed = table.get("mcp_server").and_then(SettingValue::tables);
    let mut commands = Vec::new();
    for table in listed.into_iter().flatten() {
        let Some((server, name)) = server(table) else { continue };
        if pool.mcp_servers.iter().any(|other| other.name == server.name) {
            let what = format!("duplicate server name \"{}\" in this pool", quoted(&server.name));
            name.findings.error(name.node.at, what, Some("give each server a `name` of its own".to_owned()));
        }
        pool.mcp_servers.push(server);
        commands.push(table.get("command").map(|item| item.node.at));
    }
    set(table, "client_meta", &mut pool.client_meta, |item| {
        let hint = "write client_meta = [\"claudeCode\"]";
        Some(item.list(hint)?.filter_map(|item| item.parsed(meta_name)).collect())
    });
    check_mcp_settings(table, pool);
    commands
}

fn check_mcp_settings(table: Table<'_>, pool: &Pool) {
    let access = table.get("mcp");
    if pool.manifest.is_some() {
        for item in [access, table.get("mcp_server")].into_iter().flatten() {
            item.error_with_name("cannot be set with `manifest`: the manifest lists the servers", None);
        }
        if let Some(item) = table.get("client_meta") {
            let hint = "write metadata.narrows.client_meta into the ACP.md";
            item.error_with_name("cannot be set with `manifest`", Some(hint.to_owned()));
        }
        return;
    }
    if let Some(item) = table.get("client_meta") {
        match pool.mcp {
            Some(McpAccess::Any) => item.warn("has no effect with mcp = \"any\", which permits every member"),
            _ if pool.protocol == PoolProtocol::JsonRpc => {
                item.warn("has no effect in a pool with \"jsonrpc\"");
            }
            _ => {}
        }
    }
    match (pool.mcp, table.get("mcp_server")) {
        (Some(McpAccess::Listed), None) => {
            if let Some(item) = access {
                let hint = "write [[pool.mcp_server]] with name = \"files\" and command = [\"…\"]";
                item.error_with_name("needs at least one [[pool.mcp_server]]", Some(hint.to_owned()));
            }
        }
        (mode, Some(item)) if mode != Some(McpAccess::Listed) => {
            item.error_with_name("has an effect only with mcp = \"listed\"", None);
        }
        (Some(McpAccess::Any), None) => {
            if let Some(item) = access {
                item.warn("allows every client of this pool to run commands as the user of the bus");
            }
        }
        _ => {}
    }
    if let Some(item) = access.filter(|_| pool.protocol == PoolProtocol::JsonRpc && pool.mcp.is_some()) {
        item.warn("applies only to the session methods of ACP, also in a pool with \"jsonrpc\"");
    }
}

fn meta_name(text: &str) -> Result<String, &'static str> {
    match text.len() {
        1..=MAX_NAME_BYTES => Ok(text.to_owned()),
        _ => Err("must have 1 to 256 bytes"),
    }
}

/// Reads one MCP server of a pool. Returns the server and the value of its `name`.
fn server(table: Table<'_>) -> Option<(PoolMcpServer, SettingValue<'_>)> {
    table.only(SERVER_KEYS, KEY_HINTS);
    let Some(name) = table.get("name") else {
        return table.error("`name` is missing", Some("clients select the server by it: name = \"files\""));
    };
    let text = name.parsed(|text| match text.len() {
        ..=MAX_NAME_BYTES => Ok(text.to_owned()),
        _ => Err("a name has at most 256 bytes"),
    })?;
    let variables = table.get("env");
    let target = match (table.get("command"), table.get("url")) {
        (Some(item), None) => {
            McpTarget::Command { words: item.command()?, env: variables.and_then(env).unwrap_or_default() }
        }
        (None, Some(item)) => {
            if let Some(item) = variables {
                item.error_with_name("has an effect only with `command`", None);
            }
            McpTarget::Url(url(item)?)
        }
        (Some(_), Some(item)) => {
            return item.error("`url` and `command` exclude each other", None);
        }
        (None, None) => {
            let hint = "write command = [\"PROGRAM\", \"ARG\"], or url = \"https://…\"";
            return table.error("`command` is missing", Some(hint));
        }
    };
    Some((PoolMcpServer { name: text, target }, name))
}

/// Reads the URL of an MCP server. No finding quotes the URL, because it may hold a secret.
fn url(item: SettingValue<'_>) -> Option<String> {
    let text = item.text()?;
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    if rest.is_none_or(|rest| rest.is_empty() || text.contains(char::is_whitespace)) {
        return item.expected("a URL that begins with https:// or http://", None);
    }
    Some(text.to_owned())
}
