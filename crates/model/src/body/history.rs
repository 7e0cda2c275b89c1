//! Converts a conversation to the messages of a request.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::repair::RequestPart;
use crate::{Assistant, Provider, Request, ToolResult};

use super::Profile;
use super::wire::{Call, Called, Content, Message, Part, PartKind, Role};

/// Text sent for a tool call without a result, because endpoints refuse a call without one.
const NO_RESULT: &str = "(no result: the call did not finish)";
/// Text sent for an empty tool result, which some endpoints refuse.
const NO_OUTPUT: &str = "(no output)";
/// Maximum length of a tool call id. Every endpoint except Mistral accepts ids of this length.
const MAX_ID_CHARS: usize = 40;

pub(super) fn messages<'a>(request: &'a Request, profile: &Profile) -> Vec<Message<'a>> {
    let writer = Writer { profile, tools: !profile.refused.has(RequestPart::Tools) };
    let mut messages = writer.history(&request.messages);
    if let Some(system) = request.system.as_deref().filter(|system| !system.is_empty()) {
        add_instructions(&mut messages, system, profile);
    }
    if profile.refused.has(RequestPart::AdjacentRoles) {
        messages = merge(messages);
    }
    if profile.marks_cache(request) {
        mark_cache(&mut messages);
    }
    messages
}

fn add_instructions<'a>(messages: &mut Vec<Message<'a>>, system: &'a str, profile: &Profile) {
    let system = Content::Text(system.into());
    let role = if !profile.refused.has(RequestPart::SystemRole) {
        Role::System
    } else if !profile.refused.has(RequestPart::DeveloperRole) {
        Role::Developer
    } else {
        match messages.first_mut() {
            Some(first) if first.role == Role::User => {
                let said = std::mem::replace(&mut first.content, Content::Nothing);
                first.content = system.join(said);
            }
            _ => messages.insert(0, Message::new(Role::User, system)),
        }
        return;
    };
    messages.insert(0, Message::new(role, system));
}

/// Merges adjacent messages of one role, because some chat templates require roles to alternate.
fn merge(messages: Vec<Message<'_>>) -> Vec<Message<'_>> {
    let mut all: Vec<Message<'_>> = Vec::with_capacity(messages.len());
    for message in messages {
        let plain = |message: &Message<'_>| {
            message.tool_calls.is_empty() && matches!(message.role, Role::User | Role::Assistant)
        };
        match all.last_mut() {
            Some(last) if last.role == message.role && plain(last) && plain(&message) => {
                let said = std::mem::replace(&mut last.content, Content::Nothing);
                last.content = said.join(message.content);
            }
            _ => all.push(message),
        }
    }
    all
}

/// Marks the instructions and the last message as ends of cacheable prefixes.
fn mark_cache(messages: &mut [Message<'_>]) {
    let last = messages.len().saturating_sub(1);
    for (index, message) in messages.iter_mut().enumerate() {
        let marked = match message.role {
            Role::System | Role::Developer => true,
            Role::User | Role::Tool => index == last,
            Role::Assistant => false,
        };
        if marked {
            let mut parts = std::mem::replace(&mut message.content, Content::Nothing).into_parts();
            let text = parts.iter_mut().rev().find(|part| matches!(part.kind, PartKind::Text(_)));
            if let Some(part) = text {
                part.cached = true;
            }
            message.content = Content::Parts(parts);
        }
    }
}

struct Writer<'p> {
    profile: &'p Profile,
    /// `true` if the request offers tools. Without tools, earlier calls and results are sent as text.
    tools: bool,
}

