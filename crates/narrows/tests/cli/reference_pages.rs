//! Compares the pages in `docs/reference` about commands, exit codes and events with the help and the behavior of the binary.
//!
//! `cli.md` and the tables of `exit-codes.md` are made from the help. If a page is out of date, the test fails and names a new copy.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::test_dir::TestDir;

const CLI_HEAD: &str = "\
# Commands and options

This page is the output of `narrows COMMAND --help`, for every command.
Every command takes `--log FILTER` and `--help`.
Unless a command lists its own, it has the common [exit codes](exit-codes.md) and
[environment variables](environment.md).
";

const EVENTS: &str = include_str!("../../../../docs/reference/events.md");

/// Names of the exit codes in JSON output.
const NAMES: &[(&str, &str)] = &[
    ("0", "success"),
    ("1", "agent"),
    ("2", "usage"),
    ("3", "refusal"),
    ("4", "limit"),
    ("5", "start"),
    ("6", "protocol"),
    ("7", "timeout"),
    ("9", "denied"),
    ("70", "internal"),
    ("129", "hung_up"),
    ("130", "interrupted"),
    ("141", "output_closed"),
    ("143", "terminated"),
];

struct Help {
    /// The command as typed, such as `narrows bus status`.
    command: String,
    /// Text by heading, in order. The first has no heading.
    sections: Vec<(String, String)>,
}

impl Help {
    fn new(words: &[&str]) -> Self {
        let dir = TestDir::new();
        let output = dir.narrows([words, &["--help"]].concat()).output().expect("narrows runs");
        assert!(output.status.success(), "{words:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let mut sections = vec![(String::new(), String::new())];
        for paragraph in text.trim_end().split("\n\n") {
            let heading = paragraph.split_once(":\n").map(|(heading, _)| heading);
            let heading = heading.filter(|line| line.starts_with(char::is_uppercase) && !line.contains('\n'));
            if let Some(heading) = heading {
                sections.push((heading.to_owned(), String::new()));
            }
            let (_, body) = sections.last_mut().expect("one section");
            if !body.is_empty() {
                body.push_str("\n\n");
            }
            body.push_str(paragraph);
        }
        Self { command: [&["narrows"], words].concat().join(" "), sections }
    }

    fn section(&self, name: &str) -> Option<&str> {
        self.sections.iter().find(|(heading, _)| heading == name).map(|(_, body)| body.as_str())
    }

    fn subcommands(&self) -> impl Iterator<Item = &str> {
        let lines = self.section("Commands").unwrap_or_default().lines();
        lines
            .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
            .filter(|name| !["", "help"].contains(name))
    }

    /// Codes with meanings. A long meaning continues on the next line.
    fn exit_codes(&self) -> Vec<(String, String)> {
        let mut codes: Vec<(String, String)> = Vec::new();
        for line in self.section("Exit codes").unwrap_or_default().lines().skip(1) {
            match (line.trim().split_once("  "), codes.last_mut()) {
                (Some((code, meaning)), _) => codes.push((code.to_owned(), meaning.to_owned())),
                (None, last) => {
                    let (_, meaning) = last.expect("a code on the first line");
                    meaning.push(' ');
                    meaning.push_str(line.trim());
                }
            }
        }
        codes
    }
}

/// The help of `words` and of all commands below it.
fn add_help(words: &[&str], found: &mut Vec<Help>) {
    let help = Help::new(words);
    let below: Vec<String> = help.subcommands().map(str::to_owned).collect();
    found.push(help);
    for name in &below {
        add_help(&[words, &[name.as_str()]].concat(), found);
    }
}

fn all_help() -> Vec<Help> {
    let mut found = Vec::new();
    add_help(&[], &mut found);
    assert!(found.len() > 20, "{} commands", found.len());
    found
}

#[track_caller]
fn assert_page(name: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    let is_current = fs::read_to_string(&path).unwrap_or_default() == wanted;
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&copy, wanted).expect("a copy");
    assert!(is_current, "docs/reference/{name} is out of date; copy {} there", copy.display());
}

