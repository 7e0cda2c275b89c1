//! Checks a single line.

use std::ops::Range;

use ring::digest::{self, Context};

use super::canonical::{self, Member};
use super::render::Tree;
use super::{LineForm, VerifyProblem, shape, time};
use crate::entry::{DOCTYPE, SCHEMA};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) why: VerifyProblem,
    pub(super) detail: String,
}

impl Flaw {
    pub(super) fn new(why: VerifyProblem, detail: impl Into<String>) -> Self {
        Self { why, detail: detail.into() }
    }
}

/// Members of a line that must fit the lines before and after. The hash of the line is already checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts<'a> {
    pub(super) seq: u64,
    pub(super) ts: i128,
    pub(super) prev: &'a [u8],
    pub(super) hash: &'a [u8],
}

enum Kind {
    Text,
    Object,
    Array,
    Number,
}

/// Reads lines, and reuses the same memory for all of them.
#[derive(Default)]
pub(super) struct Reader {
    members: Vec<Member>,
    /// Canonical form of a line that has another form.
    line: Vec<u8>,
}

impl Reader {
    /// Reads a line without its line end.
    pub(super) fn read<'a>(&'a mut self, line: &'a [u8], form: LineForm) -> Result<Facts<'a>, Flaw> {
        let line = match form {
            LineForm::Exact => line,
            LineForm::Any => {
                self.line = canonical_form(line)?;
                &self.line
            }
        };
        canonical::read(line, &mut self.members).map_err(|flaw| {
            // Lines with keyed hashes are rarely canonical, and the error about keyed hashes is more helpful.
            if is_keyed(line) {
                return keyed();
            }
            let why = if flaw.broken { VerifyProblem::Broken } else { VerifyProblem::NotCanonical };
            Flaw::new(why, format!("{} (byte {})", flaw.what, flaw.at + 1))
        })?;
        facts(line, &self.members)
    }
}

fn keyed() -> Flaw {
    Flaw::new(VerifyProblem::Broken, "it is in the form with keyed hashes, which needs the secret")
}

fn is_keyed(line: &[u8]) -> bool {
    serde_json::from_slice::<Tree>(line)
        .is_ok_and(|tree| ["signature", "prevSignature"].iter().all(|name| tree.get(name).is_some()))
}

fn canonical_form(line: &[u8]) -> Result<Vec<u8>, Flaw> {
    let tree: Tree = serde_json::from_slice(line)
        .map_err(|error| Flaw::new(VerifyProblem::Broken, format!("it is not JSON: {error}")))?;
    Ok(tree.to_string().into_bytes())
}

fn facts<'a>(line: &'a [u8], members: &[Member]) -> Result<Facts<'a>, Flaw> {
    let broken = |detail: String| Flaw::new(VerifyProblem::Broken, detail);
    if line.first() != Some(&b'{') {
        return Err(broken("it is not an object".into()));
    }
    let (mut schema, mut doctype, mut actor, mut action, mut subject) = (false, false, false, false, false);
    let (mut seq, mut ts, mut prev, mut hash, mut algorithm) = (None, None, None, None, &digest::SHA256);
    for Member { key, value } in members {
        let text = &line[value.clone()];
        let name = &line[key.clone()];
        let kind = match name {
            b"$schema" | b"action" | b"doctype" | b"hash" | b"hashAlg" | b"prevHash" | b"ts" => Kind::Text,
            b"actor" | b"input" | b"metadata" | b"output" | b"policy" | b"subject" => Kind::Object,
            b"signatures" => Kind::Array,
            b"seq" => Kind::Number,
            _ if members.iter().any(|member| &line[member.key.clone()] == b"prevSignature") => {
                return Err(keyed());
            }
            _ => return Err(broken(format!("unknown field `{}`", shown(name)))),
        };
        if !is(text, &kind) {
            return Err(broken(format!("invalid `{}`", shown(name))));
        }
        let inner = || &text[1..text.len() - 1];
        match name {
            b"$schema" => schema = inner() == SCHEMA.as_bytes(),
            b"doctype" => doctype = inner() == DOCTYPE.as_bytes(),
            b"actor" => actor = true,
            b"action" => action = true,
            b"subject" => subject = true,
            b"seq" => seq = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok()),
            b"ts" => ts = time::read(inner()),
            b"prevHash" => prev = Some(inner()),
            b"hash" => hash = Some((inner(), key.start - 1..value.end)),
            b"hashAlg" => {
                algorithm = match inner() {
                    b"sha256" => &digest::SHA256,
                    b"sha512" => &digest::SHA512,
                    other => {
                        return Err(broken(format!(
                            "its `hashAlg` is `{}`, which is not supported",
                            shown(other)
                        )));
                    }
                }
            }
            _ => {}
        }
    }
    let there = [
        ("$schema", schema),
        ("doctype", doctype),
        ("actor", actor),
        ("action", action),
        ("subject", subject),
    ];
    if let Some((name, _)) = there.iter().find(|(_, there)| !there) {
        return Err(broken(format!("`{name}` is missing or invalid")));
    }
    let missing = |name: &str| broken(format!("`{name}` is missing or invalid"));
    let (hash, place) = hash.ok_or_else(|| missing("hash"))?;
    let facts = Facts {
        seq: seq.ok_or_else(|| missing("seq"))?,
        ts: ts.ok_or_else(|| missing("ts"))?,
        prev: prev.ok_or_else(|| missing("prevHash"))?,
        hash,
    };
    if !matches(line, place, algorithm, hash) {
        return Err(Flaw::new(VerifyProblem::Tampered, "its hash does not match its content"));
    }
    // The members are checked after the hash, so that a changed line is reported as changed.
    for Member { key, value } in members {
        let name = &line[key.clone()];
        if !shape::is_valid_field(name, &line[value.clone()]) {
            return Err(broken(format!("invalid `{}`", shown(name))));
        }
    }
    Ok(facts)
}

fn is(text: &[u8], kind: &Kind) -> bool {
    match kind {
        Kind::Text => text.first() == Some(&b'"'),
        Kind::Object => text.first() == Some(&b'{'),
        Kind::Array => text.first() == Some(&b'['),
        Kind::Number => text.first().is_some_and(u8::is_ascii_digit),
    }
}

/// Returns `true` if `hash` is the hash of the line without the member at `place`.
fn matches(line: &[u8], place: Range<usize>, algorithm: &'static digest::Algorithm, hash: &[u8]) -> bool {
    // The comma after the member is left out, too, because `prevHash` follows.
    let end = if line.get(place.end) == Some(&b',') { place.end + 1 } else { place.end };
    let mut context = Context::new(algorithm);
    context.update(&line[..place.start]);
    context.update(&line[end..]);
    let digest = context.finish();
    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
    hash.len() == digest.as_ref().len() * 2
        && digest
            .as_ref()
            .iter()
            .zip(hash.chunks_exact(2))
            .all(|(byte, pair)| pair == [digit(byte >> 4), digit(byte & 15)])
}

/// Returns a short and escaped excerpt of a line.
pub(super) fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(40)].escape_ascii().to_string()
}
