//! Verifies that a log is unchanged since it was written. Shares only types with the writer.
//!
//! The verifier works on bytes: a line is good only if it has exactly its canonical form. Several threads
//! check pieces of the log. Afterwards, the ends of neighboring pieces are compared.

mod canonical;
mod chunk;
mod legacy;
mod line;
mod number;
mod pieces;
mod render;
mod shape;
mod time;
mod torn;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::Path;

use legacy::Legacy;
use line::Flaw;
use pieces::Pieces;

use crate::entry::GENESIS;
use crate::files::Files;
use crate::head::Head;
use crate::secret::Secret;

/// Maximum size of the data that one interrupted write may leave unsynced at the end of a log.
const MAX_UNSYNCED_BYTES: u64 = 64 << 20;

/// The kind of problem in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyProblem {
    /// A line is malformed, or does not continue the previous line.
    Broken,
    Gap,
    Tampered,
    /// The last line is incomplete, as after a crash.
    TornTail,
    /// The time of a line is earlier than that of the previous line.
    Clock,
    /// A line does not have its canonical form.
    NotCanonical,
    Truncated,
    Rewritten,
}

impl VerifyProblem {
    /// Returns a stable name of the problem, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Gap => "gap",
            Self::Tampered => "tampered",
            Self::TornTail => "torn tail",
            Self::Clock => "clock",
            Self::NotCanonical => "not canonical",
            Self::Truncated => "truncated",
            Self::Rewritten => "rewritten",
        }
    }
}

impl fmt::Display for VerifyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first bad line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    pub segment: String,
    /// Number of the line in its file, beginning with 1. Or 0 if the problem is not in a line.
    pub line: u64,
    /// Offset of the line in its file, in bytes.
    pub offset: u64,
    /// Number that the entry should have.
    pub seq: u64,
    pub why: VerifyProblem,
    pub detail: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.segment, self.line, self.why, self.detail)
    }
}

/// The form of lines that the verifier accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineForm {
    /// Only the canonical form, byte for byte, as this crate writes lines.
    #[default]
    Exact,
    /// Any JSON whose canonical form matches the hash. Accepts logs of other programs.
    Any,
}

/// Options for verifying a log.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    pub form: LineForm,
    /// Secret of a log with keyed hashes. `None` if the log has plain hashes.
    pub legacy: Option<Secret>,
    /// Head that the log must contain. Its signature is not checked here.
    pub head: Option<Head>,
    pub threads: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { form: LineForm::Exact, legacy: None, head: None, threads }
    }
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub entries: u64,
    /// Hash of the last valid entry.
    pub hash: Option<String>,
    /// Hash of the first entry, which identifies the log.
    pub log: Option<String>,
    pub segments: usize,
    pub bad: Option<BadLine>,
}

/// Verifies the log whose active file has this path, with its sealed files. An error means that reading
/// failed.
pub fn log(path: &Path, options: &VerifyOptions) -> io::Result<Report> {
    let files = Files::open(path)?;
    if let Some(secret) = &options.legacy {
        return legacy(&files.sources(), secret);
    }
    let sources = files.sources();
    let outcome = check(&sources, &Start::default(), options)?;
    let mut report = Report {
        entries: outcome.chain_end.next,
        hash: outcome.chain_end.hash.clone(),
        log: outcome.found(0),
        segments: sources.len(),
        bad: outcome.bad.clone(),
    };
    // A torn tail is harmless only if every acknowledged entry is present.
    let is_chain_good = report.bad.as_ref().is_none_or(|bad| bad.why == VerifyProblem::TornTail);
    if let (true, Some(head)) = (is_chain_good, &options.head) {
        let segment = sources.last().map_or(String::new(), |source| source.name().to_owned());
        report.bad = against(head, &outcome, segment).or(report.bad);
    }
    Ok(report)
}

