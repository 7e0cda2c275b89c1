//! Judges members of an input that accompany a command.
//!
//! An agent may use any member as a part of the command: another shell, a prefix, a second command. So each
//! member is judged, or has a name that is known to be harmless, or makes the command unknown. Numbers,
//! booleans and null are harmless in every member.

use serde_json::Value;

use super::commands;
use super::input::{CONTENT, CWD, DESTINATION, PATH, PATTERN, QUERY, URL, VARIABLES, plain_key};

/// Members that contain texts for people, of any length.
const PROSE: &[&str] = &[
    "description",
    "reason",
    "justification",
    "explanation",
    "rationale",
    "title",
    "summary",
    "label",
    "comment",
    "note",
    "message",
    "thought",
    "intent",
    "intention",
    "purpose",
    "goal",
    "warning",
    "taskprogress",
    "risklevelreason",
];
/// Members that contain settings and ids of one word.
const SETTINGS: &[&str] = &[
    "id",
    "callid",
    "turnid",
    "toolcallid",
    "tooluseid",
    "processid",
    "approvalid",
    "sessionid",
    "requestid",
    "threadid",
    "itemid",
    "messageid",
    "conversationid",
    "terminalid",
    "kind",
    "type",
    "status",
    "mode",
    "timeout",
    "timeoutms",
    "timeoutmillis",
    "timeoutsec",
    "timeoutsecs",
    "timeoutseconds",
    "yieldtime",
    "yieldtimems",
    "initialwait",
    "maxoutput",
    "maxoutputbytes",
    "maxoutputchars",
    "maxoutputlength",
    "maxoutputlines",
    "maxoutputtokens",
    "outputbytelimit",
    "background",
    "isbackground",
    "runinbackground",
    "sandboxpermissions",
    "withescalatedpermissions",
    "dangerouslydisablesandbox",
    "requiresapproval",
    "canoffersessionapproval",
    "risklevel",
    "securityrisk",
    "columns",
    "cols",
    "rows",
];
/// Members that propose a rule to a person. The action does not depend on them.
const PROPOSALS: &[&str] = &["prefixrule", "proposedexecpolicyamendment"];
const SHELLS: &[&str] =
    &["shell", "shellname", "shellpath", "shellexecutable", "executableshell", "interpreter"];
/// Members that contain an object with further members of the same input.
const CONTAINERS: &[&str] = &["input", "rawinput", "toolinput", "tool", "approvedexecpolicyamendment"];
/// Members that contain the command in parsed form: `[{"type", "cmd", "name", "path", "query"}]`.
const PARSED: &[&str] = &["parsedcmd", "parsedcommand", "parsedcommands", "commandactions"];
const PARSED_TEXTS: &[&str] = &["name", "query"];
const VARIABLE_PARTS: &[&str] = &["name", "key", "variable", "value", "val"];
/// Members that contain an object whose keys are paths.
const BY_PATH: &[&str] = &["changes", "edits", "files"];

const COMMON_SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "mksh"];
const SHELL_DIRECTORIES: &[&str] = &["/bin/", "/usr/bin/", "/usr/local/bin/", ""];

/// What a value should contain, according to the name of its member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An object whose members are judged by their own names, such as the whole input.
    Members,
    Parsed,
    Decisions,
    /// A part of the command, or its directory. It must be judged whatever its form is.
    Part,
    /// Paths, URLs and patterns: a text or a list of texts.
    Operands,
    /// An element of [`Role::Operands`].
    Operand,
    FileText,
    ByPath,
    Variables,
    Variable,
    Texts,
    Text,
    Setting,
    Shell,
    /// The value of a member whose name is unknown. It must be harmless in every member.
    Unlisted,
    /// Any value, because the member is only reported, or is judged as a whole.
    Any,
}

/// Result of comparing a value with its [`Role`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The value is judged or harmless.
    Known,
    /// The value is harmless if the agent writes it to a file.
    NeedsFile,
    /// The agent may use the value as a part of the command.
    Unknown,
}

