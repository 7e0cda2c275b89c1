//! The JSON grammar, checked without recursion and without allocation.

use crate::fault::Fault;
use crate::skip::{Job, Skip};

/// How many containers may be open at once.
pub const MAX_DEPTH: u32 = 128;

/// The byte at `at`, or NUL past the end: NUL is valid nowhere, so every end of input falls into the error arm.
#[inline(always)]
pub(crate) fn byte(text: &[u8], at: usize) -> u8 {
    if at < text.len() { text[at] } else { 0 }
}

/// The first index from `at` on that is not white space.
#[inline(always)]
pub(crate) fn blank(text: &[u8], at: usize) -> usize {
    let mut at = at;
    while matches!(byte(text, at), b' ' | b'\t' | b'\n' | b'\r') {
        at += 1;
    }
    at
}

/// The index after the number, `true`, `false` or `null` at `at`.
#[inline(always)]
pub(crate) fn scalar(text: &[u8], at: usize) -> Result<usize, Fault> {
    match byte(text, at) {
        b't' => word(text, at, b"true"),
        b'f' => word(text, at, b"false"),
        b'n' => word(text, at, b"null"),
        _ => number(text, at),
    }
}

/// The index after `expected`, which should stand at `at`.
#[inline(always)]
fn word<const N: usize>(text: &[u8], at: usize, expected: &[u8; N]) -> Result<usize, Fault> {
    // With the length in its type this is one or two comparisons of whole words.
    if text[at..].first_chunk() == Some(expected) { Ok(at + N) } else { Err(Fault::Syntax) }
}

/// The index after the number at `at`.
#[inline(always)]
fn number(text: &[u8], at: usize) -> Result<usize, Fault> {
    let at = if byte(text, at) == b'-' { at + 1 } else { at };
    let mut at = match byte(text, at) {
        b'0' => at + 1,
        b'1'..=b'9' => digits(text, at + 1),
        _ => return Err(Fault::Syntax),
    };
    if byte(text, at) == b'.' {
        at = some_digits(text, at + 1)?;
    }
    if matches!(byte(text, at), b'e' | b'E') {
        at += 1;
        if matches!(byte(text, at), b'+' | b'-') {
            at += 1;
        }
        at = some_digits(text, at)?;
    }
    Ok(at)
}

#[inline(always)]
fn digits(text: &[u8], at: usize) -> usize {
    let mut at = at;
    while byte(text, at).is_ascii_digit() {
        at += 1;
    }
    at
}

#[inline(always)]
fn some_digits(text: &[u8], at: usize) -> Result<usize, Fault> {
    let end = digits(text, at);
    if end > at { Ok(end) } else { Err(Fault::Syntax) }
}

/// The index after the container whose opening bracket is at `at`, every byte of it checked.
pub(crate) struct Container<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) at: usize,
    /// How many containers may be open at once, this one included; at most [`MAX_DEPTH`].
    pub(crate) levels: u32,
}

impl Job for Container<'_> {
    type Out = Result<usize, Fault>;

    #[inline(always)]
    fn run<S: Skip>(self, skip: S) -> Self::Out {
        container(skip, self.text, self.at, self.levels)
    }
}

#[inline(always)]
fn container<S: Skip>(skip: S, text: &[u8], at: usize, levels: u32) -> Result<usize, Fault> {
    // One bit per open container, the innermost lowest: set for an object, clear for an array.
    let mut kinds: u128 = 0;
    let mut open = 0;
    let mut at = at;
    'value: loop {
        match byte(text, at) {
            b'"' => at = skip.strict_string(text, at + 1).ok_or(Fault::Syntax)?.quote + 1,
            opening @ (b'{' | b'[') => {
                if open == levels {
                    return Err(Fault::TooDeep);
                }
                open += 1;
                let object = opening == b'{';
                kinds = kinds << 1 | u128::from(object);
                at = blank(text, at + 1);
                if byte(text, at) == opening + 2 {
                    // Empty: fall through to where every container closes.
                } else if object {
                    at = key(skip, text, at)?;
                    continue 'value;
                } else {
                    continue 'value;
                }
            }
            _ => at = scalar(text, at)?,
        }
        loop {
            at = blank(text, at);
            let object = kinds & 1 == 1;
            match byte(text, at) {
                b',' => {
                    at = blank(text, at + 1);
                    if object {
                        at = key(skip, text, at)?;
                    }
                    continue 'value;
                }
                b'}' if object => {}
                b']' if !object => {}
                _ => return Err(Fault::Syntax),
            }
            at += 1;
            open -= 1;
            kinds >>= 1;
            if open == 0 {
                return Ok(at);
            }
        }
    }
}

/// The index of the value that belongs to the key whose opening quote should be at `at`.
#[inline(always)]
fn key<S: Skip>(skip: S, text: &[u8], at: usize) -> Result<usize, Fault> {
    if byte(text, at) != b'"' {
        return Err(Fault::Syntax);
    }
    let end = skip.strict_string(text, at + 1).ok_or(Fault::Syntax)?;
    let at = blank(text, end.quote + 1);
    if byte(text, at) == b':' { Ok(blank(text, at + 1)) } else { Err(Fault::Syntax) }
}
