//! The updates of version 1.

use narrows_acp::update::Update;
use narrows_acp::v1::{ContentBlock, ContentChunk, SessionUpdate};
use narrows_acp::{ReadError, Reading};
use serde_json::value::RawValue;

use super::error::{Fault, separates};
use super::turn::{Change, Event};

/// What the params of a `session/update` mean here.
pub(super) fn read(params: &RawValue) -> Result<Change, ReadError> {
    let Reading::Known(update) = Update::<SessionUpdate>::of(params)?.update.reading()? else {
        return Ok(Change::None);
    };
    Ok(match update {
        SessionUpdate::AgentMessageChunk(chunk) => said(chunk),
        SessionUpdate::AgentThoughtChunk(chunk) => match chunk.content {
            ContentBlock::Text(text) => Event::Thought(text.text).into(),
            _ => Change::None,
        },
        SessionUpdate::ToolCall(call) => Event::Tool(call.title).into(),
        SessionUpdate::ToolCallUpdate(call) => {
            call.fields.title.map_or(Change::None, |title| Event::Tool(title).into())
        }
        _ => Change::None,
    })
}

fn said(chunk: ContentChunk) -> Change {
    if let Some(fault) = Fault::of(chunk.meta.as_ref()) {
        return Change::Fault(fault);
    }
    if separates(chunk.meta.as_ref()) {
        return Change::None;
    }
    let what = match chunk.content {
        ContentBlock::Text(text) => {
            let message = chunk.message_id.map(|id| id.0);
            return Event::Text { message, text: text.text }.into();
        }
        ContentBlock::Image(_) => "an image",
        ContentBlock::Audio(_) => "a sound",
        ContentBlock::ResourceLink(_) | ContentBlock::Resource(_) => "a resource",
        _ => "something",
    };
    Event::Unshown(what).into()
}
