//! Reads `narrows.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows_base::suggest::nearest;
use narrows_config::{Finding, Findings, Node, PathBase, SettingValue, Table};
use narrows_govern::GateTimeouts;
use narrows_model::{Effort, Provider};
use narrows_remote::client::Target;

use super::agents::{AgentEntry, InvalidAgents, agent};
use super::endpoint_settings::{EndpointSettings, Header, HiddenText, Key, Proxy};
use super::error::{ConfigError, Origin};
use crate::cli::{Errors, NamedBy, RemoteArgs, target, value};

/// The name of the endpoint that environment variables describe.
pub(crate) const ENV_ENDPOINT: &str = "env";

/// The name of the endpoint that `--base-url` describes.
pub(crate) const FLAGS_ENDPOINT: &str = "flags";

const TOP_LEVEL_KEYS: &[&str] = &[
    "default",
    "system",
    "errors",
    "data_dir",
    "store",
    "pace",
    "endpoint",
    "limits",
    "deadlines",
    "agents",
    "acp",
];

const ENDPOINT_KEYS: &[&str] = &[
    "base_url",
    "model",
    "key_env",
    "key_file",
    "key",
    "headers",
    "query",
    "provider",
    "context_window",
    "max_tokens",
    "temperature",
    "effort",
    "ca_file",
    "proxy",
    "connect_timeout",
    "first_timeout",
    "idle_timeout",
    "total_timeout",
];

const LIMITS_KEYS: &[&str] = &["requests_per_turn", "tool_timeout", "server_start_timeout"];

const ACP_KEYS: &[&str] = &["connect", "token_file", "ca", "cert", "key", "grace"];

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NarrowsToml {
    pub(crate) default_endpoint: Option<String>,
    pub(crate) system_prompt: Option<String>,
    pub(crate) errors: Option<Errors>,
    pub(crate) data_dir: Option<PathBuf>,
    /// `false` if sessions are not stored.
    pub(crate) store: Option<bool>,
    /// The delay of the demo model before each word.
    pub(crate) pace: Option<Duration>,
    /// The endpoints in the order of the file, because the first one may be the default.
    pub(crate) endpoints: Vec<EndpointEntry>,
    pub(crate) limits: TurnLimits,
    /// The timeouts of a gate that `[deadlines]` sets, by name.
    pub(crate) deadlines: Vec<(&'static str, Duration)>,
    pub(crate) agents: Vec<AgentEntry>,
    /// Agents that cannot be used. Their errors concern only commands that name one of them.
    pub(crate) invalid_agents: InvalidAgents,
    pub(crate) acp: Acp,
    /// Warnings about keys in their old spelling.
    pub(crate) warnings: Vec<Finding>,
}

/// The remote agent to which `narrows acp` without options connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acp {
    pub(crate) connect: Option<Target>,
    pub(crate) remote: RemoteArgs,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndpointEntry {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) settings: EndpointSettings,
    /// The reason why the endpoint cannot be used. Only a command that starts with this endpoint fails.
    pub(crate) error: Option<ConfigError>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnLimits {
    pub(crate) requests_per_turn: Option<u32>,
    pub(crate) tool_timeout: Option<Duration>,
    pub(crate) server_start_timeout: Option<Duration>,
}

impl NarrowsToml {
    /// Parses the text of the file at `path`. Relative paths in it start from its directory; `~` is `home`.
    pub(crate) fn parse(path: &Path, text: &str, home: Option<&Path>) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let findings = Findings::new(&name, text);
        let mut file = findings.isolated(|| Self::read(&findings, path, home))?;
        file.warnings = findings.into_errors_and_warnings().1;
        Ok(file)
    }

    /// Returns all errors and warnings of the text of the file at `path`.
    pub(crate) fn inspect(path: &Path, text: &str, home: Option<&Path>) -> (Vec<Finding>, Vec<Finding>) {
        let name = path.display().to_string();
        let findings = Findings::new(&name, text);
        let file = Self::read(&findings, path, home).unwrap_or_default();
        let (mut errors, warnings) = findings.into_errors_and_warnings();
        let of_endpoints = file.endpoints.into_iter().filter_map(|entry| entry.error);
        let of_agents = file.invalid_agents.into_iter().map(|(_, error)| error);
        errors.extend(of_endpoints.chain(of_agents).map(Finding::from));
        errors.sort_by_key(|finding| finding.pos);
        (errors, warnings)
    }

    fn read(findings: &Findings<'_>, path: &Path, home: Option<&Path>) -> Option<Self> {
        let path_base = PathBase { base: path.parent().unwrap_or(Path::new("")), home };
        let node = Node::from_toml(findings)?.qualified();
        file(node.as_table(findings)?, path_base)
    }

    /// Returns the names of the variables that hold API keys.
    pub(crate) fn key_variables(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().filter_map(|entry| match &entry.settings.key {
            Some(Key::Variable(name)) => Some(name.as_str()),
            _ => None,
        })
    }
}

