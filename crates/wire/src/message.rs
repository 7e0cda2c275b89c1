//! Writes new messages, each on one line without its line end.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

use crate::error::RpcError;

/// Initial capacity of a new message. Most messages are shorter.
const TYPICAL_MESSAGE_BYTES: usize = 256;

/// Size of the buffer that several messages of a template share.
const TEMPLATE_BUFFER_BYTES: usize = 4 << 10;

/// Writes a request.
///
/// # Errors
/// If `params` cannot be serialized.
pub fn request<P: Serialize + ?Sized>(
    id: &[u8],
    method: &str,
    params: &P,
) -> Result<Bytes, serde_json::Error> {
    let mut line = begin_response(id);
    line.push(b',');
    write_call(line, method, params)
}

/// Writes a notification.
///
/// # Errors
/// If `params` cannot be serialized.
pub fn notification<P: Serialize + ?Sized>(method: &str, params: &P) -> Result<Bytes, serde_json::Error> {
    let mut line = Vec::with_capacity(TYPICAL_MESSAGE_BYTES);
    line.extend_from_slice(br#"{"jsonrpc":"2.0","#);
    write_call(line, method, params)
}

/// Writes a successful response.
///
/// # Errors
/// If `result` cannot be serialized.
pub fn response<R: Serialize + ?Sized>(id: &[u8], result: &R) -> Result<Bytes, serde_json::Error> {
    let mut line = begin_response(id);
    line.extend_from_slice(br#","result":"#);
    serde_json::to_writer(&mut line, result)?;
    Ok(close_line(line))
}

/// Writes an error response.
#[must_use]
pub fn error(id: &[u8], error: &RpcError) -> Bytes {
    let mut line = begin_response(id);
    line.extend_from_slice(br#","error":"#);
    serde_json::to_writer(&mut line, error).expect("an error is plain data with string keys");
    close_line(line)
}

/// Adds `sessionId` to the top level of `line`, for routers that do not read `params`.
///
/// `raw` must be a JSON string with quotes, and `line` an object with at least one member.
#[must_use]
pub fn with_session_tag(line: &[u8], raw: &[u8]) -> Bytes {
    const KEY: &[u8] = br#"{"sessionId":"#;
    let mut tagged = Vec::with_capacity(line.len() + KEY.len() + raw.len() + 1);
    tagged.extend_from_slice(KEY);
    tagged.extend_from_slice(raw);
    tagged.push(b',');
    tagged.extend_from_slice(line.strip_prefix(b"{").unwrap_or(line));
    tagged.into()
}

/// A message in which one string varies. Several results share a buffer, which is freed with the last of
/// them.
#[derive(Debug)]
pub struct MessageTemplate {
    start: Vec<u8>,
    end: Vec<u8>,
    room: BytesMut,
}

impl MessageTemplate {
    /// Creates a template from `line`, in which only brackets may follow an empty string. Returns `None`
    /// for other lines.
    #[must_use]
    pub fn from_line(line: &[u8]) -> Option<Self> {
        let is_bracket = |byte: &u8| matches!(byte, b'}' | b']');
        let closed = line.iter().rposition(|byte| !is_bracket(byte))? + 1;
        let start = line[..closed].strip_suffix(b"\"\"")?;
        // If the two quotes follow a backslash, the first one is escaped and opens no string.
        if !matches!(start.last(), Some(b':' | b',' | b'[')) {
            return None;
        }
        Some(Self { start: start.to_vec(), end: line[closed..].to_vec(), room: BytesMut::new() })
    }

    /// Returns the message with `text` in place of the empty string.
    #[must_use]
    pub fn fill(&mut self, text: &str) -> Bytes {
        let length = self.start.len() + text.len() + 2 + self.end.len();
        if self.room.capacity() < length {
            self.room.reserve(length.max(TEMPLATE_BUFFER_BYTES));
        }
        self.room.extend_from_slice(&self.start);
        serde_json::to_writer((&mut self.room).writer(), text).expect("text is plain data");
        self.room.extend_from_slice(&self.end);
        self.room.split().freeze()
    }
}

fn begin_response(id: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(TYPICAL_MESSAGE_BYTES);
    line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    line.extend_from_slice(id);
    line
}

fn write_call<P: Serialize + ?Sized>(
    mut line: Vec<u8>,
    method: &str,
    params: &P,
) -> Result<Bytes, serde_json::Error> {
    line.extend_from_slice(br#""method":"#);
    serde_json::to_writer(&mut line, method)?;
    line.extend_from_slice(br#","params":"#);
    serde_json::to_writer(&mut line, params)?;
    Ok(close_line(line))
}

/// Adds the closing bracket and replaces line ends.
fn close_line(mut line: Vec<u8>) -> Bytes {
    line.push(b'}');
    // Raw JSON of a caller may span several lines. Line ends inside strings are always escaped, so the ones
    // here are white space.
    if memchr::memchr2(b'\n', b'\r', &line).is_some() {
        for byte in &mut line {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
    }
    line.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;
    use crate::{Code, Frame, Kind};

    fn check(line: &Bytes, kind: Kind, text: &str) {
        assert_eq!(std::str::from_utf8(line).unwrap(), text);
        assert_eq!(Frame::parse(line.clone()).kind(), kind);
    }

    #[test]
    fn written_messages_scan_as_the_right_kind() {
        let params = json!({"a": 1});
        check(
            &request(b"7", "x/y", &params).unwrap(),
            Kind::Request,
            r#"{"jsonrpc":"2.0","id":7,"method":"x/y","params":{"a":1}}"#,
        );
        check(
            &notification("x\"y", &params).unwrap(),
            Kind::Notification,
            r#"{"jsonrpc":"2.0","method":"x\"y","params":{"a":1}}"#,
        );
        check(
            &response(br#""seven""#, &params).unwrap(),
            Kind::Response,
            r#"{"jsonrpc":"2.0","id":"seven","result":{"a":1}}"#,
        );
        let refused = error(b"null", &RpcError { code: -1, message: "no".into(), data: None });
        check(&refused, Kind::Response, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}"#);
        assert!(RpcError::new(Code::Internal, "x").is(Code::Internal));
    }

    #[test]
    fn template_messages_differ_only_in_their_text() {
        let line = |text: &str| notification("x", &json!({"a": "b", "b": [{"text": text}]})).unwrap();
        let mut template = MessageTemplate::from_line(&line("")).unwrap();
        let long = "long ".repeat(TEMPLATE_BUFFER_BYTES);
        let texts = ["a", "", "\"quoted\"\n\u{1}", "é", &long, "b"];
        let texts: Vec<&str> = texts.into_iter().chain(["again"; 99]).collect();
        // All results are kept, to check that none is overwritten.
        let lines: Vec<Bytes> = texts.iter().map(|text| template.fill(text)).collect();
        for (text, found) in texts.iter().zip(lines) {
            assert_eq!(found, line(text), "{text}");
        }
        for other in [&*line("something"), &line("\""), br#"{"a":"","b":1}"#, b"{}", b""] {
            assert!(MessageTemplate::from_line(other).is_none(), "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_tag_is_at_the_top_level() {
        let line =
            with_session_tag(&notification("x", &json!({"sessionId": "inner"})).unwrap(), br#""out\"er""#);
        let frame = Frame::parse(line);
        assert_eq!(frame.kind(), Kind::Notification);
        assert_eq!(frame.top_session().as_deref(), Some("out\"er"));
        assert_eq!(frame.session().as_deref(), Some("inner"));
    }

    #[test]
    fn raw_json_over_several_lines_becomes_one() {
        let raw = RawValue::from_string("{\r\n \"a\":\n\"b\\nc\"}".to_owned()).unwrap();
        let line = notification("x", &raw).unwrap();
        assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
        let read: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(read["params"], json!({"a": "b\nc"}));
    }
}
