//! The lines of the load: their layouts are so fixed that both ends check every byte without parsing.

use memchr::memmem;

/// The beginning of every request and response; the id follows.
pub(crate) const HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
/// The end of every line of the load; the tag precedes it.
pub(crate) const TAIL: &[u8] = br#""}}}}"#;
pub(crate) const PROMPT_TAIL: &[u8] = br#""}]}}"#;
pub(crate) const PROMPT: &[u8] = br#","method":"session/prompt","params":{"sessionId":""#;
pub(crate) const PROMPT_TEXT: &[u8] = br#"","prompt":[{"type":"text","text":""#;
/// The session field for routers that look for it at the top level.
pub(crate) const TOP: &[u8] = br#""sessionId":""#;
pub(crate) const ANSWER: &[u8] = br#""result":{"stopReason":"end_turn","_meta":{"bench":{"session":""#;
pub(crate) const ANSWER_TEXT: &[u8] = br#"","echo":""#;
pub(crate) const UPDATE_HEAD: &[u8] = br#"{"jsonrpc":"2.0","#;
pub(crate) const UPDATE: &[u8] = br#""method":"session/update","params":{"sessionId":""#;
pub(crate) const UPDATE_TEXT: &[u8] =
    br#"","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#;

pub(crate) const ID: usize = 12;
pub(crate) const SESSION: usize = 16;
/// Digits of a tag: five for the client, seven for the request, four for the chunk.
pub(crate) const TAG: usize = 16;

pub(crate) type Session = [u8; SESSION];

/// The position of the session id in messages, for routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// In the params, as in ACP.
    Acp,
    /// At the top level, also in messages of workers.
    Top,
}

/// The client and number of a message, at the end of every text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) client: u32,
    /// Number of the request among those of the client.
    pub(crate) request: u32,
    /// In an update, its number. In a prompt and its answer, the number of requested updates.
    pub(crate) chunk: u16,
}

impl Tag {
    /// Parses the digits of a tag.
    pub(crate) fn read(digits: &[u8]) -> Option<Self> {
        if digits.len() != TAG {
            return None;
        }
        let chunk = u16::try_from(number(&digits[12..])?).ok()?;
        let client = u32::try_from(number(&digits[..5])?).ok()?;
        Some(Self { client, request: u32::try_from(number(&digits[5..12])?).ok()?, chunk })
    }

    /// Returns the tag of a line of the load that is not a prompt.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_suffix(TAIL)?;
        Self::read(line.get(line.len().checked_sub(TAG)?..)?)
    }

    pub(crate) fn write(self, digits: &mut [u8]) {
        write(&mut digits[..5], u64::from(self.client));
        write(&mut digits[5..12], u64::from(self.request));
        write(&mut digits[12..TAG], u64::from(self.chunk));
    }

    pub(crate) fn text(self) -> String {
        let mut digits = [0; TAG];
        self.write(&mut digits);
        String::from_utf8_lossy(&digits).into_owned()
    }
}

pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
}

