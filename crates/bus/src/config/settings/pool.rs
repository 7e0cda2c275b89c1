//! Reads `[[pool]]`.

use std::collections::BTreeMap;

use narrows_base::suggest::nearest;
use narrows_config::{Findings, PathBase, SettingValue, Table, ValueKind, quoted};
use serde_json::Value;

use super::super::{Pool, PoolPositions};
use super::{PoolProtocol, ShareMode, mcp, set};

const POOL_KEYS: &[&str] = &[
    "name",
    "command",
    "manifest",
    "identities",
    "cwd",
    "instances",
    "max_instances",
    "share",
    "protocol",
    "env",
    "pass_env",
    "client_capabilities",
    "mix_identities",
    "memory",
    "pids",
    "mcp",
    "mcp_server",
    "client_meta",
];

const KEY_HINTS: &[(&str, &str)] = &[
    ("args", "write the arguments in `command`, after the program"),
    ("id", "did you mean `name`?"),
    ("mcp_servers", "write [[pool.mcp_server]] for each"),
    ("whole_env", "write pass_env = [\"*\"] to pass on every variable"),
];

const CLIENT_CAPABILITIES: &[&str] =
    &["fs", "terminal", "session", "subagents", "plan", "auth", "elicitation", "nes", "positionEncodings"];
const FS_CAPABILITIES: &[&str] = &["readTextFile", "writeTextFile"];

pub(super) const MAX_INSTANCES: u64 = 10_000;

/// Reads one `[[pool]]`. Returns the pool with the positions of its settings.
pub(super) fn read(table: Table<'_>, path_base: PathBase<'_>) -> Option<(PositionedPool, PoolPositions)> {
    table.only(POOL_KEYS, KEY_HINTS);
    let name = table.get("name").map(|item| item.parsed(name)).unwrap_or(Some("default".to_owned()));
    let words = match (table.get("command"), table.get("manifest")) {
        (Some(item), None) => item.command().map(|words| (words, item.node.at)),
        (None, Some(item)) => Some((Vec::new(), item.node.at)),
        (Some(_), Some(item)) => item.error("`manifest` and `command` exclude each other", None),
        (None, None) => {
            let hint = "write command = [\"narrows\", \"acp\"], or manifest = \"DIR/ACP.md\"";
            table.error("`command` is missing", Some(hint))
        }
    };
    let (words, command) = words.unwrap_or_default();
    let mut pool = Pool::new(name.unwrap_or_default(), words);
    pool = read_manifest(table, pool, path_base);
    let directory = |item: SettingValue<'_>| item.path(path_base).map(Some);
    set(table, "cwd", &mut pool.cwd, directory);
    let count = |item: SettingValue<'_>| item.count(1, MAX_INSTANCES);
    set(table, "instances", &mut pool.instances, count);
    set(table, "max_instances", &mut pool.max_instances, count);
    if pool.instances > pool.max_instances
        && let Some(item) = table.get("instances")
    {
        let hint = format!("or write max_instances = {}", pool.instances);
        item.error_with_name(
            &format!("must be at most `max_instances`, which is {}", pool.max_instances),
            Some(hint),
        );
    }
    let shares =
        [("connection", ShareMode::Connection), ("session", ShareMode::Session), ("all", ShareMode::All)];
    set(table, "share", &mut pool.share, |item| item.one_of(&shares));
    set(table, "protocol", &mut pool.protocol, protocol);
    set(table, "env", &mut pool.env, env);
    set(table, "pass_env", &mut pool.pass_env, |item| {
        Some(item.list("write pass_env = [\"OPENAI_*\"]")?.filter_map(|item| item.parsed(pattern)).collect())
    });
    set(table, "client_capabilities", &mut pool.client_capabilities, |item| match item.node.to_json() {
        Value::Object(object) => Some(Value::Object(object)),
        _ => item.expected("a table", None),
    });
    set(table, "mix_identities", &mut pool.mix_identities, SettingValue::flag);
    set(table, "memory", &mut pool.memory, |item| item.size(1 << 20, u64::MAX).map(Some));
    set(table, "pids", &mut pool.pids, |item| item.count(1, 1 << 22).map(Some));
    let mcp_servers = mcp::read(table, &mut pool);
    warn_without_effect(table, &pool);
    if pool.protocol == PoolProtocol::V1 {
        warn_unknown_capabilities(table);
    }
    check_gate_settings(table, &pool);
    let at_name = table.get("name").map_or(table.at, |item| item.node.at);
    let at = |key: &str| table.get(key).map(|item| item.node.at);
    let positions = PoolPositions {
        command,
        cwd: at("cwd"),
        instances: at("instances"),
        memory: at("memory"),
        pids: at("pids"),
        mcp_servers,
    };
    Some((PositionedPool { pool, at: at_name }, positions))
}

