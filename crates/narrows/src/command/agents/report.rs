//! What was learned of an agent, for people and for programs.

use std::fmt::Write;

use narrows_acp::capability::AgentCan;
use narrows_client::{Agent, Choice, Info, Introduced, Login, LoginKind, Snapshot};
use serde_json::{Map, Value, json};

use super::can;
use crate::error_report::ErrorReport;
use crate::failure::{Failure, strayed};
use crate::output;
use crate::terminal::line;

/// How opening a session ended.
#[derive(Debug, Default)]
pub(super) enum Opened {
    /// It failed.
    #[default]
    No,
    /// Somebody has to log in first.
    LoginNeeded,
    /// This is what is known of it.
    Session(Box<Snapshot>),
}

/// What was learned of an agent.
#[derive(Debug)]
pub(super) struct Report {
    name: String,
    command: Vec<String>,
    info: Option<Info>,
    protocol: Option<u16>,
    can: AgentCan,
    logins: Vec<Login>,
    pub(super) opened: Opened,
    /// Lines of its output that were no messages.
    pub(super) stray_lines: u64,
    /// The beginnings of the first of them.
    pub(super) strays: Vec<String>,
}

impl Report {
    /// Of an agent that was not asked yet.
    pub(super) fn new(agent: &Agent) -> Self {
        let words = std::iter::once(&agent.spec.program).chain(&agent.spec.args);
        Self {
            name: agent.name.clone(),
            command: words.map(|word| word.to_string_lossy().into_owned()).collect(),
            info: None,
            protocol: None,
            can: AgentCan::default(),
            logins: Vec::new(),
            opened: Opened::default(),
            stray_lines: 0,
            strays: Vec::new(),
        }
    }

    /// Notes what it said of itself.
    pub(super) fn introduce(&mut self, known: &Introduced) {
        self.info.clone_from(&known.info);
        self.protocol = Some(known.version.number());
        self.can = known.can;
        self.logins.clone_from(&known.logins);
    }

    /// Prints it; `failure` is what kept it from being complete.
    pub(super) fn print(&self, as_json: bool, failure: Option<&Failure>) -> Result<(), Failure> {
        let text = if as_json { format!("{}\n", self.json(failure)) } else { self.text() };
        output::print(text.as_bytes())
    }

    fn json(&self, failure: Option<&Failure>) -> Value {
        let can: Map<String, Value> =
            can::rows(&self.can).into_iter().map(|(name, _, can)| (name.to_owned(), can.into())).collect();
        let (session, login_needed) = match &self.opened {
            Opened::Session(snapshot) => (json!(snapshot), false),
            Opened::LoginNeeded => (Value::Null, true),
            Opened::No => (Value::Null, false),
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
            None => put("agent", &format!("{}, which does not say who it is", line(&self.name))),
        }
        if let Some(protocol) = self.protocol {
            put("protocol", &format!("ACP version {protocol}"));
        }
        let rows = can::rows(&self.can);
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
            Opened::No => put("session", "could not be opened"),
            Opened::LoginNeeded => put("session", "login needed"),
            Opened::Session(snapshot) => {
                put("session", "could be opened");
                for (label, words) in session_words(snapshot) {
                    put(label, &words);
                }
            }
        }
        if self.stray_lines > 0 {
            put("note", &strayed(self.stray_lines, &self.strays));
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
            format!("by starting it in a terminal, with {} behind its command", arguments.join(" "))
        }
        LoginKind::Other => "in a way that is not known here".to_owned(),
    };
    let more = login.description.as_ref().map_or(String::new(), |words| format!(": {}", line(words)));
    format!("{}, {}{more}", line(&login.name), line(&how))
}

/// What can be set in a session, and its commands.
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
    for (index, command) in snapshot.commands.iter().enumerate() {
        let hint = command.hint.as_ref().map_or(String::new(), |hint| format!(" <{}>", line(hint)));
        let words = format!("/{}{hint}: {}", line(&command.name), line(&command.description));
        rows.push((if index == 0 { "commands" } else { "" }, words));
    }
    rows
}

/// The ids, with the one that is chosen marked.
fn choices(all: &[Choice], current: &Value) -> String {
    let word = |choice: &Choice| match *current == choice.id.as_str() {
        true => format!("{} (now)", line(&choice.id)),
        false => line(&choice.id),
    };
    if all.is_empty() { "none".to_owned() } else { all.iter().map(word).collect::<Vec<_>>().join(", ") }
}
