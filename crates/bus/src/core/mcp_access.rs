//! Decides which MCP servers of a client reach a worker.
//!
//! A worker starts the servers of a session as the user of the bus. A setting of the pool decides whether a
//! client may cause that, so the list is checked here, on the bytes of the request. A list that is not
//! clearly permitted is refused. So is any message that another JSON reader could take for such a list.

use narrows_acp::method::{self, Side};
use narrows_acp::{Version, strip_client_meta};
use narrows_wire::{Code, RpcError, View, elements, keys, member, members, written_key_folds_to};
use serde_json::Value;

use super::Ctx;
use super::api::{CoreOutput, LogEvent, PoolId};
use super::errors::misnamed;
use super::progress::with_range_replaced;
use super::session::SessionKey;
use super::session_keys::{decoded, folds_to};
use super::state::RequestKind;
use super::table::ClientKey;
use crate::config::{McpAccess, McpTarget, PoolMcpServer};

const SERVERS: &str = "mcpServers";

/// The key `mcpServers` without case, `_` and `-`. Some agents ignore case in keys, others also accept
/// `mcp_servers`.
const FOLDED: &str = "mcpservers";

/// The members that may describe a server of type `acp`. With any other member, an agent that does not know
/// the type could take the server for one of another type.
const ACP_SERVER_KEYS: [&str; 5] = ["type", "name", "id", "serverId", "_meta"];

/// Maximum number of servers in a request to open a session. The event loop, which all clients share, checks
/// every server.
const MAX_SERVERS: usize = 256;

/// Maximum number of members in the description of one MCP server. Most descriptions have five or six.
const MAX_SERVER_KEYS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused;

