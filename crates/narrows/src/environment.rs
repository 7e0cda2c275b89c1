//! Every environment variable that narrows reads, and nothing else reads any.
//!
//! A flag wins over a variable, a variable over the configuration file.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Which messages of its own narrows writes to stderr.
pub(crate) const LOG: &str = "NARROWS_LOG";

/// Switches colours off.
const NO_COLOR: &str = "NO_COLOR";

/// What the terminal can do.
const TERM: &str = "TERM";

/// The endpoint of the built-in agent.
pub(crate) const BASE_URL: &str = "OPENAI_BASE_URL";

/// Its key.
pub(crate) const API_KEY: &str = "OPENAI_API_KEY";

/// Its model.
pub(crate) const MODEL: &str = "OPENAI_MODEL";

/// What every conversation begins with.
pub(crate) const SYSTEM_PROMPT: &str = "OPENAI_SYSTEM_PROMPT";

/// How long an answer may be.
pub(crate) const MAX_TOKENS: &str = "OPENAI_MAX_TOKENS";

/// How freely the model chooses its words.
pub(crate) const TEMPERATURE: &str = "OPENAI_TEMPERATURE";

/// The usual key of Bedrock.
pub(crate) const BEDROCK_KEY: &str = "AWS_BEARER_TOKEN_BEDROCK";

/// The usual key of Azure.
pub(crate) const AZURE_KEY: &str = "AZURE_OPENAI_API_KEY";

/// Where the configuration file is.
pub(crate) const CONFIG: &str = "NARROWS_CONFIG";

/// The remote agent that a bare `narrows acp` is.
pub(crate) const CONNECT: &str = "NARROWS_CONNECT";

/// The file that has the token for a remote agent in it.
pub(crate) const TOKEN_FILE: &str = "NARROWS_TOKEN_FILE";

/// The file of the certificate that shows it who we are.
pub(crate) const CERT_FILE: &str = "NARROWS_CERT_FILE";

/// The file of the private key of that.
pub(crate) const KEY_FILE: &str = "NARROWS_KEY_FILE";

/// Which endpoint to use.
pub(crate) const ENDPOINT: &str = "NARROWS_ENDPOINT";

/// Where sessions are kept.
pub(crate) const DATA_DIR: &str = "NARROWS_DATA_DIR";

/// How a client is told that the model failed.
pub(crate) const ERRORS: &str = "NARROWS_ERRORS";

/// The proxy for https.
pub(crate) const HTTPS_PROXY: &str = "HTTPS_PROXY";

/// The proxy for http.
pub(crate) const HTTP_PROXY: &str = "HTTP_PROXY";

/// The proxy for both.
pub(crate) const ALL_PROXY: &str = "ALL_PROXY";

/// Where no proxy is used.
pub(crate) const NO_PROXY: &str = "NO_PROXY";

/// The user's configuration.
pub(crate) const CONFIG_HOME: &str = "XDG_CONFIG_HOME";

/// The user's data.
pub(crate) const DATA_HOME: &str = "XDG_DATA_HOME";

/// What the user's programs have while they run.
pub(crate) const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";

/// The user's directory.
pub(crate) const HOME: &str = "HOME";

/// The settings of git for the user, in place of those in the home directory.
const GIT_GLOBAL: &str = "GIT_CONFIG_GLOBAL";

/// The settings of git for the system.
const GIT_SYSTEM: &str = "GIT_CONFIG_SYSTEM";

