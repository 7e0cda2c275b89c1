//! Commands that only look: a short list, and for each program what it must not be given.

use super::{Script, Word};

/// What a program may be given to still be one that only looks.
enum Given {
    /// Anything.
    Anything,
    /// Anything but these options, in full, shortened, or with a value.
    Without(&'static [&'static str]),
    /// At most so many words that are no options.
    AtMost(usize),
}

use Given::{Anything, AtMost, Without};

/// Programs, and what they may be given.
const PROGRAMS: &[(&str, Given)] = &[
    ("[", Anything),
    ("basename", Anything),
    ("cat", Anything),
    ("cksum", Anything),
    ("cmp", Anything),
    ("comm", Anything),
    ("cut", Without(&["--output-file"])),
    ("date", Without(&["-s", "--set"])),
    ("df", Anything),
    ("diff", Without(&["--output"])),
    ("dirname", Anything),
    ("du", Anything),
    ("echo", Anything),
    ("egrep", Anything),
    ("false", Anything),
    ("fgrep", Anything),
    ("file", Without(&["-C", "--compile"])),
    (
        "find",
        Without(&[
            "-delete",
            "-exec",
            "-execdir",
            "-ok",
            "-okdir",
            "-fprint",
            "-fprint0",
            "-fprintf",
            "-fls",
            "-files0-from",
        ]),
    ),
    ("grep", Anything),
    ("head", Anything),
    ("hexdump", Anything),
    ("hostname", AtMost(0)),
    ("id", Anything),
    ("ls", Anything),
    ("md5sum", Anything),
    ("nl", Anything),
    ("od", Anything),
    ("printf", Anything),
    ("pwd", Anything),
    ("readlink", Anything),
    ("realpath", Anything),
    ("rg", Without(&["--pre", "--hostname-bin", "-z", "--search-zip"])),
    ("sha1sum", Anything),
    ("sha256sum", Anything),
    ("sha512sum", Anything),
    ("stat", Anything),
    ("strings", Anything),
    ("tail", Anything),
    ("test", Anything),
    ("tr", Anything),
    ("tree", Without(&["-o", "--output"])),
    ("true", Anything),
    ("uname", Anything),
    ("uniq", AtMost(1)),
    ("wc", Anything),
    ("which", Anything),
    ("whoami", Anything),
];

/// Subcommands of git that only look, if they are not given one of [`GIT_OUTPUT`].
const GIT: &[&str] = &[
    "status",
    "log",
    "diff",
    "show",
    "blame",
    "describe",
    "ls-files",
    "ls-tree",
    "rev-parse",
    "rev-list",
    "shortlog",
];

/// Options by which git writes files or runs programs.
const GIT_OUTPUT: &[&str] =
    &["--output", "-o", "--ext-diff", "--textconv", "--open-files-in-pager", "--exec", "-O"];

/// Options with which `git branch`, `git tag` and `git remote` only list.
const GIT_LISTING: &[&str] = &[
    "-a",
    "-r",
    "-v",
    "-vv",
    "--list",
    "-l",
    "--all",
    "--remotes",
    "--verbose",
    "--show-current",
    "--no-color",
];

/// Whether the whole command is one program that certainly only looks.
pub(crate) fn is_read_only(script: &Script) -> bool {
    let mut parts = script.parts.iter().filter(|part| !part.wraps);
    let (Some(part), None) = (parts.next(), parts.next()) else { return false };
    script.plain
        && !script.lost
        && part.sure
        && part.writes.is_empty()
        && part.reads.is_empty()
        && looks(part.argv())
}

/// Whether a program that is given these words only looks.
pub(crate) fn looks(argv: &[Word]) -> bool {
    let Some((program, rest)) = argv.split_first() else { return false };
    let name = ["/bin/", "/usr/bin/"]
        .iter()
        .find_map(|directory| program.text.strip_prefix(directory))
        .unwrap_or(&program.text);
    if name == "git" {
        return git_looks(rest);
    }
    let given = PROGRAMS.iter().find(|(known, _)| *known == name).map(|(_, given)| given);
    match given {
        None => false,
        Some(Anything) => true,
        Some(Without(options)) => !rest.iter().any(|word| is_one_of(word, options)),
        Some(AtMost(most)) => rest.iter().filter(|word| !word.is_option()).count() <= *most,
    }
}

/// Whether a word is one of these options: in full, shortened as far as can be, with a value, or among other letters.
fn is_one_of(word: &Word, options: &[&str]) -> bool {
    let name = word.text.split_once('=').map_or(word.text.as_str(), |(name, _)| name);
    options.iter().any(|option| match option.strip_prefix('-') {
        Some(letter) if letter.len() == 1 => {
            word.text.starts_with('-') && !word.text.starts_with("--") && word.text.contains(letter)
        }
        Some(long) if long.starts_with('-') => {
            name.len() > 2 && name.starts_with("--") && option.starts_with(name)
        }
        _ => name == *option,
    })
}

fn git_looks(mut rest: &[Word]) -> bool {
    while let [option, after @ ..] = rest {
        match option.text.as_str() {
            "--no-pager" | "--no-optional-locks" | "--literal-pathspecs" => rest = after,
            "-C" if after.len() > 1 => rest = &after[1..],
            _ => break,
        }
    }
    let Some((subcommand, rest)) = rest.split_first() else { return false };
    let only = |allowed: &[&str]| rest.iter().all(|word| allowed.contains(&word.text.as_str()));
    match subcommand.text.as_str() {
        "branch" | "tag" | "remote" => only(GIT_LISTING),
        "stash" => matches!(rest, [list] if list.text == "list"),
        "reflog" | "version" | "--version" => rest.is_empty(),
        "cat-file" => matches!(rest, [option, _] if ["-p", "-t", "-s", "-e"].contains(&option.text.as_str())),
        name => GIT.contains(&name) && !rest.iter().any(|word| is_one_of(word, GIT_OUTPUT)),
    }
}
