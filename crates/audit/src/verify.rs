//! Whether a log is what was written, found by code that shares nothing with the writer but the types.
//!
//! It works on bytes: a line is either exactly its canonical form, or bad. Pieces of the log are checked by several
//! threads, and their ends are compared afterwards.

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

/// The longest part of a log that one write may have left behind.
const MAX_UNSYNCED_BYTES: u64 = 64 << 20;

/// What is wrong with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A line cannot be read, or does not follow from the one in front of it.
    Broken,
    /// Lines are missing.
    Gap,
    /// A line is not what was hashed.
    Tampered,
    /// The last line is incomplete, as a crash leaves it.
    TornTail,
    /// A line is older than the one in front of it.
    Clock,
    /// A line is written in another form than it must be.
    NotCanonical,
    /// Lines that were there are missing at the end.
    Truncated,
    /// Lines that were there are others now.
    Rewritten,
}

impl Why {
    /// In a word or two.
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

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first bad line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// The file.
    pub segment: String,
    /// The line in it; the first is 1.
    pub line: u64,
    /// The byte of the file at which the line begins.
    pub offset: u64,
    /// The number that the entry should have.
    pub seq: u64,
    /// What is wrong.
    pub why: Why,
    /// The same in more words.
    pub detail: String,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.segment, self.line, self.why, self.detail)
    }
}

/// In which form lines are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Byte for byte canonical, as our writer leaves them.
    #[default]
    Exact,
    /// Any JSON whose canonical form has the hash; for logs of others.
    Any,
}

/// How to verify.
#[derive(Clone, Debug)]
pub struct Options {
    /// The form of the lines.
    pub form: Form,
    /// The secret of a log that is chained by keyed hashes.
    pub legacy: Option<Secret>,
    /// What the log is known to have contained; its signature is the caller's business.
    pub head: Option<Head>,
    /// How many threads work on it.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { form: Form::Exact, legacy: None, head: None, threads }
    }
}

/// What was found in a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many entries are good, from the first on.
    pub entries: u64,
    /// The hash of the last of them.
    pub hash: Option<String>,
    /// The hash of the first: what the log is known by.
    pub log: Option<String>,
    /// How many files there are.
    pub segments: usize,
    /// The line behind the good ones, if it is bad.
    pub bad: Option<Bad>,
}

/// Verifies the log whose growing file has this path, with all its sealed ones. An error is one of reading.
pub fn log(path: &Path, options: &Options) -> io::Result<Report> {
    let files = Files::at(path)?;
    if let Some(secret) = &options.legacy {
        return legacy(&files.sources(), secret);
    }
    let sources = files.sources();
    let outcome = check(&sources, &Start::default(), options)?;
    let mut report = Report {
        entries: outcome.link.next,
        hash: outcome.link.hash.clone(),
        log: outcome.found(0),
        segments: sources.len(),
        bad: outcome.bad.clone(),
    };
    // A torn tail is harmless only if every entry that was acknowledged is there.
    let is_chain_good = report.bad.as_ref().is_none_or(|bad| bad.why == Why::TornTail);
    if let (true, Some(head)) = (is_chain_good, &options.head) {
        let segment = sources.last().map_or(String::new(), |source| source.name().to_owned());
        report.bad = against(head, &outcome, segment).or(report.bad);
    }
    Ok(report)
}

/// What is wrong with a good chain that should contain this head.
fn against(head: &Head, outcome: &Outcome, segment: String) -> Option<Bad> {
    let (why, seq, detail) = match (outcome.found(0), outcome.found(head.seq)) {
        (Some(log), _) if log != head.log => (Why::Rewritten, 0, "its first entry is another".to_owned()),
        (_, None) => {
            let detail = format!("{} of at least {} entries are there", outcome.link.next, head.count);
            (Why::Truncated, outcome.link.next, detail)
        }
        (_, Some(hash)) if hash != head.hash => {
            (Why::Rewritten, head.seq, format!("entry {} is another than it was", head.seq))
        }
        _ => return None,
    };
    // Which line that is depends on how it was cut into files; the number is what counts.
    Some(Bad { segment, line: 0, offset: 0, seq, why, detail })
}

/// A file of a log, or what stands for one.
pub(crate) trait Source: Sync {
    /// Its name.
    fn name(&self) -> &str;
    /// The number of its first entry, if the name says so.
    fn first(&self) -> Option<u64>;
    /// How much of it is looked at.
    fn length(&self) -> u64;
    /// Reads some bytes.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

/// The end of a chain: what the next line must follow from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// The number of the next entry.
    pub(crate) next: u64,
    /// The hash of the last.
    pub(crate) hash: Option<String>,
    /// Its time, in nanoseconds since 1970.
    pub(crate) ts: Option<i128>,
}

/// Where to begin: behind what is known already.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    pub(crate) link: Link,
    /// In the first source.
    pub(crate) offset: u64,
}

/// What was found in some sources.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The end of what is good.
    pub(crate) link: Link,
    /// For each source the number of its first entry, and how many of its bytes are good.
    pub(crate) extents: Vec<(u64, u64)>,
    /// The first bad line.
    pub(crate) bad: Option<Bad>,
    /// The source it is in.
    pub(crate) bad_source: usize,
    found: Vec<(u64, String)>,
}

impl Outcome {
    /// The hash of one of the entries that were asked for.
    fn found(&self, seq: u64) -> Option<String> {
        self.found.iter().find(|(found, _)| *found == seq).map(|(_, hash)| hash.clone())
    }
}

