//! One pass over a message that finds its kind and the positions of its routing fields.
//!
//! Reads the top level and one level of `params` and `result`. Everything deeper is skipped: with
//! [`Check::Grammar`] its grammar is checked; with [`Check::Envelope`] only brackets are counted, which is
//! enough for bytes that were checked before, such as batch entries.

use std::borrow::Cow;

use crate::envelope::{Envelope, Kind, Span, is_id};
use crate::fault::Fault;
use crate::grammar::{self, Container, MAX_DEPTH, byte, skip_blank};
use crate::lookalike;
use crate::skip::{self, ContainerFault, Job, Scalar, Skip};

#[cfg(test)]
mod tests;

/// The part of a message whose grammar is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The whole message. Required for everything received from outside.
    Grammar,
    /// The envelope only. For bytes whose grammar was checked before.
    Envelope,
}

/// Returns the kind of `text` and the positions of its fields. Never fails: a fault becomes
/// [`Kind::Invalid`].
///
/// Bytes that are not UTF-8 count as a syntax error here; [`crate::Frame::parse`] distinguishes the two.
/// Text that is not JSON has no fields.
#[must_use]
#[inline]
pub fn scan(text: &[u8], check: Check) -> (Kind, Envelope) {
    let mut found = Found::default();
    let outcome = match check {
        Check::Grammar => skip::run(Scan::<true> { text, found: &mut found }),
        Check::Envelope => skip::run(Scan::<false> { text, found: &mut found }),
    };
    into_result(outcome, &found)
}

/// Does the same as [`scan`] without vector instructions.
#[must_use]
pub fn scan_portable(text: &[u8], check: Check) -> (Kind, Envelope) {
    let mut found = Found::default();
    let outcome = match check {
        Check::Grammar => Scan::<true> { text, found: &mut found }.run(Scalar),
        Check::Envelope => Scan::<false> { text, found: &mut found }.run(Scalar),
    };
    into_result(outcome, &found)
}

#[inline(always)]
fn into_result(outcome: Result<Kind, Fault>, found: &Found) -> (Kind, Envelope) {
    match outcome {
        Ok(kind) => (kind, found.envelope),
        Err(fault) if fault.is_unreadable() => (Kind::Invalid(fault), Envelope::default()),
        Err(fault) => (Kind::Invalid(fault), found.envelope),
    }
}

/// Returns the fields in the head of a message whose rest is missing.
///
/// A field whose value is cut off is present but empty. The id is present only if it is complete and
/// unique.
#[must_use]
pub(crate) fn scan_head(text: &[u8]) -> Envelope {
    let mut found = Found::default();
    // The message is incomplete, so the result is an error. The fields before the cut are valid.
    let _ = skip::run(Scan::<true> { text, found: &mut found });
    let Found { mut envelope, repeated } = found;
    // A number that ends at the cut may be incomplete.
    if repeated || envelope.id.range().end == text.len() {
        envelope.id = Span::default();
    }
    envelope
}

#[derive(Default)]
struct Found {
    envelope: Envelope,
    /// `true` if a routing key occurs twice. Reported only if there is no worse fault.
    repeated: bool,
}

struct Scan<'a, const STRICT: bool> {
    text: &'a [u8],
    found: &'a mut Found,
}

impl<const STRICT: bool> Job for Scan<'_, STRICT> {
    type Out = Result<Kind, Fault>;

    #[inline(always)]
    fn run<S: Skip>(self, skip: S) -> Self::Out {
        let Self { text, found } = self;
        if u32::try_from(text.len()).is_err() {
            return Err(Fault::TooLong);
        }
        let start = skip_blank(text, 0);
        let first = byte(text, start);
        let end = match first {
            b'{' => message::<S, STRICT>(skip, text, start + 1, found)?,
            _ => value_end::<S, STRICT>(skip, text, start, MAX_DEPTH)?,
        };
        if skip_blank(text, end) != text.len() {
            return Err(Fault::Syntax);
        }
        match first {
            b'{' if found.repeated => Err(Fault::RepeatedKey),
            b'{' => classify(text, &found.envelope),
            b'[' => Ok(Kind::Batch),
            _ => Err(Fault::NotAMessage),
        }
    }
}

