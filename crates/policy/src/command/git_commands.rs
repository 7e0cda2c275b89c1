//! Commands that git runs because they are among the words of a subcommand.

use super::{Word, listed};

struct CommandOptions {
    subcommands: &'static str,
    /// Option letters whose value is a command.
    letters: &'static str,
    /// Other option letters that take a value. In a word of option letters, the rest after such a letter is
    /// the value.
    others: &'static str,
    /// Long options whose value is a command. Any abbreviation counts.
    names: &'static str,
    /// `true` if the value of an option must be in the same word as the option.
    is_attached: bool,
}

const fn options(
    subcommands: &'static str,
    letters: &'static str,
    others: &'static str,
    names: &'static str,
) -> CommandOptions {
    CommandOptions { subcommands, letters, others, names, is_attached: false }
}

const OPTIONS: &[CommandOptions] = &[
    options("archive", "", "o", "exec"),
    options("clone", "u", "bcjo", "upload-pack"),
    options("daemon", "", "", "access-hook"),
    options("difftool", "x", "tUOSGlI", "extcmd"),
    options("fetch pull", "", "joXsSr", "upload-pack"),
    options("fetch-pack ls-remote peek-remote", "", "o", "upload-pack exec"),
    options("filter-branch", "", "d", FILTERS),
    CommandOptions { is_attached: true, ..options("grep", "O", "ABCefm", "open-files-in-pager") },
    options("instaweb web--browse", "b", "pm", "browser httpd"),
    options("push send-pack", "", "o", "receive-pack exec"),
    options("rebase", "x", "CsSX", "exec"),
    options("send-email", "", "", "cc-cmd header-cmd sendmail-cmd smtp-server to-cmd"),
    options("svn", "", "A", "authors-prog"),
];

const FILTERS: &str = "\
    setup subdirectory-filter env-filter tree-filter index-filter parent-filter msg-filter commit-filter tag-name-filter";

/// Nested subcommands after which options and a command follow.
const RUNNERS: &str = "foreach run";

/// Returns the texts that git passes to a shell, because an option or a subcommand of [`RUNNERS`] precedes
/// them.
pub(super) fn option_texts(words: &[Word]) -> Vec<&str> {
    let mut texts = Vec::new();
    for table in OPTIONS {
        let is_one = |word: &Word| {
            let name = word.text.rsplit('/').next().unwrap_or_default();
            listed(table.subcommands, name.strip_prefix("git-").unwrap_or(name))
        };
        let Some(subcommand) = words.iter().position(is_one) else { continue };
        for (at, word) in words.iter().enumerate().skip(subcommand + 1) {
            let next = || words.get(at + 1).filter(|_| !table.is_attached);
            match value(&word.text, table) {
                Some("") => texts.extend(next().map(|word| word.text.as_str())),
                Some(value) => texts.push(value),
                None => {}
            }
        }
    }
    // A command of a single word is a program, which is judged separately.
    let lines = runner_starts(words).map(|at| words[at].text.as_str());
    texts.extend(lines.filter(|text| text.contains([' ', ';', '&', '|', '$', '`', '\n'])));
    texts
}

/// Returns the indexes at which the commands after [`RUNNERS`] begin.
pub(super) fn runner_starts(words: &[Word]) -> impl Iterator<Item = usize> + '_ {
    let runners = words.iter().enumerate().filter(|(_, word)| listed(RUNNERS, &word.text));
    runners.filter_map(|(at, _)| (at + 1..words.len()).find(|at| !words[*at].is_option()))
}

/// Returns the command in the word of an option. The result is empty if the next word is the command, and
/// `None` if the word is no such option.
fn value<'a>(word: &'a str, table: &CommandOptions) -> Option<&'a str> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').unwrap_or((long, ""));
        let is_one = |wanted: &str| !name.is_empty() && wanted.starts_with(name);
        return table.names.split(' ').any(is_one).then_some(value);
    }
    let letters = word.strip_prefix('-')?;
    let at = letters.find(|letter: char| table.letters.contains(letter) || table.others.contains(letter))?;
    let letter = letters[at..].chars().next()?;
    table.letters.contains(letter).then(|| &letters[at + letter.len_utf8()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_options_are_found_in_every_spelling() {
        for (line, expected) in [
            ("git rebase -xmake", &["make"][..]),
            ("git rebase -ixmake", &["make"]),
            ("git rebase -ix make", &["make"]),
            ("git rebase --ex make", &["make"]),
            ("git rebase --exec=make", &["make"]),
            ("git rebase -Cx -sx", &[]),
            ("git difftool -yxmake", &["make"]),
            ("git difftool --ext=make", &["make"]),
            ("git clone -umake", &["make"]),
            ("git clone -bu", &[]),
            ("git clone --upl make", &["make"]),
            ("/usr/lib/git-core/git-fetch --upload-p=make", &["make"]),
            ("git ls-remote --upload-p=make", &["make"]),
            ("git grep --open=make", &["make"]),
            ("git grep -nOmake", &["make"]),
            ("git grep -O make", &[]),
            ("git submodule foreach -q make;x", &["make;x"]),
            ("git submodule foreach --recursive --quiet make", &[]),
            ("git push -u origin", &[]),
        ] {
            let words: Vec<Word> = line.split(' ').map(Word::known).collect();
            assert_eq!(option_texts(&words), expected, "{line}");
        }
    }
}