#[test]
fn the_page_of_commands_is_the_help() {
    let all = all_help();
    let common = ["Exit codes", "Environment"].map(|name| all[0].section(name));
    // Options that every command has.
    let options = all[0].section("Options").unwrap_or_default();
    let shared: Vec<&str> = options.split("\n\n").map(without_heading).collect();
    let mut first: HashMap<String, String> = HashMap::new();
    let mut page = CLI_HEAD.to_owned();
    for help in &all {
        let mut text = String::new();
        let mut repeated: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (heading, body) in &help.sections {
            let mut body = body.clone();
            if common.contains(&Some(body.as_str())) {
                continue;
            }
            if heading == "Options" && !std::ptr::eq(help, &all[0]) {
                let own = body.split("\n\n").map(without_heading).filter(|option| !shared.contains(option));
                let own: Vec<&str> = own.collect();
                if own.is_empty() {
                    continue;
                }
                body = format!("Options:\n{}", own.join("\n\n"));
            }
            match first.get(&body) {
                Some(command) if !["Options", "Arguments"].contains(&heading.as_str()) => {
                    repeated.entry(command.clone()).or_default().push(heading);
                }
                _ => write!(text, "\n\n{body}").expect("a text"),
            }
            first.entry(body).or_insert_with(|| help.command.clone());
        }
        let text: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
        write!(page, "\n## {}\n\n```text\n{}\n```\n", help.command, text.join("\n")).expect("a text");
        for (command, headings) in &repeated {
            let anchor = command.replace(' ', "-");
            write!(page, "\nAs for [`{command}`](#{anchor}):\n\n").expect("a text");
            for heading in headings {
                writeln!(page, "- {heading}").expect("a text");
            }
        }
    }
    assert_page("cli.md", &page);
}

fn without_heading(paragraph: &str) -> &str {
    paragraph.strip_prefix("Options:\n").unwrap_or(paragraph)
}

/// Replaces the rows below `head` in the section with this heading.
#[track_caller]
fn with_rows(page: &str, heading: &str, head: &str, rows: &str) -> String {
    let (before, section) = page.split_once(&format!("\n## {heading}\n")).expect(heading);
    let (text, table) = section.split_once(head).expect(heading);
    let after = table.find("\n\n").map_or("", |end| &table[end + 1..]);
    format!("{before}\n## {heading}\n{text}{head}{rows}{after}")
}

#[test]
fn the_tables_of_exit_codes_are_those_of_the_help() {
    let all = all_help();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/exit-codes.md");
    let mut page = fs::read_to_string(path).expect("the page");
    let common = all[0].exit_codes();
    let rows = common.iter().fold(String::new(), |rows, (code, meaning)| {
        let (_, name) = NAMES.iter().find(|(known, _)| known == code).expect(code);
        rows + &format!("| {code} | `{name}` | {meaning} |\n")
    });
    page = with_rows(&page, "Common exit codes", "| code | name | meaning |\n|---|---|---|\n", &rows);
    for help in &all[1..] {
        let codes = help.exit_codes();
        // The help of `narrows audit` shows the codes of `narrows audit verify`.
        if codes.is_empty() || codes == common || help.command == "narrows audit" {
            continue;
        }
        let rows = codes
            .iter()
            .fold(String::new(), |rows, (code, meaning)| rows + &format!("| {code} | {meaning} |\n"));
        page = with_rows(&page, &format!("`{}`", help.command), "| code | meaning |\n|---|---|\n", &rows);
    }
    assert_page("exit-codes.md", &page);
}

#[test]
fn names_of_exit_codes_are_those_of_json_output() {
    let dir = TestDir::new();
    for (args, code) in [(&["--policy", "none.toml"][..], "2"), (&["--timeout", "1ms"], "7")] {
        let args = [args, &["--output", "json", "Hi"]].concat();
        let told = dir.output_of(dir.run("narrows fake-agent hang", &args));
        let name = NAMES.iter().find(|(known, _)| *known == code).expect(code).1;
        assert!(told.contains(&format!("\"kind\":\"{name}\"")), "{told}");
        assert!(told.contains(&format!("--- exit {code} ---")), "{told}");
    }
}

#[test]
fn the_codes_of_errors_are_explained() {
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
        assert!(EVENTS.contains(&format!("| `{code}`")), "{code} is not explained");
    }
}
