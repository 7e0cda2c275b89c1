//! Programs that read files which their words do not name: those below a directory.
//!
//! Operands are distinguished from options and their values. If that is uncertain, every word may be an
//! operand, and the working directory counts as one.

use super::git;
use crate::command::programs::{EXEC, FINDERS};
use crate::command::{Part, Word, listed};

/// Programs that search the working directory if no operand names another.
const SEARCHERS: &str = "rg ripgrep ag ack ugrep ug rgrep";

/// Programs that search directories only with an option.
const GREPS: &str = "grep egrep fgrep ggrep zgrep zegrep zfgrep bzgrep xzgrep zstdgrep lzgrep";

/// Programs that read everything below the directories that they name.
const COPIERS: &str = "\
    tar bsdtar gtar zip 7z 7za 7zz rar rsync scp sftp pax cpio rclone restic borg duplicity diff sdiff colordiff";

struct Syntax {
    values: &'static str,
    /// Long options that take a value, in the same word or in the next.
    long_values: &'static str,
    /// Long options without a value. If the list is empty, no option outside of `long_values` has a value.
    long_flags: &'static str,
    /// Options that take the search pattern, which otherwise is the first operand.
    patterns: &'static [&'static str],
}

const GREP: Syntax = Syntax {
    values: "ABCDdefm",
    long_values: "\
        regexp file max-count label after-context before-context context directories devices include exclude exclude-from \
        exclude-dir binary-files group-separator",
    long_flags: "\
        extended-regexp fixed-strings basic-regexp perl-regexp ignore-case no-ignore-case word-regexp line-regexp \
        null-data no-messages invert-match version help byte-offset line-number line-buffered with-filename no-filename \
        only-matching quiet silent text recursive dereference-recursive files-without-match files-with-matches count \
        initial-tab unix-byte-offsets null no-group-separator color colour binary",
    patterns: &["e", "f", "regexp", "file"],
};

const RIPGREP: Syntax = Syntax {
    values: "ABCdeEfgjmMrtT",
    long_values: "\
        after-context before-context color colors context context-separator dfa-size-limit encoding engine \
        field-context-separator field-match-separator file glob iglob ignore-file max-columns max-count max-depth maxdepth \
        max-filesize path-separator pre pre-glob regex-size-limit regexp replace sort sortr threads type type-add type-clear \
        type-not hostname-bin hyperlink-format generate",
    long_flags: "",
    patterns: &["e", "f", "regexp", "file", "files", "type-list"],
};

const DIFF: Syntax = Syntax {
    values: "CFILUWxXS",
    long_values: "\
        width label tabsize exclude exclude-from starting-file from-file to-file ignore-matching-lines horizon-lines palette \
        show-function-line",
    long_flags: "",
    patterns: &[],
};

#[derive(Default)]
struct Arguments<'a> {
    /// Options, each with its value; `None` for an option without a value.
    options: Vec<(String, Option<&'a str>)>,
    operands: Vec<&'a str>,
    unclear: bool,
}

impl<'a> Arguments<'a> {
    fn new(words: &[&'a str], syntax: &Syntax, has_pattern: bool) -> Self {
        let mut arguments = Self::default();
        let mut left = words.iter().copied();
        while let Some(word) = left.next() {
            match word.strip_prefix('-') {
                None | Some("") => arguments.operands.push(word),
                Some("-") => arguments.operands.extend(left.by_ref()),
                Some(option) => match option.strip_prefix('-') {
                    Some(long) => arguments.add_long(long, syntax, &mut left),
                    None => arguments.add_short(option, syntax, &mut left),
                },
            }
        }
        let given = |(name, _): &(String, Option<&str>)| syntax.patterns.contains(&name.as_str());
        if arguments.unclear {
            arguments.operands = words.iter().copied().filter(|word| !word.starts_with('-')).collect();
        } else if has_pattern && !arguments.options.iter().any(given) && !arguments.operands.is_empty() {
            arguments.operands.remove(0);
        }
        arguments
    }

    fn add_long(&mut self, long: &'a str, syntax: &Syntax, left: &mut impl Iterator<Item = &'a str>) {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let takes = listed(syntax.long_values, name);
        self.unclear |= !takes && !syntax.long_flags.is_empty() && !listed(syntax.long_flags, name);
        let value = if takes && value.is_none() { left.next() } else { value };
        // Some versions accept a value only after `=`. For them, the next word is another option.
        self.unclear |= takes && !long.contains('=') && value.is_some_and(|value| value.starts_with('-'));
        self.options.push((name.to_owned(), value));
    }

    fn add_short(&mut self, letters: &'a str, syntax: &Syntax, left: &mut impl Iterator<Item = &'a str>) {
        for (at, letter) in letters.char_indices() {
            let rest = &letters[at + letter.len_utf8()..];
            if syntax.values.contains(letter) {
                let value = if rest.is_empty() { left.next() } else { Some(rest) };
                self.options.push((letter.to_string(), value));
                return;
            }
            self.options.push((letter.to_string(), None));
        }
    }

    fn has(&self, names: &[&str]) -> bool {
        self.options.iter().any(|(name, _)| names.contains(&name.as_str()))
    }

    fn values(&self, names: &[&str]) -> Vec<&'a str> {
        let named = self.options.iter().filter(|(name, _)| names.contains(&name.as_str()));
        named.filter_map(|(_, value)| *value).collect()
    }

