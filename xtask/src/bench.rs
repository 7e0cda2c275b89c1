//! `cargo xtask bench`: the measurements behind every figure we give.

use crate::command::cargo;
use crate::step::{Failure, Steps};
use crate::usage;

/// What can be measured.
pub(crate) const NAMES: [&str; 6] = ["wire", "rpc", AGENT, CLIENT, BUS, "govern"];

/// Those that measure a program, which has to be built.
const AGENT: &str = "agent";
const CLIENT: &str = "client";
const BUS: &str = "bus";

/// Options of `bus` that have a value.
const BUS_OPTIONS: [&str; 4] = ["--rows", "--only", "--seconds", "--rounds"];

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    names: Vec<&'a str>,
    /// Such as `--json`, for each.
    options: Vec<&'a str>,
    /// Other agents to measure beside ours, with their option.
    peers: Vec<&'a str>,
    /// What is for `bus` alone: other routers, and what to measure how long.
    bus: Vec<&'a str>,
}

/// Measures what is named, one after the other.
pub(crate) fn run(words: &[&str]) -> Result<(), Failure> {
    let Asked { names, options, peers, bus } = read(words)?;
    let mut steps = Steps::new("bench");
    for name in names {
        let program = ["run", "--profile", "bench", "--package", "narrows-bench", "--", name];
        let mut words = [&program, &options[..]].concat();
        if [AGENT, CLIENT, BUS].contains(&name) {
            // By itself, so that it has the features it is shipped with and no more.
            steps.run("build narrows", cargo(&["build", "--profile", "bench", "--package", "narrows"]))?;
        }
        match name {
            AGENT => words.extend(&peers),
            BUS => words.extend(&bus),
            _ => {}
        }
        steps.run(name, cargo(&words))?;
    }
    Ok(())
}

fn read<'a>(words: &[&'a str]) -> Result<Asked<'a>, Failure> {
    let mut asked = Asked { names: Vec::new(), options: Vec::new(), peers: Vec::new(), bus: Vec::new() };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        match word {
            // A router has a name and a configuration too.
            "--peer" if asked.names.last() == Some(&BUS) => {
                let Some((peer, rest)) = words.as_slice().split_first_chunk::<3>() else {
                    return Err(usage("`--peer` of `bus` needs a name, a command and a file"));
                };
                asked.bus.push(word);
                asked.bus.extend(peer);
                words = rest.iter();
            }
            _ if BUS_OPTIONS.contains(&word) => {
                let value = words.next().ok_or_else(|| usage(&format!("`{word}` needs a value")))?;
                asked.bus.extend([word, value]);
            }
            "--peer" => {
                let command = words.next().ok_or_else(|| usage("`--peer` needs a command"))?;
                asked.peers.extend([word, command]);
            }
            _ if word.starts_with('-') => asked.options.push(word),
            _ if NAMES.contains(&word) => asked.names.push(word),
            _ => return Err(usage(&format!("there is no measurement `{word}`"))),
        }
    }
    if asked.names.is_empty() {
        return Err(usage(&format!("name what to measure: {}", NAMES.join(", "))));
    }
    if !asked.peers.is_empty() && !asked.names.contains(&AGENT) {
        return Err(usage("`--peer` is for `agent`, and behind `bus` for `bus`"));
    }
    if let (Some(option), false) = (asked.bus.first(), asked.names.contains(&BUS)) {
        return Err(usage(&format!("`{option}` is for `bus`")));
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
            names: vec!["agent", "rpc"],
            options: vec!["--json"],
            peers: vec!["--peer", "node agent.js"],
            bus: vec![],
        };
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_peer_behind_the_bus_is_a_router() {
        let words = ["agent", "--peer", "node", "bus", "--seconds", "2", "--peer", "c", "cmd -x", "file"];
        let asked = read(&words).expect("a command line");
        let expected = Asked {
            names: vec!["agent", "bus"],
            options: vec![],
            peers: vec!["--peer", "node"],
            bus: vec!["--seconds", "2", "--peer", "c", "cmd -x", "file"],
        };
        assert_eq!(asked, expected);
    }
}
