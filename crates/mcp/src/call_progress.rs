//! Progress of a call.

use std::fmt;

/// Progress of a call, as reported by the server. The message is one line of bounded length.
#[derive(Debug, Clone, PartialEq)]
pub struct CallProgress {
    pub progress: f64,
    /// Total number of steps, if known.
    pub total: Option<f64>,
    pub message: Option<String>,
}

impl fmt::Display for CallProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.message, self.total) {
            (Some(message), _) => f.write_str(message),
            (None, Some(total)) => write!(f, "{} of {total}", self.progress),
            (None, None) => self.progress.fmt(f),
        }
    }
}
