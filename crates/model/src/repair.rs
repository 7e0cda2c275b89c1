//! What an endpoint refused, and what to ask without.

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
    /// Fields that another endpoint wanted back.
    Extra,
    /// Leaving out what the model thought: it is sent back.
    Forgetting,
}