/// Reads the members of the top-level object from `at` on. Returns the index after its end.
#[inline(always)]
fn message<S: Skip, const STRICT: bool>(
    skip: S,
    text: &[u8],
    at: usize,
    found: &mut Found,
) -> Result<usize, Fault> {
    let Found { envelope, repeated } = found;
    let Envelope {
        version,
        id,
        method,
        params,
        result,
        error,
        session,
        request_id,
        top_session,
        pool,
        ambiguous,
        has_other_members,
    } = envelope;
    let mut members = Members::new(at);
    let mut plain = EMPTY_KEY_BUFFER;
    while let Some(key) = members.next::<S, STRICT>(skip, text, &mut plain)? {
        let at = members.at;
        let (slot, routed) = match key {
            b"jsonrpc" => (&mut *version, None),
            b"id" => (&mut *id, None),
            b"method" => (&mut *method, None),
            b"params" => (&mut *params, Some(Some(&mut *request_id))),
            b"result" => (&mut *result, Some(None)),
            b"error" => (&mut *error, None),
            b"sessionId" => (&mut *top_session, None),
            b"pool" => (&mut *pool, None),
            _ => {
                *has_other_members = true;
                *repeated |= lookalike::is_like_top_key(key);
                *ambiguous |= lookalike::is_like_routing_key(key);
                members.at = value_end::<S, STRICT>(skip, text, at, MAX_DEPTH - 1)?;
                continue;
            }
        };
        *repeated |= slot.is_some();
        // Present but empty until the end of the value is known, so that the head of a cut message shows
        // its keys.
        *slot = Span::new(at, at);
        members.at = match routed {
            Some(request_id) if byte(text, at) == b'{' => {
                let routed = RoutingFields { session, request_id, repeated, ambiguous };
                scan_fields::<S, STRICT>(skip, text, at + 1, routed)?
            }
            _ => value_end::<S, STRICT>(skip, text, at, MAX_DEPTH - 1)?,
        };
        *slot = Span::new(at, members.at);
    }
    Ok(members.at)
}

struct RoutingFields<'a> {
    session: &'a mut Span,
    request_id: Option<&'a mut Span>,
    repeated: &'a mut bool,
    ambiguous: &'a mut bool,
}

/// Reads the members of `params` or `result` from `at` on. Returns the index after its end.
#[inline(always)]
fn scan_fields<S: Skip, const STRICT: bool>(
    skip: S,
    text: &[u8],
    at: usize,
    routed: RoutingFields<'_>,
) -> Result<usize, Fault> {
    let RoutingFields { session, mut request_id, repeated, ambiguous } = routed;
    let mut members = Members::new(at);
    let mut plain = EMPTY_KEY_BUFFER;
    while let Some(key) = members.next::<S, STRICT>(skip, text, &mut plain)? {
        let at = members.at;
        let slot = match key {
            b"sessionId" => Some(&mut *session),
            b"requestId" => request_id.as_deref_mut(),
            _ => {
                *ambiguous |= lookalike::is_like_routing_key(key);
                None
            }
        };
        members.at = value_end::<S, STRICT>(skip, text, at, MAX_DEPTH - 2)?;
        if let Some(slot) = slot {
            *repeated |= slot.is_some();
            *slot = Span::new(at, members.at);
        }
    }
    Ok(members.at)
}

/// Iterates over the members of an object. The caller moves `at` from the value to the index after it.
struct Members {
    at: usize,
    first: bool,
}

impl Members {
    #[inline(always)]
    fn new(at: usize) -> Self {
        Self { at, first: true }
    }

    /// Returns the next key, with `at` at its value, or `None`, with `at` after the closing bracket.
    ///
    /// A key with escapes is unescaped into `plain` if it can be a routing key; otherwise it is returned as
    /// written. No routing key has a backslash, so the result serves both comparisons: with routing keys
    /// and with similar keys. Storing the position of the key in `self` for the second comparison made the
    /// scan of a short message 4 % slower.
    #[inline(always)]
    fn next<'a, S: Skip, const STRICT: bool>(
        &mut self,
        skip: S,
        text: &'a [u8],
        plain: &'a mut [u8; 16],
    ) -> Result<Option<&'a [u8]>, Fault> {
        let mut at = skip_blank(text, self.at);
        match byte(text, at) {
            b'}' => {
                self.at = at + 1;
                return Ok(None);
            }
            b',' if !self.first => at = skip_blank(text, at + 1),
            _ if !self.first => return Err(Fault::Syntax),
            _ => self.first = false,
        }
        if byte(text, at) != b'"' {
            return Err(Fault::Syntax);
        }
        let start = at + 1;
        let end = string_end::<S, STRICT>(skip, text, start)?;
        at = skip_blank(text, end.quote + 1);
        if byte(text, at) != b':' {
            return Err(Fault::Syntax);
        }
        self.at = skip_blank(text, at + 1);
        let key = &text[start..end.quote];
        Ok(Some(if end.escaped { unescape_short(key, plain) } else { key }))
    }
}

