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
    Run, drive, route and govern agents that speak the Agent Client Protocol (ACP)

    Usage: narrows [OPTIONS] <COMMAND>

    Commands:
      run          Send one prompt to an agent and print its answer
      chat         Chat with an agent in the terminal
      agents       List the agents of narrows.toml, or probe one
      sessions     List the sessions of an agent, most recent first
      policy       Check policy rules, and explain their decisions
      bus          Route many clients to pools of supervised agents
      token        Create, list and revoke tokens of network clients
      check        Validate configuration files and manifests
      audit        Verify and read the audit log
      serve        Serve a governed agent described by a manifest
      approve      Approve or reject a pending action of a governed agent
      acp          Run the built-in agent on stdio, for any Chat Completions endpoint
      connect      Bridge stdio to a remote agent
      fake-agent   Run a scripted agent on stdio, for tests
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
          --log <FILTER>  Log filter for stderr, such as `debug` or `narrows_rpc=trace` [default: warn]
      -h, --help          Print help (see more with '--help')
      -V, --version       Print version

    Examples:
      # First turn, without a key or network
      narrows run "Hello, who are you?"
      # Any other agent that speaks ACP
      narrows run --agent "opencode acp" "What is this?"
      # Run as an agent in an editor
      OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 narrows acp
      # Agents that misbehave, for tests
      narrows fake-agent --list
    --- exit 0 ---
    "#);
}

