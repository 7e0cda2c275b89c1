//! The project's own commands: `cargo xtask test`, `bench` and `nightly`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool speaks to people")]

mod bench;
mod command;
mod nightly;
mod step;
mod test;
mod tools;

use std::process::ExitCode;

use step::Failure;

const HELP: &str = "\
Narrows: the project's own commands

    cargo xtask test              formatting, clippy, documentation, doc tests, tests
    cargo xtask bench NAME…       measure, optimised: wire, rpc, agent, client, bus, govern, remote;
                                  --json for programs;
                                  agent --peer CMD measures another agent beside ours,
                                  bus --peer NAME CMD CONFIG another router,
                                  remote --peer NAME CMD URL another server;
                                  --rows ROW,… --only NAME,… --seconds S --rounds N behind bus or remote
                                  measures less, or longer;
                                  --against REVISION measures that revision and this tree in turns and fails
                                  where this tree is worse; --runs N is how often, 5 unless said
    cargo xtask nightly [PART…]   the tests and everything slow; or only the parts named:
                                  test, deny, typos, fuzz, differential, model, agents, interop, browser, nginx,
                                  bench, simulate, chaos, cuts, stress
    cargo xtask help              this text

`test` uses cargo-nextest where it is installed. `nightly` installs what it misses with `cargo install`.
Both say what they run, how long it took, and exit with the code of what failed.
";

const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            eprintln!("xtask: {message}");
            ExitCode::from(code)
        }
    }
}

fn run(words: &[&str]) -> Result<(), Failure> {
    if words.iter().any(|word| matches!(*word, "-h" | "--help")) {
        print!("{HELP}");
        return Ok(());
    }
    match words {
        ["help"] => {
            print!("{HELP}");
            Ok(())
        }
        ["test"] => test::run(),
        ["bench", names @ ..] => bench::run(names),
        ["nightly", parts @ ..] => nightly::run(parts),
        [] => Err(usage("a command is missing")),
        ["test" | "help", extra, ..] => Err(usage(&format!("`{extra}` is one word too many"))),
        [unknown, ..] => Err(usage(&format!("there is no command `{unknown}`"))),
    }
}

/// Returns the error of an invalid command line, with a pointer to the help.
fn usage(problem: &str) -> Failure {
    Failure { code: USAGE, message: format!("{problem}; see `cargo xtask help`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &[&str], expected: &str) {
        let failure = run(words).expect_err("the command line is invalid");
        assert_eq!((failure.code, failure.message.as_str()), (USAGE, expected));
    }

    #[test]
    fn an_invalid_command_line_is_refused_before_anything_runs() {
        check(&[], "a command is missing; see `cargo xtask help`");
        check(&["tset"], "there is no command `tset`; see `cargo xtask help`");
        check(&["test", "wire"], "`wire` is one word too many; see `cargo xtask help`");
        check(
            &["bench"],
            "name what to measure: wire, rpc, agent, client, bus, govern, remote; see `cargo xtask help`",
        );
        check(
            &["bench", "--json"],
            "name what to measure: wire, rpc, agent, client, bus, govern, remote; see `cargo xtask help`",
        );
        check(&["bench", "wire", "wine"], "there is no measurement `wine`; see `cargo xtask help`");
        check(&["bench", "agent", "--peer"], "`--peer` needs a command; see `cargo xtask help`");
        let behind = "`--peer` is for `agent`, or follows `bus` or `remote`; see `cargo xtask help`";
        check(&["bench", "wire", "--peer", "x"], behind);
        let whole = "`--peer` of `bus` needs a name, a command and a file; see `cargo xtask help`";
        check(&["bench", "bus", "--peer", "x", "y"], whole);
        let whole = "`--peer` of `remote` needs a name, a command and a URL; see `cargo xtask help`";
        check(&["bench", "remote", "--peer", "x", "y"], whole);
        check(&["bench", "bus", "--rows"], "`--rows` needs a value; see `cargo xtask help`");
        let behind = "`--rows` must follow `bus` or `remote`; see `cargo xtask help`";
        check(&["bench", "rpc", "--rows", "small"], behind);
        check(&["nightly", "deny", "lint"], "nightly has no part `lint`; see `cargo xtask help`");
    }

    #[test]
    fn the_help_names_every_part_and_every_measurement() {
        for name in nightly::PARTS.iter().map(|part| part.name).chain(bench::NAMES) {
            assert!(HELP.contains(name), "`cargo xtask help` does not mention `{name}`");
        }
    }
}