/// Verifies sources, each of which continues the one in front of it.
pub(crate) fn check(sources: &[&dyn Source], start: &Start, options: &Options) -> io::Result<Outcome> {
    let wanted = [0, options.head.as_ref().map_or(0, |head| head.seq)];
    let mut pieces = Pieces::new(sources, start.offset);
    let results = pieces.each(options.threads, |bytes| chunk::check(bytes, options.form, &wanted))?;
    let mut outcome = Outcome { link: start.link.clone(), ..Outcome::default() };
    let mut results = results.into_iter().peekable();
    for (index, source) in sources.iter().enumerate() {
        let begin = if index == 0 { start.offset } else { 0 };
        outcome.extents.push((outcome.link.next, begin));
        // Counted when somebody wants to know.
        let mut lines = 0;
        let skipped = || lines_in(*source, begin);
        let begins_elsewhere = source.first().filter(|&first| begin == 0 && first != outcome.link.next);
        if let Some(first) = begins_elsewhere {
            let detail = format!("the file begins with entry {first}, and {} is next", outcome.link.next);
            outcome.fail(index, *source, 0, Flaw::new(Why::Gap, detail));
            return Ok(outcome);
        }
        while let Some((_, piece)) = results.next_if(|(at, _)| *at == index) {
            let flaw = outcome.join(index, piece, &mut lines);
            if let Some(flaw) = flaw {
                outcome.fail(index, *source, skipped()? + lines, flaw);
                return outcome.forgive(sources);
            }
        }
        let good = outcome.extents[index].1;
        if good < source.length() {
            let rest = good..source.length().min(good + pieces::MAX_LINE_BYTES);
            let rest = pieces::read(*source, rest)?;
            let last = sources[index + 1..].iter().all(|source| source.length() == 0);
            let flaw = match torn::unended(&rest) {
                (why, detail) if last => Flaw::new(why, detail),
                _ => Flaw::new(Why::Broken, "the line does not end, and another file follows"),
            };
            outcome.fail(index, *source, skipped()? + lines, flaw);
            return Ok(outcome);
        }
    }
    Ok(outcome)
}

/// How many lines end in the first bytes of a source.
fn lines_in(source: &dyn Source, bytes: u64) -> io::Result<u64> {
    let bytes = pieces::read(source, 0..bytes)?;
    Ok(memchr::memchr_iter(b'\n', &bytes).count() as u64)
}

impl Outcome {
    /// Puts a piece behind what is good; says what is wrong with the line behind that.
    fn join(&mut self, index: usize, piece: chunk::Checked, lines: &mut u64) -> Option<Flaw> {
        if let Some((seq, prev, ts)) = &piece.first {
            let facts = line::Facts { seq: *seq, ts: *ts, prev: prev.as_bytes(), hash: b"" };
            let hash = self.link.hash.as_deref().unwrap_or(GENESIS);
            let since = self.link.ts.unwrap_or(i128::MIN);
            if let Err(flaw) = chunk::follows(&facts, self.link.next, hash.as_bytes(), since) {
                return Some(flaw);
            }
            self.link = piece.link;
        }
        self.found.extend(piece.found);
        self.extents[index].1 += piece.bytes as u64;
        *lines += piece.lines;
        piece.flaw
    }

    fn fail(&mut self, index: usize, source: &dyn Source, lines: u64, flaw: Flaw) {
        let Flaw { why, detail } = flaw;
        let segment = source.name().to_owned();
        let (seq, offset) = (self.link.next, self.extents[index].1);
        self.bad = Some(Bad { segment, line: lines + 1, offset, seq, why, detail });
        self.bad_source = index;
    }

    /// Says of a bad line that it is the rest of a write that was never acknowledged, if it is.
    fn forgive(mut self, sources: &[&dyn Source]) -> io::Result<Self> {
        let Some(bad) = self.bad.as_mut() else { return Ok(self) };
        let source = sources[self.bad_source];
        let last = sources[self.bad_source + 1..].iter().all(|source| source.length() == 0);
        let rest = bad.offset..source.length();
        if last && bad.why == Why::Broken && rest.end - rest.start <= MAX_UNSYNCED_BYTES {
            let rest = pieces::read(source, rest)?;
            if torn::unwritten(&rest, bad.offset) {
                bad.why = Why::TornTail;
                "parts of the last write are missing".clone_into(&mut bad.detail);
            }
        }
        Ok(self)
    }
}

/// Verifies a log that is chained by keyed hashes.
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
            flaw = Some(Flaw::new(Why::TornTail, "the line is incomplete"));
        }
        if let Some(Flaw { why, detail }) = flaw {
            let (segment, line) = (source.name().to_owned(), chain.lines - before + 1);
            report.bad = Some(Bad { segment, line, offset: good, seq: chain.lines, why, detail });
            break;
        }
    }
    report.entries = chain.lines;
    report.hash = chain.last().map(str::to_owned);
    Ok(report)
}

/// Whether a text is canonical JSON, and why not.
pub fn is_canonical(text: &[u8]) -> Result<(), &'static str> {
    canonical::read(text, &mut Vec::new()).map_err(|flaw| flaw.what)
}

/// Verifies a log that is in memory.
pub fn bytes(log: &[u8], options: &Options) -> Report {
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
    // Memory can be read.
    let outcome = check(&[&Memory(log)], &Start::default(), options).unwrap_or_default();
    Report {
        entries: outcome.link.next,
        hash: outcome.link.hash.clone(),
        log: outcome.found(0),
        segments: 1,
        bad: outcome.bad,
    }
}