impl Role {
    pub(super) fn of_member(self, name: &str, value: &Value) -> Self {
        let key = plain_key(name);
        match self {
            Self::Any
            | Self::Text
            | Self::Texts
            | Self::Setting
            | Self::Shell
            | Self::Unlisted
            | Self::Variables => Self::Any,
            Self::ByPath => Self::Members,
            Self::Variable if VARIABLE_PARTS.contains(&key.as_str()) => Self::Any,
            Self::Parsed if PARSED_TEXTS.contains(&key.as_str()) => Self::Text,
            _ => named(name, &key, value),
        }
    }

    pub(super) fn of_item(self) -> Self {
        match self {
            Self::Operands => Self::Operand,
            Self::Variables => Self::Variable,
            Self::Texts => Self::Text,
            Self::Operand | Self::Variable | Self::Text | Self::Setting | Self::Shell | Self::ByPath => {
                Self::Unlisted
            }
            Self::Members
            | Self::Parsed
            | Self::Decisions
            | Self::Part
            | Self::FileText
            | Self::Unlisted
            | Self::Any => self,
        }
    }

    /// Judges a value by its role. Values within the value are not judged.
    pub(super) fn check(self, value: &Value) -> Finding {
        let is_known = match (self, value) {
            (_, Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => true,
            (Self::FileText, Value::String(_)) => return Finding::NeedsFile,
            (Self::Members | Self::Parsed | Self::ByPath | Self::Unlisted, Value::String(_)) => false,
            // A text that begins with a hyphen may be an option of the command.
            (Self::Operands | Self::Operand, Value::String(text)) => !text.trim_start().starts_with('-'),
            (Self::Setting, Value::String(text)) => is_word(text),
            (Self::Shell, Value::String(text)) => is_common_shell(text),
            (
                Self::Decisions
                | Self::Part
                | Self::Variables
                | Self::Variable
                | Self::Texts
                | Self::Text
                | Self::Any,
                Value::String(_),
            ) => true,
            (
                Self::Text | Self::Texts | Self::Setting | Self::Shell | Self::Unlisted,
                Value::Object(fields),
            ) => fields.is_empty(),
            (_, Value::Object(_)) => true,
        };
        if is_known { Finding::Known } else { Finding::Unknown }
    }
}

/// Returns the role of a member's value. `key` is the member's `name`, normalized by [`plain_key`].
fn named(name: &str, key: &str, value: &Value) -> Role {
    let is = |names: &[&str]| names.contains(&key);
    if commands::is_input(key) {
        Role::Text
    } else if commands::is_part(key) {
        Role::Part
    } else if is_variable(name) {
        Role::Unlisted
    } else if is(VARIABLES) {
        Role::Variables
    } else if is(CWD) {
        Role::Part
    } else if is(BY_PATH) && value.is_object() {
        Role::ByPath
    } else if [PATH, DESTINATION, URL, QUERY, PATTERN].iter().any(|names| is(names)) {
        Role::Operands
    } else if is(CONTENT) {
        Role::FileText
    } else if is(PROSE) {
        Role::Text
    } else if is(SETTINGS) {
        Role::Setting
    } else if is(PROPOSALS) {
        Role::Texts
    } else if is(SHELLS) {
        Role::Shell
    } else if is(PARSED) {
        Role::Parsed
    } else if key == "availabledecisions" {
        Role::Decisions
    } else if is(CONTAINERS) {
        Role::Members
    } else {
        Role::Unlisted
    }
}

/// Returns `true` if a name has the form of an environment variable: `PATH` is not the member `path` of a
/// tool.
fn is_variable(name: &str) -> bool {
    name.contains(|letter: char| letter.is_ascii_uppercase())
        && !name.contains(|letter: char| letter.is_lowercase())
}

fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-.:/+=@#|".contains(letter))
}

pub(super) fn is_common_shell(text: &str) -> bool {
    let name = |directory: &&str| text.strip_prefix(*directory);
    SHELL_DIRECTORIES.iter().filter_map(name).any(|name| COMMON_SHELLS.contains(&name))
}
