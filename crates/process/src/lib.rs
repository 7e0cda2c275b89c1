//! Child processes whose whole tree ends with them.
//!
//! [`spawn`] starts a worker with a cleared environment, pipes on its three standard descriptors and a *guardian*
//! between it and this program:
//!
//! ```text
//! supervisor (this program) ── control socket ── guardian ── worker ── whatever the worker starts
//! ```
//!
//! The guardian is a fork of this program that never executes another program, so it works in any program that embeds
//! the library. It is the subreaper of the tree: a grandchild that daemonised itself or called `setsid` becomes the
//! guardian's child, not init's. It ends the whole tree on request, when the worker exits, when the [`Child`] is
//! dropped and when the supervisor dies, also by `SIGKILL`.
//!
//! `PR_SET_PDEATHSIG` relative to the supervisor would not do: it follows the spawning *thread*, so a healthy worker
//! would die with a thread of a pool, and it reaches one process only. The worker does use it relative to the guardian,
//! which has one thread and outlives the tree.
//!
//! Invariants:
//! - When [`Child::stop`] or [`Child::wait`] returns an [`Exit`] without survivors, no process of the tree
//!   exists, the guardian is reaped and its descriptors are closed.
//! - The guardian holds no copy of the worker's pipe ends, so end-of-file means what it says.
//! - Between fork and exec nothing allocates, locks or panics.
//! - A stopped guardian is continued by the kernel when an order arrives, when the handle is dropped and when the
//!   supervisor dies, and repeatedly while a caller waits for it.
//! - The library reads no environment variable; the caller passes what the worker may see.
//!
//! Limits: a worker runs as the same user as its guardian, so a hostile one can stop or kill it.
//! - When a guardian is killed, the worker dies with it and the supervisor kills the rest of the session
//!   ([`ExitClass::Lost`]). A process that had called `setsid` is adopted by init and survives, unless the supervisor has
//!   called [`adopt_orphans`]. If the supervisor is dead too, all but the worker survive.
//! - When a guardian is stopped again and again, [`Child::stop`] ends the tree without it after ten seconds. If the
//!   supervisor is dead, processes that stop the guardian after that death survive.
//!
//! A [`Sandbox`] prevents both. Bubblewrap, and Landlock where PID namespaces are available, use a PID namespace, which
//! nothing outlives; Landlock alone forbids signals to processes outside, in kernels that can ([`Confined::guardian`]).
//! A sandbox also confines what the tree does to files and the network. It is prepared before the fork and entered by
//! the worker only, so the guardian can still end the tree.
//!
//! With Landlock and a PID namespace there is one more process, `init`. It forks the worker, reaps orphans and reports
//! the worker's end to the guardian:
//!
//! ```text
//! supervisor ── control socket ── guardian ── status socket ── init ── worker ── whatever the worker starts
//! ```
//!
//! The guardian stays outside, where every process has a second pid. [`Child::pid`] and everything it signals use those
//! pids.
//!
//! Needs Linux 5.9 (`close_range`, pidfd) with `/proc` mounted, and a tokio runtime with I/O and time
//! enabled.

mod child;
mod enter_sandbox;
mod env;
mod error;
mod exit;
mod guardian;
mod guardian_handle;
mod init;
mod limits;
mod lookup;
mod memory_map;
mod orphans;
mod record;
mod release_memory;
mod sandbox;
mod spawn;
mod spec;
mod stderr;
mod sys;
mod tree;

pub use child::Child;
pub use env::{AllowList, Environment};
pub use error::SpawnError;
pub use exit::{Exit, ExitClass};
pub use limits::{Controller, Limits, Unenforceable};
pub use lookup::program as find;
pub use orphans::adopt_orphans;
pub use release_memory::{release_code, release_heap};
pub use sandbox::{Confined, Mount, Sandbox, Support, is_missing};
pub use spawn::spawn;
pub use spec::{CwdLinks, Ladder, Spec};
pub use stderr::StderrTail;
pub use sys::{end_by_signal, ignore_file_size_signal, stdout_was_closed};
