//! Finds words in code and settings of other languages. Each such word may name a program.

use super::Word;
use super::git_commands::option_texts;
use super::programs::{GIT_EXEC, LOCATIONS, has_code};
use super::reduce::{MAX_PREFIXED_WORDS, assigned, listed};

/// Maximum number of words of code in one part.
pub(super) const MAX_MENTIONS: usize = 2000;

pub(super) fn mention(code: &str, mentions: &mut Vec<Word>) {
    let is_part = |letter: char| letter.is_alphanumeric() || "_./+-".contains(letter);
    let words = code.split(|letter| !is_part(letter)).filter(|word| !word.is_empty());
    mentions.extend(words.take(MAX_MENTIONS + 1).map(Word::known));
}

/// Adds words that `sed` may run: after the command `e`, and in the replacement of an `s` command with the
/// flag `e`.
fn mention_sed(code: &str, mentions: &mut Vec<Word>) {
    let flags = |text: &&str| {
        let length = text.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(text.len());
        text[..length].contains('e')
            && text[..length].bytes().all(|byte| b"egpimMIw0123456789".contains(&byte))
    };
    if code.split('/').skip(1).any(|text| flags(&text)) {
        mention(&code.replace('/', " "), mentions);
    }
    for command in code.split([';', '\n', '{', '}', '!']) {
        let command = command.trim_start_matches(|letter: char| !letter.is_ascii_alphabetic());
        mention(command.strip_prefix('e').unwrap_or_default(), mentions);
    }
}

/// Programs whose code can use the words after the code.
const ARGUMENT_TAKERS: &str = "\
    awk gawk mawk nawk busybox perl ruby node nodejs deno bun lua luajit php tclsh wish expect osascript groovy julia \
    rscript guile racket sbcl clisp ocaml elixir erl swift scala";

/// Texts which show that code may run one of the words.
const RUNS: [&str; 18] = [
    "system",
    "exec",
    "spawn",
    "popen",
    "passthru",
    "subprocess",
    "getline",
    "fork",
    "shell",
    "run",
    "call",
    "eval",
    "import",
    "require",
    "`",
    "|",
    "%x",
    "qx",
];

/// Last parts of names of options whose value is a program, for all programs.
const PROGRAM_OPTIONS: &str = "\
    program command cmd script filter wrapper hook exec shell editor pager browser pre rsh ssh launcher runner action";

/// Maximum number of option letters in one word after which the rest may be a value.
const MAX_BUNDLE_LETTERS: usize = 32;

/// Adds the values of options that name programs, such as `--strip-program` and `-wrapper`.
fn mention_options(words: &[Word], mentions: &mut Vec<Word>) {
    for (at, word) in words.iter().enumerate().skip(1).filter(|(_, word)| word.is_option()) {
        let text = word.text.trim_start_matches('-');
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let is_program =
            name.len() > 2 && name.rsplit('-').next().is_some_and(|end| listed(PROGRAM_OPTIONS, end));
        if is_program {
            let next = || words.get(at + 1).map(|word| word.text.as_str());
            mention(value.or_else(next).unwrap_or_default(), mentions);
        }
    }
}

/// Adds the possible values after option letters in the same word: `-cIcommand`.
fn mention_bundle(text: &str, mentions: &mut Vec<Word>) {
    let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.starts_with('-')) else { return };
    let is_letter = |(_, letter): &(usize, char)| letter.is_ascii_alphanumeric();
    let behind = letters.char_indices().take_while(is_letter).take(MAX_BUNDLE_LETTERS);
    behind.for_each(|(at, _)| mention(&letters[at + 1..], mentions));
}

/// Returns `true` if the words after this one may be programs, because this word is code that runs something,
/// or has an option letter that takes a program.
fn runs_words_behind(program: &str, word: &Word, is_first: bool) -> bool {
    let takes = listed(ARGUMENT_TAKERS, program) || program.starts_with("py");
    let archives = listed("tar bsdtar gtar", program);
    // The first word of `tar` contains option letters, even without a hyphen.
    let letters = word.text.strip_prefix('-').or(is_first.then_some(word.text.as_str()));
    takes && RUNS.iter().any(|sign| word.text.contains(sign))
        || archives
            && letters.is_some_and(|letters| !letters.starts_with('-') && letters.contains(['I', 'F']))
}

