//! Finds the JSON value in an answer that also contains other text.

mod scan;

use scan::Scanner;
use serde_json::Value;

use crate::peer_json;

/// Maximum number of bytes to search, counted from the end of a message that is not JSON as a whole.
const MAX_SEARCHED_BYTES: usize = 256 << 10;

/// Maximum nesting depth that the parser accepts.
const MAX_DEPTH: usize = 127;

/// Maximum number of values to try that are well-formed but that the parser refuses, because of a lone
/// surrogate or a large number. Each such value may contain the next, so trying all could take quadratic
/// time.
const MAX_UNREADABLE: usize = 16;

/// Returns the JSON value in `text`: the whole text, or else its last code fence, or else its last object. If
/// `any` is set, a whole text or fence may be any value, and a list in the text counts like an object.
pub(super) fn last(text: &str, any: bool) -> Option<Value> {
    let text = text.trim_start_matches('\u{feff}').trim();
    let wanted = |value: &Value| any || value.is_object();
    let whole = |text: &str| peer_json::read(text.as_bytes()).ok().filter(wanted);
    whole(text)
        .or_else(|| fences(text).into_iter().rev().find_map(whole))
        .or_else(|| last_from(tail(text), '{'))
        .or_else(|| if any { last_from(tail(text), '[') } else { None })
}

fn fences(text: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    // Delimiter of the open code fence, and position of its content.
    let mut open: Option<(&str, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (start, end) = (at, at + line.len());
        at = end;
        let mark = mark(line.trim_start());
        match open {
            None => open = (mark.len() >= 3).then_some((mark, end)),
            Some((fence, content)) => {
                let closes = mark.starts_with(fence) && line.trim() == mark;
                if closes {
                    blocks.push(&text[content..start]);
                    open = None;
                }
            }
        }
    }
    blocks
}

/// Returns the backticks or tildes at the start of a line, which delimit a code fence.
fn mark(line: &str) -> &str {
    let Some(sign @ ('`' | '~')) = line.chars().next() else { return "" };
    &line[..line.len() - line.trim_start_matches(sign).len()]
}

/// Returns the last object or list that starts with `sign` and is not inside another one that starts with
/// `sign`.
fn last_from(text: &str, sign: char) -> Option<Value> {
    let mut scanner = Scanner::new(text);
    let mut last = None;
    let mut unreadable = 0;
    let mut at = 0;
    while let Some(next) = text[at..].find(sign) {
        at += next;
        let extent = scanner.extent(at).filter(|extent| extent.depth <= MAX_DEPTH);
        let Some(extent) = extent else {
            at += sign.len_utf8();
            continue;
        };
        match peer_json::read(&text.as_bytes()[at..extent.end]) {
            Ok(value) => {
                last = Some(value);
                at = extent.end;
            }
            Err(_) if unreadable == MAX_UNREADABLE => break,
            Err(_) => {
                unreadable += 1;
                at += sign.len_utf8();
            }
        }
    }
    last
}

