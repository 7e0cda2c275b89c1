//! A JSON parser that keeps positions. A trailing comma and text after the end are only warnings.

use crate::finding::Findings;
use crate::tree::{Node, TableEntry, ValueKind};

const MAX_DEPTH: usize = 64;

/// The result of a parsing step. An error consists of its byte offset and its message.
type Read<T> = Result<T, (usize, &'static str)>;

impl Node {
    /// Parses a whole JSON file. Returns `None` if the file has an error, which is recorded.
    #[must_use]
    pub fn from_json(findings: &Findings<'_>) -> Option<Self> {
        let mut reader = Reader { findings, text: findings.text().as_bytes(), at: 0 };
        reader.document().map_err(|(at, what)| findings.error(at, format!("invalid JSON: {what}"), None)).ok()
    }
}

struct Reader<'a> {
    findings: &'a Findings<'a>,
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn document(&mut self) -> Read<Node> {
        if self.text.starts_with("\u{feff}".as_bytes()) {
            self.at = "\u{feff}".len();
        }
        let node = self.value(0)?;
        if self.peek().is_some() {
            self.findings.warning(self.at, "text after the end of the object is ignored");
        }
        Ok(node)
    }

    fn peek(&mut self) -> Option<u8> {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Read<Node> {
        let next = self.peek();
        let at = self.at;
        if depth > MAX_DEPTH {
            return Err((at, "lists and objects are nested too deeply"));
        }
        let kind = match next {
            Some(b'"') => ValueKind::Text(self.string()?),
            Some(b'{') => ValueKind::Table(self.entries(depth)?),
            Some(b'[') => ValueKind::List(self.list(depth)?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b'a'..=b'z') => self.word()?,
            Some(_) => return Err((at, "a value is expected here")),
            None => return Err((at, "the file ends too early")),
        };
        Ok(Node { at, kind })
    }

    fn entries(&mut self, depth: usize) -> Read<Vec<TableEntry>> {
        let mut entries: Vec<TableEntry> = Vec::new();
        self.at += 1;
        while self.more(b'}', entries.is_empty())? {
            let at = self.at;
            if self.peek() != Some(b'"') {
                return Err((at, "a key in double quotes is expected here"));
            }
            let key = self.string()?;
            if entries.iter().any(|entry| entry.key == key) {
                return Err((at, "duplicate key"));
            }
            if !self.take(b':') {
                return Err((self.at, "a colon is expected here"));
            }
            entries.push(TableEntry { at, key, name: None, node: self.value(depth + 1)? });
        }
        Ok(entries)
    }

    fn list(&mut self, depth: usize) -> Read<Vec<Node>> {
        let mut nodes = Vec::new();
        self.at += 1;
        while self.more(b']', nodes.is_empty())? {
            nodes.push(self.value(depth + 1)?);
        }
        Ok(nodes)
    }

    /// Returns `true` if another entry follows in a list or object. Otherwise moves past the bracket `end`.
    fn more(&mut self, end: u8, first: bool) -> Read<bool> {
        if self.peek().is_none() {
            return Err((self.at, "the file ends too early"));
        }
        if self.take(end) {
            return Ok(false);
        }
        if first {
            return Ok(true);
        }
        let comma = self.at;
        if !self.take(b',') {
            let object = end == b'}';
            let what =
                if object { "a comma or `}` is expected here" } else { "a comma or `]` is expected here" };
            return Err((comma, what));
        }
        if self.take(end) {
            self.findings.warning(comma, "trailing comma");
            return Ok(false);
        }
        Ok(true)
    }

    fn string(&mut self) -> Read<String> {
        let start = self.at;
        let mut end = start + 1;
        loop {
            match self.text.get(end) {
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
                None => return Err((start, "the text has no closing quote")),
            }
        }
        self.at = end + 1;
        serde_json::from_slice(&self.text[start..=end])
            .map_err(|_| (start, "the text has a control character or an invalid escape"))
    }

    fn number(&mut self) -> Read<ValueKind> {
        let start = self.at;
        let part = |byte: &&u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
        let length = self.text[start..].iter().take_while(part).count();
        self.at += length;
        let digits = &self.text[start..self.at];
        let text = str::from_utf8(digits).unwrap_or_default();
        // The grammar of numbers is left to serde_json, which refuses for example `01`.
        let number: f64 = serde_json::from_slice(digits).map_err(|_| (start, "invalid number"))?;
        let whole = !text.contains(['.', 'e', 'E']);
        Ok(if whole {
            ValueKind::Integer(text.parse().unwrap_or(i128::MAX))
        } else {
            ValueKind::Float(number)
        })
    }

    fn word(&mut self) -> Read<ValueKind> {
        let start = self.at;
        let length = self.text[start..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        self.at += length;
        match &self.text[start..self.at] {
            b"true" => Ok(ValueKind::Bool(true)),
            b"false" => Ok(ValueKind::Bool(false)),
            b"null" => Ok(ValueKind::Null),
            _ => Err((start, "a value is expected here; a text needs double quotes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn read(text: &str) -> Result<(Value, usize), String> {
        let findings = Findings::new("f", text);
        let made = Node::from_json(&findings).map(|node| node.to_json());
        let (errors, warnings) = findings.into_errors_and_warnings();
        match made.filter(|_| errors.is_empty()) {
            Some(value) => Ok((value, warnings.len())),
            None => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
        }
    }

    #[test]
    fn a_trailing_comma_and_text_after_the_end_are_warnings() {
        #[track_caller]
        fn check(text: &str, value: &str, warnings: usize) {
            assert_eq!(read(text), Ok((serde_json::from_str(value).unwrap(), warnings)), "{text}");
        }
        check(
            r#" {"a": [1, -2, 1.5, "xä\n", true, false, null], "b": {}} "#,
            r#"{"a":[1,-2,1.5,"xä\n",true,false,null],"b":{}}"#,
            0,
        );
        check("{\"a\": [1, ], }", r#"{"a":[1]}"#, 2);
        check("\u{feff}[] {", "[]", 1);
    }

    #[test]
    fn invalid_json_is_an_error_with_a_position() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            assert_eq!(read(text).unwrap_err(), format!("f:{expected}"), "{text}");
        }
        check("", "1:1: invalid JSON: the file ends too early");
        check("{", "1:2: invalid JSON: the file ends too early");
        check("{\n\"a\" 1}", "2:5: invalid JSON: a colon is expected here");
        check("{\n a: 1}", "2:2: invalid JSON: a key in double quotes is expected here");
        check("[1 2]", "1:4: invalid JSON: a comma or `]` is expected here");
        check("[,]", "1:2: invalid JSON: a value is expected here");
        check("[01]", "1:2: invalid JSON: invalid number");
        check("[nil]", "1:2: invalid JSON: a value is expected here; a text needs double quotes");
        check("{\"a\":1,\n\"a\":2}", "2:1: invalid JSON: duplicate key");
        check("[\"a\\", "1:2: invalid JSON: the text has no closing quote");
        check("[\"\\x\"]", "1:2: invalid JSON: the text has a control character or an invalid escape");
        check(&"[".repeat(1000), "1:66: invalid JSON: lists and objects are nested too deeply");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_json_is_read_as_serde_json_reads_it(text in r#"[\[\]{}:,"a1. \\ä-]{0,24}"#) {
            let Ok(value) = serde_json::from_str::<Value>(&text) else {
                _ = read(&text);
                return Ok(());
            };
            if let Ok((found, warnings)) = read(&text) {
                prop_assert_eq!((found, warnings), (value, 0));
            } else {
                prop_assert!(read(&text).unwrap_err().contains("twice"), "{}", text);
            }
        }
    }
}
