//! Ends orphans: processes of a tree whose guardian was killed.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, child_subreaper, getpid, set_child_subreaper, waitid,
};

use crate::tree::{self, Orphan};

/// Maximum number of rounds of killing. Each killed orphan may leave further orphans.
const MAX_KILL_ROUNDS: u32 = 50;
const KILL_ROUND_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Makes this process the subreaper of trees whose guardian was killed, so that they can be ended.
/// Otherwise init adopts them, and processes that left the guardian's session by `setsid` survive.
///
/// Only for programs whose other children stay in the program's session: a child that has left it is
/// treated as an orphan when a guardian vanishes. Orphans of other children are adopted too, and stay
/// zombies when they end.
///
/// # Errors
/// If the system refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills adopted orphans. Returns the number of survivors.
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

/// Reaps a process. Returns `true` if it is gone.
fn reap(pid: Pid) -> bool {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(ended) => return ended.is_some(),
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}
