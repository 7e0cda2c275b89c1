//! What a configuration needs of the machine it is for.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;

use narrows_process::{Controller, Limits, SpawnError};

use super::notes::Notes;
use super::{Placed, Pool};
use crate::driver::{most_descriptors, needed_descriptors};

/// The machine on which a configuration is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    /// Our environment.
    pub environment: &'a [(OsString, OsString)],
    /// A program that is there whether it can be found or not: ourselves.
    pub ours: &'a str,
}

/// The bytes where settings of a pool stand that depend on the machine.
#[derive(Clone, Copy, Default)]
pub(super) struct Spots {
    pub(super) command: usize,
    pub(super) cwd: Option<usize>,
    pub(super) instances: Option<usize>,
    pub(super) memory: Option<usize>,
    pub(super) pids: Option<usize>,
}

impl Here<'_> {
    /// Notes what a bus would be refused for if it was started here and now. What may be otherwise elsewhere, or once the
    /// bus is started by somebody else, is only warned of.
    pub(super) fn look(self, notes: &Notes<'_>, placed: &Placed) {
        for (pool, spots) in placed.config.pools.iter().zip(&placed.spots) {
            self.programs(notes, pool, *spots);
            for (controller, at, set) in [
                (Controller::Memory, spots.memory, pool.memory.is_some()),
                (Controller::Pids, spots.pids, pool.pids.is_some()),
            ] {
                let Some(at) = at.filter(|_| set) else { continue };
                if let Err(error) = Limits::look(controller) {
                    let why = error.why;
                    notes.warning(
                        at,
                        format!("`{controller}` cannot be enforced here, so the bus would not start: {why}"),
                    );
                }
            }
        }
        for (path, at) in &placed.sockets {
            if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
                let what = format!("{:?} exists and is not a socket", path.display().to_string());
                let hint = "name another path, or remove that file yourself";
                notes.mistake(*at, what, Some(hint.to_owned()));
            }
        }
        let (needed, most) = (needed_descriptors(&placed.config), most_descriptors());
        let pools = placed.config.pools.iter().zip(&placed.spots);
        if let Some((_, spots)) = pools.max_by_key(|(pool, _)| pool.instances).filter(|_| needed > most) {
            let what = format!(
                "all workers need {needed} descriptors, and here there can be {most}, so the bus would not start"
            );
            notes.warning(spots.instances.unwrap_or(spots.command), what);
        }
    }

    fn programs(self, notes: &Notes<'_>, pool: &Pool, spots: Spots) {
        let Some(program) = pool.command.first() else { return };
        let found = match pool.program(self.environment) {
            Err(SpawnError::Cwd { path, source }) => {
                let what = format!("`cwd` cannot be used: {:?}: {source}", path.display().to_string());
                notes.mistake(spots.cwd.unwrap_or(spots.command), what, None);
                // Where a relative path leads is not known then.
                if program.contains('/') && !program.starts_with('/') {
                    return;
                }
                Pool { cwd: None, ..pool.clone() }.program(self.environment)
            }
            // A `cwd` that could not be read is another mistake.
            _ if spots.cwd.is_some() && pool.cwd.is_none() => return,
            found => found,
        };
        if let Err(error) = found
            && *program != self.ours
        {
            let hint =
                "install it, or give the path to it; a relative path is meant from `cwd`, or else from here";
            let what = format!("`command` cannot be started: {error}");
            notes.mistake(spots.command, what, Some(hint.to_owned()));
        }
    }
}
