//! Tokens and identities files, alone or with the bus that uses them.

use std::path::{Path, PathBuf};

use narrows_base::suggest::nearest;
use narrows_bus::config::{Config, Door, Mistake, Place, Warning, Web};
use narrows_remote::tls::{self, TlsError};
use narrows_remote::tokens::{self, Fault, Inspected, TokenError};
use serde_json::{Value, json};

use crate::command::serve::identities;
use crate::command::web::tls_files;
use crate::failure::{Failure, IDENTITIES_HINT, tls_hint, token_hint};
use crate::output;
use crate::terminal::line;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdentityFileKind {
    Tokens,
    Identities,
}

impl IdentityFileKind {
    /// Detects the kind of a file: by its content, then by its header, then by its name.
    pub(super) fn detect(path: &Path) -> Option<Self> {
        let text = super::read(path).unwrap_or_default();
        let table = text.parse::<toml::Table>().unwrap_or_default();
        let has = |key: &str| table.contains_key(key);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name {
            _ if has("token") => Some(Self::Tokens),
            _ if has("identity") => Some(Self::Identities),
            _ if has("listen") || has("pool") => None,
            _ if tokens::is_marked(&text) => Some(Self::Tokens),
            "tokens.toml" => Some(Self::Tokens),
            "identities.toml" => Some(Self::Identities),
            _ => None,
        }
    }

    /// Prints all findings. Returns `true` if the file can be used.
    pub(super) fn check(self, path: &Path, strict: bool, json: bool) -> Result<bool, Failure> {
        let (mistakes, warnings) = match self {
            Self::Tokens => token_findings(path, None),
            Self::Identities => (identity_finding(path).into_iter().collect(), Vec::new()),
        };
        let ok = mistakes.is_empty() && (!strict || warnings.is_empty());
        let file = path.display().to_string();
        if json {
            let mistakes: Vec<Value> = mistakes.iter().map(|it| super::mistake_json(it, &file)).collect();
            let warnings: Vec<Value> = warnings.iter().map(|it| super::warning_json(it, &file)).collect();
            let object = json!({"file": file, "ok": ok, "mistakes": mistakes, "warnings": warnings});
            output::print_json(object)?;
        } else {
            super::print_findings(&mistakes, &warnings);
            if mistakes.is_empty() {
                output::print(format!("{}\n", line(&format!("{file}: valid"))).as_bytes())?;
            }
        }
        Ok(ok)
    }
}

/// Returns the findings of files that a bus reads at its start, as errors and warnings of these files. `named` has
/// the positions that refer to them.
pub(super) fn bus_findings(config: &Config, named: &[(PathBuf, Place)]) -> (Vec<Mistake>, Vec<Warning>) {
    let (mut mistakes, mut warnings) = (Vec::new(), Vec::new());
    let webs = config.listen.iter().filter_map(|listen| match &listen.at {
        Door::Web(web) => Some(web),
        _ => None,
    });
    for web in webs {
        if let Some(path) = &web.tokens {
            let (wrong, strange) = token_findings(path, place_of(path, named));
            mistakes.extend(wrong);
            warnings.extend(strange);
            warnings.extend(unknown_pools(path, config));
        }
        mistakes.extend(unusable_tls(web, named));
    }
    // Listeners may share a file.
    mistakes.dedup();
    warnings.dedup();
    (mistakes, warnings)
}

/// Warns of pools in tokens that the bus does not have.
fn unknown_pools(path: &Path, config: &Config) -> Vec<Warning> {
    let known = || config.pools.iter().map(|pool| pool.name.as_str());
    let pools = tokens::inspect(path).map(|inspected| inspected.pools).unwrap_or_default();
    let unknown = pools.into_iter().filter(|pool| known().all(|name| name != pool.what));
    let warning = |fault: Fault| {
        let near = nearest(&fault.what, known()).map(|near| format!("; did you mean {near:?}?"));
        Warning {
            place: Place { file: display_path(path), line: fault.line, column: fault.column },
            what: format!("the bus has no pool {:?}{}", fault.what, near.unwrap_or_default()),
        }
    };
    unknown.map(warning).collect()
}

/// Returns the position that refers to a file.
fn place_of<'a>(path: &Path, named: &'a [(PathBuf, Place)]) -> Option<&'a Place> {
    named.iter().find(|(other, _)| other == path).map(|(_, place)| place)
}

