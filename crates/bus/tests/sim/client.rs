//! A simulated client: chooses its next message and handles what it receives.

use narrows_wire::{Kind, View};

use crate::oracle::{ClientMessage, ConnIndex, TOO_LONG, Tag, entries, stripped};
use crate::random::Random;
use crate::scenario::PoolTraits;

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: Vec<u8>,
    pub(crate) tag: Tag,
    pub(crate) method: &'static str,
    pub(crate) session: Option<String>,
}

#[derive(Debug)]
pub(crate) struct SimClient {
    pub(crate) conn: ConnIndex,
    pub(crate) pool: usize,
    pub(crate) traits: PoolTraits,
    pub(crate) greeted: bool,
    pub(crate) greeting: bool,
    pub(crate) flight: Vec<Waiting>,
    pub(crate) sessions: Vec<String>,
    /// Ids of pending requests of workers.
    pub(crate) questions: Vec<Vec<u8>>,
    pub(crate) asleep: bool,
    /// `true` if the client names a pool, because its listener has another default pool.
    pub(crate) chooses: bool,
    counter: usize,
    style: usize,
}

/// A line, and its meaning for the oracle.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) text: Vec<u8>,
    pub(crate) said: Vec<ClientMessage>,
    pub(crate) array: bool,
    /// `true` if the text is only the beginning of a line that is too long.
    pub(crate) long: bool,
}

impl SimClient {
    pub(crate) fn new(conn: ConnIndex, pool: usize, traits: PoolTraits, random: &mut Random) -> Self {
        Self {
            conn,
            pool,
            traits,
            greeted: traits.is_plain(),
            greeting: false,
            flight: Vec::new(),
            sessions: Vec::new(),
            questions: Vec::new(),
            asleep: false,
            chooses: false,
            counter: 0,
            style: random.below(4),
        }
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.counter > 0
    }

    fn fresh_id(&mut self, random: &mut Random) -> Vec<u8> {
        loop {
            let style = if self.style == 3 { random.below(6) } else { self.style };
            let number = if self.style == 3 { random.below(5) } else { self.counter };
            self.counter += 1;
            let id = match style {
                0 => format!("{number}"),
                1 => format!("\"{number}\""),
                2 => format!("\"k-{number}\""),
                3 => format!("-{}", number + 1),
                4 => format!("{number}.50"),
                _ => format!("\"\\u00e9\\\"{number}\""),
            };
            if !self.flight.iter().any(|waiting| waiting.id == id.as_bytes()) {
                return id.into_bytes();
            }
        }
    }

    pub(crate) fn request(
        &mut self,
        tag: Tag,
        method: &'static str,
        session: Option<String>,
        pad: usize,
        random: &mut Random,
    ) -> Line {
        let id = self.fresh_id(random);
        self.request_with_id(id, tag, method, session, pad, random)
    }

