//! The rules, as functions from one file to sentences about what is wrong with it.

use crate::code::has_word;
use crate::files::Source;

pub(crate) const MAX_LINES: usize = 600;

/// Longer files, and why each is better whole.
pub(crate) const LONG_FILES: &[(&str, &str)] = &[];

/// Directories whose programs may print.
const MAY_PRINT: [&str; 3] = ["bench/", "crates/narrows/", "xtask/"];

/// Directories that may read the environment.
const MAY_READ_ENVIRONMENT: [&str; 3] = ["bench/", "crates/narrows/", "xtask/"];

/// Directories that may contain unsafe code.
const MAY_BE_UNSAFE: [&str; 2] = ["crates/process/", "crates/wire/src/skip/"];

/// The comment that lets a test sleep, with the reason after it.
const SLEEP_REASON: &str = "// sleep: ";

/// A file must fit in the reader's memory.
pub(crate) fn length(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    if lines <= MAX_LINES || LONG_FILES.iter().any(|(path, _)| *path == source.path) {
        return Vec::new();
    }
    vec![format!(
        "{}: {lines} lines, at most {MAX_LINES} are allowed: split it by duty, or list it with a reason in \
         LONG_FILES of xtask/tests/tidy/rules.rs.",
        source.path
    )]
}

/// The first line of every file must be a sentence that describes it. Unit test files are excused: the module describes
/// itself.
pub(crate) fn header(source: &Source) -> Vec<String> {
    if source.is_unit_test_file() {
        return Vec::new();
    }
    let header: Vec<&str> = source.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let paragraph: Vec<&str> =
        header.iter().map(|line| line.trim()).take_while(|line| !line.is_empty()).collect();
    if paragraph.last().is_some_and(|line| line.ends_with(['.', '!', '?', ':'])) {
        return Vec::new();
    }
    vec![format!("{}:1: the file must start with `//!` and a whole sentence on its duty.", source.path)]
}

/// Public types, traits and functions of libraries must be documented. Fields and variants need it only where their
/// name and type leave something open, so the compiler's `missing_docs` would ask for too much.
pub(crate) fn documentation(source: &Source) -> Vec<String> {
    if !source.path.starts_with("crates/") {
        return Vec::new();
    }
    let written: Vec<&str> = source.text.lines().collect();
    source
        .product()
        .filter(|(number, line)| is_public_item(line) && !has_documentation(&written[..number - 1]))
        .map(|(number, line)| format!("{}:{number}: `{}` has no documentation.", source.path, line.trim()))
        .collect()
}

/// Returns `true` if the line begins a function, type or trait that other crates can name.
fn is_public_item(line: &str) -> bool {
    let Some(item) = line.trim_start().strip_prefix("pub ") else { return false };
    let keyword = item.split_whitespace().find(|word| !["const", "async", "unsafe"].contains(word));
    keyword.is_some_and(|word| ["fn", "struct", "enum", "union", "trait"].contains(&word))
}

/// Returns `true` if the lines above an item end with a doc comment, after which only attributes may follow.
fn has_documentation(above: &[&str]) -> bool {
    let mut in_attribute = false;
    for line in above.iter().rev().map(|line| line.trim()) {
        if line.starts_with("#[") {
            in_attribute = false;
        } else if line.ends_with(")]") {
            in_attribute = true;
        } else if !in_attribute {
            return line.starts_with("///");
        }
    }
    false
}

/// Libraries must not print: the output may be a protocol.
pub(crate) fn printing(source: &Source) -> Vec<String> {
    let macros = ["print!", "println!", "eprint!", "eprintln!", "dbg!"];
    outside(source, &MAY_PRINT, source.product(), &macros, "only the binary speaks; return it or trace it")
}

/// Libraries must not read variables: they would be hidden settings.
pub(crate) fn environment(source: &Source) -> Vec<String> {
    let calls = ["env::var", "env::var_os", "env::vars", "env::vars_os"];
    outside(
        source,
        &MAY_READ_ENVIRONMENT,
        source.product(),
        &calls,
        "only the binary reads the environment; take it as a value",
    )
}

/// Queues must be bounded: a peer must not decide how much memory is used.
pub(crate) fn queues(source: &Source) -> Vec<String> {
    let names = ["unbounded", "unbounded_channel", "UnboundedSender", "UnboundedReceiver"];
    outside(source, &[], source.lines(), &names, "every queue has a bound")
}

