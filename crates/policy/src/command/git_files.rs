//! Files that git changes even if no word names them: its configuration and its hooks.

use super::lexer::is_assignment;
use super::{Part, Word, listed};

/// Options of git itself that take the next word as their value.
const GLOBAL_VALUES: &str =
    "-C -c --git-dir --work-tree --namespace --exec-path --super-prefix --config-env --attr-source";

/// Options of `git config` that take the next word as their value.
const CONFIG_VALUES: &str = "-f --file --blob --type -t --default --comment --value --url";

/// Options with which `git config` only reads. Their abbreviations, and options that begin with `--get-`,
/// also count.
const CONFIG_READS: [&str; 3] = ["--get", "--list", "-l"];

/// Options with which `git config` changes a file.
const CONFIG_WRITES: [&str; 7] =
    ["--add", "--replace-all", "--unset", "--unset-all", "--rename-section", "--remove-section", "--edit"];

/// Returns the files that a git command of this part changes although no word names them. The paths are
/// relative to the command's working directory.
pub(crate) fn git_files(part: &Part) -> Vec<String> {
    let mut files = Vec::new();
    for start in &part.starts {
        let Some((program, rest)) = part.words.get(*start..).and_then(<[Word]>::split_first) else {
            continue;
        };
        match program.program().as_deref() {
            Some("git") => files.extend(changed(rest, &part.words)),
            Some("git-config") => files.extend(configured(rest, ".git")),
            _ => {}
        }
    }
    files
}

fn changed(words: &[Word], all: &[Word]) -> Vec<String> {
    let mut at = 0;
    let mut directory = String::new();
    let mut repository = None;
    let mut has_template = all.iter().any(|word| {
        is_assignment(&word.text)
            && word.text.strip_prefix("GIT_TEMPLATE_DIR=").is_some_and(|value| !value.is_empty())
    });
    while let Some(word) = words.get(at).filter(|word| word.is_option()) {
        let takes = listed(GLOBAL_VALUES, &word.text);
        let value = if takes { words.get(at + 1).map(|word| word.text.as_str()) } else { None };
        match (word.text.as_str(), value) {
            ("-C", Some(value)) => directory = format!("{directory}{value}/"),
            ("--git-dir", Some(value)) => repository = Some(value),
            (text, None) => repository = text.strip_prefix("--git-dir=").or(repository),
            _ => {}
        }
        has_template |=
            value.is_some_and(|value| value.to_ascii_lowercase().starts_with("init.templatedir="));
        at += if takes { 2 } else { 1 };
    }
    let Some((subcommand, rest)) = words.get(at..).and_then(<[Word]>::split_first) else { return Vec::new() };
    let mut repositories = vec![format!("{directory}.git")];
    repositories.extend(repository.map(|path| format!("{directory}{path}")));
    match subcommand.text.as_str() {
        "config" => repositories.iter().flat_map(|repository| configured(rest, repository)).collect(),
        "init" | "clone" | "init-db"
            if has_template || rest.iter().enumerate().any(|at| takes_template(at, rest)) =>
        {
            vec![format!("{directory}.git/hooks")]
        }
        _ => Vec::new(),
    }
}

/// Returns `true` if the word at this index makes git copy files of another directory into a new repository.
fn takes_template((at, word): (usize, &Word), words: &[Word]) -> bool {
    let (name, value) = match word.text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word.text.as_str(), words.get(at + 1).map(|next| next.text.as_str())),
    };
    // `--te` can be an abbreviation of `--template`, and no other harmful option begins with it.
    name.len() > 3 && "--template".starts_with(name) && value.is_some_and(|value| !value.is_empty())
}

fn configured(words: &[Word], repository: &str) -> Vec<String> {
    let is = |word: &Word, list: &[&str]| {
        list.iter().any(|known| {
            word.text == *known
                || word.text.len() > 3 && word.text.starts_with("--") && known.starts_with(&word.text)
        })
    };
    let has = |name: &str| {
        words.iter().any(|word| word.text == name || word.text.len() > 4 && name.starts_with(&word.text))
    };
    let names_file = |word: &Word| {
        ["-f", "--file", "--blob"].contains(&word.text.as_str())
            || word.text.starts_with("--file=")
            || word.text.starts_with("--blob=")
            || word.text.starts_with("-f")
    };
    // If an option names the configuration file, the file is one of the words.
    if words.iter().any(names_file) {
        return Vec::new();
    }
    let mut operands: Vec<&Word> = Vec::new();
    let mut left = words.iter();
    while let Some(word) = left.next() {
        match word.is_option() {
            true if listed(CONFIG_VALUES, &word.text) => _ = left.next(),
            true => {}
            false => operands.push(word),
        }
    }
    let reads = words.iter().any(|word| is(word, &CONFIG_READS) || word.text.starts_with("--get-"))
        || operands.first().is_some_and(|word| listed("list get", &word.text));
    let first = operands.first().map_or("", |word| word.text.as_str());
    let writes = words.iter().any(|word| is(word, &CONFIG_WRITES) || word.text == "-e")
        || listed("set unset rename-section remove-section edit", first)
        || operands.len() > 1
        || operands.iter().any(|word| word.splits.is_some());
    if reads && !words.iter().any(|word| is(word, &CONFIG_WRITES)) || !writes {
        return Vec::new();
    }
    match () {
        () if has("--global") => vec!["~/.gitconfig".to_owned()],
        () if has("--system") => vec!["/etc/gitconfig".to_owned()],
        () => vec![format!("{repository}/config")],
    }
}
