//! Refusals as endpoints word them, and errors that are not refusals.

use proptest::prelude::*;

use crate::repair::{Repair, RequestPart, RequestParts, Sent, find};
use crate::{ErrorKind, ModelError};

const ALL: [RequestPart; 17] = [
    RequestPart::StreamOptions,
    RequestPart::Streaming,
    RequestPart::MaxTokensName,
    RequestPart::MaxTokens,
    RequestPart::Temperature,
    RequestPart::Effort,
    RequestPart::CacheKey,
    RequestPart::CacheControl,
    RequestPart::Tools,
    RequestPart::Images,
    RequestPart::Audio,
    RequestPart::Files,
    RequestPart::SystemRole,
    RequestPart::ContentParts,
    RequestPart::AdjacentRoles,
    RequestPart::CallIds,
    RequestPart::Extra,
];

fn error(status: u16, message: &str) -> ModelError {
    let kind = match status {
        401 | 403 => ErrorKind::Auth,
        429 => ErrorKind::RateLimit,
        500.. => ErrorKind::Server,
        200 => ErrorKind::Provider,
        _ => ErrorKind::Http,
    };
    ModelError {
        status: Some(status),
        ..ModelError::new(kind, "http://localhost/v1/chat/completions", message)
    }
}

#[track_caller]
fn check_with(parts: &[RequestPart], status: u16, message: &str, expected: Option<RequestPart>) {
    let sent =
        Sent { parts: RequestParts::from_parts(parts), extra: vec!["reasoning_details"], offers_tools: true };
    let found = find(&error(status, message), &sent).map(|repair| repair.what);
    assert_eq!(found, expected, "{status} {message}");
}

#[track_caller]
fn check(status: u16, message: &str, expected: impl Into<Option<RequestPart>>) {
    check_with(&ALL, status, message, expected.into());
}

#[test]
fn fields_are_dropped_by_name() {
    check(400, "Unrecognized request argument supplied: stream_options", RequestPart::StreamOptions);
    check(422, "body.stream_options: Extra inputs are not permitted", RequestPart::StreamOptions);
    check(422, "Extra inputs are not permitted", RequestPart::StreamOptions);
    check(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        RequestPart::MaxTokensName,
    );
    check(400, "unknown field `max_completion_tokens`", RequestPart::MaxTokensName);
    check(
        400,
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
        RequestPart::MaxTokens,
    );
    check(
        400,
        "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.",
        RequestPart::Temperature,
    );
    check(400, "`temperature` may only be set to 1 when thinking is enabled.", RequestPart::Temperature);
    check(400, "Unrecognized request argument supplied: reasoning_effort", RequestPart::Effort);
    check(400, "\"llama3.2:1b\" does not support thinking", RequestPart::Effort);
    check(400, "Unknown parameter: 'prompt_cache_key'.", RequestPart::CacheKey);
    check(
        400,
        "messages.0.content.0: cache_control: Extra inputs are not permitted",
        RequestPart::CacheControl,
    );
    check(400, "property 'reasoning_details' is unsupported", RequestPart::Extra);
}

#[test]
fn unsupported_features_are_dropped() {
    check(400, "registry.ollama.ai/library/gemma:2b does not support tools", RequestPart::Tools);
    check(
        404,
        "No endpoints found that support tool use. To learn more about provider routing",
        RequestPart::Tools,
    );
    check(
        400,
        "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
        RequestPart::Tools,
    );
    check(500, "tools param requires --jinja flag", RequestPart::Tools);
    check(
        500,
        "image input is not supported - hint: you may need to provide the mmproj",
        RequestPart::Images,
    );
    check(404, "No endpoints found that support image input", RequestPart::Images);
    check(400, "At most 0 image(s) may be provided in one request.", RequestPart::Images);
    check(422, "messages[1]: unknown variant `image_url`, expected `text`", RequestPart::Images);
    check(400, "This model does not support audio input.", RequestPart::Audio);
    check(400, "messages[0]: unknown variant `file`, expected one of `text`", RequestPart::Files);
    check(400, "Your organization must be verified to stream this model.", RequestPart::Streaming);
    check(400, "Streaming is not supported for this model", RequestPart::Streaming);
}