/// Unsafe code is worth its proof in two places only.
pub(crate) fn unsafety(source: &Source) -> Vec<String> {
    let hint = "only the start of children and the vector scanner may";
    outside(source, &MAY_BE_UNSAFE, source.lines(), &["unsafe"], hint)
}

/// Messages and help texts must not refer to `docs/`, which users of the binary do not have. Comments of the arguments
/// are help texts; other comments are for developers.
pub(crate) fn pages(source: &Source) -> Vec<String> {
    if !source.path.starts_with("crates/") || source.is_unit_test_file() {
        return Vec::new();
    }
    let is_help = source.path.starts_with("crates/narrows/src/cli");
    let written: Vec<&str> = source.text.lines().collect();
    source
        .product()
        .filter(|(number, _)| {
            let line = written[number - 1].trim_start();
            let names_page = line.match_indices("docs/").any(|(at, _)| {
                let name =
                    line[at..].split(|c: char| !(c.is_ascii_alphanumeric() || "/-_.".contains(c))).next();
                name.is_some_and(|name| name.trim_end_matches('.').ends_with(".md"))
            });
            names_page && !line.contains("include_str!") && (is_help || !line.starts_with("//"))
        })
        .map(|(number, _)| {
            format!("{}:{number}: a message must not name a page of the repository.", source.path)
        })
        .collect()
}

/// A test that sleeps is slow on a good day and wrong on a bad one.
pub(crate) fn sleeping(source: &Source) -> Vec<String> {
    let written: Vec<&str> = source.text.lines().collect();
    source
        .tests()
        .filter(|(_, line)| has_word(line, "sleep(") || has_word(line, "sleep_until("))
        .filter(|(number, _)| {
            let here = written[number - 1];
            let above = number.checked_sub(2).map_or("", |above| written[above].trim_start());
            let above = if above.starts_with(SLEEP_REASON) { above } else { "" };
            ![here, above].into_iter().any(gives_reason)
        })
        .map(|(number, _)| {
            format!(
                "{}:{number}: a test must not sleep to wait: pause the clock, or wait for what is to happen. Where \
                 real time is the subject, or all one can do is look again, write `{SLEEP_REASON}` and the reason on \
                 the line or above it.",
                source.path
            )
        })
        .collect()
}

fn gives_reason(line: &str) -> bool {
    line.split_once(SLEEP_REASON).is_some_and(|(_, reason)| !reason.trim().is_empty())
}