/// Compares a valid log with a head. Returns the problem if the log does not contain the head.
fn against(head: &Head, outcome: &Outcome, segment: String) -> Option<BadLine> {
    let (why, seq, detail) = match (outcome.found(0), outcome.found(head.seq)) {
        (Some(log), _) if log != head.log => {
            (VerifyProblem::Rewritten, 0, "its first entry is another".to_owned())
        }
        (_, None) => {
            let detail = format!("{} of at least {} entries are there", outcome.chain_end.next, head.count);
            (VerifyProblem::Truncated, outcome.chain_end.next, detail)
        }
        (_, Some(hash)) if hash != head.hash => {
            (VerifyProblem::Rewritten, head.seq, format!("entry {} is another than it was", head.seq))
        }
        _ => return None,
    };
    // How a log is split into files can change, so only the entry number is reported.
    Some(BadLine { segment, line: 0, offset: 0, seq, why, detail })
}

/// A file of a log, or data that stands for one.
pub(crate) trait Source: Sync {
    /// Returns the name of the file.
    fn name(&self) -> &str;
    /// Returns the number of the source's first entry. `None` if the name does not contain a number.
    fn first(&self) -> Option<u64>;
    /// Returns the number of bytes to verify.
    fn length(&self) -> u64;
    /// Reads up to the length of `buffer`. Returns the number of bytes read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

/// The end of a verified chain, which the next line must continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainEnd {
    pub(crate) next: u64,
    pub(crate) hash: Option<String>,
    /// Time of the last entry, in nanoseconds since 1970.
    pub(crate) ts: Option<i128>,
}

/// Where the verification starts: after the part that is already verified.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    pub(crate) chain_end: ChainEnd,
    pub(crate) offset: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) chain_end: ChainEnd,
    /// For each source, the number of its first entry and its number of valid bytes.
    pub(crate) extents: Vec<(u64, u64)>,
    pub(crate) bad: Option<BadLine>,
    pub(crate) bad_source: usize,
    found: Vec<(u64, String)>,
}

impl Outcome {
    /// Returns the hash of the entry `seq`, if the verification had to find it.
    fn found(&self, seq: u64) -> Option<String> {
        self.found.iter().find(|(found, _)| *found == seq).map(|(_, hash)| hash.clone())
    }
}

/// Verifies sources, of which each must continue the previous one.
pub(crate) fn check(sources: &[&dyn Source], start: &Start, options: &VerifyOptions) -> io::Result<Outcome> {
    let wanted = [0, options.head.as_ref().map_or(0, |head| head.seq)];
    let mut pieces = Pieces::new(sources, start.offset);
    let results = pieces.each(options.threads, |bytes| chunk::check(bytes, options.form, &wanted))?;
    let mut outcome = Outcome { chain_end: start.chain_end.clone(), ..Outcome::default() };
    let mut results = results.into_iter().peekable();
    for (index, source) in sources.iter().enumerate() {
        let begin = if index == 0 { start.offset } else { 0 };
        outcome.extents.push((outcome.chain_end.next, begin));
        // Lines are counted only if a line number must be reported.
        let mut lines = 0;
        let skipped = || lines_in(*source, begin);
        let begins_elsewhere = source.first().filter(|&first| begin == 0 && first != outcome.chain_end.next);
        if let Some(first) = begins_elsewhere {
            let detail =
                format!("the file begins with entry {first}, and {} is next", outcome.chain_end.next);
            outcome.fail(index, *source, 0, Flaw::new(VerifyProblem::Gap, detail));
            return Ok(outcome);
        }
        while let Some((_, piece)) = results.next_if(|(at, _)| *at == index) {
            let flaw = outcome.join(index, piece, &mut lines);
            if let Some(flaw) = flaw {
                outcome.fail(index, *source, skipped()? + lines, flaw);
                return outcome.classify_torn_tail(sources);
            }
        }
        let good = outcome.extents[index].1;
        if good < source.length() {
            let rest = good..source.length().min(good + pieces::MAX_LINE_BYTES);
            let rest = pieces::read(*source, rest)?;
            let last = sources[index + 1..].iter().all(|source| source.length() == 0);
            let flaw = match torn::unended(&rest) {
                (why, detail) if last => Flaw::new(why, detail),
                _ => Flaw::new(VerifyProblem::Broken, "the line does not end, and another file follows"),
            };
            outcome.fail(index, *source, skipped()? + lines, flaw);
            return Ok(outcome);
        }
    }
    Ok(outcome)
}

fn lines_in(source: &dyn Source, bytes: u64) -> io::Result<u64> {
    let bytes = pieces::read(source, 0..bytes)?;
    Ok(memchr::memchr_iter(b'\n', &bytes).count() as u64)
}