#[test]
fn messages_are_sent_in_another_form() {
    check(400, "System role not supported", RequestPart::SystemRole);
    check(
        400,
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        RequestPart::SystemRole,
    );
    check(400, "Developer instruction is not enabled for models/gemma-3-27b-it", RequestPart::SystemRole);
    check_with(
        &[RequestPart::DeveloperRole],
        400,
        "unknown variant `developer`, expected one of `system`, `user`",
        Some(RequestPart::DeveloperRole),
    );
    check(
        400,
        "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
        RequestPart::AdjacentRoles,
    );
    check(422, "body.messages.0.content: Input should be a valid string", RequestPart::ContentParts);
    check(
        400,
        "Tool call id was call_abc but must be a-z, A-Z, 0-9, with a length of 9.",
        RequestPart::CallIds,
    );
    check_with(
        &[RequestPart::MissingReasoning],
        400,
        "The reasoning_content in the thinking mode must be passed back to the API.",
        Some(RequestPart::MissingReasoning),
    );
}

#[test]
fn nothing_is_dropped_twice_or_without_need() {
    check_with(&[], 400, "Unrecognized request argument supplied: stream_options", None);
    check_with(
        &[RequestPart::MaxTokens],
        400,
        "Unsupported parameter: 'max_tokens'",
        Some(RequestPart::MaxTokens),
    );
    check_with(&[RequestPart::Temperature], 500, "image input is not supported", None);
    check(400, "Invalid schema for function 'read_file': None is not of type 'object'", None);
    check(400, "Invalid 'tools[0].function.name': string does not match pattern", None);
    check(400, "Invalid image data", None);
    check(400, "You uploaded an unsupported image format", None);
    check(404, "The model `gpt-9` does not exist or you do not have access to it.", None);
    check(401, "temperature is not supported", None);
    check(429, "image input is not supported", None);
    check(500, "temperature is not supported", None);
    check(503, "Loading model", None);
}

#[test]
fn an_error_event_is_repaired_only_if_nothing_was_shown() {
    let sent = Sent { parts: RequestParts::from_parts(&ALL), extra: Vec::new(), offers_tools: true };
    let mut refusal = error(200, "this model does not support tools");
    assert_eq!(find(&refusal, &sent), Some(Repair { what: RequestPart::Tools, lasting: true }));
    refusal.shown = true;
    assert_eq!(find(&refusal, &sent), None);
}

#[test]
fn a_refusal_of_earlier_calls_is_not_remembered() {
    let sent = Sent { parts: RequestParts::from_parts(&[RequestPart::Tools]), ..Sent::default() };
    let refusal = error(400, "Requests which have `tool_use` blocks in their history must define tools.");
    assert_eq!(find(&refusal, &sent), Some(Repair { what: RequestPart::Tools, lasting: false }));
}

#[test]
fn an_overflow_is_repaired_only_by_dropping_the_token_limit() {
    let sent = Sent { parts: RequestParts::from_parts(&ALL), extra: Vec::new(), offers_tools: true };
    let overflow = |message: &str| ModelError { kind: ErrorKind::Overflow, ..error(400, message) };
    let limit =
        overflow("'max_tokens' is too large: 4096. This model's maximum context length is 2048 tokens");
    assert_eq!(find(&limit, &sent), Some(Repair { what: RequestPart::MaxTokens, lasting: false }));
    assert_eq!(find(&overflow("the request exceeds the available context size"), &sent), None);
}

proptest! {
    /// Repairs end for any refusals, because a request has finitely many parts.
    #[test]
    fn repairs_end(status in 200u16..600, words in proptest::collection::vec(
        prop_oneof![
            Just("max_tokens"), Just("unsupported"), Just("tools"), Just("image"), Just("system role"), Just("stream"),
            Just("streaming"), Just("extra_forbidden"), Just("content"), Just("expected a string"), Just("\u{130}"),
        ], 0..8)) {
        let mut sent = Sent { parts: RequestParts::from_parts(&ALL), extra: vec!["reasoning_details"], offers_tools: true };
        let error = error(status, &words.join(" "));
        let mut steps = 0;
        while let Some(repair) = find(&error, &sent) {
            prop_assert!(sent.parts.has(repair.what));
            sent.parts.remove(repair.what);
            steps += 1;
        }
        prop_assert!(steps <= ALL.len());
    }
}
