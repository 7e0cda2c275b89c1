//! `cargo xtask bench`: the measurements behind all published figures.

mod against;

use crate::command::cargo;
use crate::step::{Failure, Steps};
use crate::usage;

pub(crate) const NAMES: [&str; 7] = ["wire", "rpc", AGENT, CLIENT, BUS, "govern", REMOTE];

/// Benches that measure the `narrows` program, which must be built for them.
const AGENT: &str = "agent";
const CLIENT: &str = "client";
const BUS: &str = "bus";
const REMOTE: &str = "remote";

/// Benches of servers. They have options of their own after the name.
const SERVERS: [&str; 2] = [BUS, REMOTE];

const VALUED: [&str; 4] = ["--rows", "--only", "--seconds", "--rounds"];

#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    /// The benches to run, each with the options after its name.
    names: Vec<(&'a str, Vec<&'a str>)>,
    /// Options for every bench, such as `--json`.
    options: Vec<&'a str>,
    /// Other agents to measure, each with its option.
    peers: Vec<&'a str>,
    against: Option<&'a str>,
    runs: Option<&'a str>,
}

/// Runs the named benches, one after the other.
pub(crate) fn run(words: &[&str]) -> Result<(), Failure> {
    let asked = read(words)?;
    if let Some(revision) = asked.against {
        return against::run(revision, &asked);
    }
    let Asked { names, options, peers, .. } = asked;
    let mut steps = Steps::new("bench");
    for (name, own) in names {
        let program = ["run", "--profile", "bench", "--package", "narrows-bench", "--", name];
        let mut words = [&program, &options[..], &own[..]].concat();
        if [AGENT, CLIENT, BUS, REMOTE].contains(&name) {
            // Built separately, so that it has the features of a release and no others.
            steps.run("build narrows", cargo(&["build", "--profile", "bench", "--package", "narrows"]))?;
        }
        if name == AGENT {
            words.extend(&peers);
        }
        steps.run(name, cargo(&words))?;
    }
    Ok(())
}

fn read<'a>(words: &[&'a str]) -> Result<Asked<'a>, Failure> {
    let mut asked =
        Asked { names: Vec::new(), options: Vec::new(), peers: Vec::new(), against: None, runs: None };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let server = asked.names.last_mut().filter(|(name, _)| SERVERS.contains(name));
        match (word, server) {
            // For a server, `--peer` also has a name and an address.
            ("--peer", Some((name, own))) => {
                let Some((peer, rest)) = words.as_slice().split_first_chunk::<3>() else {
                    let place = if *name == BUS { "file" } else { "URL" };
                    let needed = format!("`--peer` of `{name}` needs a name, a command and a {place}");
                    return Err(usage(&needed));
                };
                own.push(word);
                own.extend(peer);
                words = rest.iter();
            }
            (_, Some((_, own))) if VALUED.contains(&word) => {
                let value = words.next().ok_or_else(|| usage(&format!("`{word}` needs a value")))?;
                own.extend([word, value]);
            }
            (_, None) if VALUED.contains(&word) => {
                return Err(usage(&format!("`{word}` must follow `bus` or `remote`")));
            }
            ("--against" | "--runs", _) => {
                let value = words.next().ok_or_else(|| usage(&format!("`{word}` needs a value")))?;
                *(if word == "--runs" { &mut asked.runs } else { &mut asked.against }) = Some(value);
            }
            ("--peer", None) => {
                let command = words.next().ok_or_else(|| usage("`--peer` needs a command"))?;
                asked.peers.extend([word, command]);
            }
            _ if word.starts_with('-') => asked.options.push(word),
            _ if NAMES.contains(&word) => asked.names.push((word, Vec::new())),
            _ => return Err(usage(&format!("there is no measurement `{word}`"))),
        }
    }
    if asked.names.is_empty() {
        return Err(usage(&format!("name what to measure: {}", NAMES.join(", "))));
    }
    if asked.runs.is_some() && asked.against.is_none() {
        return Err(usage("`--runs` belongs to `--against`"));
    }
    if asked.against.is_some() && !(asked.peers.is_empty() && asked.options.is_empty()) {
        return Err(usage("`--against` takes neither `--peer` nor `--json`"));
    }
    if !asked.peers.is_empty() && !asked.names.iter().any(|(name, _)| *name == AGENT) {
        return Err(usage("`--peer` is for `agent`, or follows `bus` or `remote`"));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_go_to_all_and_peers_to_the_agent() {
        let asked = read(&["agent", "--peer", "node agent.js", "--json", "rpc"]).expect("a command line");
        let expected = Asked {
            names: vec![("agent", vec![]), ("rpc", vec![])],
            options: vec!["--json"],
            peers: vec!["--peer", "node agent.js"],
            against: None,
            runs: None,
        };
        assert_eq!(asked, expected);
    }

    #[test]
    fn options_after_a_server_are_for_that_server() {
        let bus = ["bus", "--seconds", "2", "--peer", "c", "cmd -x", "file"];
        let remote = ["remote", "--rows", "idle", "--peer", "d", "cmd {port}", "ws://127.0.0.1:{port}/acp"];
        let words = [&["agent", "--peer", "node"][..], &bus, &remote].concat();
        let asked = read(&words).expect("a command line");
        let expected = Asked {
            names: vec![("agent", vec![]), ("bus", bus[1..].to_vec()), ("remote", remote[1..].to_vec())],
            options: vec![],
            peers: vec!["--peer", "node"],
            against: None,
            runs: None,
        };
        assert_eq!(asked, expected);
    }

    #[test]
    fn the_option_against_may_be_anywhere() {
        let asked = read(&["bus", "--rounds", "3", "--against", "v1", "--runs", "7", "wire"])
            .expect("a command line");
        assert_eq!((asked.against, asked.runs), (Some("v1"), Some("7")));
        assert_eq!(asked.names, [("bus", vec!["--rounds", "3"]), ("wire", vec![])]);
        for words in
            [&["wire", "--runs", "2"][..], &["wire", "--against", "v1", "--json"], &["wire", "--against"]]
        {
            assert!(read(words).is_err(), "{words:?}");
        }
    }
}
