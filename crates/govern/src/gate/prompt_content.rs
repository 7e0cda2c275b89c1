//! Checks the content of prompts against the declared capabilities, and prepares the text that approvers see.

use narrows_manifest::Capabilities;
use narrows_wire::member;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Maximum length of the prompt text that approvers see. A longer text is cut.
const MAX_SHOWN_BYTES: usize = 16 << 10;

/// Returns the type of the first content block that needs a capability which the manifest does not declare.
pub(super) fn undeclared_block(params: &Value, declared: Capabilities) -> Option<&'static str> {
    blocks(params).iter().find_map(|block| match block["type"].as_str()? {
        "image" if !declared.image => Some("image"),
        "audio" if !declared.audio => Some("audio"),
        "resource" if !declared.embedded_context => Some("resource"),
        _ => None,
    })
}

/// Returns a prompt in the form that is approved and recorded: its text, cut if it is long, with the length
/// and digest of the whole prompt.
pub(super) fn approval_input(params: &Value, raw: Option<&[u8]>) -> Value {
    let raw = raw.unwrap_or_default();
    let place = member(raw, "prompt").ok().flatten();
    let whole = place.map(|place| &raw[place]).unwrap_or_default();
    let digest: String = Sha256::digest(whole).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = String::new();
    for block in blocks(params) {
        if !text.is_empty() {
            text.push('\n');
        }
        match (block["type"].as_str(), block["text"].as_str(), block["uri"].as_str()) {
            (Some("text"), Some(words), _) => text.push_str(words),
            (kind, _, Some(uri)) => text.push_str(&format!("[{} {uri}]", kind.unwrap_or("?"))),
            (kind, ..) => text.push_str(&format!("[{}]", kind.unwrap_or("?"))),
        }
    }
    let is_cut = text.len() > MAX_SHOWN_BYTES;
    if is_cut {
        let end = (0..=MAX_SHOWN_BYTES).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
    let mut matter = json!({"prompt": text, "bytes": whole.len(), "sha256": digest});
    if is_cut {
        matter["truncated"] = json!(true);
    }
    matter
}

fn blocks(params: &Value) -> &[Value] {
    params["prompt"].as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approvers_see_the_text_and_a_digest_of_the_rest() {
        let check = |prompt: Value, text: &str, is_cut: bool| {
            let params = json!({"prompt": prompt});
            let raw = params.to_string();
            let matter = approval_input(&params, Some(raw.as_bytes()));
            let digest = Sha256::digest(prompt.to_string());
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((&matter["prompt"], &matter["sha256"]), (&json!(text), &json!(digest)));
            assert_eq!(matter["truncated"] == true, is_cut);
        };
        check(json!([]), "", false);
        check(json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "a\nb", false);
        let link = json!({"type": "resource_link", "uri": "file:///x", "name": "x"});
        check(json!([link, {"type": "image", "data": "A"}]), "[resource_link file:///x]\n[image]", false);
        let long = "é".repeat(MAX_SHOWN_BYTES);
        check(json!([{"type": "text", "text": long}]), &"é".repeat(MAX_SHOWN_BYTES / 2), true);
    }

    #[test]
    fn undeclared_blocks_are_found() {
        let check = |kind: &str, declared: Capabilities, expected: Option<&str>| {
            assert_eq!(
                undeclared_block(&json!({"prompt": [{"type": "text"}, {"type": kind}]}), declared),
                expected
            );
        };
        let none = Capabilities::default();
        check("text", none, None);
        check("resource_link", none, None);
        for kind in ["image", "audio", "resource"] {
            check(kind, none, Some(kind));
        }
        let all = Capabilities { image: true, audio: true, embedded_context: true, ..none };
        for kind in ["image", "audio", "resource"] {
            check(kind, all, None);
        }
    }
}
