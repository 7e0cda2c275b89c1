//! Unknown arguments of `narrows acp`. Programs that start agents add flags of other agents.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, Command};
use narrows_base::suggest;

use super::Acp;

/// The subcommand that ignores unknown arguments.
const LENIENT_COMMAND: &str = "acp";

/// The option that limits the MCP servers of clients. A misspelling must not disable the limit.
const MCP: &str = "--mcp";

/// Splits the arguments into those to parse and those to ignore. Only arguments of `acp` are ignored.
///
/// # Errors
/// Fails on an unknown option that may be meant to limit MCP servers.
pub(super) fn split_known(
    command: &Command,
    words: Vec<OsString>,
) -> Result<(Vec<OsString>, Vec<String>), clap::Error> {
    let Some(at) = subcommand(command, &words) else { return Ok((words, Vec::new())) };
    // `acp` is built here because `command` builds the arguments of its subcommands only when it parses.
    let tolerant = Acp::augment_args(Command::new(LENIENT_COMMAND));
    let mut left = Vec::with_capacity(words.len());
    let mut ignored = Vec::new();
    let mut words = words.into_iter().enumerate();
    left.extend(words.next().map(|(_, program)| program));
    while let Some((number, word)) = words.next() {
        if number == at {
            left.push(word);
            continue;
        }
        // Before the subcommand only global options are known.
        let value =
            takes_value(command, &word).or_else(|| takes_value(&tolerant, &word).filter(|_| number > at));
        match value {
            None if concerns_mcp(&tolerant, &word) => return Err(misplaced(command, &word)),
            None => ignored.push(name(&word)),
            Some(false) => left.push(word),
            Some(true) => {
                left.push(word);
                left.extend(words.next().map(|(_, value)| value));
            }
        }
    }
    Ok((left, ignored))
}

/// Returns `true` if an unknown option may be meant to limit MCP servers.
fn concerns_mcp(tolerant: &Command, word: &OsString) -> bool {
    let word = word.to_string_lossy();
    let option = word.split_once('=').map_or(&*word, |(option, _)| option).to_ascii_lowercase();
    let Some(bare) = option.strip_prefix('-') else { return false };
    let bare = bare.trim_start_matches('-');
    let known = tolerant.get_arguments().filter_map(clap::Arg::get_long);
    // `--acp` is a flag of other agents, not a misspelling of `--mcp`.
    bare.contains("mcp") || bare != LENIENT_COMMAND && suggest::nearest(bare, known) == MCP.strip_prefix("--")
}

fn misplaced(command: &Command, word: &OsString) -> clap::Error {
    let mut error = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(command);
    error.insert(ContextKind::InvalidArg, ContextValue::String(name(word)));
    let tip = "`narrows acp --mcp none` starts no MCP servers of clients";
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Returns the position of the subcommand `acp`.
fn subcommand(command: &Command, words: &[OsString]) -> Option<usize> {
    let mut after_unknown = false;
    let mut at = 1;
    while at < words.len() {
        let word = words[at].to_str()?;
        if word == LENIENT_COMMAND {
            return Some(at);
        }
        if word.starts_with('-') {
            let value = takes_value(command, &words[at]);
            at += usize::from(value == Some(true));
            after_unknown = value.is_none() && !word.contains('=');
        } else if !after_unknown || command.find_subcommand(word).is_some() {
            return None;
        } else {
            // A word after an unknown option counts as the value of that option.
            after_unknown = false;
        }
        at += 1;
    }
    None
}

/// Returns `true` if an argument of `command` takes the next word as its value. `None` if the argument is
/// unknown.
fn takes_value(command: &Command, word: &OsString) -> Option<bool> {
    let word = word.to_str()?;
    let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
    if matches!(flag, "-h" | "--help" | "-V" | "--version") {
        return Some(false);
    }
    let long = flag.strip_prefix("--")?;
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(long))?;
    let takes = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    Some(takes && value.is_none())
}

/// Returns the part of a word that may be shown: the name of a flag, but no value, which may be a key.
fn name(word: &OsString) -> String {
    let word = word.to_string_lossy();
    match word.split_once('=') {
        Some((flag, _)) if word.starts_with('-') => format!("{flag}=…"),
        None if word.starts_with('-') => word.into_owned(),
        _ => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[track_caller]
    fn check(words: &str, left: &str, ignored: &str) {
        let command = crate::cli::Cli::command();
        let split = std::iter::once("narrows").chain(words.split_whitespace()).map(OsString::from).collect();
        let (kept, dropped) = split_known(&command, split).expect("nothing about MCP");
        let kept: Vec<_> = kept.iter().skip(1).map(|word| word.to_str().expect("text")).collect();
        assert_eq!((kept.join(" ").as_str(), dropped.join(" ").as_str()), (left, ignored), "{words}");
    }

    #[test]
    fn unknown_arguments_of_acp_are_left_out() {
        check("acp", "acp", "");
        check("acp --accept-hooks", "acp", "--accept-hooks");
        check("acp --accept-hooks --model m", "acp --model m", "--accept-hooks");
        check("acp --model=m -x --key=secret word", "acp --model=m", "-x --key=… …");
        check("--log debug acp", "--log debug acp", "");
        check("acp --log debug --no-store", "acp --log debug --no-store", "");
        check("--accept-hooks acp", "acp", "--accept-hooks");
        check("--mode fast acp", "acp", "--mode …");
        check("--model m acp --help", "acp --help", "--model …");
        check("acp acp", "acp", "…");
        check("acp -- --model m", "acp --model m", "--");
        check("acp --model acp", "acp --model acp", "");
        check("acp --model", "acp --model", "");
    }

    #[test]
    fn an_option_that_may_limit_mcp_servers_is_not_left_out() {
        for words in [
            "--mcp none acp",
            "--mcp=none acp",
            "acp --mpc none",
            "acp --no-mcp",
            "acp --mcp-none",
            "acp --disable-mcp=yes",
            "acp -mcp none",
            "acp --MCP none",
            "acp --mc none",
            "acp --model m --nomcp",
        ] {
            let command = crate::cli::Cli::command();
            let split = std::iter::once("narrows").chain(words.split_whitespace()).map(OsString::from);
            let error = split_known(&command, split.collect()).expect_err(words).to_string();
            assert!(error.contains("`narrows acp --mcp none`"), "{words}: {error}");
        }
        check("acp --mcp none", "acp --mcp none", "");
        check("acp --mcp=none", "acp --mcp=none", "");
        check("acp mcp --acp", "acp", "… --acp");
    }

    #[test]
    fn other_commands_are_not_changed() {
        for words in
            ["", "run --agent acp Hi", "run acp", "help acp", "--what run acp", "nonsense acp", "--log acp"]
        {
            check(words, words, "");
        }
    }
}
