//! `narrows.toml`: what may stand in it, and what it means.

use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows_base::suggest::nearest;
use narrows_govern::Patience;
use narrows_model::{Effort, Provider};
use narrows_remote::client::Target;

use super::agents::{AgentEntry, WrongAgents, agent};
use super::error::{ConfigError, Origin};
use super::layer::{Header, Hidden, Key, Layer, Proxy};
use super::read::{Node, Read, Source, Table};
use crate::cli::{Errors, NamedBy, RemoteArgs, target, value};

/// The name of the endpoint that the variables form.
pub(crate) const ENV: &str = "env";

/// The name of the endpoint that `--base-url` forms.
pub(crate) const FLAGS: &str = "flags";

/// What may stand outside any table.
const TOP: &[&str] = &[
    "default",
    "system",
    "errors",
    "data-dir",
    "store",
    "pace",
    "endpoint",
    "limits",
    "deadlines",
    "agents",
    "acp",
];

/// What may stand in `[endpoint.NAME]`.
const ENDPOINT: &[&str] = &[
    "base-url",
    "model",
    "key-env",
    "key-file",
    "key",
    "headers",
    "query",
    "provider",
    "context-window",
    "max-tokens",
    "temperature",
    "effort",
    "ca-file",
    "proxy",
    "connect-timeout",
    "first-timeout",
    "idle-timeout",
    "total-timeout",
];

/// What may stand in `[limits]`.
const LIMITS: &[&str] = &["requests-per-turn", "tool-timeout", "server-start-timeout"];

/// What may stand in `[acp]`.
const ACP: &[&str] = &["connect", "token-file", "ca", "cert", "key", "grace"];

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct File {
    /// The endpoint to begin with.
    pub(crate) default: Option<String>,
    /// What every conversation begins with.
    pub(crate) system: Option<String>,
    /// How a client hears of a model that failed.
    pub(crate) errors: Option<Errors>,
    /// Where sessions are kept.
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether they are kept at all.
    pub(crate) store: Option<bool>,
    /// How fast the built-in model speaks.
    pub(crate) pace: Option<Duration>,
    /// The endpoints, in the order of the file.
    pub(crate) endpoints: Vec<Entry>,
    /// The limits of a turn.
    pub(crate) limits: Limits,
    /// How long what may take behind a gate, where it is not the usual.
    pub(crate) deadlines: Vec<(&'static str, Duration)>,
    /// The agents that have names, in the order of the file.
    pub(crate) agents: Vec<AgentEntry>,
    /// Agents that cannot be used: an error only for those who name one.
    pub(crate) wrong_agents: WrongAgents,
    /// The remote agent that a bare `narrows acp` is.
    pub(crate) acp: Acp,
}

/// The remote agent that a bare `narrows acp` is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acp {
    /// Where it is.
    pub(crate) connect: Option<Target>,
    /// How it is reached.
    pub(crate) remote: RemoteArgs,
}

/// One endpoint of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) name: String,
    /// Where it stands.
    pub(crate) origin: Origin,
    /// What is said about it.
    pub(crate) layer: Layer,
    /// A setting that cannot be used, which makes all of it unusable: an error only for a command that begins with it.
    pub(crate) wrong: Option<ConfigError>,
}

/// The limits of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How often the model may be asked.
    pub(crate) requests_per_turn: Option<u32>,
    /// How long a tool may take.
    pub(crate) tool: Option<Duration>,
    /// How long a server may take to start.
    pub(crate) server_start: Option<Duration>,
}

impl File {
    /// Reads the text of the file at `path`. Relative paths in it are meant from where it lies, `~` is `home`.
    pub(crate) fn parse(path: &Path, text: &str, home: Option<&Path>) -> Read<Self> {
        let paths = Paths { base: path.parent().unwrap_or(Path::new("")), home };
        Source { path, text }.document(|table| file(&table, paths))
    }

