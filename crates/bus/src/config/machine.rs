//! Checks of a configuration against the machine: programs, directories, sockets, files and limits.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use narrows_config::{Findings, quoted};
use narrows_process::{Controller, Limits, SpawnError, Spec};
use rustix::fs::Access;

use super::mcp::McpTarget;
use super::read::RequiredFile;
use super::{ParsedConfig, Pool};
use crate::driver::{most_descriptors, needed_descriptors};

/// The machine on which a configuration is checked.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    pub environment: &'a [(OsString, OsString)],
    /// The name of this program, which is accepted even if it is not in `PATH`.
    pub own_program: &'a str,
}

/// Byte offsets in the file of those settings of a pool that are checked against the machine.
#[derive(Clone, Default)]
pub(super) struct PoolPositions {
    pub(super) command: usize,
    pub(super) cwd: Option<usize>,
    pub(super) instances: Option<usize>,
    pub(super) memory: Option<usize>,
    pub(super) pids: Option<usize>,
    /// Offsets of the commands of the pool's MCP servers, in order; `None` for a server with a URL.
    pub(super) mcp_servers: Vec<Option<usize>>,
}

impl Machine<'_> {
    /// Adds an error for each setting that prevents the bus from starting on this machine. If the result may
    /// differ on another machine or for another user, adds only a warning.
    pub(super) fn check(self, findings: &Findings<'_>, parsed: &ParsedConfig) {
        for (pool, positions) in parsed.config.pools.iter().zip(&parsed.positions) {
            self.check_program(findings, pool, positions);
            self.check_mcp_servers(findings, pool, positions);
            for (controller, at, set) in [
                (Controller::Memory, positions.memory, pool.memory.is_some()),
                (Controller::Pids, positions.pids, pool.pids.is_some()),
            ] {
                let Some(at) = at.filter(|_| set) else { continue };
                if let Err(error) = Limits::check(controller) {
                    let why = error.why;
                    findings.warning(
                        at,
                        format!("`{controller}` cannot be enforced here, so the bus would not start: {why}"),
                    );
                }
            }
        }
        for (path, at) in &parsed.sockets {
            if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
                let what = format!("{:?} exists and is not a socket", path.display().to_string());
                let hint = "use another path, or remove that file";
                findings.error(*at, what, Some(hint.to_owned()));
            } else if let Some(above) = unwritable_ancestor(path) {
                let what = format!(
                    "cannot create a socket there: {:?} is not a directory that this user can write",
                    above.display().to_string()
                );
                findings.error(*at, what, Some("use a path in a directory that you own".to_owned()));
            }
        }
        for RequiredFile { path, at, hint } in &parsed.files {
            if let Err(error) = std::fs::File::open(path) {
                let what = format!("{:?} cannot be read: {error}", path.display().to_string());
                findings.error(*at, what, Some((*hint).to_owned()));
            }
        }
        let (needed, most) = (needed_descriptors(&parsed.config), most_descriptors());
        let pools = parsed.config.pools.iter().zip(&parsed.positions);
        if let Some((_, positions)) = pools.max_by_key(|(pool, _)| pool.instances).filter(|_| needed > most) {
            let what = format!(
                "all workers need {needed} file descriptors and the limit is {most}, so the bus would not start"
            );
            findings.warning(positions.instances.unwrap_or(positions.command), what);
        }
    }

    fn check_program(self, findings: &Findings<'_>, pool: &Pool, positions: &PoolPositions) {
        let mut found = pool.program(self.environment);
        // An invalid `cwd` already has an error of its own.
        let mut cwd_known = positions.cwd.is_none() || pool.cwd.is_some();
        if let Err(SpawnError::Cwd { path, source }) = &found {
            let what = format!("`cwd` cannot be used: {:?}: {source}", path.display().to_string());
            findings.error(positions.cwd.unwrap_or(positions.command), what, None);
            cwd_known = false;
            found = Pool { cwd: None, ..pool.clone() }.program(self.environment);
        }
        let (Err(error), Some(program)) = (found, pool.command.first()) else { return };
        let is_relative = program.contains('/') && !program.starts_with('/');
        if *program == self.own_program || (is_relative && !cwd_known) {
            return;
        }
        let hint = match program.split_whitespace().count() {
            ..=1 => {
                "install it, or write its path; a relative path starts from `cwd`, or from the current directory"
                    .to_owned()
            }
            _ => {
                let words: Vec<_> =
                    program.split_whitespace().map(|word| format!("\"{}\"", quoted(word))).collect();
                format!("write each word as an element of its own: command = [{}]", words.join(", "))
            }
        };
        findings.error(positions.command, format!("`command` cannot be started: {error}"), Some(hint));
    }

    /// Warns about MCP servers whose program cannot be found. The bus starts nevertheless: agents run the
    /// programs, maybe with another `PATH`. A relative path is not checked, because it starts from the
    /// directory of a session.
    fn check_mcp_servers(self, findings: &Findings<'_>, pool: &Pool, positions: &PoolPositions) {
        for (server, at) in pool.mcp_servers.iter().zip(&positions.mcp_servers) {
            let (McpTarget::Command { words, env }, Some(at)) = (&server.target, at) else { continue };
            let Some(program) = words.first() else { continue };
            let is_relative = program.contains('/') && !program.starts_with('/');
            if is_relative || *program == self.own_program {
                continue;
            }
            let mut environment = pool.environment(self.environment);
            environment.extend(env);
            let spec = Spec { env: environment, ..Spec::new(program) };
            if let Err(error) = narrows_process::find(&spec) {
                let name = quoted(&server.name);
                findings.warning(*at, format!("MCP server \"{name}\" cannot be started: {error}"));
            }
        }
    }
}