    /// Returns `true` if `grep` searches directories. Abbreviations of long options also count.
    fn recurses(&self) -> bool {
        let long = |name: &str| {
            let begins = |whole: &str| name.len() > 1 && whole.starts_with(name);
            begins("recursive") || begins("dereference-recursive") || begins("directories")
        };
        self.has(&["r", "R"])
            || self.values(&["d"]).iter().any(|value| value.starts_with("rec"))
            || self.options.iter().any(|(name, _)| long(name))
    }
}

/// The files below directories that a read-only program reads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Search {
    /// Operands of the program. The list is empty if the program searches the working directory.
    pub(crate) operands: Vec<String>,
    pub(crate) depth: Depth,
    /// File name patterns that limit which files are read.
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The operands themselves. They must be in a root.
    Named,
    Directory,
    /// Everything below the operands except hidden files.
    Visible,
    /// Everything below the operands, including hidden files.
    All,
    /// Everything below the operands, and the targets of links in them.
    Linked,
}

/// Returns the files below directories that a program reads. The words must be known and read-only.
pub(crate) fn search(argv: &[Word]) -> Option<Search> {
    let (program, rest) = argv.split_first()?;
    let words: Vec<&str> = rest.iter().map(|word| word.text.as_str()).collect();
    match super::name(program) {
        "grep" | "egrep" | "fgrep" => grep_search(&words),
        "rg" => Some(ripgrep_search(&words)),
        "diff" => Some(diff_search(&words)),
        "git" => git::diff_operands(&words).map(|operands| git_search(&operands)),
        "ls" => {
            let recurses = has_option(&words, 'R', "recursive");
            (recurses && has_option(&words, 'L', "dereference")).then(Search::linked)
        }
        "tree" => has_option(&words, 'l', "").then(Search::linked),
        "du" => has_option(&words, 'L', "dereference").then(Search::linked),
        "find" => words.iter().any(|word| matches!(*word, "-L" | "-H" | "-follow")).then(Search::linked),
        _ => None,
    }
}

fn grep_search(words: &[&str]) -> Option<Search> {
    let arguments = Arguments::new(words, &GREP, true);
    if arguments.unclear || arguments.has(&["R", "dereference-recursive"]) {
        return Some(Search::linked());
    }
    if !arguments.recurses() {
        return None;
    }
    // If `--exclude` comes before `--include`, `grep` also searches files that match no pattern.
    let is_limited = !arguments.has(&["exclude", "exclude-from"]);
    let names = if is_limited { arguments.values(&["include"]) } else { Vec::new() };
    Some(Search { operands: owned(&arguments.operands), depth: Depth::All, names: owned(&names) })
}

fn ripgrep_search(words: &[&str]) -> Search {
    const WIDER: &[&str] = &["u", ".", "hidden", "unrestricted", "type-add", "ignore-file"];
    let arguments = Arguments::new(words, &RIPGREP, true);
    if arguments.unclear || arguments.has(&["L", "follow"]) {
        return Search::linked();
    }
    let is_ignored = |(name, _): &(String, Option<&str>)| name.starts_with("no-ignore");
    let wide = arguments.has(WIDER) || arguments.options.iter().any(is_ignored);
    // A pattern that selects files also selects hidden files.
    let globs = arguments.values(&["g", "glob", "iglob"]);
    let names: Vec<&str> = globs.into_iter().filter(|glob| !glob.starts_with('!')).collect();
    let depth = if wide { Depth::All } else { Depth::Visible };
    Search { operands: owned(&arguments.operands), depth, names: owned(&names) }
}

fn diff_search(words: &[&str]) -> Search {
    let arguments = Arguments::new(words, &DIFF, false);
    // An option may name further files or directories, which are unknown.
    if arguments.unclear || arguments.has(&["from-file", "to-file"]) {
        return Search::linked();
    }
    let depth = match () {
        () if !arguments.has(&["r", "recursive"]) => {
            // With these options, a file that is in only one of the directories is shown completely.
            let shows_all = arguments.has(&["N", "P", "new-file", "unidirectional-new-file"]);
            if shows_all { Depth::All } else { Depth::Directory }
        }
        () if arguments.has(&["no-dereference"]) => Depth::All,
        () => Depth::Linked,
    };
    Search { operands: owned(&arguments.operands), depth, names: Vec::new() }
}