impl Writer<'_> {
    fn history<'a>(&self, history: &'a [crate::Message]) -> Vec<Message<'a>> {
        let mut all = Vec::with_capacity(history.len() + 2);
        let mut rest = history.iter().peekable();
        while let Some(message) = rest.next() {
            match message {
                crate::Message::User { content } => {
                    all.push(Message::new(Role::User, self.content(content)));
                }
                crate::Message::Assistant(assistant) => {
                    let mut results = Vec::new();
                    while let Some(crate::Message::Tool(result)) = rest.peek() {
                        results.push(result);
                        rest.next();
                    }
                    if self.tools {
                        self.turn(assistant, &results, &mut all);
                    } else {
                        self.push_as_text(assistant, &results, &mut all);
                    }
                }
                crate::Message::Tool(result) => self.push_result(result, &mut all),
            }
        }
        all
    }

    /// Adds an answer and its results. Every call gets exactly one result, in the order of the calls.
    fn turn<'a>(&self, assistant: &'a Assistant, results: &[&'a ToolResult], all: &mut Vec<Message<'a>>) {
        if assistant.text.is_empty() && assistant.calls.is_empty() {
            results.iter().for_each(|result| self.push_result(result, all));
            return;
        }
        let profile = self.profile;
        let mut message = Message::new(Role::Assistant, Content::Text(assistant.text.as_str().into()));
        message.extra = returned_extra(profile, &assistant.extra);
        if !assistant.calls.is_empty() {
            message.reasoning_content =
                profile.returns_thoughts(assistant).then_some(assistant.reasoning.as_str());
            // The format requires a null content here, but some servers refuse null beside reasoning.
            if assistant.text.is_empty() && message.reasoning_content.is_none() {
                message.content = Content::Nothing;
            }
            message.tool_calls = assistant.calls.iter().map(|call| self.call(call)).collect();
        }
        all.push(message);
        let mut pictures = Vec::new();
        for call in &assistant.calls {
            let result = results.iter().find(|result| result.call == call.id);
            let text = result.map_or(Cow::Borrowed(NO_RESULT), |result| self.result_text(result));
            let mut message = Message::new(Role::Tool, Content::Text(text));
            message.tool_call_id = Some(self.id(&call.id));
            all.push(message);
            pictures.extend(result.into_iter().flat_map(|result| self.pictures(result)));
        }
        if !pictures.is_empty() {
            all.push(Message::new(Role::User, Content::Parts(pictures)));
        }
        for result in
            results.iter().filter(|result| assistant.calls.iter().all(|call| call.id != result.call))
        {
            self.push_result(result, all);
        }
    }

    fn call<'a>(&self, call: &'a crate::Call) -> Call<'a> {
        Call {
            id: self.id(&call.id),
            r#type: "function",
            function: Called { name: &call.name, arguments: arguments(&call.arguments) },
            extra: returned_extra(self.profile, &call.extra),
        }
    }

    /// Adds an answer with tool calls as plain text, for a request without tools.
    fn push_as_text<'a>(
        &self,
        assistant: &'a Assistant,
        results: &[&'a ToolResult],
        all: &mut Vec<Message<'a>>,
    ) {
        let mut text = Cow::Borrowed(assistant.text.as_str());
        for call in &assistant.calls {
            let gap = if text.is_empty() { "" } else { "\n\n" };
            text.to_mut().push_str(&format!("{gap}[Called {} with {}]", call.name, call.arguments));
        }
        if !text.is_empty() {
            all.push(Message::new(Role::Assistant, Content::Text(text)));
        }
        results.iter().for_each(|result| self.push_result(result, all));
    }

    fn push_result<'a>(&self, result: &'a ToolResult, all: &mut Vec<Message<'a>>) {
        let text = format!("[Result of {}]\n{}", result.name, self.result_text(result));
        let mut content = Content::Text(text.into());
        let pictures = self.pictures(result);
        if !pictures.is_empty() {
            content = content.join(Content::Parts(pictures));
        }
        all.push(Message::new(Role::User, content));
    }

    /// Returns the text of a result, with placeholders for images and other content.
    fn result_text<'a>(&self, result: &'a ToolResult) -> Cow<'a, str> {
        let text = text_only(&result.content);
        if text.is_empty() { NO_OUTPUT.into() } else { text }
    }

    /// Returns the images of a tool result. A tool message cannot contain images, so they follow in a user
    /// message.
    fn pictures<'a>(&self, result: &'a ToolResult) -> Vec<Part<'a>> {
        // Mistral requires that a tool result is followed by an answer of the model, not by a user message.
        if !self.profile.takes_images()
            || self.profile.refused.has(RequestPart::ContentParts)
            || self.profile.provider == Provider::Mistral
        {
            return Vec::new();
        }
        let pictures = result.content.iter().filter_map(|part| match part {
            crate::Part::Image { mime, data } => Some(PartKind::Image { mime, data }.into()),
            _ => None,
        });
        let mut parts: Vec<_> = pictures.collect();
        if !parts.is_empty() {
            parts.insert(0, Part::text(format!("[Images from {}]", result.name)));
        }
        parts
    }

    /// Returns the content of a user message: a single text if it has only text parts.
    fn content<'a>(&self, parts: &'a [crate::Part]) -> Content<'a> {
        if self.profile.refused.has(RequestPart::ContentParts) {
            return Content::Text(text_only(parts));
        }
        let parts: Vec<_> = parts.iter().map(|part| self.part(part)).collect();
        if parts.iter().any(|part| !matches!(part.kind, PartKind::Text(_))) {
            return Content::Parts(parts);
        }
        let texts = parts.into_iter().filter_map(|part| match part.kind {
            PartKind::Text(text) => Some(text),
            _ => None,
        });
        Content::Text(join_texts(texts))
    }

    fn part<'a>(&self, part: &'a crate::Part) -> Part<'a> {
        let profile = self.profile;
        match part {
            crate::Part::Image { mime, data } if profile.takes_images() => {
                PartKind::Image { mime, data }.into()
            }
            crate::Part::Audio { mime, data } if profile.takes_audio() => match super::audio_format(mime) {
                Some(format) => PartKind::Audio { format, data }.into(),
                None => Part::text(part_as_text(part)),
            },
            crate::Part::File { name, mime, data } if profile.takes_files() && mime == super::PDF_MIME => {
                PartKind::File { name: name.as_deref().unwrap_or("document.pdf"), mime, data }.into()
            }
            _ => Part::text(part_as_text(part)),
        }
    }

    /// Returns a call id in a form that the endpoint accepts. Equal ids give equal results.
    fn id<'a>(&self, id: &'a str) -> Cow<'a, str> {
        if self.profile.provider == Provider::Mistral || self.profile.refused.has(RequestPart::CallIds) {
            short_id(id)
        } else if id.len() > MAX_ID_CHARS && self.profile.provider.is_openai() {
            format!("call_{}", short_id(id)).into()
        } else {
            id.into()
        }
    }
}

