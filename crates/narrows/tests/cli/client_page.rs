//! Compares `docs/client.md` with the binary.

use crate::test_dir::TestDir;

const PAGE: &str = include_str!("../../../../docs/client.md");

/// The rest of the page from this heading on, up to the next.
#[track_caller]
fn section(heading: &str) -> &'static str {
    let rest = PAGE.split(heading).nth(1).expect("the section");
    rest.split("\n## ").next().and_then(|rest| rest.split("\n### ").next()).expect("it ends")
}

#[test]
fn the_exit_codes_are_those_of_the_help() {
    let dir = TestDir::new();
    let help = dir.output_of(dir.narrows(["run", "--help"]));
    let codes =
        help.split("\nExit codes:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("codes");
    let told: Vec<(String, String)> = codes
        .lines()
        .filter_map(|line| line.trim().split_once("  "))
        .map(|(code, meaning)| (code.to_owned(), meaning.to_owned()))
        .collect();
    let rows =
        section("\n### Exit codes\n").lines().filter(|line| line.starts_with("| ") && !line.contains("code"));
    let written: Vec<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].to_owned(), cells[2].to_owned())
        })
        .collect();
    assert!(told.len() > 10, "{help}");
    assert_eq!(written, told);
}

#[test]
fn the_codes_of_errors_are_explained() {
    let section = section("\n### Events\n");
    let dir = TestDir::new();
    dir.file("full.toml", "name = 'full'\n[[turn]]\nsteps = [{ say = 'a' }, { stop = 'max_tokens' }]\n");
    dir.file("no.toml", "name = 'no'\n[[turn]]\nsteps = [{ stop = 'refusal' }]\n");
    for (agent, args, code) in [
        ("crash", &[][..], "agent_exited"),
        ("slow", &["--timeout", "3s"], "timeout"),
        ("slow", &["--silence-timeout", "200ms"], "silence"),
        ("full.toml", &[], "max_tokens"),
        ("no.toml", &[], "refusal"),
    ] {
        let agent = format!("narrows fake-agent {agent}");
        let told = dir.output_of(dir.run(&agent, &[args, &["--output", "events", "Hi"]].concat()));
        assert!(told.contains(&format!("\"code\":\"{code}\"")), "{told}");
        assert!(section.contains(&format!("`{code}`")), "{code} is not explained");
    }
}

/// The files and commands of the section on rules are run as they stand there.
#[test]
fn the_rule_examples_behave_as_described() {
    let dir = TestDir::new();
    let section =
        PAGE.split("\n## What the agent may do\n").nth(1).and_then(|rest| rest.split("\n### ").next());
    let section = section.expect("a section on rules");
    let rules = section.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules");
    dir.file("rules.toml", rules);
    let mut commands = 0;
    for block in section.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("it ends");
        for example in block.split("$ narrows ").skip(1) {
            let (line, expected) = example.split_once('\n').expect("a line");
            let (line, file) = line.split_once(" > ").map_or((line, None), |(line, file)| (line, Some(file)));
            let output = dir.narrows(shlex::split(line).expect("words")).output().expect("narrows starts");
            dir.assert_no_process_left();
            let said = String::from_utf8(output.stdout).expect("UTF-8");
            match file {
                Some(file) => _ = dir.file(file, &said),
                None => assert_eq!(said, expected, "{line}"),
            }
            commands += 1;
        }
    }
    assert_eq!(commands, 4);
}
