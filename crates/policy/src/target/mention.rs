//! Finds paths and URLs among the words of a command.
//!
//! Only the program knows which words are paths. So for rules that forbid, every word that can be a path
//! counts as one. No permission follows from such a word alone.

mod hosts;

use std::collections::HashSet;
use std::rc::Rc;

use super::{Extent, OutputUse, PathBase, Touch};
use crate::address::addresses_in;
use crate::command::{Descent, Literal, Part, Word, changed_below, descent, git_files, leaves_files, listed};
use crate::path::{Step, Steps, resolve};
use crate::protect::may_hold_protected;
use crate::text_pattern::{PatternUnit, TextPattern};

/// Maximum number of different paths that one command may name.
const MAX_PIECES: usize = 10_000;

/// Maximum number of directories with protected paths that one command may name.
const MAX_ENTERED: usize = 16;

/// Maximum number of option letters that are considered at each end of a row of letters. A path may follow
/// each of these letters in the same word.
const MAX_OPTION_LETTERS: usize = 32;

const MAX_PATH_BYTES: usize = 4096;

/// Programs that open none of the files that their words may name.
const SPEAKERS: &str = "echo printf true false";

/// Programs whose words may name programs.
const INTERPRETERS: &str = "\
    awk bun deno gawk groovy jshell julia lua mawk nawk node nodejs osascript perl php psql ruby rscript \
    sed gsed sqlite3 tclsh vim vi nvim ex ed emacs make";

/// Programs that change or remove their operands.
const MUTATORS: &str = "\
    aria2c chattr chmod chown cp csplit curl dd ed ex http https install ln mkdir mv nvim red rm rmdir shred sort split sponge \
    tee touch truncate unlink unzip trash vi vim wget wget2 xh";

/// Programs that change their operands if an option for editing in place is present.
const IN_PLACE_EDITORS: &str = "gsed perl ruby sed";

/// Programs that write files of any names into a directory that they name.
const FILLERS: &str = "7z 7za 7zz bsdcpio cpio patch pax rsync unar unrar";

/// Programs that only read their operands, even if the shell has expanded a pattern to several names.
const READERS: &str = "\
    cat cksum cmp comm cut df du egrep fgrep file grep head hexdump ls md5sum nl od readlink realpath sha1sum sha256sum \
    sha512sum stat strings tail wc";

/// Subcommands of git that do not change their operands.
const GIT_READERS: &str = "add stage status diff log show blame commit ls-files grep";

/// Programs that change or remove files whose names come from another program.
const REMOVERS: &str = "chmod chown mv rm rmdir shred tee truncate unlink trash";

/// Programs whose words are URLs, even if a scheme is missing.
const DOWNLOADERS: &str = "curl wget wget2 aria2c http https xh lynx w3m ssh nc ncat";

/// Characters before a path in words such as `--file=x`, `if=x`, `@x`, `host:x`.
const SEPARATORS: &[char] = &['=', ',', ':', '@'];

/// Separators of words in code.
const PUNCTUATION: &[char] =
    &[' ', '\t', '\n', '\'', '"', '(', ')', '[', ']', '{', '}', '<', '>', ';', '|', '&', '`', '+', '!'];