fn file(table: Table<'_>, path_base: PathBase<'_>) -> Option<NarrowsToml> {
    table.only(TOP_LEVEL_KEYS, &[]);
    let endpoints = table.read("endpoint", |node| endpoints(node, path_base)).unwrap_or_default();
    let default_endpoint = table.read("default", |node| read_default(node, &endpoints));
    let (agents, invalid_agents) = table.read("agents", |node| agents(node, path_base)).unwrap_or_default();
    Some(NarrowsToml {
        default_endpoint,
        system_prompt: table.read("system", string),
        errors: table.read("errors", |node| node.named(Errors::from_name, &Errors::NAMES)),
        data_dir: table.read("data_dir", |item| item.path(path_base)),
        store: table.read("store", SettingValue::flag),
        pace: table.read("pace", SettingValue::duration),
        limits: table.read("limits", limits).unwrap_or_default(),
        deadlines: table.read("deadlines", deadlines).unwrap_or_default(),
        agents,
        invalid_agents,
        acp: table.read("acp", |node| acp(node, path_base)).unwrap_or_default(),
        endpoints,
        warnings: Vec::new(),
    })
}

fn endpoints(node: SettingValue<'_>, path_base: PathBase<'_>) -> Option<Vec<EndpointEntry>> {
    let read = |(name, item): (&str, SettingValue<'_>)| {
        item.findings
            .isolated(|| endpoint((name, item), path_base))
            .map_err(ConfigError::from)
            .unwrap_or_else(|error| EndpointEntry {
                name: name.to_owned(),
                origin: error.origin.clone(),
                settings: EndpointSettings::default(),
                error: Some(error),
            })
    };
    Some(node.table()?.entries().map(read).collect())
}

fn read_default(node: SettingValue<'_>, endpoints: &[EndpointEntry]) -> Option<String> {
    let name = node.text()?;
    let names = || endpoints.iter().map(|entry| entry.name.as_str());
    if names().any(|known| known == name) {
        return Some(name.to_owned());
    }
    let hint = match nearest(name, names()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("an endpoint is a table: [endpoint.{name}]"),
    };
    node.error_with_name("is not an endpoint of this file", Some(hint));
    None
}

