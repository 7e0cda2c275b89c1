//! Reads `bus.toml`.

use std::time::Duration;

use narrows_base::suggest::nearest;
use narrows_base::units::{format_duration, format_size};
use narrows_config::{Findings, Node, PathBase, SettingValue, Table, ValueKind, quoted};

use super::address::{ADMIN_LOOPBACK_ONLY, expand_home, is_same, loopback, socket};
use super::read::RequiredFile;
use super::{
    AdminConfig, BusLimits, Config, ListenAddr, ListenerAuth, ListenerSettings, Pool, PoolProtocol,
    ShareMode, WORKER_STOP_TIMEOUT,
};
use super::{ParsedConfig, PoolPositions};

mod mcp;
mod pool;
mod web;

const TOP_LEVEL_KEYS: &[&str] = &["listen", "pool", "limits", "admin"];

const LISTEN_KEYS: &[&str] = &["url", "auth", "pool", "pools", "tokens", "origins", "hosts", "tls"];

const LIMITS_KEYS: &[&str] = &[
    "max_line",
    "max_batch",
    "max_connections",
    "max_connections_per_identity",
    "max_anonymous_connections",
    "max_sessions_per_identity",
    "max_sessions_per_worker",
    "max_rate_per_identity",
    "queue_bytes",
    "unfinished_input",
    "unfinished_input_per_identity",
    "stall_timeout",
    "initialize_timeout",
    "open_timeout",
    "cancel_grace",
    "drain_timeout",
    "session_grace",
    "disconnect_grace",
    "restart_budget",
    "restart_window",
    "memory",
    "replay_bytes",
    "replay_time",
    "header_timeout",
    "idle_timeout",
    "owner_expiry",
];

const ADMIN_KEYS: &[&str] = &["socket", "port", "auth"];

/// Range of the maximum line length, in bytes. An `initialize` must fit, and offsets in a line have 32 bits.
pub(super) const LINE_BYTES_RANGE: (u64, u64) = (1 << 10, 1 << 30);

pub(super) const QUEUE_BYTES_RANGE: (u64, u64) = (1 << 10, 1 << 32);

/// Range of the limit for bytes of incomplete messages. A value below the size of one read would have no
/// effect.
const UNFINISHED_BYTES_RANGE: (u64, u64) = (1 << 20, 1 << 40);

/// Range of the bytes of output kept for a reconnecting client. They must cover the data that the kernel has
/// buffered.
const REPLAY_BYTES_RANGE: (u64, u64) = (1 << 20, 1 << 30);

const MAX_MESSAGES_PER_SECOND: u64 = 1_000_000_000;

/// Approximate memory that the bus itself needs, in bytes. With a smaller budget the bus refuses all clients.
const BUS_MEMORY_BYTES: u64 = 16 << 20;

pub(super) const MAX_RESTART_BUDGET: u64 = 1_000_000;

pub(super) fn read(findings: &Findings<'_>, node: &Node, path_base: PathBase<'_>) -> Option<ParsedConfig> {
    let table = node.as_table(findings)?;
    table.only(
        TOP_LEVEL_KEYS,
        &[("share", POOL_KEY_HINT), ("command", POOL_KEY_HINT), ("url", "move it into [[listen]]")],
    );
    let tables = |name: &str| table.get(name).and_then(SettingValue::tables).into_iter().flatten();
    let (pools, positions): (Vec<_>, Vec<_>) =
        tables("pool").filter_map(|table| pool::read(table, path_base)).unzip();
    let none = |key: &str| table.get(key).is_none_or(|item| item.node.kind == ValueKind::List(Vec::new()));
    if none("pool") {
        let hint = "write [[pool]] and command = [\"narrows\", \"acp\"]".to_owned();
        findings.error(0, "no [[pool]] is defined", Some(hint));
    }
    let pools = pool::into_unique(findings, pools);
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let mut files = Vec::new();
    let listen: Vec<_> =
        tables("listen").filter_map(|table| listen(table, path_base, &names, &mut files)).collect();
    check_unique_addresses(&listen);
    let mut sockets: Vec<_> = listen
        .iter()
        .filter_map(|(listen, url)| match &listen.addr {
            ListenAddr::Unix(path) => Some((path.clone(), url.node.at)),
            _ => None,
        })
        .collect();
    let listen: Vec<ListenerSettings> = listen.into_iter().map(|(listen, _)| listen).collect();
    warn_rejecting_gates(findings, &listen, pools.iter().zip(&positions));
    let taken = |port: &str| {
        listen.iter().any(|listen| listen.addr.port().is_some_and(|address| is_same(address, port)))
    };
    if none("listen") {
        findings
            .warning(0, "no [[listen]] is defined: clients cannot connect unless --listen names an address");
    }
    let limits = table.get("limits").and_then(SettingValue::table).map(limits).unwrap_or_default();
    let admin = table
        .get("admin")
        .and_then(SettingValue::table)
        .map(|table| admin(table, path_base))
        .unwrap_or_default();
    let of_admin = |key| table.get("admin").and_then(SettingValue::table).and_then(|table| table.get(key));
    if admin.port.as_deref().is_some_and(taken)
        && let Some(item) = of_admin("port")
    {
        item.error_with_name("is already used by a listener", None);
    }
    if let Some(path) = &admin.socket
        && let Some(item) = of_admin("socket")
    {
        if sockets.iter().any(|(other, _)| other == path) {
            item.error_with_name("is already used by a listener", None);
        }
        sockets.push((path.clone(), item.node.at));
    }
    Some(ParsedConfig { config: Config { listen, pools, limits, admin }, positions, sockets, files })
}

