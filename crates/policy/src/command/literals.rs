//! Here-documents whose words may become words of a command, or that are code for a program.
//!
//! Most here-documents are only written or shown, and may mention any path. A here-document counts if a
//! command makes words of its input (`read`, `xargs`), if the output of a command becomes a word, or if a
//! program reads code or a list of files from its input.

use super::lexer::Document;
use super::programs::{FEEDERS, has_code};
use super::{Literal, Part, Word, listed};

/// Programs that store their input in variables.
const READERS: &str = "read mapfile readarray vared";

/// Programs that open files which their input names. Programs with their own language are not listed.
const LIST_READERS: &str = "\
    7z 7za 7zz bsdcpio bsdtar c++ cc clang clang++ cpio cpp du g++ gcc gtar m4 nasm pax rsync sort tar wc wget curl zip \
    gpg openssl tcc xz gzip";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DocumentUse {
    Shown,
    OneWord,
    /// The document may become several words.
    Words,
    /// The document is code, or a list of files.
    Code,
}

pub(super) fn from_documents(documents: &[Document], parts: &[Part]) -> Vec<Literal> {
    let runs = |part: &Part, list: &str| part.programs().any(|name| listed(list, &name));
    let reads = parts.iter().any(|part| part.fed || runs(part, READERS) || runs(part, FEEDERS));
    let outputs = || parts.iter().flat_map(Part::all_words);
    let becomes_words = outputs().any(|word| word.holds_output() && word.splits.is_some());
    let becomes_one = outputs().any(Word::holds_output);
    let runs_code = parts.iter().any(|part| part.programs().any(|name| takes_code(&name)));
    let mut literals = Vec::new();
    for Document { text, others, receiver, .. } in documents {
        let document_use = match receiver_takes_code(receiver) {
            Some(true) => DocumentUse::Code,
            None if runs_code => DocumentUse::Code,
            _ if reads || becomes_words => DocumentUse::Words,
            _ if becomes_one => DocumentUse::OneWord,
            _ => DocumentUse::Shown,
        };
        let mut add = |word: Word, is_code: bool| literals.push(Literal { word, is_code });
        match document_use {
            DocumentUse::Shown => continue,
            DocumentUse::OneWord => add(Word::known(text.trim()), false),
            DocumentUse::Words => text.split_whitespace().for_each(|word| add(Word::known(word), false)),
            DocumentUse::Code => text.lines().for_each(|line| add(Word::known(line), true)),
        }
        others.iter().for_each(|text_pattern| {
            add(Word::from_text_pattern(text_pattern.clone()), document_use == DocumentUse::Code);
        });
    }
    literals
}

/// Returns `true` if the command with these words reads code or a list of files from its input. `None` if the
/// command is unknown.
fn receiver_takes_code(words: &[Word]) -> Option<bool> {
    // The document follows the end of a compound command, which does not show the commands inside.
    const ENDS: &str = "} done fi esac ) ]]";
    let last = words.last()?;
    if listed(ENDS, &last.text) || words.iter().all(|word| super::lexer::is_assignment(&word.text)) {
        return None;
    }
    Some(words.iter().filter_map(Word::program).any(|name| takes_code(&name)))
}

fn takes_code(name: &str) -> bool {
    has_code(name) || listed(LIST_READERS, name)
}
