//! Settings of a bus: from a file, from flags, or from a command that becomes its only pool.

use std::path::Path;

use narrows_bus::StartError;
use narrows_bus::config::{self, BusLimits, Config, ListenAddr, ListenerSettings, Pool};
use narrows_config::Finding;
use narrows_manifest::Severity;

use crate::cli::Bus;
use crate::command::serve::{identities, preflight};
use crate::command::{check, web};
use crate::failure::Failure;
use crate::terminal::Color;
use crate::{environment, output, terminal};

pub(super) enum SettingsError {
    Invalid(Vec<Finding>),
    Other(Failure),
}

impl SettingsError {
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Invalid(mistakes) => mistakes.iter().map(|it| terminal::line(&it.to_string())).collect(),
            Self::Other(failure) => vec![failure.message()],
        }
    }

    pub(super) fn into_failure(self) -> Failure {
        let mut mistakes = match self {
            Self::Invalid(mistakes) => mistakes,
            Self::Other(failure) => return failure,
        };
        let last = mistakes.pop();
        for mistake in &mistakes {
            output::write_stderr(&Failure::config_finding(mistake).render(Color::for_stderr()));
        }
        last.map_or_else(Failure::no_pool, |mistake| Failure::config_finding(&mistake))
    }
}

/// Returns the failure of a start, with the position in the file if it is known.
pub(super) fn start_failure(args: &Bus, error: &StartError) -> Failure {
    let StartError::Program { pool, .. } = error else { return Failure::bus_start(error, None) };
    let text = args.config.as_ref().and_then(|path| Some((path, check::read(path).ok()?)));
    let place = text.and_then(|(path, text)| {
        let commands = config::inspect(&text, path, environment::home().as_deref(), None).commands;
        commands.iter().find(|(name, _)| name == pool).map(|(_, pos)| format!("{}:{pos}", path.display()))
    });
    Failure::bus_start(error, place.as_deref())
}

pub(super) fn load(args: &Bus) -> Result<(Config, Vec<Finding>), SettingsError> {
    if !args.stray.is_empty() {
        return Err(SettingsError::Other(Failure::unexpected_words(&args.stray)));
    }
    let (mut config, mut warnings) = match &args.config {
        Some(path) => {
            let text = check::read(path)
                .map_err(|error| SettingsError::Other(Failure::file_unreadable("--config", path, &error)))?;
            config::read(&text, path, environment::home().as_deref()).map_err(SettingsError::Invalid)?
        }
        None if args.command.is_empty() => return Err(SettingsError::Other(Failure::no_pool())),
        None => (from_command(args), Vec::new()),
    };
    let flags = listen_flags(args);
    if !flags.is_empty() {
        config.listen = flags;
        // A warning about a missing listener does not apply, because the flags add a listener.
        warnings.retain(|warning| {
            !["unless --listen", "unless --tcp"].iter().any(|it| warning.message.contains(it))
        });
    }
    if config.listen.is_empty() {
        return Err(SettingsError::Other(Failure::no_listener()));
    }
    if let Some((one, other)) = web::find_duplicate_listener(&config.listen) {
        return Err(SettingsError::Other(Failure::duplicate_listener(one, other)));
    }
    let unknown = |listen: &&ListenerSettings| {
        listen.pool.as_ref().is_some_and(|name| config.pools.iter().all(|pool| pool.name != *name))
    };
    if let Some(listen) = config.listen.iter().find(unknown) {
        let names = config.pools.iter().map(|pool| pool.name.as_str());
        return Err(SettingsError::Other(Failure::unknown_pool(listen, names)));
    }
    for manifest in config.pools.iter().filter_map(|pool| pool.manifest.as_deref()) {
        let findings = preflight::findings(manifest);
        if let Some(first) = findings.iter().find(|finding| finding.severity == Severity::Error) {
            return Err(SettingsError::Other(Failure::unservable_manifest(manifest, first)));
        }
    }
    for identities in config.pools.iter().filter_map(|pool| pool.identities.as_deref()) {
        identities::check_file(identities).map_err(SettingsError::Other)?;
    }
    config.pools.iter_mut().for_each(use_own_program);
    Ok((config, warnings))
}

/// Returns a configuration with one pool, which runs the command of the arguments with the whole environment.
fn from_command(args: &Bus) -> Config {
    let mut pool = Pool::new(args.name.as_deref().unwrap_or("default"), args.command.clone());
    pool.whole_env = true;
    if let Some(instances) = args.instances {
        pool.instances = instances;
        pool.max_instances = pool.max_instances.max(instances);
    }
    if let Some(share) = args.share {
        pool.share = share.into();
    }
    if let Some(protocol) = args.protocol {
        pool.protocol = protocol.into();
    }
    Config {
        listen: Vec::new(),
        pools: vec![pool],
        limits: BusLimits::default(),
        admin: config::AdminConfig::default(),
    }
}