#[test]
fn the_long_help() {
    assert_snapshot!(output(&["--help"]), @r#"
    Run, drive, route and govern agents that speak the Agent Client Protocol (ACP)

    Usage: narrows [OPTIONS] <COMMAND>

    Commands:
      run          Send one prompt to an agent and print its answer
      chat         Chat with an agent in the terminal
      agents       List the agents of narrows.toml, or probe one
      sessions     List the sessions of an agent, most recent first
      policy       Check policy rules, and explain their decisions
      bus          Route many clients to pools of supervised agents
      token        Create, list and revoke tokens of network clients
      check        Validate configuration files and manifests
      audit        Verify and read the audit log
      serve        Serve a governed agent described by a manifest
      approve      Approve or reject a pending action of a governed agent
      acp          Run the built-in agent on stdio, for any Chat Completions endpoint
      connect      Bridge stdio to a remote agent
      fake-agent   Run a scripted agent on stdio, for tests
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
          --log <FILTER>
              Log filter for stderr, such as `debug` or `narrows_rpc=trace` [default: warn]

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Examples:
      # First turn, without a key or network
      narrows run "Hello, who are you?"
      # Any other agent that speaks ACP
      narrows run --agent "opencode acp" "What is this?"
      # Run as an agent in an editor
      OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=llama3.2 narrows acp
      # Agents that misbehave, for tests
      narrows fake-agent --list

    Exit codes:
        0  the agent answered
        1  the agent failed: it reported an error, requires a login, or exited
        2  invalid arguments or configuration; nothing was started
        3  the agent refused to answer, or a gate stopped the turn
        4  the answer is incomplete: a limit was reached, or part of it was lost
        5  the agent cannot be started
        6  protocol error: invalid ACP or unsupported version
        7  a time limit was exceeded
        9  the agent finished, but a request was denied by a rule or an approver
       70  internal error
      129  cancelled by SIGHUP: the terminal was closed
      130  cancelled by Ctrl-C
      141  stdout was closed
      143  cancelled by SIGTERM

    Environment:
      NARROWS_LOG               log filter for stderr, such as `debug`; `--log` wins
      OPENAI_BASE_URL           base URL of the endpoint, or `builtin:demo` [https://api.openai.com/v1]
      OPENAI_API_KEY            API key of the endpoint; none is sent if it is empty
      OPENAI_MODEL              model id [gpt-4o]
      OPENAI_SYSTEM_PROMPT      system prompt
      OPENAI_MAX_TOKENS         maximum number of tokens of an answer
      OPENAI_TEMPERATURE        sampling temperature, usually 0 to 2
      AWS_BEARER_TOKEN_BEDROCK  API key for Bedrock, if no other is set
      AZURE_OPENAI_API_KEY      API key for Azure OpenAI, if no other is set
      NARROWS_CONFIG            configuration file [narrows/narrows.toml in XDG_CONFIG_HOME]
      NARROWS_ENDPOINT          endpoint of the configuration file
      NARROWS_CONNECT           URL of the remote agent that `narrows acp` without options connects to
      NARROWS_TOKEN_FILE        file with the token for a remote agent
      NARROWS_CERT_FILE         file with the client certificate for a remote agent
      NARROWS_KEY_FILE          file with the private key of that certificate
      NARROWS_DATA_DIR          directory for sessions [~/.local/share/narrows]
      NARROWS_ERRORS            how model errors reach the client: `text` or `rpc`
      HTTPS_PROXY               proxy for https endpoints (lower case also works)
      HTTP_PROXY                proxy for http endpoints (likewise)
      ALL_PROXY                 proxy for both (likewise)
      NO_PROXY                  hosts to reach without a proxy (likewise), besides this machine
      SSL_CERT_FILE             file with CA certificates to trust instead of those of the system
      SSL_CERT_DIR              directory with such certificates
      XDG_CONFIG_HOME           configuration directory [~/.config]
      XDG_DATA_HOME             data directory [~/.local/share]
      XDG_RUNTIME_DIR           directory for the admin sockets of buses and gates [~/.local/state]
      TMPDIR                    parent of the directory of `agents --probe` [/tmp]
      HOME                      home directory, `~` in paths
      GIT_CONFIG_GLOBAL         git configuration of the user; the hooks that it names are protected
      GIT_CONFIG_SYSTEM         git configuration of the system, likewise
      NO_COLOR                  no colors if set
      TERM                      no colors if `dumb`
    --- exit 0 ---
    "#);
}

#[test]
fn the_help_of_run() {
    assert_snapshot!(output(&["run", "-h"]), @r#"
    Send one prompt to an agent and print its answer

    Usage: narrows run [OPTIONS] [PROMPT]

    Arguments:
      [PROMPT]  Prompt; `@FILE` reads it from a file, `-` or no value from stdin

    Options:
          --image <FILE>        Image to send with the prompt
          --output <FORMAT>     Output format [default: text] [possible values: text, events, json]
          --json                The same as --output json
          --raw                 With --output events, add the agent's own message to every event
          --input <FORMAT>      Format of messages on stdin during the turn [possible values: events]
          --schema <FILE>       JSON Schema that the answer must match; the answer is printed as JSON
      -a, --agent <AGENT>       Agent: a name in narrows.toml, a command, or the URL of a remote agent
                                [default: the built-in agent]
          --cwd <DIR>           Working directory of the agent; for a remote agent, on its host
                                [default: the current directory]
          --protocol <VERSION>  Protocol version to offer; with 2, an agent that only knows 1 is
                                restarted with 1 [default: 1] [possible values: 1, 2]
          --log <FILTER>        Log filter for stderr, such as `debug` or `narrows_rpc=trace` [default:
                                warn]
      -h, --help                Print help (see more with '--help')

    Deadlines:
          --timeout <TIME>             Time limit for the whole run, such as `90s`, `5m` or `1h`
                                       [default: none]
          --initialize-timeout <TIME>  Time limit for the agent's answer to `initialize` [default: 30s]
          --session-timeout <TIME>     Time limit for opening a session [default: 60s]
          --cancel-grace <TIME>        Time limit for a cancelled turn to end [default: 10s, or 2s after
                                       the --timeout of `narrows run`]
          --silence-timeout <TIME>     Cancel the turn after this long without output; `0` disables
                                       [default: 15m]

    Environment of the agent:
          --env <NAME[=VALUE]>  Environment variable for the agent; without a value, passes on the
                                current one
          --clean-env           Pass only the ordinary environment variables to the agent, and no keys
          --pass-env <PATTERN>  With --clean-env, also pass variables with this name; `AWS_*` matches a
                                prefix

    Remote agents:
          --token-file <FILE>  File with the token for a remote agent
          --ca <FILE>          File with CA certificates to trust in addition to those of the system
          --cert <FILE>        Client certificate for a remote agent that requires one
          --key <FILE>         Private key of the client certificate
          --grace <TIME>       Keep reconnecting for this long after a connection is lost [default:
                               300s]

    Model of the built-in agent:
          --config <FILE>       Configuration file [default: narrows/narrows.toml in your configuration
                                directory]
          --endpoint <NAME>     Endpoint of the configuration file
          --base-url <URL>      Base URL of the endpoint; `builtin:demo` is a demo model that needs no
                                key or network
          --model <ID>          Model id
          --key-env <VARIABLE>  Environment variable that holds the API key

    Permissions of the agent:
          --access <low|medium|high>   Access preset: low, medium or high [default: medium]
          --no-network                 Deny everything that uses the network
          --no-web-search              Deny web searches
          --policy <FILE>              Rule file; see `narrows policy --help`
          --no-sandbox                 Run commands without a sandbox; with medium access, each command
                                       then needs permission
          --permission-timeout <TIME>  Deny a permission request after this long without an answer
                                       [default: 5m]

    Session:
          --add-dir <DIR>  Additional directory that the agent may use
          --mcp <FILE>     JSON file with the MCP servers for the agent, in `mcpServers`
          --mode <MODE>    Mode of the agent, by id or name
          --require-model  Fail if the agent does not offer the model of --model
          --resume <ID>    Continue this session
          --fork <ID>      Start a new session with the history of this one
          --continue       Continue the last session in this directory

    Examples:
      # First turn, without a key or network
      narrows run "Hello, who are you?"
      # Model on this machine
      narrows run --base-url http://localhost:11434/v1 --model llama3.2 "Hi"
      # Prompt from another program
      git diff | narrows run --agent my-agent
      # Remote agent
      narrows run --agent wss://bus.example/acp --token-file token "Hi"
      # Agent that needs one of your keys
      narrows run --agent my-agent --env MY_KEY "Hi"
      # Script: time limit and JSON output
      narrows run --agent my-agent --timeout 5m --output json "Hi"
    --- exit 0 ---
    "#);
}

#[test]
fn the_help_of_run_describes_its_time_limit() {
    let help = output(&["run", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "--timeout limits the whole run, from the start of the agent to the end of the turn.",
        "With --timeout 2s, the command exits within 3 s if the agent stops when asked, and within 7 s if it ignores \
         everything.",
    ] {
        assert!(help.contains(sentence), "{help}");
    }
}

#[test]
fn the_help_of_acp() {
    assert_snapshot!(output(&["acp", "-h"]), @"
    Run the built-in agent on stdio, for any Chat Completions endpoint

    Usage: narrows acp [OPTIONS]

    Options:
          --log <FILTER>  Log filter for stderr, such as `debug` or `narrows_rpc=trace` [default: warn]
      -h, --help          Print help (see more with '--help')

    Model of the built-in agent:
          --config <FILE>       Configuration file [default: narrows/narrows.toml in your configuration
                                directory]
          --endpoint <NAME>     Endpoint of the configuration file
          --base-url <URL>      Base URL of the endpoint; `builtin:demo` is a demo model that needs no
                                key or network
          --model <ID>          Model id
          --key-env <VARIABLE>  Environment variable that holds the API key

    Sessions:
          --data-dir <DIR>  Directory for sessions [default: narrows in your data directory]
          --no-store        Do not store sessions: they end with the process

    Examples:
      # In an editor, with OpenAI's gpt-4o
      OPENAI_API_KEY=… narrows acp
      # Model on this machine
      narrows acp --base-url http://localhost:11434/v1 --model llama3.2
      # Endpoint of narrows.toml, with debug messages in the log
      narrows acp --endpoint work --log debug
    --- exit 0 ---
    ");
}

#[test]
fn the_help_of_fake_agent() {
    assert_snapshot!(output(&["fake-agent", "--help"]), @r#"
    Run a scripted agent on stdio, for tests

    A script defines what the agent answers and how it misbehaves.

    Usage: narrows fake-agent [OPTIONS] [SCRIPT]

    Arguments:
      [SCRIPT]
              TOML file, or name of a built-in script

    Options:
          --list
              List the built-in scripts

          --print <NAME>
              Print a built-in script, as a starting point for your own

          --json
              With --list, print a JSON object

          --log <FILTER>
              Log filter for stderr, such as `debug` or `narrows_rpc=trace` [default: warn]

      -h, --help
              Print help (see a summary with '-h')

    Examples:
      # List the built-in scripts
      narrows fake-agent --list
      # Start your own script from a built-in one
      narrows fake-agent --print echo > mine.toml
      # Run a turn with it
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
fn completions_offer_fixed_values_and_files() {
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
    let check = check.split("\n            ;;\n        ").next().expect("a part before the end mark");
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