#[inline(always)]
fn string_end<S: Skip, const STRICT: bool>(
    skip: S,
    text: &[u8],
    at: usize,
) -> Result<skip::StringEnd, Fault> {
    if STRICT { skip.strict_string(text, at) } else { skip.string(text, at) }.ok_or(Fault::Syntax)
}

#[inline(always)]
fn value_end<S: Skip, const STRICT: bool>(
    skip: S,
    text: &[u8],
    at: usize,
    levels: u32,
) -> Result<usize, Fault> {
    match byte(text, at) {
        b'"' => Ok(string_end::<S, STRICT>(skip, text, at + 1)?.quote + 1),
        b'{' | b'[' if STRICT => skip.run(Container { text, at, levels }),
        b'{' | b'[' => skip.container(text, at + 1, levels).map_err(|fault| match fault {
            ContainerFault::Unclosed => Fault::Syntax,
            ContainerFault::TooDeep => Fault::TooDeep,
        }),
        _ => grammar::scalar_end(text, at),
    }
}

/// A buffer large enough for any routing key.
const EMPTY_KEY_BUFFER: [u8; 16] = [0; 16];

/// Returns a key without its escapes. Keys that cannot be routing keys (too long, not ASCII, with a
/// backslash) are returned as written, so a backslash in the result always begins an escape.
#[cold]
fn unescape_short<'a>(key: &'a [u8], plain: &'a mut [u8; 16]) -> &'a [u8] {
    let mut length = 0;
    let mut at = 0;
    while let Some(&first) = key.get(at) {
        let (character, width) = match (first, key.get(at + 1)) {
            (b'\\', Some(b'u')) => match decode_ascii(key.get(at + 2..at + 6)) {
                Some(character) if character != b'\\' => (character, 6),
                _ => return key,
            },
            // No other escape encodes a character of a routing key.
            (b'\\', _) => return key,
            (other, _) => (other, 1),
        };
        let Some(slot) = plain.get_mut(length) else { return key };
        *slot = character;
        length += 1;
        at += width;
    }
    &plain[..length]
}

fn decode_ascii(digits: Option<&[u8]>) -> Option<u8> {
    let [b'0', b'0', high @ b'0'..=b'7', low] = digits? else { return None };
    let low = char::from(*low).to_digit(16)?;
    Some((high - b'0') << 4 | u8::try_from(low).ok()?)
}

/// Determines the kind of a message from its fields.
#[inline(always)]
fn classify(text: &[u8], envelope: &Envelope) -> Result<Kind, Fault> {
    let answers = envelope.result.is_some() || envelope.error.is_some();
    let version = envelope.version.slice(text) == Some(b"\"2.0\"");
    let id = envelope.id.slice(text);
    match envelope.method.slice(text) {
        None if answers => match id {
            Some(id) if version && (is_id(id) || id == b"null") => Ok(Kind::Response),
            _ => Err(Fault::BadResponse),
        },
        _ if !version => Err(Fault::Version),
        None => Err(Fault::NoMethod),
        Some(method) if !is_text(method) => Err(Fault::BadMethod),
        Some(_) if answers => Err(Fault::Mixed),
        Some(_) => match id {
            None => Ok(Kind::Notification),
            Some(id) if !is_id(id) => Err(Fault::BadId),
            Some(_) => match envelope.params.slice(text) {
                None | Some([b'{' | b'[', ..] | b"null") => Ok(Kind::Request),
                Some(_) => Err(Fault::BadParams),
            },
        },
    }
}

/// Returns `true` if `raw` is a string that can be decoded. A lone surrogate is grammatical but cannot.
#[inline(always)]
fn is_text(raw: &[u8]) -> bool {
    raw[0] == b'"' && (memchr::memchr(b'\\', raw).is_none() || can_unescape(raw))
}

#[cold]
fn can_unescape(raw: &[u8]) -> bool {
    serde_json::from_slice::<Cow<'_, str>>(raw).is_ok()
}

/// Returns the ranges of up to `max` elements of an array whose grammar was checked.
pub(crate) fn entries(text: &[u8], max: usize) -> Vec<core::ops::Range<usize>> {
    skip::run(Entries { text, max })
}

struct Entries<'a> {
    text: &'a [u8],
    max: usize,
}

impl Job for Entries<'_> {
    type Out = Vec<core::ops::Range<usize>>;

    #[inline(always)]
    fn run<S: Skip>(self, skip: S) -> Self::Out {
        let Self { text, max } = self;
        let mut entries = Vec::new();
        let mut at = skip_blank(text, skip_blank(text, 0) + 1);
        while entries.len() < max
            && let Ok(end) = value_end::<S, false>(skip, text, at, MAX_DEPTH)
        {
            entries.push(at..end);
            at = skip_blank(text, skip_blank(text, end) + 1);
        }
        entries
    }
}
