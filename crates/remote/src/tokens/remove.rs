//! Removes a token from the token file without changing the rest of its text.

use std::path::Path;

use super::location::{lock_directory, replace, resolve};
use super::{HEADER, TokenError, Tokens, text};

/// Removes the token of `name` from the file at `path`. Servers no longer accept the removed token.
///
/// # Errors
/// If there is no such token, or the file cannot be read or written. The file is unchanged then.
pub fn remove(path: &Path, name: &str) -> Result<(), TokenError> {
    let failed = |error| TokenError::Io { path: path.to_owned(), error };
    let path = &resolve(path).map_err(failed)?;
    let _lock = lock_directory(path).map_err(failed)?;
    let file = text(path)?;
    let names = |tokens: &Tokens| tokens.identities().map(|who| who.name.clone()).collect::<Vec<_>>();
    let mut left = names(&Tokens::parse(path, &file)?);
    let Some(at) = left.iter().position(|known| known == name) else {
        return Err(TokenError::Absent(name.to_owned()));
    };
    left.remove(at);
    let rest =
        without_entry(&file, |part| Tokens::parse(path, part).is_ok_and(|part| names(&part) == [name]));
    // The file may be written in a form that cannot be split by lines.
    if names(&Tokens::parse(path, &rest)?) != left {
        return Err(TokenError::Form(path.to_owned()));
    }
    // An empty file must still be recognizable as a token file.
    let rest = if rest.trim().is_empty() { HEADER } else { &rest };
    replace(path, rest).map_err(failed)
}

/// Returns the text without the entry that `is_it` selects. An entry runs from its `[[token]]` to the next
/// one.
fn without_entry(file: &str, is_it: impl Fn(&str) -> bool) -> String {
    let mut parts = vec![String::new()];
    for line in file.split_inclusive('\n') {
        if line.trim() == "[[token]]" {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(line);
        }
    }
    parts.into_iter().filter(|part| !is_it(part)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::{Digest, add, is_marked};
    use super::*;

    #[test]
    fn a_removed_token_is_not_accepted_and_the_others_are() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        std::fs::write(&path, "# ours\n").unwrap();
        let tokens = ["a", "b", "c"].map(|name| add(&path, name, None, SystemTime::UNIX_EPOCH).unwrap());
        remove(&path, "b").unwrap();
        let left = Tokens::read(&path).unwrap();
        let found = tokens.map(|token| left.find(&Digest::new(&token)).map(|who| who.name.clone()));
        assert_eq!(found, [Some("a".to_owned()), None, Some("c".to_owned())]);
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# ours\n"));
        assert!(matches!(remove(&path, "b"), Err(TokenError::Absent(_))));
        assert!(add(&path, "b", None, SystemTime::UNIX_EPOCH).is_ok());
        assert!(matches!(remove(&directory.path().join("none"), "b"), Err(TokenError::Io { .. })));
    }

    #[test]
    fn a_token_file_without_tokens_is_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("any.toml");
        let written = || std::fs::read_to_string(&path).unwrap();
        for begin in ["", "[[token]]\nname = \"z\"\nhash = \"n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg\"\n"]
        {
            std::fs::write(&path, begin).unwrap();
            add(&path, "a", None, SystemTime::UNIX_EPOCH).unwrap();
            remove(&path, "a").unwrap();
            if !begin.is_empty() {
                assert!(!is_marked(&written()), "other text is kept");
                remove(&path, "z").unwrap();
            }
            assert_eq!(written().trim_end(), HEADER.trim_end());
            assert!(is_marked(&written()) && Tokens::read(&path).is_ok());
        }
    }

    #[test]
    fn a_file_in_another_form_is_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let hash = Digest::new("x").text();
        let text = format!(
            "token = [{{ name = \"a\", hash = \"{hash}\" }}, {{ name = \"b\", hash = \"{hash}\" }}]\n"
        );
        std::fs::write(&path, &text).unwrap();
        assert!(matches!(remove(&path, "a"), Err(TokenError::Form(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
