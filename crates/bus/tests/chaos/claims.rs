//! Compares the results that clients got for their requests with the logs of the workers.

use std::collections::HashMap;
use std::path::Path;

/// The result that a client got for a request that a worker may have handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The request was done, and the response was complete.
    Done,
    /// The request failed and was never started.
    NotBegun,
    /// The request failed and may have been started.
    Failed {
        /// `true` if the worker exited by itself, so that all its output was delivered.
        died: bool,
        seen: u64,
    },
    /// The client was disconnected, or the response is ambiguous between two requests.
    Unknown,
}

#[derive(Debug, Default)]
struct Noted {
    begun: u32,
    sent: u64,
    answered: bool,
}

/// Returns the contradictions between the logs and `claims`, and the number of started requests.
pub(crate) fn find_contradictions(log: &Path, claims: &[(String, Claim)]) -> (Vec<String>, usize) {
    let mut problems = Vec::new();
    let mut noted: HashMap<String, Noted> = HashMap::new();
    for file in std::fs::read_dir(log).unwrap() {
        for line in std::fs::read_to_string(file.unwrap().path()).unwrap().lines() {
            let (what, rest) = line.split_once(' ').unwrap();
            match what {
                "begin" => noted.entry(rest.to_owned()).or_default().begun += 1,
                "sent" => noted.entry(rest.to_owned()).or_default().sent += 1,
                "answered" => noted.entry(rest.to_owned()).or_default().answered = true,
                _ => problems.push(format!("a worker noted: {line}")),
            }
        }
    }
    let nothing = Noted::default();
    for (tag, claim) in claims {
        let noted = noted.get(tag).unwrap_or(&nothing);
        let wrong = match *claim {
            _ if noted.begun > 1 => "it was begun twice",
            Claim::Done if noted.begun == 0 => "it was never begun",
            Claim::NotBegun if noted.begun > 0 => "it was begun, and its client was told that it was not",
            Claim::Failed { died: true, .. } if noted.answered => "its answer was written, and lost",
            Claim::Failed { died: true, seen } if noted.sent > seen => "updates of it were written, and lost",
            _ => continue,
        };
        problems.push(format!("{tag}: {wrong} ({claim:?}, {noted:?})"));
    }
    (problems, noted.len())
}
