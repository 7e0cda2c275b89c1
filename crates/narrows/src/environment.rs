//! Every environment variable that narrows reads, and nothing else reads any.
//!
//! A flag wins over a variable.

use std::ffi::{OsStr, OsString};

/// Which messages of its own narrows writes to stderr.
pub(crate) const LOG: &str = "NARROWS_LOG";

/// Switches colours off.
const NO_COLOR: &str = "NO_COLOR";

/// What the terminal can do.
const TERM: &str = "TERM";

/// All of them, with what they do, for the help.
pub(crate) const ALL: &[(&str, &str)] = &[
    (LOG, "what to log to stderr, such as `debug` or `narrows_rpc=trace`; `--log` wins"),
    (NO_COLOR, "no colours, if it is set to anything"),
    (TERM, "no colours, if it is `dumb`"),
];

/// Whether the user wants colours, as far as variables say.
pub(crate) fn wants_colour() -> bool {
    let refused = std::env::var_os(NO_COLOR).is_some_and(|value| !value.is_empty());
    let unable = std::env::var_os(TERM).is_some_and(|value| value == "dumb");
    !refused && !unable
}

/// Everything, to be filtered for an agent.
pub(crate) fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

/// One variable that the user names, to be handed to an agent.
pub(crate) fn named(name: &OsStr) -> Option<OsString> {
    std::env::var_os(name)
}
