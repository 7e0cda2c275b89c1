//! Options of a conversation.

use narrows_wire::DEFAULT_MAX_BATCH_ENTRIES;

/// Policy for incoming lines that are not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Answer each such line with -32700, as an agent does.
    Answer,
    /// Count and ignore such lines, as a client does. An agent may print other output by mistake. If it also
    /// reads slowly, answers to these lines would block it.
    Ignore,
}

/// Options of one end of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Returns `true` for the methods that this end serves, **notifications included**. A request for another
    /// method is answered with -32601, and a notification of another method is ignored. A client that does
    /// not serve `session/update` receives only the end of a turn.
    pub serves: fn(&str) -> bool,
    /// Returns `true` for requests that change the meaning of later messages: the rest of a batch waits for
    /// their answers.
    pub lifecycle: fn(&str) -> bool,
    pub noise: Noise,
    /// Limit of unanswered requests of the peer. Requests over the limit are answered with -32012.
    pub max_requests: usize,
    /// Limit of queued bytes in each inbox.
    pub inbox_bytes: usize,
    /// Limit of unclaimed sessions for which notifications are held. With 0 those go to the
    /// [`crate::Inbox`], as requests of unclaimed sessions always do.
    ///
    /// A client needs this: an agent may send messages of a session before the client has read the answer
    /// that names it.
    pub held_sessions: usize,
    pub max_batch: usize,
}

impl Options {
    /// Returns the options of an agent.
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

    /// Returns the options of a client.
    #[must_use]
    pub fn client(serves: fn(&str) -> bool) -> Self {
        Self { noise: Noise::Ignore, held_sessions: 64, ..Self::agent(serves) }
    }
}
