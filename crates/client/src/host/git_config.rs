//! Parses a git configuration file exactly as git does.
//!
//! A setting must be found in every file that git accepts. So this follows git's parser (`config.c`) byte by
//! byte: sections and subsections, quotes, escapes, comments, continued lines, a byte order mark, and both
//! kinds of line ends. A test compares the results with git.

/// A setting, with the key that `select` returned for its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting<K> {
    pub(super) key: K,
    /// `None` if the line has no `=`.
    pub(super) value: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed<K> {
    pub(super) settings: Vec<Setting<K>>,
    /// `false` if git would refuse the file. `settings` then contains the settings before the error.
    pub(super) is_valid: bool,
}

/// Error of a line that git does not accept.
struct Invalid;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses a configuration file and keeps the settings for which `select` returns a key.
///
/// `select` gets the full name, such as `core.hookspath`: section and key in lower case, a subsection as
/// written. Names are not kept, because a long section name with many keys would take memory quadratic in the
/// length of the text.
pub(super) fn parse<K>(text: &[u8], select: impl Fn(&[u8]) -> Option<K>) -> Parsed<K> {
    let mut settings = Vec::new();
    let mut reader = Reader { rest: text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text), is_at_end: false };
    let is_valid = reader.read(&select, &mut settings).is_ok();
    Parsed { settings, is_valid }
}

/// The name of a section with a dot, followed by the current key.
#[derive(Default)]
struct Name {
    /// Ends before the first NUL, because git reads names as C strings.
    text: Vec<u8>,
    section_length: usize,
    /// `true` if the section name contains a NUL, so that keys are not appended.
    is_cut: bool,
}

impl Name {
    fn of_section(section: Vec<u8>) -> Self {
        let length = section.len();
        let text = until_nul(section);
        Self { section_length: text.len(), is_cut: text.len() < length, text }
    }

    /// Removes the previous key.
    fn restart(&mut self) {
        self.text.truncate(self.section_length);
    }

    fn push(&mut self, byte: u8) {
        if !self.is_cut {
            self.text.push(byte.to_ascii_lowercase());
        }
    }
}

/// Reader of the remaining text. The end of the text counts as a line end.
struct Reader<'a> {
    rest: &'a [u8],
    is_at_end: bool,
}

impl Reader<'_> {
    /// Returns the next byte, with `\r\n` as `\n`.
    fn next(&mut self) -> u8 {
        if let Some(rest) = self.rest.strip_prefix(b"\r\n") {
            self.rest = rest;
            return b'\n';
        }
        match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                *byte
            }
            None => {
                self.is_at_end = true;
                b'\n'
            }
        }
    }

    fn read<K>(
        &mut self,
        select: &impl Fn(&[u8]) -> Option<K>,
        settings: &mut Vec<Setting<K>>,
    ) -> Result<(), Invalid> {
        let mut name = Name::default();
        let mut is_comment = false;
        loop {
            match self.next() {
                b'\n' if self.is_at_end => return Ok(()),
                b'\n' => is_comment = false,
                _ if is_comment => {}
                byte if is_space(byte) => {}
                b'#' | b';' => is_comment = true,
                b'[' => name = Name::of_section(self.section()?),
                byte if byte.is_ascii_alphabetic() => {
                    let value = self.setting(&mut name, byte)?;
                    settings.extend(select(&name.text).map(|key| Setting { key, value }));
                }
                _ => return Err(Invalid),
            }
        }
    }

    /// Reads a section name up to `]`. Returns the name with a trailing dot.
    fn section(&mut self) -> Result<Vec<u8>, Invalid> {
        let mut name = Vec::new();
        loop {
            let byte = self.next();
            if self.is_at_end {
                return Err(Invalid);
            }
            match byte {
                b']' => break,
                byte if is_space(byte) => {
                    self.subsection(byte, &mut name)?;
                    break;
                }
                byte if is_key(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return Err(Invalid),
            }
        }
        if name.is_empty() {
            return Err(Invalid);
        }
        name.push(b'.');
        Ok(name)
    }

    /// Reads `"subsection"]`, from the space after the section name.
    fn subsection(&mut self, mut byte: u8, name: &mut Vec<u8>) -> Result<(), Invalid> {
        while is_space(byte) {
            if byte == b'\n' {
                return Err(Invalid);
            }
            byte = self.next();
        }
        if byte != b'"' {
            return Err(Invalid);
        }
        name.push(b'.');
        loop {
            let mut byte = self.next();
            if byte == b'"' {
                break;
            }
            if byte == b'\\' {
                byte = self.next();
            }
            if byte == b'\n' {
                return Err(Invalid);
            }
            name.push(byte);
        }
        if self.next() == b']' { Ok(()) } else { Err(Invalid) }
    }

    /// Reads a setting whose key begins with `first`. Returns its value.
    fn setting(&mut self, name: &mut Name, first: u8) -> Result<Option<Vec<u8>>, Invalid> {
        name.restart();
        name.push(first);
        let mut byte = self.next();
        while is_key(byte) {
            name.push(byte);
            byte = self.next();
        }
        while byte == b' ' || byte == b'\t' {
            byte = self.next();
        }
        match byte {
            b'\n' => Ok(None),
            b'=' => Ok(Some(until_nul(self.value()?))),
            _ => Err(Invalid),
        }
    }

    /// Reads a value up to the end of its last continued line.
    fn value(&mut self) -> Result<Vec<u8>, Invalid> {
        let mut value = Vec::new();
        let (mut is_quoted, mut is_comment) = (false, false);
        // Length without trailing spaces. `None` if the value does not end with spaces.
        let mut trimmed: Option<usize> = None;
        loop {
            let byte = self.next();
            if byte == b'\n' {
                if is_quoted {
                    return Err(Invalid);
                }
                value.truncate(trimmed.unwrap_or(value.len()));
                return Ok(value);
            }
            if is_comment {
                continue;
            }
            if is_space(byte) && !is_quoted {
                if !value.is_empty() {
                    trimmed.get_or_insert(value.len());
                    value.push(byte);
                }
                continue;
            }
            if !is_quoted && (byte == b';' || byte == b'#') {
                is_comment = true;
                continue;
            }
            trimmed = None;
            match byte {
                b'\\' => match self.next() {
                    // The value continues on the next line.
                    b'\n' => {}
                    b't' => value.push(b'\t'),
                    b'b' => value.push(8),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return Err(Invalid),
                },
                b'"' => is_quoted = !is_quoted,
                byte => value.push(byte),
            }
        }
    }
}

