//! The file of tokens: names, scopes and hashes, never a token.
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
pub use inspect::{Inspected, inspect};
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

/// The longest file of tokens that is read.
const MAX_FILE: u64 = 1 << 20;

/// What stands before the random part of a token, so that people and scanners know what it is.
const PREFIX: &str = "nrw_";

/// The first line of a file that we make: it also tells what a file is that has no token, or none any more.
const HEADER: &str = "# The tokens of clients, by `narrows token`: names and hashes, never a token\n";

/// Whether a text says of itself that it is a file of tokens, if it has some or not.
#[must_use]
pub fn is_marked(text: &str) -> bool {
    text.lines().any(|line| line == HEADER.trim_end())
}

/// Why a file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Everybody can write it, and so make a token.
    #[error("{}: can be written by everybody", .0.display())]
    Exposed(PathBuf),
    /// It is longer than any file of tokens.
    #[error("{}: longer than 1 MiB", .0.display())]
    TooLong(PathBuf),
    /// It is not what a file of tokens looks like.
    #[error("{}:{line}:{column}: {error}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, in characters from 1.
        column: usize,
        /// Why; without the text of the file.
        error: String,
    },
    /// A name that is none.
    #[error("{0:?} is not a name for a token")]
    Name(String),
    /// A name that another token has.
    #[error("there is a token of the name {0:?} already")]
    Taken(String),
    /// There is no token of that name.
    #[error("there is no token of the name {0:?}")]
    Absent(String),
    /// It is written in a form of its owner's.
    #[error("{}: not written as `narrows token new` does; take it out by hand", .0.display())]
    Form(PathBuf),
    /// A token that is kept to no pool at all.
    #[error("`pools` is empty: leave it out to permit every pool")]
    NoPools,
    /// A name that no pool can have.
    #[error("{0:?} is not a name for a pool")]
    Pool(String),
    /// What a token is to be narrowed to means no tool.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// The system gave no random numbers.
    #[error("no random numbers to be had")]
    Random,
}

/// A token as it is kept: recognised, and never shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of what somebody showed.
    #[must_use]
    pub fn of(token: &str) -> Self {
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

    /// Whether both are the same, in a time that does not tell where they differ.
    fn is(&self, other: &Self) -> bool {
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

/// The tokens that are known.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    known: Vec<Known>,
}

/// One of them.
#[derive(Clone, Debug)]
struct Known {
    digest: Digest,
    identity: Identity,
    created: Option<String>,
}

impl Tokens {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is not what it should be, or can be written by everybody.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        Self::parse(path, &text(path)?)
    }

    /// Reads the text of `path`.
    fn parse(path: &Path, text: &str) -> Result<Self, TokenError> {
        let file = path.display().to_string();
        let read = Node::read_toml(&Findings::new(&file, text), |table| Some(inspect::read(table)));
        // Without the hint, which would show the line: a token may stand there.
        let failed = |Finding { pos, message: error, .. }: Finding| TokenError::Syntax {
            path: path.to_owned(),
            line: pos.line,
            column: pos.column,
            error,
        };
        read.map(|file| Self { known: file.known }).map_err(failed)
    }

    /// Whose it is. Every token is compared, in constant time.
    #[must_use]
    pub fn find(&self, digest: &Digest) -> Option<&Identity> {
        let mut found = None;
        for Known { digest: known, identity, .. } in &self.known {
            if known.is(digest) {
                found = Some(identity);
            }
        }
        found
    }

    /// Everybody who has a token.
    pub fn identities(&self) -> impl Iterator<Item = &Identity> {
        self.listed().map(|(identity, _)| identity)
    }

    /// The same, with when the token was made, as far as the file says so.
    pub fn listed(&self) -> impl Iterator<Item = (&Identity, Option<&str>)> {
        self.known.iter().map(|known| (&known.identity, known.created.as_deref()))
    }
}

/// Why a token cannot be kept to these pools.
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
    if about.len() > MAX_FILE {
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
        format!("[[token]]\nname = {name:?}\nhash = {:?}\n{more}\n", Digest::of(name).text())
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
        check(&format!("{0}{0}", entry("a", "")), Err("there is a token of the name \"a\" already"));
        check(&entry("a b", ""), Err("not a name"));
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
        check(&entry("a", "pools = [\"a b\"]"), Err("\"a b\" is not a name for a pool"));
        check("x = secret", Err("tokens.toml:1:5: "));
        assert!(!Tokens::parse(Path::new("t"), "x = secret").unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn a_token_is_found_by_its_hash() {
        let text = format!("{}{}", entry("one", "scopes = [\"read\"]"), entry("two", ""));
        let tokens = Tokens::parse(Path::new("t"), &text).unwrap();
        let one = tokens.find(&Digest::of("one")).unwrap();
        assert_eq!((&*one.name, one.scopes.as_deref()), ("one", Some(&["read".to_owned()][..])));
        assert_eq!(tokens.find(&Digest::of("two")).unwrap().scopes, None);
        assert_eq!(tokens.find(&Digest::of("three")), None);
        assert_eq!(tokens.find(&Digest::of("")), None);
        // The hash itself opens nothing.
        assert_eq!(tokens.find(&Digest::of(&Digest::of("one").text())), None);
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text: String) {
            _ = Tokens::parse(Path::new("t"), &text);
        }

        #[test]
        fn two_digests_are_the_same_if_their_texts_are(one in "[a-b]{0,2}", two in "[a-b]{0,2}") {
            prop_assert_eq!(Digest::of(&one).is(&Digest::of(&two)), one == two);
        }
    }
}
