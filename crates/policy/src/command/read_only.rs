//! Commands that only read: a short list of programs, with the arguments with which they certainly do nothing
//! else.
//!
//! Every other command counts as not read-only. Options are listed too, because the next version of a program
//! may have one that writes a file or runs a command. Only a program without any such use accepts every
//! argument.

mod builtins;
mod git;
mod non_writing;
mod options;
mod recursive;

use super::{Script, Word};
pub(super) use builtins::takes_texts;
pub(crate) use non_writing::leaves_files;
use options::{Arguments, PROGRAMS};
pub(crate) use recursive::{Depth, Descent, Search, changed_below, descent};

pub(crate) fn is_read_only(script: &Script) -> bool {
    read_only_words(script).is_some_and(looks)
}

/// Returns `true` if the command reads a git repository. The directory determines the repository and its
/// configuration.
pub(crate) fn depends_on_directory(script: &Script) -> bool {
    read_only_words(script).and_then(|argv| argv.first()).is_some_and(|program| name(program) == "git")
}

/// Returns the directories and files that a read-only command searches, if it searches any.
pub(crate) fn search(script: &Script) -> Option<Search> {
    read_only_words(script).and_then(recursive::search)
}

/// Returns the words of a command that runs a single program and does nothing else.
fn read_only_words(script: &Script) -> Option<&[Word]> {
    let mut parts = script.parts.iter().filter(|part| !part.wraps);
    let (Some(part), None) = (parts.next(), parts.next()) else { return None };
    let alone = script.plain && !script.lost && part.sure && part.writes.is_empty() && part.reads.is_empty();
    alone.then(|| part.argv())
}

/// Returns `true` if a program with these words only reads.
pub(crate) fn looks(argv: &[Word]) -> bool {
    let Some((program, rest)) = argv.split_first() else { return false };
    let rest: Vec<&str> = rest.iter().map(|word| word.text.as_str()).collect();
    match name(program) {
        "git" => git::reads(&rest),
        "find" => options::find_reads(&rest),
        "[" => builtins::bracket_reads(&rest),
        "test" => builtins::test_reads(&rest),
        "printf" => builtins::printf_reads(&rest),
        "date" => options::date_reads(&rest),
        name if options::reads_response_file(name, &rest) => false,
        name => match PROGRAMS.iter().find(|(known, _)| *known == name) {
            None => false,
            Some((_, Arguments::Any)) => true,
            Some((_, Arguments::Listed(list))) => list.permits(&rest),
        },
    }
}

/// Returns the name of a program. A directory is removed if its programs are known by their names.
fn name(program: &Word) -> &str {
    ["/bin/", "/usr/bin/"]
        .iter()
        .find_map(|directory| program.text.strip_prefix(directory))
        .unwrap_or(&program.text)
}