    /// The variables in which keys are to be found.
    pub(crate) fn key_variables(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().filter_map(|entry| match &entry.layer.key {
            Some(Key::Variable(name)) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// How a path in the file is meant.
#[derive(Clone, Copy)]
pub(super) struct Paths<'a> {
    base: &'a Path,
    home: Option<&'a Path>,
}

impl Paths<'_> {
    pub(super) fn read(self, node: Node<'_>) -> Read<PathBuf> {
        let path = node.string()?;
        Ok(match (path.strip_prefix("~/"), self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => self.base.join(path),
        })
    }
}

fn file(table: &Table<'_>, paths: Paths<'_>) -> Read<File> {
    table.only(TOP)?;
    let endpoints = table.read("endpoint", |node| endpoints(node, paths))?.unwrap_or_default();
    let default = table.read("default", |node| chosen(node, &endpoints))?;
    let (agents, wrong_agents) = table.read("agents", |node| agents(node, paths))?.unwrap_or_default();
    Ok(File {
        default,
        system: table.read("system", Node::string)?,
        errors: table.read("errors", |node| node.one_of(Errors::from_name, &Errors::NAMES))?,
        data_dir: table.read("data-dir", |node| paths.read(node))?,
        store: table.read("store", Node::flag)?,
        pace: table.read("pace", |node| node.parsed(value::pace))?,
        limits: table.read("limits", limits)?.unwrap_or_default(),
        deadlines: table.read("deadlines", deadlines)?.unwrap_or_default(),
        agents,
        wrong_agents,
        acp: table.read("acp", |node| acp(node, paths))?.unwrap_or_default(),
        endpoints,
    })
}

fn endpoints(node: Node<'_>, paths: Paths<'_>) -> Read<Vec<Entry>> {
    let read = |(name, node)| {
        endpoint((name, node), paths).unwrap_or_else(|error| Entry {
            name: name.to_owned(),
            origin: error.origin.clone(),
            layer: Layer::default(),
            wrong: Some(error),
        })
    };
    Ok(node.table()?.entries().into_iter().map(read).collect())
}

/// The name of one of the endpoints.
fn chosen(node: Node<'_>, endpoints: &[Entry]) -> Read<String> {
    let unknown = node.fail("names no endpoint of this file");
    let name = node.string()?;
    let names = || endpoints.iter().map(|entry| entry.name.as_str());
    if names().any(|known| known == name) {
        return Ok(name);
    }
    Err(match nearest(&name, names()) {
        Some(near) => unknown.hint(format!("did you mean \"{near}\"?")),
        None => unknown.hint(format!("an endpoint is a table: [endpoint.{name}]")),
    })
}

fn endpoint((name, node): (&str, Node<'_>), paths: Paths<'_>) -> Read<Entry> {
    if [ENV, FLAGS].contains(&name) {
        return Err(node
            .fail("is a name that is taken")
            .hint("`env` is what the OPENAI_ variables form, `flags` what --base-url does"));
    }
    let table = node.table()?;
    table.only(ENDPOINT)?;
    let keys = ["key", "key-env", "key-file"].map(|key| table.get(key));
    if let [_, Some(second), ..] | [.., Some(second)] = &keys
        && keys.iter().flatten().count() > 1
    {
        return Err(second.fail("is one key too many: an endpoint has `key-env`, `key-file` or `key`"));
    }
    let [key, key_env, key_file] = keys;
    let key = match (key, key_env, key_file) {
        (Some(node), ..) => Some(Key::Here(Hidden::from(node.string()?))),
        (_, Some(node), _) => Some(Key::Variable(node.parsed(value::variable_name)?)),
        (.., Some(node)) => Some(Key::File(paths.read(node)?)),
        _ => None,
    };
    let headers = table.read("headers", Node::texts)?.unwrap_or_default();
    let header = |(name, value): (String, String)| Header { name, value: value.into() };
    let layer = Layer {
        base_url: table.read("base-url", Node::string)?,
        key,
        model: table.read("model", Node::model)?,
        headers: headers.into_iter().map(header).collect(),
        query: table.read("query", Node::texts)?.unwrap_or_default(),
        provider: table.read("provider", |node| node.one_of(Provider::from_name, &value::providers()))?,
        context_window: table.read("context-window", Node::count)?,
        ca_file: table.read("ca-file", |node| paths.read(node))?,
        proxy: table.read("proxy", Node::string)?.map(Proxy::from),
        max_tokens: table.read("max-tokens", Node::count)?,
        temperature: table.read("temperature", Node::temperature)?,
        effort: table.read("effort", |node| node.one_of(Effort::from_name, &value::efforts()))?,
        connect_timeout: table.read("connect-timeout", Node::duration)?,
        first_timeout: table.read("first-timeout", Node::duration)?,
        idle_timeout: table.read("idle-timeout", Node::duration)?,
        total_timeout: table.read("total-timeout", Node::duration)?,
    };
    Ok(Entry { name: name.to_owned(), origin: table.origin(), layer, wrong: None })
}

/// The agents, and those that are wrong: one of them must not stop commands that have nothing to do with it.
fn agents(node: Node<'_>, paths: Paths<'_>) -> Read<(Vec<AgentEntry>, WrongAgents)> {
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    for (name, node) in node.table()?.entries() {
        match agent((name, node), paths) {
            Ok(entry) => right.push(entry),
            Err(error) => wrong.push((name.to_owned(), error)),
        }
    }
    Ok((right, wrong))
}

fn deadlines(node: Node<'_>) -> Read<Vec<(&'static str, Duration)>> {
    let table = node.table()?;
    table.only(&Patience::NAMES)?;
    let named = |name| Ok(table.read(name, Node::duration)?.map(|time| (name, time)));
    Patience::NAMES.into_iter().filter_map(|name| named(name).transpose()).collect()
}

fn acp(node: Node<'_>, paths: Paths<'_>) -> Read<Acp> {
    let table = node.table()?;
    table.only(ACP)?;
    let connect = table.read("connect", |node| {
        let wrong = node.fail("is no URL of an agent");
        let text = node.string()?;
        target(&text).map_err(|reason| wrong.hint(reason))
    })?;
    let remote = RemoteArgs {
        token_file: table.read("token-file", |node| paths.read(node))?,
        token_by: NamedBy::Setting,
        ca: table.read("ca", |node| paths.read(node))?,
        cert: table.read("cert", |node| paths.read(node))?,
        key: table.read("key", |node| paths.read(node))?,
        grace: table.read("grace", Node::duration)?,
    };
    Ok(Acp { connect, remote })
}

fn limits(node: Node<'_>) -> Read<Limits> {
    let table = node.table()?;
    table.only(LIMITS)?;
    Ok(Limits {
        requests_per_turn: table.read("requests-per-turn", |node| {
            let too_many = node.fail("is more than anybody wants");
            u32::try_from(node.count()?).map_err(|_| too_many)
        })?,
        tool: table.read("tool-timeout", Node::duration)?,
        server_start: table.read("server-start-timeout", Node::duration)?,
    })
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
