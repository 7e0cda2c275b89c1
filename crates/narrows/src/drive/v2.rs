//! The updates of version 2.

use narrows_acp::stop::StopReason;
use narrows_acp::update::Update;
use narrows_acp::v2::{ContentBlock, ContentChunk, SessionUpdate, StateUpdate};
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
        SessionUpdate::AgentMessage(message) => {
            if let Some(fault) = Fault::of(message.meta.value()) {
                return Ok(Change::Fault(fault));
            }
            let Some(content) = message.content.take() else { return Ok(Change::None) };
            let text = content.into_iter().filter_map(text_of).collect();
            Event::Message { message: message.message_id.0, text }.into()
        }
        SessionUpdate::UserMessage(_) | SessionUpdate::UserMessageChunk(_) => Change::Inserted,
        SessionUpdate::AgentThoughtChunk(chunk) => {
            text_of(chunk.content).map_or(Change::None, |text| Event::Thought(text).into())
        }
        SessionUpdate::ToolCallUpdate(call) => {
            call.title.take().map_or(Change::None, |title| Event::Tool(title).into())
        }
        SessionUpdate::StateUpdate(StateUpdate::Running(_) | StateUpdate::RequiresAction(_)) => {
            Change::Running
        }
        SessionUpdate::StateUpdate(StateUpdate::Idle(idle)) => match Fault::of(idle.meta.as_ref()) {
            Some(fault) => Change::IdleWithFault(fault),
            None => Change::Idle(idle.stop_reason.as_ref().map(StopReason::from)),
        },
        _ => Change::None,
    })
}

fn text_of(content: ContentBlock) -> Option<String> {
    match content {
        ContentBlock::Text(text) => Some(text.text),
        _ => None,
    }
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
            return Event::Text { message: Some(chunk.message_id.0), text: text.text }.into();
        }
        ContentBlock::Image(_) => "an image",
        ContentBlock::Audio(_) => "a sound",
        ContentBlock::ResourceLink(_) | ContentBlock::Resource(_) => "a resource",
        _ => "something",
    };
    Event::Unshown(what).into()
}
