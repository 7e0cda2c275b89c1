//! MCP servers that clients of a pool may use.

use std::collections::BTreeMap;
use std::fmt;

/// The MCP servers that clients may pass to the workers of a pool. Servers of type `acp` run in the client
/// and are always permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpAccess {
    /// Clients may not pass servers that a worker would start or connect to.
    None,
    /// Only the servers of [`Pool::mcp_servers`](super::Pool::mcp_servers). Clients select them by name.
    Listed,
    /// Every server, as the client describes it. A client can start any command as the user of the bus.
    Any,
}

impl McpAccess {
    pub const ALL: [Self; 3] = [Self::None, Self::Listed, Self::Any];

    /// Returns the text for this value in `bus.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Listed => "listed",
            Self::Any => "any",
        }
    }
}

/// An MCP server of a pool, which clients select by its name.
#[derive(Clone, PartialEq, Eq)]
pub struct PoolMcpServer {
    pub name: String,
    pub target: McpTarget,
}

/// The command or URL by which a worker reaches an MCP server.
#[derive(Clone, PartialEq, Eq)]
pub enum McpTarget {
    Command { words: Vec<String>, env: BTreeMap<String, String> },
    Url(String),
}

/// Shows only the name of the server: arguments, URL and environment may hold secrets.
impl fmt::Debug for PoolMcpServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PoolMcpServer").field("name", &self.name).finish_non_exhaustive()
    }
}
