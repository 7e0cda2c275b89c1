//! Failures to reach a remote agent, and lost connections.

use std::path::Path;

use narrows_remote::client::{ConnectionLost, DialError, Target};

use super::credentials::tls_hint;
use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn token_missing(by: &str, path: &Path) -> Self {
        Self::new(ExitStatus::Usage, format!("{by}: no token in {path:?}")).with_hint(
            "use a file with the token on a single line; `narrows token new NAME --file FILE` on the server creates \
             one",
        )
    }

    /// Reports a certificate without a key, or a key without a certificate.
    pub(crate) fn incomplete_key_pair(what: &str, path: &Path, missing: &str) -> Self {
        Self::new(ExitStatus::Usage, format!("the {what} {path:?} needs {missing}")).with_hint(
            "set both: --cert and --key, NARROWS_CERT_FILE and NARROWS_KEY_FILE, or `cert` and `key` in [acp]",
        )
    }

    pub(crate) fn remote_only_flag(flag: &str, agent: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("{flag} applies to remote agents, but {agent:?} is started locally"),
        )
        .with_hint("use a URL for a remote agent: --agent wss://HOST/acp")
    }

    pub(crate) fn local_only_flag(flag: &str, target: &Target) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("{flag} applies to agents that are started locally, but {target} is remote"),
        )
        .with_hint("set the environment of the agent on its host")
    }

    pub(crate) fn relative_remote_directory(directory: &Path) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("--cwd {directory:?} is neither a local directory nor an absolute path"),
        )
        .with_hint("for a remote agent, use an absolute path on its host")
    }

    pub(crate) fn invalid_connect_variable(said: &str, reason: &str) -> Self {
        let name = crate::environment::CONNECT;
        Self::new(ExitStatus::Usage, format!("{name}={:?}: {reason}", line(said)))
            .with_hint(format!("fix or unset {name}"))
    }

    pub(crate) fn remote_probe_unsupported(wanted: &str) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("--probe does not support remote agents: {:?} is a URL", line(wanted)),
        )
        .with_hint("send it a prompt instead: narrows run --agent URL \"Hello\"")
    }

    pub(crate) fn remote_unreachable(target: &Target, has_token: bool, error: &DialError) -> Self {
        match error {
            DialError::Ca(error) => {
                return Self::new(ExitStatus::Usage, "--ca: cannot use the CA certificates")
                    .with_cause(error)
                    .with_hint("use certificates in PEM format; --ca is only needed for a private CA");
            }
            DialError::Own(error) => {
                return Self::new(ExitStatus::Usage, "cannot use the client certificate")
                    .with_cause(error)
                    .with_hint(tls_hint(error));
            }
            _ => {}
        }
        let code = match error {
            DialError::CertificateWithoutTls
            | DialError::Exposed
            | DialError::Token
            | DialError::TokenNotSupported => ExitStatus::Usage,
            _ => ExitStatus::Start,
        };
        let mut failure = Self::new(code, format!("cannot connect to {target}"));
        failure.causes.push(line(&error.to_string()));
        with_dial_hints(failure, has_token, error)
    }

    pub(crate) fn remote_connection_lost(target: &Target, has_token: bool, lost: &ConnectionLost) -> Self {
        if let ConnectionLost::Dial(error) = lost {
            return Self::remote_unreachable(target, has_token, error);
        }
        let mut failure = Self::new(ExitStatus::Agent, format!("connection to {target} lost"));
        if matches!(lost, ConnectionLost::Shut(DialError::Unauthorized)) && has_token {
            failure.causes.push("the server no longer accepts the token (401)".to_owned());
            return failure.with_hint(
                "create a new token on the server with `narrows token new NAME --file FILE`, and pass it with \
                 --token-file: the old one was revoked or has expired",
            );
        }
        failure.causes.push(line(&lost.to_string()));
        match lost {
            ConnectionLost::Shut(error) => {
                failure.causes.push(line(&error.to_string()));
                with_dial_hints(failure, has_token, error)
            }
            ConnectionLost::Grace { last, .. } => {
                failure.causes.push(line(&last.to_string()));
                failure.with_hint("allow more time with --grace; stored sessions can be resumed")
            }
            ConnectionLost::Forgotten | ConnectionLost::Gap => {
                failure.with_hint("stored sessions can be resumed")
            }
            ConnectionLost::Plain(_) => {
                failure.with_hint("run the agent behind `narrows bus` to make connections resumable")
            }
            _ => failure,
        }
    }
}

