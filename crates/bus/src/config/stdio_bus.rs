//! Reads the JSON configuration of stdio Bus.

use std::time::Duration;

use narrows_config::{Findings, Node, SettingValue, Table, ValueKind, quoted};

use super::settings::{LINE_BYTES_RANGE, MAX_RESTART_BUDGET, QUEUE_BYTES_RANGE, warn_long_drain};
use super::{
    AdminConfig, BusLimits, Config, ListenAddr, ListenerSettings, ParsedConfig, Pool, PoolPositions,
    PoolProtocol, ShareMode,
};

const POOL_KEYS: &[&str] = &["id", "command", "args", "instances"];

const LIMITS_KEYS: &[&str] = &[
    "max_input_buffer",
    "max_output_queue",
    "max_restarts",
    "restart_window_sec",
    "drain_timeout_sec",
    "backpressure_timeout_sec",
];

const TRANSPORT_KEYS: &[&str] = &["mode", "framing", "protocol", "options"];

const MAX_INSTANCES: u64 = 10_000;

const MAX_SECONDS: u64 = 365 * 24 * 3600;

/// Reads a configuration file of stdio Bus. The file cannot name an address: like stdio Bus, the bus listens
/// on stdin and stdout unless flags select another listener.
pub(super) fn read(findings: &Findings<'_>, node: &Node) -> Option<ParsedConfig> {
    let table = node.as_table(findings)?;
    warn_unknown_keys(table, &["pools", "limits", "transport"]);
    let Some(item) = table.get("pools") else {
        let hint = "JSON is read as a configuration of stdio Bus; a bus.toml is TOML";
        return table.error("`pools` is missing", Some(hint));
    };
    let mut pools: Vec<Pool> = Vec::new();
    let mut positions = Vec::new();
    for item in item.list("write \"pools\": [{\"id\": …, \"command\": …, \"instances\": 1}]")? {
        let Some(table) = item.table() else { continue };
        let Some((pool, command)) = pool(table) else { continue };
        if !pool.name.is_empty() && pools.iter().any(|other| other.name == pool.name) {
            let what = format!("duplicate pool id \"{}\"", quoted(&pool.name));
            findings.error(table.at, what, Some("give each pool an `id` of its own".to_owned()));
        }
        pools.push(pool);
        positions.push(PoolPositions { command, ..PoolPositions::default() });
    }
    if matches!(&item.node.kind, ValueKind::List(nodes) if nodes.is_empty()) {
        item.error_with_name("must have at least one pool", None);
    }
    let limits = table.get("limits").and_then(SettingValue::table).map(limits).unwrap_or_default();
    let listen = match table.get("transport").and_then(SettingValue::table) {
        Some(table) => transport(table),
        None => vec![ListenerSettings::new(ListenAddr::Stdio)],
    };
    Some(ParsedConfig {
        config: Config { listen, pools, limits, admin: AdminConfig::default() },
        positions,
        sockets: Vec::new(),
        files: Vec::new(),
    })
}

/// Warns about unknown keys, which stdio Bus ignores silently.
fn warn_unknown_keys(table: Table<'_>, known: &'static [&'static str]) {
    for (entry, near) in table.unknown(known) {
        let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        table.findings.warning(entry.at, format!("`{}` is unknown and ignored{near}", quoted(&entry.key)));
    }
}

/// Reads a pool. Returns the pool with the byte offset of its command. As in stdio Bus, all clients share the
/// workers of the pool, which speak any JSON-RPC and get the whole environment.
fn pool(table: Table<'_>) -> Option<(Pool, usize)> {
    warn_unknown_keys(table, POOL_KEYS);
    let need = |key: &str| {
        let hint = "a pool has an id, a command and a number of instances";
        table.get(key).or_else(|| table.error(format!("`{key}` is missing"), Some(hint)))
    };
    let (id, command, instances) = (need("id"), need("command"), need("instances"));
    let id = id.and_then(SettingValue::text);
    let program = command.and_then(SettingValue::text);
    let instances = instances.and_then(|item| item.count(1, MAX_INSTANCES));
    let mut words: Vec<String> = program.map(str::to_owned).into_iter().collect();
    if let Some(args) = table.get("args").and_then(|item| item.list("write \"args\": [\"acp\"]")) {
        for item in args {
            match &item.node.kind {
                ValueKind::Text(text) if !text.contains('\0') => words.push(text.clone()),
                _ => item.error_with_name("must be a list of texts", None),
            }
        }
    }
    program?;
    // Missing keys already have findings, so reading continues with defaults.
    let (id, instances) = (id.unwrap_or_default(), instances.unwrap_or(1));
    let pool = Pool {
        instances,
        max_instances: instances.max(256),
        share: ShareMode::All,
        protocol: PoolProtocol::JsonRpc,
        pass_env: vec!["*".to_owned()],
        ..Pool::new(id, words)
    };
    Some((pool, command.map_or(table.at, |item| item.node.at)))
}

fn limits(table: Table<'_>) -> BusLimits {
    warn_unknown_keys(table, LIMITS_KEYS);
    let mut limits = BusLimits::default();
    set_number(table, "max_input_buffer", LINE_BYTES_RANGE, &mut limits.max_line);
    set_number(table, "max_output_queue", QUEUE_BYTES_RANGE, &mut limits.queue_bytes);
    set_number(table, "max_restarts", (1, MAX_RESTART_BUDGET), &mut limits.restart_budget);
    let times = [
        ("restart_window_sec", &mut limits.restart_window),
        ("drain_timeout_sec", &mut limits.drain_timeout),
        ("backpressure_timeout_sec", &mut limits.stall_timeout),
    ];
    for (key, target) in times {
        let mut seconds = target.as_secs();
        set_number(table, key, (1, MAX_SECONDS), &mut seconds);
        *target = Duration::from_secs(seconds);
    }
    if let Some(item) = table.get("drain_timeout_sec") {
        warn_long_drain(item, limits.drain_timeout);
    }
    limits
}

fn set_number<N: TryFrom<i128> + Copy>(
    table: Table<'_>,
    key: &str,
    (least, most): (u64, u64),
    target: &mut N,
) {
    match table.get(key) {
        Some(item) if item.node.kind == ValueKind::Integer(0) => {
            item.warn("cannot be 0 here; the default is used");
        }
        Some(item) => *target = item.count(least, most).unwrap_or(*target),
        None => {}
    }
}

fn transport(table: Table<'_>) -> Vec<ListenerSettings> {
    warn_unknown_keys(table, TRANSPORT_KEYS);
    for (key, wanted) in [("framing", "ndjson"), ("protocol", "json")] {
        if let Some(item) = table.get(key)
            && item.text().is_some_and(|text| text != wanted)
        {
            item.error_with_name(&format!("can only be \"{wanted}\" here"), None);
        }
    }
    if let Some(item) = table.get("options") {
        item.warn("is ignored");
    }
    let stdio = vec![ListenerSettings::new(ListenAddr::Stdio)];
    let Some(item) = table.get("mode") else { return stdio };
    match item.text() {
        Some("stdio") => stdio,
        Some("tcp" | "unix") => {
            item.warn(
                "names no address: the bus does not listen unless --tcp HOST:PORT or --unix PATH is given",
            );
            Vec::new()
        }
        Some(_) => {
            item.error_with_name("can only be \"stdio\", \"unix\" or \"tcp\" here", None);
            Vec::new()
        }
        None => Vec::new(),
    }
}
