//! Orphans: what a tree has left when its guardian was killed.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, child_subreaper, getpid, set_child_subreaper, waitid,
};

use crate::tree::{self, Orphan};

/// How often orphans are looked for, as each that is killed may leave others, and how long they have to die.
const MAX_KILL_ROUNDS: u32 = 50;
const KILL_ROUND_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Makes this process the one to which the trees of guardians fall that were killed, so that they can be ended. Without it
/// they fall to init, and what has left the guardian's session by `setsid` lives on.
///
/// This is for a program whose other children stay in its session: one that has left it is taken for an orphan, once a
/// guardian vanishes. Orphans of other children become ours too, and stay zombies when they end.
///
/// # Errors
/// When the system does not allow it.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills what has fallen to us, and returns how many resist.
pub(crate) fn end_orphans() -> u32 {
    let me = getpid();
    let (Ok(Some(_)), Ok(proc)) = (child_subreaper(), tree::open_proc()) else { return 0 };
    let Some(session) = tree::session(proc.as_fd(), me.as_raw_pid()) else { return 0 };
    let mut left = 0;
    for _ in 0..MAX_KILL_ROUNDS {
        left = 0;
        tree::orphans(proc.as_fd(), me.as_raw_pid(), session, |orphan: Orphan| {
            orphan.kill(Signal::KILL);
            if !reap(orphan.pid) {
                left += 1;
            }
        });
        if left == 0 {
            break;
        }
        _ = poll(&mut [], Some(&KILL_ROUND_PAUSE));
    }
    left
}

/// Whether it is gone.
fn reap(pid: Pid) -> bool {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(ended) => return ended.is_some(),
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}
