//! Converts the content blocks of a prompt to the format for the model.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use narrows_model::Part;
use narrows_wire::RpcError;
use serde_json::{Map, Value};

use crate::params::invalid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Text(String),
    Image { mime: String, data: String },
    Audio { mime: String, data: String },
    Link { uri: String, name: String },
    Resource { uri: String, text: String },
    Blob { uri: String, mime: Option<String>, data: String },
}

/// Parses the blocks of a prompt. Also adds missing link names to `prompt`, which is replayed later.
pub(crate) fn parse_blocks(prompt: &mut Value) -> Result<Vec<Block>, RpcError> {
    let Value::Array(blocks) = prompt else {
        return Err(invalid("prompt", "must be an array of content blocks"));
    };
    if blocks.is_empty() {
        return Err(invalid("prompt", "must not be empty"));
    }
    let numbered = blocks.iter_mut().enumerate();
    numbered.map(|(index, block)| parse_block(&format!("prompt[{index}]"), block)).collect()
}

fn parse_block(field: &str, block: &mut Value) -> Result<Block, RpcError> {
    let Value::Object(object) = block else { return Err(invalid(field, "must be an object")) };
    let at = |name: &str| format!("{field}.{name}");
    match optional_text(object, "type").as_deref() {
        Some("text") => Ok(Block::Text(required_text(object, field, "text")?)),
        Some("image") => Ok(Block::Image {
            mime: required_text(object, field, "mimeType")?,
            data: base64(object, field, "data")?,
        }),
        Some("audio") => Ok(Block::Audio {
            mime: required_text(object, field, "mimeType")?,
            data: base64(object, field, "data")?,
        }),
        Some("resource_link") => {
            let uri = required_text(object, field, "uri")?;
            let name = match optional_text(object, "name") {
                Some(name) => name,
                None => {
                    let name = last_segment(&uri);
                    object.insert("name".to_owned(), name.as_str().into());
                    name
                }
            };
            Ok(Block::Link { uri, name })
        }
        Some("resource") => {
            let Some(Value::Object(resource)) = object.get("resource") else {
                return Err(invalid(&at("resource"), "must be an object"));
            };
            let inner = at("resource");
            let uri = required_text(resource, &inner, "uri")?;
            if resource.contains_key("text") {
                return Ok(Block::Resource { uri, text: required_text(resource, &inner, "text")? });
            }
            Ok(Block::Blob {
                uri,
                mime: optional_text(resource, "mimeType"),
                data: base64(resource, &inner, "blob")?,
            })
        }
        Some(kind) => {
            let kind: String = kind.chars().take(40).collect();
            Err(invalid(&at("type"), &format!("is an unsupported block type: {kind:?}")))
        }
        None => Err(invalid(&at("type"), "is missing")),
    }
}

