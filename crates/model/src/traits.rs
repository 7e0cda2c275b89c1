//! What is known of a model by its name.

use crate::Effort;

/// What is known of a model: from its name, from the endpoint, from its refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelTraits {
    /// The size of its context window in tokens.
    pub window: Option<u64>,
    /// Whether it takes pictures.
    pub images: Option<bool>,
    /// Whether it takes recordings.
    pub audio: Option<bool>,
    /// Whether it can call tools.
    pub tools: Option<bool>,
    /// How hard it can be told to think; empty where that is unknown.
    pub efforts: &'static [Effort],
}
