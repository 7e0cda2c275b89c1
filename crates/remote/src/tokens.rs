//! The token file: names, scopes and hashes of tokens, never a token itself.
//!
//! ```toml
//! [[token]]
//! name = "laptop"
//! hash = "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg"   # SHA-256 of the token, base64url
//! scopes = ["read"]                                       # optional
//! pools = ["default"]                                     # optional
//! created = "2026-11-16T12:00:00Z"
//! ```

mod add;
mod inspect;
mod location;
mod remove;

pub use add::{add, add_for_pools};
pub use inspect::{InspectedTokens, inspect};
pub use remove::remove;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use narrows_config::{Finding, Findings, Node};
use narrows_policy::ScopeError;
use ring::digest::{SHA256, digest};

use crate::identity::{Identity, is_name};

const MAX_FILE_BYTES: u64 = 1 << 20;

/// Prefix of every token, so that people and secret scanners recognize it.
const TOKEN_PREFIX: &str = "nrw_";

/// First line of a token file that this program creates. The line marks the file as a token file even without
/// tokens.
const HEADER: &str = "# The tokens of clients, by `narrows token`: names and hashes, never a token\n";

/// Returns `true` if a text is marked as a token file, even one without tokens.
#[must_use]
pub fn is_marked(text: &str) -> bool {
    text.lines().any(|line| line == HEADER.trim_end())
}

/// An error in a token file.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// Every user can write the file, and so add a token.
    #[error("{}: writable by every user", .0.display())]
    Exposed(PathBuf),
    #[error("{}: longer than 1 MiB", .0.display())]
    TooLong(PathBuf),
    #[error("{}:{line}:{column}: {error}", path.display())]
    Syntax {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, in characters from 1.
        column: usize,
        /// The reason, without the text of the file.
        error: String,
    },
    #[error("invalid token name {0:?}")]
    Name(String),
    #[error("token {0:?} already exists")]
    Taken(String),
    #[error("{}: the name {name:?} has another token in {}", path.display(), other.display())]
    Elsewhere { path: PathBuf, name: String, other: PathBuf },
    #[error("token {0:?} does not exist")]
    Absent(String),
    /// The file was edited in a form that tokens cannot be removed from.
    #[error("{}: not in the format of `narrows token new`; remove the entry by hand", .0.display())]
    Form(PathBuf),
    /// The list of pools is empty, so the token would be useless.
    #[error("`pools` is empty: leave it out to permit every pool")]
    NoPools,
    #[error("invalid pool name {0:?}")]
    Pool(String),
    #[error(transparent)]
    Scope(#[from] ScopeError),
    #[error("no random numbers available")]
    Random,
}

/// The hash of a token. Debug output does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the hash of a token.
    #[must_use]
    pub fn new(token: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self(bytes)
    }

    fn parse(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(Self)
    }

    fn text(self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Compares in constant time, so that response times reveal nothing.
    fn equals(&self, other: &Self) -> bool {
        let mut different = 0;
        for (one, two) in self.0.iter().zip(&other.0) {
            different |= std::hint::black_box(one ^ two);
        }
        std::hint::black_box(different) == 0
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest")
    }
}

/// The tokens of a token file.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    known: Vec<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    digest: Digest,
    identity: Identity,
    created: Option<String>,
}

impl Tokens {
    /// Reads a token file.
    ///
    /// # Errors
    /// If the file cannot be read, is invalid, or every user can write it.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        Self::parse(path, &text(path)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TokenError> {
        let file = path.display().to_string();
        let read = Node::read_toml(&Findings::new(&file, text), |table| Some(inspect::read(table)));
        // The hint of a finding is left out: it shows the line, which may contain a token.
        let failed = |Finding { pos, message: error, .. }: Finding| TokenError::Syntax {
            path: path.to_owned(),
            line: pos.line,
            column: pos.column,
            error,
        };
        read.map(|file| Self { known: file.known }).map_err(failed)
    }

    /// Returns the owner of a token. Every token is compared, in constant time.
    #[must_use]
    pub fn find(&self, digest: &Digest) -> Option<&Identity> {
        let mut found = None;
        for Known { digest: known, identity, .. } in &self.known {
            if known.equals(digest) {
                found = Some(identity);
            }
        }
        found
    }

    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Digest)> {
        self.known.iter().map(|known| (&*known.identity.name, &known.digest))
    }

    /// Returns the owners of all tokens.
    pub fn identities(&self) -> impl Iterator<Item = &Identity> {
        self.listed().map(|(identity, _)| identity)
    }

    /// Returns the owners of all tokens, each with the creation time of the token if the file contains it.
    pub fn listed(&self) -> impl Iterator<Item = (&Identity, Option<&str>)> {
        self.known.iter().map(|known| (&known.identity, known.created.as_deref()))
    }
}

