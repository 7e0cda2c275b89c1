//! Recognizes refusals by the error messages of endpoints.

use crate::{ErrorKind, ModelError};

use super::{RequestPart, Sent};

/// Words in an error message that show that the named field is refused.
const REFUSALS: [&str; 25] = [
    "unsupported",
    "not support",
    "n't support",
    "unknown",
    "unrecognized",
    "unrecognised",
    "unexpected",
    "not expected",
    "extra_forbidden",
    "extra inputs",
    "extra fields",
    "not permitted",
    "not allowed",
    "not enabled",
    "not available",
    "not accept",
    "n't accept",
    "invalid",
    "not valid",
    "additional propert",
    "only the default",
    "may only",
    "deprecated",
    "cannot",
    "no endpoints found",
];

fn any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// Returns `true` if `text` contains one of `names` and one of [`REFUSALS`].
fn refuses(text: &str, names: &[&str]) -> bool {
    any(text, names) && any(text, &REFUSALS)
}

/// Returns `true` if `text` reports that the token limit of the answer is too large.
pub(super) fn limit_too_large(text: &str) -> bool {
    any(text, &["max_tokens", "max_completion_tokens", "max tokens"])
        && any(text, &["too large", "too high", "at most", "must be less", "less than or equal", "exceed"])
}

/// Returns `true` if `text` reports that the model accepts no `things`, such as images.
fn takes_none(text: &str, things: &[&str]) -> bool {
    // "Invalid image" is not listed, because it refuses one image, not all images.
    const WORDS: [&str; 13] = [
        "unsupported",
        "not support",
        "n't support",
        "no endpoints found",
        "not enabled",
        "not available",
        "not accept",
        "n't accept",
        "unknown variant",
        "mmproj",
        "at most 0",
        "not a multimodal",
        "text-only",
    ];
    // These words refuse a single image or audio file, not all of them.
    const ONE: [&str; 4] = ["image format", "image type", "audio format", "mime type"];
    any(text, things) && any(text, &WORDS) && !any(text, &ONE)
}

fn no_tools(text: &str) -> bool {
    const WHOLE: [&str; 21] = [
        "must define tools",
        "tools= param must be",
        "support tool",
        "support the tool",
        "support function call",
        "support functions",
        "tools is not supported",
        "tools are not supported",
        "tool use is not supported",
        "tool calling is not supported",
        "tool calls are not supported",
        "function calling is not supported",
        "function calling is not enabled",
        "function calling is unsupported",
        "tools is unsupported",
        "tools not supported",
        "enable-auto-tool-choice",
        "tools param requires",
        "parameter: 'tools'",
        "argument supplied: tools",
        "argument: tools",
    ];
    any(text, &WHOLE)
        || (text.contains("tools") && any(text, &["extra_forbidden", "extra inputs", "unknown field"]))
}

/// Returns `true` if `text` reports that content must be a single text.
fn wants_text(text: &str) -> bool {
    const WHOLE: [&str; 8] = [
        "must be a string",
        "should be a valid string",
        "expected a string",
        "expected string",
        "is not a string",
        "must be string",
        "string_type",
        "cannot unmarshal array",
    ];
    text.contains("content") && any(text, &WHOLE)
        || text.contains("invalid type: sequence, expected a string")
}

/// Returns `true` if `text` refuses the role of the instructions.
fn no_instructions(text: &str) -> bool {
    const ROLES: [&str; 10] = [
        "system role",
        "role: system",
        "system message",
        "system prompt",
        "system instruction",
        "'system'",
        "`system`",
        "developer",
        "role 'system",
        "role \"system",
    ];
    refuses(text, &ROLES) || any(text, &["only user and assistant roles", "only user, assistant"])
}

fn no_streaming(text: &str) -> bool {
    !text.contains("stream_options")
        && (text.contains("verified to stream")
            || refuses(
                text,
                &["streaming", "'stream'", "`stream`", "\"stream\"", "stream=true", "stream: true"],
            ))
}

/// Returns the part of the request that `error` refuses.
pub(super) fn look_up(error: &ModelError, text: &str, sent: &Sent<'_>) -> Option<RequestPart> {
    use RequestPart as D;
    let has = |part| sent.parts.has(part);
    // Some servers report content that they do not accept as an internal error, so the message must be
    // explicit.
    if has(D::Images) && takes_none(text, &["image", "vision", "multimodal", "multi-modal", "mmproj"]) {
        return Some(D::Images);
    }
    if has(D::Audio) && takes_none(text, &["audio"]) {
        return Some(D::Audio);
    }
    if has(D::Tools) && no_tools(text) {
        return Some(D::Tools);
    }
    let refusal = matches!(error.status, None | Some(200 | 400 | 404 | 405 | 406 | 415 | 422 | 501));
    if !refusal && !matches!(error.kind, ErrorKind::Provider | ErrorKind::Unsupported) {
        return None;
    }
    // The first matching rule wins, so rules for more specific messages come first.
    let rules: [(D, bool); 19] = [
        (D::Files, takes_none(text, &["pdf", "`file`", "'file'", "file input", "files", "document"])),
        (D::StreamOptions, any(text, &["stream_options", "include_usage"])),
        (D::MaxTokens, limit_too_large(text)),
        (D::MaxTokensName, refuses(text, &["max_tokens", "max_completion_tokens"])),
        // If both names of the token limit were refused, the limit itself is refused.
        (D::MaxTokens, refuses(text, &["max_tokens", "max_completion_tokens"])),
        (D::Temperature, refuses(text, &["temperature"])),
        (D::Effort, refuses(text, &["reasoning_effort", "reasoning.effort", "reasoning effort", "thinking"])),
        (D::CacheKey, text.contains("prompt_cache_key")),
        (D::CacheControl, text.contains("cache_control")),
        (
            D::MissingReasoning,
            text.contains("reasoning_content") && any(text, &["pass", "missing", "required"]),
        ),
        (D::Extra, sent.extra.iter().any(|name| refuses(text, &[&name.to_lowercase()]))),
        (
            D::CallIds,
            any(text, &["tool call id", "tool_call_id", "tool_calls", "call_id"])
                && any(text, &["length of 9", "a-z, a-z, 0-9", "maximum length", "too long", "alphanumeric"]),
        ),
        (
            D::AdjacentRoles,
            any(text, &["must alternate", "should alternate", "roles must", "same role", "alternating"])
                || (text.contains("consecutive") && any(text, &["role", "message"])),
        ),
        (D::SystemRole, no_instructions(text)),
        (D::DeveloperRole, no_instructions(text)),
        (D::ContentParts, wants_text(text)),
        (D::Streaming, no_streaming(text)),
        // The message names no field. `stream_options` is the field that is refused most often.
        (D::StreamOptions, any(text, &["extra_forbidden", "extra inputs", "extra fields"])),
        (D::Images, error.kind == ErrorKind::Unsupported && text.contains("image")),
    ];
    rules.into_iter().find(|(part, matches)| *matches && has(*part)).map(|(part, _)| part)
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
