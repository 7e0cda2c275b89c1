//! Tokens and identities files, alone or with the bus that uses them.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use narrows_base::suggest::nearest;
use narrows_bus::config::{Config, ListenAddr, Web};
use narrows_config::{Finding, SourcePos};
use narrows_remote::server_tls::{self, TlsError};
use narrows_remote::tokens::{self, InspectedTokens, TokenError};

use crate::command::serve::identities;
use crate::command::web::tls_files;
use crate::failure::{ONE_TOKEN_PER_NAME, tls_hint, token_hint};

/// Returns the errors and warnings of the files that a bus reads at its start. `named` has the positions in
/// the configuration of the bus that refer to these files.
pub(super) fn bus_findings(
    config: &Config,
    bus: &Path,
    named: &[(PathBuf, SourcePos)],
) -> (Vec<Finding>, Vec<Finding>) {
    let asked = |path: &Path| {
        let found = named.iter().find(|(other, _)| other == path);
        found.map_or((display_path(path), SourcePos::START), |(_, pos)| (display_path(bus), *pos))
    };
    let (mut mistakes, mut warnings) = (Vec::new(), Vec::new());
    let webs = config.listen.iter().filter_map(|listen| match &listen.addr {
        ListenAddr::Web(web) => Some(web),
        _ => None,
    });
    for web in webs {
        if let Some(path) = &web.tokens {
            let (wrong, strange) = token_findings(path, Some(asked(path)));
            mistakes.extend(wrong);
            warnings.extend(strange);
            warnings.extend(unknown_pools(path, config));
        }
        mistakes.extend(unusable_tls(web, asked));
    }
    mistakes.extend(doubled_tokens(config));
    // Two listeners may use the same file, which would be reported twice.
    mistakes.dedup();
    warnings.dedup();
    (mistakes, warnings)
}

/// Reports names that have a different token in two files.
fn doubled_tokens(config: &Config) -> Vec<Finding> {
    let files: BTreeSet<&Path> = config
        .listen
        .iter()
        .filter_map(|listen| match &listen.addr {
            ListenAddr::Web(web) => web.tokens.as_deref(),
            _ => None,
        })
        .collect();
    let mut known = HashMap::new();
    let mut mistakes = Vec::new();
    for path in files {
        let tokens = tokens::inspect(path).map(|inspected| inspected.tokens).unwrap_or_default();
        for (name, digest, pos) in tokens {
            let (other, first) = known.entry(name.clone()).or_insert((path, digest));
            if *first != digest {
                let other = other.display();
                let what = format!("the name {name:?} has another token in {other}");
                mistakes.push(Finding::error(display_path(path), pos, what).with_hint(ONE_TOKEN_PER_NAME));
            }
        }
    }
    mistakes
}

/// Warns about tokens for pools that the bus does not have.
fn unknown_pools(path: &Path, config: &Config) -> Vec<Finding> {
    let known = || config.pools.iter().map(|pool| pool.name.as_str());
    let pools = tokens::inspect(path).map(|inspected| inspected.pools).unwrap_or_default();
    let unknown = pools.into_iter().filter(|(pool, _)| known().all(|name| name != pool));
    let warning = |(pool, pos): (String, SourcePos)| {
        let near = nearest(&pool, known()).map(|near| format!("; did you mean {near:?}?"));
        let what = format!("the bus has no pool {pool:?}{}", near.unwrap_or_default());
        Finding::warning(display_path(path), pos, what)
    };
    unknown.map(warning).collect()
}

/// Warns of identities that never match: a bus names tokens and certificates differently.
pub(super) fn identity_warnings(config: &Config) -> Vec<Finding> {
    let files = config.pools.iter().filter(|pool| pool.manifest.is_some());
    let files = files.filter_map(|pool| pool.identities.as_deref());
    let never = files.flat_map(|path| {
        let strange = identities::unknown_to_bus(path).into_iter();
        strange.map(move |(who, pos)| {
            let what = format!(
                "who = {who:?} never matches behind a bus: write \"bus:{who}\" for a client that shows \
                 it to the bus"
            );
            Finding::warning(display_path(path), pos, what)
        })
    });
    never.collect()
}

/// Returns the findings of a tokens file. If the file has no tokens, that is reported at `asked`, where the
/// bus refers to the file.
pub(super) fn token_findings(
    path: &Path,
    asked: Option<(String, SourcePos)>,
) -> (Vec<Finding>, Vec<Finding>) {
    let InspectedTokens { errors, mut warnings, tokens, .. } = match tokens::inspect(path) {
        Ok(inspected) => inspected,
        Err(error) => return (vec![unreadable(path, &error)], Vec::new()),
    };
    if tokens.is_empty() && errors.is_empty() {
        let (asked, pos) = asked.unwrap_or_else(|| (display_path(path), SourcePos::START));
        let file = path.display();
        let what = format!(
            "no client can connect without a token: `narrows token new NAME --file {file}` creates one"
        );
        warnings.push(Finding::warning(asked, pos, what));
    }
    (errors, warnings)
}

fn unreadable(path: &Path, error: &TokenError) -> Finding {
    let what = match error {
        TokenError::Io { error, .. } => format!("the tokens cannot be read: {error}"),
        error => {
            let what = error.to_string();
            // The file name is printed before each message, so it is removed from the message.
            let named = format!("{}: ", path.display());
            what.strip_prefix(&named).unwrap_or(&what).to_owned()
        }
    };
    Finding::error(display_path(path), SourcePos::START, what).with_hint(token_hint(error))
}

/// Returns the error in the TLS files. An error of one file is reported in that file, a mismatch of several
/// where the bus refers to them.
fn unusable_tls(web: &Web, asked: impl Fn(&Path) -> (String, SourcePos)) -> Option<Finding> {
    let files = tls_files(web)?;
    let error = server_tls::server_config(&files).err()?;
    let hint = tls_hint(&error);
    let ((file, pos), what) = match &error {
        TlsError::File { path, fault } => ((display_path(path), SourcePos::START), fault.to_string()),
        TlsError::KeyMismatch { key, .. } => (asked(key), error.to_string()),
        TlsError::Pair { .. } | TlsError::Unable(_) => (asked(&files.cert), error.to_string()),
    };
    Some(Finding::error(file, pos, what).with_hint(hint))
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}