/// Returns the files that `git diff` reads. Outside of a work tree, the first two operands can be any files
/// or directories.
fn git_search(operands: &[&str]) -> Search {
    let has_revision = operands.iter().take(2).any(|operand| git::is_revision(operand));
    let depth = if operands.len() < 2 || has_revision { Depth::Named } else { Depth::All };
    Search { operands: owned(operands), depth, names: Vec::new() }
}

impl Search {
    fn linked() -> Self {
        Self { operands: Vec::new(), depth: Depth::Linked, names: Vec::new() }
    }
}

/// Returns `true` if an option may be among the words. The value of another option also counts.
fn has_option(words: &[&str], letter: char, long: &str) -> bool {
    words.iter().any(|word| match word.strip_prefix("--") {
        Some(name) => !long.is_empty() && name == long,
        None => word.strip_prefix('-').is_some_and(|letters| letters.contains(letter)),
    })
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Which directories a program reads although its words do not name their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descent {
    /// Only directories below operands.
    Named,
    WorkingDirectory,
}

/// Returns which directories a program of this part may read recursively. `None` if the program is not known
/// to do that.
pub(crate) fn descent(part: &Part) -> Option<Descent> {
    let mut found = None;
    for start in &part.starts {
        let Some((program, rest)) = part.words.get(*start..).and_then(<[Word]>::split_first) else {
            continue;
        };
        let Some(name) = program.program() else { continue };
        match descent_of(&name, rest) {
            Some(Descent::WorkingDirectory) => return Some(Descent::WorkingDirectory),
            other => found = found.or(other),
        }
    }
    found
}

/// Returns the directories below which a `find` in this part may change everything: with `-delete`, or by a
/// program that does more than read.
pub(crate) fn changed_below(part: &Part) -> Vec<Word> {
    let mut found = Vec::new();
    for start in &part.starts {
        let Some((program, rest)) = part.words.get(*start..).and_then(<[Word]>::split_first) else {
            continue;
        };
        let Some(name) = program.program().filter(|name| listed(FINDERS, name) && may_change(rest)) else {
            continue;
        };
        let is_start = |word: &&Word| word.open.is_some() || !word.text.starts_with(['-', '(', '!', ')']);
        // Values of options may be among the returned directories, which does no harm.
        let end = rest.iter().position(|word| listed(EXEC, &word.text) || word.text == "-delete");
        found.extend(rest[..end.unwrap_or(rest.len())].iter().filter(is_start).cloned());
        let first = rest.iter().find(|word| !listed("-H -L -P", &word.text));
        // The first operand of `fd` is a pattern, not a directory.
        if name.starts_with("fd") || first.is_none_or(|word| !is_start(&word)) {
            found.push(Word::known("."));
        }
    }
    found
}

/// Returns `true` if a `find` with these words deletes the files that it finds, or runs a program that may
/// change them.
fn may_change(words: &[Word]) -> bool {
    words.iter().enumerate().any(|(at, word)| {
        let is_filled = word.text.contains("{}");
        if word.open.is_some() && word.may_be_option() && !is_filled || word.text == "-delete" {
            return true;
        }
        let is_end = |word: &&Word| !matches!(word.text.as_str(), ";" | "\\;" | "+");
        let run: Vec<Word> = words[at + 1..].iter().take_while(is_end).cloned().collect();
        listed(EXEC, &word.text) && !super::looks(&run)
    })
}

fn descent_of(name: &str, rest: &[Word]) -> Option<Descent> {
    let words: Vec<&str> = rest.iter().map(|word| word.text.as_str()).collect();
    let unless = |named: bool| if named { Descent::Named } else { Descent::WorkingDirectory };
    match name {
        name if listed(COPIERS, name) => Some(Descent::Named),
        name if listed(SEARCHERS, name) => {
            let arguments = Arguments::new(&words, &RIPGREP, true);
            Some(unless(!arguments.unclear && !arguments.operands.is_empty()))
        }
        name if listed(GREPS, name) => {
            let arguments = Arguments::new(&words, &GREP, true);
            let unknown = rest.iter().any(|word| word.open.is_some() && word.may_be_option());
            match arguments.recurses() {
                true => Some(unless(!arguments.unclear && !arguments.operands.is_empty())),
                false => unknown.then_some(Descent::Named),
            }
        }
        "git" if words.contains(&"grep") => {
            let end = words.iter().position(|word| *word == "--");
            Some(unless(end.is_some_and(|end| end + 1 < words.len())))
        }
        name if listed(FINDERS, name) => {
            words.iter().any(|word| listed(EXEC, word)).then(|| {
                let named = words.iter().take_while(|word| !word.starts_with(['-', '(', '!'])).count();
                // The first operand of `fd` is a pattern, not a directory.
                unless(named > usize::from(name.starts_with("fd")))
            })
        }
        _ => None,
    }
}
