//! Adds a token to the token file. The token is returned once; only its hash is stored.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use narrows_policy::check_new_scope;
use ring::rand::{SecureRandom, SystemRandom};

use super::location::{lock_directory, replace, resolve};
use super::{Digest, HEADER, TOKEN_PREFIX, TokenError, Tokens, text, unusable_pools};
use crate::identity::is_name;

/// Creates a token for `name` and adds its hash to the file at `path`, which is created if it is missing. The token is
/// returned and stored nowhere.
///
/// # Errors
/// If the name is invalid or taken, a scope matches no tool, or the file cannot be read or written. The file is
/// unchanged then.
pub fn add(
    path: &Path,
    name: &str,
    scopes: Option<&[String]>,
    now: SystemTime,
) -> Result<String, TokenError> {
    add_for_pools(path, name, scopes, None, now)
}

/// Creates a token that is restricted to `pools`; see [`add`].
///
/// # Errors
/// Those of [`add`], and an error if the name of a pool is invalid.
pub fn add_for_pools(
    path: &Path,
    name: &str,
    scopes: Option<&[String]>,
    pools: Option<&[String]>,
    now: SystemTime,
) -> Result<String, TokenError> {
    let failed = |error| TokenError::Io { path: path.to_owned(), error };
    if !is_name(name) {
        return Err(TokenError::Name(name.to_owned()));
    }
    scopes.into_iter().flatten().try_for_each(|scope| check_new_scope(scope))?;
    if let Some(error) = pools.and_then(unusable_pools) {
        return Err(error);
    }
    let path = &resolve(path).map_err(failed)?;
    let _lock = lock_directory(path).map_err(failed)?;
    let mut file = match text(path) {
        Ok(text) => text,
        Err(TokenError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let known = Tokens::parse(path, &file)?;
    if known.identities().any(|identity| identity.name == name) {
        return Err(TokenError::Taken(name.to_owned()));
    }
    let mut random = [0; 32];
    SystemRandom::new().fill(&mut random).map_err(|_| TokenError::Random)?;
    let token = format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
    if file.is_empty() {
        file.push_str(HEADER);
    }
    if file != HEADER {
        file.push_str(if file.ends_with('\n') { "\n" } else { "\n\n" });
    }
    file.push_str(&entry(name, Digest::new(&token), scopes, pools, now));
    replace(path, &file).map_err(failed)?;
    Ok(token)
}

fn entry(
    name: &str,
    digest: Digest,
    scopes: Option<&[String]>,
    pools: Option<&[String]>,
    now: SystemTime,
) -> String {
    let created = jiff::Timestamp::try_from(now).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ");
    let mut entry = format!("[[token]]\nname = {}\nhash = \"{}\"\n", quoted(name), digest.text());
    for (key, list) in [("scopes", scopes), ("pools", pools)] {
        if let Some(list) = list {
            let list: Vec<_> = list.iter().map(|text| quoted(text)).collect();
            entry.push_str(&format!("{key} = [{}]\n", list.join(", ")));
        }
    }
    entry.push_str(&format!("created = \"{created}\"\n"));
    entry
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn an_added_token_is_found_and_not_stored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let now = SystemTime::UNIX_EPOCH;
        let one = add(&path, "one", None, now).unwrap();
        fs::write(&path, format!("# mine\n{}", fs::read_to_string(&path).unwrap())).unwrap();
        let scopes = ["read".to_owned(), "a\"b\"\\".to_owned()];
        let two = add(&path, "two", Some(&scopes), now).unwrap();
        assert_ne!(one, two);
        assert!(one.starts_with("nrw_") && one.len() == 47, "{}", one.len());
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("# mine\n") && text.contains("created = \"1970-01-01T00:00:00Z\""),
            "{text}"
        );
        assert!(!text.contains(&one[4..]) && !text.contains(&two[4..]));
        let tokens = Tokens::read(&path).unwrap();
        assert_eq!(tokens.find(&Digest::new(&one)).unwrap().scopes, None);
        assert_eq!(tokens.find(&Digest::new(&two)).unwrap().scopes.as_deref(), Some(&scopes[..]));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no other file is left");
    }

    #[test]
    fn a_failed_add_does_not_change_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let now = SystemTime::UNIX_EPOCH;
        add(&path, "one", None, now).unwrap();
        let before = fs::read(&path).unwrap();
        assert!(matches!(add(&path, "one", None, now), Err(TokenError::Taken(_))));
        assert!(matches!(add(&path, "o ne", None, now), Err(TokenError::Name(_))));
        for bad in ["kind:exec", "foo bar"] {
            let scopes = ["kind:read".to_owned(), bad.to_owned()];
            assert!(matches!(add(&path, "two", Some(&scopes), now), Err(TokenError::Scope(_))), "{bad}");
        }
        assert_eq!(fs::read(&path).unwrap(), before);
        fs::write(&path, "broken").unwrap();
        assert!(matches!(add(&path, "two", None, now), Err(TokenError::Syntax { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"broken");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(add(&path, "two", None, now), Err(TokenError::Exposed(_))));
        let nowhere = directory.path().join("no").join("tokens.toml");
        assert!(matches!(add(&nowhere, "two", None, now), Err(TokenError::Io { .. })));
    }

    #[test]
    fn a_token_can_be_restricted_to_pools() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        let now = SystemTime::UNIX_EPOCH;
        let pools = ["echo".to_owned(), "code-2".to_owned()];
        let token = add_for_pools(&path, "one", None, Some(&pools), now).unwrap();
        let tokens = Tokens::read(&path).unwrap();
        assert_eq!(tokens.find(&Digest::new(&token)).unwrap().pools.as_deref(), Some(&pools[..]));
        let none = add_for_pools(&path, "two", None, Some(&[]), now);
        assert!(matches!(none, Err(TokenError::NoPools)), "{none:?}");
        let odd = add_for_pools(&path, "two", None, Some(&["a b".to_owned()]), now);
        assert!(matches!(odd, Err(TokenError::Pool(_))), "{odd:?}");
    }

    #[test]
    fn concurrent_adds_are_all_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let path = &path;
                scope.spawn(move || add(path, &format!("n{number}"), None, SystemTime::UNIX_EPOCH).unwrap());
            }
        });
        assert_eq!(Tokens::read(&path).unwrap().identities().count(), 8);
    }
}
