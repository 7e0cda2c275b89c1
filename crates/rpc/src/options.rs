//! How one end of a conversation behaves.

use narrows_wire::DEFAULT_MAX_BATCH_ENTRIES;

/// What to do with lines that are not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Answer each with -32700, as an agent does.
    Answer,
    /// Count and pass over them, as a client does: what an agent prints by mistake is not a message, and an agent
    /// that prints much and reads little would be blocked by the answers.
    Ignore,
}

/// How one end of a conversation behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which methods this end serves, **notifications included**: a request for another is answered with -32601, a
    /// notification passed over. A client that does not serve `session/update` hears nothing of a turn but its end.
    pub serves: fn(&str) -> bool,
    /// Which requests change what later messages mean: the rest of a batch waits for their answers.
    pub lifecycle: fn(&str) -> bool,
    /// What to do with lines that are not JSON.
    pub noise: Noise,
    /// How many requests of the peer may be unanswered at once; one more is answered with -32012.
    pub max_requests: usize,
    /// How many bytes may wait in each inbox.
    pub inbox_bytes: usize,
    /// For how many sessions that nobody has claimed yet notifications are held; 0 hands them to the
    /// [`crate::Inbox`], where requests of such sessions always go.
    ///
    /// A client needs it: an agent may speak in a session before the client has seen the answer that names it.
    pub held_sessions: usize,
    /// How many entries a batch may have.
    pub max_batch: usize,
}

impl Options {
    /// For the end that is the agent.
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

    /// For the end that is the client.
    #[must_use]
    pub fn client(serves: fn(&str) -> bool) -> Self {
        Self { noise: Noise::Ignore, held_sessions: 64, ..Self::agent(serves) }
    }
}
