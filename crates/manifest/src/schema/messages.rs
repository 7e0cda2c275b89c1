//! The messages about violations of a schema.

use narrows_base::suggest::nearest;
use narrows_base::text::quoted;
use serde_json::Value;

use super::check::Spot;
use crate::code::Code;
use crate::finding::Draft;
use crate::yaml::{Content, Node};

/// Formats a key as a part of a key path.
pub(super) fn key(text: &str) -> String {
    quoted(text, 64)
}

fn draft(code: Code, spot: Spot<'_>, message: String) -> Draft {
    let draft = Draft::error(code, spot.at, message).key(spot.path);
    match spot.node.raw() {
        Some(raw) if !raw.is_empty() => draft.value(raw),
        _ => draft,
    }
}

fn at_value(spot: Spot<'_>) -> Spot<'_> {
    Spot { at: spot.node.at, ..spot }
}

fn quoted_node(node: &Node) -> String {
    match node.raw() {
        Some("") | None => node.is_a().to_owned(),
        Some(raw) => format!("`{}`", quoted(raw, 80)),
    }
}

/// Returns the description of the key as a hint, if the schema has a description.
fn expected(spot: Spot<'_>) -> Option<String> {
    Some(format!("expected: {}", within(spot.about?)))
}

/// Returns the first line of a description, changed so that it fits into a sentence.
fn within(about: &str) -> String {
    let line = about.lines().next().unwrap_or_default().trim_end_matches('.');
    let mut letters = line.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(line.chars().skip(1)).collect()
        }
        _ => line.to_owned(),
    }
}

fn with_expected(draft: Draft, spot: Spot<'_>) -> Draft {
    match expected(spot) {
        Some(hint) => draft.hint(hint),
        None => draft,
    }
}

fn type_name(wanted: &str) -> &'static str {
    match wanted {
        "object" => "a map",
        "array" => "a list",
        "string" => "a string",
        "boolean" => "true or false",
        "integer" => "an integer",
        "number" => "a number",
        _ => "something else",
    }
}

/// Creates a finding about a value of the wrong type. `fits` returns `true` if the text of the value, in
/// quotes, would match the pattern.
pub(super) fn wrong_type(
    wanted: &str,
    allowed: Option<&Value>,
    fits: &dyn Fn(&str) -> bool,
    spot: Spot<'_>,
) -> Draft {
    let spot = at_value(spot);
    let empty = matches!(&spot.node.content, Content::Null(raw) if raw.is_empty());
    if empty {
        let message = format!("missing value, expected {}", type_name(wanted));
        return draft(Code::Type, spot, message).hint(match expected(spot) {
            Some(expected) => format!("{expected}; or remove the key if it is optional"),
            None => "add a value, or remove the key if it is optional".to_owned(),
        });
    }
    if let Some(words) = allowed.and_then(Value::as_array) {
        return not_one_of(words, spot);
    }
    let scalar = matches!(&spot.node.content, Content::Null(_) | Content::Bool(..) | Content::Number(..));
    if let (true, "string", Some(raw)) = (scalar, wanted, spot.node.raw()) {
        let name = spot.path.rsplit('.').next().unwrap_or(spot.path);
        let lacks = expected(spot).filter(|_| !fits(raw)).map(|expected| format!("; {expected}"));
        let raw = quoted(raw, 80);
        let message = format!("`{raw}` without quotes is {}, expected a string", spot.node.is_a());
        let quoted = if name.ends_with(']') { format!("\"{raw}\"") } else { format!("{name}: \"{raw}\"") };
        // The author would get another error if the value were only put in quotes.
        let hint = match lacks {
            Some(lacks) => format!("quote it, in its complete form{lacks}"),
            None => format!("quote it: {quoted}"),
        };
        return draft(Code::QuoteIt, spot, message).hint(hint);
    }
    let message = format!("this is {}, expected {}", spot.node.is_a(), type_name(wanted));
    with_expected(draft(Code::Type, spot, message), spot)
}

pub(super) fn not_one_of(allowed: &[Value], spot: Spot<'_>) -> Draft {
    let spot = at_value(spot);
    let words: Vec<String> = allowed
        .iter()
        .map(|value| match value {
            Value::String(word) => word.clone(),
            other => other.to_string(),
        })
        .collect();
    let given = quoted_node(spot.node);
    let near = spot.node.text().and_then(|text| nearest(text, words.iter().map(String::as_str)));
    let hint = match (near, words.as_slice()) {
        (_, [only]) => format!("write {only}"),
        (Some(near), _) => format!("did you mean {near}? It is one of {}", words.join(", ")),
        (None, _) => format!("write one of {}", words.join(", ")),
    };
    draft(Code::Enum, spot, format!("{given} is not allowed here")).hint(hint)
}

pub(super) fn length(length: u64, least: u64, most: u64, spot: Spot<'_>) -> Draft {
    let spot = at_value(spot);
    let message = match length {
        0 => "the string is empty".to_owned(),
        _ if length < least => format!("the string has {length} characters, fewer than {least}"),
        _ => format!("the string has {length} characters, more than {most}"),
    };
    with_expected(draft(Code::Length, spot, message), spot)
}