/// Warns of identities that never match: a bus names tokens and certificates differently.
pub(super) fn identity_warnings(config: &Config) -> Vec<Warning> {
    let files = config.pools.iter().filter(|pool| pool.manifest.is_some());
    let files = files.filter_map(|pool| pool.identities.as_deref());
    let never = files.flat_map(|path| {
        let place = |line, column| Place { file: path.display().to_string(), line, column };
        let strange = identities::unknown_to_bus(path).into_iter();
        strange.map(move |(who, line, column)| Warning {
            place: place(line, column),
            what: format!(
                "who = {who:?} never comes over a bus: write \"bus:{who}\" for who shows it to the bus"
            ),
        })
    });
    never.collect()
}

/// Returns the findings of a tokens file. A file without tokens is reported where the bus refers to it.
fn token_findings(path: &Path, asked: Option<&Place>) -> (Vec<Mistake>, Vec<Warning>) {
    let Inspected { mistakes, warnings, tokens, .. } = match tokens::inspect(path) {
        Ok(inspected) => inspected,
        Err(error) => return (vec![unreadable(path, &error)], Vec::new()),
    };
    let at = |fault: &Fault| Place { file: display_path(path), line: fault.line, column: fault.column };
    let wrong = |fault: &Fault| {
        let near = fault.stranger.as_ref().map(|(key, known)| match nearest(key, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("what may stand there: {}", known.join(", ")),
        });
        Mistake { place: at(fault), what: fault.what.clone(), hint: near }
    };
    let mistakes: Vec<Mistake> = mistakes.iter().map(wrong).collect();
    let strange = |fault: &Fault| Warning { place: at(fault), what: fault.what.clone() };
    let mut warnings: Vec<Warning> = warnings.iter().map(strange).collect();
    if tokens == 0 && mistakes.is_empty() {
        let place = asked.cloned().unwrap_or_else(|| Place { file: display_path(path), line: 1, column: 1 });
        let file = path.display();
        let what = format!(
            "there is no token, so nobody can come in: `narrows token new NAME --file {file}` makes one"
        );
        warnings.push(Warning { place, what });
    }
    (mistakes, warnings)
}

fn unreadable(path: &Path, error: &TokenError) -> Mistake {
    let what = match error {
        TokenError::Io { error, .. } => format!("the tokens cannot be read: {error}"),
        error => {
            let what = error.to_string();
            // The file name precedes the message already.
            let named = format!("{}: ", path.display());
            what.strip_prefix(&named).unwrap_or(&what).to_owned()
        }
    };
    mistake(path, (1, 1), what, token_hint(error))
}

fn identity_finding(path: &Path) -> Option<Mistake> {
    let (line, column, what) = identities::fault(path)?;
    Some(mistake(path, (line, column), what, IDENTITIES_HINT.to_owned()))
}

/// An error of one file is reported there, a mismatch of several where the bus refers to them.
fn unusable_tls(web: &Web, named: &[(PathBuf, Place)]) -> Option<Mistake> {
    let files = tls_files(web)?;
    let error = tls::server_config(&files).err()?;
    let hint = tls_hint(&error);
    let (path, what) = match &error {
        TlsError::File { path, fault } => return Some(mistake(path, (1, 1), fault.to_string(), hint)),
        TlsError::Strangers { key, .. } => (key, error.to_string()),
        TlsError::Pair { .. } | TlsError::Unable(_) => (&files.cert, error.to_string()),
    };
    let place = place_of(path, named).cloned();
    let place = place.unwrap_or_else(|| Place { file: display_path(path), line: 1, column: 1 });
    Some(Mistake { place, what, hint: Some(hint) })
}

fn mistake(path: &Path, (line, column): (usize, usize), what: String, hint: String) -> Mistake {
    Mistake { place: Place { file: display_path(path), line, column }, what, hint: Some(hint) }
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_file_comes_from_its_content_then_its_header_then_its_name() {
        let place = tempfile::tempdir().expect("a directory");
        let check = |name: &str, text: &str, expected: Option<IdentityFileKind>| {
            let path = place.path().join(name);
            std::fs::write(&path, text).expect("it can be written");
            assert_eq!(IdentityFileKind::detect(&path), expected, "{name} {text:?}");
        };
        let (token, identities) = (Some(IdentityFileKind::Tokens), Some(IdentityFileKind::Identities));
        check("a", "[[token]]", token);
        check("a", "[[identity]]", identities);
        check("a", "", None);
        check("bus.toml", "", None);
        check("tokens.toml", "", token);
        check("tokens.toml", "[[tokn]]", token);
        check("tokens.toml", "no toml", token);
        check("tokens.toml", "[[listen]]", None);
        check("identities.toml", "", identities);
        let path = place.path().join("made");
        tokens::add(&path, "a", None, std::time::SystemTime::UNIX_EPOCH).expect("it is made");
        tokens::remove(&path, "a").expect("it is there");
        assert_eq!(IdentityFileKind::detect(&path), token);
    }
}
