//! Paths and addresses among the words of a command.
//!
//! Whether a word is a path only its program knows. So every word that can be one is taken for one, and counts where
//! something is forbidden; nothing is permitted by it alone.

use std::collections::HashSet;

use super::{Place, Touch};
use crate::command::{Part, Word, listed};
use crate::path::{Step, Steps, resolve};
use crate::shape::{Shape, Unit};

/// How many different paths may be named in one command.
const MOST_PIECES: usize = 10_000;

/// Longer words are no paths.
const LONGEST: usize = 4096;

/// Programs that open none of their words.
const SPEAKERS: &str = "echo printf true false";

/// Programs whose words may be programs themselves.
const INTERPRETERS: &str = "\
    awk bun deno gawk groovy jshell julia lua mawk nawk node nodejs osascript perl php psql ruby rscript \
    sed gsed sqlite3 tclsh vim vi nvim ex ed emacs make";

/// Programs that change or remove what they name.
const MUTATORS: &str = "\
    chattr chmod chown cp dd install ln mkdir mv rm rmdir shred tee touch truncate unlink \
    unzip trash";

/// Programs that leave the files they name as they are.
const TAKERS: &str = "bat cd column jq less more pushd type";

/// Subcommands of git that do.
const GIT_TAKERS: &str = "add stage commit check-ignore check-attr diff log show status blame ls-files grep";

/// Programs whose words are addresses even without a scheme.
const DOWNLOADERS: &str = "curl wget wget2 aria2c http https xh lynx w3m ssh nc ncat";

/// What separates a path from what it is given to, in words such as `--file=x`, `if=x`, `@x`, `host:x`.
const SEPARATORS: &[char] = &['=', ',', ':', '@'];

/// What separates words in a program.
const PUNCTUATION: &[char] =
    &[' ', '\t', '\n', '\'', '"', '(', ')', '[', ']', '{', '}', '<', '>', ';', '|', '&', '`', '+', '!'];

/// All paths that the words of `part` may be, unless there are too many.
pub(super) fn touches(part: &Part, looks: bool, place: Place<'_>) -> Option<Vec<Touch>> {
    let names: Vec<String> = part.programs().collect();
    let any = |list: &str| names.iter().any(|name| listed(list, name));
    if part.knows_its_words() && any(SPEAKERS) && names.len() == 1 {
        return Some(Vec::new());
    }
    let code = any(INTERPRETERS) || names.iter().any(|name| name.starts_with("python"));
    let writes = !looks && !only_takes(part, &names);
    let itself = writes && any(MUTATORS);
    let mut touches = Vec::new();
    let mut known = HashSet::new();
    for word in part.words.iter().filter(|word| code || word.text.len() <= LONGEST) {
        for (piece, guarded) in pieces(word, code) {
            if known.len() > MOST_PIECES {
                return None;
            }
            if !known.insert((piece.clone(), guarded, word.is_option())) {
                continue;
            }
            touches.extend(resolved(&piece, part, place).map(|steps| Touch {
                steps,
                claimed: None,
                writes,
                itself: itself && !word.is_option(),
                guarded,
                written: word.text.clone(),
            }));
        }
    }
    Some(touches)
}

/// Whether the program takes files as they are, though it may do more than look.
fn only_takes(part: &Part, names: &[String]) -> bool {
    let [name] = names else { return false };
    let subcommand = part.argv().get(1).map_or("", |word| word.text.as_str());
    part.knows_its_words() && (listed(TAKERS, name) || name == "git" && listed(GIT_TAKERS, subcommand))
}

/// The file of a redirection, wherever it may be.
pub(super) fn file(word: &Word, writes: bool, part: &Part, place: Place<'_>) -> Vec<Touch> {
    let known = word.open.is_none().then(|| resolve(word.text.as_ref(), place.cwd, place.home));
    resolved(&word.shape(), part, place)
        .map(|steps| Touch {
            steps,
            // After `cd` nobody knows where a relative path is.
            claimed: known.clone().filter(|_| part.after.is_empty() || word.text.starts_with('/')),
            writes,
            itself: writes,
            guarded: true,
            written: word.text.clone(),
        })
        .collect()
}