/// Returns all paths that the words of `part` may stand for. `None` if there are too many.
pub(super) fn touches(
    part: &Part,
    looks: bool,
    output_use: OutputUse,
    bases: &[Steps],
    path_base: PathBase<'_>,
) -> Option<Vec<Touch>> {
    let names: Vec<String> = part.programs().collect();
    let any = |list: &str| names.iter().any(|name| listed(list, name));
    let mut touches = literal_touches(part, bases, path_base)?;
    let speaks =
        output_use == OutputUse::Shown && !part.wild && any(SPEAKERS) && names.len() == 1 && !assigns(part);
    if speaks && part.knows_its_words() {
        return Some(touches);
    }
    let code = any(INTERPRETERS) || names.iter().any(|name| name.starts_with("python"));
    let only_takes = names.len() == 1 && part.knows_its_words() && leaves_files(part.argv());
    // Another command may change a file whose name is printed.
    let printed = output_use == OutputUse::Used && any(SPEAKERS);
    let writes = printed || !looks && !only_takes;
    let itself = writes
        && (any(MUTATORS)
            || fills_directories(part, &names)
            || any(IN_PLACE_EDITORS) && edits_in_place(part));
    let mut all_bases = bases.to_vec();
    if !looks {
        all_bases.extend(entered(part, code, bases, path_base)?);
    }
    for path in git_files(part) {
        touches.extend(resolved(&TextPattern::exact(&path), bases, path_base)?.into_iter().map(|steps| {
            Touch {
                steps,
                claimed: None,
                writes: true,
                itself: true,
                descends: false,
                extent: Extent::Itself,
                expanded: false,
                guarded: true,
                written: path.as_str().into(),
            }
        }));
    }
    let descent = descent(part);
    if descent == Some(Descent::WorkingDirectory) {
        touches.extend(bases.iter().map(|steps| Touch {
            steps: steps.clone(),
            claimed: None,
            writes: false,
            itself: false,
            descends: true,
            extent: Extent::Itself,
            expanded: false,
            guarded: false,
            written: ".".into(),
        }));
    }
    touches.extend(found_touches(part, bases, path_base)?);
    let extent = if only_reads(part, &names, output_use) { Extent::OnlyReads } else { Extent::Itself };
    for word in part.words.iter().filter(|word| is_bare_glob(word)) {
        touches.extend(resolved(&word.text_pattern(), bases, path_base)?.into_iter().map(|steps| Touch {
            steps,
            claimed: None,
            writes,
            itself,
            descends: descent.is_some(),
            extent,
            expanded: false,
            guarded: false,
            written: word.text.as_str().into(),
        }));
    }
    let mut known = HashSet::new();
    for word in part.words.iter().filter(|word| code || word.text.len() <= MAX_PATH_BYTES) {
        let written: Rc<str> = word.text.as_str().into();
        let files = if any("sed gsed") { sed_files(word) } else { Vec::new() };
        for (piece, guarded) in pieces(word, code).into_iter().chain(files) {
            if known.len() > MAX_PIECES {
                return None;
            }
            if !known.insert((piece.clone(), guarded, word.is_option())) {
                continue;
            }
            let paths = resolved(&piece, &all_bases, path_base)?;
            touches.extend(paths.into_iter().map(|steps| Touch {
                steps,
                claimed: None,
                writes,
                itself: itself && !is_left_out(word),
                descends: descent.is_some() && !is_left_out(word),
                extent: if word.open.is_some() && !word.is_expanded() { extent } else { Extent::Itself },
                expanded: !speaks && word.is_expanded(),
                guarded,
                written: Rc::clone(&written),
            }));
        }
    }
    Some(touches)
}

/// Returns `true` if a word is `--in-place` or `-i`, also combined with other letters or with a suffix.
fn edits_in_place(part: &Part) -> bool {
    part.words.iter().skip(1).any(|word| {
        let has_letter = |letters: &str| {
            let values = letters.find(['e', 'f', 'I', 'l', 'm', 'M', 'x']).unwrap_or(letters.len());
            letters[..values].contains('i')
        };
        match word.text.strip_prefix('-') {
            Some(long) if long.starts_with('-') => {
                long.len() > 1 && "-in-place".starts_with(long.split('=').next().unwrap_or(long))
            }
            Some(letters) => has_letter(letters),
            None => false,
        }
    })
}

fn only_reads(part: &Part, names: &[String], output_use: OutputUse) -> bool {
    let subcommand = || part.words.get(1).is_some_and(|word| listed(GIT_READERS, &word.text));
    match names {
        [name] if !part.wild => {
            listed(READERS, name)
                || output_use == OutputUse::Shown && listed(SPEAKERS, name)
                || name == "git" && subcommand()
        }
        _ => false,
    }
}

/// Returns the directories below which `find`, or a program that gets names from another program, may change
/// everything. `None` if there are too many.
fn found_touches(part: &Part, bases: &[Steps], path_base: PathBase<'_>) -> Option<Vec<Touch>> {
    let mut touches = Vec::new();
    let is_fed = part.fed && part.programs().any(|name| listed(REMOVERS, &name));
    for start in changed_below(part).into_iter().chain(is_fed.then(|| Word::known("."))) {
        touches.extend(resolved(&start.text_pattern(), bases, path_base)?.into_iter().map(|steps| Touch {
            steps,
            claimed: None,
            writes: true,
            itself: false,
            descends: true,
            extent: Extent::ChangesBelow,
            expanded: false,
            guarded: false,
            written: start.text.as_str().into(),
        }));
    }
    Some(touches)
}