const POOL_KEY_HINT: &str = "move it into [[pool]]";

/// Reads one `[[listen]]`. Returns the listener and the value of its `url`.
fn listen<'a>(
    table: Table<'a>,
    path_base: PathBase<'_>,
    pools: &[&str],
    files: &mut Vec<RequiredFile>,
) -> Option<(ListenerSettings, SettingValue<'a>)> {
    let key_hints = [
        ("token", "tokens are kept in a file: auth = \"token\", tokens = \"tokens.toml\""),
        ("port", "write it in the `url`"),
        ("cert", "move it into `tls`"),
        ("key", "move it into `tls`"),
    ];
    table.only(LISTEN_KEYS, &key_hints);
    let Some(url) = table.get("url") else {
        let hint = "write url = \"tcp://127.0.0.1:9000\", \"unix:/path\" or \"stdio:\"";
        return table.error("`url` is missing", Some(hint));
    };
    let mut listen = url.parsed(|text| ListenerSettings::parse(&expand_home(text, path_base.home)))?;
    if let ListenAddr::Web(at) = &mut listen.addr {
        files.extend(web::read(table, at, url, path_base));
    } else {
        listen.auth = web::read_plain(table, &listen.addr);
    }
    if let ListenAddr::Unix(path) = &mut listen.addr {
        *path = url.parsed(|_| socket(&path.to_string_lossy(), path_base))?;
    }
    if let Some(item) = table.get("pool") {
        let name = item.text()?;
        if listen.pool.as_deref().is_some_and(|other| other != name) {
            item.error_with_name("differs from the pool in the `url`", None);
        }
        listen.pool = Some(name.to_owned());
    }
    if let Some(name) = listen.pool.as_deref() {
        check_pool_exists(table.get("pool").unwrap_or(url), name, pools);
    }
    if let Some(item) = table.get("pools") {
        listen.pools = read_permitted_pools(item, pools);
        let missing =
            |name: &&str| listen.pools.as_ref().is_some_and(|all| all.iter().all(|one| one != name));
        if let Some(name) = listen.pool.as_deref().filter(missing) {
            item.error_with_name(
                &format!("must contain the `pool` of this listener, \"{}\"", quoted(name)),
                None,
            );
        }
    }
    Some((listen, url))
}

fn check_pool_exists(item: SettingValue<'_>, name: &str, pools: &[&str]) {
    if !pools.contains(&name) {
        let hint = nearest(name, pools.iter().copied()).map(|near| format!("did you mean \"{near}\"?"));
        item.error_with_name(&format!("names an unknown pool: \"{}\"", quoted(name)), hint);
    }
}

fn read_permitted_pools(item: SettingValue<'_>, known: &[&str]) -> Option<Vec<String>> {
    let hint = "write pools = [\"default\"]";
    let mut names: Vec<String> = Vec::new();
    for item in item.list(hint)? {
        let name = item.text()?;
        check_pool_exists(item, name, known);
        names.push(name.to_owned());
    }
    if names.is_empty() {
        return item.expected("a list with at least one pool", Some(hint));
    }
    Some(names)
}

/// Warns about pools with a gate but without `identities`: such a gate refuses every client that is
/// identified by a token or a certificate.
fn warn_rejecting_gates<'a>(
    findings: &Findings<'_>,
    listen: &[ListenerSettings],
    pools: impl Iterator<Item = (&'a Pool, &'a PoolPositions)> + Clone,
) {
    let first = pools.clone().next().map(|(pool, _)| pool.name.as_str());
    for (pool, positions) in pools.filter(|(pool, _)| pool.manifest.is_some() && pool.identities.is_none()) {
        let leads_here =
            |listen: &&ListenerSettings| listen.pool_names().next().or(first) == Some(pool.name.as_str());
        let known = listen.iter().filter(leads_here).find_map(|listen| match &listen.addr {
            ListenAddr::Web(web) if web.auth == ListenerAuth::Token => Some(("a token", "bus:token:NAME")),
            ListenAddr::Web(web) if web.auth == ListenerAuth::Mtls => {
                Some(("a certificate", "bus:cert:NAME"))
            }
            _ => None,
        });
        if let Some((proof, name)) = known {
            let what = format!(
                "`manifest` knows whoever comes in by {proof} as \"{name}\", and turns them away: write identities = \
                 \"identities.toml\" beside it, a file with [[identity]] and who = \"{name}\" for each"
            );
            findings.warning(positions.command, what);
        }
    }
}

