//! All environment variables that narrows reads. No other module reads any.
//!
//! A flag wins over a variable, a variable over the configuration file.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

pub(crate) const LOG: &str = "NARROWS_LOG";

const NO_COLOR: &str = "NO_COLOR";

const TERM: &str = "TERM";

pub(crate) const BASE_URL: &str = "OPENAI_BASE_URL";

pub(crate) const API_KEY: &str = "OPENAI_API_KEY";

pub(crate) const MODEL: &str = "OPENAI_MODEL";

pub(crate) const SYSTEM_PROMPT: &str = "OPENAI_SYSTEM_PROMPT";

pub(crate) const MAX_TOKENS: &str = "OPENAI_MAX_TOKENS";

pub(crate) const TEMPERATURE: &str = "OPENAI_TEMPERATURE";

pub(crate) const BEDROCK_KEY: &str = "AWS_BEARER_TOKEN_BEDROCK";

pub(crate) const AZURE_KEY: &str = "AZURE_OPENAI_API_KEY";

pub(crate) const CONFIG: &str = "NARROWS_CONFIG";

/// The URL that turns a bare `narrows acp` into a remote agent.
pub(crate) const CONNECT: &str = "NARROWS_CONNECT";

pub(crate) const TOKEN_FILE: &str = "NARROWS_TOKEN_FILE";

pub(crate) const CERT_FILE: &str = "NARROWS_CERT_FILE";

pub(crate) const KEY_FILE: &str = "NARROWS_KEY_FILE";

pub(crate) const ENDPOINT: &str = "NARROWS_ENDPOINT";

pub(crate) const DATA_DIR: &str = "NARROWS_DATA_DIR";

/// The format in which clients receive model failures.
pub(crate) const ERRORS: &str = "NARROWS_ERRORS";

pub(crate) const HTTPS_PROXY: &str = "HTTPS_PROXY";

pub(crate) const HTTP_PROXY: &str = "HTTP_PROXY";

pub(crate) const ALL_PROXY: &str = "ALL_PROXY";

pub(crate) const NO_PROXY: &str = "NO_PROXY";

pub(crate) const CONFIG_HOME: &str = "XDG_CONFIG_HOME";

pub(crate) const DATA_HOME: &str = "XDG_DATA_HOME";

pub(crate) const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";

pub(crate) const HOME: &str = "HOME";

/// The variable that replaces the git settings in the home directory.
const GIT_GLOBAL: &str = "GIT_CONFIG_GLOBAL";

/// The variable that replaces the git settings of the system.
const GIT_SYSTEM: &str = "GIT_CONFIG_SYSTEM";

/// All variables with descriptions, for the help and `docs/reference/environment.md`.
pub(crate) const ALL: &[(&str, &str)] = &[
    (LOG, "log filter for stderr, such as `debug`; `--log` wins"),
    (BASE_URL, "base URL of the endpoint, or `builtin:demo` [https://api.openai.com/v1]"),
    (API_KEY, "API key of the endpoint; none is sent if it is empty"),
    (MODEL, "model id [gpt-4o]"),
    (SYSTEM_PROMPT, "system prompt"),
    (MAX_TOKENS, "maximum number of tokens of an answer"),
    (TEMPERATURE, "sampling temperature, usually 0 to 2"),
    (BEDROCK_KEY, "API key for Bedrock, if no other is set"),
    (AZURE_KEY, "API key for Azure OpenAI, if no other is set"),
    (CONFIG, "configuration file [narrows/narrows.toml in XDG_CONFIG_HOME]"),
    (ENDPOINT, "endpoint of the configuration file"),
    (CONNECT, "URL of the remote agent that `narrows acp` without options connects to"),
    (TOKEN_FILE, "file with the token for a remote agent"),
    (CERT_FILE, "file with the client certificate for a remote agent"),
    (KEY_FILE, "file with the private key of that certificate"),
    (DATA_DIR, "directory for sessions [~/.local/share/narrows]"),
    (ERRORS, "how model errors reach the client: `text` or `rpc`"),
    (HTTPS_PROXY, "proxy for https endpoints (lower case also works)"),
    (HTTP_PROXY, "proxy for http endpoints (likewise)"),
    (ALL_PROXY, "proxy for both (likewise)"),
    (NO_PROXY, "hosts to reach without a proxy (likewise), besides this machine"),
    ("SSL_CERT_FILE", "file with CA certificates to trust instead of those of the system"),
    ("SSL_CERT_DIR", "directory with such certificates"),
    (CONFIG_HOME, "configuration directory [~/.config]"),
    (DATA_HOME, "data directory [~/.local/share]"),
    (RUNTIME_DIR, "directory for the admin sockets of buses and gates [~/.local/state]"),
    ("TMPDIR", "parent of the directory of `agents --probe` [/tmp]"),
    (HOME, "home directory, `~` in paths"),
    (GIT_GLOBAL, "git configuration of the user; the hooks that it names are protected"),
    (GIT_SYSTEM, "git configuration of the system, likewise"),
    (NO_COLOR, "no colors if set"),
    (TERM, "no colors if `dumb`"),
];

/// Variables that the built-in agent needs besides the ordinary ones.
pub(crate) const AGENT: &[&str] = &["NARROWS_*", "OPENAI_*", BEDROCK_KEY, AZURE_KEY];

/// Returns the configuration files outside of the home directory that git reads in every repository: those of
/// the system, and those that environment variables name.
pub(crate) fn git_settings() -> Vec<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let system = ["/etc/gitconfig", "/usr/local/etc/gitconfig", "/opt/homebrew/etc/gitconfig"];
    let variables = [GIT_SYSTEM, GIT_GLOBAL].into_iter().filter_map(named);
    let of_user = named(CONFIG_HOME).map(|directory| directory.join("git/config"));
    let files = system.into_iter().map(PathBuf::from).chain(variables).chain(of_user);
    files.filter_map(|file| std::path::absolute(file).ok()).collect()
}

pub(crate) fn home() -> Option<PathBuf> {
    std::env::var_os(HOME).map(PathBuf::from).filter(|home| home.is_absolute())
}

/// Returns `true` if neither `NO_COLOR` nor `TERM` disables colors.
pub(crate) fn wants_color() -> bool {
    let refused = std::env::var_os(NO_COLOR).is_some_and(|value| !value.is_empty());
    let unable = std::env::var_os(TERM).is_some_and(|value| value == "dumb");
    !refused && !unable
}

pub(crate) fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

/// Returns a variable that the user wants to pass to an agent.
pub(crate) fn lookup(name: &OsStr) -> Option<OsString> {
    std::env::var_os(name)
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn the_documentation_lists_every_variable() {
        let page = include_str!("../../../docs/reference/environment.md");
        let section = page.split("\n## Variables\n").nth(1).expect("a section on variables");
        let section = section.split("\n## ").next().expect("a part before the end mark");
        let documented: Vec<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|line| line.split('`').next())
            .collect();
        let read: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        assert_eq!(documented, read);
    }
}
