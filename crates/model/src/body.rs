//! The body of a request: a pure function of what is asked and what the endpoint is known to take.
//!
//! The same conversation gives the same bytes, and a longer one begins with them up to its last message: caches of
//! prefixes depend on it.

mod history;
mod wire;

use crate::repair::{Dropped, Parts, Sent};
use crate::{Assistant, Message, Part, Provider, Request, traits};

/// The media type of the documents that can be sent.
const PDF: &str = "application/pdf";

/// What an endpoint is known to take from a model's requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// Who stands behind it.
    pub(crate) provider: Provider,
    /// What it refused.
    pub(crate) refused: Parts,
    /// Whether the model takes pictures, if that is known.
    pub(crate) images: Option<bool>,
    /// Whether the model takes recordings, if that is known.
    pub(crate) audio: Option<bool>,
}

impl Profile {
    fn takes_images(&self) -> bool {
        self.images != Some(false) && !self.refused.has(Dropped::Images)
    }

    fn takes_audio(&self) -> bool {
        self.audio != Some(false) && !self.refused.has(Dropped::Audio)
    }

    fn takes_files(&self) -> bool {
        !self.refused.has(Dropped::Files)
    }

    /// Whether fields of earlier answers go back.
    fn returns_extra(&self) -> bool {
        !self.provider.is_strict() && !self.refused.has(Dropped::Extra)
    }

    /// Whether what the model thought before its calls goes back.
    fn returns_thoughts(&self, said: &Assistant) -> bool {
        !said.reasoning.is_empty()
            && (self.provider == Provider::DeepSeek || self.refused.has(Dropped::Forgetting))
            && !self.refused.has(Dropped::Extra)
    }

    /// Whether marks tell the endpoint what to cache.
    fn marks_cache(&self, request: &Request) -> bool {
        let model = request.model.to_ascii_lowercase();
        matches!(self.provider, Provider::OpenRouter | Provider::LiteLlm)
            && (model.contains("claude") || model.contains("anthropic"))
            && !self.refused.has(Dropped::CacheControl)
            && !self.refused.has(Dropped::Parts)
    }

    /// Whether the limit of tokens goes by its newer name.
    fn newer_limit(&self, model: &str) -> bool {
        let newer = self.provider.is_openai() && traits::is_reasoning(model);
        newer != self.refused.has(Dropped::MaxTokensName)
    }

    fn streams(&self) -> bool {
        !self.refused.has(Dropped::Streaming)
    }

    fn asks_usage(&self) -> bool {
        // Mistral tells without being asked and refuses to be asked.
        self.streams() && self.provider != Provider::Mistral && !self.refused.has(Dropped::StreamOptions)
    }

    fn shares_cache(&self) -> bool {
        self.provider == Provider::OpenAi && !self.refused.has(Dropped::CacheKey)
    }
}

/// The body of `request` as JSON.
pub(crate) fn build(request: &Request, profile: &Profile) -> Result<Vec<u8>, serde_json::Error> {
    let refused = profile.refused;
    let tools = if refused.has(Dropped::Tools) { &[] } else { request.tools.as_slice() };
    let limit = request.max_tokens.filter(|_| !refused.has(Dropped::MaxTokens));
    let newer = profile.newer_limit(&request.model);
    let effort = request.effort.filter(|_| !refused.has(Dropped::Effort)).map(crate::Effort::name);
    let routed = profile.provider == Provider::OpenRouter;
    let body = wire::Body {
        model: &request.model,
        tools: tools.iter().map(wire::Tool).collect(),
        messages: history::messages(request, profile),
        stream: profile.streams().then_some(true),
        stream_options: profile.asks_usage().then_some(wire::StreamOptions { include_usage: true }),
        max_tokens: limit.filter(|_| !newer),
        max_completion_tokens: limit.filter(|_| newer),
        temperature: request.temperature.filter(|_| !refused.has(Dropped::Temperature)),
        reasoning_effort: effort.filter(|_| !routed),
        reasoning: effort.filter(|_| routed).map(|effort| wire::Reasoning { effort }),
        prompt_cache_key: request.cache_key.as_deref().filter(|_| profile.shares_cache()),
    };
    serde_json::to_vec(&body)
}

/// What such a request has that can be refused.
pub(crate) fn sent<'a>(request: &'a Request, profile: &Profile) -> Sent<'a> {
    let mut sent = Sent { offers_tools: !request.tools.is_empty(), ..Sent::default() };
    let mut put = |part: Dropped, there: bool| {
        if there && !profile.refused.has(part) {
            sent.parts.insert(part);
        }
    };
    put(Dropped::StreamOptions, profile.asks_usage());
    put(Dropped::Streaming, true);
    put(Dropped::MaxTokensName, request.max_tokens.is_some());
    put(Dropped::MaxTokens, request.max_tokens.is_some());
    put(Dropped::Temperature, request.temperature.is_some());
    put(Dropped::Effort, request.effort.is_some());
    put(Dropped::CacheKey, request.cache_key.is_some() && profile.shares_cache());
    put(Dropped::CacheControl, profile.marks_cache(request));
    let answers = || request.messages.iter().filter_map(assistant);
    let called = answers().any(|said| !said.calls.is_empty());
    put(Dropped::Tools, !request.tools.is_empty() || called);
    let instructed = request.system.as_ref().is_some_and(|system| !system.is_empty());
    put(Dropped::SystemRole, instructed);
    put(Dropped::DeveloperRole, instructed && profile.refused.has(Dropped::SystemRole));
    let (mut images, mut audio, mut files) = (false, false, false);
    for part in request.messages.iter().flat_map(parts) {
        match part {
            Part::Text { .. } => {}
            Part::Image { .. } => images = true,
            Part::Audio { mime, .. } => audio |= audio_format(mime).is_some(),
            Part::File { mime, .. } => files |= mime == PDF,
        }
    }
    let (images, audio) = (images && profile.takes_images(), audio && profile.takes_audio());
    put(Dropped::Images, images);
    put(Dropped::Audio, audio);
    put(Dropped::Files, files);
    put(Dropped::Parts, images || audio || files || profile.marks_cache(request));
    put(Dropped::Neighbours, request.messages.len() > 1);
    put(Dropped::CallIds, called && profile.provider != Provider::Mistral);
    put(Dropped::Forgetting, answers().any(|said| !said.calls.is_empty() && !said.reasoning.is_empty()));
    if profile.returns_extra() {
        let fields = answers().flat_map(|said| said.extra.keys());
        let of_calls = answers().flat_map(|said| &said.calls).flat_map(|call| call.extra.keys());
        sent.extra = fields.chain(of_calls).map(String::as_str).collect();
    }
    if answers().any(|said| !said.calls.is_empty() && profile.returns_thoughts(said)) {
        sent.extra.push("reasoning_content");
    }
    if !sent.extra.is_empty() {
        sent.parts.insert(Dropped::Extra);
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
        Message::Assistant(said) => Some(said),
        _ => None,
    }
}

/// The name of a recording's format; `None` for those that cannot be sent.
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
