//! Programs that are not read-only, but do not change the files that they name.
//!
//! Their options are listed too: `less -oFILE` writes, and an option of the next version may, too.

use super::name;
use super::options::Options;
use crate::command::Word;

/// Programs, each with the options with which it does not write to a file that it names.
const PROGRAMS: &[(&str, Options)] = &[
    (
        "bat",
        Options::new(
            "AfnpPrsSu",
            "HlmtT",
            "show-all plain language highlight-line file-name diff diff-context tabs wrap terminal-width number color \
             italic-text decorations paging map-syntax theme theme-light theme-dark style line-range list-languages \
             list-themes unbuffered help version",
        ),
    ),
    ("cd", Options::new("LPe@q", "", "")),
    (
        "column",
        Options::new(
            "eJLnRtx",
            "cCEHNoOrsTW",
            "json table table-name table-order table-columns table-noextreme table-noheadings table-maxout \
             table-right table-truncate table-wrap keep-empty-lines output-width output-separator separator fillrows",
        ),
    ),
    (
        "jq",
        Options::new(
            "aCcehjMnRrsSV",
            "fL",
            "arg argjson args ascii-output color-output compact-output exit-status from-file help indent join-output \
             jsonargs monochrome-output null-input raw-input raw-output raw-output0 rawfile seq slurp slurpfile sort-keys \
             stream stream-errors tab unbuffered version",
        ),
    ),
    (
        "less",
        Options::new(
            "aeEfFgGiIJKLmMnNqQrRsSuUVwWX~?",
            "bhjpPxyz",
            "chop-long-lines ignore-case line-numbers no-init quit-at-eof quit-if-one-screen raw-control-chars RAW-CONTROL-CHARS squeeze-blank-lines version help",
        ),
    ),
    (
        "more",
        Options::new(
            "dlefpcsu",
            "n",
            "silent logical exit-on-eof no-pause print-over clean-print squeeze plain lines help version",
        ),
    ),
    ("pushd", Options::new("nqLP", "", "")),
    ("type", Options::new("afptPwS", "", "")),
];

/// Subcommands of git that do not change the files they name. Read-only subcommands are listed elsewhere.
const GIT: &[(&str, Options)] = &[
    ("add", ADD),
    ("stage", ADD),
    (
        "commit",
        Options::new(
            "aenopqsSuvz",
            "cCFmt",
            "all patch reuse-message reedit-message fixup squash reset-author short branch porcelain long null file \
             author date message template signoff no-signoff trailer no-verify verify allow-empty allow-empty-message \
             cleanup edit no-edit amend no-post-rewrite include only pathspec-from-file pathspec-file-nul \
             untracked-files verbose quiet dry-run status no-status gpg-sign no-gpg-sign",
        ),
    ),
    ("check-ignore", Options::new("qvnz", "", "quiet verbose stdin non-matching no-index")),
    ("check-attr", Options::new("az", "", "all cached stdin source")),
    (
        "grep",
        Options::new(
            "acEFGhHiIlLnopPqrvwWz0123456789",
            "ABCefm",
            "cached untracked no-index exclude-standard no-exclude-standard recurse-submodules invert-match ignore-case \
             word-regexp text textconv no-textconv max-depth recursive no-recursive extended-regexp basic-regexp \
             fixed-strings perl-regexp line-number column full-name files-with-matches name-only files-without-match null \
             only-matching count color no-color break heading show-function context after-context before-context \
             function-context max-count threads and or not all-match quiet",
        ),
    ),
];

const ADD: Options = Options::new(
    "AeEfinNpuv",
    "",
    "all no-all ignore-removal no-ignore-removal update patch interactive verbose force dry-run intent-to-add refresh \
     renormalize sparse ignore-errors ignore-missing chmod pathspec-from-file pathspec-file-nul",
);

/// Returns `true` if a program with these words does not change the files that the words name.
pub(crate) fn leaves_files(argv: &[Word]) -> bool {
    let Some((program, rest)) = argv.split_first() else { return false };
    let rest: Vec<&str> = rest.iter().map(|word| word.text.as_str()).collect();
    let listed = |table: &[(&str, Options)], name: &str, words: &[&str]| {
        table.iter().find(|(known, _)| *known == name).is_some_and(|(_, options)| options.permits(words))
    };
    match (name(program), &rest[..]) {
        ("git", [subcommand, rest @ ..]) => listed(GIT, subcommand, rest),
        // In `less` and `more`, `+command` runs a command at the start.
        ("less" | "more", words) if words.iter().any(|word| word.starts_with('+')) => false,
        (name, words) => listed(PROGRAMS, name, words),
    }
}
