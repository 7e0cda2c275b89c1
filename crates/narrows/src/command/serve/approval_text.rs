//! Renders a pending action for its approver: completely, and without characters that control the terminal.

use std::time::{SystemTime, UNIX_EPOCH};

use narrows_base::text::{approval_line, approval_lines};
use serde_json::Value;

use super::approval_protocol::PendingAction;

const INDENT: &str = "  ";

pub(super) fn render(action: &PendingAction) -> String {
    let PendingAction {
        id,
        session,
        tool,
        input,
        kinds,
        digest: _,
        reason,
        needs,
        given,
        client,
        content,
        until,
    } = action;
    let mut out = String::new();
    let mut row = |name: &str, words: &str| {
        if !words.is_empty() {
            out.push_str(&format!("{name:<10}{}\n", approval_line(words, usize::MAX)));
        }
    };
    row("approval", id);
    row("tool", tool);
    row("kinds", kinds);
    row("for", client);
    row("session", session);
    row("because", reason);
    row("needs", needs);
    row("given by", &given.join(", "));
    row("refused", &time_left(*until));
    out.push_str("input\n");
    render_value(None, input, 1, &mut out);
    if !content.is_null() {
        out.push_str("as displayed by the agent (approvals cover the input only)\n");
        render_value(None, content, 1, &mut out);
    }
    out
}

/// Returns the time until `until`, by the clock of this machine.
pub(super) fn time_left(until: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match until.saturating_sub(now) {
        _ if until == 0 => String::new(),
        seconds @ 0..120 => format!("in {seconds} s"),
        seconds => format!("in {} min", seconds / 60),
    }
}

fn render_value(key: Option<&str>, value: &Value, depth: usize, out: &mut String) {
    let indent = INDENT.repeat(depth);
    let key = key.map(|key| format!("{}:", approval_line(key, usize::MAX)));
    let head = key.as_deref().unwrap_or("-");
    match value {
        Value::Object(members) if !members.is_empty() => {
            let deeper = if key.is_some() || depth > 1 { depth + 1 } else { depth };
            if deeper > depth {
                out.push_str(&format!("{indent}{head}\n"));
            }
            for (key, value) in members {
                render_value(Some(key), value, deeper, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let deeper = if key.is_some() { depth + 1 } else { depth };
            if deeper > depth {
                out.push_str(&format!("{indent}{head}\n"));
            }
            for value in items {
                render_value(None, value, deeper.max(2), out);
            }
        }
        Value::String(words) if words.contains('\n') => {
            out.push_str(&format!("{indent}{head}\n"));
            for line in approval_lines(words).split('\n') {
                out.push_str(&format!("{indent}{INDENT}| {line}\n"));
            }
        }
        Value::String(words) => out.push_str(&format!("{indent}{head} {}\n", approval_lines(words))),
        other => out.push_str(&format!("{indent}{head} {other}\n")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: &Value, expected: &str) {
        let mut out = String::new();
        render_value(None, value, 1, &mut out);
        assert_eq!(out, expected, "{value}");
    }

    #[test]
    fn every_line_of_an_input_is_shown_and_escaped() {
        check(&json!({"path": "/w/a", "n": 7}), "  path: /w/a\n  n: 7\n");
        check(
            &json!({"content": "one\n\ttwo\u{1b}[2J\n", "path": "a"}),
            "  content:\n    | one\n    | \ttwo\\u{1b}[2J\n    | \n  path: a\n",
        );
        check(&json!({"command": ["rm", "-r"]}), "  command:\n    - rm\n    - -r\n");
        check(
            &json!([{"type": "diff", "newText": "a\nb"}]),
            "    -\n      type: diff\n      newText:\n        | a\n        | b\n",
        );
        check(&json!({}), "  - {}\n");
        check(&json!("x\ny"), "  -\n    | x\n    | y\n");
        check(&json!({"a\u{202e}b\n": null}), "  a\\u{202e}b: null\n");
        check(
            &json!({"pa\u{2800}th": "/a\u{ad}b\u{3164}", "content": "x\u{115f}\ny"}),
            "  pa\\u{2800}th: /a\\u{ad}b\\u{3164}\n  content:\n    | x\\u{115f}\n    | y\n",
        );
    }

    #[test]
    fn the_text_names_the_client_the_action_and_the_missing_approvers() {
        let action = PendingAction {
            id: "n-1".into(),
            session: "s".into(),
            tool: "Bash".into(),
            input: json!({"command": "make"}),
            kinds: "execute".into(),
            digest: String::new(),
            reason: "policy `runs` matches".into(),
            needs: "2 of role lead".into(),
            given: vec!["user:bob".into()],
            client: "user:ada".into(),
            content: Value::Null,
            until: 1,
        };
        let expected = "approval  n-1\ntool      Bash\nkinds     execute\nfor       user:ada\nsession   s\nbecause   policy `runs` matches\n\
            needs     2 of role lead\ngiven by  user:bob\nrefused   in 0 s\ninput\n  command: make\n";
        assert_eq!(render(&action), expected);
        let shown = PendingAction { content: json!([{"type": "diff"}]), until: 0, ..action };
        assert!(render(&shown).ends_with(
            "input\n  command: make\nas displayed by the agent (approvals cover the input only)\n    -\n      type: diff\n"
        ));
    }
}
