//! Renders the effective settings as a `bus.toml` and as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use narrows_base::units::{format_duration, format_size};
use serde::Serialize;
use serde_json::Value;

use super::{
    BusLimits, Config, ListenAddr, ListenerSettings, McpAccess, McpTarget, Pool, PoolMcpServer, PoolProtocol,
    ShareMode,
};

const HIDDEN_VALUE: &str = "(hidden)";

/// Returns all settings as a `bus.toml`, defaults included. The values of environment variables are hidden.
/// Each variable is written as a TOML comment, so that its placeholder is not read as a value.
#[must_use]
pub fn toml(config: &Config) -> String {
    // Serializing the parts of a configuration cannot fail. The tests parse the result.
    fn part(value: &impl Serialize) -> String {
        toml::to_string(value).unwrap_or_default()
    }
    let Settings { listen, pool, limits, admin } = Settings::new(config);
    let mut parts = Vec::new();
    // Without listeners, the key `listen` is left out.
    if !listen.is_empty() {
        parts.push(part(&BTreeMap::from([("listen", listen)])));
    }
    for mut workers in pool {
        // TOML escapes line breaks, so each variable takes exactly one line.
        let comments = |env: &HiddenValues<'_>| -> String {
            part(env).lines().map(|line| format!("# {line}\n")).collect()
        };
        let env = workers.env.take().unwrap_or_default();
        let servers = std::mem::take(&mut workers.mcp_server);
        parts.push(part(&BTreeMap::from([("pool", [workers])])));
        parts.push(format!("[pool.env]\n{}", comments(&env)));
        for mut server in servers {
            let env = server.env.take();
            parts.push(part(&BTreeMap::from([("pool", BTreeMap::from([("mcp_server", [server])]))])));
            parts.extend(env.map(|env| format!("[pool.mcp_server.env]\n{}", comments(&env))));
        }
    }
    parts.push(part(&BTreeMap::from([("limits", limits)])));
    parts.push(part(&BTreeMap::from([("admin", admin)])));
    parts.join("\n")
}

/// Returns all settings as a JSON object. The values of environment variables are hidden.
#[must_use]
pub fn json(config: &Config) -> Value {
    serde_json::to_value(Settings::new(config)).unwrap_or_default()
}

#[derive(Serialize)]
struct Settings<'a> {
    listen: Vec<ListenSettings<'a>>,
    pool: Vec<PoolSettings<'a>>,
    limits: LimitSettings,
    admin: AdminSettings<'a>,
}

/// Names of environment variables, each with a placeholder as its value.
type HiddenValues<'a> = BTreeMap<&'a str, &'static str>;

fn hidden(env: &BTreeMap<String, String>) -> HiddenValues<'_> {
    env.keys().map(|name| (name.as_str(), HIDDEN_VALUE)).collect()
}

#[derive(Serialize)]
struct ListenSettings<'a> {
    url: String,
    auth: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pools: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origins: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Certificates>,
}

#[derive(Serialize)]
struct Certificates {
    cert: String,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_ca: Option<String>,
}

impl<'a> ListenSettings<'a> {
    fn new(listen: &'a ListenerSettings) -> Self {
        let web = match &listen.addr {
            ListenAddr::Web(web) => Some(&**web),
            _ => None,
        };
        let path = |path: &Path| path.display().to_string();
        Self {
            url: listen.addr.to_string(),
            auth: web.map_or(listen.auth, |web| web.auth).name(),
            pool: listen.pool.as_deref(),
            pools: listen.pools.as_deref(),
            tokens: web.and_then(|web| web.tokens.as_deref()).map(path),
            origins: web.map(|web| web.origins.as_slice()),
            hosts: web.map(|web| web.hosts.as_slice()),
            tls: web.and_then(|web| web.tls.as_ref()).map(|tls| Certificates {
                cert: path(&tls.cert),
                key: path(&tls.key),
                client_ca: tls.client_ca.as_deref().map(path),
            }),
        }
    }
}

#[derive(Serialize)]
struct PoolSettings<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identities: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    instances: u32,
    max_instances: u32,
    share: &'static str,
    protocol: Value,
    pass_env: &'a [String],
    mix_identities: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids: Option<u64>,
    /// The environment of a server. `None` in TOML, where variables are comments.
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<HiddenValues<'a>>,
    client_capabilities: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    mcp: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mcp_server: Vec<McpServerSettings<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    client_meta: &'a [String],
}

#[derive(Serialize)]
struct McpServerSettings<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<HiddenValues<'a>>,
}

impl<'a> McpServerSettings<'a> {
    fn new(server: &'a PoolMcpServer) -> Self {
        let (command, url, env) = match &server.target {
            McpTarget::Command { words, env } => (Some(&words[..]), None, Some(hidden(env))),
            McpTarget::Url(url) => (None, Some(url.as_str()), None),
        };
        Self { name: &server.name, command, url, env }
    }
}

