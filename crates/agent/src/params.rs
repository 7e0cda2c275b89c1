//! Parses the parameters of requests. Every error names its field.
//!
//! Version 1 is parsed leniently, because clients send params that violate its schema. Version 2 is parsed
//! strictly.

use std::path::{Component, Path, PathBuf};

use narrows_acp::Version;
use narrows_acp::capability::AUTHORIZES;
use narrows_mcp::Server;
use narrows_wire::{Code, RpcError};
use serde_json::{Map, Value, json};

const MAX_TEXT_BYTES: usize = 4096;

/// Maximum number of directories, or of servers, of a session.
const MAX_ITEMS: usize = 64;

pub(crate) struct Params<'a> {
    object: &'a Map<String, Value>,
    version: Version,
}

pub(crate) fn invalid(field: &str, problem: &str) -> RpcError {
    RpcError::new(Code::InvalidParams, format!("`{field}` {problem}")).with("field", Value::from(field))
}

/// Returns the error -32002: no session has this id.
pub(crate) fn session_not_found(id: &str) -> RpcError {
    let id: String = id.chars().take(100).collect();
    RpcError::new(Code::NotFound, format!("there is no session {id:?}")).with("sessionId", Value::from(id))
}

#[derive(Debug)]
pub(crate) struct SessionSetup {
    pub(crate) cwd: String,
    /// Absolute paths of further directories, in addition to `cwd`.
    pub(crate) roots: Vec<String>,
    pub(crate) servers: Vec<Server>,
    /// Reasons why servers that the client named cannot be used, one per unusable server.
    pub(crate) unusable: Vec<String>,
}

impl<'a> Params<'a> {
    pub(crate) fn new(object: &'a Map<String, Value>, version: Version) -> Self {
        Self { object, version }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn required_text(&self, field: &str) -> Result<&'a str, RpcError> {
        self.optional_text(field)?.ok_or_else(|| invalid(field, "is missing"))
    }

    pub(crate) fn optional_text(&self, field: &str) -> Result<Option<&'a str>, RpcError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= MAX_TEXT_BYTES => Ok(Some(text)),
            Some(Value::String(_)) => Err(invalid(field, "is too long")),
            Some(_) => Err(invalid(field, "must be a string")),
        }
    }

    fn list(&self, field: &str) -> Result<&'a [Value], RpcError> {
        match self.object.get(field) {
            None => Ok(&[]),
            Some(Value::Null) if self.version == Version::V1 => Ok(&[]),
            Some(Value::Array(items)) if items.len() <= MAX_ITEMS => Ok(items),
            Some(Value::Array(_)) => Err(invalid(field, "has too many entries")),
            Some(_) => Err(invalid(field, "must be an array")),
        }
    }

    /// Returns the directories and servers of a session. Relative paths of version 1 start in `working_dir`.
    pub(crate) fn session_setup(&self, working_dir: &Path) -> Result<SessionSetup, RpcError> {
        let cwd = self.parse_directory("cwd", self.required_text("cwd")?, working_dir)?;
        let mut roots = Vec::new();
        for (index, root) in self.list("additionalDirectories")?.iter().enumerate() {
            let field = format!("additionalDirectories[{index}]");
            let root = root.as_str().ok_or_else(|| invalid(&field, "must be a string"))?;
            roots.push(self.parse_directory(&field, root, working_dir)?);
        }
        let mut setup = SessionSetup { cwd, roots, servers: Vec::new(), unusable: Vec::new() };
        for (index, server) in self.list("mcpServers")?.iter().enumerate() {
            let field = format!("mcpServers[{index}]");
            match self.parse_server(&field, server)? {
                Ok(server) => setup.servers.push(server),
                Err(reason) => setup.unusable.push(reason),
            }
        }
        Ok(setup)
    }

    fn parse_directory(&self, field: &str, text: &str, working_dir: &Path) -> Result<String, RpcError> {
        if text.is_empty() {
            return Err(invalid(field, "must not be empty"));
        }
        if text.contains('\0') {
            return Err(invalid(field, "must not contain NUL"));
        }
        if Path::new(text).is_absolute() {
            return Ok(text.to_owned());
        }
        if self.version == Version::V2 {
            return Err(invalid(field, "must be an absolute path"));
        }
        let absolute = normalize(&working_dir.join(text));
        tracing::warn!(field, path = text, taken_as = %absolute.display(), "relative path resolved against the working directory");
        Ok(absolute.to_string_lossy().into_owned())
    }

    /// Parses an MCP server. The inner error is the reason why a valid description cannot be used.
    fn parse_server(&self, field: &str, server: &Value) -> Result<Result<Server, String>, RpcError> {
        let Value::Object(object) = server else { return Err(invalid(field, "must be an object")) };
        let inner = Params { object, version: self.version };
        let of = |name: &str| format!("{field}.{name}");
        let text = |name: &str| match inner.required_text(name) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(invalid(&of(name), "must be a string")),
        };
        let kind = inner.optional_text("type").map_err(|_| invalid(&of("type"), "must be a string"))?;
        let name = text("name")?;
        match kind {
            None if self.version == Version::V2 => Err(invalid(&of("type"), "is missing")),
            None | Some("stdio") => Ok(Ok(Server::Stdio {
                name,
                command: text("command")?,
                args: parse_texts(&of("args"), object.get("args"))?,
                env: parse_pairs(&of("env"), object.get("env"), self.version)?,
            })),
            Some("http") => Ok(Ok(Server::Http {
                name,
                url: text("url")?,
                headers: parse_pairs(&of("headers"), object.get("headers"), self.version)?,
            })),
            Some("acp") => {
                let id = text("serverId").or_else(|error| text("id").map_err(|_| error))?;
                let mark = object.get("_meta").and_then(|meta| meta.get(AUTHORIZES));
                Ok(Ok(Server::Acp { name, id, authorizes: mark == Some(&Value::Bool(true)) }))
            }
            Some(kind) => {
                let kind: String = kind.chars().take(20).collect();
                Ok(Err(format!("MCP server {name:?}: the transport {kind:?} is not supported")))
            }
        }
    }
}