fn endpoint((name, node): (&str, SettingValue<'_>), path_base: PathBase<'_>) -> Option<EndpointEntry> {
    if [ENV_ENDPOINT, FLAGS_ENDPOINT].contains(&name) {
        let hint = "`env` is the endpoint of the OPENAI_ variables, `flags` that of --base-url";
        node.error_with_name("is a reserved name", Some(hint.to_owned()));
    }
    let table = node.table()?;
    table.only(ENDPOINT_KEYS, &[]);
    let keys = ["key", "key_env", "key_file"].map(|key| table.get(key));
    if let [_, Some(second), ..] | [.., Some(second)] = &keys
        && keys.iter().flatten().count() > 1
    {
        second
            .error_with_name("is a second key: an endpoint has one of `key_env`, `key_file` and `key`", None);
    }
    let [key, key_env, key_file] = keys;
    let key = match (key, key_env, key_file) {
        (Some(node), ..) => Some(Key::Inline(HiddenText::from(node.text()?.to_owned()))),
        (_, Some(node), _) => Some(Key::Variable(node.parsed(value::variable_name)?)),
        (.., Some(node)) => Some(Key::File(node.path(path_base)?)),
        _ => None,
    };
    let headers = table.read("headers", texts).unwrap_or_default();
    let header = |(name, value): (String, String)| Header { name, value: value.into() };
    let settings = EndpointSettings {
        base_url: table.read("base_url", string),
        key,
        model: table.read("model", |item| item.parsed(value::model)),
        headers: headers.into_iter().map(header).collect(),
        query: table.read("query", texts).unwrap_or_default(),
        provider: table.read("provider", |node| node.named(Provider::from_name, &value::providers())),
        context_window: table.read("context_window", |item| item.count(1, u64::MAX)),
        ca_file: table.read("ca_file", |item| item.path(path_base)),
        proxy: table.read("proxy", string).map(Proxy::from),
        max_tokens: table.read("max_tokens", |item| item.count(1, u64::MAX)),
        temperature: table.read("temperature", temperature),
        effort: table.read("effort", |node| node.named(Effort::from_name, &value::efforts())),
        connect_timeout: table.read("connect_timeout", SettingValue::positive_duration),
        first_timeout: table.read("first_timeout", SettingValue::positive_duration),
        idle_timeout: table.read("idle_timeout", SettingValue::positive_duration),
        total_timeout: table.read("total_timeout", SettingValue::positive_duration),
    };
    Some(EndpointEntry { name: name.to_owned(), origin: Origin::of_item(node), settings, error: None })
}

/// Reads the agents. Invalid ones are returned separately, because they must not stop a command that does not
/// use them.
fn agents(node: SettingValue<'_>, path_base: PathBase<'_>) -> Option<(Vec<AgentEntry>, InvalidAgents)> {
    let (mut valid, mut invalid) = (Vec::new(), Vec::new());
    for (name, item) in node.table()?.entries() {
        match item.findings.isolated(|| agent((name, item), path_base)) {
            Ok(entry) => valid.push(entry),
            Err(error) => invalid.push((name.to_owned(), error.into())),
        }
    }
    Some((valid, invalid))
}

fn deadlines(node: SettingValue<'_>) -> Option<Vec<(&'static str, Duration)>> {
    let table = node.table()?;
    table.only(&GateTimeouts::NAMES, &[]);
    let named = |name| Some((name, table.read(name, SettingValue::positive_duration)?));
    Some(GateTimeouts::NAMES.into_iter().filter_map(named).collect())
}

fn acp(node: SettingValue<'_>, path_base: PathBase<'_>) -> Option<Acp> {
    let table = node.table()?;
    table.only(ACP_KEYS, &[]);
    let connect = table.read("connect", |node| {
        let refused = |reason: String| node.error_with_name("is not the URL of an agent", Some(reason));
        target(node.text()?).map_err(refused).ok()
    });
    let remote = RemoteArgs {
        token_file: table.read("token_file", |item| item.path(path_base)),
        token_by: NamedBy::Setting,
        ca: table.read("ca", |item| item.path(path_base)),
        cert: table.read("cert", |item| item.path(path_base)),
        key: table.read("key", |item| item.path(path_base)),
        grace: table.read("grace", SettingValue::positive_duration),
    };
    Some(Acp { connect, remote })
}

fn limits(node: SettingValue<'_>) -> Option<TurnLimits> {
    let table = node.table()?;
    table.only(LIMITS_KEYS, &[]);
    Some(TurnLimits {
        requests_per_turn: table.read("requests_per_turn", |item| item.count(1, u32::MAX)),
        tool_timeout: table.read("tool_timeout", SettingValue::positive_duration),
        server_start_timeout: table.read("server_start_timeout", SettingValue::positive_duration),
    })
}

/// Reads a text that is not empty.
pub(super) fn string(item: SettingValue<'_>) -> Option<String> {
    item.text().map(str::to_owned)
}

/// Reads a table of texts, in the order of the file.
pub(super) fn texts(item: SettingValue<'_>) -> Option<Vec<(String, String)>> {
    let text = |(key, item): (&str, SettingValue<'_>)| Some((key.to_owned(), item.string()?.to_owned()));
    item.table()?.entries().map(text).collect()
}

fn temperature(item: SettingValue<'_>) -> Option<f64> {
    let number = item.number()?;
    Some(number).filter(|number| *number >= 0.0).or_else(|| item.expected("a number, 0 or above", None))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
