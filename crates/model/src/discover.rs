//! What an endpoint tells about its models.

/// One model of an endpoint's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// What it is asked by.
    pub id: String,
    /// What people call it, if that differs.
    pub name: Option<String>,
    /// The size of its context window in tokens.
    pub window: Option<u64>,
    /// Whether it takes pictures.
    pub images: Option<bool>,
    /// Whether it takes recordings.
    pub audio: Option<bool>,
    /// Whether it can call tools.
    pub tools: Option<bool>,
}
