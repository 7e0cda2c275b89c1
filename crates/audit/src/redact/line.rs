//! Finds secrets in whole lines: directives of configuration files, and texts that are piped to a command
//! which reads a password.

use std::ops::Range;

use super::markup;
use super::name::{self, NamedValueKind};
use super::token_patterns;
use super::value::is_given;

/// Directives whose only argument is a password, even if the password is an ordinary word.
const PASSWORD_DIRECTIVES: [&str; 2] = ["requirepass", "masterauth"];

/// Options that make a command read a secret from its input.
const INPUT_OPTIONS: [&str; 6] =
    ["--password-stdin", "--with-token", "--stdin", "--token-stdin", "--passphrase-fd", "--pinentry-fd"];

/// Programs that read a password from their input unless it is a terminal.
const INPUT_PROGRAMS: [&str; 2] = ["cryptsetup", "kinit"];

/// Words and signs between the name of a secret and its value in a sentence.
const LINKS: [&str; 9] = [" is ", " is: ", " was ", " was: ", " - ", " – ", " — ", " -> ", " → "];

/// Subcommands that store a secret from their input: `gh secret set NAME`.
const STORING: [&str; 4] = ["set", "put", "create", "add"];

type Word<'a> = (usize, &'a str);

pub(super) fn lines(
    text: &str,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    let may_have_headers = text.contains("eader");
    let may_have_input =
        text.contains("<<<") || (text.contains('|') && (text.contains("echo") || text.contains("printf")));
    let mut begin = 0;
    markup::tables(text, &named, found);
    for line in text.split('\n') {
        directive(line, begin, &named, found);
        sentence(line, begin, &named, found);
        in_parentheses(line, begin, &named, found);
        markup::marked_names(line, begin, &named, found);
        if may_have_headers {
            header(line, begin, &named, found);
        }
        if may_have_input {
            input(line, begin, found);
        }
        begin += line.len() + 1;
    }
}

fn words(line: &str, begin: usize) -> impl Iterator<Item = Word<'_>> {
    let mut at = begin;
    line.split(|letter: char| letter.is_ascii_whitespace()).filter_map(move |word| {
        let start = at;
        at += word.len() + 1;
        (!word.is_empty()).then_some((start, word))
    })
}

/// Returns the range of a word, without its quotes and without the delimiter that ends the statement.
fn inner((start, word): Word<'_>) -> Range<usize> {
    let shorter = word.trim_start_matches(['"', '\'']);
    let from = start + word.len() - shorter.len();
    from..from + shorter.trim_end_matches(['"', '\'', ';']).len()
}

/// Finds the secret in a line that consists of a name and a value: `db.password …`.
fn directive(
    line: &str,
    begin: usize,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    let mut words = words(line, begin);
    let (Some((_, name)), Some(value), None) = (words.next(), words.next(), words.next()) else { return };
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    // `PASS name` is a test result.
    if name.starts_with('-') || name == "PASS" || !name.bytes().all(is_part) {
        return;
    }
    let place = inner(value);
    let Some(value) = line.get(place.start - begin..place.end - begin) else { return };
    let least =
        if PASSWORD_DIRECTIVES.contains(&name) { token_patterns::MIN_OPTION_BYTES } else { usize::MAX };
    let Some(named) = named(name::end_of(name)) else { return };
    // A number after a name such as `tokens` is a count. A call or a type after a name belongs to program
    // code.
    let is_secret = match named {
        NamedValueKind::TokenLike => named.accepts(value),
        named if named.is_secret() => {
            named.accepts(value)
                && token_patterns::can_be_value(value.as_bytes(), least)
                && is_secret_word(value)
        }
        _ => false,
    };
    if is_secret && is_given(value.as_bytes()) {
        found.push(place);
    }
}

fn name_before(line: &str, at: usize) -> &str {
    let before = &line[..at];
    let from = before.rfind(' ').map_or(0, |last| before[..last].rfind(' ').map_or(0, |first| first + 1));
    name::end_of(&before[from..])
}

/// Finds the secret in parentheses after a name: `the password (…)`. A text with few special characters and
/// digits is a remark, not a secret.
fn in_parentheses(
    line: &str,
    begin: usize,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    for (at, open) in line.match_indices(" (") {
        let from = at + open.len();
        let Some(length) =
            line[from..].find([')', ' ']).filter(|length| line[from + length..].starts_with(')'))
        else {
            continue;
        };
        let place = inner((begin + from, &line[from..from + length]));
        let value = &line[place.start - begin..place.end - begin];
        let is_name = || named(name_before(line, at)).is_some_and(NamedValueKind::is_secret);
        if is_random(value) && name::is_token_like(value) && is_given(value.as_bytes()) && is_name() {
            found.push(place);
        }
    }
}

/// Returns `true` if letters and digits alternate more often than in names of methods and standards, or if
/// the text contains special characters.
fn is_random(value: &str) -> bool {
    let kinds: Vec<bool> =
        value.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.is_ascii_digit()).collect();
    let changes = kinds.windows(2).filter(|pair| pair[0] != pair[1]).count();
    changes > 2 || value.contains(['!', '#', '$', '%', '&', '@'])
}

