//! The worker's environment: allowed variables of the parent and variables that are set explicitly.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Names (`PATH`) and prefixes (`LC_*`) of variables that are passed to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowList {
    patterns: Vec<String>,
}

/// Variables that ordinary programs need for paths, language and network. None contains credentials, which a
/// worker must get explicitly.
const DEFAULT_PATTERNS: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "TMPDIR",
    "TZ",
    "XDG_*",
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

impl Default for AllowList {
    /// Returns the list of `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`, `LANG`, `LANGUAGE`, `LC_*`, `TERM`,
    /// `COLORTERM`, `NO_COLOR`, `TMPDIR`, `TZ`, `XDG_*`, the proxy variables in both cases,
    /// `SSL_CERT_FILE`, `SSL_CERT_DIR`, `NODE_EXTRA_CA_CERTS`, `REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE`.
    fn default() -> Self {
        Self::new(DEFAULT_PATTERNS.iter().copied())
    }
}

impl AllowList {
    /// Creates a list of patterns: a name, or a prefix followed by `*`.
    pub fn new<P: Into<String>>(patterns: impl IntoIterator<Item = P>) -> Self {
        Self { patterns: patterns.into_iter().map(Into::into).collect() }
    }

    /// Adds patterns to the list.
    #[must_use]
    pub fn and<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.patterns.extend(patterns.into_iter().map(Into::into));
        self
    }

    /// Returns `true` if a variable of this name is passed on.
    pub fn allows(&self, name: &OsStr) -> bool {
        let name = name.as_bytes();
        self.patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix.as_bytes()),
            None => name == pattern.as_bytes(),
        })
    }
}

/// A worker's environment. `Debug` shows the names only, because values can be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Creates an environment without variables.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Creates an environment of the variables of `parent` that `allow` accepts. `parent` is usually
    /// `std::env::vars_os()`.
    pub fn filtered(parent: impl IntoIterator<Item = (OsString, OsString)>, allow: &AllowList) -> Self {
        Self { variables: parent.into_iter().filter(|(name, _)| allow.allows(name)).collect() }
    }

    /// Sets a variable, regardless of any allow-list.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.variables.insert(name.into(), value.into());
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.variables.get(name.as_ref()).map(OsString::as_os_str)
    }

    /// Iterates over all variables, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

impl<N: Into<OsString>, V: Into<OsString>> Extend<(N, V)> for Environment {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, variables: I) {
        self.variables.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(names: &[&str]) -> Vec<(OsString, OsString)> {
        names.iter().map(|name| (OsString::from(name), OsString::from("x"))).collect()
    }

    fn passed(allow: &AllowList, names: &[&str]) -> Vec<String> {
        let filtered = Environment::filtered(variables(names), allow);
        filtered.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn default_list_keeps_the_ordinary_and_drops_secrets() {
        let names =
            ["PATH", "LC_ALL", "XDG_DATA_HOME", "https_proxy", "OPENAI_API_KEY", "LD_PRELOAD", "PATHX", "LC"];
        assert_eq!(passed(&AllowList::default(), &names), ["LC_ALL", "PATH", "XDG_DATA_HOME", "https_proxy"]);
    }

    #[test]
    fn patterns_are_names_or_prefixes() {
        let allow = AllowList::new(["A", "B_*"]).and(["C"]);
        assert_eq!(passed(&allow, &["A", "AA", "B_", "B_x", "B", "C"]), ["A", "B_", "B_x", "C"]);
    }

    #[test]
    fn set_wins_and_debug_hides_values() {
        let mut env = Environment::filtered(variables(&["HOME"]), &AllowList::default());
        env.set("HOME", "/elsewhere");
        env.extend([("API_KEY", "hunter2")]);
        assert_eq!(env.get("HOME"), Some(OsStr::new("/elsewhere")));
        assert_eq!(format!("{env:?}"), r#"{"API_KEY", "HOME"}"#);
    }
}
