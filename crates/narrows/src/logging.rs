//! What narrows says about its own work: to stderr, warnings unless more is asked for.

use std::io::stderr;

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;
use crate::terminal::line;

/// Starts logging, by `filter` if there is one.
pub(crate) fn start(filter: Option<&str>) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter.unwrap_or("warn"))
        .map_err(|error| Failure::log_filter(&line(&error.to_string())))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(false).init();
    Ok(())
}
