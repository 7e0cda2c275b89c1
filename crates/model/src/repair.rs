//! What an endpoint refused, and what to ask without.
//!
//! Endpoints differ in what they take, and most say so only when asked. A refusal is read once: the request is sent
//! again without the part in question, or with that part said in another way, and the endpoint is remembered for it.

mod table;

use std::fmt;

use crate::{Error, Kind};

/// A part of a request that an endpoint refused: it is left out, or said in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// The wish for usage numbers in the stream.
    StreamOptions,
    /// Streaming itself: the answer comes as a whole.
    Streaming,
    /// The name of the limit of tokens: the other one is used.
    MaxTokensName,
    /// The limit of tokens.
    MaxTokens,
    /// The temperature.
    Temperature,
    /// How hard to think.
    Effort,
    /// The key that requests with a common prefix share.
    CacheKey,
    /// Marks of what may be cached.
    CacheControl,
    /// The tools.
    Tools,
    /// Pictures.
    Images,
    /// Recordings.
    Audio,
    /// Documents.
    Files,
    /// The role `system`: `developer` is used.
    SystemRole,
    /// The role `developer` as well: instructions stand in the first message of the person.
    DeveloperRole,
    /// Content in parts: all of it becomes one text.
    Parts,
    /// Several messages of one role in a row: they become one.
    Neighbours,
    /// The ids of tool calls: short ones are used.
    CallIds,
    /// Fields of earlier answers that another endpoint wanted back.
    Extra,
    /// Leaving out what the model thought: it is sent back.
    Forgetting,
}

impl Dropped {
    /// Whether the person loses something by it, as opposed to the same thing being said in another way.
    #[must_use]
    pub fn matters(self) -> bool {
        match self {
            Self::MaxTokens
            | Self::Temperature
            | Self::Effort
            | Self::Tools
            | Self::Images
            | Self::Audio
            | Self::Files => true,
            Self::StreamOptions
            | Self::Streaming
            | Self::MaxTokensName
            | Self::CacheKey
            | Self::CacheControl
            | Self::SystemRole
            | Self::DeveloperRole
            | Self::Parts
            | Self::Neighbours
            | Self::CallIds
            | Self::Extra
            | Self::Forgetting => false,
        }
    }

    /// Its name in logs and for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StreamOptions => "stream_options",
            Self::Streaming => "streaming",
            Self::MaxTokensName => "max_tokens_name",
            Self::MaxTokens => "max_tokens",
            Self::Temperature => "temperature",
            Self::Effort => "effort",
            Self::CacheKey => "cache_key",
            Self::CacheControl => "cache_control",
            Self::Tools => "tools",
            Self::Images => "images",
            Self::Audio => "audio",
            Self::Files => "files",
            Self::SystemRole => "system_role",
            Self::DeveloperRole => "developer_role",
            Self::Parts => "parts",
            Self::Neighbours => "neighbours",
            Self::CallIds => "call_ids",
            Self::Extra => "extra",
            Self::Forgetting => "forgetting",
        }
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts(u32);

impl Parts {
    pub(crate) fn has(self, part: Dropped) -> bool {
        self.0 & (1 << part as u32) != 0
    }

    pub(crate) fn insert(&mut self, part: Dropped) {
        self.0 |= 1 << part as u32;
    }

    #[cfg(test)]
    pub(crate) fn remove(&mut self, part: Dropped) {
        self.0 &= !(1 << part as u32);
    }

    /// This set and that one.
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[cfg(test)]
    pub(crate) fn of(parts: &[Dropped]) -> Self {
        parts.iter().fold(Self::default(), |set, part| Self(set.0 | 1 << *part as u32))
    }
}

/// What a request has that can be refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent<'a> {
    /// The parts that are in it, and not yet left out.
    pub(crate) parts: Parts,
    /// Whether it offers tools; if not, earlier calls may still be in it.
    pub(crate) offers_tools: bool,
    /// The names of the fields of earlier answers that it sends back.
    pub(crate) extra: Vec<&'a str>,
}

/// What to do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// What to leave out or say in another way.
    pub(crate) what: Dropped,
    /// Whether later requests shall do so as well.
    pub(crate) lasting: bool,
}

/// What to leave out after `error`, given what was sent; `None` if the error is none of that sort.
pub(crate) fn find(error: &Error, sent: &Sent<'_>) -> Option<Repair> {
    if error.shown {
        return None;
    }
    let text = error.message.to_lowercase();
    match error.kind {
        Kind::Auth | Kind::RateLimit | Kind::Quota | Kind::Network | Kind::Timeout => None,
        Kind::Cut | Kind::Garbage | Kind::Demo | Kind::Unconfigured => None,
        // The limit of the answer counts as part of the window, and may be all that is too much.
        Kind::Overflow => (sent.parts.has(Dropped::MaxTokens) && table::limit_too_large(&text))
            .then_some(Repair { what: Dropped::MaxTokens, lasting: false }),
        Kind::Server | Kind::Http | Kind::Provider | Kind::Unsupported => {
            let what = table::look_up(error, &text, sent)?;
            // Earlier calls without tools say nothing of tools.
            let lasting = what != Dropped::Tools || sent.offers_tools;
            Some(Repair { what, lasting })
        }
    }
}
