//! What to say when a setting cannot be used.

use narrows_agent::EndpointError;

use super::{Code, Failure};
use crate::config::ConfigError;
use crate::terminal::line;

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let failure = Self::new(Code::Usage, line(&error.to_string()));
        match error.hint {
            Some(hint) => failure.hint(line(&hint)),
            None => failure,
        }
    }
}

impl Failure {
    /// There are flags about a model, but no endpoint to ask for it.
    pub(crate) fn no_endpoint() -> Self {
        Self::new(Code::Usage, "there are flags about a model, but no endpoint is configured that has it")
            .hint("say where it is: --base-url URL, or OPENAI_BASE_URL, or an endpoint in narrows.toml")
    }

    /// The agent refuses an endpoint.
    pub(crate) fn endpoint_setting(error: &EndpointError) -> Self {
        Self::new(Code::Usage, "the settings of an endpoint cannot be used").because(error)
    }
}