/// Returns the end of `text` that is searched. Cuts between characters.
fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(MAX_SEARCHED_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&Value>) {
        assert_eq!(last(text, false).as_ref(), expected, "{text}");
    }

    #[track_caller]
    fn check_any(text: &str, expected: Option<&Value>) {
        assert_eq!(last(text, true).as_ref(), expected, "{text}");
    }

    #[test]
    fn a_message_of_only_json_is_the_answer() {
        check(r#"{"a":1}"#, Some(&json!({"a": 1})));
        check("\u{feff} \n{\"a\":1}\n", Some(&json!({"a": 1})));
        check("42", None);
        check("", None);
        check_any("42", Some(&json!(42)));
        check_any(r#""{\"a\":1}""#, Some(&json!("{\"a\":1}")));
        check(r#"{"text":"```json\n{}\n```"}"#, Some(&json!({"text": "```json\n{}\n```"})));
    }

    #[test]
    fn code_fences_are_removed() {
        check("```json\n{\"a\":1}\n```", Some(&json!({"a": 1})));
        check("```\r\n{\"a\":1}\r\n```\r\n", Some(&json!({"a": 1})));
        check("~~~~\n{\"a\":1}\n~~~~", Some(&json!({"a": 1})));
        check("Here:\n\n  ```json\n{\"a\":1}\n  ```\nNot {\"b\":2}.", Some(&json!({"a": 1})));
        check("```\n{\"a\":1}\n```\n```\n{\"b\":2}\n```", Some(&json!({"b": 2})));
        check("```\n{\"a\":1}\n```\n```sh\nls\n```", Some(&json!({"a": 1})));
        check("````\n```\n{\"a\":1}\n````", Some(&json!({"a": 1})));
        check("```json\n{\"a\":1}", Some(&json!({"a": 1})));
        check("```\n42\n```", None);
        check_any("```\n42\n```", Some(&json!(42)));
    }

    #[test]
    fn the_last_object_is_the_answer() {
        check("The answer is {\"a\":1}.", Some(&json!({"a": 1})));
        check("First {\"a\":1}, then {\"b\":{\"c\":2}} – so it's \"done\".", Some(&json!({"b": {"c": 2}})));
        check("{not json} {\"a\":1} {neither", Some(&json!({"a": 1})));
        check("{\"cut\":[{\"a\":1},", Some(&json!({"a": 1})));
        check("{{\"a\":1}}", Some(&json!({"a": 1})));
        check("[{\"a\":1}]", Some(&json!({"a": 1})));
        check("é{\"é\":\"é\"}é", Some(&json!({"é": "é"})));
        check("{", None);
        check_any("It is [1, 2], see {\"a\":1}", Some(&json!({"a": 1})));
        check_any("It is [1, [2]]!", Some(&json!([1, [2]])));
    }

    #[test]
    fn hostile_nesting_ends() {
        check(&"{\"a\":[".repeat(1_000), None);
        check(&"{".repeat(50_000), None);
        check_any(&"[".repeat(3_000), None);
        let long = format!("{}{}", "é".repeat(MAX_SEARCHED_BYTES), "{\"a\":1}");
        check(&long, Some(&json!({"a": 1})));
    }

    #[test]
    fn objects_inside_invalid_values_are_found() {
        check("{\"x\":1e999,\"y\":{\"a\":1}}", Some(&json!({"a": 1})));
        check("{\"x\":\"\\ud800\",\"y\":[{\"a\":1}]} {\"b\":2}", Some(&json!({"b": 2})));
        let deep = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let deepest: Value = serde_json::from_str(&deep(MAX_DEPTH)).expect("the parser reads it");
        check(&deep(MAX_DEPTH + 1), Some(&deepest));
        check(&format!("{} {{\"a\":1}}", "{\"a\":[1e999,".repeat(1_000)), Some(&json!({"a": 1})));
    }

    /// Reference implementation, which parses separately from every `sign` in the text.
    fn last_of_every_start(text: &str, sign: char) -> Option<Value> {
        let mut last = None;
        let mut at = 0;
        while let Some(next) = text[at..].find(sign) {
            at += next;
            let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
            match values.next() {
                Some(Ok(value)) => {
                    last = Some(value);
                    at += values.byte_offset();
                }
                _ => at += sign.len_utf8(),
            }
        }
        last
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z{}\\[\\]\"`é\n\\\\]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map("[a-z\"{}]{0,5}", inner, 0..5)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_fast_search_agrees_with_a_naive_one(
            text in "([\\{\\}\\[\\]\",:\\\\ ]|\\{\"a\":|-?[01]{1,2}|1[.e]-?[0a]|true|nul|\"[{\\[]?\"|\\\\[u\"]|\n|é){0,40}",
        ) {
            for sign in ['{', '['] {
                prop_assert_eq!(last_from(&text, sign), last_of_every_start(&text, sign));
            }
        }

        #[test]
        fn the_last_value_is_found_in_truncated_json(value in value(), start in 0..80_usize, end in 0..80_usize) {
            let text = json!([value]).to_string();
            let letters: Vec<char> = text.chars().collect();
            let end = letters.len().saturating_sub(end);
            let text: String = letters[start.min(end)..end].iter().collect();
            for sign in ['{', '['] {
                prop_assert_eq!(last_from(&text, sign), last_of_every_start(&text, sign));
            }
        }

        #[test]
        fn an_object_is_found_in_any_text(
            value in value(),
            before in "[a-z .!?'é\n]{0,40}",
            after in "[a-z .!?'é\n]{0,40}",
            fenced: bool,
        ) {
            let value = json!({"x": value});
            let text = match fenced {
                true => format!("{before}\n```json\n{value:#}\n```\n{after}"),
                false => format!("{before}{value}{after}"),
            };
            prop_assert_eq!(last(&text, false), Some(value));
        }

        #[test]
        fn any_text_is_searched_without_panic(text in "[\\{\\}\\[\\]\",:0-9a`~ \n\\\\]{0,200}", any: bool) {
            let found = last(&text, any);
            prop_assert!(any || found.is_none_or(|value| value.is_object()));
        }
    }
}
