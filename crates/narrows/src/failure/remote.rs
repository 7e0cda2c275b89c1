//! Failures to reach a remote agent, and lost connections.

use std::path::Path;

use narrows_remote::client::{ConnectionLost, DialError, Target};

use super::credentials::tls_hint;
use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn token_missing(by: &str, path: &Path) -> Self {
        Self::new(ExitStatus::Usage, format!("{by}: there is no token in {path:?}")).with_hint(
            "a token is one word on one line; `narrows token new NAME --file FILE` makes one on the server",
        )
    }

    /// A certificate without a key, or a key without a certificate.
    pub(crate) fn incomplete_key_pair(what: &str, path: &Path, missing: &str) -> Self {
        Self::new(ExitStatus::Usage, format!("the {what} {path:?} is of no use without {missing}")).with_hint(
            "both are needed: --cert and --key, NARROWS_CERT_FILE and NARROWS_KEY_FILE, or `cert` and `key` in [acp]",
        )
    }

    /// A flag for remote agents was given for a local one.
    pub(crate) fn remote_only_flag(flag: &str, agent: &str) -> Self {
        Self::new(ExitStatus::Usage, format!("{flag} is about remote agents, and {agent:?} is started here"))
            .with_hint("a remote agent is a URL: --agent wss://HOST/acp")
    }

    /// A flag for local processes was given for a remote agent.
    pub(crate) fn local_only_flag(flag: &str, target: &Target) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("{flag} is about agents that are started here, and {target} is not"),
        )
        .with_hint("its environment is that of whoever started it")
    }

    /// The directory of a remote agent is not absolute.
    pub(crate) fn relative_remote_directory(directory: &Path) -> Self {
        Self::new(
            ExitStatus::Usage,
            format!("--cwd {directory:?} is no directory here, and no absolute path there"),
        )
        .with_hint("a remote agent works where it is: write the path as it is there, from / on")
    }

    pub(crate) fn invalid_connect_variable(said: &str, reason: &str) -> Self {
        let name = crate::environment::CONNECT;
        Self::new(ExitStatus::Usage, format!("{name}={:?}: {reason}", line(said)))
            .with_hint(format!("correct it, or unset {name}"))
    }

    /// `narrows agents --probe` does not support remote agents.
    pub(crate) fn remote_probe_unsupported(wanted: &str) -> Self {
        Self::new(ExitStatus::Usage, format!("--probe starts agents, and {:?} is a URL", line(wanted)))
            .with_hint("talk to it: narrows run --agent URL \"Hello\"")
    }

    pub(crate) fn remote_unreachable(target: &Target, has_token: bool, error: &DialError) -> Self {
        match error {
            DialError::Ca(error) => {
                return Self::new(ExitStatus::Usage, "--ca: the certificate authorities cannot be used")
                    .with_cause(error)
                    .with_hint(
                        "it takes certificates in PEM form, and only if the server has one of your own",
                    );
            }
            DialError::Own(error) => {
                return Self::new(ExitStatus::Usage, "the certificate that shows who we are cannot be used")
                    .with_cause(error)
                    .with_hint(tls_hint(error));
            }
            _ => {}
        }
        let code = match error {
            DialError::Certless | DialError::Exposed | DialError::Token | DialError::Tokenless => {
                ExitStatus::Usage
            }
            _ => ExitStatus::Start,
        };
        let mut failure = Self::new(code, format!("{target} cannot be reached"));
        failure.causes.push(line(&error.to_string()));
        with_dial_hints(failure, has_token, error)
    }

    pub(crate) fn remote_connection_lost(target: &Target, has_token: bool, lost: &ConnectionLost) -> Self {
        if let ConnectionLost::Dial(error) = lost {
            return Self::remote_unreachable(target, has_token, error);
        }
        let mut failure = Self::new(ExitStatus::Agent, format!("the connection to {target} is lost"));
        if matches!(lost, ConnectionLost::Shut(DialError::Unauthorized)) && has_token {
            failure.causes.push("the server no longer takes our token (401)".to_owned());
            return failure.with_hint(
                "it was revoked, or has run out: `narrows token new NAME --file FILE` on the server makes another, for --token-file",
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
                failure.with_hint(
                    "--grace says how long it is tried; sessions that the agent keeps can be loaded again",
                )
            }
            ConnectionLost::Forgotten | ConnectionLost::Gap => {
                failure.with_hint("sessions that the agent keeps can be loaded again")
            }
            ConnectionLost::Plain(_) => {
                failure.with_hint("`narrows bus` in front of the agent can take connections up again")
            }
            _ => failure,
        }
    }
}

