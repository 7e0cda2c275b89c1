//! Checks one piece of a log: each line, and that the line continues the previous one.

use memchr::memchr;

use super::line::{Facts, Flaw, Reader};
use super::{ChainEnd, LineForm, VerifyProblem};

#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) lines: u64,
    pub(super) bytes: usize,
    /// Number, previous hash and time of the first valid line.
    pub(super) first: Option<(u64, String, i128)>,
    /// End of the chain after the last valid line.
    pub(super) chain_end: ChainEnd,
    /// Problem of the line after the valid lines, if that line is bad.
    pub(super) flaw: Option<Flaw>,
    /// Numbers and hashes of the entries whose hashes are requested.
    pub(super) found: Vec<(u64, String)>,
}

/// Checks complete lines. `wanted` contains the numbers of entries whose hashes are requested.
pub(super) fn check(bytes: &[u8], form: LineForm, wanted: &[u64]) -> Checked {
    let mut checked = Checked::default();
    let mut reader = Reader::default();
    // Number, hash and time of the previous line. A `ChainEnd` would need more copies.
    let mut before: Option<(u64, Vec<u8>, i128)> = None;
    while let Some(length) = memchr(b'\n', &bytes[checked.bytes..]) {
        let line = &bytes[checked.bytes..checked.bytes + length];
        let facts = match reader.read(line, form) {
            Ok(facts) => facts,
            Err(flaw) => {
                checked.flaw = Some(flaw);
                break;
            }
        };
        let mut hash = match before.take() {
            None => {
                let prev = String::from_utf8_lossy(facts.prev).into_owned();
                checked.first = Some((facts.seq, prev, facts.ts));
                Vec::new()
            }
            Some((seq, hash, ts)) => {
                if let Err(flaw) = follows(&facts, seq + 1, &hash, ts) {
                    checked.flaw = Some(flaw);
                    before = Some((seq, hash, ts));
                    break;
                }
                hash
            }
        };
        if wanted.contains(&facts.seq) {
            checked.found.push((facts.seq, String::from_utf8_lossy(facts.hash).into_owned()));
        }
        hash.clear();
        hash.extend_from_slice(facts.hash);
        before = Some((facts.seq, hash, facts.ts));
        checked.lines += 1;
        checked.bytes += length + 1;
    }
    if let Some((seq, hash, ts)) = before {
        checked.chain_end =
            ChainEnd { next: seq + 1, hash: Some(String::from_utf8_lossy(&hash).into_owned()), ts: Some(ts) };
    }
    checked
}

/// Checks that a line continues the chain: its number, its previous hash, and its time.
pub(super) fn follows(facts: &Facts<'_>, seq: u64, prev: &[u8], ts: i128) -> Result<(), Flaw> {
    if facts.seq != seq {
        return Err(Flaw::new(VerifyProblem::Gap, format!("its number is {}, expected {seq}", facts.seq)));
    }
    if facts.prev != prev {
        return Err(Flaw::new(VerifyProblem::Broken, "its hash does not continue the previous line"));
    }
    if facts.ts < ts {
        return Err(Flaw::new(VerifyProblem::Clock, "its time is before that of the previous line"));
    }
    Ok(())
}
