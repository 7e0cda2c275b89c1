//! Possible values of a command's variables.
//!
//! Only values that are evaluated a second time matter. A number is harmless, and a text without special
//! characters contains no subscript that runs something. Every other value counts as unknown.

use std::collections::HashMap;

use super::lexer::{DECLARERS, is_assignment, is_name};
use super::programs::COMMAND_VARIABLES;
use super::{Part, Word, listed};

/// What a text can contain. A later variant includes the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    /// An integer, or no text.
    Number,
    /// A text in which no shell would run anything.
    Plain,
    Unknown,
}

/// Variables that contain a number as long as the command does not assign a value.
const NUMBERS: &str =
    "RANDOM SRANDOM SECONDS LINENO UID EUID PPID BASHPID COLUMNS LINES OPTIND SHLVL EPOCHSECONDS";

/// Variables whose assigned value is evaluated if it is not a number.
const INTEGERS: &str = "\
    RANDOM SRANDOM SECONDS LINENO UID EUID PPID BASHPID COLUMNS LINES OPTIND SHLVL EPOCHSECONDS EPOCHREALTIME HISTCMD \
    HISTSIZE HISTFILESIZE FUNCNEST TMOUT BASH_SUBSHELL BASH_ARGC OPTERR BASH_COMPAT SAVEHIST KEYTIMEOUT GID EGID ERRNO \
    TRY_BLOCK_ERROR TRY_BLOCK_INTERRUPT LISTMAX LOGCHECK DIRSTACKSIZE BAUD REPORTTIME REPORTMEMORY MAILCHECK KSHUID KSHGID \
    KSHEGID USER_ID PGRP";

/// Variables whose value is evaluated as a prompt, which may run commands.
const PROMPTS: &str = "PS0 PS1 PS2 PS3 PS4 PROMPT PROMPT2 PROMPT3 PROMPT4 RPROMPT RPS1";

/// Variables whose value is run as a command, or names a file that is run.
const HOOKS: &str = "\
    PROMPT_COMMAND BASH_ENV ENV ZDOTDIR BASH_ALIASES BASH_CMDS SHELLOPTS BASHOPTS aliases galiases saliases functions \
    commands precmd_functions preexec_functions chpwd_functions periodic_functions zshexit_functions options \
    POSIXLY_CORRECT BASH_LOADABLES_PATH KSH_ENV HISTCONTROL histchars MAILPATH command_not_found_handle NULLCMD READNULLCMD \
    FPATH fpath module_path MODULE_PATH BASH_XTRACEFD SPROMPT INPUTRC";

#[derive(Debug, Default)]
pub(super) struct Variables {
    values: HashMap<String, Value>,
}

const MAX_ROUNDS: usize = 8;

impl Variables {
    /// Collects the assignments in these parts. `assigned` and `sums` come from expansions and arithmetic.
    pub(super) fn new(parts: &[Part], assigned: &[String], sums: &[String]) -> Self {
        let mut variables = Self::default();
        for sum in sums {
            for name in assigned_in(sum) {
                variables.values.insert(name, Value::Number);
            }
        }
        for name in assigned {
            variables.values.insert(name.clone(), Value::Unknown);
        }
        let given: Vec<(String, Option<&Word>)> =
            parts.iter().filter(|part| part.in_shell).flat_map(assignments).collect();
        for (name, _) in &given {
            variables.values.entry(name.clone()).or_insert(Value::Number);
        }
        for round in 0..=MAX_ROUNDS {
            let mut changed = false;
            for (name, value) in &given {
                let mut value = match value {
                    Some(word) if is_assignment(&word.text) => variables.assigned_value(word),
                    Some(word) => variables.value(word),
                    None => Value::Unknown,
                };
                if round == MAX_ROUNDS {
                    value = Value::Unknown;
                }
                let held = variables.values.entry(name.clone()).or_insert(value);
                changed |= value > *held;
                *held = value.max(*held);
            }
            if !changed {
                break;
            }
        }
        variables
    }

    pub(super) fn named(&self, name: &str) -> Value {
        match self.values.get(name) {
            Some(value) => *value,
            None if listed(NUMBERS, name) => Value::Number,
            None => Value::Unknown,
        }
    }