/// Returns the unknown fields of an earlier answer, if the endpoint may need them.
fn returned_extra<'a>(profile: &Profile, extra: &'a Map<String, Value>) -> Option<&'a Map<String, Value>> {
    (!extra.is_empty() && profile.returns_extra()).then_some(extra)
}

fn part_as_text(part: &crate::Part) -> Cow<'_, str> {
    match part {
        crate::Part::Text { text } => text.as_str().into(),
        crate::Part::Image { mime, .. } => format!("[Image: {mime}]").into(),
        crate::Part::Audio { mime, .. } => format!("[Audio: {mime}]").into(),
        crate::Part::File { name, mime, .. } => format!("[File: {}]", name.as_deref().unwrap_or(mime)).into(),
    }
}

fn text_only(parts: &[crate::Part]) -> Cow<'_, str> {
    join_texts(parts.iter().map(part_as_text))
}

/// Joins texts with line breaks. Borrows a single text instead of copying it.
fn join_texts<'a>(mut texts: impl Iterator<Item = Cow<'a, str>>) -> Cow<'a, str> {
    let mut all = texts.next().unwrap_or_default();
    for text in texts {
        let whole = all.to_mut();
        whole.push('\n');
        whole.push_str(&text);
    }
    all
}

/// Returns a call's arguments as a JSON object, because servers that parse arguments fail on anything else.
/// Invalid arguments are kept inside the object, so that the model can learn from its mistake.
fn arguments(written: &str) -> Cow<'_, str> {
    let trimmed = written.trim();
    if trimmed.is_empty() {
        "{}".into()
    } else if trimmed.starts_with('{') && serde_json::from_str::<IgnoredAny>(trimmed).is_ok() {
        written.into()
    } else {
        json!({ "invalid": written }).to_string().into()
    }
}

/// Returns an id of nine letters and digits: `id` itself, or else a hash of it.
fn short_id(id: &str) -> Cow<'_, str> {
    const LENGTH: usize = 9;
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.into();
    }
    // FNV-1a gives the same hash in every process, so the prefix of a conversation stays the same.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut short = String::with_capacity(LENGTH);
    for _ in 0..LENGTH {
        short.push(char::from(DIGITS[(hash % 62) as usize]));
        hash /= 62;
    }
    short.into()
}
