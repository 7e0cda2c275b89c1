//! Programs with their own language that read code from a file or from their input.

use super::Word;
use super::listed;
use super::unknown_code::{Source, is_script};

/// Where a program reads its code from.
struct CodeReader {
    programs: &'static str,
    flags: &'static str,
    /// Options whose value is code, and options that make code unnecessary.
    texts: &'static str,
    long_texts: &'static [&'static str],
    /// Options whose value is a file that contains code.
    files: &'static str,
    long_files: &'static [&'static str],
    operands: Operands,
}

/// What the words of a program that are not options mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operands {
    /// First code, unless an option contains the code, and after that data.
    Data,
    /// Names that are not code.
    Names,
    /// First a name, and after that code.
    NameAndCode,
    /// Files that contain code.
    Files,
}

const READERS: &[CodeReader] = &[
    CodeReader {
        programs: "awk gawk mawk nawk",
        flags: "bcCgPrtOMNSsnhIkV",
        texts: "",
        long_texts: &[],
        files: "fEi",
        long_files: &["--file", "--exec", "--include"],
        operands: Operands::Data,
    },
    CodeReader {
        programs: "sed gsed",
        flags: "nrsuzE",
        texts: "",
        long_texts: &[],
        files: "f",
        long_files: &["--file"],
        operands: Operands::Data,
    },
    CodeReader {
        programs: "psql",
        flags: "aAbeEnqsStwWxXzH01",
        texts: "clV",
        long_texts: &["--command", "--list", "--help", "--version"],
        files: "f",
        long_files: &["--file"],
        operands: Operands::Names,
    },
    CodeReader {
        programs: "mysql mariadb",
        flags: "ABbCEfGHiLnNoqrstTUvwWX",
        texts: "eV",
        long_texts: &["--execute", "--help", "--version"],
        files: "",
        long_files: &[],
        operands: Operands::Names,
    },
    CodeReader {
        programs: "sqlite sqlite3",
        flags: "",
        texts: "",
        long_texts: &["-help", "--help", "-version", "--version"],
        files: "",
        long_files: &[],
        operands: Operands::NameAndCode,
    },
    CodeReader {
        programs: "m4",
        flags: "",
        texts: "",
        long_texts: &["--help", "--version"],
        files: "",
        long_files: &[],
        operands: Operands::Files,
    },
    CodeReader {
        programs: "dc",
        flags: "",
        texts: "ehV",
        long_texts: &["--expression", "--help", "--version"],
        files: "f",
        long_files: &["--file"],
        operands: Operands::Files,
    },
];

const SQLITE_VALUES: &str = "-cmd -init -separator -nullvalue -newline -vfs -maxsize -mmap";

/// Returns where a program that is run with these words reads its code from.
pub(super) fn code_source(program: &str, words: &[Word]) -> Source {
    let reader = READERS.iter().find(|reader| listed(reader.programs, program));
    reader.map_or(Source::Words, |reader| reader.source(words))
}

impl CodeReader {
    fn source(&self, words: &[Word]) -> Source {
        let mut is_given = false;
        let mut operands = 0;
        for (at, word) in words.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| words[before].text.as_str());
            let is_value = before.is_some_and(|option| listed(SQLITE_VALUES, option));
            let file = self.code_file(word, words.get(at + 1));
            let file = match file {
                None if self.gives_code(word) => {
                    is_given = true;
                    continue;
                }
                None if word.is_option() || is_value => continue,
                None if self.operands == Operands::Files && !is_given => word.clone(),
                None => {
                    operands += 1;
                    continue;
                }
                Some(file) => file,
            };
            match file.open {
                _ if is_script(&file) => is_given = true,
                Some(_) => return Source::Unknown,
                None => return Source::Input,
            }
        }
        let reads = !is_given
            && match self.operands {
                Operands::Data => false,
                Operands::Names | Operands::Files => true,
                Operands::NameAndCode => operands < 2,
            };
        if reads { Source::Input } else { Source::Words }
    }

    /// Returns the file of code that an option names, in the word of the option or in the `next` word.
    fn code_file(&self, word: &Word, next: Option<&Word>) -> Option<Word> {
        let text = word.text.as_str();
        let value = |value: &str| Word { text: value.to_owned(), ..word.clone() };
        if let Some((_, file)) = text.split_once('=').filter(|(name, _)| abbreviates(name, self.long_files)) {
            return Some(value(file));
        }
        if abbreviates(text, self.long_files) {
            return next.cloned();
        }
        match self.after_flags(text, self.files)? {
            "" => next.cloned(),
            glued => Some(value(glued)),
        }
    }

    fn gives_code(&self, word: &Word) -> bool {
        let name = word.text.split_once('=').map_or(word.text.as_str(), |(name, _)| name);
        self.long_texts.contains(&name)
            || abbreviates(name, self.long_texts)
            || self.after_flags(&word.text, self.texts).is_some()
    }

    /// Returns the text after the first of `letters` in a word of option letters. Only flags may precede that
    /// letter.
    fn after_flags<'a>(&self, text: &'a str, letters: &str) -> Option<&'a str> {
        let options = text.strip_prefix('-').filter(|options| !options.starts_with('-'))?;
        let end = options.find(|letter: char| !self.flags.contains(letter))?;
        let rest = &options[end..];
        rest.starts_with(|letter: char| letters.contains(letter)).then(|| &rest[1..])
    }
}

fn abbreviates(name: &str, options: &[&str]) -> bool {
    name.len() > 3 && name.starts_with("--") && options.iter().any(|option| option.starts_with(name))
}
