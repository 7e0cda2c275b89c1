//! Descriptors of MCP servers.

use std::fmt;

/// An MCP server, and how to reach it.
#[derive(Clone, PartialEq, Eq)]
pub enum Server {
    /// A program that speaks MCP on stdin and stdout.
    Stdio {
        name: String,
        /// The program: a path, or a name looked up in the server's own `PATH`.
        command: String,
        /// Arguments, passed without a shell.
        args: Vec<String>,
        /// Environment variables, in addition to those of [`Options::env`](crate::Options::env).
        env: Vec<(String, String)>,
    },
    Http {
        name: String,
        url: String,
        headers: Vec<(String, String)>,
    },
    /// A server that the ACP client provides, reached through the [`Bridge`](crate::Bridge).
    Acp {
        name: String,
        /// Id of the server at the client.
        id: String,
        /// `true` if the client asks its user about each call itself, so that the caller need not ask before.
        authorizes: bool,
    },
}

impl Server {
    /// Returns the name in the session.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Stdio { name, .. } | Self::Http { name, .. } | Self::Acp { name, .. } => name,
        }
    }
}

/// Omits the values of variables and headers, and the query of a URL, because they may be secrets.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn names(pairs: &[(String, String)]) -> Vec<&str> {
            pairs.iter().map(|(name, _)| name.as_str()).collect()
        }
        match self {
            Self::Stdio { name, command, args, env } => f
                .debug_struct("Stdio")
                .field("name", name)
                .field("command", command)
                .field("args", &args.len())
                .field("env", &names(env))
                .finish(),
            Self::Http { name, url, headers } => f
                .debug_struct("Http")
                .field("name", name)
                .field("url", &url.split(['?', '#']).next().unwrap_or_default())
                .field("headers", &names(headers))
                .finish(),
            Self::Acp { name, id, .. } => f.debug_struct("Acp").field("name", name).field("id", id).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_values() {
        let pair = || vec![("KEY".to_owned(), "hunter2".to_owned())];
        let stdio = Server::Stdio {
            name: "a".into(),
            command: "od".into(),
            args: vec!["--token=hunter2".into()],
            env: pair(),
        };
        let http =
            Server::Http { name: "b".into(), url: "https://host/mcp?token=hunter2".into(), headers: pair() };
        let shown = format!("{stdio:?} {http:?}");
        assert!(!shown.contains("hunter2") && shown.contains("https://host/mcp"), "{shown}");
    }
}
