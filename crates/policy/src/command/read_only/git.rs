//! Subcommands of git that only read, with the options that neither write a file nor run a program.
//!
//! Git runs programs named in its configuration, so options that select another repository or configuration
//! are not listed.

/// Subcommands that only read if all their options are in [`SHORT`] or [`LONG`].
const SUBCOMMANDS: &[&str] = &[
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

/// Letters of short options, which can be combined. A number or value may follow.
const SHORT: &str = "abcdefghilmnpqrstuvwzABCDEFGLMNPRSUWZ";

/// Long options. Each of them may have any value or none.
const LONG: &str = "\
    abbrev abbrev-commit abbrev-ref absolute-git-dir after ahead-behind all all-match always anchored \
    ancestry-path author author-date-order before binary boundary branch branches break-rewrites cached \
    candidates cc cherry cherry-mark cherry-pick children clear-decorations color color-lines color-moved \
    color-moved-ws color-words column combined-all-paths committer compact-summary contains count cumulative \
    cut-after-cwd date date-order debug decorate decorate-refs decorate-refs-exclude deduplicate default deleted \
    diff-algorithm diff-filter diff-merges directory dirstat dirstat-by-file do-walk encode-email-headers \
    encoding eol error-unmatch exact-match exclude exclude-first-parent-only \
    exclude-standard exit-code extended-regexp find-copies find-copies-harder find-object \
    find-renames first-parent fixed-strings flags follow full-diff full-history full-index full-name full-tree \
    function-context git-common-dir git-dir git-path glob graph grep grep-reflog group header histogram \
    ignore-all-space ignore-blank-lines ignore-case ignore-cr-at-eol ignore-matching-lines ignore-missing \
    ignore-rev ignore-space-at-eol ignore-space-change ignore-submodules ignored incremental indent-heuristic \
    indexed-objects inter-hunk-context invert-grep irreversible-delete is-bare-repository is-inside-git-dir \
    is-inside-work-tree is-shallow-repository left-only left-right line-porcelain line-prefix local-env-vars \
    log-size long mailmap match max-count max-parents merge-base merged merges min-parents minimal modified \
    name-only name-status no-abbrev no-abbrev-commit no-ahead-behind no-color no-color-moved no-column \
    no-decorate no-empty-directory no-expand-tabs no-ext-diff no-follow no-indent-heuristic no-mailmap \
    no-max-parents no-merges no-min-parents no-notes no-patch no-prefix no-relative no-rename-empty no-renames \
    no-textconv no-use-mailmap no-walk not null numbered numstat object-only oneline others parents \
    patch patch-with-raw patch-with-stat patience path-format perl-regexp pickaxe-all pickaxe-regex \
    porcelain pretty quiet raw reflog refs regexp-ignore-case relative relative-date remotes remove-empty \
    rename-empty resolve-git-dir reverse right-only root score-debug shared-index-path short shortstat \
    show-cdup show-email show-name show-number show-object-format show-prefix show-pulls show-ref-format \
    show-stash show-toplevel simplify-by-decoration simplify-merges since \
    since-as-filter single-worktree skip source sparse src-prefix dst-prefix stage staged stat stat-count \
    stat-graph-width stat-name-width stat-width stdin summary symbolic \
    symbolic-full-name tag tags text timestamp topo-order unified unmerged untracked-files until \
    use-mailmap verbose verify walk-reflogs word-diff word-diff-regex ws-error-highlight";

/// Values of `--diff-merges` with which git does not perform a merge.
const DIFF_MERGES: &[&str] =
    &["off", "none", "on", "m", "first-parent", "1", "separate", "combined", "c", "dense-combined", "cc"];

fn without_global_options<'a, 'b>(mut words: &'b [&'a str]) -> &'b [&'a str] {
    while let ["--no-pager" | "-P" | "--no-optional-locks" | "--literal-pathspecs", after @ ..] = words {
        words = after;
    }
    words
}

/// Returns the operands that `git diff` may compare, which are all words other than options. `None` if these
/// words do not run `git diff`.
///
/// Separate values of options are included. Two operands are compared as files or directories, as with
/// `--no-index`, if one of them is outside of the work tree, or if there is no repository.
pub(super) fn diff_operands<'a>(words: &[&'a str]) -> Option<Vec<&'a str>> {
    let ["diff", rest @ ..] = without_global_options(words) else { return None };
    let end = rest.iter().position(|word| *word == "--").unwrap_or(rest.len());
    let before = rest[..end].iter().filter(|word| !word.starts_with('-'));
    Some(before.chain(rest[end..].iter().filter(|word| **word != "--")).copied().collect())
}

/// Returns `true` if a word has the form of a revision, which a path hardly has.
pub(super) fn is_revision(word: &str) -> bool {
    let is_hash = (7..=64).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_path = word.starts_with(['.', '/', '~']);
    let is_derived = ["..", "~", "^", "@{"].iter().any(|sign| word.contains(sign));
    let is_named = matches!(word, "HEAD" | "@" | "master")
        || ["origin/", "upstream/", "refs/"].iter().any(|start| word.starts_with(start));
    is_hash || !is_path && !word.contains("../") && (is_derived || is_named)
}

pub(super) fn reads(words: &[&str]) -> bool {
    let Some((subcommand, rest)) = without_global_options(words).split_first() else { return false };
    let only = |allowed: &[&str]| rest.iter().all(|word| allowed.contains(word));
    match *subcommand {
        "branch" => only(&[
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
        ]),
        "tag" => only(&["-l", "--list", "-n", "--no-color"]),
        "remote" => only(&["-v", "--verbose"]),
        "stash" => rest == ["list"],
        "reflog" | "version" | "--version" => rest.is_empty(),
        "cat-file" => matches!(rest, ["-p" | "-t" | "-s" | "-e", object] if !object.starts_with('-')),
        // `git blame -S` reads a file of revisions, and prints lines of the file that are not revisions.
        "blame" if rest.iter().any(|word| word.starts_with("-S")) => false,
        // `--` may be the value of the option before, and then further options may follow.
        name if SUBCOMMANDS.contains(&name) => rest.iter().all(|word| *word == "--" || is_harmless(word)),
        _ => false,
    }
}

fn is_harmless(word: &str) -> bool {
    // `%G` in a format makes git run a program that checks signatures.
    let signed = |rest: &str| rest.trim_start_matches(['+', '-', ' ']).starts_with('G');
    if word.split('%').skip(1).any(signed) {
        return false;
    }
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        // The value `remerge` repeats a merge, which writes files and runs merge drivers. The value may be in
        // the next word.
        if name == "diff-merges" {
            return value.is_some_and(|value| DIFF_MERGES.contains(&value));
        }
        return LONG.split(' ').any(|known| known == name) || name == "format";
    }
    // Every letter must be listed, even if it is part of a value: what looks like a value may be another
    // option.
    word.strip_prefix('-').is_none_or(|letters| {
        let value = letters.starts_with(['S', 'G', 'L']);
        value || letters.chars().all(|letter| letter.is_ascii_digit() || SHORT.contains(letter))
    })
}