/// Adds hints that match the connection error.
fn with_dial_hints(failure: Failure, has_token: bool, error: &DialError) -> Failure {
    match error {
        DialError::Refused(_) => failure.with_hint("check that the server is running and listening on this address"),
        DialError::Name(..) => failure.with_hint("check the host name and the network"),
        DialError::Timeout(_) => failure.with_hint("check the port, and that no firewall blocks it"),
        DialError::OtherName(_) => failure.with_hint(
            "connect by a name in the certificate, or add this name to the certificate (`subjectAltName`)",
        ),
        DialError::Certificate(_) => failure.with_hint("if you trust its issuer, add --ca FILE"),
        DialError::CertificateWithoutTls => failure.with_hint("use wss:// or https://, or remove --cert and --key"),
        DialError::CertificateWanted => {
            failure.with_hint("add a client certificate, issued by the administrator of the server: --cert FILE \
                               --key FILE")
        }
        DialError::CertificateRefused(_) => {
            failure.with_hint("check that the certificate was issued for this server, by a CA in `client_ca` of its bus.toml")
        }
        DialError::Unauthorized if has_token => failure
            .with_hint("check that the token is for this server and not revoked; `narrows token new NAME --file \
                        FILE` on the server creates one"),
        DialError::CertificateNotAccepted => failure.with_hint(
            "use a certificate with exactly one common name (CN), which becomes your identity; if the server also \
             requires a token, add --token-file PATH",
        ),
        DialError::Unanswered(_) => failure.with_hint("check the port, and that the agent can be started there"),
        DialError::TokenWanted | DialError::Unauthorized => {
            failure.with_hint("add a token: --token-file PATH; `narrows token new NAME --file FILE` on the server \
                               creates one")
        }
        // Other refusals of the server state their reason.
        DialError::Forbidden { words } if words.as_ref().is_none_or(|words| words.contains("host")) => {
            failure.with_hint("use a host name that the server accepts, as listed in `hosts` of its bus.toml")
        }
        DialError::Forbidden { words: Some(words) } | DialError::TurnedAway(words)
            if words.contains("user of this bus") =>
        {
            failure.with_hint(
                "connect as the user who runs the bus, or with a token if `auth` in its bus.toml accepts one",
            )
        }
        DialError::Io(error) if error.contains("Permission denied") => failure.with_hint(
            "connect as the user who runs the bus, or use a listener with tokens: its unix socket is for that user \
             only",
        ),
        DialError::Exposed => failure.with_hint("use wss:// or https://, or a tunnel to this machine (ssh -L)"),
        DialError::Status { status: 404 | 405, .. } => {
            failure.with_hint("check the path of the URL; the default is /acp")
        }
        DialError::Status { status: 301 | 302 | 307 | 308, .. } => {
            failure.with_hint("use the URL of the new location: redirects are not followed")
        }
        DialError::NotTls => {
            failure.with_hint("use ws:// or http:// for this port, or the port with TLS")
        }
        DialError::Tls => failure.with_hint("use wss:// or https:// for this port"),
        DialError::Http => failure.with_hint("use ws:// or http:// for this port"),
        DialError::NotHttp => failure
            .with_hint("use tcp:// for JSON lines, wss:// or https:// for TLS, and check the port"),
        DialError::ClosedSilently => {
            failure.with_hint("check the port, and whether it uses TLS (wss://, https://), HTTP (ws://, http://) or \
                               JSON lines (tcp://)")
        }
        DialError::LockedOut { .. } | DialError::Status { status: 429, .. } => match error.retry_after() {
            Some(after) => failure.with_hint(format!("try again in {} s", after.as_secs())),
            None => failure.with_hint("try again later"),
        },
        DialError::Protocol(_) => failure.with_hint("check the port, and whether it uses TLS (wss://, https://)"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::terminal::Color;

    #[test]
    fn hints_match_the_connection_error() {
        let target: Target = "wss://bus.example/acp?key=1".parse().unwrap();
        let told =
            |has_token, error| Failure::remote_unreachable(&target, has_token, &error).render(Color::off());
        assert_eq!(
            told(false, DialError::TokenWanted),
            "error: cannot connect to wss://bus.example/acp?…\n  because: the server requires a token (401)\n\
             hint: add a token: --token-file PATH; `narrows token new NAME --file FILE` on the server creates one\n"
        );
        assert!(told(true, DialError::Unauthorized).contains("revoked"));
        assert!(told(false, DialError::CertificateNotAccepted).contains("common name"));
        let named = told(false, DialError::OtherName("it is not for bus.example".to_owned()));
        assert!(!named.contains("--ca") && named.contains("a name in the certificate"), "{named}");
        assert!(told(false, DialError::Certificate("unknown issuer".to_owned())).contains("--ca FILE"));
        let forbidden = |words: &str| told(true, DialError::Forbidden { words: Some(words.to_owned()) });
        assert_eq!(
            forbidden("host not allowed"),
            "error: cannot connect to wss://bus.example/acp?…\n  because: the server refused access (403): host not allowed\n\
             hint: use a host name that the server accepts, as listed in `hosts` of its bus.toml\n"
        );
        assert!(!forbidden("by the order of the proxy").contains("hint"));
        assert!(
            forbidden("only the user of this bus may connect")
                .contains("connect as the user who runs the bus")
        );
        let away = |words: &str| told(false, DialError::TurnedAway(words.to_owned()));
        assert!(
            away("only the user of this bus may connect").contains("connect as the user who runs the bus")
        );
        assert!(!away("the bus is stopping").contains("hint"));
        assert_eq!(
            told(true, DialError::LockedOut { after: Some(Duration::from_secs(5)) }),
            "error: cannot connect to wss://bus.example/acp?…\n  because: too many wrong tokens from this address (429)\n\
             hint: try again in 5 s\n"
        );
        let lost = Failure::remote_connection_lost(&target, false, &ConnectionLost::Forgotten);
        assert_eq!(lost.code(), ExitStatus::Agent);
        assert_eq!(
            lost.message(),
            "connection to wss://bus.example/acp?… lost: the server no longer knows the connection"
        );
    }

    #[test]
    fn a_token_rejected_later_is_reported_as_such() {
        let target: Target = "ws://127.0.0.1:1/acp".parse().unwrap();
        let lost = ConnectionLost::Shut(DialError::Unauthorized);
        let told = Failure::remote_connection_lost(&target, true, &lost).render(Color::off());
        assert_eq!(
            told,
            "error: connection to ws://127.0.0.1:1/acp lost\n  because: the server no longer accepts the token (401)\n\
             hint: create a new token on the server with `narrows token new NAME --file FILE`, and pass it with --token-file: the old one was revoked or has expired\n"
        );
    }

    #[test]
    fn a_connection_loss_replaces_only_the_failures_it_causes() {
        let lost = || Some(Failure::new(ExitStatus::Agent, "the connection is lost"));
        let gone =
            Failure { is_agent_lost: true, ..Failure::new(ExitStatus::Agent, "the agent closed its output") };
        assert_eq!(gone.or_connection_failure(lost()).message(), "the connection is lost");
        let refused = Failure::new(ExitStatus::Refusal, "the agent refused to answer");
        assert_eq!(refused.or_connection_failure(lost()).message(), "the agent refused to answer");
        let gone = Failure { is_agent_lost: true, ..Failure::new(ExitStatus::Agent, "the agent ended") };
        assert_eq!(gone.or_connection_failure(None).message(), "the agent ended");
    }
}
