//! What clients were told about their requests, held against what workers have noted down about them.

use std::collections::HashMap;
use std::path::Path;

/// What a client was told about one request that a worker may have acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It was done, and this was its whole answer.
    Done,
    /// It failed, and was never begun.
    NotBegun,
    /// It failed, and may have been begun.
    Failed {
        /// Its worker is said to have died by itself: then all it has said was delivered.
        died: bool,
        /// How many updates came.
        seen: u64,
    },
    /// Nobody was there to be told, or it cannot be known which of two requests was meant.
    Unknown,
}

/// What workers have noted about one request.
#[derive(Debug, Default)]
struct Noted {
    begun: u32,
    sent: u64,
    answered: bool,
}

/// What is wrong with `claims`, and how many requests were begun.
pub(crate) fn judge(log: &Path, claims: &[(String, Claim)]) -> (Vec<String>, usize) {
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