/// Returns the reason why a token cannot be restricted to these pools.
fn unusable_pools(pools: &[String]) -> Option<TokenError> {
    if pools.is_empty() {
        return Some(TokenError::NoPools);
    }
    pools.iter().find(|pool| !is_name(pool)).map(|pool| TokenError::Pool(pool.clone()))
}

fn text(path: &Path) -> Result<String, TokenError> {
    let failed = |error| TokenError::Io { path: path.to_owned(), error };
    let about = fs::metadata(path).map_err(failed)?;
    if about.mode() & 0o002 != 0 {
        return Err(TokenError::Exposed(path.to_owned()));
    }
    if about.len() > MAX_FILE_BYTES {
        return Err(TokenError::TooLong(path.to_owned()));
    }
    fs::read_to_string(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&[&str], &str>) {
        let tokens = Tokens::parse(Path::new("tokens.toml"), text);
        match (tokens, expected) {
            (Ok(tokens), Ok(names)) => {
                assert_eq!(tokens.identities().map(|who| &*who.name).collect::<Vec<_>>(), names);
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (tokens, _) => panic!("{tokens:?}"),
        }
    }

    fn entry(name: &str, more: &str) -> String {
        format!("[[token]]\nname = {name:?}\nhash = {:?}\n{more}\n", Digest::new(name).text())
    }

    #[test]
    fn files() {
        check("", Ok(&[]));
        check(&entry("a", ""), Ok(&["a"]));
        check(
            &format!("{}{}", entry("a", "scopes = []"), entry("b", "created = 2026-11-16T12:00:00Z")),
            Ok(&["a", "b"]),
        );
        check(&entry("a", "created = \"2026-11-16T12:00:00Z\""), Ok(&["a"]));
        check(&format!("{0}{0}", entry("a", "")), Err("token \"a\" already exists"));
        check(&entry("a b", ""), Err("invalid token name"));
        check("[[token]]\nname = \"a\"\nhash = \"short\"", Err("the hash is not"));
        check(&entry("a", "token = \"secret\""), Err("unknown setting `token` in [token]"));
        check(&entry("a", "scopes = [\"kind:read\", \"notes/*\"]"), Ok(&["a"]));
        check(
            &entry("a", "scopes = [\"kind:read\", \"kind:exec\"]"),
            Err("tokens.toml:4:24: no tool is of the kind `exec`; did you mean kind:execute?"),
        );
        check(&entry("a", "scopes = [\"\"]"), Err("tokens.toml:4:11: a scope is empty"));
        check(&entry("a", "pools = [\"echo\"]"), Ok(&["a"]));
        check(&entry("a", "pools = []"), Err("tokens.toml:4:9: `pools` is empty"));
        check(&entry("a", "pools = [\"a b\"]"), Err("invalid pool name \"a b\""));
        check("x = secret", Err("tokens.toml:1:5: "));
        assert!(!Tokens::parse(Path::new("t"), "x = secret").unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn a_token_is_found_by_its_hash() {
        let text = format!("{}{}", entry("one", "scopes = [\"read\"]"), entry("two", ""));
        let tokens = Tokens::parse(Path::new("t"), &text).unwrap();
        let one = tokens.find(&Digest::new("one")).unwrap();
        assert_eq!((&*one.name, one.scopes.as_deref()), ("one", Some(&["read".to_owned()][..])));
        assert_eq!(tokens.find(&Digest::new("two")).unwrap().scopes, None);
        assert_eq!(tokens.find(&Digest::new("three")), None);
        assert_eq!(tokens.find(&Digest::new("")), None);
        // The hash is not accepted as a token.
        assert_eq!(tokens.find(&Digest::new(&Digest::new("one").text())), None);
    }

    proptest! {
        #[test]
        fn no_input_panics(text: String) {
            _ = Tokens::parse(Path::new("t"), &text);
        }

        #[test]
        fn two_digests_are_the_same_if_their_texts_are(one in "[a-b]{0,2}", two in "[a-b]{0,2}") {
            prop_assert_eq!(Digest::new(&one).equals(&Digest::new(&two)), one == two);
        }
    }
}
