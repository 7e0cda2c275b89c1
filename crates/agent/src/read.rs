//! Reading the parameters of requests, each complaint naming its field.
//!
//! Version 1 is read as clients write it, which is not always as the schema has it; version 2 is read strictly.

use std::path::{Component, Path, PathBuf};

use narrows_acp::Version;
use narrows_acp::capability::AUTHORIZES;
use narrows_mcp::Server;
use narrows_wire::{Code, RpcError};
use serde_json::{Map, Value, json};

/// How long an id, a path or a name may be.
const MAX_NAME: usize = 4096;

/// How many directories or servers a session may have.
const MAX_ITEMS: usize = 64;

/// The parameters of a request.
pub(crate) struct Params<'a> {
    object: &'a Map<String, Value>,
    version: Version,
}

/// -32602, naming the field.
pub(crate) fn invalid(field: &str, problem: &str) -> RpcError {
    RpcError::new(Code::InvalidParams, format!("`{field}` {problem}")).with("field", Value::from(field))
}

/// -32002, naming the session.
pub(crate) fn no_session(id: &str) -> RpcError {
    let id: String = id.chars().take(100).collect();
    RpcError::new(Code::NotFound, format!("there is no session {id:?}")).with("sessionId", Value::from(id))
}

/// Where a session works, and with what.
#[derive(Debug)]
pub(crate) struct Place {
    /// Absolute.
    pub(crate) cwd: String,
    /// Absolute, beside `cwd`.
    pub(crate) roots: Vec<String>,
    /// The servers that can be used.
    pub(crate) servers: Vec<Server>,
    /// Why others cannot.
    pub(crate) unusable: Vec<String>,
}

impl<'a> Params<'a> {
    pub(crate) fn new(object: &'a Map<String, Value>, version: Version) -> Self {
        Self { object, version }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// A text that must be there.
    pub(crate) fn text(&self, field: &str) -> Result<&'a str, RpcError> {
        self.optional_text(field)?.ok_or_else(|| invalid(field, "is missing"))
    }

    pub(crate) fn optional_text(&self, field: &str) -> Result<Option<&'a str>, RpcError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= MAX_NAME => Ok(Some(text)),
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

    /// Where a session is to work. `here` is our own working directory.
    pub(crate) fn place(&self, here: &Path) -> Result<Place, RpcError> {
        let cwd = self.directory("cwd", self.text("cwd")?, here)?;
        let mut roots = Vec::new();
        for (index, root) in self.list("additionalDirectories")?.iter().enumerate() {
            let field = format!("additionalDirectories[{index}]");
            let root = root.as_str().ok_or_else(|| invalid(&field, "must be a string"))?;
            roots.push(self.directory(&field, root, here)?);
        }
        let mut place = Place { cwd, roots, servers: Vec::new(), unusable: Vec::new() };
        for (index, server) in self.list("mcpServers")?.iter().enumerate() {
            let field = format!("mcpServers[{index}]");
            match self.server(&field, server)? {
                Ok(server) => place.servers.push(server),
                Err(reason) => place.unusable.push(reason),
            }
        }
        Ok(place)
    }

    fn directory(&self, field: &str, text: &str, here: &Path) -> Result<String, RpcError> {
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
        let absolute = normal(&here.join(text));
        tracing::warn!(field, path = text, taken_as = %absolute.display(), "a relative path is taken from our own directory");
        Ok(absolute.to_string_lossy().into_owned())
    }

    /// A server, or why it cannot be used.
    fn server(&self, field: &str, server: &Value) -> Result<Result<Server, String>, RpcError> {
        let Value::Object(object) = server else { return Err(invalid(field, "must be an object")) };
        let inner = Params { object, version: self.version };
        let of = |name: &str| format!("{field}.{name}");
        let text = |name: &str| match inner.text(name) {
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
                args: texts(&of("args"), object.get("args"))?,
                env: pairs(&of("env"), object.get("env"), self.version)?,
            })),
            Some("http") => Ok(Ok(Server::Http {
                name,
                url: text("url")?,
                headers: pairs(&of("headers"), object.get("headers"), self.version)?,
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

fn texts(field: &str, value: Option<&Value>) -> Result<Vec<String>, RpcError> {
    let items = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(invalid(field, "must be an array of strings")),
    };
    let text = |item: &Value| item.as_str().map(str::to_owned);
    items.iter().map(text).collect::<Option<_>>().ok_or_else(|| invalid(field, "must be an array of strings"))
}

/// Names and values: a list of `{name, value}`, or in version 1 also a map.
fn pairs(field: &str, value: Option<&Value>, version: Version) -> Result<Vec<(String, String)>, RpcError> {
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

/// `path` without `.` and `..`, by its text alone.
pub(crate) fn normal(path: &Path) -> PathBuf {
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

    fn place(version: Version, params: &Value) -> Result<Place, RpcError> {
        let object = params.as_object().unwrap();
        Params::new(object, version).place(Path::new("/home/me"))
    }

    #[track_caller]
    fn refused(version: Version, params: &Value, field: &str) {
        let error = place(version, params).unwrap_err();
        assert_eq!((error.code, &error.data.unwrap()["field"]), (-32602, &json!(field)), "{params}");
    }

    #[test]
    fn version_1_is_read_as_clients_write_it() {
        let params = json!({"cwd": "work/../else"});
        assert_eq!(place(Version::V1, &params).unwrap().cwd, "/home/me/else");
        let params = json!({"cwd": "/w", "mcpServers": [
            {"type": "stdio", "name": "a", "command": "x", "args": ["1"], "env": [{"name": "K", "value": "V"}]},
            {"name": "b", "command": "y", "env": {"K": "V"}},
            {"type": "http", "name": "c", "url": "http://h", "headers": []},
            {"type": "acp", "name": "d", "serverId": "s"},
            {"type": "sse", "name": "e", "url": "http://h"},
        ]});
        let place = place(Version::V1, &params).unwrap();
        let env = vec![("K".to_owned(), "V".to_owned())];
        assert!(matches!(&place.servers[0], Server::Stdio { env: seen, .. } if *seen == env));
        assert!(matches!(&place.servers[1], Server::Stdio { env: seen, .. } if *seen == env));
        assert!(matches!(&place.servers[3], Server::Acp { id, .. } if id == "s"));
        assert_eq!(place.unusable.len(), 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        refused(Version::V1, &json!({}), "cwd");
        refused(Version::V1, &json!({"cwd": 7}), "cwd");
        refused(Version::V1, &json!({"cwd": ""}), "cwd");
        refused(Version::V1, &json!({"cwd": "/w", "mcpServers": {}}), "mcpServers");
        refused(Version::V1, &json!({"cwd": "/w", "mcpServers": [7]}), "mcpServers[0]");
        refused(Version::V1, &json!({"cwd": "/w", "mcpServers": [{"name": "a"}]}), "mcpServers[0].command");
        let bad = json!({"cwd": "/w", "mcpServers": [{"name": "a", "command": "x", "env": [{"name": 1}]}]});
        refused(Version::V1, &bad, "mcpServers[0].env");
        refused(Version::V1, &json!({"cwd": "/w", "additionalDirectories": [7]}), "additionalDirectories[0]");
        refused(Version::V2, &json!({"cwd": "w"}), "cwd");
        refused(Version::V2, &json!({"cwd": "/w", "mcpServers": null}), "mcpServers");
        refused(
            Version::V2,
            &json!({"cwd": "/w", "mcpServers": [{"name": "a", "command": "x"}]}),
            "mcpServers[0].type",
        );
    }
}
