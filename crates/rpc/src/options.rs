//! Options of a conversation.

use narrows_wire::DEFAULT_MAX_BATCH_ENTRIES;

/// The treatment of lines that are not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Answer each with -32700, as an agent does.
    Answer,
    /// Count and ignore them, as a client does: output that an agent prints by mistake is not a message, and an agent
    /// that prints much and reads little would be blocked by the answers.
    Ignore,
}

/// Options of one end of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The methods that this end serves, **notifications included**. A request for another method is answered with
    /// -32601, and such a notification is ignored. A client that does not serve `session/update` receives nothing of a
    /// turn but its end.
    pub serves: fn(&str) -> bool,
    /// The requests that change what later messages mean: the rest of a batch waits for their answers.
    pub lifecycle: fn(&str) -> bool,
    /// The treatment of lines that are not JSON.
    pub noise: Noise,
    /// Limit of unanswered requests of the peer; more are answered with -32012.
    pub max_requests: usize,
    /// Limit of each inbox in bytes.
    pub inbox_bytes: usize,
    /// Limit of unclaimed sessions for which notifications are held; with 0 they go to the [`crate::Inbox`], as
    /// requests of such sessions always do.
    ///
    /// A client needs it: an agent may send messages of a session before the client has read the answer that names it.
    pub held_sessions: usize,
    /// Limit of entries in a batch.
    pub max_batch: usize,
}

impl Options {
    /// Options of an agent.
    #[must_use]
    pub fn agent(serves: fn(&str) -> bool) -> Self {
        Self {
            serves,
            lifecycle: narrows_acp::method::is_lifecycle,
            noise: Noise::Answer,
            max_requests: 1024,
            inbox_bytes: 1 << 20,
            held_sessions: 0,
            max_batch: DEFAULT_MAX_BATCH_ENTRIES,
        }
    }

    /// Options of a client.
    #[must_use]
    pub fn client(serves: fn(&str) -> bool) -> Self {
        Self { noise: Noise::Ignore, held_sessions: 64, ..Self::agent(serves) }
    }
}
