//! Parsing of lines, as far as the oracle needs it.

use narrows_wire::{Part, View};

pub(crate) fn number_in(line: &[u8]) -> Option<usize> {
    let start = memchr::memchr(b'#', line)? + 1;
    let mut number = 0;
    for (at, byte) in line[start..].iter().enumerate() {
        match byte {
            b'0'..=b'9' => number = number * 10 + usize::from(byte - b'0'),
            b'#' if at > 0 => return Some(number),
            _ => return None,
        }
    }
    None
}

/// Returns a message without the parts that may change: the id, and the names of its session and of a child.
pub(crate) fn stripped(view: View<'_>) -> Vec<u8> {
    let line = view.bytes();
    let mut holes: Vec<_> =
        [Part::Id, Part::RequestId, Part::Session].iter().filter_map(|part| view.part_range(*part)).collect();
    let announces = b"\"subagent_update\",\"sessionId\":";
    if let Some(at) = memchr::memmem::find(line, announces).map(|at| at + announces.len()) {
        holes.push(at..at + memchr::memchr(b',', &line[at..]).unwrap_or(0));
    }
    holes.sort_by_key(|hole| hole.start);
    let mut rest = Vec::with_capacity(line.len());
    let mut at = 0;
    for hole in holes {
        rest.extend_from_slice(&line[at..hole.start]);
        rest.push(b'_');
        at = hole.end;
    }
    rest.extend_from_slice(&line[at..]);
    rest
}

/// Returns `true` if output equals input, except for an inserted top-level `sessionId`.
pub(super) fn is_same(said: &[u8], heard: &[u8]) -> bool {
    let rest = || {
        let rest = heard.strip_prefix(b"{\"sessionId\":\"")?;
        let end = memchr::memchr(b',', rest)?;
        said.strip_prefix(b"{").map(|said| said == &rest[end + 1..])
    };
    said == heard || rest().unwrap_or(false)
}

pub(crate) fn text_of(line: &[u8], key: &str) -> Option<String> {
    let raw = value_of(line, key)?.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    Some(String::from_utf8_lossy(raw).into_owned())
}

pub(super) fn names_in(list: &[u8]) -> Vec<String> {
    let key = b"\"sessionId\":\"";
    memchr::memmem::find_iter(list, key)
        .filter_map(|at| {
            let rest = &list[at + key.len()..];
            Some(String::from_utf8_lossy(&rest[..memchr::memchr(b'"', rest)?]).into_owned())
        })
        .collect()
}

pub(crate) fn entries(array: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let (mut depth, mut start, mut quoted, mut escaped) = (0_u32, 1, false, false);
    for (at, byte) in array.iter().enumerate() {
        if quoted {
            quoted = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    found.push(array[start..at].trim_ascii());
                }
            }
            b',' if depth == 1 => {
                found.push(array[start..at].trim_ascii());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|entry| !entry.is_empty());
    found
}

/// Returns the first value of `"key":` up to the next separator.
pub(super) fn value_of<'a>(text: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let key = format!("\"{key}\":");
    let start = memchr::memmem::find(text, key.as_bytes())? + key.len();
    let rest = &text[start..];
    let end = memchr::memchr3(b',', b'}', b']', rest).unwrap_or(rest.len());
    Some(&rest[..end])
}
