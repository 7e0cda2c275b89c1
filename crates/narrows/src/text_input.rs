//! Texts of files and pipes. They are read up to a limit, because a device or a program can send without end.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// Maximum size of an accepted text, and of an accepted line.
pub(crate) const MAX_INPUT_BYTES: usize = 16 << 20;

/// Returns the text of a file.
///
/// # Errors
/// The error of the system; [`io::ErrorKind::FileTooLarge`] over [`MAX_INPUT_BYTES`];
/// [`io::ErrorKind::InvalidData`] if the text is not UTF-8.
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    read_all(File::open(path)?)
}

/// Returns the whole text of `input`.
///
/// # Errors
/// See [`read_file`].
pub(crate) fn read_all(input: impl Read) -> io::Result<String> {
    let mut text = Vec::new();
    input.take(MAX_INPUT_BYTES as u64 + 1).read_to_end(&mut text)?;
    if text.len() > MAX_INPUT_BYTES {
        return Err(too_long("the text"));
    }
    utf8(text)
}

/// Returns the next line with its end, or `None` at the end of `input`.
///
/// # Errors
/// See [`read_file`].
pub(crate) fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let length = input.take(MAX_INPUT_BYTES as u64).read_until(b'\n', &mut line)?;
    if length == MAX_INPUT_BYTES && !line.ends_with(b"\n") {
        return Err(too_long("a line"));
    }
    if length == 0 { Ok(None) } else { utf8(line).map(Some) }
}

fn too_long(what: &str) -> io::Error {
    let limit = format!("{what} is longer than {} MiB", MAX_INPUT_BYTES >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, limit)
}

fn utf8(text: Vec<u8>) -> io::Result<String> {
    String::from_utf8(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_end_is_read_up_to_the_bound() {
        let endless = || io::BufReader::new(io::repeat(b'x'));
        for error in [
            read_all(endless()).unwrap_err(),
            read_line(&mut endless()).unwrap_err(),
            read_file(Path::new("/dev/zero")).unwrap_err(),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
            assert!(error.to_string().ends_with("is longer than 16 MiB"), "{error}");
        }
    }
}
