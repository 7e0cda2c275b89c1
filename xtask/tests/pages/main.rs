//! Checks the Markdown pages of the repository: links have targets, and lines are short.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

const MAX_COLUMNS: usize = 100;

/// Pages that users read. Only their line lengths are checked.
const PAGES: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "examples",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a directory") {
            collect(&entry.expect("an entry").path(), found);
        }
    } else if path.extension().is_some_and(|extension| extension == "md") {
        found.push(path.to_owned());
    }
}

fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for page in PAGES {
        collect(&root().join(page), &mut found);
    }
    found.sort();
    assert!(found.len() > PAGES.len(), "the pages were not found");
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a page")
}

/// Returns the lines outside fences and front matter, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut in_fence, mut in_front_matter) = (false, text.starts_with("---\n"));
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(move |(number, line)| {
        let is_front_matter = in_front_matter;
        in_front_matter &= *line != "---" || *number == 1;
        let is_fence = line.trim_start().starts_with("```");
        in_fence ^= is_fence;
        !in_fence && !is_fence && !is_front_matter
    })
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> HashSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    let mut anchors = HashSet::new();
    for (_, heading) in headings {
        let first = anchor(heading.trim_start_matches('#'));
        let mut name = first.clone();
        for number in 1.. {
            if anchors.insert(name) {
                break;
            }
            name = format!("{first}-{number}");
        }
    }
    anchors
}

/// Returns the targets of the links in a line, images included.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// Returns the error of a link on the page at `from`, if it is broken.
fn broken(from: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = target.split_once('#').map_or((target, None), |(file, name)| (file, Some(name)));
    let path = if file.is_empty() { from.to_owned() } else { from.parent().expect("a directory").join(file) };
    if !path.exists() {
        return Some(format!("`{target}`: there is no such file"));
    }
    let name = fragment?;
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    (is_page && !anchors(&read(&path)).contains(name))
        .then(|| format!("`{target}`: there is no such heading"))
}

#[test]
fn links_between_pages_have_targets() {
    let mut problems = Vec::new();
    for page in pages() {
        for (number, line) in prose(&read(&page)) {
            let found = links(line).filter_map(|target| broken(&page, target));
            problems.extend(found.map(|problem| format!("{}:{number}: {problem}", page.display())));
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn lines_of_prose_are_short() {
    let mut problems = Vec::new();
    for page in pages() {
        let text = read(&page);
        for (number, line) in prose(&text) {
            // A long URL cannot be broken into lines.
            let length = line.split("](").next().unwrap_or(line).chars().count();
            if length > MAX_COLUMNS && !line.starts_with('|') {
                problems.push(format!("{}:{number}: {length} columns", page.display()));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# The `run` command\n## A, b & c\n```sh\n# no heading\n```\n## A, b & c\n";
    let expected = ["the-run-command", "a-b--c", "a-b--c-1"].map(str::to_owned);
    assert_eq!(anchors(text), HashSet::from(expected));
}

#[test]
fn a_broken_link_is_found() {
    let readme = root().join("README.md");
    for (target, is_broken) in [
        ("https://example.org/x", false),
        ("docs/README.md", false),
        ("docs/no-such-page.md", true),
        ("docs/README.md#no-such-heading", true),
        ("#documentation", false),
        ("#no-such-heading", true),
        ("docs", false),
    ] {
        assert_eq!(broken(&readme, target).is_some(), is_broken, "{target}");
    }
    let found: Vec<_> = links("[a](b.md) and ![c](d.png), [e](f#g)").collect();
    assert_eq!(found, ["b.md", "d.png", "f#g"]);
}
