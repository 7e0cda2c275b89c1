//! Reads the child sessions that agents announce.

use narrows_acp::method;
use narrows_wire::View;
use serde::Deserialize;

const MAX_ID_BYTES: usize = 1024;

#[derive(Deserialize)]
struct Params {
    update: Update,
}

#[derive(Deserialize)]
struct Update {
    #[serde(rename = "sessionUpdate")]
    kind: String,
    #[serde(rename = "sessionId")]
    child: String,
}

/// Returns the id of the child session that a message announces (`subagent_update`), if it announces one.
pub(crate) fn child_id(message: &View<'_>) -> Option<String> {
    if message.method().as_deref() != Some(method::SESSION_UPDATE) {
        return None;
    }
    let params = message.params()?;
    // Most updates announce no child session. One text search finds that out without parsing them.
    memchr::memmem::find(params, b"\"subagent_update\"")?;
    let update = serde_json::from_slice::<Params>(params).ok()?.update;
    (update.kind == "subagent_update" && (1..=MAX_ID_BYTES).contains(&update.child.len()))
        .then_some(update.child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_read_and_other_updates_are_not() {
        #[track_caller]
        fn check(method: &str, update: &str, expected: Option<&str>) {
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"sessionId":"s","update":{update}}}}}"#
            );
            assert_eq!(child_id(&View::parse(line.as_bytes())).as_deref(), expected, "{line}");
        }
        let announced = r#"{"sessionUpdate":"subagent_update","sessionId":"c","title":"t"}"#;
        check("session/update", announced, Some("c"));
        check("_x/update", announced, None);
        check("session/update", r#"{"sessionId":"c","sessionUpdate":"subagent_update"}"#, Some("c"));
        check("session/update", r#"{"sessionUpdate":"subagent_update","sessionId":7}"#, None);
        check("session/update", r#"{"sessionUpdate":"subagent_update","sessionId":""}"#, None);
        check("session/update", r#"{"sessionUpdate":"other","sessionId":"c","x":"subagent_update"}"#, None);
        let long = format!(r#"{{"sessionUpdate":"subagent_update","sessionId":"{}"}}"#, "x".repeat(1025));
        check("session/update", &long, None);
    }
}