/// Fills `place` with the last digits of the number.
pub(crate) fn write(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Returns the session id with this first letter, owner and number.
pub(crate) fn session(letter: u8, owner: u64, number: u64) -> Session {
    let mut session = *b"x0000000-0000000";
    session[0] = letter;
    write(&mut session[1..8], owner);
    write(&mut session[9..], number);
    session
}

/// A line without its id, its session and its tag.
pub(crate) struct Template {
    line: Vec<u8>,
    id: Option<usize>,
    sessions: Vec<usize>,
    tag: usize,
}

/// Bytes for the missing fields. They cannot occur in JSON.
const ID_PLACE: &[u8] = &[1; ID];
const SESSION_PLACE: &[u8] = &[2; SESSION];
const TAG_PLACE: &[u8] = &[3; TAG];

impl Template {
    pub(crate) fn prompt(dialect: Dialect, text: &[u8]) -> Self {
        let top = top(dialect, true);
        Self::new(&[HEAD, ID_PLACE, &top, PROMPT, SESSION_PLACE, PROMPT_TEXT, text, TAG_PLACE, PROMPT_TAIL])
    }

    pub(crate) fn answer(dialect: Dialect, text: &[u8]) -> Self {
        let top = top(dialect, true);
        Self::new(&[HEAD, ID_PLACE, &top, b",", ANSWER, SESSION_PLACE, ANSWER_TEXT, text, TAG_PLACE, TAIL])
    }

    pub(crate) fn update(dialect: Dialect, text: &[u8]) -> Self {
        let top = top(dialect, false);
        Self::new(&[UPDATE_HEAD, &top, UPDATE, SESSION_PLACE, UPDATE_TEXT, text, TAG_PLACE, TAIL])
    }

    fn new(parts: &[&[u8]]) -> Self {
        let line = parts.concat();
        let tag = memmem::find(&line, TAG_PLACE).unwrap_or_default();
        let sessions = memmem::find_iter(&line, SESSION_PLACE).collect();
        Self { id: memmem::find(&line, ID_PLACE), sessions, tag, line }
    }

    pub(crate) fn filled(&mut self, id: u64, session: &Session, tag: Tag) -> &[u8] {
        if let Some(place) = self.id {
            write(&mut self.line[place..place + ID], id);
        }
        for &place in &self.sessions {
            self.line[place..place + SESSION].copy_from_slice(session);
        }
        tag.write(&mut self.line[self.tag..self.tag + TAG]);
        &self.line
    }
}

/// Returns the session field for the top level, with a comma after it or (if `behind`) before it.
fn top(dialect: Dialect, behind: bool) -> Vec<u8> {
    match dialect {
        Dialect::Acp => Vec::new(),
        Dialect::Top if behind => [b",", TOP, SESSION_PLACE, b"\""].concat(),
        Dialect::Top => [TOP, SESSION_PLACE, b"\","].concat(),
    }
}

pub(crate) fn initialize(id: u64, tag: Tag) -> String {
    control(id, tag, "initialize", r#""protocolVersion":1,"clientCapabilities":{},"#)
}

pub(crate) fn new_session(id: u64, tag: Tag) -> String {
    control(id, tag, "session/new", r#""cwd":"/","mcpServers":[],"#)
}

fn control(id: u64, tag: Tag, method: &str, params: &str) -> String {
    let tag = tag.text();
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}"_meta":{{"bench":{{"echo":"{tag}"}}}}}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Tag = Tag { client: 12, request: 345, chunk: 6 };

    #[test]
    fn tags_are_parsed_and_other_text_is_not() {
        assert_eq!(ANY.text(), "0001200003450006");
        assert_eq!(Tag::read(ANY.text().as_bytes()), Some(ANY));
        for wrong in ["", "000120000345000", "00012000034500066", "0001200003450 06"] {
            assert_eq!(Tag::read(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn every_line_is_json_and_all_but_prompts_end_alike() {
        let session = session(b'b', 77, 8);
        assert_eq!(&session, b"b0000077-0000008");
        for dialect in [Dialect::Acp, Dialect::Top] {
            let mut templates = [Template::answer, Template::update, Template::prompt]
                .map(|template| template(dialect, b"abc"));
            for (place, template) in templates.iter_mut().enumerate() {
                let line = template.filled(100_000_000_001, &session, ANY).to_vec();
                let value: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
                let at_top = value["sessionId"].as_str() == Some("b0000077-0000008");
                assert_eq!(at_top, dialect == Dialect::Top);
                assert_eq!(Tag::parse(&line), (place < 2).then_some(ANY));
            }
        }
        for line in [initialize(1, ANY), new_session(2, ANY)] {
            serde_json::from_str::<serde_json::Value>(&line).expect("JSON");
            assert_eq!(Tag::parse(line.as_bytes()), Some(ANY));
        }
    }
}