impl<O: CoreOutput> Ctx<'_, O> {
    fn mcp_access(&self, client: Option<ClientKey>, pool: PoolId) -> McpAccess {
        let settings = &self.core.pool_of(self.core.current(pool)).settings;
        if settings.manifest.is_some() {
            // A gate has an MCP server list of its own, so the pool permits all servers.
            return McpAccess::Any;
        }
        let is_owner =
            client.and_then(|client| self.core.clients.get(client)).is_some_and(|client| client.is_owner);
        settings.mcp.unwrap_or(if is_owner { McpAccess::Any } else { McpAccess::None })
    }

    /// Checks the MCP servers that a client's message lists. Returns the message to send instead if it
    /// differs.
    pub(super) fn permit_servers(
        &mut self,
        client: ClientKey,
        pool: PoolId,
        is_v2: bool,
        message: View<'_>,
        what: RequestKind,
    ) -> Result<Option<Vec<u8>>, RpcError> {
        // No method of the protocol has positional params, but some agents accept them. Such an agent would
        // read sessions and servers that are not checked here.
        if self.core.pool_of(pool).is_acp() && message.params().is_some_and(|params| params.starts_with(b"["))
        {
            return Err(RpcError::new(Code::InvalidParams, "params must be an object"));
        }
        if !matches!(
            what,
            RequestKind::New
                | RequestKind::Load
                | RequestKind::Resume
                | RequestKind::Fork
                | RequestKind::Other
        ) {
            return Ok(None);
        }
        let Some(name) = message.method() else { return Ok(None) };
        let opens = matches!(
            RequestKind::from_method(&name),
            RequestKind::New | RequestKind::Load | RequestKind::Resume | RequestKind::Fork
        );
        let is_judged = opens || (self.core.pool_of(pool).is_acp() && is_unknown(&name));
        if !is_judged {
            return Ok(None);
        }
        self.permit_meta(client, pool, message)?;
        if opens && self.core.pool_of(pool).is_acp() && !is_exact(message) {
            let words = "ambiguous mcpServers, or more than 256 servers";
            return Err(RpcError::new(Code::InvalidParams, words));
        }
        let access = self.mcp_access(Some(client), pool);
        if access == McpAccess::Any {
            return Ok(None);
        }
        let params = message.params().unwrap_or_default();
        let judged = if opens && message.id().is_some() {
            self.judge(access, pool, is_v2, message.bytes(), params)
        } else {
            // The meaning of this message is unknown, so no server descriptions are inserted.
            permitted(&[], is_v2, message.bytes(), params)
        };
        match judged {
            Ok(None) => Ok(None),
            Ok(Some(params)) => {
                let place = message.envelope().params.range();
                Ok(Some(with_range_replaced(message.bytes(), place, &params)))
            }
            Err(Refused) => Err(self.deny_servers(Some(client), pool)),
        }
    }

    /// Checks `_meta` in a message of a client that may not start arbitrary programs. Some agents read
    /// settings from there, such as the program to run, when a session is opened.
    fn permit_meta(&mut self, client: ClientKey, pool: PoolId, message: View<'_>) -> Result<(), RpcError> {
        let current = self.core.pool_of(self.core.current(pool));
        if !current.is_acp() {
            return Ok(());
        }
        let Some(stripped) = strip_client_meta(message, &current.settings.client_meta) else { return Ok(()) };
        if self.mcp_access(Some(client), pool) == McpAccess::Any {
            return Ok(());
        }
        self.log(LogEvent::MetaRefused { client: client.into(), pool });
        let error = RpcError::new(Code::PolicyDenied, "_meta member not allowed by this pool");
        Err(error.with("keys", stripped.names.into()))
    }

    /// Checks the MCP servers in a message about an open session.
    pub(super) fn permit_in_session(
        &mut self,
        client: ClientKey,
        key: SessionKey,
        message: View<'_>,
        what: RequestKind,
    ) -> Result<(), RpcError> {
        let Some(pool) = self.core.sessions.get(key).map(|session| session.pool) else { return Ok(()) };
        // A prompt adds no servers, and its other members are content.
        if what != RequestKind::Prompt {
            if let Some(error) =
                self.refuse_server(pool, message).or_else(|| self.refuse_long_extension(pool, message))
            {
                return Err(error);
            }
            if self.misleads(client, pool, message) {
                return Err(misnamed());
            }
        }
        self.permit_servers(client, pool, false, message, what).map(drop)
    }

    /// Checks the MCP servers in the params to restore a session. Returns the params to send.
    pub(super) fn permit_again(
        &mut self,
        client: Option<ClientKey>,
        pool: PoolId,
        is_v2: bool,
        params: &[u8],
    ) -> Result<Vec<u8>, RpcError> {
        let access = self.mcp_access(client, pool);
        if access == McpAccess::Any {
            return Ok(params.to_vec());
        }
        match self.judge(access, pool, is_v2, params, params) {
            Ok(judged) => Ok(judged.unwrap_or_else(|| params.to_vec())),
            Err(Refused) => Err(self.deny_servers(client, pool)),
        }
    }

    fn judge(
        &self,
        access: McpAccess,
        pool: PoolId,
        is_v2: bool,
        message: &[u8],
        params: &[u8],
    ) -> Result<Option<Vec<u8>>, Refused> {
        let settings = &self.core.pool_of(self.core.current(pool)).settings;
        let listed = if access == McpAccess::Listed { &settings.mcp_servers[..] } else { &[] };
        permitted(listed, is_v2, message, params)
    }

    fn deny_servers(&mut self, client: Option<ClientKey>, pool: PoolId) -> RpcError {
        self.core.counters.refused_mcp += 1;
        self.log(LogEvent::McpRefused { client: client.map(Into::into), pool });
        RpcError::new(Code::PolicyDenied, "MCP server not allowed by this pool")
    }
}

/// The keys that agents read as the id of a server in the client, without case, `_` and `-`.
const ID_KEYS: [&str; 4] = ["id", "serverid", "acpid", "connectionid"];

