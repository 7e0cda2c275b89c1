//! What narrows says about itself.

use insta::assert_snapshot;

use crate::support::Place;

fn told(args: &[&str]) -> String {
    let place = Place::new();
    place.told(place.narrows(args))
}

#[test]
fn the_version() {
    assert_snapshot!(told(&["--version"]), @"
    narrows [VERSION]
    protocol: ACP versions 1 and 2
    platform: linux [ARCH]
    --- exit 0 ---
    ");
    assert_snapshot!(told(&["-V"]), @"
    narrows [VERSION]
    --- exit 0 ---
    ");
}

#[test]
fn the_short_help() {
    assert_snapshot!(told(&["-h"]), @r#"
    Talk to any agent that speaks the Agent Client Protocol (ACP)

    Usage: narrows [OPTIONS] <COMMAND>

    Commands:
      run          Send one prompt to an agent and print its answer
      fake-agent   Be a scripted agent on stdin and stdout, faults included
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
          --log <FILTER>  What to log to stderr, such as `debug` or `narrows_rpc=trace`; warnings by
                          default
      -h, --help          Print help (see more with '--help')
      -V, --version       Print version

    Examples:
      # a first turn, with no key and no network
      narrows run --agent "narrows fake-agent hello" "Hi"
      # with any other agent that speaks ACP
      narrows run --agent "opencode acp" "What is this?"
      # agents that misbehave, to test with
      narrows fake-agent --list
    --- exit 0 ---
    "#);
}

#[test]
fn the_long_help() {
    assert_snapshot!(told(&["--help"]), @r#"
    Talk to any agent that speaks the Agent Client Protocol (ACP)

    Usage: narrows [OPTIONS] <COMMAND>

    Commands:
      run          Send one prompt to an agent and print its answer
      fake-agent   Be a scripted agent on stdin and stdout, faults included
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
          --log <FILTER>
              What to log to stderr, such as `debug` or `narrows_rpc=trace`; warnings by default

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Examples:
      # a first turn, with no key and no network
      narrows run --agent "narrows fake-agent hello" "Hi"
      # with any other agent that speaks ACP
      narrows run --agent "opencode acp" "What is this?"
      # agents that misbehave, to test with
      narrows fake-agent --list

    Exit codes:
        0  the agent has answered
        1  the agent failed: it reported an error, wants a login, or died
        2  the arguments are wrong; nothing was started
        3  the agent refused to answer
        4  the answer is incomplete: a limit was reached, or a part of it was lost
        5  the agent cannot be started
        6  the agent does not speak ACP as we know it
        7  a deadline has passed
       70  something failed on this side
      130  cancelled by Ctrl-C
      141  nobody reads the output any more
      143  cancelled by SIGTERM

    Environment:
      NARROWS_LOG  what to log to stderr, such as `debug` or `narrows_rpc=trace`; `--log` wins
      NO_COLOR     no colours, if it is set to anything
      TERM         no colours, if it is `dumb`
    --- exit 0 ---
    "#);
}

#[test]
fn the_help_of_run() {
    assert_snapshot!(told(&["run", "-h"]), @r#"
    Send one prompt to an agent and print its answer

    Usage: narrows run [OPTIONS] --agent <COMMAND> [PROMPT]

    Arguments:
      [PROMPT]  The prompt; `-`, or none, reads it from stdin

    Options:
      -a, --agent <COMMAND>     The agent to start: a program and its arguments, in the quotes of a
                                shell but run without one
          --cwd <DIR>           Where the agent works [default: the current directory]
          --output <FORMAT>     How to print the answer [default: text] [possible values: text, json]
          --protocol <VERSION>  The version of the protocol to offer; with 2, an agent that only knows 1
                                is started again with 1 [default: 1] [possible values: 1, 2]
          --log <FILTER>        What to log to stderr, such as `debug` or `narrows_rpc=trace`; warnings
                                by default
      -h, --help                Print help (see more with '--help')

    Environment of the agent:
          --env <NAME[=VALUE]>  Hand the agent a variable, with this value or with the one it has here
          --pass-env <PATTERN>  Let variables of this name pass to the agent; `AWS_*` means all that
                                begin with it

    Deadlines:
          --timeout <TIME>             How long the turn may take, such as `90s`, `5m` or `1h` [default:
                                       as long as it takes]
          --initialize-timeout <TIME>  How long the agent may take to answer the first message [default:
                                       30s]
          --session-timeout <TIME>     How long the agent may take to open a session [default: 60s]
          --cancel-grace <TIME>        How long a cancelled turn may take to end [default: 10s]

    Examples:
      # a first turn, with no key and no network
      narrows run --agent "narrows fake-agent echo" "Hi"
      # the prompt from another program
      git diff | narrows run --agent my-agent
      # an agent that needs a key of yours
      narrows run --agent my-agent --env MY_KEY "Hi"
      # for a script: a deadline and a JSON object
      narrows run --agent my-agent --timeout 5m --output json "Hi"
    --- exit 0 ---
    "#);
}

#[test]
fn the_help_of_fake_agent() {
    assert_snapshot!(told(&["fake-agent", "--help"]), @r#"
    Be a scripted agent on stdin and stdout, faults included

    For tests: of clients, of editors, of narrows itself. A script says what the agent answers, and how
    it misbehaves.

    Usage: narrows fake-agent [OPTIONS] [SCRIPT]

    Arguments:
      [SCRIPT]
              A TOML file, or the name of a built-in script

    Options:
          --list
              List the built-in scripts

          --print <NAME>
              Print a built-in script, to start a script of your own from

          --log <FILTER>
              What to log to stderr, such as `debug` or `narrows_rpc=trace`; warnings by default

      -h, --help
              Print help (see a summary with '-h')

    Examples:
      # the built-in scripts
      narrows fake-agent --list
      # a script of your own to start from
      narrows fake-agent --print echo > mine.toml
      # a turn with it
      narrows run --agent "narrows fake-agent mine.toml" "Hi"
    --- exit 0 ---
    "#);
}

#[test]
fn no_arguments() {
    assert_eq!(told(&[]).replace("--- stderr ---\n", ""), told(&["-h"]).replace("exit 0", "exit 2"));
}

#[test]
fn a_wrong_command() {
    assert_snapshot!(told(&["rum"]), @"
    --- stderr ---
    error: unrecognized subcommand 'rum'

      tip: a similar subcommand exists: 'run'

    Usage: narrows [OPTIONS] <COMMAND>

    For more information, try '--help'.
    --- exit 2 ---
    ");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = told(&["completions", shell]);
        assert!(script.ends_with("--- exit 0 ---\n"), "{script}");
        for word in ["fake-agent", "completions", "--agent", "--initialize-timeout"] {
            assert!(script.contains(word.trim_start_matches('-')), "{shell} has no {word}");
        }
    }
}

#[test]
fn the_readme_has_the_exit_codes_of_the_help() {
    let help = told(&["--help"]);
    let (_, codes) = help.split_once("Exit codes:\n").expect("a section");
    let (codes, _) = codes.split_once("\n\n").expect("another section");
    let readme = include_str!("../../README.md");
    for line in codes.lines() {
        let (number, meaning) = line.trim().split_once("  ").expect("a number and a meaning");
        let row = format!("| {number} | {meaning} |");
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
}
