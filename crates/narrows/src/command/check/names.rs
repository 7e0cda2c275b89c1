//! Files that say who may come in: tokens and identities, by themselves or because a bus needs them.

use std::path::Path;

use narrows_bus::config::{Config, Door, Mistake, Place, Warning, Web};
use narrows_remote::tls::{self, TlsError};
use narrows_remote::tokens::{TokenError, Tokens};
use serde_json::{Value, json};

use crate::command::serve::guests;
use crate::command::web::tls_files;
use crate::failure::{Failure, about_tls, about_tokens};
use crate::output;
use crate::terminal::{Colour, line};

/// What such a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Tokens,
    Identities,
}

impl Names {
    /// Which of them a file is, by what stands in it, or if that cannot be read, by its name.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let table = super::read(path).ok().and_then(|text| text.parse::<toml::Table>().ok());
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is = |key: &str, file: &str| match &table {
            Some(table) => table.contains_key(key),
            None => name == file,
        };
        if is("token", "tokens.toml") {
            Some(Self::Tokens)
        } else {
            is("identity", "identities.toml").then_some(Self::Identities)
        }
    }

    /// Tells everything about it, and whether it can be used.
    pub(super) fn check(self, path: &Path, json: bool) -> Result<bool, Failure> {
        let wrong = match self {
            Self::Tokens => Tokens::read(path).err().map(|error| Failure::tokens(path, &error)),
            Self::Identities => guests::check_file(path).err(),
        };
        let file = path.display().to_string();
        match (&wrong, json) {
            (Some(failure), true) => {
                print(&json!({"file": file, "ok": false, "error": failure.message()}))?;
            }
            (None, true) => print(&json!({"file": file, "ok": true}))?,
            (Some(failure), false) => output::complain(&failure.render(Colour::of_stderr())),
            (None, false) => output::print(format!("{}\n", line(&format!("{file}: valid"))).as_bytes())?,
        }
        Ok(wrong.is_none())
    }
}

fn print(object: &Value) -> Result<(), Failure> {
    output::print(format!("{object}\n").as_bytes())
}

/// What is wrong with the files that a bus reads when it starts, each as a mistake of its own file.
pub(super) fn of_bus(config: &Config) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let webs = config.listen.iter().filter_map(|listen| match &listen.at {
        Door::Web(web) => Some(web),
        _ => None,
    });
    for web in webs {
        mistakes.extend(web.tokens.as_deref().and_then(unreadable_tokens));
        mistakes.extend(unusable_tls(web));
    }
    mistakes
}

/// What is strange in the identities of gates: whom a bus knows by a token or a certificate it names otherwise.
pub(super) fn strange(config: &Config) -> Vec<Warning> {
    let files = config.pools.iter().filter(|pool| pool.manifest.is_some());
    let files = files.filter_map(|pool| pool.identities.as_deref());
    let never = files.flat_map(|path| {
        let place = |line, column| Place { file: path.display().to_string(), line, column };
        let strange = guests::unknown_to_bus(path).into_iter();
        strange.map(move |(who, line, column)| Warning {
            place: place(line, column),
            what: format!(
                "who = {who:?} never comes over a bus: write \"bus:{who}\" for who shows it to the bus"
            ),
        })
    });
    never.collect()
}

fn unreadable_tokens(path: &Path) -> Option<Mistake> {
    let error = Tokens::read(path).err()?;
    let hint = about_tokens(&error);
    let (line, column, what) = match error {
        TokenError::Syntax { line, column, error, .. } => (line, column, error),
        TokenError::Io { error, .. } => (1, 1, format!("the tokens cannot be read: {error}")),
        error => {
            let what = error.to_string();
            // The name of the file stands before it already.
            let named = format!("{}: ", path.display());
            (1, 1, what.strip_prefix(&named).unwrap_or(&what).to_owned())
        }
    };
    Some(mistake(path, (line, column), what, hint))
}

fn unusable_tls(web: &Web) -> Option<Mistake> {
    let files = tls_files(web)?;
    let error = tls::server_config(&files).err()?;
    let hint = about_tls(&error);
    let (path, what) = match &error {
        TlsError::File { path, fault } => (path, fault.to_string()),
        TlsError::Strangers { key, .. } => (key, error.to_string()),
        TlsError::Pair { .. } | TlsError::Unable(_) => (&files.cert, error.to_string()),
    };
    Some(mistake(path, (1, 1), what, hint))
}

fn mistake(path: &Path, (line, column): (usize, usize), what: String, hint: String) -> Mistake {
    let place = Place { file: path.display().to_string(), line, column };
    Mistake { place, what, hint: Some(hint) }
}