/// Returns `true` if every JSON reader finds the same servers of the client in a request that opens a
/// session. The bus parses the ids with serde_json, which refuses numbers out of range and deep nesting.
fn is_exact(message: View<'_>) -> bool {
    let params = message.params().unwrap_or_default();
    let Ok(list) = member(params, SERVERS) else { return false };
    let Some(list) = list.and_then(|list| params.get(list)).filter(|list| list.first() == Some(&b'[')) else {
        return true;
    };
    let entries = elements(list).take(MAX_SERVERS + 1);
    let entries: Option<Vec<bool>> =
        entries.map(|entry| is_of_client(list.get(entry).unwrap_or_default())).collect();
    match entries {
        None => false,
        Some(entries) if entries.len() > MAX_SERVERS => false,
        Some(of_client) if !of_client.contains(&true) => true,
        Some(_) => serde_json::from_slice::<Value>(message.bytes()).is_ok(),
    }
}

/// Returns `true` if an entry is a server in the client. `None`: JSON readers could differ about that or
/// about the id. Clients of version 1 write the same id as `id` and as `serverId`, which is not ambiguous.
fn is_of_client(entry: &[u8]) -> Option<bool> {
    let mut keys: Vec<String> = Vec::new();
    let mut kind = None;
    let mut id: Option<String> = None;
    let mut is_ambiguous = false;
    for (key, value) in members(entry) {
        let key = entry.get(key).and_then(decoded)?;
        let value = entry.get(value).unwrap_or_default();
        if keys.len() == MAX_SERVER_KEYS || keys.contains(&key) {
            return None;
        }
        if key == "type" {
            kind = decoded(value);
        }
        if ID_KEYS.iter().any(|name| folds_to(&key, name)) {
            let text = decoded(value).filter(|_| matches!(&*key, "id" | "serverId"));
            is_ambiguous |= text.is_none() || (id.is_some() && id != text);
            id = text;
        }
        keys.push(key);
    }
    match kind.as_deref() {
        Some("acp") => (id.is_some() && !is_ambiguous).then_some(true),
        Some(kind) if kind.eq_ignore_ascii_case("acp") => None,
        _ => Some(false),
    }
}

/// Returns `true` if agents have no method of this name in any version of the protocol.
pub(super) fn is_unknown(name: &str) -> bool {
    let knows = |version| method::knows(Side::Agent, version, name);
    !knows(Version::V1) && !knows(Version::V2)
}

/// Returns the number of keys in a message that some JSON reader takes for a list of servers.
fn mentions(message: &[u8]) -> usize {
    // The quotes around a key add two bytes.
    let long = |key: &&[u8]| key.len() >= FOLDED.len() + 2;
    keys(message).filter(long).filter(|key| written_key_folds_to(key, FOLDED, true)).count()
}

/// Returns the params with the pool's descriptions of the servers in `listed` in place of the client's.
/// `None`: nothing changes.
fn permitted(
    listed: &[PoolMcpServer],
    is_v2: bool,
    message: &[u8],
    params: &[u8],
) -> Result<Option<Vec<u8>>, Refused> {
    let place = member(params, SERVERS).map_err(|_| Refused)?;
    if mentions(message) != usize::from(place.is_some()) {
        return Err(Refused);
    }
    let Some(place) = place else { return Ok(None) };
    let list = params.get(place.clone()).unwrap_or_default();
    if list == b"null" {
        return Ok(None);
    }
    if list.first() != Some(&b'[') {
        return Err(Refused);
    }
    let mut entries: Vec<Vec<u8>> = Vec::new();
    let mut is_changed = false;
    for entry in elements(list) {
        if entries.len() == MAX_SERVERS {
            return Err(Refused);
        }
        let entry = list.get(entry).unwrap_or_default();
        match described(listed, is_v2, entry)? {
            Some(description) => {
                is_changed = true;
                entries.push(description);
            }
            None => entries.push(entry.to_vec()),
        }
    }
    Ok(is_changed.then(|| {
        let list = [b"[", &*entries.join(&b','), b"]"].concat();
        with_range_replaced(params, place, &list)
    }))
}