/// Adds the words in code and commands that are arguments of programs with their own language.
pub(super) fn mention_code(words: &[Word], starts: &[usize], git: bool, mentions: &mut Vec<Word>) {
    let signs =
        |text: &str| text.contains(|letter: char| !letter.is_alphanumeric() && !"_./+-@%".contains(letter));
    // Every assignment counts, because no list of variables that contain commands is complete.
    let given = words.iter().take(MAX_PREFIXED_WORDS).filter_map(assigned);
    for (_, value) in given.filter(|(name, _)| !listed(LOCATIONS, name)) {
        mention(value, mentions);
    }
    mention_options(words, mentions);
    let coded =
        |start: &&usize| words.get(**start).and_then(Word::program).is_some_and(|name| has_code(&name));
    if let Some(start) = starts.iter().find(coded) {
        let program = words[*start].program_family().unwrap_or_default();
        let mut runs_words = false;
        for (at, word) in words.iter().enumerate().skip(start + 1) {
            let behind_option = words[at - 1].is_option();
            if runs_words || signs(&word.text) || behind_option || word.is_option() && word.text.len() > 2 {
                mention(word.text.trim_start_matches(['-', '+']), mentions);
                mention_bundle(&word.text, mentions);
            }
            runs_words |= runs_words_behind(&program, word, at == start + 1);
            if listed("sed gsed", &program) {
                mention_sed(&word.text, mentions);
            }
        }
    }
    if git {
        const CONFIGURES: &str =
            "-c --config-env config filter-branch --upload-pack --receive-pack --extcmd --exec";
        let mut configured = false;
        for (at, word) in words.iter().enumerate().skip(1) {
            configured |= listed("config filter-branch", &words[at - 1].text);
            let value = word.text.starts_with("--") && word.text.contains("-pack=")
                || word.text.contains("ext::")
                || word.text.starts_with("--extcmd=")
                || word.text.starts_with("--config-env=")
                || word.text.starts_with("-O")
                || word.text.starts_with("--open-files-in-pager=");
            if listed(CONFIGURES, &words[at - 1].text) || configured || value {
                mention(word.text.trim_start_matches("-O"), mentions);
            }
        }
    }
}

/// Returns texts that git passes to a shell: after words such as `--exec`, and in aliases that begin with an
/// exclamation mark.
pub(super) fn git_texts(words: &[Word]) -> Vec<String> {
    let behind =
        words.windows(2).filter(|pair| listed(GIT_EXEC, &pair[0].text)).map(|pair| pair[1].text.as_str());
    let within = words.iter().filter_map(|word| {
        word.text.split_once("=!").or_else(|| word.text.strip_prefix("--exec=").map(|text| ("", text)))
    });
    let texts = behind
        .filter(|text| text.contains([' ', ';', '&', '|', '$', '`']))
        .chain(within.map(|(_, text)| text));
    // The values of many git settings are shell commands.
    let settings = words.windows(2).filter(|pair| pair[0].text == "-c" || pair[0].text.contains('.'));
    let settings =
        settings.map(|pair| pair[1].text.split_once('=').map_or(pair[1].text.as_str(), |(_, value)| value));
    let packs = words.iter().filter_map(|word| word.text.split_once("-pack=")).map(|(_, text)| text);
    let shell = settings.chain(packs).filter(|text| text.contains(['\'', '"', '\\', '$', '`']));
    let alias = |word: &str, value: &str| {
        (word.starts_with("alias.") && !value.starts_with('!')).then(|| format!("git {value}"))
    };
    let given = words
        .iter()
        .filter_map(|word| word.text.split_once('=').and_then(|(name, value)| alias(name, value)));
    let set = words.windows(2).filter_map(|pair| alias(&pair[0].text, &pair[1].text));
    let options = option_texts(words).into_iter();
    texts.chain(shell).chain(options).map(str::to_owned).chain(given).chain(set).collect()
}