impl Outcome {
    /// Appends a checked piece to the verified part. Returns the problem of the line after the verified part,
    /// if there is one.
    fn join(&mut self, index: usize, piece: chunk::Checked, lines: &mut u64) -> Option<Flaw> {
        if let Some((seq, prev, ts)) = &piece.first {
            let facts = line::Facts { seq: *seq, ts: *ts, prev: prev.as_bytes(), hash: b"" };
            let hash = self.chain_end.hash.as_deref().unwrap_or(GENESIS);
            let since = self.chain_end.ts.unwrap_or(i128::MIN);
            if let Err(flaw) = chunk::follows(&facts, self.chain_end.next, hash.as_bytes(), since) {
                return Some(flaw);
            }
            self.chain_end = piece.chain_end;
        }
        self.found.extend(piece.found);
        self.extents[index].1 += piece.bytes as u64;
        *lines += piece.lines;
        piece.flaw
    }

    fn fail(&mut self, index: usize, source: &dyn Source, lines: u64, flaw: Flaw) {
        let Flaw { why, detail } = flaw;
        let segment = source.name().to_owned();
        let (seq, offset) = (self.chain_end.next, self.extents[index].1);
        self.bad = Some(BadLine { segment, line: lines + 1, offset, seq, why, detail });
        self.bad_source = index;
    }

    /// Reports a bad line as a torn tail if the line is the rest of an unacknowledged write.
    fn classify_torn_tail(mut self, sources: &[&dyn Source]) -> io::Result<Self> {
        let Some(bad) = self.bad.as_mut() else { return Ok(self) };
        let source = sources[self.bad_source];
        let last = sources[self.bad_source + 1..].iter().all(|source| source.length() == 0);
        let rest = bad.offset..source.length();
        if last && bad.why == VerifyProblem::Broken && rest.end - rest.start <= MAX_UNSYNCED_BYTES {
            let rest = pieces::read(source, rest)?;
            if torn::unwritten(&rest, bad.offset) {
                bad.why = VerifyProblem::TornTail;
                "parts of the last write are missing".clone_into(&mut bad.detail);
            }
        }
        Ok(self)
    }
}

/// Verifies a log whose chain uses keyed hashes.
fn legacy(sources: &[&dyn Source], secret: &Secret) -> io::Result<Report> {
    let mut chain = Legacy::new(secret);
    let mut report = Report { segments: sources.len(), ..Report::default() };
    for source in sources {
        let before = chain.lines;
        let mut good = 0;
        let mut flaw = None;
        for (_, bytes) in Pieces::new(&[*source], 0) {
            let (bytes, found) = chain.check(&bytes?);
            good += bytes as u64;
            flaw = found;
            if flaw.is_some() {
                break;
            }
        }
        if flaw.is_none() && good < source.length() {
            flaw = Some(Flaw::new(VerifyProblem::TornTail, "the line is incomplete"));
        }
        if let Some(Flaw { why, detail }) = flaw {
            let (segment, line) = (source.name().to_owned(), chain.lines - before + 1);
            report.bad = Some(BadLine { segment, line, offset: good, seq: chain.lines, why, detail });
            break;
        }
    }
    report.entries = chain.lines;
    report.hash = chain.last().map(str::to_owned);
    Ok(report)
}

/// Checks that a text is canonical JSON. The error is the reason why it is not.
pub fn is_canonical(text: &[u8]) -> Result<(), &'static str> {
    canonical::read(text, &mut Vec::new()).map_err(|flaw| flaw.what)
}

/// Verifies a log in memory.
pub fn bytes(log: &[u8], options: &VerifyOptions) -> Report {
    struct Memory<'a>(&'a [u8]);
    impl Source for Memory<'_> {
        fn name(&self) -> &'static str {
            "log"
        }
        fn first(&self) -> Option<u64> {
            None
        }
        fn length(&self) -> u64 {
            self.0.len() as u64
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let rest =
                usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..)).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }
    }
    // Reading from memory cannot fail.
    let outcome = check(&[&Memory(log)], &Start::default(), options).unwrap_or_default();
    Report {
        entries: outcome.chain_end.next,
        hash: outcome.chain_end.hash.clone(),
        log: outcome.found(0),
        segments: 1,
        bad: outcome.bad,
    }
}