/// Returns the pool's description that replaces an entry of the client. `None`: the server is in the client.
fn described(listed: &[PoolMcpServer], is_v2: bool, entry: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    let mut found: Vec<(String, &[u8])> = Vec::new();
    if entry.first() != Some(&b'{') {
        return Err(Refused);
    }
    for (key, value) in members(entry) {
        let key = entry.get(key).and_then(decoded).ok_or(Refused)?;
        if found.len() == MAX_SERVER_KEYS || found.iter().any(|(other, _)| *other == key) {
            return Err(Refused);
        }
        found.push((key, entry.get(value).unwrap_or_default()));
    }
    let text = |key: &str| found.iter().find(|(name, _)| name == key).and_then(|(_, value)| decoded(value));
    let kind = text("type");
    if kind.as_deref() == Some("acp") {
        let is_plain = found.iter().all(|(key, _)| ACP_SERVER_KEYS.contains(&key.as_str()));
        return if is_plain { Ok(None) } else { Err(Refused) };
    }
    let name = text("name").ok_or(Refused)?;
    let server = listed.iter().find(|server| server.name == name).ok_or(Refused)?;
    // Version 1 has no type for a server that is a process, but some clients write one.
    let is_typed = is_v2 || kind.as_deref() == Some("stdio");
    Ok(Some(description(server, is_typed).into_bytes()))
}

