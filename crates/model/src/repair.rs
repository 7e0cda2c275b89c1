//! Repairs requests that an endpoint refused.
//!
//! Endpoints differ in what they accept, and most say so only in a refusal. The request is then sent again without the
//! refused part, or with that part in another form, and the endpoint's refusal is remembered.

mod table;

use std::fmt;

use crate::{Error, ErrorKind};

/// A part of a request that an endpoint refused. It is omitted, or sent in another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DroppedField {
    /// The request for usage in the stream.
    StreamOptions,
    /// Streaming: the answer comes as a whole.
    Streaming,
    /// The name of the token limit: the other one is used.
    MaxTokensName,
    /// The token limit.
    MaxTokens,
    /// The temperature.
    Temperature,
    /// The thinking effort.
    Effort,
    /// The cache key.
    CacheKey,
    /// Cache marks.
    CacheControl,
    /// The tools.
    Tools,
    /// Images.
    Images,
    /// Audio.
    Audio,
    /// Documents.
    Files,
    /// The role `system`: `developer` is used.
    SystemRole,
    /// The role `developer` too: the instructions are put into the first user message.
    DeveloperRole,
    /// Content in parts: all of it becomes one text.
    DroppedFields,
    /// Several messages of one role in a row: they are merged.
    Neighbours,
    /// The ids of tool calls: short ones are used.
    CallIds,
    /// Fields of earlier answers that another endpoint wanted back.
    Extra,
    /// Omitted reasoning: it is sent back.
    Forgetting,
}

impl DroppedField {
    /// Returns `true` if the user loses something by it, rather than only the form changing.
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
            | Self::DroppedFields
            | Self::Neighbours
            | Self::CallIds
            | Self::Extra
            | Self::Forgetting => false,
        }
    }

    /// Returns the name for logs and programs.
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
            Self::DroppedFields => "parts",
            Self::Neighbours => "neighbours",
            Self::CallIds => "call_ids",
            Self::Extra => "extra",
            Self::Forgetting => "forgetting",
        }
    }
}

impl fmt::Display for DroppedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DroppedFields(u32);

impl DroppedFields {
    pub(crate) fn has(self, part: DroppedField) -> bool {
        self.0 & (1 << part as u32) != 0
    }

    pub(crate) fn insert(&mut self, part: DroppedField) {
        self.0 |= 1 << part as u32;
    }

    #[cfg(test)]
    pub(crate) fn remove(&mut self, part: DroppedField) {
        self.0 &= !(1 << part as u32);
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[cfg(test)]
    pub(crate) fn from_fields(parts: &[DroppedField]) -> Self {
        parts.iter().fold(Self::default(), |set, part| Self(set.0 | 1 << *part as u32))
    }
}

/// The parts of a request that can be refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent<'a> {
    /// The parts that are in it, without those omitted already.
    pub(crate) parts: DroppedFields,
    /// `true` if it offers tools. If not, it may still contain earlier calls.
    pub(crate) offers_tools: bool,
    /// Names of the fields of earlier answers that it sends back.
    pub(crate) extra: Vec<&'a str>,
}

/// The repair of a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// Part to omit or to send in another form.
    pub(crate) what: DroppedField,
    /// `true` if later requests are repaired too.
    pub(crate) lasting: bool,
}

/// Returns the repair for `error`, given what was sent. `None` if `error` is not such a refusal.
pub(crate) fn find(error: &Error, sent: &Sent<'_>) -> Option<Repair> {
    if error.shown {
        return None;
    }
    let text = error.message.to_lowercase();
    match error.kind {
        ErrorKind::Auth
        | ErrorKind::RateLimit
        | ErrorKind::Quota
        | ErrorKind::Network
        | ErrorKind::Timeout => None,
        ErrorKind::Cut | ErrorKind::Garbage | ErrorKind::Demo | ErrorKind::Unconfigured => None,
        // The limit of the answer counts as part of the window, and may alone exceed it.
        ErrorKind::Overflow => (sent.parts.has(DroppedField::MaxTokens) && table::limit_too_large(&text))
            .then_some(Repair { what: DroppedField::MaxTokens, lasting: false }),
        ErrorKind::Server | ErrorKind::Http | ErrorKind::Provider | ErrorKind::Unsupported => {
            let what = table::look_up(error, &text, sent)?;
            // Earlier calls without tools say nothing about tools.
            let lasting = what != DroppedField::Tools || sent.offers_tools;
            Some(Repair { what, lasting })
        }
    }
}