fn listen_flags(args: &Bus) -> Vec<ListenerSettings> {
    let addresses = args.tcp.iter().chain(&args.unix).cloned().chain(args.stdio.then_some(ListenAddr::Stdio));
    args.listen.iter().cloned().chain(addresses.map(ListenerSettings::new)).collect()
}

/// Replaces the program `narrows` by the path of this executable. If that path is unknown, `narrows` stays
/// and is looked up in PATH.
fn use_own_program(pool: &mut Pool) {
    let Some(program) = pool.command.first_mut().filter(|program| *program == "narrows") else { return };
    if let Some(path) = std::env::current_exe().ok().as_deref().and_then(current_program) {
        path.clone_into(program);
    }
}

/// Returns the path of this program. If an update replaced the file, the system reports `PATH (deleted)`, and
/// `PATH` is returned.
fn current_program(path: &Path) -> Option<&str> {
    let path = path.to_str()?;
    [Some(path), path.strip_suffix(" (deleted)")].into_iter().flatten().find(|path| Path::new(path).is_file())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use narrows_bus::config::{PoolProtocol, ShareMode};

    use super::*;
    use crate::cli::{Cli, Command};

    fn load_words(words: &[&str]) -> Result<Config, Vec<String>> {
        let words = ["narrows", "bus"].iter().chain(words);
        let Command::Bus(args) = Cli::try_parse_from(words).expect("arguments").command else {
            panic!("another command")
        };
        load(&args).map(|(config, _)| config).map_err(|wrong| wrong.lines())
    }

    #[test]
    fn a_command_becomes_a_pool_with_the_whole_environment() {
        let words = [
            "--listen",
            "tcp://127.0.0.1:1/p",
            "--unix",
            "/s",
            "--stdio",
            "--tcp",
            "[::1]:2",
            "--name",
            "p",
            "--share",
            "all",
            "--protocol",
            "jsonrpc",
            "--instances",
            "300",
            "--",
            "agent",
            "--its",
            "flags",
        ];
        let config = load_words(&words).unwrap();
        let shown: Vec<String> = config.listen.iter().map(|listen| listen.addr.to_string()).collect();
        assert_eq!(shown, ["tcp://127.0.0.1:1", "tcp://[::1]:2", "unix:/s", "stdio:"]);
        assert_eq!(config.listen[0].pool.as_deref(), Some("p"));
        let pool = &config.pools[0];
        assert_eq!((pool.name.as_str(), pool.whole_env), ("p", true));
        assert_eq!((pool.instances, pool.max_instances), (300, 300));
        assert_eq!((pool.share, pool.protocol), (ShareMode::All, PoolProtocol::JsonRpc));
        assert_eq!(pool.command, ["agent", "--its", "flags"]);
    }

    #[test]
    fn narrows_means_this_program() {
        let config = load_words(&["--stdio", "--", "narrows", "acp"]).unwrap();
        let us = std::env::current_exe().unwrap();
        assert_eq!(config.pools[0].command, [us.to_str().unwrap(), "acp"]);
    }

    #[test]
    fn a_replaced_program_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("narrows");
        let deleted = directory.path().join("narrows (deleted)");
        assert_eq!((current_program(&path), current_program(&deleted)), (None, None));
        std::fs::write(&path, "new").unwrap();
        assert_eq!((current_program(&path), current_program(&deleted)), (path.to_str(), path.to_str()));
        // A program file may really be named `PATH (deleted)`.
        std::fs::write(&deleted, "odd").unwrap();
        assert_eq!(current_program(&deleted), deleted.to_str());
    }

    #[test]
    fn a_listener_and_a_pool_are_required() {
        for (words, reason) in [
            (&["--", "a"][..], "no listener configured"),
            (&["--stdio"], "no agent configured"),
            (&["--stdio", "--instances", "4"], "no agent configured"),
            (&["--stdio", "a", "b"], "unexpected argument \"a\" before `--`"),
            (&["--stdio", "a", "--", "b"], "unexpected argument \"a\" before `--`"),
            (&["--listen", "tcp://127.0.0.1:1/x", "--", "a"], "unknown pool \"x\""),
            (&["--config", "/nowhere/bus.toml"], "cannot read \"/nowhere/bus.toml\""),
            (
                &["--listen", "ws://127.0.0.1:1", "--tcp", "127.0.0.1:1", "--", "a"],
                "duplicate listener tcp://127.0.0.1:1",
            ),
            (&["--stdio", "--listen", "stdio:", "--", "a"], "duplicate listener stdio:"),
        ] {
            let lines = load_words(words).unwrap_err();
            assert!(lines[0].contains(reason), "{words:?}: {lines:?}");
        }
    }
}
