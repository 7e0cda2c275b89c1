//! `narrows completions`: prints shell completions.

use std::process::ExitCode;

use clap::{Command, CommandFactory, ValueHint};
use clap_complete::Shell;

use crate::cli::{Cli, Completions};
use crate::failure::{ExitStatus, Failure};
use crate::output;

pub(super) fn execute(completions: &Completions) -> Result<ExitCode, Failure> {
    // The generator panics on write errors, so it writes to memory first.
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "narrows", &mut script);
    if completions.shell == Shell::Bash {
        script = with_files(String::from_utf8_lossy(&script).into_owned()).into_bytes();
    }
    output::print(&script)?;
    Ok(ExitStatus::Success.exit_code())
}

/// Adds file completion to the bash script: the generator only completes flags.
fn with_files(script: String) -> String {
    let mut names = Vec::new();
    collect_cases(&Cli::full_command(), "narrows", &mut names);
    names.iter().fold(script, |script, name| offer_files(&script, name).unwrap_or(script))
}

/// Collects the names by which the bash script calls `command` and its subcommands, if their first argument
/// is a path.
fn collect_cases(command: &Command, name: &str, names: &mut Vec<String>) {
    let takes_path = |hint| matches!(hint, ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath);
    if command.get_positionals().next().is_some_and(|value| takes_path(value.get_value_hint())) {
        names.push(name.to_owned());
    }
    for sub in command.get_subcommands() {
        collect_cases(sub, &format!("{name}__subcmd__{}", sub.get_name().replace('-', "__")), names);
    }
}

/// Changes the branch `name` of the bash script so that words other than flags complete to files.
fn offer_files(script: &str, name: &str) -> Option<String> {
    let begin = script.find(&format!("\n        {name})\n"))?;
    let length = script[begin..].find("\n            ;;\n        ").map_or(script.len() - begin, |at| at);
    let (case, rest) = script[begin..].split_at(length);
    let at = case.find(" || ${COMP_CWORD} -eq ")?;
    let end = at + case[at..].find(" ]]")?;
    let case = format!("{}{}", &case[..at], &case[end..]);
    let last = case.rfind("COMPREPLY=( $(compgen -W")?;
    let line = last + case[last..].find('\n')?;
    Some(format!("{}{}COMPREPLY=(){}{rest}", &script[..begin], &case[..last], &case[line..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_with_a_path_completes_files() {
        let mut names = Vec::new();
        collect_cases(&Cli::full_command(), "narrows", &mut names);
        assert!(names.contains(&"narrows__subcmd__check".to_owned()), "{names:?}");
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "narrows", &mut script);
        let script = String::from_utf8(script).unwrap();
        for name in names {
            assert!(offer_files(&script, &name).is_some(), "{name}");
        }
    }
}