/// Returns the closest existing ancestor directory of a socket path if this user cannot create files in that
/// directory.
fn unwritable_ancestor(path: &Path) -> Option<&Path> {
    let here = |above: &&Path| !above.as_os_str().is_empty() && above.symlink_metadata().is_ok();
    let above = path.ancestors().skip(1).find(here)?;
    let may = rustix::fs::access(above, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    (!above.is_dir() || !may).then_some(above)
}

#[cfg(test)]
mod tests {
    use super::super::inspect;
    use super::*;

    #[test]
    fn the_position_of_each_command_is_returned() {
        let text = "[[pool]]\ncommand = ['a']\n\n[[pool]]\nname = 'b'\ncommand = ['b']\n";
        let commands = inspect(text, Path::new("bus.toml"), None, None).commands;
        let shown: Vec<String> = commands.iter().map(|(pool, place)| format!("{pool} {place}")).collect();
        assert_eq!(shown, ["default 2:11", "b 6:11"]);
    }

    #[test]
    fn a_socket_that_cannot_be_created_is_reported() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "").unwrap();
        let check = |socket: &str, expected: bool| {
            let text = format!(
                "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"narrows\"]\n[admin]\nsocket = \"{socket}\"\n"
            );
            let machine = Machine { environment: &[], own_program: "narrows" };
            let errors = inspect(&text, &place.path().join("bus.toml"), None, Some(machine)).errors;
            let is_reported = errors
                .iter()
                .any(|error| error.pos.line == 6 && error.message.contains("cannot create a socket"));
            assert_eq!((is_reported, errors.len()), (expected, usize::from(expected)), "{socket} {errors:?}");
        };
        check("new/deep/admin.sock", false);
        check("admin.sock", false);
        check("file/admin.sock", true);
        check("file/deep/admin.sock", true);
        check("/proc/no/admin.sock", !rustix::process::geteuid().is_root());
    }

    #[test]
    fn an_invalid_directory_and_an_invalid_command_are_both_reported() {
        #[track_caller]
        fn check(command: &str, cwd: &str, expected: &[(usize, &str)]) {
            let text = format!("[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = {command}\ncwd = {cwd}\n");
            let machine = Machine { environment: &[], own_program: "narrows" };
            let errors = inspect(&text, Path::new("bus.toml"), None, Some(machine)).errors;
            assert_eq!(errors.len(), expected.len(), "{errors:?}");
            for (error, (line, words)) in errors.iter().zip(expected) {
                assert_eq!(error.pos.line, *line, "{error}");
                assert!(error.to_string().contains(words), "{error}");
            }
        }
        let (missing, nowhere) = ((4, "cannot be started"), (5, "`cwd` cannot be used"));
        let tilde = (5, "`~`");
        check("[\"/no/such\"]", "\"/no/place\"", &[missing, nowhere]);
        check("[\"no-such\"]", "\"~/place\"", &[missing, tilde]);
        check("\"no-such\"", "\"/no/place\"", &[missing, nowhere]);
        check("[\"narrows\"]", "\"/no/place\"", &[nowhere]);
        // A relative program path starts from `cwd`, which is unknown here.
        check("[\"./no-such\"]", "\"/no/place\"", &[nowhere]);
        check("[\"./no-such\"]", "\"~/place\"", &[tilde]);
        check("[\"./no-such\"]", "\"/\"", &[missing]);
        let words = "write each word as an element of its own: command = [\"narrows\", \"acp\"]";
        check("[\"narrows acp\"]", "\"/\"", &[(4, words)]);
    }

    #[test]
    fn a_missing_program_of_an_mcp_server_is_a_warning() {
        #[track_caller]
        fn check(server: &str, expected: Option<(usize, &str)>) {
            let text = format!(
                "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"narrows\"]\nmcp = \"listed\"\n\
                 [[pool.mcp_server]]\nname = \"web\"\nurl = \"https://example.com\"\n\
                 [[pool.mcp_server]]\nname = \"files\"\n{server}\n"
            );
            let environment = [("PATH".into(), "/usr/bin:/bin".into())];
            let machine = Machine { environment: &environment, own_program: "narrows" };
            let inspected = inspect(&text, Path::new("bus.toml"), None, Some(machine));
            assert!(inspected.errors.is_empty(), "{:?}", inspected.errors);
            let warnings: Vec<_> = inspected.warnings.iter().collect();
            match (&*warnings, expected) {
                ([], None) => {}
                ([warning], Some((line, words))) => {
                    assert_eq!(warning.pos.line, line, "{warning}");
                    assert!(warning.to_string().contains(words), "{warning}");
                    // The directories of `PATH` would reveal details of the machine, so the message has none.
                    assert!(!warning.to_string().contains("/usr/bin"), "{warning}");
                }
                (warnings, _) => panic!("{server}: {warnings:?}"),
            }
        }
        check("command = [\"sh\", \"-c\", \"true\"]", None);
        check("command = [\"/bin/sh\"]", None);
        check("command = [\"narrows\"]", None);
        // A relative program path starts from the directory of a session, so there is no warning.
        check("command = [\"./no-such\"]", None);
        let missing = "MCP server \"files\" cannot be started: program \"no-such\" not found in PATH";
        check("command = [\"no-such\"]", Some((11, missing)));
        check("command = [\"/no/such\", \"x\"]", Some((11, "\"files\"")));
        check("command = [\"sh\"]\nenv = { PATH = \"/nowhere\" }", Some((11, "\"files\"")));
    }
}
