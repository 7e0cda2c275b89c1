//! What a server says while it works.

use std::fmt;

/// How far a request has come. Its words, if there are any, are one line of bounded length.
#[derive(Debug, Clone, PartialEq)]
pub struct News {
    /// How far.
    pub progress: f64,
    /// Of how much, if that is known.
    pub total: Option<f64>,
    /// In words.
    pub message: Option<String>,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.message, self.total) {
            (Some(message), _) => f.write_str(message),
            (None, Some(total)) => write!(f, "{} of {total}", self.progress),
            (None, None) => self.progress.fmt(f),
        }
    }
}