/// Returns `true` if a word consists only of a pattern that a shell expands to existing names: `*`, `*/??`.
fn is_bare_glob(word: &Word) -> bool {
    let is_open = |unit: &PatternUnit| matches!(unit, PatternUnit::Many | PatternUnit::One);
    let is_plain = |unit: &PatternUnit| is_open(unit) || *unit == PatternUnit::Char('/');
    let text_pattern = word.text_pattern();
    !word.is_expanded()
        && !word.holes.is_empty()
        && text_pattern.0.iter().any(is_open)
        && text_pattern.0.iter().all(is_plain)
}

/// Returns the files that `sed` commands in a word read or write. A file name may directly follow the
/// command: `r.env`, `s/a/b/wfile`.
fn sed_files(word: &Word) -> Vec<(TextPattern, bool)> {
    const MAX_FILES: usize = 64;
    let units = word.text_pattern().0;
    let is_command = |unit: &PatternUnit| matches!(unit, PatternUnit::Char('r' | 'R' | 'w' | 'W'));
    let places = units.iter().enumerate().filter(|(_, unit)| is_command(unit)).take(MAX_FILES);
    let is_end = |unit: &PatternUnit| matches!(unit, PatternUnit::Char('\n' | ';' | '}'));
    let files = places.map(|(at, _)| {
        let file: Vec<PatternUnit> =
            units[at + 1..].iter().copied().take_while(|unit| !is_end(unit)).collect();
        (TextPattern(file), true)
    });
    files.filter(|(file, _)| !file.0.is_empty() && file.0.len() <= MAX_PATH_BYTES).collect()
}

/// Returns `true` if `printf` stores its output in a variable.
fn assigns(part: &Part) -> bool {
    part.words.iter().skip(1).any(|word| word.text.starts_with("-v"))
}

/// Returns all paths in literal texts that may become words of an unknown command. `None` if there are too
/// many.
fn literal_touches(part: &Part, bases: &[Steps], path_base: PathBase<'_>) -> Option<Vec<Touch>> {
    let mut touches = Vec::new();
    let mut known = HashSet::new();
    for Literal { word, is_code } in &part.literals {
        let written: Rc<str> = word.text.as_str().into();
        for (piece, guarded) in pieces(word, *is_code) {
            if known.len() > MAX_PIECES {
                return None;
            }
            if !known.insert((piece.clone(), guarded)) {
                continue;
            }
            touches.extend(resolved(&piece, bases, path_base)?.into_iter().map(|steps| Touch {
                steps,
                claimed: None,
                writes: true,
                itself: false,
                descends: false,
                extent: Extent::Itself,
                expanded: word.is_expanded(),
                guarded,
                written: Rc::clone(&written),
            }));
        }
    }
    Some(touches)
}

/// Returns the file of a redirection, in each directory in which it may be. `None` if there are too many
/// paths.
pub(super) fn file(
    word: &Word,
    writes: bool,
    part: &Part,
    bases: &[Steps],
    path_base: PathBase<'_>,
) -> Option<Vec<Touch>> {
    let known = word.open.is_none().then(|| resolve(word.text.as_ref(), path_base.cwd, path_base.home));
    let mut paths = Vec::new();
    for text_pattern in word.text_patterns() {
        paths.extend(resolved(&text_pattern, bases, path_base)?);
    }
    paths
        .into_iter()
        .map(|steps| Touch {
            steps,
            // After a `cd`, it is unknown where a relative path starts.
            claimed: known
                .clone()
                .filter(|_| part.after.is_empty() || word.text.starts_with('/'))
                .filter(|_| tilde(&word.text_pattern()).is_none_or(|tilde| tilde == Tilde::Home)),
            writes,
            itself: writes,
            descends: false,
            extent: Extent::Itself,
            expanded: word.is_expanded(),
            guarded: true,
            written: word.text.as_str().into(),
        })
        .collect::<Vec<_>>()
        .into()
}

