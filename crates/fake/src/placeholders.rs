//! Placeholders in the texts of a script.

use serde_json::Value;

#[derive(Clone, Debug, Default)]
pub(crate) struct PlaceholderValues {
    /// `{prompt}`: the text of the prompt.
    pub(crate) prompt: String,
    /// `{session}`: the id of the session.
    pub(crate) session: String,
    /// `{cwd}`: the directory of the session.
    pub(crate) cwd: String,
    /// `{mode}`: the mode of the session.
    pub(crate) mode: String,
    /// `{turn}`: the number of the turn in its session, from 1.
    pub(crate) turn: u64,
    /// `{n}`: the round of the innermost repetition, from 1.
    pub(crate) round: u64,
    /// `{last}`: the client's response to the last request of the agent.
    pub(crate) last: String,
    /// `{exit}`: the exit status of the last command.
    pub(crate) exit: String,
}

impl PlaceholderValues {
    /// Replaces the placeholders in `text`. Inserted values are not searched for placeholders, and unknown
    /// words in braces stay.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            filled.push_str(&rest[..open]);
            rest = &rest[open..];
            let known = rest.find('}').and_then(|close| Some((close, self.value(&rest[1..close])?)));
            let taken = match known {
                Some((close, value)) => {
                    filled.push_str(&value);
                    close + 1
                }
                None => {
                    filled.push('{');
                    1
                }
            };
            rest = &rest[taken..];
        }
        filled.push_str(rest);
        filled
    }

    /// Replaces the placeholders in all texts of `value`.
    pub(crate) fn fill_json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.fill(text)),
            Value::Array(entries) => entries.iter().map(|entry| self.fill_json(entry)).collect(),
            Value::Object(members) => {
                members.iter().map(|(key, value)| (key.clone(), self.fill_json(value))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    /// Replaces the placeholders in a path and makes it absolute, as the protocol requires.
    pub(crate) fn path(&self, path: &str) -> String {
        let path = self.fill(path);
        if path.starts_with('/') { path } else { format!("{}/{path}", self.cwd.trim_end_matches('/')) }
    }

    fn value(&self, name: &str) -> Option<String> {
        Some(match name {
            "prompt" => self.prompt.clone(),
            "session" => self.session.clone(),
            "cwd" => self.cwd.clone(),
            "mode" => self.mode.clone(),
            "turn" => self.turn.to_string(),
            "n" => self.round.to_string(),
            "last" => self.last.clone(),
            "exit" => self.exit.clone(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let values = PlaceholderValues {
            prompt: "say {cwd}".to_owned(),
            cwd: "/project".to_owned(),
            turn: 3,
            ..PlaceholderValues::default()
        };
        assert_eq!(values.fill(text), expected);
    }

    #[test]
    fn placeholders_are_filled_in_once() {
        check("", "");
        check("{turn}. {cwd}: {prompt}!", "3. /project: say {cwd}!");
        check("{last}", "");
    }

    #[test]
    fn other_braces_stay() {
        check("fn main() { {turn} }", "fn main() { 3 }");
        check("{prompt", "{prompt");
        check("{{turn}}", "{3}");
        check("{unknown} {é} {}", "{unknown} {é} {}");
    }

    #[test]
    fn paths_are_absolute() {
        let values = PlaceholderValues { cwd: "/project/".to_owned(), ..PlaceholderValues::default() };
        assert_eq!(values.path("notes.txt"), "/project/notes.txt");
        assert_eq!(values.path("/etc/{turn}"), "/etc/0");
    }
}
