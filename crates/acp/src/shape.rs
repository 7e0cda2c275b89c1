//! The members of every protocol message and their types.
//!
//! A program that checks and forwards a message must know every member that the receiver may read. A
//! [`Shape`] lists these members. [`Shape::fit`] compares JSON text with it without building a value. The
//! text is copied only if something must be removed.
//!
//! `null` fits everywhere, because readers treat it as a missing member. `_meta` may hold anything in every
//! object, because it belongs to extensions. String values, such as names of kinds and states, are not
//! compared.

/// Defines objects: `NAME { "member": SHAPE, … }`.
macro_rules! objects {
    ($($name:ident { $($member:literal: $shape:expr),* $(,)? })*) => {
        $(pub(super) static $name: Shape = Shape::Object(&[$(($member, &$shape)),*]);)*
    };
}
/// Defines tagged objects: `NAME by "tag" or UNTAGGED else OTHERS { "variant" { "member": SHAPE, … } … }`.
macro_rules! tagged {
    ($($name:ident by $tag:literal $(or $untagged:ident)? $(else $($other:path),+)? {
        $($variant:literal { $($member:literal: $shape:expr),* $(,)? })*
    })*) => {
        $(pub(super) static $name: Shape = Shape::Tagged(super::Tagged {
            tag: $tag,
            variants: &[$(($variant, &[$(($member, &$shape)),*])),*],
            untagged: &[$(&$untagged)?],
            others: &[$($(&$other),+)?],
        });)*
    };
}

mod common;
mod v1;
mod v2;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use narrows_wire::{DuplicateKey, elements, member, members};

use self::common::IMPLEMENTATION;
use crate::method::Side;
use crate::version::Version;

const META: &str = "_meta";

/// Limit of the names of removed members that are reported.
const MAX_NAMES: usize = 16;
const MAX_NAME_CHARS: usize = 128;

/// The type of a value in a protocol message.
#[derive(Debug)]
pub enum Shape {
    /// Any JSON value, because the protocol does not define its content.
    Any,
    Text,
    Bool,
    /// An integer without a sign, a fraction or an exponent.
    Unsigned,
    /// An integer without a fraction or an exponent.
    Integer,
    Number,
    /// The id of a request: a string or an integer.
    Id,
    List(&'static Shape),
    /// An object with arbitrary keys, whose values have this shape.
    Map(&'static Shape),
    Object(&'static [Member]),
    /// An object with one member, the tag, that determines the others.
    Tagged(Tagged),
}

type Member = (&'static str, &'static Shape);

/// An object with one member, the tag, that determines the others.
#[derive(Debug)]
pub struct Tagged {
    tag: &'static str,
    variants: &'static [(&'static str, &'static [Member])],
    /// The shape of an object without the tag. Empty if the tag is required; otherwise one element.
    untagged: &'static [&'static Shape],
    /// The shapes for an unknown tag, in order. The first one that has such a variant, or has no variants,
    /// applies.
    others: &'static [&'static Shape],
}

static ANY: Shape = Shape::Any;
static TEXT: Shape = Shape::Text;
static BOOL: Shape = Shape::Bool;
static UINT: Shape = Shape::Unsigned;
static INT: Shape = Shape::Integer;
static NUMBER: Shape = Shape::Number;
static ID: Shape = Shape::Id;
/// An object without members, except `_meta`.
static EMPTY: Shape = Shape::Object(&[]);

/// The params of `initialize` in both versions, because the version is known only after this request.
static INITIALIZE_PARAMS: Shape = Shape::Object(&[
    ("protocolVersion", &UINT),
    ("clientCapabilities", &v1::CLIENT_CAPABILITIES),
    ("clientInfo", &IMPLEMENTATION),
    ("capabilities", &v2::CLIENT_CAPABILITIES),
    ("info", &IMPLEMENTATION),
]);

/// Method, receiver, shape of the params, shape of the result.
type Row = (&'static str, Side, &'static Shape, &'static Shape);

/// Returns the shape of the params of a method that `receiver` receives on a connection of `version`.
///
/// If only the other version has the method, returns the shape in that version. Returns `None` if no version
/// has it.
pub fn params(version: Version, receiver: Side, method: &str) -> Option<&'static Shape> {
    find(version, receiver, method).map(|(_, _, params, _)| *params)
}

/// Returns the shape of the result of a method that `receiver` received. Chooses the version as [`params`]
/// does.
pub fn result(version: Version, receiver: Side, method: &str) -> Option<&'static Shape> {
    find(version, receiver, method).map(|(.., result)| *result)
}