/// Returns `true` if a program of the part writes files into directories that its words name, under names
/// that its words do not contain.
fn fills_directories(part: &Part, names: &[String]) -> bool {
    let any = |list: &str| names.iter().any(|name| listed(list, name));
    let extracts = |(at, word): (usize, &Word)| {
        // The first word can contain option letters without a hyphen.
        let letters = word.text.strip_prefix('-').or((at == 0).then_some(word.text.as_str()));
        letters.is_some_and(|letters| match letters.strip_prefix('-') {
            Some(long) => matches!(long, "extract" | "get"),
            None => letters.contains('x'),
        })
    };
    any(FILLERS) || any("tar bsdtar gtar") && part.words.iter().skip(1).enumerate().any(extracts)
}

/// Returns all URLs that the words of `part` may stand for, and those that its redirections open.
pub(super) fn urls(part: &Part) -> Vec<String> {
    let bare = part.programs().any(|name| listed(DOWNLOADERS, &name));
    let mut urls = hosts::addresses(part);
    let words = part.words.iter().enumerate().filter(|(_, word)| word.text.len() <= MAX_PATH_BYTES);
    let literals = part.literals.iter().map(|literal| (1, literal.word.clone()));
    let others = |(at, word): (usize, &Word)| {
        let others: Vec<Word> = word.others.iter().cloned().map(Word::from_text_pattern).collect();
        others.into_iter().map(move |word| (at, word))
    };
    let all =
        words.clone().map(|(at, word)| (at, word.clone())).chain(words.flat_map(others)).chain(literals);
    for (at, word) in all {
        let mut found = addresses_in(&word.text);
        if found.is_empty() && bare && at > 0 {
            found.extend(bare_address(&word));
        }
        // `curl` expands `http://{a,b}/` to several URLs. A text that cannot be parsed counts as any URL.
        if word.open.is_none() && found.iter().any(|address| has_braced_host(address)) {
            found.push(String::new());
        }
        urls.extend(found);
    }
    urls
}

fn has_braced_host(address: &str) -> bool {
    let host = address.split_once("//").and_then(|(_, rest)| rest.split('/').next());
    host.is_some_and(|host| host.contains(['{', '}']))
}

/// Returns the URL without a scheme that is a word of a downloader, or the value of its option.
fn bare_address(word: &Word) -> Option<String> {
    let text = word.text.as_str();
    let is_host = |text: &&str| text.contains(['.', ':']) && !text.contains([' ', '{', '/', '"']);
    let value = match text.strip_prefix("--") {
        Some(long) => long.split_once('=').map(|(_, value)| value),
        None if word.is_option() => text.get(2..).filter(is_host),
        None => Some(text),
    };
    // `//host` stands for a URL with the scheme of another URL. Headers and data contain no host.
    let is_text = |value: &&str| value.split('/').next().is_some_and(|host| host.contains([' ', '"']));
    let value = value.filter(|value| !is_text(value))?;
    match value.strip_prefix('/') {
        Some(rest) => rest.starts_with('/').then(|| format!("http:{value}")),
        None => Some(format!("http://{value}")),
    }
}

/// Returns the word, and the parts of it that may be paths. `true` marks texts that are checked for protected
/// paths.
fn pieces(word: &Word, code: bool) -> Vec<(TextPattern, bool)> {
    let text_patterns = word.text_patterns().chain(decoded(word)).chain(with_directory(word));
    text_patterns.flat_map(|text_pattern| pieces_of(word, text_pattern, code)).collect()
}

/// Returns the word with `~` instead of a leading variable that stands for the same directory.
fn with_directory(word: &Word) -> Option<TextPattern> {
    let directory = match word.holes.first()?.as_str() {
        "$PWD" => "~+",
        "$HOME" => "~",
        _ => return None,
    };
    let text_pattern = word.text_pattern();
    let [PatternUnit::Many, rest @ ..] = &text_pattern.0[..] else { return None };
    let is_whole = matches!(rest.first(), None | Some(PatternUnit::Char('/')));
    is_whole.then(|| {
        TextPattern(TextPattern::exact(directory).0.into_iter().chain(rest.iter().copied()).collect())
    })
}

