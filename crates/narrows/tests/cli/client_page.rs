//! What `docs/client.md` says agrees with the binary.

use crate::support::Place;

const PAGE: &str = include_str!("../../../../docs/client.md");

/// The rest of the page from this heading on, up to the next.
#[track_caller]
fn section(heading: &str) -> &'static str {
    let rest = PAGE.split(heading).nth(1).expect("the section");
    rest.split("\n## ").next().and_then(|rest| rest.split("\n### ").next()).expect("it ends")
}

#[test]
fn the_exit_codes_are_those_of_the_help() {
    let place = Place::new();
    let help = place.told(place.narrows(["run", "--help"]));
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
    let place = Place::new();
    place.file("full.toml", "name = 'full'\n[[turn]]\nsteps = [{ say = 'a' }, { stop = 'max_tokens' }]\n");
    place.file("no.toml", "name = 'no'\n[[turn]]\nsteps = [{ stop = 'refusal' }]\n");
    for (agent, args, code) in [
        ("crash", &[][..], "agent_exited"),
        ("slow", &["--timeout", "3s"], "timeout"),
        ("slow", &["--silence-timeout", "200ms"], "silence"),
        ("full.toml", &[], "max_tokens"),
        ("no.toml", &[], "refusal"),
    ] {
        let agent = format!("narrows fake-agent {agent}");
        let told = place.told(place.run(&agent, &[args, &["--output", "events", "Hi"]].concat()));
        assert!(told.contains(&format!("\"code\":\"{code}\"")), "{told}");
        assert!(section.contains(&format!("`{code}`")), "{code} is not explained");
    }
}

/// The files and commands of the section on rules are run as they stand there.
#[test]
fn the_examples_of_rules_do_what_they_say() {
    let place = Place::new();
    let section =
        PAGE.split("\n## What the agent may do\n").nth(1).and_then(|rest| rest.split("\n### ").next());
    let section = section.expect("a section on rules");
    let rules = section.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules");
    place.file("rules.toml", rules);
    let mut commands = 0;
    for block in section.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("it ends");
        for example in block.split("$ narrows ").skip(1) {
            let (line, expected) = example.split_once('\n').expect("a line");
            let (line, file) = line.split_once(" > ").map_or((line, None), |(line, file)| (line, Some(file)));
            let output = place.narrows(shlex::split(line).expect("words")).output().expect("narrows starts");
            place.nothing_is_left();
            let said = String::from_utf8(output.stdout).expect("UTF-8");
            match file {
                Some(file) => _ = place.file(file, &said),
                None => assert_eq!(said, expected, "{line}"),
            }
            commands += 1;
        }
    }
    assert_eq!(commands, 4);
}