fn parse_texts(field: &str, value: Option<&Value>) -> Result<Vec<String>, RpcError> {
    let items = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(invalid(field, "must be an array of strings")),
    };
    let text = |item: &Value| item.as_str().map(str::to_owned);
    items.iter().map(text).collect::<Option<_>>().ok_or_else(|| invalid(field, "must be an array of strings"))
}

/// Parses names and values: a list of `{name, value}`, or in version 1 also an object.
fn parse_pairs(
    field: &str,
    value: Option<&Value>,
    version: Version,
) -> Result<Vec<(String, String)>, RpcError> {
    let wrong = || invalid(field, "must be an array of {name, value}");
    let pair = |name: Option<&Value>, value: Option<&Value>| match (name, value) {
        (Some(Value::String(name)), Some(Value::String(value))) => Ok((name.clone(), value.clone())),
        _ => Err(wrong()),
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => {
            items.iter().map(|item| pair(item.get("name"), item.get("value"))).collect()
        }
        Some(Value::Object(map)) if version == Version::V1 => {
            map.iter().map(|(name, value)| pair(Some(&json!(name)), Some(value))).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// Removes `.` and `..` from `path` by name, without reading the disk.
pub(crate) fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            component => normal.push(component),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session_setup(version: Version, params: &Value) -> Result<SessionSetup, RpcError> {
        let object = params.as_object().unwrap();
        Params::new(object, version).session_setup(Path::new("/home/me"))
    }

    #[track_caller]
    fn check_refused(version: Version, params: &Value, field: &str) {
        let error = session_setup(version, params).unwrap_err();
        assert_eq!((error.code, &error.data.unwrap()["field"]), (-32602, &json!(field)), "{params}");
    }

    #[test]
    fn version_1_params_are_parsed_leniently() {
        let params = json!({"cwd": "work/../else"});
        assert_eq!(session_setup(Version::V1, &params).unwrap().cwd, "/home/me/else");
        let params = json!({"cwd": "/w", "mcpServers": [
            {"type": "stdio", "name": "a", "command": "x", "args": ["1"], "env": [{"name": "K", "value": "V"}]},
            {"name": "b", "command": "y", "env": {"K": "V"}},
            {"type": "http", "name": "c", "url": "http://h", "headers": []},
            {"type": "acp", "name": "d", "serverId": "s"},
            {"type": "sse", "name": "e", "url": "http://h"},
        ]});
        let setup = session_setup(Version::V1, &params).unwrap();
        let env = vec![("K".to_owned(), "V".to_owned())];
        assert!(matches!(&setup.servers[0], Server::Stdio { env: seen, .. } if *seen == env));
        assert!(matches!(&setup.servers[1], Server::Stdio { env: seen, .. } if *seen == env));
        assert!(matches!(&setup.servers[3], Server::Acp { id, .. } if id == "s"));
        assert_eq!(setup.unusable.len(), 1);
    }

    #[test]
    fn invalid_params_are_named() {
        check_refused(Version::V1, &json!({}), "cwd");
        check_refused(Version::V1, &json!({"cwd": 7}), "cwd");
        check_refused(Version::V1, &json!({"cwd": ""}), "cwd");
        check_refused(Version::V1, &json!({"cwd": "/w", "mcpServers": {}}), "mcpServers");
        check_refused(Version::V1, &json!({"cwd": "/w", "mcpServers": [7]}), "mcpServers[0]");
        check_refused(
            Version::V1,
            &json!({"cwd": "/w", "mcpServers": [{"name": "a"}]}),
            "mcpServers[0].command",
        );
        let bad = json!({"cwd": "/w", "mcpServers": [{"name": "a", "command": "x", "env": [{"name": 1}]}]});
        check_refused(Version::V1, &bad, "mcpServers[0].env");
        check_refused(
            Version::V1,
            &json!({"cwd": "/w", "additionalDirectories": [7]}),
            "additionalDirectories[0]",
        );
        check_refused(Version::V2, &json!({"cwd": "w"}), "cwd");
        check_refused(Version::V2, &json!({"cwd": "/w", "mcpServers": null}), "mcpServers");
        check_refused(
            Version::V2,
            &json!({"cwd": "/w", "mcpServers": [{"name": "a", "command": "x"}]}),
            "mcpServers[0].type",
        );
    }
}
