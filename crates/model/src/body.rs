//! Builds the body of a request. The body depends only on the request and on what the endpoint is known to
//! accept.
//!
//! The same conversation gives the same bytes. A longer conversation starts with the bytes of the shorter
//! one, up to its last message: prefix caches depend on it.

mod history;
mod wire;

use crate::repair::{RequestPart, RequestParts, Sent};
use crate::{Assistant, Message, Part, Provider, Request, traits};

const PDF_MIME: &str = "application/pdf";

/// Request parts and content types that an endpoint accepts for a model, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) provider: Provider,
    pub(crate) refused: RequestParts,
    /// `true` if the endpoint accepts images for the model; `None` if unknown.
    pub(crate) images: Option<bool>,
    /// `true` if the endpoint accepts audio for the model; `None` if unknown.
    pub(crate) audio: Option<bool>,
}

impl Profile {
    fn takes_images(&self) -> bool {
        self.images != Some(false) && !self.refused.has(RequestPart::Images)
    }

    fn takes_audio(&self) -> bool {
        self.audio != Some(false) && !self.refused.has(RequestPart::Audio)
    }

    fn takes_files(&self) -> bool {
        !self.refused.has(RequestPart::Files)
    }

    /// Returns `true` if fields of earlier answers that this crate does not know are sent back.
    fn returns_extra(&self) -> bool {
        !self.provider.is_strict() && !self.refused.has(RequestPart::Extra)
    }

    /// Returns `true` if the reasoning of an earlier answer is sent back.
    fn returns_thoughts(&self, assistant: &Assistant) -> bool {
        !assistant.reasoning.is_empty()
            && (self.provider == Provider::DeepSeek || self.refused.has(RequestPart::MissingReasoning))
            && !self.refused.has(RequestPart::Extra)
    }

    fn marks_cache(&self, request: &Request) -> bool {
        let model = request.model.to_ascii_lowercase();
        matches!(self.provider, Provider::OpenRouter | Provider::LiteLlm)
            && (model.contains("claude") || model.contains("anthropic"))
            && !self.refused.has(RequestPart::CacheControl)
            && !self.refused.has(RequestPart::ContentParts)
    }

    /// Returns `true` if the token limit is sent as `max_completion_tokens`.
    fn newer_limit(&self, model: &str) -> bool {
        let newer = self.provider.is_openai() && traits::is_reasoning(model);
        newer != self.refused.has(RequestPart::MaxTokensName)
    }

    fn streams(&self) -> bool {
        !self.refused.has(RequestPart::Streaming)
    }

    fn asks_usage(&self) -> bool {
        // Mistral always reports usage and refuses the option to request it.
        self.streams() && self.provider != Provider::Mistral && !self.refused.has(RequestPart::StreamOptions)
    }

    fn shares_cache(&self) -> bool {
        self.provider == Provider::OpenAi && !self.refused.has(RequestPart::CacheKey)
    }
}

pub(crate) fn build(request: &Request, profile: &Profile) -> Result<Vec<u8>, serde_json::Error> {
    let refused = profile.refused;
    let tools = if refused.has(RequestPart::Tools) { &[] } else { request.tools.as_slice() };
    let limit = request.max_tokens.filter(|_| !refused.has(RequestPart::MaxTokens));
    let newer = profile.newer_limit(&request.model);
    let effort = request.effort.filter(|_| !refused.has(RequestPart::Effort)).map(crate::Effort::name);
    let routed = profile.provider == Provider::OpenRouter;
    let body = wire::Body {
        model: &request.model,
        tools: tools.iter().map(wire::Tool).collect(),
        messages: history::messages(request, profile),
        stream: profile.streams().then_some(true),
        stream_options: profile.asks_usage().then_some(wire::StreamOptions { include_usage: true }),
        max_tokens: limit.filter(|_| !newer),
        max_completion_tokens: limit.filter(|_| newer),
        temperature: request.temperature.filter(|_| !refused.has(RequestPart::Temperature)),
        reasoning_effort: effort.filter(|_| !routed),
        reasoning: effort.filter(|_| routed).map(|effort| wire::Reasoning { effort }),
        prompt_cache_key: request.cache_key.as_deref().filter(|_| profile.shares_cache()),
    };
    serde_json::to_vec(&body)
}

