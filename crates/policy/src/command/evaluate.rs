//! Shell builtins that evaluate their arguments: names with subscripts, numbers, texts.
//!
//! A name may have a subscript, a subscript is a number, and a number may be an expression with names,
//! subscripts and commands. So where a builtin expects a name or a number, any other word may run anything.

use super::lexer::{DECLARERS, is_assignment, is_name};
use super::read_only::takes_texts;
use super::variables::{Value, Variables};
use super::{Part, Word, listed};

const NUMERIC: &str = "-eq -ne -lt -le -gt -ge";

/// Returns `true` if a builtin that the part may run evaluates an unknown text.
pub(super) fn evaluates(part: &Part, variables: &Variables) -> bool {
    let judge = Judge { variables };
    part.in_shell
        && part.starts.iter().filter_map(|start| part.words.get(*start..)?.split_first()).any(
            |(program, words)| {
                // A name that includes a directory never stands for a builtin.
                program.open.is_none() && judge.evaluates(&program.text, words)
            },
        )
}

struct Judge<'a> {
    variables: &'a Variables,
}

impl Judge<'_> {
    fn evaluates(&self, builtin: &str, words: &[Word]) -> bool {
        match builtin {
            "test" | "[" | "[[" => self.test(words, builtin == "[["),
            "printf" | "print" => self.printf(words),
            "let" => words.iter().any(|word| !self.is_sum(word)),
            "exit" | "return" | "shift" | "break" | "continue" | "logout" | "ulimit" | "umask" => {
                words.iter().any(|word| !word.is_option() && !self.is_sum(word) && word.text != "unlimited")
            }
            "read" | "mapfile" | "readarray" => self.reads(words),
            "getopts" => words.get(1).is_some_and(|word| !is_identifier(word)),
            "unset" => words.iter().any(|word| !word.is_option() && !is_identifier(word) && self.hides(word)),
            "wait" => {
                words.iter().any(|word| word.may_be_option() && self.variables.value(word) > Value::Number)
            }
            "alias" => words.iter().any(|word| word.open.is_some() || word.text.contains('=')),
            "hash" => words.iter().any(|word| {
                word.open.is_some() || word.text.contains('=') || word.is_option() && word.text != "-r"
            }),
            "enable" => {
                words.iter().any(|word| word.open.is_some() || word.is_option() && word.text.contains('f'))
            }
            "bind" | "complete" | "zle" | "zmodload" | "autoload" | "sched" | "vared" | "functions"
            | "zparseopts" | "zstyle" | "zformat" | "compadd" | "setopt" | "unsetopt" | "nameref"
            | "disable" | "fc" | "hist" | "bindkey" | "redirect" => true,
            "compgen" | "compopt" => words.iter().any(|word| {
                word.open.is_some()
                    || word.text.len() != 2
                    || !word.text.starts_with('-')
                    || "CFWXGPSAo".contains(&word.text[1..])
            }),
            "set" => words.iter().any(|word| self.sets(word)),
            "shopt" => words.iter().any(|word| !is_harmless_option(word)),
            builtin if listed(DECLARERS, builtin) => self.declares(words),
            _ => false,
        }
    }

    /// Returns `true` if a word is a number, or an arithmetic expression that contains only numbers.
    fn is_sum(&self, word: &Word) -> bool {
        match self.variables.value(word) {
            Value::Number => true,
            _ => word.open.is_none() && self.variables.is_safe_sum(&word.text),
        }
    }

    /// Returns `true` if the word may contain a subscript that runs a command.
    fn hides(&self, word: &Word) -> bool {
        match word.open {
            None => word.text.contains('['),
            Some(_) => self.variables.value(word) == Value::Unknown || word.text.contains('['),
        }
    }

    fn test(&self, words: &[Word], conditional: bool) -> bool {
        let number = |at: Option<usize>| at.and_then(|at| words.get(at)).is_none_or(|word| self.is_sum(word));
        let open = |at: usize| words.get(at).is_some_and(|word| word.open.is_some());
        let unknown = |at: usize| open(at) && self.variables.value(&words[at]) == Value::Unknown;
        words.iter().enumerate().any(|(at, word)| match word.text.as_str() {
            "-v" | "-R" => words.get(at + 1).is_some_and(|word| !is_identifier(word)),
            "-t" => !number(Some(at + 1)),
            text if listed(NUMERIC, text) && word.open.is_none() => {
                !number(at.checked_sub(1)) || !number(Some(at + 1))
            }
            text if word.open.is_none() && text.contains('[') && text.contains(['$', '`']) => true,
            // A shell may split the word into an operator and its operand. Two such words may be split, too.
            _ => {
                let two = open(at) && open(at + 1) && (unknown(at) || unknown(at + 1));
                !conditional && (two || unknown(at) && word.splits.is_some())
            }
        })
    }

    fn printf(&self, words: &[Word]) -> bool {
        let mut words = words;
        while let [option, rest @ ..] = words {
            if option.open.is_none() && option.text == "--" {
                words = rest;
                break;
            }
            if !option.may_be_option() {
                break;
            }
            if option.open.is_some() {
                // The word may be an option followed by the name of a variable.
                return self.variables.value(option) == Value::Unknown;
            }
            match (option.text.as_str(), rest) {
                ("-v", []) => return false,
                ("-v", [name, after @ ..]) if is_identifier(name) => words = after,
                ("-r" | "-n" | "-l", _) => words = rest,
                _ => return option.text != "-",
            }
        }
        let Some((format, values)) = words.split_first() else { return false };
        let texts = format.open.is_none() && takes_texts(&format.text);
        // Some shells use the number that a variable contains instead of the variable's name.
        let named = |value: &Word| value.open.is_none() && self.variables.is_assigned_text(&value.text);
        !texts && values.iter().any(|value| self.variables.value(value) == Value::Unknown || named(value))
    }

    fn reads(&self, words: &[Word]) -> bool {
        const VALUED: [char; 12] = ['d', 'i', 'n', 'N', 'p', 't', 'u', 's', 'O', 'c', 'k', 'q'];
        words.iter().enumerate().any(|(at, word)| {
            let before = at.checked_sub(1).map(|before| &words[before]);
            let is_value = before.is_some_and(|word| {
                word.open.is_none()
                    && word.is_option()
                    && word.text.ends_with(VALUED)
                    && !word.text.ends_with('O')
            });
            let calls = word.is_option() && word.text.contains('[')
                || word.is_option() && !word.text.starts_with("--") && word.text.contains('C');
            // Some shells evaluate the numbers in these words.
            let valued = word.open.is_some() || word.text.contains('[');
            calls || is_value && valued || !is_value && !word.is_option() && !is_identifier(word)
        })
    }

    fn declares(&self, words: &[Word]) -> bool {
        let arrays = words.iter().any(|word| word.is_option() && word.text.contains(['a', 'A']));
        words.iter().any(|word| {
            if word.is_option() || word.text.starts_with('+') {
                return word.open.is_some()
                    || word.text[1..].contains(|letter| !"aAxrgpfuUl-".contains(letter));
            }
            if is_identifier(word) {
                return false;
            }
            let Some((name, value)) = word.text.split_once('=') else { return true };
            let named = is_name(name.strip_suffix('+').unwrap_or(name)) && is_assignment(&word.text);
            // All values of an array may be passed as one word, and the command evaluates that word.
            let listed = value.trim_start().starts_with('(') && !word.holes.iter().any(|hole| hole == "(…)");
            let known = word.open.is_none();
            let evaluated = match known {
                true => listed || arrays && value.contains(['$', '`', '[']),
                false => listed || arrays && !word.holes.iter().all(|hole| hole == "(…)"),
            };
            !named || evaluated
        })
    }

    fn sets(&self, word: &Word) -> bool {
        const NAMES: &str = "\
            errexit nounset pipefail xtrace verbose noglob noclobber allexport noexec notify monitor errtrace functrace \
            physical nolog ignoreeof hashall nohash braceexpand";
        if word.open.is_some() {
            return word.may_be_option()
                && self.variables.value(word) == Value::Unknown
                && word.splits.is_some();
        }
        match word.text.strip_prefix(['-', '+']) {
            Some(letters) => letters.contains(|letter| !"euxvonfCabmhETpP-".contains(letter)),
            None => {
                !listed(NAMES, &word.text)
                    && listed("history histexpand posix keyword vi emacs privileged", &word.text)
            }
        }
    }
}

fn is_harmless_option(word: &Word) -> bool {
    const NAMES: &str = "\
        -s -u -q -p extglob nullglob failglob globstar dotglob nocaseglob nocasematch lastpipe inherit_errexit \
        globasciiranges checkwinsize autocd cdspell direxpand huponexit";
    word.open.is_none() && listed(NAMES, &word.text)
}

fn is_identifier(word: &Word) -> bool {
    word.open.is_none() && is_name(&word.text)
}