/// Adds hints that match the connection error.
fn with_dial_hints(failure: Failure, has_token: bool, error: &DialError) -> Failure {
    match error {
        DialError::Refused(_) => failure.with_hint("is it running, and does it listen there?"),
        DialError::Name(..) => failure.with_hint("is it written right, and is there a network?"),
        DialError::Timeout(_) => failure.with_hint("is the port right, and does a firewall let it pass?"),
        DialError::OtherName(_) => failure.with_hint(
            "connect by a name that stands in it, or have one made for this name (`subjectAltName`)",
        ),
        DialError::Certificate(_) => failure.with_hint("if you trust who made it, say so: --ca FILE"),
        DialError::Certless => failure.with_hint("use wss:// or https://, or leave --cert and --key out"),
        DialError::CertificateWanted => {
            failure.with_hint("show one: --cert FILE --key FILE; whoever runs the server can tell who makes them")
        }
        DialError::CertificateRefused(_) => {
            failure.with_hint("is it for this server, made by the authority in `client_ca` of its bus.toml?")
        }
        DialError::Unauthorized if has_token => failure
            .with_hint("the token may be of another server, or revoked; `narrows token new NAME --file FILE` makes one there"),
        DialError::Nameless => failure.with_hint(
            "it takes your identity from the one common name (CN) in it; where it asks for a token as well: --token-file PATH",
        ),
        DialError::Unanswered(_) => failure.with_hint("is the port right, and does the agent there start?"),
        DialError::TokenWanted | DialError::Unauthorized => {
            failure.with_hint("show a token: --token-file PATH; `narrows token new NAME --file FILE` makes one on the server")
        }
        // Other refusals state their own reason.
        DialError::Forbidden { words } if words.as_ref().is_none_or(|words| words.contains("host")) => {
            failure.with_hint("the server takes only the names for itself that it knows: `hosts` in its bus.toml")
        }
        DialError::Forbidden { words: Some(words) } | DialError::TurnedAway(words)
            if words.contains("user of this bus") =>
        {
            failure.with_hint(
                "connect as the user that runs the bus, or show a token: `auth` in its bus.toml says who may connect",
            )
        }
        DialError::Io(error) if error.contains("Permission denied") => failure.with_hint(
            "a unix socket of a bus is for the user that runs it; other users need a listener with tokens",
        ),
        DialError::Exposed => failure.with_hint("use wss:// or https://, or a tunnel to this machine (ssh -L)"),
        DialError::Status { status: 404 | 405, .. } => {
            failure.with_hint("the path is a part of the URL; it is usually /acp")
        }
        DialError::Status { status: 301 | 302 | 307 | 308, .. } => {
            failure.with_hint("it is elsewhere; nobody is followed there, so write where it is")
        }
        DialError::NotTls => {
            failure.with_hint("use ws:// or http:// for this port, or name the one that speaks TLS")
        }
        DialError::Tls => failure.with_hint("use wss:// or https:// for this port"),
        DialError::Http => failure.with_hint("use ws:// or http:// for this port"),
        DialError::NotHttp => failure
            .with_hint("use tcp:// if lines are spoken there, wss:// or https:// if it is TLS; is the port right?"),
        DialError::Mute => {
            failure.with_hint("is the port right, and is it TLS (wss://, https://), HTTP (ws://, http://) or lines (tcp://)?")
        }
        DialError::LockedOut { .. } | DialError::Status { status: 429, .. } => match error.after() {
            Some(after) => failure.with_hint(format!("try again in {} s", after.as_secs())),
            None => failure.with_hint("try again later"),
        },
        DialError::Protocol(_) => failure.with_hint("is the port right, and is it TLS (wss://, https://) or not?"),
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
            "error: wss://bus.example/acp?… cannot be reached\n  because: the server wants to see a token, and none was given (401)\n\
             hint: show a token: --token-file PATH; `narrows token new NAME --file FILE` makes one on the server\n"
        );
        assert!(told(true, DialError::Unauthorized).contains("revoked"));
        assert!(told(false, DialError::Nameless).contains("common name"));
        let named = told(false, DialError::OtherName("it is not for bus.example".to_owned()));
        assert!(!named.contains("--ca") && named.contains("a name that stands in it"), "{named}");
        assert!(told(false, DialError::Certificate("unknown issuer".to_owned())).contains("--ca FILE"));
        let forbidden = |words: &str| told(true, DialError::Forbidden { words: Some(words.to_owned()) });
        assert_eq!(
            forbidden("this host is not on the list"),
            "error: wss://bus.example/acp?… cannot be reached\n  because: the server forbids it (403): this host is not on the list\n\
             hint: the server takes only the names for itself that it knows: `hosts` in its bus.toml\n"
        );
        assert!(!forbidden("by the order of the proxy").contains("hint"));
        assert!(
            forbidden("only the user of this bus may connect")
                .contains("connect as the user that runs the bus")
        );
        let away = |words: &str| told(false, DialError::TurnedAway(words.to_owned()));
        assert!(
            away("only the user of this bus may connect").contains("connect as the user that runs the bus")
        );
        assert!(!away("the bus is stopping").contains("hint"));
        assert_eq!(
            told(true, DialError::LockedOut { after: Some(Duration::from_secs(5)) }),
            "error: wss://bus.example/acp?… cannot be reached\n  because: too many wrong tokens have come from this address (429)\n\
             hint: try again in 5 s\n"
        );
        let lost = Failure::remote_connection_lost(&target, false, &ConnectionLost::Forgotten);
        assert_eq!(lost.code(), ExitStatus::Agent);
        assert_eq!(
            lost.message(),
            "the connection to wss://bus.example/acp?… is lost: the server no longer knows it"
        );
    }

    #[test]
    fn a_token_rejected_later_is_reported_as_such() {
        let target: Target = "ws://127.0.0.1:1/acp".parse().unwrap();
        let lost = ConnectionLost::Shut(DialError::Unauthorized);
        let told = Failure::remote_connection_lost(&target, true, &lost).render(Color::off());
        assert_eq!(
            told,
            "error: the connection to ws://127.0.0.1:1/acp is lost\n  because: the server no longer takes our token (401)\n\
             hint: it was revoked, or has run out: `narrows token new NAME --file FILE` on the server makes another, for --token-file\n"
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