/// Returns the bytes before the first NUL, because git reads names and values as C strings.
fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    bytes
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    const HOOKS: &str = "core.hooksPath";

    fn hooks(text: &[u8]) -> Option<Vec<Vec<u8>>> {
        let parsed = parse(text, |name| Some(name.to_vec()));
        let is_hooks = |setting: &Setting<Vec<u8>>| setting.key == HOOKS.to_ascii_lowercase().as_bytes();
        let found = parsed.settings.into_iter().filter(is_hooks);
        parsed.is_valid.then(|| found.map(|setting| setting.value.unwrap_or_default()).collect())
    }

    #[test]
    fn values_are_read_as_git_reads_them() {
        let check = |text: &[u8], expected: &str| {
            let shown = String::from_utf8_lossy(text).into_owned();
            assert_eq!(hooks(text), Some(vec![expected.as_bytes().to_vec()]), "{shown}");
        };
        check(b"[core]\n\thooksPath = scripts/hooks ; ours\n", "scripts/hooks");
        check(b"\xef\xbb\xbf[core]\nhooksPath=a", "a");
        check(b"[user]\nname = J\xf6rg\n[CORE] HOOKSPATH = a", "a");
        check(b"[core]\nhooksPath = scripts\"/hooks\"\n", "scripts/hooks");
        check(b"[core]\nhooksPath = scri\\\npts/hooks\n", "scripts/hooks");
        check(b"[core]\r\nhooksPath = \" a#b \" # c\r\n", " a#b ");
        check(b"[core]\nhooksPath = a \\\r\n b  \n", "a  b");
        check(b"[core]\nhooksPath = \"a\\\\b\\t\\\"\"\n", "a\\b\t\"");
        check(b"[core]\nhooksPath = a\0b\n", "a");
        check(b"[core \"hookspath\0\"]\nx = a\n", "a");
        check(b"[remote \"a]\\\"\"]\nx = [\n[core]\nhooksPath = a", "a");
        for refused in
            [&b"[core\nhooksPath = a"[..], b"[core]\nhooksPath = \"a", b"=", b"[core]\nhooksPath = \\x"]
        {
            assert_eq!(hooks(refused), None, "{}", String::from_utf8_lossy(refused));
        }
    }

    /// Returns the values according to git; `None` if git refuses the file.
    fn hooks_by_git(text: &[u8]) -> Option<Vec<Vec<u8>>> {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("config");
        std::fs::write(&file, text).expect("a file");
        let output = Command::new("git")
            .args(["config", "--no-includes", "--null", "--file"])
            .arg(&file)
            .args(["--get-all", HOOKS])
            .output()
            .expect("git runs");
        match output.status.code() {
            Some(0) => {
                let text = output.stdout.strip_suffix(b"\0").unwrap_or(&output.stdout);
                Some(text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
            }
            Some(1) => Some(Vec::new()),
            _ => None,
        }
    }

    /// Generates texts from pieces that have a meaning for git.
    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let pieces: Vec<&'static [u8]> = vec![
            b"[core]",
            b"[core]\n",
            b"[core]\nhooksPath = ",
            b"hooksPath",
            b"hooksPath=",
            b" = ",
            b"=",
            b"\n",
            b"\r\n",
            b"\r",
            b" ",
            b"\t",
            b"\"",
            b"\\",
            b"\\\n",
            b"\\\"",
            b"\\n",
            b"\\x",
            b"#",
            b";",
            b"[",
            b"]",
            b"[core \"x\"]",
            b"[core \"",
            b"\"]",
            b"[include]\npath = x",
            b"[remote \"a.b\"]\nurl = ",
            b"a",
            b"a/b",
            b"~/",
            b"\0",
            b"\xef\xbb\xbf",
            b"\xef",
            b"\xf6",
            b"-",
            b".",
            b"[core.hookspath]",
            b"[]",
            b"\x0b",
            b"1",
        ];
        prop::collection::vec(prop::sample::select(pieces), 0..14).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_configuration_is_read_without_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
            parse(&text, |name| Some(name.len()));
        }
    }

    #[test]
    fn generated_files_are_read_as_git_reads_them() {
        if Command::new("git").arg("--version").output().is_err() {
            eprintln!("skipped: git is not installed");
            return;
        }
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
        let outcome = runner.run(&texts(), |text| {
            let shown = String::from_utf8_lossy(&text).into_owned();
            prop_assert_eq!(hooks(&text), hooks_by_git(&text), "{}", shown);
            Ok(())
        });
        outcome.expect("both agree");
    }
}