/// All addresses that the words of `part` may be.
pub(super) fn urls(part: &Part) -> Vec<String> {
    let bare = part.programs().any(|name| listed(DOWNLOADERS, &name));
    let mut urls = Vec::new();
    for (at, word) in part.words.iter().enumerate().filter(|(_, word)| word.text.len() <= LONGEST) {
        match word.text.find("://") {
            Some(colon) => {
                let is_scheme = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
                let before = &word.text[..colon];
                let start = before
                    .rfind(|letter| !is_scheme(letter))
                    .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
                let rest = &word.text[start..];
                let end = rest.find([' ', '\t', '\n', '\'', '"', '`', ')', '>']).unwrap_or(rest.len());
                urls.push(rest[..end].to_owned());
            }
            None if bare && at > 0 && !word.is_option() && !word.text.starts_with('/') => {
                urls.push(format!("http://{}", word.text));
            }
            None => {}
        }
    }
    urls
}

/// The word and what stands in it between separators, and whether it counts for protection.
fn pieces(word: &Word, code: bool) -> Vec<(Shape, bool)> {
    let whole = word.shape();
    let separates = |unit: &Unit| matches!(unit, Unit::Char(letter) if SEPARATORS.contains(letter) || code && PUNCTUATION.contains(letter));
    let mut pieces: Vec<(Shape, bool)> = Vec::new();
    if whole.0.iter().any(separates) {
        pieces.extend(whole.0.split(separates).map(|units| (Shape(units.to_vec()), true)));
    }
    // `-fpath`.
    if matches!(whole.0.as_slice(), [Unit::Char('-'), Unit::Char(letter), _, ..] if *letter != '-') {
        pieces.push((Shape(whole.0[2..].to_vec()), true));
    }
    if word.text.len() <= LONGEST {
        let alone = pieces.is_empty();
        pieces.push((whole, alone));
    }
    let is_path = |shape: &Shape| {
        shape.0.len() <= LONGEST
            && shape.0.iter().any(|unit| matches!(unit, Unit::Char(letter) if *letter != '/'))
    };
    pieces.retain(|(piece, _)| is_path(piece));
    pieces
}

/// Where a path may lead: from the working directory, and from every directory that `cd` may have gone to.
fn resolved(shape: &Shape, part: &Part, place: Place<'_>) -> impl Iterator<Item = Steps> {
    let start = place.cwd.map(Steps::of).unwrap_or_default();
    let absolute = matches!(shape.0.first(), Some(Unit::Char('/' | '~')));
    let mut bases = vec![start];
    if !absolute {
        let real = place.real.map(Steps::of);
        for mut from in bases.clone().into_iter().chain(real.clone()) {
            for directory in &part.after {
                from = join(from, &directory.shape(), place);
                bases.push(from.clone());
            }
        }
        bases.extend(real);
    }
    bases.into_iter().map(move |base| join(base, shape, place)).collect::<Vec<_>>().into_iter()
}

/// `shape` from `base` on, with `.` and `..` taken out.
fn join(base: Steps, shape: &Shape, place: Place<'_>) -> Steps {
    let mut steps = match shape.0.first() {
        Some(Unit::Char('/')) => Steps::default(),
        _ => base,
    };
    for (at, name) in shape.0.split(|unit| *unit == Unit::Char('/')).enumerate() {
        match name {
            [] | [Unit::Char('.')] => {}
            [Unit::Char('.'), Unit::Char('.')] => {
                if steps.0.last() != Some(&Step::Deep) {
                    steps.0.pop();
                }
            }
            [Unit::Char('~')] if at == 0 => {
                steps = match place.home {
                    Some(home) => Steps::of(&resolve(home, None, None)),
                    None => Steps(vec![Step::Name(Shape::exact("~"))]),
                };
            }
            name if name.iter().all(|unit| *unit == Unit::Many) => steps.0.push(Step::Deep),
            name => steps.0.push(Step::Name(Shape(name.to_vec()))),
        }
    }
    steps
}
