//! The result of a probe, as text and as JSON.

use std::fmt::Write;

use narrows_acp::capability::AgentCan;
use narrows_base::text::one_line;
use narrows_client::{Agent, AgentDescription, Info, Login, LoginKind, OptionValue, Snapshot};
use serde_json::{Map, Value, json};

use super::capabilities;
use crate::error_report::ErrorReport;
use crate::failure::{Failure, stray_lines_notice};
use crate::output;
use crate::terminal::line;

/// Maximum number of models, modes or values of an option that the report lists.
const MAX_CHOICES: usize = 12;

const MAX_COMMANDS: usize = 20;

const MAX_DESCRIPTION_CHARS: usize = 100;

#[derive(Debug, Default)]
pub(super) enum SessionOpening {
    #[default]
    No,
    LoginNeeded,
    Session(Box<Snapshot>),
}

#[derive(Debug)]
pub(super) struct Report {
    name: String,
    command: Vec<String>,
    info: Option<Info>,
    protocol: Option<u16>,
    can: AgentCan,
    logins: Vec<Login>,
    pub(super) opened: SessionOpening,
    pub(super) stray_lines: u64,
    /// The beginnings of the first output lines of the agent that were not messages.
    pub(super) strays: Vec<String>,
}

impl Report {
    pub(super) fn new(agent: &Agent) -> Self {
        let words = std::iter::once(&agent.spec.program).chain(&agent.spec.args);
        Self {
            name: agent.name.clone(),
            command: words.map(|word| word.to_string_lossy().into_owned()).collect(),
            info: None,
            protocol: None,
            can: AgentCan::default(),
            logins: Vec::new(),
            opened: SessionOpening::default(),
            stray_lines: 0,
            strays: Vec::new(),
        }
    }

    pub(super) fn introduce(&mut self, known: &AgentDescription) {
        self.info.clone_from(&known.info);
        self.protocol = Some(known.version.number());
        self.can = known.can;
        self.logins.clone_from(&known.logins);
    }

    /// Prints the report. If the report is incomplete, `failure` is the reason.
    pub(super) fn print(&self, as_json: bool, failure: Option<&Failure>) -> Result<(), Failure> {
        if as_json { output::print_json(self.json(failure)) } else { output::print(self.text().as_bytes()) }
    }

    fn json(&self, failure: Option<&Failure>) -> Value {
        let can: Map<String, Value> = capabilities::rows(&self.can)
            .into_iter()
            .map(|(name, _, can)| (name.to_owned(), can.into()))
            .collect();
        let (session, login_needed) = match &self.opened {
            SessionOpening::Session(snapshot) => (json!(snapshot), false),
            SessionOpening::LoginNeeded => (Value::Null, true),
            SessionOpening::No => (Value::Null, false),
        };
        let mut report = json!({
            "name": self.name,
            "command": self.command,
            "agent": self.info,
            "protocol": self.protocol,
            "can": can,
            "logins": self.logins.iter().map(login_json).collect::<Vec<_>>(),
            "loginNeeded": login_needed,
            "session": session,
            "strayLines": self.stray_lines,
            "strays": self.strays,
        });
        if let Some(failure) = failure {
            report["error"] = json!(ErrorReport::from(failure));
        }
        report
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut put = |label: &str, words: &str| _ = writeln!(text, "{label:<10}{words}");
        match &self.info {
            Some(Info { name, version }) => put("agent", &format!("{} {}", line(name), line(version))),
            None => put("agent", &format!("{}, which does not report its name", line(&self.name))),
        }
        if let Some(protocol) = self.protocol {
            put("protocol", &format!("ACP version {protocol}"));
        }
        let rows = capabilities::rows(&self.can);
        for (label, wanted) in [("can", true), ("cannot", false)] {
            let words: Vec<&str> = rows.iter().filter(|row| row.2 == wanted).map(|row| row.1).collect();
            if !words.is_empty() {
                put(label, &words.join(", "));
            }
        }
        for (index, login) in self.logins.iter().enumerate() {
            put(if index == 0 { "login" } else { "" }, &login_words(login));
        }
        match &self.opened {
            SessionOpening::No => put("session", "could not be opened"),
            SessionOpening::LoginNeeded => put("session", "login needed"),
            SessionOpening::Session(snapshot) => {
                put("session", "could be opened");
                for (label, words) in session_words(snapshot) {
                    put(label, &words);
                }
            }
        }
        if self.stray_lines > 0 {
            put("note", &stray_lines_notice(self.stray_lines, &self.strays));
        }
        text
    }
}

fn login_json(login: &Login) -> Value {
    let mut value = json!({"id": login.id, "name": login.name, "description": login.description});
    match &login.how {
        LoginKind::Agent => value["type"] = "agent".into(),
        LoginKind::Environment { variables, missing } => {
            value["type"] = "env_var".into();
            value["variables"] = json!(variables);
            value["missing"] = json!(missing);
        }
        LoginKind::Terminal { arguments } => {
            value["type"] = "terminal".into();
            value["arguments"] = json!(arguments);
        }
        LoginKind::Other => value["type"] = "other".into(),
    }
    value
}

