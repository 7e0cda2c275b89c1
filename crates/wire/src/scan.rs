//! One pass over a message: what kind it is, and where its routing fields stand.
//!
//! The top level and one level into `params` and `result` are read; everything else is skipped, with its grammar
//! checked ([`Check::Grammar`]) or only its brackets counted ([`Check::Envelope`], for bytes that have been
//! checked before, such as the entries of a batch).

use crate::fault::Fault;
use crate::grammar::{self, MAX_DEPTH, blank, byte};
use crate::skip::{self, ContainerFault, Job, Skip};

/// The longest id that is kept: ids wait in tables, so they must not be as long as a line may be.
const MAX_ID: usize = 4096;

/// How much of a message is checked on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The whole grammar: for everything that comes from outside.
    Grammar,
    /// The envelope alone: for bytes whose grammar is known to be right.
    Envelope,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A method and an id.
    Request,
    /// A method and no id.
    Notification,
    /// A result or an error, and an id.
    Response,
    /// An array; its entries have their own kinds.
    Batch,
    /// Something that may neither be acted on nor forwarded.
    Invalid(Fault),
}

/// A stretch of a message. The default is empty and means absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    #[inline(always)]
    fn new(start: usize, end: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "scan() refuses longer texts")]
        Self { start: start as u32, end: end as u32 }
    }

    /// Whether the field is there.
    #[must_use]
    #[inline]
    pub fn is_some(self) -> bool {
        self.end != 0
    }

    /// Its bytes in `text`, if it is there.
    #[must_use]
    #[inline]
    pub fn of(self, text: &[u8]) -> Option<&[u8]> {
        self.is_some().then(|| &text[self.range()])
    }

    #[inline]
    pub(crate) fn range(self) -> core::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Where the fields of a message stand, values with their quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// `jsonrpc`.
    pub version: Span,
    /// `id`.
    pub id: Span,
    /// `method`.
    pub method: Span,
    /// `params`.
    pub params: Span,
    /// `result`.
    pub result: Span,
    /// `error`.
    pub error: Span,
    /// `params.sessionId` or `result.sessionId`.
    pub session: Span,
    /// `params.requestId`.
    pub request_id: Span,
    /// `sessionId` at the top level.
    pub top_session: Span,
    /// `pool` at the top level.
    pub pool: Span,
}

/// What `text` is and where its fields are. Never fails: what is wrong becomes [`Kind::Invalid`].
///
/// UTF-8 is the caller's to check (see [`crate::Frame::parse`]).
#[must_use]
#[inline]
pub fn scan(text: &[u8], check: Check) -> (Kind, Envelope) {
    let mut envelope = Envelope::default();
    let outcome = match check {
        Check::Grammar => skip::run(Scan::<true> { text, envelope: &mut envelope }),
        Check::Envelope => skip::run(Scan::<false> { text, envelope: &mut envelope }),
    };
    (outcome.unwrap_or_else(Kind::Invalid), envelope)
}

/// The fields that stand complete in the beginning of a message whose rest is not there.
#[must_use]
pub(crate) fn scan_head(text: &[u8]) -> Envelope {
    let (_, mut envelope) = scan(text, Check::Envelope);
    // A number that touches the cut may go on after it.
    if envelope.id.range().end == text.len() {
        envelope.id = Span::default();
    }
    envelope
}

struct Scan<'a, const STRICT: bool> {
    text: &'a [u8],
    envelope: &'a mut Envelope,
}

impl<const STRICT: bool> Job for Scan<'_, STRICT> {
    type Out = Result<Kind, Fault>;

    #[inline(always)]
    fn run<S: Skip>(self) -> Self::Out {
        let Self { text, envelope } = self;
        if u32::try_from(text.len()).is_err() {
            return Err(Fault::TooLong);
        }
        let start = blank(text, 0);
        let kind = match byte(text, start) {
            b'{' => None,
            b'[' => Some(Ok(Kind::Batch)),
            _ => Some(Err(Fault::NotAMessage)),
        };
        let end = match kind {
            None => message::<S, STRICT>(text, start + 1, envelope)?,
            Some(_) => value::<S, STRICT>(text, start, MAX_DEPTH)?,
        };
        if blank(text, end) != text.len() {
            return Err(Fault::Syntax);
        }
        kind.unwrap_or_else(|| judge(text, envelope))
    }
}