    /// Returns `true` if the command may assign a text other than a number to this variable.
    pub(super) fn is_assigned_text(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| *value > Value::Number)
    }

    pub(super) fn value(&self, word: &Word) -> Value {
        match &word.open {
            None => value_of(&word.text),
            Some(text_pattern) => {
                let known: String = text_pattern
                    .0
                    .iter()
                    .filter_map(|unit| match unit {
                        crate::text_pattern::PatternUnit::Char(letter) => Some(*letter),
                        _ => None,
                    })
                    .collect();
                let holes = word.holes.iter().map(|hole| self.hole(hole)).max();
                value_of(&known).max(holes.unwrap_or(Value::Unknown))
            }
        }
    }

    /// Returns the possible values of the assignment in a word such as `x=1`.
    fn assigned_value(&self, word: &Word) -> Value {
        let subscript = word.text.split_once('=').is_none_or(|(name, _)| name.contains('['));
        let mut value = word.clone();
        if let Some((name, text)) = word.text.split_once('=') {
            text.clone_into(&mut value.text);
            if let Some(text_pattern) = &mut value.open {
                text_pattern.0.drain(..(name.chars().count() + 1).min(text_pattern.0.len()));
            }
        }
        if subscript { Value::Unknown } else { self.value(&value) }
    }

    fn hole(&self, hole: &str) -> Value {
        match hole {
            "$#" | "$((…))" => Value::Number,
            hole => match hole.strip_prefix('$').filter(|name| is_name(name)) {
                Some(name) => self.named(name),
                None => Value::Unknown,
            },
        }
    }

    /// Returns `true` if an arithmetic expression contains only numbers, and variables that are numbers.
    pub(super) fn is_safe_sum(&self, sum: &str) -> bool {
        let simple = |letter: char| {
            letter.is_ascii_alphanumeric() || " \t\n_+-*/%<>=!&|^~?:,()[];${}#".contains(letter)
        };
        // The caller of the command sets the positional parameters.
        let given = sum
            .split('$')
            .skip(1)
            .any(|rest| rest.trim_start_matches('{').starts_with(|letter: char| letter.is_ascii_digit()));
        !given
            && sum.chars().all(simple)
            && names_in(sum).all(|name| {
                name.starts_with(|letter: char| letter.is_ascii_digit())
                    && !name.contains(char::is_alphabetic)
                    || self.named(name) == Value::Number
            })
    }

    /// Returns `true` if the value of this variable is evaluated or run, or may be.
    pub(super) fn is_special(name: &str) -> bool {
        [HOOKS, PROMPTS, INTEGERS, COMMAND_VARIABLES].iter().any(|list| listed(list, name))
    }

    /// Returns `true` if the value of an assignment in the part is evaluated, or decides which program runs.
    pub(super) fn is_hook(&self, part: &Part) -> bool {
        let words = part.words.iter().filter(|word| is_assignment(&word.text));
        let named = words.map(|word| {
            let name = word.text.split(['=', '[', '+']).next().unwrap_or_default().to_owned();
            (name, Some(word))
        });
        let given = if part.in_shell { assignments(part) } else { Vec::new() };
        named.chain(given).any(|(name, word)| {
            let value = match word {
                Some(word) if is_assignment(&word.text) => self.assigned_value(word),
                Some(word) => self.value(word),
                None => Value::Unknown,
            };
            listed(HOOKS, &name)
                || name.starts_with("BASH_FUNC")
                || configures_git(&name, word)
                || runs(word)
                || listed(COMMAND_VARIABLES, &name) && word.is_none_or(|word| word.open.is_some())
                || listed(INTEGERS, &name) && value > Value::Number
                || listed(PROMPTS, &name) && value > Value::Plain
        })
    }
}

/// Variables that select another home directory, and so another configuration of git.
const HOMES: &str = "HOME XDG_CONFIG_HOME";

/// Returns `true` if the command selects another home directory for git. Git then uses the configuration and
/// the aliases in that directory.
pub(super) fn moves_git_home(parts: &[Part]) -> bool {
    let is_home = |word: &Word| {
        is_assignment(&word.text) && listed(HOMES, word.text.split(['=', '+']).next().unwrap_or_default())
    };
    parts.iter().any(|part| part.words.iter().any(is_home)) && parts.iter().any(runs_git)
}

