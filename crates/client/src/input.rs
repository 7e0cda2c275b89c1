//! Input of a prompt: text, and images that are checked before they are sent.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

const MAX_IMAGE_BYTES: u64 = 10 << 20;

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Text(String),
    /// An image file; a relative path starts in the session's directory.
    Image(PathBuf),
}

impl Input {
    /// Checks that the input can be sent: an image must be a file of a known format, and not too large. A
    /// relative path starts in `cwd`. Blocks.
    ///
    /// # Errors
    /// Describes the problem, without the file name.
    pub fn check(&self, cwd: &Path) -> std::io::Result<()> {
        let Self::Image(path) = self else { return Ok(()) };
        let too_large = || format!("it is larger than {} MiB", MAX_IMAGE_BYTES >> 20);
        image(&cwd.join(path)).map(drop).map_err(|error| match error {
            InputError::Unreadable { error, .. } => error,
            InputError::TooLarge(_) => std::io::Error::other(too_large()),
            _ => std::io::Error::other("it is not a PNG, JPEG, GIF or WebP image"),
        })
    }
}

impl From<&str> for Input {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A content block of a prompt, valid in both protocol versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    Text {
        text: String,
    },
    #[serde(rename_all = "camelCase")]
    Image {
        mime_type: &'static str,
        data: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("the agent does not accept images: {}", .0.display())]
    NoImages(PathBuf),
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{} is not a PNG, JPEG, GIF or WebP image", .0.display())]
    NoImage(PathBuf),
    #[error("{} is larger than {} MiB", .0.display(), MAX_IMAGE_BYTES >> 20)]
    TooLarge(PathBuf),
    #[error("the prompt is empty")]
    Empty,
}

/// Returns the content blocks of `inputs`. Consecutive texts are joined with a blank line.
pub(crate) fn blocks(inputs: &[Input], cwd: &Path, takes_images: bool) -> Result<Vec<Block>, InputError> {
    let mut blocks = Vec::new();
    for input in inputs {
        match (input, blocks.last_mut()) {
            (Input::Text(more), Some(Block::Text { text })) => {
                text.push_str("\n\n");
                text.push_str(more);
            }
            (Input::Text(text), _) => blocks.push(Block::Text { text: text.clone() }),
            (Input::Image(path), _) if !takes_images => return Err(InputError::NoImages(path.clone())),
            (Input::Image(path), _) => blocks.push(image(&cwd.join(path))?),
        }
    }
    if blocks.is_empty() { Err(InputError::Empty) } else { Ok(blocks) }
}

/// Reads an image for a prompt. The caller chose the file, so its directory is not restricted.
fn image(path: &Path) -> Result<Block, InputError> {
    let unreadable = |error| InputError::Unreadable { path: path.to_owned(), error };
    // The file type is checked before the file is opened, because opening a pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(InputError::NoImage(path.to_owned()));
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_IMAGE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_IMAGE_BYTES {
        return Err(InputError::TooLarge(path.to_owned()));
    }
    let mime_type = sniff(&bytes).ok_or_else(|| InputError::NoImage(path.to_owned()))?;
    Ok(Block::Image { mime_type, data: STANDARD.encode(bytes) })
}

/// Detects the image type from the first bytes, regardless of the file name.
fn sniff(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_joined_and_images_keep_their_position() {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::write(place.path().join("a.png"), b"\x89PNG\r\n\x1a\nrest").expect("a file");
        let inputs = ["one".into(), "two".into(), Input::Image("a.png".into()), "three".into()];
        let read = blocks(&inputs, place.path(), true).expect("blocks");
        let text = |text: &str| Block::Text { text: text.to_owned() };
        let picture =
            Block::Image { mime_type: "image/png", data: STANDARD.encode(b"\x89PNG\r\n\x1a\nrest") };
        assert_eq!(read, [text("one\n\ntwo"), picture, text("three")]);
        let written = serde_json::to_string(&read[1]).expect("plain data");
        assert!(written.starts_with(r#"{"type":"image","mimeType":"image/png","data":""#), "{written}");
    }

    #[test]
    fn invalid_images_are_refused() {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::write(place.path().join("secret.png"), "token=1").expect("a file");
        #[track_caller]
        fn check(place: &Path, path: &str, takes_images: bool, expected: &str) {
            let error = blocks(&[Input::Image(path.into())], place, takes_images).expect_err(path);
            assert!(error.to_string().contains(expected), "{error}");
        }
        check(place.path(), "secret.png", true, "is not a PNG");
        check(place.path(), ".", true, "is not a PNG");
        check(place.path(), "missing.png", true, "No such file");
        check(place.path(), "secret.png", false, "does not accept images");
        assert!(matches!(blocks(&[], place.path(), true), Err(InputError::Empty)));
    }
}