/// Returns the word with percent escapes decoded, as in a local URL: `file:///x/%2eenv`.
fn decoded(word: &Word) -> Option<TextPattern> {
    let whole = word.text_pattern();
    let is_percent = |unit: &PatternUnit| *unit == PatternUnit::Char('%');
    if !whole.0.iter().any(is_percent) || !word.text.to_ascii_lowercase().contains("file:") {
        return None;
    }
    let digit = |unit: Option<&PatternUnit>| match unit {
        Some(PatternUnit::Char(letter)) => letter.to_digit(16),
        _ => None,
    };
    let mut units = Vec::with_capacity(whole.0.len());
    let mut at = 0;
    while let Some(unit) = whole.0.get(at) {
        let digits = digit(whole.0.get(at + 1)).zip(digit(whole.0.get(at + 2))).filter(|_| is_percent(unit));
        match digits.and_then(|(high, low)| char::from_u32(high * 16 + low)) {
            Some(letter) => {
                units.push(PatternUnit::Char(letter));
                at += 3;
            }
            None => {
                units.push(*unit);
                at += 1;
            }
        }
    }
    Some(TextPattern(units))
}

fn pieces_of(word: &Word, whole: TextPattern, code: bool) -> Vec<(TextPattern, bool)> {
    let separates = |unit: &PatternUnit| matches!(unit, PatternUnit::Char(letter) if SEPARATORS.contains(letter) || code && PUNCTUATION.contains(letter));
    let mut pieces: Vec<(TextPattern, bool)> = Vec::new();
    if whole.0.iter().any(separates) {
        pieces.extend(whole.0.split(separates).map(|units| (TextPattern(units.to_vec()), true)));
    }
    pieces.extend(glued(&whole.0).map(|units| (TextPattern(units.to_vec()), true)));
    if word.text.len() <= MAX_PATH_BYTES {
        let alone = pieces.is_empty();
        pieces.push((whole, alone));
    }
    let is_path = |text_pattern: &TextPattern| {
        text_pattern.0.len() <= MAX_PATH_BYTES
            && text_pattern.0.iter().any(|unit| matches!(unit, PatternUnit::Char(letter) if *letter != '/'))
    };
    pieces.retain(|(piece, _)| is_path(piece));
    pieces
}

/// Returns the possible paths after option letters in one word: `-fpath`, `-vxfpath`. In a long row of
/// letters, only [`MAX_OPTION_LETTERS`] at each end are considered.
fn glued(units: &[PatternUnit]) -> impl Iterator<Item = &[PatternUnit]> {
    let is_letter =
        |unit: &&PatternUnit| matches!(unit, PatternUnit::Char(letter) if letter.is_ascii_alphanumeric());
    let letters = match units {
        [PatternUnit::Char('-' | '+'), rest @ ..] => rest.iter().take_while(is_letter).count(),
        _ => 0,
    };
    let near = move |at: &usize| *at <= MAX_OPTION_LETTERS || at + MAX_OPTION_LETTERS > letters;
    (1..=letters).filter(near).filter_map(|at| units.get(at + 1..)).filter(|rest| !rest.is_empty())
}

/// Returns `true` if an option names files that the program leaves out.
fn is_left_out(word: &Word) -> bool {
    ["--exclude", "--ignore", "--no-"].iter().any(|name| word.text.starts_with(name))
}

/// Returns the directories among the words of `part` that a program may enter before it opens other words:
/// after an option such as `-C` or `--chdir=`, or as an operand. `None` if there are too many.
fn entered(part: &Part, code: bool, bases: &[Steps], path_base: PathBase<'_>) -> Option<Vec<Steps>> {
    let mut found: Vec<Steps> = Vec::new();
    for word in
        part.words.iter().skip(1).filter(|word| word.text.len() <= MAX_PATH_BYTES && !is_left_out(word))
    {
        for (piece, _) in pieces(word, code) {
            for path in resolved(&piece, bases, path_base)? {
                if may_hold_protected(&path) && !found.contains(&path) {
                    found.push(path);
                }
            }
            if found.len() > MAX_ENTERED {
                return None;
            }
        }
    }
    Some(found)
}

