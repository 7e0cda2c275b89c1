//! MCP servers that a user configures, in the JSON format of other clients.

use std::collections::HashSet;
use std::fmt;

mod node;

use narrows_base::text::quoted;
use node::Node;

const MAX_NAME_BYTES: usize = 128;
/// Fields that change how to run a server, and that cannot be passed to an agent.
const UNSUPPORTED: [&str; 4] = ["cwd", "envFile", "auth", "oauth"];

/// An MCP server and its transport.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerConfig {
    pub name: String,
    pub transport: Transport,
}

/// Transport of an MCP server.
#[derive(Clone, PartialEq, Eq)]
pub enum Transport {
    /// A program that speaks MCP on stdin and stdout.
    Stdio {
        command: String,
        /// Arguments, passed without a shell.
        args: Vec<String>,
        /// Environment variables, in addition to those of every server.
        env: Vec<(String, String)>,
    },
    Http {
        url: String,
        headers: Vec<(String, String)>,
    },
    /// An endpoint of the older HTTP transport with server-sent events.
    Sse {
        url: String,
        headers: Vec<(String, String)>,
    },
}

/// An error in a file of MCP servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is not JSON, or has a duplicate key.
    #[error("line {line}, column {column}: {problem}")]
    Json { line: usize, column: usize, problem: String },
    /// The JSON does not have the servers at the expected place.
    #[error("{0}")]
    Shape(&'static str),
    #[error("MCP server {server:?}: {field}: {problem}")]
    Field {
        /// Name of the server, or its position in the list if it has no name.
        server: String,
        field: String,
        problem: String,
    },
}

impl ServerConfig {
    /// Reads `{"mcpServers": {NAME: {"command": …, "args": […], "env": {…}} | {"type": "http", "url": …,
    /// "headers": {…}}}}`.
    ///
    /// Also accepts the key `servers`, and a list of servers with a `name`. Omits servers that are
    /// `disabled`. Values are literal: variables are not expanded.
    ///
    /// # Errors
    /// Names the invalid server and field.
    pub fn read(text: &str) -> Result<Vec<Self>, ConfigError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let file: Node = serde_json::from_str(text).map_err(|error| {
            let problem = error.to_string();
            // The error has separate fields for the position, so the position is cut from the message.
            let problem = problem.split(" at line ").next().unwrap_or_default().to_owned();
            ConfigError::Json { line: error.line(), column: error.column(), problem }
        })?;
        let servers = match file {
            list @ Node::List(_) => list,
            Node::Pairs(pairs) => {
                let mut known = pairs.into_iter().filter(|(key, _)| key == "mcpServers" || key == "servers");
                match (known.next(), known.next()) {
                    (Some((_, servers)), None) => servers,
                    (None, _) => return Err(ConfigError::Shape("\"mcpServers\" is missing")),
                    _ => return Err(ConfigError::Shape("it has both \"mcpServers\" and \"servers\"")),
                }
            }
            _ => return Err(ConfigError::Shape("it is not an object with \"mcpServers\"")),
        };
        let servers: Result<Vec<UnreadFields>, _> = match servers {
            Node::Pairs(pairs) => {
                pairs.into_iter().map(|(name, node)| UnreadFields::named(name, node)).collect()
            }
            Node::List(list) => {
                list.into_iter().enumerate().map(|(place, node)| UnreadFields::listed(place, node)).collect()
            }
            _ => return Err(ConfigError::Shape("\"mcpServers\" is neither an object nor a list")),
        };
        let mut names = HashSet::new();
        let mut read = Vec::new();
        for fields in servers? {
            if !names.insert(fields.name.clone()) {
                return Err(fields.problem("name", "is used by another server"));
            }
            read.extend(fields.read()?);
        }
        Ok(read)
    }
}

/// Fields of one server's configuration that are not read yet.
struct UnreadFields {
    name: String,
    left: Vec<(String, Node)>,
}