/// Reads the members of the top-level object from `at` on.
#[inline(always)]
fn message<S: Skip, const STRICT: bool>(
    text: &[u8],
    at: usize,
    envelope: &mut Envelope,
) -> Result<usize, Fault> {
    let Envelope { version, id, method, params, result, error, session, request_id, top_session, pool } =
        envelope;
    members::<S, STRICT>(text, at, |key, at| {
        let (slot, routed) = match key {
            b"jsonrpc" => (&mut *version, None),
            b"id" => (&mut *id, None),
            b"method" => (&mut *method, None),
            b"params" => (&mut *params, Some(Some(&mut *request_id))),
            b"result" => (&mut *result, Some(None)),
            b"error" => (&mut *error, None),
            b"sessionId" => (&mut *top_session, None),
            b"pool" => (&mut *pool, None),
            _ => return value::<S, STRICT>(text, at, MAX_DEPTH - 1),
        };
        vacant(*slot)?;
        // A first mark before the end is known: the head of a cut message still shows which keys it has.
        *slot = Span::new(at, at + 1);
        let end = match routed {
            Some(request_id) if byte(text, at) == b'{' => {
                inner::<S, STRICT>(text, at + 1, &mut *session, request_id)?
            }
            _ => value::<S, STRICT>(text, at, MAX_DEPTH - 1)?,
        };
        *slot = Span::new(at, end);
        Ok(end)
    })
}

/// Reads the members of `params` or `result` from `at` on.
#[inline(always)]
fn inner<S: Skip, const STRICT: bool>(
    text: &[u8],
    at: usize,
    session: &mut Span,
    mut request_id: Option<&mut Span>,
) -> Result<usize, Fault> {
    members::<S, STRICT>(text, at, |key, at| {
        let slot = match key {
            b"sessionId" => Some(&mut *session),
            b"requestId" => request_id.as_deref_mut(),
            _ => None,
        };
        if let Some(slot) = &slot {
            vacant(**slot)?;
        }
        let end = value::<S, STRICT>(text, at, MAX_DEPTH - 2)?;
        if let Some(slot) = slot {
            *slot = Span::new(at, end);
        }
        Ok(end)
    })
}

#[inline(always)]
fn vacant(slot: Span) -> Result<(), Fault> {
    if slot.is_some() { Err(Fault::RepeatedKey) } else { Ok(()) }
}

/// Walks the members of an object from after its bracket, and returns the index after its end.
///
/// `member` gets each key, unescaped, and the index of its value; it returns the index after the value.
#[inline(always)]
fn members<S: Skip, const STRICT: bool>(
    text: &[u8],
    at: usize,
    mut member: impl FnMut(&[u8], usize) -> Result<usize, Fault>,
) -> Result<usize, Fault> {
    let mut at = blank(text, at);
    if byte(text, at) == b'}' {
        return Ok(at + 1);
    }
    loop {
        if byte(text, at) != b'"' {
            return Err(Fault::Syntax);
        }
        let start = at + 1;
        let end = string::<S, STRICT>(text, start)?;
        at = blank(text, end.quote + 1);
        if byte(text, at) != b':' {
            return Err(Fault::Syntax);
        }
        at = blank(text, at + 1);
        let key = &text[start..end.quote];
        at = if end.escaped {
            let mut plain = [0; 16];
            member(unescape_short(key, &mut plain), at)?
        } else {
            member(key, at)?
        };
        at = blank(text, at);
        match byte(text, at) {
            b',' => at = blank(text, at + 1),
            b'}' => return Ok(at + 1),
            _ => return Err(Fault::Syntax),
        }
    }
}