pub(crate) fn runs_git(part: &Part) -> bool {
    part.programs().any(|name| name == "git")
}

/// Returns `true` if a variable of the request selects the home directory, and the part runs git.
pub(crate) fn is_git_home(variable: &str, part: &Part) -> bool {
    listed(HOMES, variable) && runs_git(part)
}

/// Returns `true` if git reads its configuration from this variable, or from a file that the variable names.
/// The configuration may contain aliases and programs.
fn configures_git(name: &str, word: Option<&Word>) -> bool {
    let is_empty = |word: &Word| word.open.is_none() && word.text.ends_with("=/dev/null");
    name.starts_with("GIT_CONFIG") && name != "GIT_CONFIG_NOSYSTEM" && !word.is_some_and(is_empty)
}

/// Returns `true` if evaluating the value would run a command in a subscript.
fn runs(word: Option<&Word>) -> bool {
    word.and_then(|word| word.text.split_once('[')).is_some_and(|(_, subscript)| {
        ["$(", "${", "`", "<("].iter().any(|sign| subscript.contains(sign))
            && word.is_some_and(|word| word.open.is_none())
    })
}

fn value_of(text: &str) -> Value {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Value::Number;
    }
    let numbered = |(_, subscript): (usize, &str)| {
        let digits = subscript.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && subscript[digits..].starts_with(']')
    };
    let subscripts = || text.match_indices('[').map(|(at, _)| (at, &text[at + 1..]));
    match text.contains(['$', '`', '\0']) || !subscripts().all(numbered) {
        true => Value::Unknown,
        false => Value::Plain,
    }
}

fn names_in(sum: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    sum.split(move |letter| !is_part(letter)).filter(|name| !name.is_empty())
}

fn assigned_in(sum: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = sum;
    while let Some(from) = rest.find(|letter: char| letter.is_ascii_alphabetic() || letter == '_') {
        let name = &rest[from..];
        let length =
            name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(name.len());
        let behind = name[length..].trim_start();
        let assigns = behind.starts_with('=') && !behind.starts_with("==");
        let steps = behind.starts_with("++") || behind.starts_with("--");
        if assigns || steps {
            names.push(name[..length].to_owned());
        }
        rest = &name[length..];
    }
    names
}

/// Returns the variables that a part assigns. The value is included if it is a single word.
fn assignments(part: &Part) -> Vec<(String, Option<&Word>)> {
    let mut given = Vec::new();
    let name_of = |word: &Word| word.text.split(['=', '[', '+']).next().unwrap_or_default().to_owned();
    for word in part.words.iter().filter(|word| is_assignment(&word.text)) {
        given.push((name_of(word), Some(word)));
    }
    for start in &part.starts {
        let Some(argv) = part.words.get(*start..) else { continue };
        let Some((program, rest)) = argv.split_first() else { continue };
        match program.text.as_str() {
            "for" | "select" | "foreach" => {
                let Some((name, rest)) = rest.split_first() else { continue };
                match rest.split_first() {
                    Some((word, values)) if word.text == "in" && program.text == "for" => {
                        given.extend(values.iter().map(|value| (name.text.clone(), Some(value))));
                    }
                    _ => given.push((name.text.clone(), None)),
                }
            }
            "read" | "mapfile" | "readarray" | "getopts" | "printf" | "wait" | "vared" | "print" => {
                given.extend(
                    rest.iter().filter(|word| is_name(&word.text)).map(|word| (word.text.clone(), None)),
                );
                // Builtins assign these variables without naming them.
                given.extend(["REPLY", "MAPFILE", "OPTARG"].map(|name| (name.to_owned(), None)));
                // Another start would find the same words.
                break;
            }
            name if listed(DECLARERS, name) => {
                // An assignment without a value keeps the current or inherited value of the variable.
                given.extend(
                    rest.iter().filter(|word| is_name(&word.text)).map(|word| (word.text.clone(), None)),
                );
                break;
            }
            _ => {}
        }
    }
    given
}