#[derive(Serialize)]
struct LimitSettings {
    max_line: String,
    max_batch: usize,
    max_connections: usize,
    max_connections_per_identity: usize,
    max_anonymous_connections: usize,
    max_sessions_per_identity: usize,
    max_sessions_per_worker: usize,
    max_rate_per_identity: u64,
    queue_bytes: String,
    unfinished_input: String,
    unfinished_input_per_identity: String,
    stall_timeout: String,
    initialize_timeout: String,
    open_timeout: String,
    cancel_grace: String,
    drain_timeout: String,
    session_grace: String,
    disconnect_grace: String,
    restart_budget: u32,
    restart_window: String,
    memory: String,
    replay_bytes: String,
    replay_time: String,
    header_timeout: String,
    idle_timeout: String,
    owner_expiry: String,
}

#[derive(Serialize)]
struct AdminSettings<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth: Option<&'static str>,
}

impl<'a> Settings<'a> {
    fn new(config: &'a Config) -> Self {
        Self {
            listen: config.listen.iter().map(ListenSettings::new).collect(),
            pool: config.pools.iter().map(PoolSettings::new).collect(),
            limits: LimitSettings::new(&config.limits),
            admin: AdminSettings {
                socket: config.admin.socket.as_ref().map(|path| path.display().to_string()),
                port: config.admin.port.as_deref(),
                auth: config.admin.port.as_ref().map(|_| if config.admin.is_open { "none" } else { "user" }),
            },
        }
    }
}

impl<'a> PoolSettings<'a> {
    fn new(pool: &'a Pool) -> Self {
        let shown = |path: &std::path::PathBuf| path.display().to_string();
        Self {
            name: &pool.name,
            command: pool.manifest.is_none().then_some(&pool.command[..]),
            manifest: pool.manifest.as_ref().map(shown),
            identities: pool.identities.as_ref().map(shown),
            cwd: pool.cwd.as_ref().map(shown),
            instances: pool.instances,
            max_instances: pool.max_instances,
            share: match pool.share {
                ShareMode::Connection => "connection",
                ShareMode::Session => "session",
                ShareMode::All => "all",
            },
            protocol: match pool.protocol {
                PoolProtocol::V1 => Value::from(1),
                PoolProtocol::V2 => Value::from(2),
                PoolProtocol::JsonRpc => Value::from("jsonrpc"),
            },
            pass_env: &pool.pass_env,
            mix_identities: pool.mix_identities,
            memory: pool.memory.map(format_size),
            pids: pool.pids,
            env: Some(hidden(&pool.env)),
            client_capabilities: &pool.client_capabilities,
            mcp: pool.mcp.map(McpAccess::name),
            mcp_server: pool.mcp_servers.iter().map(McpServerSettings::new).collect(),
            client_meta: &pool.client_meta,
        }
    }
}

impl LimitSettings {
    fn new(limits: &BusLimits) -> Self {
        Self {
            max_line: format_size(limits.max_line as u64),
            max_batch: limits.max_batch,
            max_connections: limits.max_connections,
            max_connections_per_identity: limits.max_connections_per_identity,
            max_anonymous_connections: limits.max_anonymous_connections,
            max_sessions_per_identity: limits.max_sessions_per_identity,
            max_sessions_per_worker: limits.max_sessions_per_worker,
            max_rate_per_identity: limits.max_rate_per_identity,
            queue_bytes: format_size(limits.queue_bytes as u64),
            unfinished_input: format_size(limits.unfinished_input as u64),
            unfinished_input_per_identity: format_size(limits.unfinished_input_per_identity as u64),
            stall_timeout: format_duration(limits.stall_timeout),
            initialize_timeout: format_duration(limits.initialize_timeout),
            open_timeout: format_duration(limits.open_timeout),
            cancel_grace: format_duration(limits.cancel_grace),
            drain_timeout: format_duration(limits.drain_timeout),
            session_grace: format_duration(limits.session_grace),
            disconnect_grace: format_duration(limits.disconnect_grace),
            restart_budget: limits.restart_budget,
            restart_window: format_duration(limits.restart_window),
            memory: format_size(limits.memory),
            replay_bytes: format_size(limits.replay_bytes as u64),
            replay_time: format_duration(limits.replay_time),
            header_timeout: format_duration(limits.header_timeout),
            idle_timeout: format_duration(limits.idle_timeout),
            owner_expiry: format_duration(limits.owner_expiry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    #[test]
    fn only_hidden_values_become_comments() {
        let text = "[[pool]]\ncommand = ['a', \"x\\n[pool.env]\\nA = 1\"]\nenv = { KEY = 'k', 'odd key' = 'o' }\n\
            client_capabilities = { env = { A = '(hidden)' } }\n[[pool]]\nname = 'b'\ncommand = ['b']\n";
        let (mut config, _) = read(text, Path::new("bus.toml"), None).unwrap();
        let shown = toml(&config);
        let comments: Vec<&str> = shown.lines().filter(|line| line.starts_with('#')).collect();
        assert_eq!(comments, ["# KEY = \"(hidden)\"", "# \"odd key\" = \"(hidden)\""], "{shown}");
        assert!(shown.starts_with("[[pool]]\n"), "{shown}");
        config.pools[0].env.clear();
        assert_eq!(read(&shown, Path::new("bus.toml"), None).unwrap().0, config, "{shown}");
    }
}