fn login_words(login: &Login) -> String {
    let how = match &login.how {
        LoginKind::Agent => "by the agent itself".to_owned(),
        LoginKind::Environment { variables, missing } if missing.is_empty() => {
            format!("by {}, set here", variables.join(", "))
        }
        LoginKind::Environment { missing, .. } => format!("by {}, not set here", missing.join(", ")),
        LoginKind::Terminal { arguments } if arguments.is_empty() => {
            "by starting it in a terminal".to_owned()
        }
        LoginKind::Terminal { arguments } => {
            format!("by starting it in a terminal, with {} after its command", arguments.join(" "))
        }
        LoginKind::Other => "in a way that is not known here".to_owned(),
    };
    let more = login.description.as_ref().map_or(String::new(), |words| format!(": {}", line(words)));
    format!("{}, {}{more}", line(&login.name), line(&how))
}

fn session_words(snapshot: &Snapshot) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    for (category, label, older) in
        [("model", "models", &snapshot.models), ("mode", "modes", &snapshot.modes)]
    {
        match (snapshot.option(category), older) {
            (Some(option), _) => rows.push((label, choices(&option.values, &option.current))),
            (None, Some(older)) => rows.push((label, choices(&older.available, &json!(older.current)))),
            (None, None) => {}
        }
    }
    let known = ["model", "mode"].map(|category| snapshot.option(category).map(|option| &option.id));
    for option in snapshot.options.iter().filter(|option| !known.contains(&Some(&option.id))) {
        let values = match option.values.is_empty() {
            true => format!("{} (now)", option.current),
            false => choices(&option.values, &option.current),
        };
        rows.push(("option", format!("{}: {values}", line(&option.id))));
    }
    for (index, command) in snapshot.commands.iter().take(MAX_COMMANDS).enumerate() {
        let hint = command.hint.as_deref().map(str::trim).filter(|hint| !hint.is_empty());
        let hint = hint.map_or(String::new(), |hint| format!(" <{}>", line(hint)));
        let words = format!(
            "/{}{hint}: {}",
            line(&command.name),
            one_line(&command.description, MAX_DESCRIPTION_CHARS)
        );
        rows.push((if index == 0 { "commands" } else { "" }, words));
    }
    rows.extend(omitted_note(snapshot.commands.len(), MAX_COMMANDS).map(|words| ("", words)));
    rows
}

/// Returns a shortened list of the ids in `all`. The id `current` is marked, and is never left out.
fn choices(all: &[OptionValue], current: &Value) -> String {
    let is_current = |choice: &&OptionValue| *current == choice.id.as_str();
    let word = |choice: &OptionValue| match is_current(&choice) {
        true => format!("{} (now)", line(&choice.id)),
        false => line(&choice.id),
    };
    let (shown, rest) = all.split_at(all.len().min(MAX_CHOICES));
    let words = shown.iter().map(word).chain(rest.iter().find(is_current).map(word));
    let hidden = all.len() - usize::from(rest.iter().any(|choice| is_current(&choice)));
    let words: Vec<String> = words.chain(omitted_note(hidden, MAX_CHOICES)).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn omitted_note(all: usize, shown: usize) -> Option<String> {
    let hidden = all.checked_sub(shown).filter(|hidden| *hidden > 0)?;
    Some(format!("… {hidden} more; --json for all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(count: usize) -> Vec<OptionValue> {
        let choice =
            |number: usize| OptionValue { id: format!("m{number}"), name: String::new(), description: None };
        (0..count).map(choice).collect()
    }

    #[test]
    fn long_lists_show_their_beginning_and_the_current_choice() {
        assert_eq!(choices(&[], &json!("m1")), "none");
        assert_eq!(choices(&all(3), &json!("m1")), "m0, m1 (now), m2");
        let first = "m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11";
        assert_eq!(choices(&all(12), &json!("")), first);
        assert_eq!(choices(&all(400), &json!("")), format!("{first}, … 388 more; --json for all"));
        assert_eq!(
            choices(&all(400), &json!("m77")),
            format!("{first}, m77 (now), … 387 more; --json for all")
        );
    }

    #[test]
    fn commands_have_no_empty_hint_and_are_bounded() {
        let command = |name: usize, hint: &str| narrows_client::Command {
            name: format!("c{name}"),
            description: "x".repeat(500),
            hint: Some(hint.to_owned()),
        };
        let commands =
            (0..30).map(|number| command(number, if number == 1 { "what" } else { " " })).collect();
        let rows = session_words(&Snapshot { commands, ..Snapshot::default() });
        assert_eq!(rows.len(), MAX_COMMANDS + 1);
        assert!(rows[0].1.starts_with("/c0: xxx") && rows[0].1.chars().count() < 120, "{}", rows[0].1);
        assert!(rows[1].1.starts_with("/c1 <what>: "), "{}", rows[1].1);
        assert_eq!(rows[MAX_COMMANDS].1, "… 10 more; --json for all");
    }
}