#[inline(always)]
fn string<S: Skip, const STRICT: bool>(text: &[u8], at: usize) -> Result<skip::StringEnd, Fault> {
    if STRICT { S::strict_string(text, at) } else { S::string(text, at) }.ok_or(Fault::Syntax)
}

/// The index after the value at `at`.
#[inline(always)]
fn value<S: Skip, const STRICT: bool>(text: &[u8], at: usize, levels: u32) -> Result<usize, Fault> {
    match byte(text, at) {
        b'"' => Ok(string::<S, STRICT>(text, at + 1)?.quote + 1),
        b'{' | b'[' if STRICT => grammar::container::<S>(text, at, levels),
        b'{' | b'[' => S::container(text, at + 1, levels).map_err(|fault| match fault {
            ContainerFault::Unclosed => Fault::Syntax,
            ContainerFault::TooDeep => Fault::TooDeep,
        }),
        _ => grammar::scalar(text, at),
    }
}

/// A key without its escapes. Keys that cannot be a routing key (too long, not ASCII) come back empty.
#[cold]
fn unescape_short<'a>(key: &[u8], plain: &'a mut [u8; 16]) -> &'a [u8] {
    let mut length = 0;
    let mut at = 0;
    while let Some(&first) = key.get(at) {
        let (character, width) = match (first, key.get(at + 1)) {
            (b'\\', Some(b'u')) => {
                let code = key.get(at + 2..at + 6).and_then(|hex| core::str::from_utf8(hex).ok());
                match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(code) => (code, 6),
                    None => return &[],
                }
            }
            // None of the other escapes gives a character of a routing key.
            (b'\\', _) => return &[],
            (other, _) => (other, 1),
        };
        if length == plain.len() || !character.is_ascii() {
            return &[];
        }
        plain[length] = character;
        length += 1;
        at += width;
    }
    &plain[..length]
}

/// What the fields that were found make of a message.
#[inline(always)]
fn judge(text: &[u8], envelope: &Envelope) -> Result<Kind, Fault> {
    let answers = envelope.result.is_some() || envelope.error.is_some();
    let version = envelope.version.of(text) == Some(b"\"2.0\"");
    let id = envelope.id.of(text);
    match envelope.method.of(text) {
        None if answers => match id {
            Some(id) if version && (is_id(id) || id == b"null") => Ok(Kind::Response),
            _ => Err(Fault::BadResponse),
        },
        _ if !version => Err(Fault::Version),
        None => Err(Fault::NoMethod),
        Some(method) if method[0] != b'"' => Err(Fault::BadMethod),
        Some(_) if answers => Err(Fault::Mixed),
        Some(_) => match id {
            None => Ok(Kind::Notification),
            Some(id) if !is_id(id) => Err(Fault::BadId),
            Some(_) => match envelope.params.of(text) {
                None | Some([b'{' | b'[', ..] | b"null") => Ok(Kind::Request),
                Some(_) => Err(Fault::BadParams),
            },
        },
    }
}

/// Whether `raw` may be the id of a request.
#[inline(always)]
pub(crate) fn is_id(raw: &[u8]) -> bool {
    matches!(raw[0], b'"' | b'-' | b'0'..=b'9') && raw.len() <= MAX_ID
}

/// The entries of an array whose grammar has been checked.
pub(crate) fn entries(text: &[u8]) -> Vec<core::ops::Range<usize>> {
    skip::run(Entries { text })
}

struct Entries<'a> {
    text: &'a [u8],
}

impl Job for Entries<'_> {
    type Out = Vec<core::ops::Range<usize>>;

    #[inline(always)]
    fn run<S: Skip>(self) -> Self::Out {
        let text = self.text;
        let mut entries = Vec::new();
        let mut at = blank(text, blank(text, 0) + 1);
        while let Ok(end) = value::<S, false>(text, at, MAX_DEPTH) {
            entries.push(at..end);
            at = blank(text, blank(text, end) + 1);
        }
        entries
    }
}