/// Returns the directories in which relative paths may start: the working directory, and every directory that
/// a `cd` may have entered.
pub(super) fn bases(part: &Part, path_base: PathBase<'_>) -> Vec<Steps> {
    let mut bases = vec![path_base.cwd.map(Steps::from_path).unwrap_or_default()];
    let real = path_base.real.map(Steps::from_path);
    for from in bases.clone().into_iter().chain(real.clone()) {
        let mut reached = vec![from];
        for directory in &part.after {
            // Each directory multiplies the number of possible ones, so only the first few are followed.
            let next = directory.text_patterns().flat_map(|text_pattern| {
                reached
                    .iter()
                    .map(move |from| join(from.clone(), &text_pattern, path_base))
                    .collect::<Vec<_>>()
            });
            reached = next.take(MAX_ENTERED).collect();
            bases.extend_from_slice(&reached);
        }
    }
    bases.extend(real);
    bases
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tilde {
    Home,
    WorkingDirectory,
    /// Another directory: `~-`, `~2`, `~+2`, the home directory of a user, or a named directory of the
    /// shell.
    Other,
}

/// Returns the directory that a shell may insert for a tilde at the beginning of a path.
fn tilde(text_pattern: &TextPattern) -> Option<Tilde> {
    let [PatternUnit::Char('~'), name @ ..] =
        text_pattern.0.split(|unit| *unit == PatternUnit::Char('/')).next()?
    else {
        return None;
    };
    let is_digit =
        |unit: &PatternUnit| !matches!(unit, PatternUnit::Char(letter) if !letter.is_ascii_digit());
    let is_login = |unit: &PatternUnit| match unit {
        PatternUnit::Char(letter) => letter.is_alphanumeric() || "_-.".contains(*letter),
        _ => true,
    };
    let is_number = |name: &[PatternUnit]| !name.is_empty() && name.iter().all(is_digit);
    let is_name = |name: &[PatternUnit]| !is_digit(&name[0]) && name.iter().all(is_login);
    match name {
        [] => Some(Tilde::Home),
        [PatternUnit::Char('+')] => Some(Tilde::WorkingDirectory),
        [PatternUnit::Char('-')] => Some(Tilde::Other),
        [PatternUnit::Char('+' | '-'), number @ ..] if is_number(number) => Some(Tilde::Other),
        name if is_number(name) || is_name(name) => Some(Tilde::Other),
        _ => None,
    }
}

/// Returns the paths that `text_pattern` may stand for, starting in each of these directories. `None` if
/// there are too many.
fn resolved(text_pattern: &TextPattern, bases: &[Steps], path_base: PathBase<'_>) -> Option<Vec<Steps>> {
    let absolute = text_pattern.0.first() == Some(&PatternUnit::Char('/'))
        || tilde(text_pattern).is_some_and(|tilde| tilde != Tilde::WorkingDirectory);
    let bases = if absolute { &bases[..1] } else { bases };
    let mut paths = Vec::with_capacity(bases.len());
    for base in bases {
        let path = join(base.clone(), text_pattern, path_base);
        path_base.steps_left.set(path_base.steps_left.get().checked_sub(path.0.len())?);
        paths.push(path);
    }
    Some(paths)
}

/// Returns `text_pattern` as a path that starts in `base`, without `.` and `..`.
fn join(base: Steps, text_pattern: &TextPattern, path_base: PathBase<'_>) -> Steps {
    let tilde = tilde(text_pattern);
    let mut steps = match (text_pattern.0.first(), tilde) {
        (Some(PatternUnit::Char('/')), _) => Steps::default(),
        (_, Some(Tilde::Home)) => match path_base.home {
            Some(home) => Steps::from_path(&resolve(home, None, None)),
            None => Steps(vec![Step::Name(TextPattern::exact("~"))]),
        },
        (_, Some(Tilde::Other)) => Steps(vec![Step::Deep]),
        (_, Some(Tilde::WorkingDirectory) | None) => base,
    };
    let names = text_pattern.0.split(|unit| *unit == PatternUnit::Char('/'));
    for name in names.skip(usize::from(tilde.is_some())) {
        match name {
            [] | [PatternUnit::Char('.')] => {}
            [PatternUnit::Char('.'), PatternUnit::Char('.')] => {
                if steps.0.last() != Some(&Step::Deep) {
                    steps.0.pop();
                }
            }
            name if name.iter().all(|unit| *unit == PatternUnit::Many) => steps.0.push(Step::Deep),
            name => steps.0.push(Step::Name(TextPattern(name.to_vec()))),
        }
    }
    steps
}
