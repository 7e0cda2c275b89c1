//! Repairs requests that an endpoint refused.
//!
//! Endpoints accept different requests, and many show that only by refusing one. A refused request is sent
//! again without the refused part, or with that part in another form. The refusal is remembered for later
//! requests.

mod table;

use std::fmt;

use crate::{ErrorKind, ModelError};

/// A part of a request that an endpoint refused. It is omitted or sent in another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestPart {
    /// The option that requests usage in the stream.
    StreamOptions,
    /// Streaming. The answer is requested as a whole instead.
    Streaming,
    /// The name of the token limit. The other of its two names is used instead.
    MaxTokensName,
    MaxTokens,
    Temperature,
    Effort,
    CacheKey,
    CacheControl,
    Tools,
    Images,
    Audio,
    Files,
    /// The role `system`. The role `developer` is used instead.
    SystemRole,
    /// The role `developer`. The instructions become part of the first user message instead.
    DeveloperRole,
    /// Content as a list of parts. It is sent as a single text instead.
    ContentParts,
    /// Adjacent messages of one role. They are merged instead.
    AdjacentRoles,
    /// The format of tool call ids. Short ids are used instead.
    CallIds,
    /// Unknown fields of earlier answers. They are omitted instead.
    Extra,
    /// A request without the reasoning of earlier answers. The reasoning is sent back instead.
    MissingReasoning,
}

impl RequestPart {
    /// Returns `true` if the repaired request lacks something for the user. Returns `false` if only its form
    /// differs.
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
            | Self::ContentParts
            | Self::AdjacentRoles
            | Self::CallIds
            | Self::Extra
            | Self::MissingReasoning => false,
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
            Self::ContentParts => "parts",
            Self::AdjacentRoles => "neighbours",
            Self::CallIds => "call_ids",
            Self::Extra => "extra",
            Self::MissingReasoning => "forgetting",
        }
    }
}

impl fmt::Display for RequestPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestParts(u32);

impl RequestParts {
    pub(crate) fn has(self, part: RequestPart) -> bool {
        self.0 & (1 << part as u32) != 0
    }

    pub(crate) fn insert(&mut self, part: RequestPart) {
        self.0 |= 1 << part as u32;
    }

    #[cfg(test)]
    pub(crate) fn remove(&mut self, part: RequestPart) {
        self.0 &= !(1 << part as u32);
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[cfg(test)]
    pub(crate) fn from_parts(parts: &[RequestPart]) -> Self {
        parts.iter().fold(Self::default(), |set, part| Self(set.0 | 1 << *part as u32))
    }
}

/// The parts of a sent request that an endpoint can refuse.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent<'a> {
    /// Parts that the request contained. Parts that were already omitted are not included.
    pub(crate) parts: RequestParts,
    /// `true` if the request offered tools. Earlier tool calls may be in the conversation either way.
    pub(crate) offers_tools: bool,
    /// Names of the unknown fields of earlier answers that the request sent back.
    pub(crate) extra: Vec<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// The part of the request to omit or to send in another form.
    pub(crate) what: RequestPart,
    /// `true` if later requests are repaired in the same way.
    pub(crate) lasting: bool,
}

/// Returns the repair for `error`, given the parts that were sent. `None` if `error` refuses none of these
/// parts.
pub(crate) fn find(error: &ModelError, sent: &Sent<'_>) -> Option<Repair> {
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
        // The requested length of the answer counts towards the window, and may exceed the window alone.
        ErrorKind::Overflow => (sent.parts.has(RequestPart::MaxTokens) && table::limit_too_large(&text))
            .then_some(Repair { what: RequestPart::MaxTokens, lasting: false }),
        ErrorKind::Server | ErrorKind::Http | ErrorKind::Provider | ErrorKind::Unsupported => {
            let what = table::look_up(error, &text, sent)?;
            // If a request without tools is refused because of earlier calls, the endpoint may still accept
            // tools.
            let lasting = what != RequestPart::Tools || sent.offers_tools;
            Some(Repair { what, lasting })
        }
    }
}