impl UnreadFields {
    fn named(name: String, node: Node) -> Result<Self, ConfigError> {
        let Node::Pairs(left) = node else { return Err(problem(&name, "it", "is not an object")) };
        let fields = Self { name, left };
        if fields.name.trim().is_empty() || fields.name.len() > MAX_NAME_BYTES {
            return Err(fields.problem("name", &format!("must have 1 to {MAX_NAME_BYTES} bytes")));
        }
        if fields.name.contains(char::is_control) {
            return Err(fields.problem("name", "has a control character"));
        }
        Ok(fields)
    }

    fn listed(place: usize, node: Node) -> Result<Self, ConfigError> {
        let place = format!("number {}", place + 1);
        let Node::Pairs(mut left) = node else { return Err(problem(&place, "it", "is not an object")) };
        let name = left.iter().position(|(key, _)| key == "name").map(|at| left.remove(at).1);
        match name {
            Some(Node::Text(name)) => Self::named(name, Node::Pairs(left)),
            Some(_) => Err(problem(&place, "name", "is not a string")),
            None => Err(problem(&place, "name", "is missing")),
        }
    }

    fn read(mut self) -> Result<Option<ServerConfig>, ConfigError> {
        if self.flag("disabled")? == Some(true) || self.flag("enabled")? == Some(false) {
            return Ok(None);
        }
        let kind = self.text("type")?;
        let (command, url) = (self.text("command")?, self.text("url")?);
        let transport = match (kind.as_deref(), command, url) {
            (_, Some(_), Some(_)) => return Err(self.problem("url", "cannot be combined with command")),
            (None | Some("stdio"), Some(command), None) => {
                if command.trim().is_empty() {
                    return Err(self.problem("command", "is empty"));
                }
                Transport::Stdio { command, args: self.args()?, env: self.pairs("env", variable)? }
            }
            (None | Some("http" | "streamable-http" | "streamableHttp"), None, Some(url)) => {
                Transport::Http { url: self.address(url)?, headers: self.pairs("headers", header)? }
            }
            (Some("sse"), None, Some(url)) => {
                Transport::Sse { url: self.address(url)?, headers: self.pairs("headers", header)? }
            }
            (None, None, None) => return Err(self.problem("command", "is missing, and so is url")),
            (Some("stdio"), ..) => return Err(self.problem("command", "is missing")),
            (Some("http" | "streamable-http" | "streamableHttp" | "sse"), ..) => {
                return Err(self.problem("url", "is missing"));
            }
            (Some(kind), ..) => {
                let words = format!("is {kind:?}, but must be one of \"stdio\", \"http\" and \"sse\"");
                return Err(self.problem("type", &words));
            }
        };
        if let Some((key, _)) = self.left.iter().find(|(key, _)| UNSUPPORTED.contains(&key.as_str())) {
            return Err(self.problem(key, "is not supported, because it cannot be passed to an agent"));
        }
        for (key, _) in &self.left {
            tracing::warn!(server = ?self.name, field = ?key, "unknown field of an MCP server ignored");
        }
        Ok(Some(ServerConfig { name: self.name, transport }))
    }

    fn take(&mut self, key: &str) -> Option<Node> {
        let at = self.left.iter().position(|(known, _)| known == key)?;
        Some(self.left.remove(at).1)
    }

