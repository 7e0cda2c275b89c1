//! Help, version and completions.

use insta::assert_snapshot;

use crate::test_dir::TestDir;

fn output(args: &[&str]) -> String {
    let dir = TestDir::new();
    dir.output_of(dir.narrows(args))
}

#[test]
fn the_version() {
    assert_snapshot!(output(&["--version"]), @"
    narrows [VERSION]
    protocol: ACP versions 1 and 2
    platform: linux [ARCH]
    --- exit 0 ---
    ");
    assert_snapshot!(output(&["-V"]), @"
    narrows [VERSION]
    --- exit 0 ---
    ");
}

#[test]
fn the_short_help() {
    assert_snapshot!(output(&["-h"]), @r#"
    Be, drive and test agents that speak the Agent Client Protocol (ACP)

    Usage: narrows [OPTIONS] <COMMAND>

    Commands:
      run          Send one prompt to an agent and print its answer
      chat         Talk with an agent in the terminal
      agents       List the agents of narrows.toml, or ask one what it can do
      sessions     List the sessions that an agent keeps, the one used last first
      policy       Check rules, and see what they say about a request
      bus          Route many clients to pools of supervised agents
      token        Make, list and revoke the tokens of clients of a bus
      check        Say whether files can be used, and what is wrong with them
      audit        Verify and read the log of what was decided
      serve        Serve an agent behind a gate, as a manifest says
      approve      Approve what a served agent wants to do, or reject it
      acp          Be an agent for any Chat Completions endpoint, on stdin and stdout
      connect      Be an agent on stdin and stdout that is really a remote one
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
      narrows run "Hello, who are you?"
      # with any other agent that speaks ACP
      narrows run --agent "opencode acp" "What is this?"
      # an agent for an editor
      OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 narrows acp
      # agents that misbehave, to test with
      narrows fake-agent --list
    --- exit 0 ---
    "#);
}

#[test]
fn the_long_help() {
    assert_snapshot!(output(&["--help"]), @r#"
    Be, drive and test agents that speak the Agent Client Protocol (ACP)

    Usage: narrows [OPTIONS] <COMMAND>

    Commands:
      run          Send one prompt to an agent and print its answer
      chat         Talk with an agent in the terminal
      agents       List the agents of narrows.toml, or ask one what it can do
      sessions     List the sessions that an agent keeps, the one used last first
      policy       Check rules, and see what they say about a request
      bus          Route many clients to pools of supervised agents
      token        Make, list and revoke the tokens of clients of a bus
      check        Say whether files can be used, and what is wrong with them
      audit        Verify and read the log of what was decided
      serve        Serve an agent behind a gate, as a manifest says
      approve      Approve what a served agent wants to do, or reject it
      acp          Be an agent for any Chat Completions endpoint, on stdin and stdout
      connect      Be an agent on stdin and stdout that is really a remote one
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
      narrows run "Hello, who are you?"
      # with any other agent that speaks ACP
      narrows run --agent "opencode acp" "What is this?"
      # an agent for an editor
      OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 narrows acp
      # agents that misbehave, to test with
      narrows fake-agent --list

    Exit codes:
        0  the agent has answered
        1  the agent failed: it reported an error, wants a login, or died
        2  the arguments or the settings are wrong; nothing was started
        3  the agent refused to answer, or a gate in front of it stopped the turn
        4  the answer is incomplete: a limit was reached, or a part of it was lost
        5  the agent cannot be started
        6  the agent does not speak ACP as we know it
        7  a deadline has passed
        9  the agent has answered, but the rules, or who was asked, refused something it wanted
       70  something failed on this side
      129  cancelled by SIGHUP: the terminal was closed
      130  cancelled by Ctrl-C
      141  nobody reads the output any more
      143  cancelled by SIGTERM

    Environment:
      NARROWS_LOG               what to log to stderr, such as `debug`; `--log` wins
      OPENAI_BASE_URL           the endpoint, or `builtin:demo` [https://api.openai.com/v1]
      OPENAI_API_KEY            its key; none is sent if it is empty
      OPENAI_MODEL              the model [gpt-4o]
      OPENAI_SYSTEM_PROMPT      what every conversation with the model begins with
      OPENAI_MAX_TOKENS         how many tokens an answer may have
      OPENAI_TEMPERATURE        how freely the model chooses its words, usually from 0 to 2
      AWS_BEARER_TOKEN_BEDROCK  the key for Bedrock, if no other is given
      AZURE_OPENAI_API_KEY      the key for Azure OpenAI, if no other is given
      NARROWS_CONFIG            the configuration file [narrows/narrows.toml in XDG_CONFIG_HOME]
      NARROWS_ENDPOINT          the endpoint of it to use
      NARROWS_CONNECT           the URL of the remote agent that a bare `narrows acp` is
      NARROWS_TOKEN_FILE        the file that has the token for a remote agent in it
      NARROWS_CERT_FILE         the file of the certificate that shows it who we are
      NARROWS_KEY_FILE          the file of the private key of that
      NARROWS_DATA_DIR          where sessions are kept [~/.local/share/narrows]
      NARROWS_ERRORS            how a client hears of a model that failed: `text` or `rpc`
      HTTPS_PROXY               the proxy to https endpoints; small letters will do
      HTTP_PROXY                the proxy to http endpoints, likewise
      ALL_PROXY                 the proxy to both, likewise
      NO_PROXY                  what is reached without one, likewise; this machine always is
      SSL_CERT_FILE             the certificates to trust in place of the system's
      SSL_CERT_DIR              a directory of them
      XDG_CONFIG_HOME           your configuration directory [~/.config]
      XDG_DATA_HOME             your data directory [~/.local/share]
      XDG_RUNTIME_DIR           where the admin sockets of buses and gates are [~/.local/state]
      TMPDIR                    where `agents --probe` makes its directory [/tmp]
      HOME                      your directory, which is what `~` means
      GIT_CONFIG_GLOBAL         settings of git, to protect the hooks they name
      GIT_CONFIG_SYSTEM         settings of git, likewise
      NO_COLOR                  no colours, if it is set to anything
      TERM                      no colours, if it is `dumb`
    --- exit 0 ---
    "#);
}

#[test]
fn the_help_of_run() {
    assert_snapshot!(output(&["run", "-h"]), @r#"
    Send one prompt to an agent and print its answer

    Usage: narrows run [OPTIONS] [PROMPT]

    Arguments:
      [PROMPT]  The prompt; `@FILE` reads it from a file, `-`, or none, from stdin

    Options:
          --image <FILE>        An image to send with the prompt
          --output <FORMAT>     How to print the answer [default: text] [possible values: text, events,
                                json]
          --raw                 With --output events, add the agent's own message to every event
          --input <FORMAT>      What is read from stdin while the turn runs [possible values: events]
          --schema <FILE>       The JSON Schema that the answer is to follow; it is printed as JSON
      -a, --agent <AGENT>       The agent: the name of one in narrows.toml, a program and its arguments,
                                or the URL of a remote one
          --cwd <DIR>           Where the agent works, as it is called there [default: the current
                                directory]
          --protocol <VERSION>  The version of the protocol to offer; with 2, an agent that only knows 1
                                is started again with 1 [default: 1] [possible values: 1, 2]
          --log <FILTER>        What to log to stderr, such as `debug` or `narrows_rpc=trace`; warnings
                                by default
      -h, --help                Print help (see more with '--help')

    Deadlines:
          --timeout <TIME>             How long the run may take, such as `90s`, `5m` or `1h` [default:
                                       as long as it takes]
          --initialize-timeout <TIME>  How long the agent may take to answer the first message [default:
                                       30s]
          --session-timeout <TIME>     How long the agent may take to open a session [default: 60s]
          --cancel-grace <TIME>        How long a cancelled turn may take to end [default: 10s, or 2s
                                       after the --timeout of `narrows run`]
          --silence-timeout <TIME>     How long the agent may say nothing at all during a turn; `0` is
                                       for ever [default: 15m]

    Environment of the agent:
          --env <NAME[=VALUE]>  Hand the agent a variable, with this value or with the one it has here
          --clean-env           Let the agent see only the ordinary variables, and no keys
          --pass-env <PATTERN>  With --clean-env, let variables of this name pass; `AWS_*` means all
                                that begin with it

    Remote agents:
          --token-file <FILE>  The file that has the token for a remote agent in it
          --ca <FILE>          A file of certificate authorities to trust beside the system's
          --cert <FILE>        The certificate that shows who we are, for a remote agent that asks for
                               one
          --key <FILE>         The private key of that certificate
          --grace <TIME>       How long it is tried to have a lost connection again [default: 300s]

    Model of the built-in agent:
          --config <FILE>       The configuration file [default: narrows/narrows.toml in your
                                configuration directory]
          --endpoint <NAME>     The endpoint of the configuration to use
          --base-url <URL>      Where the endpoint is; `builtin:demo` is a model for a first try,
                                without a key or a network
          --model <ID>          The model
          --key-env <VARIABLE>  The variable in which the key is

    What the agent may do:
          --access <low|medium|high>   Access preset: low, medium or high [default: medium]
          --no-network                 Refuse whatever uses the network
          --no-web-search              Refuse searches of the web
          --policy <FILE>              A file with rules; see `narrows policy --help`
          --no-sandbox                 Run commands without a sandbox, even if this machine has one;
                                       under medium access each is then asked about
          --permission-timeout <TIME>  How long a question may wait for its answer; then it is refused
                                       [default: 5m]

    Session:
          --add-dir <DIR>  Another directory that the agent may use
          --mcp <FILE>     MCP servers for the agent: a JSON file with `mcpServers`
          --mode <MODE>    The mode of the agent, by id or name
          --require-model  Fail if the agent does not have the model of --model
          --resume <ID>    Go on with this session
          --fork <ID>      Begin with the history of this session
          --continue       Go on with the last session in this directory

    Examples:
      # a first turn, with no key and no network
      narrows run "Hello, who are you?"
      # with a model on this machine
      narrows run --base-url http://localhost:11434/v1 --model llama3.2 "Hi"
      # the prompt from another program
      git diff | narrows run --agent my-agent
      # with a remote agent
      narrows run --agent wss://bus.example/acp --token-file token "Hi"
      # an agent that needs a key of yours
      narrows run --agent my-agent --env MY_KEY "Hi"
      # for a script: a deadline and a JSON object
      narrows run --agent my-agent --timeout 5m --output json "Hi"
    --- exit 0 ---
    "#);
}

#[test]
fn the_help_of_run_says_when_a_time_limit_ends_the_command() {
    let help = output(&["run", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "--timeout limits the whole run, from the start of the agent to the end of the turn.",
        "So with --timeout 2s the command ends within 3 s if the agent stops when asked, and within 7 s if it ignores \
         everything.",
    ] {
        assert!(help.contains(sentence), "{help}");
    }
}

#[test]
fn the_help_of_acp() {
    assert_snapshot!(output(&["acp", "-h"]), @r#"
    Be an agent for any Chat Completions endpoint, on stdin and stdout

    Usage: narrows acp [OPTIONS]

    Options:
          --log <FILTER>  What to log to stderr, such as `debug` or `narrows_rpc=trace`; warnings by
                          default
      -h, --help          Print help (see more with '--help')

    Model of the built-in agent:
          --config <FILE>       The configuration file [default: narrows/narrows.toml in your
                                configuration directory]
          --endpoint <NAME>     The endpoint of the configuration to use
          --base-url <URL>      Where the endpoint is; `builtin:demo` is a model for a first try,
                                without a key or a network
          --model <ID>          The model
          --key-env <VARIABLE>  The variable in which the key is

    Sessions:
          --data-dir <DIR>  Where sessions are kept [default: narrows in your data directory]
          --no-store        Keep no sessions: they end with the process

    Examples:
      # what an editor starts, with OpenAI's gpt-4o
      OPENAI_API_KEY=… narrows acp
      # with a model on this machine
      narrows acp --base-url http://localhost:11434/v1 --model llama3.2
      # with an endpoint of narrows.toml, and more in the log
      narrows acp --endpoint work --log debug
    --- exit 0 ---
    "#);
}

#[test]
fn the_help_of_fake_agent() {
    assert_snapshot!(output(&["fake-agent", "--help"]), @r#"
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
    assert_eq!(output(&[]).replace("--- stderr ---\n", ""), output(&["-h"]).replace("exit 0", "exit 2"));
}

#[test]
fn a_wrong_command() {
    assert_snapshot!(output(&["rum"]), @"
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
        let script = output(&["completions", shell]);
        assert!(script.ends_with("--- exit 0 ---\n"), "{script}");
        for word in ["fake-agent", "completions", "--agent", "--initialize-timeout"] {
            assert!(script.contains(word.trim_start_matches('-')), "{shell} has no {word}");
        }
    }
}

#[test]
fn completions_know_the_values_that_are_fixed_and_offer_files() {
    let script = output(&["completions", "bash"]);
    for (flag, values) in [
        ("--access", "low medium high"),
        ("--effort", "minimal low medium high"),
        ("--output", "text events json"),
        ("--print-schema", "acp operator governance policy sandbox runner agent-cli"),
    ] {
        let complete = format!("{flag})\n                    COMPREPLY=($(compgen -W \"{values}");
        assert!(script.contains(&complete), "{flag} is not completed");
        let by_files = format!("{flag})\n                    COMPREPLY=($(compgen -f");
        assert!(!script.contains(&by_files), "{flag} is completed by files");
    }
    assert!(!script.contains("--provider)\n                    COMPREPLY=($(compgen -f"));
    let check = script.split("\n        narrows__subcmd__check)").nth(1).expect("the command");
    let check = check.split("\n            ;;\n        ").next().expect("it ends");
    assert!(
        check.contains("if [[ ${cur} == -* ]]") && check.contains("COMPREPLY=()\n            return 0"),
        "{check}"
    );
}

#[test]
fn the_readme_has_the_exit_codes_of_the_help() {
    let help = output(&["--help"]);
    let (_, codes) = help.split_once("Exit codes:\n").expect("a section");
    let (codes, _) = codes.split_once("\n\n").expect("another section");
    let readme = include_str!("../../README.md");
    for line in codes.lines() {
        let (number, meaning) = line.trim().split_once("  ").expect("a number and a meaning");
        let row = format!("| {number} | {meaning} |");
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
}