/// Finds the secret in a sentence that names it: `the private key is …`. The name may have two words.
fn sentence(
    line: &str,
    begin: usize,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    for (at, _) in line.match_indices(' ') {
        let Some(link) = LINKS.iter().find(|link| line[at..].starts_with(**link)) else { continue };
        let Some((start, word)) = words(&line[at + link.len()..], begin + at + link.len()).next() else {
            continue;
        };
        let place = inner((start, word.trim_end_matches(['.', ',', '!', '?'])));
        let value = &line[place.start - begin..place.end - begin];
        let is_name = named(name_before(line, at)).is_some_and(NamedValueKind::is_secret);
        // A path after an arrow or a dash is the name of a file.
        let is_value = link.contains('s') || !value.contains('/');
        if is_name
            && is_value
            && name::is_token_like(value)
            && is_secret_word(value)
            && is_given(value.as_bytes())
        {
            found.push(place);
        }
    }
}

/// Returns `true` if a word without a delimiter before it can be a secret. A word of a sentence or of program
/// code cannot be one.
fn is_secret_word(value: &str) -> bool {
    !value.contains("://")
        && !value.ends_with(['{', '(', ',', ':'])
        && !value.starts_with(['=', '{', '(', '<', '&', '|', '>'])
}

/// Finds the secret in a line that sets a header: `proxy_set_header X-Api-Key …;`.
fn header(
    line: &str,
    begin: usize,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    let mut since_header = usize::MAX;
    let mut words = words(line, begin).peekable();
    while let Some((_, word)) = words.next() {
        since_header =
            if word.to_ascii_lowercase().contains("header") { 0 } else { since_header.saturating_add(1) };
        let name = word.trim_matches(['"', '\'']);
        let is_name = matches!(since_header, 1 | 2)
            && (name.contains('-')
                || name.eq_ignore_ascii_case("authorization")
                || name.eq_ignore_ascii_case("cookie"))
            && !name.starts_with('-')
            && named(name::end_of(name)).is_some_and(NamedValueKind::is_secret);
        let Some(value) = words.peek().copied().filter(|_| is_name) else { continue };
        let rest = &line[value.0 - begin..];
        let sort = token_patterns::words(rest.trim_start_matches(['"', '\'']).as_bytes());
        let from = value.0 + rest.len() - rest.trim_start_matches(['"', '\'']).len() + sort;
        let end = line[from - begin..]
            .find(|letter: char| letter.is_ascii_whitespace())
            .unwrap_or(line.len() - (from - begin));
        let place = inner((from, &line[from - begin..from - begin + end]));
        let shown = &line[place.start - begin..place.end - begin];
        if token_patterns::can_be_value(
            shown.as_bytes(),
            if sort > 0 { token_patterns::MIN_OPTION_BYTES } else { usize::MAX },
        ) && is_given(shown.as_bytes())
        {
            found.push(place);
        }
    }
}

/// Finds secrets that a line pipes to commands: `echo …
///
/// docker login --password-stdin`, `sudo -S x <<< …`.
fn input(line: &str, begin: usize, found: &mut Vec<Range<usize>>) {
    let mut echoed: Option<Range<usize>> = None;
    let mut at = begin;
    for command in line.split('|') {
        let reads_secret = reads_secret(command);
        if let Some(place) = echoed.take().filter(|_| reads_secret) {
            found.push(place);
        }
        if reads_secret && let Some((before, text)) = command.split_once("<<<") {
            let text = words(text, at + before.len() + 3).next();
            found.extend(text.map(inner).filter(|place| is_shown(line, begin, place)));
        }
        echoed = printed(command, at).filter(|place| is_shown(line, begin, place));
        at += command.len() + 1;
    }
}

/// Returns `true` if there is a value at this place that is not a variable.
fn is_shown(line: &str, begin: usize, place: &Range<usize>) -> bool {
    !place.is_empty() && is_given(&line.as_bytes()[place.start - begin..place.end - begin])
}

/// Returns the output of `echo` and `printf`: all arguments except options. The format of `printf` is not
/// included.
pub(super) fn printed(command: &str, begin: usize) -> Option<Range<usize>> {
    let mut words = words(command, begin)
        .skip_while(|(_, word)| !is_program(word, "echo") && !is_program(word, "printf"));
    let (_, program) = words.next()?;
    let mut words = words.skip_while(|(_, word)| word.starts_with('-'));
    let first = words.next()?;
    let rest = words.last();
    match (is_program(program, "printf"), rest) {
        (true, Some(last)) => Some(inner(last)),
        (_, Some(last)) => Some(inner(first).start..inner(last).end),
        (_, None) => Some(inner(first)),
    }
}

fn is_program(word: &str, program: &str) -> bool {
    let word = word.trim_start_matches(['"', '\'', '(', '$', '`']);
    word.strip_suffix(program).is_some_and(|path| path.is_empty() || path.ends_with('/'))
}

fn reads_secret(command: &str) -> bool {
    let (mut is_sudo, mut is_store) = (false, false);
    words(command, 0).any(|(_, word)| {
        let is_flag = word.starts_with('-') && !word.starts_with("--") && word.contains('S');
        let found = INPUT_OPTIONS.contains(&word.split('=').next().unwrap_or(word))
            || INPUT_PROGRAMS.iter().any(|program| is_program(word, program))
            || is_sudo && is_flag
            || is_store && STORING.contains(&word);
        is_sudo |= is_program(word, "sudo");
        is_store |= matches!(word, "secret" | "secrets");
        found
    })
}
