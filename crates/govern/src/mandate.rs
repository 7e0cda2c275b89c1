//! What a manifest comes to: as whom an agent acts, what it may use, and how long anything may take.

use std::path::PathBuf;
use std::time::Duration;

/// As whom an agent acts, and within which bounds.
#[derive(Clone, Debug, Default)]
pub struct Mandate {
    /// The id of the operator.
    pub operator: String,
    /// The name of the tier.
    pub tier: String,
    /// The revision of the protocol that the manifest tracks.
    pub revision: String,
    /// What the client may offer.
    pub client: ClientOffers,
    /// What the agent may offer.
    pub agent: AgentOffers,
    /// What the operator may use. `None`: whatever the policy allows.
    pub grants: Option<Vec<Grant>>,
    /// The MCP servers that a client may name. `None`: any.
    pub servers: Option<Vec<String>>,
    /// The directories in which everything happens, without links in them.
    pub roots: Vec<PathBuf>,
    /// How much is done unasked.
    pub autonomy: Autonomy,
    /// How long anything may take.
    pub patience: Patience,
}

/// What a client can do for an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientOffers {
    /// Reading files.
    pub read: bool,
    /// Writing files.
    pub write: bool,
    /// Running commands.
    pub terminal: bool,
}

/// What an agent can do for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentOffers {
    /// Opening stored sessions.
    pub load: bool,
    /// Images in prompts.
    pub image: bool,
    /// Sound in prompts.
    pub audio: bool,
    /// Embedded resources in prompts.
    pub embedded: bool,
    /// MCP servers over HTTP.
    pub http: bool,
    /// MCP servers over SSE.
    pub sse: bool,
    /// MCP servers in the client.
    pub acp: bool,
}

/// Something that an operator may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A tool by its name, or all of a kind as `kind:read`.
    Tool(String),
    /// Tools of an MCP server: these, or all if there are none.
    Server {
        /// The name of the server.
        server: String,
        /// The names of the tools.
        allow: Vec<String>,
    },
}

/// How much is done unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autonomy {
    /// What the policy allows.
    #[default]
    Autonomous,
    /// What changes nothing; all else is asked for.
    Supervised,
    /// Nothing: every turn is asked for.
    Gated,
}

/// How long anything may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Somebody to approve. Then it is denied.
    pub approval: Duration,
    /// A turn to end that was told to. Then its agent is.
    pub cancel: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { approval: Duration::from_secs(300), cancel: Duration::from_secs(10) }
    }
}

/// Who is at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    /// Such as `user:ada` or `uid:1000`.
    pub id: String,
    /// What it is in this governance.
    pub roles: Vec<String>,
    /// The tools it may cause to be used. `None`: all of the operator's.
    pub scopes: Option<Vec<String>>,
}