fn read_manifest(table: Table<'_>, pool: Pool, path_base: PathBase<'_>) -> Pool {
    let file = |item: SettingValue<'_>| {
        let path = item.path(path_base)?;
        // The workers may run in another directory, so the path is made absolute.
        Some(std::path::absolute(&path).unwrap_or(path))
    };
    let identities = table.get("identities");
    match table.get("manifest") {
        Some(item) => match file(item) {
            Some(manifest) => pool.with_manifest(manifest, identities.and_then(file)),
            None => pool,
        },
        None => {
            if let Some(item) = identities {
                item.error_with_name("has an effect only with `manifest`", None);
            }
            pool
        }
    }
}

/// Adds errors for settings that do not work with a gate: a gate serves one client, and only ACP.
fn check_gate_settings(table: Table<'_>, pool: &Pool) {
    if pool.manifest.is_none() {
        return;
    }
    if let Some(item) = table.get("share").filter(|_| pool.share == ShareMode::All) {
        let hint = "write \"connection\" or \"session\"".to_owned();
        item.error_with_name("cannot be \"all\" with `manifest`: a gate serves one connection", Some(hint));
    }
    if let Some(item) = table.get("protocol").filter(|_| pool.protocol == PoolProtocol::JsonRpc) {
        item.error_with_name("cannot be \"jsonrpc\" with `manifest`: a gate speaks ACP", None);
    }
}

pub(super) struct PositionedPool {
    pool: Pool,
    at: usize,
}

/// Returns the pools. Adds an error for each pool with the name of an earlier pool.
pub(super) fn into_unique(findings: &Findings<'_>, pools: Vec<PositionedPool>) -> Vec<Pool> {
    for (index, PositionedPool { pool, at }) in pools.iter().enumerate() {
        if !pool.name.is_empty() && pools[..index].iter().any(|other| other.pool.name == pool.name) {
            let what = format!("duplicate pool name \"{}\"", quoted(&pool.name));
            findings.error(*at, what, Some("give each pool a `name` of its own".to_owned()));
        }
    }
    pools.into_iter().map(|named| named.pool).collect()
}

/// Warns about settings that have no effect in this pool, except those that have their default value.
fn warn_without_effect(table: Table<'_>, pool: &Pool) {
    let warn = |key: &str, given: bool, what: &str| {
        if let Some(item) = table.get(key).filter(|_| given) {
            item.warn(what);
        }
    };
    let has_capabilities = pool.client_capabilities.as_object().is_some_and(|object| !object.is_empty());
    if pool.share != ShareMode::All {
        let shared = "has an effect only with share = \"all\"";
        warn("protocol", pool.protocol == PoolProtocol::V2, shared);
        warn("client_capabilities", has_capabilities, shared);
        warn("mix_identities", pool.mix_identities, shared);
    } else if pool.protocol == PoolProtocol::JsonRpc {
        warn("client_capabilities", has_capabilities, "has no effect with protocol = \"jsonrpc\"");
    }
}

