//! The JSON configuration of stdio Bus, read as what it means here.

use std::time::Duration;

use narrows_config::{Findings, Item, Kind, Node, Table, quoted};

use super::settings::{BUDGET, LINE, QUEUE, long_drain};
use super::{Admin, Config, Door, Limits, Listen, Placed, Pool, Protocol, Share, Spots};

/// What may stand in a pool.
const POOL: &[&str] = &["id", "command", "args", "instances"];

/// What may stand in `limits`.
const LIMITS: &[&str] = &[
    "max_input_buffer",
    "max_output_queue",
    "max_restarts",
    "restart_window_sec",
    "drain_timeout_sec",
    "backpressure_timeout_sec",
];

/// What may stand in `transport`.
const TRANSPORT: &[&str] = &["mode", "framing", "protocol", "options"];

/// The most workers that a pool may have.
const MOST: u64 = 10_000;

/// The longest time, in seconds.
const YEAR: u64 = 365 * 24 * 3600;

/// Makes of a file what it means here. It does not say where to listen; stdio Bus takes its own stdin and stdout if
/// its flags name nothing else.
pub(super) fn read(findings: &Findings<'_>, node: &Node) -> Option<Placed> {
    let table = node.as_table(findings)?;
    strangers(table, &["pools", "limits", "transport"]);
    let Some(item) = table.get("pools") else {
        let hint = "JSON is read as a configuration of stdio Bus; a bus.toml is TOML";
        return table.error("`pools` is missing", Some(hint));
    };
    let mut pools: Vec<Pool> = Vec::new();
    let mut spots = Vec::new();
    for item in item.list("write \"pools\": [{\"id\": …, \"command\": …, \"instances\": 1}]")? {
        let Some(table) = item.table() else { continue };
        let Some((pool, command)) = pool(table) else { continue };
        if !pool.name.is_empty() && pools.iter().any(|other| other.name == pool.name) {
            let what = format!("duplicate pool id \"{}\"", quoted(&pool.name));
            findings.error(table.at, what, Some("give each its own".to_owned()));
        }
        pools.push(pool);
        spots.push(Spots { command, ..Spots::default() });
    }
    if matches!(&item.node.kind, Kind::List(nodes) if nodes.is_empty()) {
        item.fail("must have at least one pool", None);
    }
    let limits = table.get("limits").and_then(Item::table).map(limits).unwrap_or_default();
    let listen = match table.get("transport").and_then(Item::table) {
        Some(table) => transport(table),
        None => vec![Listen::new(Door::Stdio)],
    };
    Some(Placed {
        config: Config { listen, pools, limits, admin: Admin::default() },
        spots,
        sockets: Vec::new(),
        files: Vec::new(),
    })
}

/// Warns of keys that are not known; stdio Bus ignores them without a word.
fn strangers(table: Table<'_>, known: &'static [&'static str]) {
    for (entry, near) in table.unknown(known) {
        let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        table.findings.warning(entry.at, format!("`{}` is unknown and ignored{near}", quoted(&entry.key)));
    }
}

/// A pool, and the byte where its command stands. Its workers are shared by all, speak any JSON-RPC, and get the whole
/// environment, as they do there.
fn pool(table: Table<'_>) -> Option<(Pool, usize)> {
    strangers(table, POOL);
    let need = |key: &str| {
        let hint = "a pool has an id, a command and a number of instances";
        table.get(key).or_else(|| table.error(format!("`{key}` is missing"), Some(hint)))
    };
    let (id, command, instances) = (need("id"), need("command"), need("instances"));
    let id = id.and_then(Item::text);
    let program = command.and_then(Item::text);
    let instances = instances.and_then(|item| item.count(1, MOST));
    let mut words: Vec<String> = program.map(str::to_owned).into_iter().collect();
    if let Some(args) = table.get("args").and_then(|item| item.list("write \"args\": [\"acp\"]")) {
        for item in args {
            match &item.node.kind {
                Kind::Text(text) if !text.contains('\0') => words.push(text.clone()),
                _ => item.fail("must be a list of texts", None),
            }
        }
    }
    program?;
    // What is missing was told; the rest is read on.
    let (id, instances) = (id.unwrap_or_default(), instances.unwrap_or(1));
    let pool = Pool {
        instances,
        max_instances: instances.max(256),
        share: Share::All,
        protocol: Protocol::JsonRpc,
        pass_env: vec!["*".to_owned()],
        ..Pool::new(id, words)
    };
    Some((pool, command.map_or(table.at, |item| item.node.at)))
}

fn limits(table: Table<'_>) -> Limits {
    strangers(table, LIMITS);
    let mut limits = Limits::default();
    set_number(table, "max_input_buffer", LINE, &mut limits.max_line);
    set_number(table, "max_output_queue", QUEUE, &mut limits.queue_bytes);
    set_number(table, "max_restarts", (1, BUDGET), &mut limits.restart_budget);
    let times = [
        ("restart_window_sec", &mut limits.restart_window),
        ("drain_timeout_sec", &mut limits.drain_timeout),
        ("backpressure_timeout_sec", &mut limits.stall_timeout),
    ];
    for (key, target) in times {
        let mut seconds = target.as_secs();
        set_number(table, key, (1, YEAR), &mut seconds);
        *target = Duration::from_secs(seconds);
    }
    if let Some(item) = table.get("drain_timeout_sec") {
        long_drain(item, limits.drain_timeout);
    }
    limits
}

/// Sets `target` to the number of `key`, if it is there and valid.
fn set_number<N: TryFrom<i128> + Copy>(
    table: Table<'_>,
    key: &str,
    (least, most): (u64, u64),
    target: &mut N,
) {
    match table.get(key) {
        Some(item) if item.node.kind == Kind::Whole(0) => item.warn("cannot be 0 here; the default is used"),
        Some(item) => *target = item.count(least, most).unwrap_or(*target),
        None => {}
    }
}

/// Where to listen, as far as the file says it.
fn transport(table: Table<'_>) -> Vec<Listen> {
    strangers(table, TRANSPORT);
    for (key, wanted) in [("framing", "ndjson"), ("protocol", "json")] {
        if let Some(item) = table.get(key)
            && item.text().is_some_and(|text| text != wanted)
        {
            item.fail(&format!("can only be \"{wanted}\" here"), None);
        }
    }
    if let Some(item) = table.get("options") {
        item.warn("is ignored");
    }
    let stdio = vec![Listen::new(Door::Stdio)];
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
            item.fail("can only be \"stdio\", \"unix\" or \"tcp\" here", None);
            Vec::new()
        }
        None => Vec::new(),
    }
}