fn find(version: Version, receiver: Side, method: &str) -> Option<&'static Row> {
    let (own, other) = match version {
        Version::V1 => (v1::METHODS, v2::METHODS),
        Version::V2 => (v2::METHODS, v1::METHODS),
    };
    let mut rows = own.iter().chain(other);
    rows.find(|(name, side, ..)| *name == method && *side == receiver)
}

/// The result of [`Shape::fit`].
#[derive(Debug, PartialEq, Eq)]
pub enum Fit {
    /// The text fits unchanged.
    Whole,
    /// The text fits after some members or elements were removed.
    Part {
        text: Vec<u8>,
        /// Paths of the removed members, such as `update.content.x`. Their number is limited.
        names: Vec<String>,
    },
    Nothing,
}

impl Shape {
    /// Compares valid JSON text with the shape. Removes unknown members, values of another type, unknown
    /// variants, and all but the first of members with equal names.
    pub fn fit(&self, text: &[u8]) -> Fit {
        let mut names = Vec::new();
        match self.keep(text, &mut names) {
            Kept::All => Fit::Whole,
            Kept::Some(text) => Fit::Part { text, names },
            Kept::None => Fit::Nothing,
        }
    }

    fn keep(&self, text: &[u8], names: &mut Vec<String>) -> Kept {
        let first = text.first().copied().unwrap_or_default();
        let fits = match self {
            _ if text == b"null" => true,
            Self::Any => true,
            Self::Text => first == b'"',
            Self::Bool => matches!(first, b't' | b'f'),
            Self::Unsigned => !text.is_empty() && text.iter().all(u8::is_ascii_digit),
            Self::Integer => is_integer(text),
            Self::Number => is_number(first),
            Self::Id => first == b'"' || is_integer(text),
            Self::List(entry) if first == b'[' => return keep_entries(text, entry, names),
            Self::Map(value) if first == b'{' => {
                let mut seen = BTreeSet::new();
                return keep_members(text, names, |name| match seen.insert(name.to_owned()) {
                    true => Found::Known(value),
                    false => Found::Repeated,
                });
            }
            Self::Object(known) if first == b'{' => {
                return keep_members(text, names, member_finder(known, None));
            }
            Self::Tagged(tagged) if first == b'{' => return tagged.keep(text, names),
            Self::List(_) | Self::Map(_) | Self::Object(_) | Self::Tagged(_) => false,
        };
        if fits { Kept::All } else { Kept::None }
    }
}

impl Tagged {
    fn keep(&self, text: &[u8], names: &mut Vec<String>) -> Kept {
        let tag = match member(text, self.tag) {
            Ok(Some(tag)) => decode_string(text.get(tag).unwrap_or_default()),
            Ok(None) => {
                let untagged = self.untagged.first();
                return untagged.map_or(Kept::None, |shape| shape.keep(text, names));
            }
            Err(DuplicateKey) => None,
        };
        let Some(tag) = tag else { return Kept::None };
        let mut keep = |known| keep_members(text, names, member_finder(known, Some(self.tag)));
        if let Some(known) = self.variant(&tag) {
            return keep(known);
        }
        for other in self.others {
            let known = match other {
                Shape::Tagged(other) => other.variant(&tag),
                Shape::Object(known) => Some(*known),
                _ => None,
            };
            if let Some(known) = known {
                return keep(known);
            }
        }
        Kept::None
    }

    fn variant(&self, tag: &str) -> Option<&'static [Member]> {
        self.variants.iter().find(|(name, _)| *name == tag).map(|(_, members)| *members)
    }
}

enum Kept {
    All,
    Some(Vec<u8>),
    None,
}