    fn flag(&mut self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.take(key) {
            None | Some(Node::Null) => Ok(None),
            Some(Node::Flag(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.problem(key, "is not a boolean")),
        }
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        match self.take(key) {
            None | Some(Node::Null) => Ok(None),
            Some(Node::Text(text)) => self.plain(key, text).map(Some),
            Some(_) => Err(self.problem(key, "is not a string")),
        }
    }

    /// Checks that a text has no NUL character, so that it can be an argument or variable of a process.
    fn plain(&self, field: &str, text: String) -> Result<String, ConfigError> {
        if text.contains('\0') { Err(self.problem(field, "has a NUL character")) } else { Ok(text) }
    }

    fn args(&mut self) -> Result<Vec<String>, ConfigError> {
        let list = match self.take("args") {
            None | Some(Node::Null) => Vec::new(),
            Some(Node::List(list)) => list,
            Some(_) => return Err(self.problem("args", "is not a list")),
        };
        let args = list.into_iter().enumerate().map(|(place, arg)| {
            let field = format!("args[{place}]");
            match arg {
                Node::Text(text) => self.plain(&field, text),
                _ => Err(self.problem(&field, "is not a string")),
            }
        });
        args.collect()
    }

    /// Reads `{NAME: VALUE}` or `[{"name": NAME, "value": VALUE}]`.
    fn pairs(
        &mut self,
        key: &str,
        check: fn(&str, &str) -> Option<&'static str>,
    ) -> Result<Vec<(String, String)>, ConfigError> {
        let pairs = match self.take(key) {
            None | Some(Node::Null) => Vec::new(),
            Some(Node::Pairs(pairs)) => pairs,
            Some(Node::List(list)) => {
                let pairs = list.into_iter().map(Node::into_pair).collect::<Option<_>>();
                pairs.ok_or_else(|| self.problem(key, "has an entry without name or value"))?
            }
            Some(_) => return Err(self.problem(key, "is neither an object nor a list")),
        };
        let mut names = HashSet::new();
        let mut read = Vec::new();
        for (name, value) in pairs {
            let field = format!("{key}.{}", quoted(&name, MAX_NAME_BYTES));
            let Node::Text(value) = value else { return Err(self.problem(&field, "is not a string")) };
            if let Some(words) = check(&name, &value) {
                return Err(self.problem(&field, words));
            }
            if !names.insert(name.clone()) {
                return Err(self.problem(&field, "is duplicated"));
            }
            read.push((name, value));
        }
        Ok(read)
    }

    fn address(&self, url: String) -> Result<String, ConfigError> {
        let lower = url.to_ascii_lowercase();
        let rest = ["http://", "https://"].iter().find_map(|scheme| lower.strip_prefix(scheme));
        let host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#', ':']));
        if !host || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(self.problem("url", "is not an HTTP URL"));
        }
        Ok(url)
    }

    fn problem(&self, field: &str, words: &str) -> ConfigError {
        problem(&self.name, field, words)
    }
}

fn problem(server: &str, field: &str, words: &str) -> ConfigError {
    ConfigError::Field { server: server.to_owned(), field: field.to_owned(), problem: words.to_owned() }
}

fn variable(name: &str, value: &str) -> Option<&'static str> {
    (name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'))
        .then_some("is not a valid variable")
}

fn header(name: &str, value: &str) -> Option<&'static str> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let fits = !name.is_empty() && name.chars().all(token) && !value.contains(char::is_control);
    (!fits).then_some("is not a valid header")
}

/// Omits the values of variables and headers, and the query of a URL, because they may be secrets.
impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig").field("name", &self.name).field("transport", &self.transport).finish()
    }
}

/// Omits the values of variables and headers, and the query of a URL, because they may be secrets.
impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn names(pairs: &[(String, String)]) -> Vec<&str> {
            pairs.iter().map(|(name, _)| name.as_str()).collect()
        }
        let mut endpoint = |kind, url: &str, headers: &[(String, String)]| {
            let url = url.split(['?', '#']).next().unwrap_or_default();
            f.debug_struct(kind).field("url", &url).field("headers", &names(headers)).finish()
        };
        match self {
            Self::Stdio { command, args, env } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &args.len())
                .field("env", &names(env))
                .finish(),
            Self::Http { url, headers } => endpoint("Http", url, headers),
            Self::Sse { url, headers } => endpoint("Sse", url, headers),
        }
    }
}

#[cfg(test)]
mod tests;