    pub(crate) fn request_with_id(
        &mut self,
        id: Vec<u8>,
        tag: Tag,
        method: &'static str,
        session: Option<String>,
        pad: usize,
        random: &mut Random,
    ) -> Line {
        let shown = String::from_utf8_lossy(&id).into_owned();
        let extra = match method {
            "initialize" => format!(
                "\"protocolVersion\":{},\"clientCapabilities\":{{}},\"clientInfo\":{{\"name\":\"x\",\"version\":\"1\"}},\"info\":{{\"name\":\"x\",\"version\":\"1\"}},\"capabilities\":{{}},",
                self.traits.version()
            ),
            // The server belongs to this connection and this session.
            "session/new" | "session/load" | "session/resume" if random.one_in(2) => format!(
                "\"cwd\":\"/w\",\"mcpServers\":[{{\"type\":\"acp\",\"name\":\"m\",\"serverId\":\"m{}-{tag}\"}}],",
                self.conn
            ),
            "session/new" | "session/load" | "session/resume" | "session/fork" => {
                "\"cwd\":\"/w\",\"mcpServers\":[],".to_owned()
            }
            "session/prompt" => {
                format!("\"prompt\":[{{\"type\":\"text\",\"text\":\"{}\"}}],", "x".repeat(pad))
            }
            _ => String::new(),
        };
        let (mut top, inner) = match &session {
            Some(name) if self.traits.is_plain() && random.one_in(2) => {
                (format!("\"sessionId\":\"{name}\","), String::new())
            }
            Some(name) => (String::new(), format!("\"sessionId\":\"{name}\",")),
            None => (String::new(), String::new()),
        };
        let mut pool = String::new();
        if self.chooses && self.traits.is_plain() {
            top.push_str(&format!("\"pool\":\"p{}\",", self.pool));
        } else if self.chooses && method == "initialize" {
            pool = format!(",\"narrows/pool\":\"p{}\"", self.pool);
        }
        let text = if random.one_in(3) {
            format!("{{{top}\"method\":\"{method}\",\"params\":{{{inner}{extra}\"_meta\":{{\"n\":\"#{tag}#\"{pool}}}}},\"id\":{shown},\"jsonrpc\":\"2.0\"}}")
        } else {
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{shown},\"method\":\"{method}\",{top}\"params\":{{\"_meta\":{{\"n\":\"#{tag}#\"{pool}}},{inner}{extra}\"z\": 1}}}}")
        }
        .into_bytes();
        self.flight.push(Waiting { id: id.clone(), tag, method, session: session.clone() });
        let said =
            vec![ClientMessage::Request { tag, id, method, session, text: stripped(View::parse(&text)) }];
        Line { text, said, array: false, long: false }
    }

    pub(crate) fn long_request(&mut self, tag: Tag, random: &mut Random) -> Line {
        let mut line = self.request(tag, "_x/custom", None, 0, random);
        line.text.truncate(30 + random.below(40));
        line.long = true;
        let waiting = self.flight.pop();
        let id = View::too_long(&line.text).id().map(<[u8]>::to_vec);
        line.said = match (id, waiting) {
            (Some(id), Some(waiting)) => {
                self.flight.push(Waiting { method: TOO_LONG, ..waiting });
                vec![ClientMessage::Request { tag, id, method: TOO_LONG, session: None, text: Vec::new() }]
            }
            _ => vec![ClientMessage::Broken],
        };
        line
    }

    pub(crate) fn notification(tag: Tag, method: &str, session: &str) -> Line {
        let text =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{{\"sessionId\":\"{session}\",\"_meta\":{{\"n\":\"#{tag}#\"}}}}}}").into_bytes();
        let said = vec![ClientMessage::Notify {
            tag,
            session: Some(session.to_owned()),
            about: None,
            text: stripped(View::parse(&text)),
        }];
        Line { text, said, array: false, long: false }
    }

    pub(crate) fn cancel(tag: Tag, waiting: &Waiting) -> Line {
        let id = String::from_utf8_lossy(&waiting.id);
        let text =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{{\"requestId\":{id},\"_meta\":{{\"n\":\"#{tag}#\"}}}}}}").into_bytes();
        let said = vec![ClientMessage::Notify {
            tag,
            session: None,
            about: Some(waiting.tag),
            text: stripped(View::parse(&text)),
        }];
        Line { text, said, array: false, long: false }
    }

    pub(crate) fn answer(tag: Tag, id: &[u8], random: &mut Random) -> Line {
        let shown = String::from_utf8_lossy(id);
        let body = match random.below(3) {
            0 => format!("\"error\":{{\"code\":-32603,\"message\":\"#{tag}#\"}}"),
            1 => format!("\"result\":{{\"outcome\":{{\"outcome\":\"cancelled\"}},\"_meta\":\"#{tag}#\"}}"),
            _ => format!("\"result\":{{\"outcome\":{{\"outcome\":\"selected\",\"optionId\":\"#{tag}#\"}}}}"),
        };
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":{shown},{body}}}").into_bytes();
        let said = vec![ClientMessage::Answer { id: id.to_vec(), text: stripped(View::parse(&text)) }];
        Line { text, said, array: false, long: false }
    }

    pub(crate) fn batch(lines: Vec<Line>) -> Line {
        let mut text = vec![b'['];
        let mut said = Vec::new();
        for line in lines {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend_from_slice(&line.text);
            said.extend(line.said);
        }
        text.push(b']');
        Line { text, said, array: true, long: false }
    }

    pub(crate) fn receive(&mut self, line: &[u8]) {
        let view = View::parse(line);
        match view.kind() {
            Kind::Batch => entries(line).into_iter().for_each(|entry| self.receive(entry)),
            Kind::Request => self.questions.extend(view.id().map(<[u8]>::to_vec)),
            Kind::Response => {
                let doubled = view.error().is_some_and(|error| error.code == -32014);
                let same = |waiting: &Waiting| Some(&*waiting.id) == view.id();
                let found = if doubled {
                    self.flight.iter().rposition(same)
                } else {
                    self.flight.iter().position(same)
                };
                let Some(at) = found else { return };
                let ok = view.result().is_some();
                let waiting = self.flight.remove(at);
                match waiting.method {
                    "initialize" => {
                        self.greeting = false;
                        self.greeted |= ok;
                    }
                    "session/new" | "session/fork" if ok => {
                        self.sessions.extend(view.session().map(std::borrow::Cow::into_owned));
                    }
                    "session/load" | "session/resume" if ok => self.sessions.extend(waiting.session),
                    _ => {}
                }
            }
            Kind::Notification | Kind::Invalid(_) => {}
        }
    }
}