fn keep_entries(text: &[u8], shape: &Shape, names: &mut Vec<String>) -> Kept {
    let mut edit = Edit::new(text);
    for (index, place) in elements(text).enumerate() {
        let before = names.len();
        let kept = shape.keep(&text[place.clone()], names);
        let name = || Cow::Owned(index.to_string());
        edit.put(place.clone(), place.start, kept, before, name, names);
    }
    edit.finish(b']')
}

/// The treatment of a member of an object.
enum Found {
    Known(&'static Shape),
    Unknown,
    /// An earlier member has the same name, and readers differ in the one they use.
    Repeated,
}

fn keep_members(text: &[u8], names: &mut Vec<String>, mut find: impl FnMut(&str) -> Found) -> Kept {
    let mut edit = Edit::new(text);
    for (key, value) in members(text) {
        let before = names.len();
        let name = decode_string(&text[key.clone()]).unwrap_or_default();
        let kept = match find(&name) {
            Found::Known(shape) => shape.keep(&text[value.clone()], names),
            // Readers treat `null` as a missing member.
            Found::Unknown if &text[value.clone()] == b"null" => Kept::All,
            Found::Unknown | Found::Repeated => Kept::None,
        };
        edit.put(key.start..value.end, value.start, kept, before, || name.clone(), names);
    }
    edit.finish(b'}')
}

/// Returns a function that finds members of an object: the `known` ones, `_meta`, and the tag if there is
/// one.
fn member_finder(known: &'static [Member], tag: Option<&'static str>) -> impl FnMut(&str) -> Found {
    // One bit per member: no object of the protocol has more than 64.
    let mut seen = 0_u64;
    move |name| {
        let (bit, shape) = match known.iter().position(|(known, _)| *known == name) {
            Some(index) => (index + 2, known[index].1),
            None if name == META => (0, &ANY),
            None if tag == Some(name) => (1, &TEXT),
            None => return Found::Unknown,
        };
        let bit = 1_u64.checked_shl(u32::try_from(bit).unwrap_or(u32::MAX)).unwrap_or_default();
        let is_repeated = seen & bit != 0;
        seen |= bit;
        if is_repeated { Found::Repeated } else { Found::Known(shape) }
    }
}

/// An object or array from which misfits are being removed.
struct Edit<'a> {
    text: &'a [u8],
    /// The text without the misfits. `None` while everything fits.
    kept: Option<Vec<u8>>,
    end: usize,
    is_empty: bool,
}

impl<'a> Edit<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, kept: None, end: 1, is_empty: true }
    }

    /// Adds the element at `place`. Its value begins at `value` and is reduced to `kept`. `before` is the
    /// number of recorded names before that value.
    fn put<'n>(
        &mut self,
        place: Range<usize>,
        value: usize,
        kept: Kept,
        before: usize,
        name: impl Fn() -> Cow<'n, str>,
        names: &mut Vec<String>,
    ) {
        if !matches!(kept, Kept::All) {
            let _ = self.kept.get_or_insert_with(|| self.text[..self.end].to_vec());
        }
        if matches!(kept, Kept::None) {
            names.truncate(before);
            if names.len() < MAX_NAMES {
                names.push(shorten(&name()));
            }
            return;
        }
        if matches!(kept, Kept::Some(_)) {
            for inner in &mut names[before..] {
                *inner = shorten(&format!("{}.{inner}", name()));
            }
        }
        if let Some(line) = &mut self.kept {
            if !self.is_empty {
                line.push(b',');
            }
            match kept {
                Kept::Some(inner) => {
                    line.extend_from_slice(&self.text[place.start..value]);
                    line.extend(inner);
                }
                _ => line.extend_from_slice(&self.text[place.clone()]),
            }
        }
        self.is_empty = false;
        self.end = place.end;
    }

    fn finish(self, close: u8) -> Kept {
        match self.kept {
            None => Kept::All,
            Some(mut line) => {
                line.push(close);
                Kept::Some(line)
            }
        }
    }
}

/// Decodes a string that is written with its quotes. Returns `None` for other values.
fn decode_string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if inner.contains(&b'\\') {
        return serde_json::from_slice(raw).ok().map(Cow::Owned);
    }
    std::str::from_utf8(inner).ok().map(Cow::Borrowed)
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn is_number(first: u8) -> bool {
    first == b'-' || first.is_ascii_digit()
}

fn shorten(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests;