/// Returns the parts of the request that the endpoint may refuse.
pub(crate) fn sent<'a>(request: &'a Request, profile: &Profile) -> Sent<'a> {
    let mut sent = Sent { offers_tools: !request.tools.is_empty(), ..Sent::default() };
    let mut put = |part: RequestPart, there: bool| {
        if there && !profile.refused.has(part) {
            sent.parts.insert(part);
        }
    };
    put(RequestPart::StreamOptions, profile.asks_usage());
    put(RequestPart::Streaming, true);
    put(RequestPart::MaxTokensName, request.max_tokens.is_some());
    put(RequestPart::MaxTokens, request.max_tokens.is_some());
    put(RequestPart::Temperature, request.temperature.is_some());
    put(RequestPart::Effort, request.effort.is_some());
    put(RequestPart::CacheKey, request.cache_key.is_some() && profile.shares_cache());
    put(RequestPart::CacheControl, profile.marks_cache(request));
    let answers = || request.messages.iter().filter_map(assistant);
    let called = answers().any(|assistant| !assistant.calls.is_empty());
    put(RequestPart::Tools, !request.tools.is_empty() || called);
    let instructed = request.system.as_ref().is_some_and(|system| !system.is_empty());
    put(RequestPart::SystemRole, instructed);
    put(RequestPart::DeveloperRole, instructed && profile.refused.has(RequestPart::SystemRole));
    let (mut images, mut audio, mut files) = (false, false, false);
    for part in request.messages.iter().flat_map(parts) {
        match part {
            Part::Text { .. } => {}
            Part::Image { .. } => images = true,
            Part::Audio { mime, .. } => audio |= audio_format(mime).is_some(),
            Part::File { mime, .. } => files |= mime == PDF_MIME,
        }
    }
    let (images, audio) = (images && profile.takes_images(), audio && profile.takes_audio());
    put(RequestPart::Images, images);
    put(RequestPart::Audio, audio);
    put(RequestPart::Files, files);
    put(RequestPart::ContentParts, images || audio || files || profile.marks_cache(request));
    put(RequestPart::AdjacentRoles, request.messages.len() > 1);
    put(RequestPart::CallIds, called && profile.provider != Provider::Mistral);
    put(
        RequestPart::MissingReasoning,
        answers().any(|assistant| !assistant.calls.is_empty() && !assistant.reasoning.is_empty()),
    );
    if profile.returns_extra() {
        let fields = answers().flat_map(|assistant| assistant.extra.keys());
        let of_calls = answers().flat_map(|assistant| &assistant.calls).flat_map(|call| call.extra.keys());
        sent.extra = fields.chain(of_calls).map(String::as_str).collect();
    }
    if answers().any(|assistant| !assistant.calls.is_empty() && profile.returns_thoughts(assistant)) {
        sent.extra.push("reasoning_content");
    }
    if !sent.extra.is_empty() {
        sent.parts.insert(RequestPart::Extra);
    }
    sent
}

fn parts(message: &Message) -> &[Part] {
    match message {
        Message::User { content } => content,
        Message::Tool(result) => &result.content,
        Message::Assistant(_) => &[],
    }
}

fn assistant(message: &Message) -> Option<&Assistant> {
    match message {
        Message::Assistant(assistant) => Some(assistant),
        _ => None,
    }
}

/// Returns the endpoint's name for the media type of audio. `None` if such audio cannot be sent.
fn audio_format(mime: &str) -> Option<&'static str> {
    match mime {
        "audio/wav" | "audio/x-wav" | "audio/wave" | "audio/vnd.wave" => Some("wav"),
        "audio/mpeg" | "audio/mp3" | "audio/mpeg3" => Some("mp3"),
        _ => None,
    }
}

#[cfg(test)]
#[path = "body/tests.rs"]
mod tests;