/// Returns the description of a pool's server for a request that opens a session.
fn description(server: &PoolMcpServer, is_typed: bool) -> String {
    let name = Value::from(&*server.name);
    match &server.target {
        McpTarget::Command { words, env } => {
            let pair = |(name, value): (&String, &String)| {
                format!(r#"{{"name":{},"value":{}}}"#, Value::from(&**name), Value::from(&**value))
            };
            let env: Vec<String> = env.iter().map(pair).collect();
            let (command, args) = words.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
            let (command, args, env) = (Value::from(command), Value::from(args), env.join(","));
            let kind = if is_typed { r#""type":"stdio","# } else { "" };
            format!(r#"{{{kind}"name":{name},"command":{command},"args":{args},"env":[{env}]}}"#)
        }
        McpTarget::Url(url) => {
            let url = Value::from(&**url);
            format!(r#"{{"type":"http","name":{name},"url":{url},"headers":[]}}"#)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<PoolMcpServer> {
        let words = vec!["files".to_owned(), "--root".to_owned(), "/srv".to_owned()];
        let env = [("KEY".to_owned(), "secret".to_owned())].into();
        let files = PoolMcpServer { name: "files".into(), target: McpTarget::Command { words, env } };
        let web =
            PoolMcpServer { name: "web".into(), target: McpTarget::Url("https://web.example/mcp".into()) };
        vec![files, web]
    }

    /// Checks which params result from `params`. `Ok("")` means unchanged.
    #[track_caller]
    fn check(listed: &[PoolMcpServer], is_v2: bool, params: &str, expected: Result<&str, Refused>) {
        let message = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/new","params":{params}}}"#);
        let found = permitted(listed, is_v2, message.as_bytes(), params.as_bytes());
        let found = found.map(|found| String::from_utf8(found.unwrap_or_default()).unwrap());
        assert_eq!(found.as_deref().map_err(|refused| *refused), expected, "{params}");
    }

    #[test]
    fn without_a_list_only_servers_of_the_client_pass() {
        let none = |params: &str, expected| check(&[], false, params, expected);
        for fine in [
            "{}",
            "[]",
            r#"{"cwd":"/","mcpServers":[]}"#,
            r#"{"mcpServers":null}"#,
            r#"{"mcpServers":[{"type":"acp","name":"a","id":"1"}]}"#,
            r#"{"mcp\u0053ervers" : [ {"type":"\u0061cp","name":"a","serverId":"1","_meta":{"command":"sh"}} ] }"#,
            r#"{"cwd":"mcpServers","prompt":["mcpServers"]}"#,
        ] {
            none(fine, Ok(""));
        }
        for refused in [
            r#"{"mcpServers":[{"name":"a","command":"sh","args":[],"env":[]}]}"#,
            r#"{"mcpServers":[{"type":"stdio","name":"a","command":"sh"}]}"#,
            r#"{"mcpServers":[{"type":"http","name":"a","url":"http://x","headers":[]}]}"#,
            r#"{"mcpServers":[{"type":"sse","name":"a","url":"http://x","headers":[]}]}"#,
            r#"{"mcpServers":[{"type":"new","name":"a"}]}"#,
            r#"{"mcpServers":[{"name":"a"}]}"#,
            r#"{"mcpServers":[{}]}"#,
            r#"{"mcpServers":["a"]}"#,
            r#"{"mcpServers":[[]]}"#,
            r#"{"mcpServers":{"a":{"command":"sh"}}}"#,
            r#"{"mcpServers":"a"}"#,
            r#"{"mcp\u0053ervers":[{"name":"a","command":"sh"}]}"#,
            // With two lists, some JSON readers take the first, and others the last.
            r#"{"mcpServers":[],"mcpServers":[{"name":"a","command":"sh"}]}"#,
            r#"{"mcpServers":[],"mcp\u0053ervers":[]}"#,
            r#"{"mcpServers":[{"type":"acp","type":"stdio","name":"a","command":"sh"}]}"#,
            r#"{"mcpServers":[{"type":"acp","t\u0079pe":"stdio","name":"a","id":"1"}]}"#,
            // Without an id, some agents take the server for a process.
            r#"{"mcpServers":[{"type":"acp","name":"a","command":"sh","args":[],"env":[]}]}"#,
            r#"{"mcpServers":[{"type":"acp","name":"a","id":"1","url":"http://x"}]}"#,
            // Each of these is another spelling of `mcpServers`.
            r#"{"mcp_servers":[{"name":"a","command":"sh"}]}"#,
            r#"{"MCPServers":[{"name":"a","command":"sh"}]}"#,
            r#"{"mcp\u017ferver\u017f":[{"name":"a","command":"sh"}]}"#,
            r#"{"mcpServers":[],"mcp_servers":[]}"#,
            r#"{"_meta":{"agent":{"options":{"mcpServers":{"a":{"command":"sh"}}}}}}"#,
            r#"[{"mcpServers":[]}]"#,
        ] {
            none(refused, Err(Refused));
        }
    }

    #[test]
    fn listed_servers_are_selected_by_name_and_described_by_the_pool() {
        let all = listed();
        let files = r#"{"name":"files","command":"files","args":["--root","/srv"],"env":[{"name":"KEY","value":"secret"}]}"#;
        let web = r#"{"type":"http","name":"web","url":"https://web.example/mcp","headers":[]}"#;
        let evil = r#"{"name":"files","command":"sh","args":["-c","id"],"env":[]}"#;
        let acp = r#"{"type":"acp","name":"a","id":"1"}"#;
        check(
            &all,
            false,
            &format!(r#"{{"cwd":"/", "mcpServers" : [{evil} , {acp},{{"name":"web"}}],"x":1}}"#),
            Ok(&format!(r#"{{"cwd":"/", "mcpServers" : [{files},{acp},{web}],"x":1}}"#)),
        );
        let typed = files.replacen('{', r#"{"type":"stdio","#, 1);
        check(
            &all,
            true,
            r#"{"mcpServers":[{"type":"http","name":"files","url":"http://evil"}]}"#,
            Ok(&format!(r#"{{"mcpServers":[{typed}]}}"#)),
        );
        check(&all, false, &format!(r#"{{"mcpServers":[{acp}]}}"#), Ok(""));
        // The inserted descriptions still select the same servers when they are checked again.
        check(
            &all,
            false,
            &format!(r#"{{"mcpServers":[{web}]}}"#),
            Ok(&format!(r#"{{"mcpServers":[{web}]}}"#)),
        );
        for refused in [
            r#"{"mcpServers":[{"name":"other"}]}"#,
            r#"{"mcpServers":[{"name":"files"},{"name":"other"}]}"#,
            r#"{"mcpServers":[{"name":["files"]}]}"#,
            r#"{"mcpServers":[{"name":"other","name":"files"}]}"#,
            r#"{"mcpServers":[{"Name":"files"}]}"#,
            r#"{"mcpServers":["files"]}"#,
        ] {
            check(&all, false, refused, Err(Refused));
        }
    }
}