pub(super) fn pattern(pattern: &str, spot: Spot<'_>) -> Draft {
    let spot = at_value(spot);
    let draft = draft(Code::Pattern, spot, format!("{} has the wrong form", quoted_node(spot.node)));
    match expected(spot) {
        Some(hint) => draft.hint(hint),
        None => draft.hint(format!("it must match {pattern}")),
    }
}

/// Creates a finding about a word where an id is required.
pub(super) fn write_id(text: &str, spot: Spot<'_>) -> Draft {
    let spot = at_value(spot);
    let message = format!("{} is not allowed here without a key", quoted_node(spot.node));
    let id = match text.contains([':', '#', '{', '[', '*', '&', '!', '|', '>', '\'', '"', '%', '@', '`']) {
        true => format!("'{}'", quoted(&text.replace('\'', "''"), 80)),
        false => quoted(text, 80),
    };
    let hint = format!(
        "write `- id: {id}`; only names of lower-case letters, digits and hyphens are allowed without a key"
    );
    draft(Code::Pattern, spot, message).hint(hint)
}

pub(super) fn range(least: Option<f64>, most: Option<f64>, spot: Spot<'_>) -> Draft {
    let spot = at_value(spot);
    let bounds = match (least, most) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("{least} or more"),
        (None, Some(most)) => format!("{most} or less"),
        (None, None) => String::new(),
    };
    let message = format!("{} is out of range", quoted_node(spot.node));
    draft(Code::Range, spot, message).hint(format!("write a number {bounds}"))
}

pub(super) fn too_few(least: u64, spot: Spot<'_>) -> Draft {
    with_expected(draft(Code::TooFew, spot, format!("the list needs at least {least} items")), spot)
}

pub(super) fn twice(first: usize, spot: Spot<'_>) -> Draft {
    let message = format!("{} is listed twice, first as number {}", quoted_node(spot.node), first + 1);
    draft(Code::NotUnique, spot, message).hint("remove one of them")
}

pub(super) fn missing<'a>(
    wanted: &str,
    about: Option<&str>,
    known: impl IntoIterator<Item = &'a str>,
    spot: Spot<'_>,
) -> Draft {
    let known: Vec<&str> = known.into_iter().collect();
    let strangers = spot.node.entries().iter().map(|(key, _)| key.text.as_str());
    let slip = nearest(wanted, strangers.filter(|key| !known.contains(key)));
    let message = format!("`{wanted}` is missing");
    let hint = match (slip, about) {
        (Some(slip), _) => format!("did you mean `{}`?", quoted(slip, 64)),
        (None, Some(about)) => format!("add it: {}", within(about)),
        (None, None) => "add it".to_owned(),
    };
    Draft::error(Code::Missing, spot.at, message).key(spot.path).hint(hint)
}

pub(super) fn unknown<'a>(given: &str, known: impl IntoIterator<Item = &'a str>, spot: Spot<'_>) -> Draft {
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_unstable();
    let hint = match (undeclarable(spot.path), nearest(given, known.iter().copied())) {
        (Some(hint), _) => hint.to_owned(),
        (None, Some(near)) => format!("did you mean {near}?"),
        (None, None) if known.is_empty() => "remove it".to_owned(),
        (None, None) => format!("remove it; valid keys are {}", known.join(", ")),
    };
    Draft::error(Code::Unknown, spot.at, format!("unknown key `{}`", key(given)))
        .key(spot.path)
        .value(given)
        .hint(hint)
}

/// Returns the hint for a key that stands for a protocol feature, if a manifest cannot declare that feature.
fn undeclarable(path: &str) -> Option<&'static str> {
    match path {
        "metadata.aip44.capabilities.agent.mcpCapabilities.acp" => {
            Some("remove it: MCP over ACP is implied by http or sse")
        }
        "metadata.aip44.capabilities.agent.sessionCapabilities" => {
            Some("remove it: closing, resuming and listing sessions cannot be declared")
        }
        _ => None,
    }
}

pub(super) fn form(spot: Spot<'_>) -> Draft {
    let message = format!("{} has a form that is not allowed here", quoted_node(spot.node));
    with_expected(draft(Code::Form, at_value(spot), message), spot)
}

pub(super) fn several(spot: Spot<'_>) -> Draft {
    let message = "these keys exclude each other".to_owned();
    with_expected(draft(Code::Form, spot, message), spot)
}

pub(super) fn one_of_keys(options: &[&Value], spot: Spot<'_>) -> Draft {
    let keys = options.iter().filter_map(|option| option.get("required")?.get(0)?.as_str());
    let keys: Vec<&str> = keys.collect();
    draft(Code::Form, spot, "a key is missing".to_owned()).hint(format!("write one of {}", keys.join(", ")))
}

/// Returns how strongly a finding suggests that the author meant another form.
pub(super) fn weight(draft: &Draft) -> usize {
    match draft.code() {
        Code::Unknown => 3,
        Code::Missing => 2,
        _ => 1,
    }
}