/// All of them, with what they do, for the help and for `docs/agent.md`.
pub(crate) const ALL: &[(&str, &str)] = &[
    (LOG, "what to log to stderr, such as `debug`; `--log` wins"),
    (BASE_URL, "the endpoint, or `builtin:demo` [https://api.openai.com/v1]"),
    (API_KEY, "its key; none is sent if it is empty"),
    (MODEL, "the model [gpt-4o]"),
    (SYSTEM_PROMPT, "what every conversation with the model begins with"),
    (MAX_TOKENS, "how many tokens an answer may have"),
    (TEMPERATURE, "how freely the model chooses its words, usually from 0 to 2"),
    (BEDROCK_KEY, "the key for Bedrock, if no other is given"),
    (AZURE_KEY, "the key for Azure OpenAI, if no other is given"),
    (CONFIG, "the configuration file [narrows/narrows.toml in XDG_CONFIG_HOME]"),
    (ENDPOINT, "the endpoint of it to use"),
    (CONNECT, "the URL of the remote agent that a bare `narrows acp` is"),
    (TOKEN_FILE, "the file that has the token for a remote agent in it"),
    (CERT_FILE, "the file of the certificate that shows it who we are"),
    (KEY_FILE, "the file of the private key of that"),
    (DATA_DIR, "where sessions are kept [~/.local/share/narrows]"),
    (ERRORS, "how a client hears of a model that failed: `text` or `rpc`"),
    (HTTPS_PROXY, "the proxy to https endpoints; small letters will do"),
    (HTTP_PROXY, "the proxy to http endpoints, likewise"),
    (ALL_PROXY, "the proxy to both, likewise"),
    (NO_PROXY, "what is reached without one, likewise; this machine always is"),
    ("SSL_CERT_FILE", "the certificates to trust in place of the system's"),
    ("SSL_CERT_DIR", "a directory of them"),
    (CONFIG_HOME, "your configuration directory [~/.config]"),
    (DATA_HOME, "your data directory [~/.local/share]"),
    (RUNTIME_DIR, "where the admin sockets of buses and gates are [~/.local/state]"),
    ("TMPDIR", "where `agents --probe` makes its directory [/tmp]"),
    (HOME, "your directory, which is what `~` means"),
    (GIT_GLOBAL, "settings of git, to protect the hooks they name"),
    (GIT_SYSTEM, "settings of git, likewise"),
    (NO_COLOR, "no colours, if it is set to anything"),
    (TERM, "no colours, if it is `dumb`"),
];

/// What the built-in agent needs to see beside the ordinary variables, when narrows starts it for itself.
pub(crate) const AGENT: &[&str] = &["NARROWS_*", "OPENAI_*", BEDROCK_KEY, AZURE_KEY];

/// Files of settings that git reads in every repository, beside those in the home directory: those of the system where git is
/// usually built to look for them, and those that variables of git name.
pub(crate) fn git_settings() -> Vec<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let system = ["/etc/gitconfig", "/usr/local/etc/gitconfig", "/opt/homebrew/etc/gitconfig"];
    let variables = [GIT_SYSTEM, GIT_GLOBAL].into_iter().filter_map(named);
    let of_user = named(CONFIG_HOME).map(|directory| directory.join("git/config"));
    let files = system.into_iter().map(PathBuf::from).chain(variables).chain(of_user);
    files.filter_map(|file| std::path::absolute(file).ok()).collect()
}

/// Whether the user wants colours, as far as variables say.
pub(crate) fn wants_colour() -> bool {
    let refused = std::env::var_os(NO_COLOR).is_some_and(|value| !value.is_empty());
    let unable = std::env::var_os(TERM).is_some_and(|value| value == "dumb");
    !refused && !unable
}

/// Everything, to be filtered for an agent or read as settings.
pub(crate) fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

/// One variable that the user names, to be handed to an agent.
pub(crate) fn named(name: &OsStr) -> Option<OsString> {
    std::env::var_os(name)
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn the_documentation_has_every_variable_and_no_other() {
        let page = include_str!("../../../docs/agent.md");
        let section = page.split("\n## Variables\n").nth(1).expect("a section on variables");
        let section = section.split("\n## ").next().expect("it ends");
        let documented: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|line| line.split('`').next())
            .collect();
        let read: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        assert_eq!(documented, read);
    }
}