/// A sentence for every one of `lines` with one of `words` in it, unless the file lies where that is allowed.
fn outside<'a>(
    source: &'a Source,
    allowed: &[&str],
    lines: impl Iterator<Item = (usize, &'a str)>,
    words: &[&str],
    hint: &str,
) -> Vec<String> {
    if allowed.iter().any(|prefix| source.path.starts_with(prefix)) {
        return Vec::new();
    }
    lines
        .filter_map(|(number, line)| {
            let word = words.iter().find(|word| has_word(line, word))?;
            Some(format!("{}:{number}: `{word}` is not allowed here: {hint}.", source.path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `rule` on one file and compares the numbers of the lines it complains about, or 0 for the file itself.
    #[track_caller]
    fn check(rule: fn(&Source) -> Vec<String>, path: &str, text: &str, expected: &[usize]) {
        let problems = rule(&Source::new(path, text));
        let lines: Vec<usize> = problems
            .iter()
            .map(|problem| {
                let place = problem.strip_prefix(path).expect("a problem names its file");
                place.split(':').nth(1).and_then(|number| number.trim().parse().ok()).unwrap_or(0)
            })
            .collect();
        assert_eq!(lines, expected, "{problems:#?}");
    }

    #[test]
    fn a_long_file_is_found() {
        check(length, "crates/a/src/a.rs", &"\n".repeat(MAX_LINES), &[]);
        check(length, "crates/a/src/a.rs", &"\n".repeat(MAX_LINES + 1), &[0]);
    }

    #[test]
    fn a_missing_header_is_found() {
        let path = "crates/a/src/lib.rs";
        check(header, path, "//! What it is.\n", &[]);
        check(header, path, "//! What it is, in\n//! two lines.\n//!\n//! More\n", &[]);
        check(header, path, "use std::fmt;\n", &[1]);
        check(header, path, "//! a fragment\n", &[1]);
        check(header, path, "//!\n//! Late.\n", &[1]);
        check(header, path, "", &[1]);
        check(header, "crates/a/src/a/tests.rs", "use super::*;\n", &[]);
        check(header, "crates/a/tests/it.rs", "use a::b;\n", &[1]);
    }

    #[test]
    fn a_public_item_without_documentation_is_found() {
        let path = "crates/a/src/a.rs";
        let text = "pub struct A {\n    pub field: u8,\n}\n\n/// Makes one.\n#[must_use]\npub fn make() -> A {\n}\npub const fn other() {}\n";
        check(documentation, path, text, &[1, 9]);
        check(documentation, path, "pub(crate) fn f() {}\npub const A: u8 = 1;\npub use a::b;\n", &[]);
        check(documentation, path, "/// A.\n#[derive(\n    Clone,\n)]\n#[a = {\n}\n)]\npub enum A {}\n", &[]);
        check(documentation, "xtask/src/a.rs", "pub fn f() {}\n", &[]);
    }

    #[test]
    fn printing_is_found() {
        let text = "fn f() {\n    println!(\"a\");\n    eprint!(\"b\");\n}\n#[cfg(test)]\nmod tests {\n    fn g() { println!(); }\n}\n";
        check(printing, "crates/wire/src/a.rs", text, &[2, 3]);
        check(printing, "crates/narrows/src/a.rs", text, &[]);
        check(printing, "crates/narrows-ish/src/a.rs", text, &[2, 3]);
        check(printing, "crates/wire/src/a.rs", "// println!\nlet a = \"println!\"; pretty_print!();\n", &[]);
    }

    #[test]
    fn reading_the_environment_is_found() {
        let text = "let home = std::env::var_os(\"HOME\");\nlet separator = std::env::consts::OS;\n";
        check(environment, "crates/process/src/a.rs", text, &[1]);
        check(environment, "crates/narrows/src/a.rs", text, &[]);
    }

    #[test]
    fn an_unbounded_queue_is_found() {
        let text = "let (a, b) = mpsc::unbounded_channel();\nlet (c, d) = futures::mpsc::unbounded();\nlet unbounded_joy = 1;\n";
        check(queues, "crates/narrows/src/a.rs", text, &[1, 2]);
    }

    #[test]
    fn unsafe_code_is_found() {
        let text = "#![deny(unsafe_code)]\n// unsafe\nunsafe { f() }\n";
        check(unsafety, "crates/wire/src/scan.rs", text, &[3]);
        check(unsafety, "crates/wire/src/skip/avx2.rs", text, &[]);
        check(unsafety, "crates/process/src/spawn.rs", text, &[]);
    }

    #[test]
    fn a_page_that_a_message_names_is_found() {
        let text = "/// As docs/bus.md says.\nlet a = \"see docs/bus.md\";\nlet b = \"docs/ and a.md\";\n#[cfg(test)]\nmod tests {\n    const PAGE: &str = \"docs/bus.md\";\n}\n";
        check(pages, "crates/bus/src/a.rs", text, &[2]);
        check(pages, "crates/narrows/src/cli/bus.rs", text, &[1, 2]);
        check(pages, "crates/bus/src/a/tests.rs", text, &[]);
        check(pages, "crates/bus/tests/a.rs", text, &[]);
    }

    #[test]
    fn a_sleeping_test_is_found() {
        let path = "crates/a/tests/it.rs";
        check(sleeping, path, "std::thread::sleep(SECOND);\ntokio::time::sleep(SECOND).await;\n", &[1, 2]);
        check(sleeping, path, "sleep(SECOND); // sleep: the clock is paused\n", &[]);
        check(sleeping, path, "// sleep: the kernel's own timer is the subject\nsleep(SECOND);\n", &[]);
        check(sleeping, path, "sleep(SECOND); // sleep: \n", &[1]);
        check(sleeping, path, "sleep(SECOND); // a moment\n", &[1]);
        check(sleeping, path, "run(\"sleep(1)\"); oversleep(1);\n", &[]);
        check(sleeping, "crates/a/src/a.rs", "sleep(backoff).await;\n", &[]);
    }
}