fn check_unique_addresses(listen: &[(ListenerSettings, SettingValue<'_>)]) {
    for (index, (one, url)) in listen.iter().enumerate() {
        if let Some((other, _)) = listen[..index].iter().find(|(other, _)| other.addr.is_same(&one.addr)) {
            url.error_with_name(
                "is already used by another listener",
                one.addr.conflict_hint(&other.addr).map(str::to_owned),
            );
        }
    }
}

fn limits(table: Table<'_>) -> BusLimits {
    table.only(LIMITS_KEYS, &[]);
    let mut limits = BusLimits::default();
    let sizes = [
        ("max_line", LINE_BYTES_RANGE, &mut limits.max_line),
        ("queue_bytes", QUEUE_BYTES_RANGE, &mut limits.queue_bytes),
        ("replay_bytes", REPLAY_BYTES_RANGE, &mut limits.replay_bytes),
        ("unfinished_input", UNFINISHED_BYTES_RANGE, &mut limits.unfinished_input),
        ("unfinished_input_per_identity", UNFINISHED_BYTES_RANGE, &mut limits.unfinished_input_per_identity),
    ];
    for (key, (least, most), target) in sizes {
        set(table, key, target, |item| item.size(least, most).and_then(|bytes| usize::try_from(bytes).ok()));
    }
    set(table, "memory", &mut limits.memory, |item| item.size(0, u64::MAX));
    if let Some(item) = table.get("memory").filter(|_| (1..BUS_MEMORY_BYTES).contains(&limits.memory)) {
        let needs = format_size(BUS_MEMORY_BYTES);
        item.warn(&format!("is less than the bus itself needs (about {needs}): it may refuse all clients"));
    } else if let Some(item) = table.get("memory").filter(|_| is_memory_below_max_line(&limits)) {
        let line = format_size(limits.max_line as u64);
        item.warn(&format!("is less than `max_line` ({line}): one message can use all of it"));
    }
    let counts = [
        ("max_batch", 100_000, &mut limits.max_batch),
        ("max_connections", 1_000_000, &mut limits.max_connections),
        ("max_connections_per_identity", 1_000_000, &mut limits.max_connections_per_identity),
        ("max_anonymous_connections", 1_000_000, &mut limits.max_anonymous_connections),
        ("max_sessions_per_identity", 1_000_000, &mut limits.max_sessions_per_identity),
        ("max_sessions_per_worker", 1_000_000, &mut limits.max_sessions_per_worker),
    ];
    for (key, most, target) in counts {
        set(table, key, target, |item| item.count(1, most));
    }
    set(table, "max_rate_per_identity", &mut limits.max_rate_per_identity, |item| {
        item.count(0, MAX_MESSAGES_PER_SECOND)
    });
    set(table, "restart_budget", &mut limits.restart_budget, |item| item.count(1, MAX_RESTART_BUDGET));
    let times = [
        ("stall_timeout", false, &mut limits.stall_timeout),
        ("initialize_timeout", false, &mut limits.initialize_timeout),
        ("open_timeout", false, &mut limits.open_timeout),
        ("cancel_grace", true, &mut limits.cancel_grace),
        ("drain_timeout", true, &mut limits.drain_timeout),
        ("session_grace", true, &mut limits.session_grace),
        ("disconnect_grace", true, &mut limits.disconnect_grace),
        ("restart_window", false, &mut limits.restart_window),
        ("replay_time", true, &mut limits.replay_time),
        ("header_timeout", false, &mut limits.header_timeout),
        ("idle_timeout", false, &mut limits.idle_timeout),
        ("owner_expiry", false, &mut limits.owner_expiry),
    ];
    for (key, zero, target) in times {
        set(table, key, target, if zero { SettingValue::duration } else { SettingValue::positive_duration });
    }
    if let Some(item) = table.get("drain_timeout") {
        warn_long_drain(item, limits.drain_timeout);
    }
    limits
}

/// Returns `true` if there is a memory budget and one message may exceed the budget.
fn is_memory_below_max_line(limits: &BusLimits) -> bool {
    limits.memory > 0 && limits.memory < limits.max_line as u64
}

/// Warns if a shutdown can take longer than service managers usually wait.
pub(super) fn warn_long_drain(item: SettingValue<'_>, time: Duration) {
    if time > BusLimits::default().drain_timeout {
        let most = format_duration(time + WORKER_STOP_TIMEOUT);
        item.warn(&format!("lets a shutdown take {most}: give the service manager at least that timeout"));
    }
}

fn set<'a, T>(
    table: Table<'a>,
    key: &str,
    target: &mut T,
    reading: impl FnOnce(SettingValue<'a>) -> Option<T>,
) {
    if let Some(value) = table.get(key).and_then(reading) {
        *target = value;
    }
}

fn admin(table: Table<'_>, path_base: PathBase<'_>) -> AdminConfig {
    table.only(ADMIN_KEYS, &[("url", "write socket = \"/path\" or port = 9090")]);
    let port = |item: SettingValue<'_>| match item.node.kind {
        ValueKind::Integer(_) => item.count(0, u16::MAX).map(|port: u16| format!("127.0.0.1:{port}")),
        _ => item.parsed(|text| loopback(text, ADMIN_LOOPBACK_ONLY).map(|()| text.to_owned())),
    };
    AdminConfig {
        socket: table.get("socket").and_then(|item| item.parsed(|text| socket(text, path_base))),
        port: table.get("port").and_then(port),
        is_open: admin_is_open(table),
    }
}

/// Returns `true`, with a warning, if every user of this machine may use the admin port.
fn admin_is_open(table: Table<'_>) -> bool {
    let Some(item) = table.get("auth") else { return false };
    if table.get("port").is_none() {
        item.error_with_name(
            "has an effect only with `port`: the socket always admits only the user of the bus",
            None,
        );
    }
    let is_open = item.one_of(&[("user", false), ("none", true)]).unwrap_or_default();
    if is_open {
        item.warn(
            "admits every user of this machine, who can then read the names of clients, pools and processes",
        );
    }
    is_open
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::inspect;

    fn findings_of(url: &str, rest: &str) -> String {
        let text = format!("[[listen]]\nurl = \"{url}\"\n[[pool]]\ncommand = [\"a\"]\n{rest}\n");
        let inspected = inspect(&text, Path::new("bus.toml"), None, None);
        let errors = inspected.errors.iter().map(ToString::to_string);
        let warnings = inspected.warnings.iter().map(|warning| format!("warning {warning}"));
        errors.chain(warnings).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_admin_api_and_clients_cannot_share_a_port() {
        #[track_caller]
        fn check(url: &str, port: &str, clash: bool) {
            let expected = if clash { "bus.toml:6:8: `port` is already used by a listener" } else { "" };
            assert_eq!(findings_of(url, &format!("[admin]\nport = {port}")), expected, "{url} {port}");
        }
        check("tcp://127.0.0.1:9000", "9000", true);
        check("tcp://127.0.0.1:9000/default", "\"127.0.0.1:9000\"", true);
        check("tcp://[::1]:9000", "\"[0::1]:9000\"", true);
        check("tcp://[::1]:9000", "9000", false);
        check("tcp://127.0.0.1:9000", "9001", false);
        check("tcp://127.0.0.1:0", "0", false);
        check("unix:/s", "9000", false);
    }

    #[test]
    fn a_memory_budget_below_the_needs_of_the_bus_is_a_warning() {
        #[track_caller]
        fn check(memory: &str, warned: bool) {
            let findings =
                findings_of("stdio:", &format!("[limits]\nmemory = {memory}\nmax_line = \"1MiB\""));
            let expected = "warning bus.toml:6:10: `memory` is less than the bus itself needs (about 16MiB): it may \
                            refuse all clients";
            assert_eq!(findings, if warned { expected } else { "" }, "{memory}");
        }
        check("0", false);
        check("1", true);
        check("\"15MiB\"", true);
        check("\"16MiB\"", false);
    }

    #[test]
    fn a_memory_budget_that_one_message_can_use_up_is_a_warning() {
        #[track_caller]
        fn check(limits: &str, line: Option<&str>) {
            let findings = findings_of("stdio:", &format!("[limits]\n{limits}"));
            let expected = line.map_or_else(String::new, |line| {
                format!(
                    "warning bus.toml:6:10: `memory` is less than `max_line` ({line}): one message can use all of it"
                )
            });
            assert_eq!(findings, expected, "{limits}");
        }
        check("memory = \"63MiB\"", Some("64MiB"));
        check("memory = \"64MiB\"", None);
        check("memory = \"63MiB\"\nmax_line = \"63MiB\"", None);
        check("memory = \"100MiB\"\nmax_line = \"128MiB\"", Some("128MiB"));
        check("memory = \"0\"", None);
    }
}
