//! URIs of resources that an agent reads from an MCP server.
//!
//! Servers parse URIs differently: many strip spaces, drop line breaks, treat a backslash as a slash, ignore
//! the host, or open a bare path. A URI counts as opaque, or as one file, only if all parsers agree. For any
//! other URI, every file that it may denote is judged.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResourceUri {
    /// A URI of another scheme. Only the server knows its meaning.
    OtherScheme,
    File(PathBuf),
    /// A URI that parsers read differently. It denotes one of these files, or something else.
    Unclear(Vec<PathBuf>),
}

impl ResourceUri {
    pub(crate) fn parse(uri: &str) -> Self {
        // Most parsers begin with the preprocessing of the WHATWG URL standard.
        let text: String = uri.trim_matches(|letter| letter <= ' ').replace(['\t', '\r', '\n'], "");
        match split_scheme(&text) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("file") => match plain_file(rest) {
                Some(path) if text == uri => Self::File(path),
                _ => Self::Unclear(file_candidates(rest).into_iter().collect()),
            },
            Some((scheme, rest)) if !may_be_file(scheme, rest) => Self::OtherScheme,
            _ => Self::Unclear(mentioned_paths(&text).into_iter().collect()),
        }
    }
}

/// Returns the scheme of a URI, and the rest after the colon.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    // A scheme of one letter is a Windows drive.
    let is_scheme = scheme.len() > 1
        && scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && scheme.bytes().all(is_part);
    is_scheme.then_some((scheme, rest))
}

/// Returns `true` if a URI of another scheme may lead to a file, such as `git+file:///x` or
/// `view-source:file:///x`.
fn may_be_file(scheme: &str, rest: &str) -> bool {
    scheme.split(['+', '-', '.']).any(|part| part.eq_ignore_ascii_case("file")) || find_file(rest).is_some()
}

/// Returns the text after the colon of the first `file:` URI in `text`.
fn find_file(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    let at = ["file:/", "file:\\"].iter().filter_map(|start| lower.find(start)).min()?;
    text.get(at + "file:".len()..)
}

/// Returns the path after `file:` if every parser finds the same path.
fn plain_file(rest: &str) -> Option<PathBuf> {
    let path = match rest.strip_prefix("//") {
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/')?);
            (host.is_empty() || host.eq_ignore_ascii_case("localhost")).then_some(path)?
        }
        None => rest,
    };
    let bytes = percent_decode(path)?;
    let is_plain = path.starts_with('/') && !path.contains(['?', '#', '\\']) && !bytes.contains(&0);
    is_plain.then(|| to_path(bytes))
}

/// Returns every path that the text after `file:` may denote.
fn file_candidates(rest: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for rest in [rest.to_owned(), rest.replace('\\', "/")] {
        let after = rest.strip_prefix("//").unwrap_or(&rest);
        found.extend(path_candidates(after));
        found.extend(path_candidates(&format!("/{after}")));
        if after.len() < rest.len()
            && let Some(at) = after.find('/')
        {
            found.extend(path_candidates(&after[at..]));
        }
    }
    found
}

/// Returns every path that a URI without a clear scheme may denote.
fn mentioned_paths(text: &str) -> BTreeSet<PathBuf> {
    let decoded = percent_decode(text).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let mut found = BTreeSet::new();
    for text in [Some(text), decoded.as_deref()].into_iter().flatten() {
        found.extend(path_candidates(text));
        found.extend(path_candidates(&text.replace('\\', "/")));
        found.extend(find_file(text).map(file_candidates).into_iter().flatten());
    }
    found
}

/// Returns the possible paths in a text: as written and percent-decoded, each whole and cut at a query,
/// fragment or NUL.
fn path_candidates(text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for text in [text, text.split(['?', '#']).next().unwrap_or_default()] {
        for bytes in [Some(text.as_bytes().to_vec()), percent_decode(text)].into_iter().flatten() {
            let until_nul = bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
            found.extend([bytes, until_nul].into_iter().filter(|bytes| !bytes.is_empty()).map(to_path));
        }
    }
    found
}

/// Decodes percent encoding. Returns `None` if it is invalid.
fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?
            }
            byte => byte,
        });
    }
    Some(bytes)
}

fn to_path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uri_is_one_file_only_if_all_parsers_agree() {
        for uri in [
            "file:///w/a%20b",
            "FILE:///w/a%20b",
            "file:/w/a%20b",
            "file://LocalHost/w/a%20b",
            "file:///w/a b",
        ] {
            assert_eq!(ResourceUri::parse(uri), ResourceUri::File("/w/a b".into()), "{uri}");
        }
    }

    #[test]
    fn a_uri_with_another_scheme_is_opaque() {
        for uri in
            ["notes://a/b", "https://example.com/a?b#c", " urn:x:y", "profile:1", "db:users", "x-y+z.1:/a"]
        {
            assert_eq!(ResourceUri::parse(uri), ResourceUri::OtherScheme, "{uri}");
        }
    }

    #[test]
    fn a_file_is_found_in_every_spelling_of_its_uri() {
        for uri in [
            " file:///secret/x",
            "\tfile:///secret/x",
            "\u{1}file:///secret/x",
            "file:///secret/x\n",
            "fi\nle:///secret/x",
            "f\ti\rle:///se\ncret/x",
            "file://127.0.0.1/secret/x",
            "file://[::1]/secret/x",
            "file://user@host:1/secret/x",
            "file://%6cocalhost/secret/x",
            "file:\\/secret/x",
            "file:\\\\\\secret\\x",
            "file:///secret\\x",
            "file:secret/x",
            "file://secret/x",
            "file:///secret/x?y",
            "file:///secret/x#y",
            "file:///secret/x%00.txt",
            "/secret/x",
            " /secret/x",
            "//secret/x",
            "%2Fsecret%2Fx",
            "\\secret\\x",
            "view-source:file:///secret/x",
            "git+file:///secret/x",
            "\u{feff}file:///secret/x",
            "fi%6ce:///secret/x",
            "fi%6Ce%3A%2F%2F%2Fsecret%2Fx",
        ] {
            let found = ResourceUri::parse(uri);
            let is_found =
                |paths: &[PathBuf]| paths.iter().any(|path| path == std::path::Path::new("/secret/x"));
            assert!(matches!(&found, ResourceUri::Unclear(paths) if is_found(paths)), "{uri:?} {found:?}");
        }
        for uri in ["", "secret", "C:\\secret", "file:", "file://", "1:x", ":", "file:///%zz"] {
            assert!(matches!(ResourceUri::parse(uri), ResourceUri::Unclear(_)), "{uri:?}");
        }
    }

    proptest! {
        #[test]
        fn no_uri_causes_a_panic(uri in "\\PC{0,40}", odd in "(fi\nle|file|FILE| file)?:?[/\\\\%?#a-f0-9\u{0}é]{0,20}") {
            let _ = (ResourceUri::parse(&uri), ResourceUri::parse(&odd));
        }
    }
}