fn warn_unknown_capabilities(table: Table<'_>) {
    // A value of another type than a table already has a finding, or is passed on to the agent unchanged.
    fn subtable<'a>(table: Table<'a>, key: &str) -> Option<Table<'a>> {
        table
            .get(key)
            .filter(|item| matches!(item.node.kind, ValueKind::Table(_)))
            .and_then(SettingValue::table)
    }
    let Some(all) = subtable(table, "client_capabilities") else { return };
    let files = subtable(all, "fs");
    for (table, known) in [(Some(all), CLIENT_CAPABILITIES), (files, FS_CAPABILITIES)] {
        // ACP reserves names with an underscore for extensions.
        let is_unknown = |item: &SettingValue<'_>| !known.contains(&item.name) && !item.name.starts_with('_');
        for item in table.into_iter().flat_map(Table::items).filter(is_unknown) {
            let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
            let same = known.iter().copied().find(|known| plain(known) == plain(item.name));
            let near = same.or_else(|| nearest(item.name, known.iter().copied()));
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            item.warn(&format!("is not a client capability of ACP{hint}"));
        }
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match text.len() {
        1..=64 if text.chars().all(plain) => Ok(text.to_owned()),
        _ => Err("a name has at most 64 letters, digits, `.`, `_` and `-`"),
    }
}

fn protocol(item: SettingValue<'_>) -> Option<PoolProtocol> {
    let found = match &item.node.kind {
        ValueKind::Integer(1) => Some(PoolProtocol::V1),
        ValueKind::Integer(2) => Some(PoolProtocol::V2),
        ValueKind::Text(text) if text == "jsonrpc" => Some(PoolProtocol::JsonRpc),
        _ => None,
    };
    let hint = match &item.node.kind {
        ValueKind::Text(text) if text == "1" || text == "2" => Some("write the number without quotes"),
        ValueKind::Text(_) => Some("did you mean \"jsonrpc\"?"),
        _ => None,
    };
    found.or_else(|| item.expected("1, 2 or \"jsonrpc\"", hint))
}

/// Reads environment variables and their values. No finding quotes a value, because it may be a secret.
pub(super) fn env(item: SettingValue<'_>) -> Option<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    for item in item.table()?.items() {
        match &item.node.kind {
            _ if item.name.is_empty() || item.name.contains(['=', '\0']) => {
                item.error_with_name("is not the name of a variable", None);
            }
            ValueKind::Text(value) if !value.contains('\0') => {
                variables.insert(item.name.to_owned(), value.clone());
            }
            _ => item.error_with_name("must be a text in quotes", None),
        }
    }
    Some(variables)
}

fn pattern(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('*').unwrap_or(text);
    match name {
        _ if name.contains('*') => Err("`*` is only allowed at the end"),
        _ if name.contains(['=', ' ', '$']) => Err("it is not a valid variable name"),
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::{read, render};

    #[test]
    fn a_pool_with_a_manifest_has_workers_that_serve_it() {
        let text = "[[listen]]\nurl = \"stdio:\"\n[[pool]]\nmanifest = \"/w/ACP.md\"\nidentities = \"/e/who.toml\"\nshare = \"session\"\n";
        let (config, warnings) = read(text, Path::new("bus.toml"), None).unwrap();
        assert_eq!(warnings, []);
        let pool = &config.pools[0];
        assert_eq!(pool.command, ["narrows", "serve", "--for-bus", "--identities=/e/who.toml", "/w/ACP.md"]);
        assert_eq!(pool.manifest.as_deref(), Some(Path::new("/w/ACP.md")));
        let shown = render::toml(&config);
        assert!(!shown.contains("--for-bus"), "{shown}");
        assert_eq!(read(&shown, Path::new("bus.toml"), None).unwrap().0, config, "{shown}");
    }

    #[test]
    fn a_worker_with_a_manifest_serves_one_client() {
        #[track_caller]
        fn check(more: &str, words: &str) {
            let text = format!("[[listen]]\nurl = \"stdio:\"\n[[pool]]\n{more}\n");
            let errors = read(&text, Path::new("bus.toml"), None).unwrap_err();
            assert!(errors.iter().any(|error| error.to_string().contains(words)), "{more}: {errors:?}");
        }
        let manifest = "manifest = \"a/ACP.md\"\n";
        check(&format!("{manifest}command = [\"a\"]"), "`manifest` and `command` exclude each other");
        check(&format!("{manifest}share = \"all\""), "a gate serves one connection");
        check(&format!("{manifest}protocol = \"jsonrpc\""), "a gate speaks ACP");
        check("manifest = \"~/ACP.md\"", "`~`");
        check("manifest = 7", "a text in quotes");
        check("command = [\"a\"]\nidentities = \"b\"", "only with `manifest`");
        check("name = \"x\"", "or manifest = ");
    }
}