fn optional_text(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn required_text(object: &Map<String, Value>, field: &str, name: &str) -> Result<String, RpcError> {
    let problem = if object.contains_key(name) { "must be a string" } else { "is missing" };
    optional_text(object, name).ok_or_else(|| invalid(&format!("{field}.{name}"), problem))
}

/// Checks that a field is valid base64, without decoding it. Models get the encoded text, and endpoints would
/// report invalid base64 in different ways.
fn base64(object: &Map<String, Value>, field: &str, name: &str) -> Result<String, RpcError> {
    let data = required_text(object, field, name)?;
    let valid = data.len() % 4 == 0
        && data
            .trim_end_matches('=')
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
        && data.len() - data.trim_end_matches('=').len() <= 2;
    if valid { Ok(data) } else { Err(invalid(&format!("{field}.{name}"), "must be base64")) }
}

pub(crate) fn last_segment(uri: &str) -> String {
    let path = uri.split(['?', '#']).next().unwrap_or(uri).trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    if name.is_empty() { uri.to_owned() } else { name.to_owned() }
}

/// Converts `blocks` for the model. Joins adjacent texts with a line break.
pub(crate) fn to_parts(blocks: Vec<Block>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for block in blocks {
        let part = to_part(block);
        match (parts.last_mut(), part) {
            (Some(Part::Text { text: before }), Part::Text { text }) => {
                before.push('\n');
                before.push_str(&text);
            }
            (_, part) => parts.push(part),
        }
    }
    parts
}

fn to_part(block: Block) -> Part {
    match block {
        Block::Text(text) => Part::Text { text },
        Block::Image { mime, data } => Part::Image { mime, data },
        Block::Audio { mime, data } => Part::Audio { mime, data },
        Block::Link { uri, name } => Part::text(format!("[Resource: {name}] {uri}")),
        Block::Resource { uri, text } => Part::text(format!("[Resource: {uri}]\n{text}")),
        Block::Blob { uri, mime, data } => blob_part(&uri, mime, data),
    }
}

fn blob_part(uri: &str, mime: Option<String>, data: String) -> Part {
    let mime = mime.unwrap_or_default();
    match mime.split(';').next().unwrap_or_default().trim() {
        kind if kind.starts_with("image/") => Part::Image { mime, data },
        kind if kind.starts_with("audio/") => Part::Audio { mime, data },
        "application/pdf" => Part::File { name: Some(last_segment(uri)), mime, data },
        kind => {
            let decoded = STANDARD.decode(&data).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            match decoded {
                Some(text) if kind.starts_with("text/") || kind.ends_with("json") || kind.is_empty() => {
                    Part::text(format!("[Resource: {uri}]\n{text}"))
                }
                _ if kind.is_empty() => Part::text(format!("[Resource: {uri}]")),
                _ => Part::text(format!("[Resource: {uri}] ({kind})")),
            }
        }
    }
}

/// Returns the first line of a prompt, shortened, as the title of a session.
pub(crate) fn prompt_title(blocks: &[Block]) -> Option<String> {
    const MAX_TITLE_CHARS: usize = 60;
    let first = blocks.iter().find_map(|block| match block {
        Block::Text(text) => text.lines().map(str::trim).find(|line| !line.is_empty()),
        _ => None,
    })?;
    let plain: String = first.chars().filter(|character| !character.is_control()).collect();
    if plain.chars().count() <= MAX_TITLE_CHARS {
        return Some(plain);
    }
    let cut: String = plain.chars().take(MAX_TITLE_CHARS - 1).collect();
    Some(format!("{}…", cut.trim_end()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(mut prompt: Value, expected: &[Part]) {
        assert_eq!(to_parts(parse_blocks(&mut prompt).unwrap()), expected);
    }

    #[track_caller]
    fn check_refused(mut prompt: Value, field: &str) {
        let error = parse_blocks(&mut prompt).unwrap_err();
        assert_eq!((error.code, &error.data.unwrap()["field"]), (-32602, &json!(field)), "{prompt}");
    }

    #[test]
    fn text_blocks_become_text_parts() {
        check(json!([{"type": "text", "text": "hi"}]), &[Part::text("hi")]);
        check(
            json!([{"type": "text", "text": "see"}, {"type": "resource_link", "uri": "file:///w/a.rs", "name": "a"}]),
            &[Part::text("see\n[Resource: a] file:///w/a.rs")],
        );
        check(
            json!([{"type": "resource_link", "uri": "/w/a.rs"}]),
            &[Part::text("[Resource: a.rs] /w/a.rs")],
        );
        check(
            json!([{"type": "resource", "resource": {"uri": "file:///w/a", "text": "x\ny"}}]),
            &[Part::text("[Resource: file:///w/a]\nx\ny")],
        );
        let png = "iVBORw==";
        check(
            json!([{"type": "text", "text": "a"}, {"type": "image", "mimeType": "image/png", "data": png}, {"type": "text", "text": "b"}]),
            &[
                Part::text("a"),
                Part::Image { mime: "image/png".to_owned(), data: png.to_owned() },
                Part::text("b"),
            ],
        );
    }

    #[test]
    fn blobs_become_parts_of_their_media_type() {
        let blob = |mime: &str, data: &str| json!([{"type": "resource", "resource": {"uri": "u:/a.x", "mimeType": mime, "blob": data}}]);
        check(blob("text/plain", "aGk="), &[Part::text("[Resource: u:/a.x]\nhi")]);
        check(blob("application/zip", "aGk="), &[Part::text("[Resource: u:/a.x] (application/zip)")]);
        let pdf = Part::File {
            name: Some("a.x".to_owned()),
            mime: "application/pdf".to_owned(),
            data: "aGk=".to_owned(),
        };
        check(blob("application/pdf", "aGk="), &[pdf]);
        check(
            blob("image/png", "aGk="),
            &[Part::Image { mime: "image/png".to_owned(), data: "aGk=".to_owned() }],
        );
    }

    #[test]
    fn invalid_blocks_are_named() {
        check_refused(json!("hi"), "prompt");
        check_refused(json!([]), "prompt");
        check_refused(json!([7]), "prompt[0]");
        check_refused(json!([{"text": "x"}]), "prompt[0].type");
        check_refused(json!([{"type": "video", "data": ""}]), "prompt[0].type");
        check_refused(json!([{"type": "text", "text": "x"}, {"type": "text"}]), "prompt[1].text");
        check_refused(
            json!([{"type": "image", "mimeType": "image/png", "data": "not base64"}]),
            "prompt[0].data",
        );
        check_refused(json!([{"type": "resource", "resource": {"uri": "a"}}]), "prompt[0].resource.blob");
        check_refused(json!([{"type": "resource"}]), "prompt[0].resource");
    }

    #[test]
    fn titles() {
        let of = |text: &str| prompt_title(&[Block::Text(text.to_owned())]);
        assert_eq!(of("\n  Fix the bug\nplease").as_deref(), Some("Fix the bug"));
        assert_eq!(of(" \n ").as_deref(), None);
        let long = of(&"word ".repeat(30)).unwrap();
        assert!(long.chars().count() <= 60 && long.ends_with('…'));
    }

    proptest! {
        #[test]
        fn text_survives(pieces in proptest::collection::vec(".*", 1..6)) {
            let mut prompt: Value =
                pieces.iter().map(|text| json!({"type": "text", "text": text})).collect();
            let parts = to_parts(parse_blocks(&mut prompt).unwrap());
            prop_assert_eq!(parts, [Part::text(pieces.join("\n"))]);
        }

        #[test]
        fn any_block_is_read_or_refused_by_its_field(kind in "text|image|audio|resource|resource_link|x", key in "text|data|uri|blob|mimeType|resource", value in ".*") {
            let mut prompt = json!([{"type": kind, key: value}]);
            if let Err(error) = parse_blocks(&mut prompt) {
                let field = error.data.unwrap()["field"].as_str().unwrap().to_owned();
                prop_assert!(field.starts_with("prompt[0]."), "{}", field);
            }
        }
    }
}
