//! House rules that no compiler checks, for every Rust file of the repository.
//!
//! [`files`] finds the files, [`code`] blanks out comments and strings, [`rules`] reports violations.

mod code;
mod files;
mod rules;

use files::Source;

/// Runs one rule over the repository and fails with all it finds.
fn tidy(rule: fn(&Source) -> Vec<String>) {
    let sources = files::all();
    assert!(
        sources.iter().any(|source| source.path == "crates/wire/src/lib.rs"),
        "the sources were not found"
    );
    let problems: Vec<String> = sources.iter().flat_map(rule).collect();
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn files_are_short() {
    tidy(rules::length);
}

#[test]
fn exceptions_to_the_length_are_still_needed() {
    let sources = files::all();
    for (path, reason) in rules::LONG_FILES {
        let lines =
            sources.iter().find(|source| source.path == *path).map(|source| source.text.lines().count());
        let needed = lines.is_some_and(|lines| lines > rules::MAX_LINES);
        assert!(needed, "{path} is listed as long ({reason}) and is not: take it off LONG_FILES.");
    }
}

#[test]
fn files_start_with_what_they_are() {
    tidy(rules::header);
}

#[test]
fn public_items_are_documented() {
    tidy(rules::documentation);
}

#[test]
fn libraries_do_not_print() {
    tidy(rules::printing);
}

#[test]
fn libraries_do_not_read_the_environment() {
    tidy(rules::environment);
}

#[test]
fn queues_are_bounded() {
    tidy(rules::queues);
}

#[test]
fn unsafe_code_stays_in_its_two_places() {
    tidy(rules::unsafety);
}

#[test]
fn messages_do_not_name_pages_of_the_repository() {
    tidy(rules::pages);
}

#[test]
fn tests_do_not_sleep_to_wait() {
    tidy(rules::sleeping);
}
