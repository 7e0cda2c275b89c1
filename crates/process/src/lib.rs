//! Child processes whose whole tree ends with them.
//!
//! [`spawn`] starts a worker with a cleared environment, pipes on its three standard descriptors and a
//! *guardian* between the worker and this program:
//!
//! ```text
//! supervisor (this program) ── control socket ── guardian ── worker ── processes that the worker starts
//! ```
//!
//! The guardian is a fork of this program that never executes another program, so it works in any program
//! that embeds the library. It is the subreaper of the tree: a grandchild that daemonised itself or called
//! `setsid` becomes the guardian's child, not init's. The guardian ends the whole tree on request, when the
//! worker exits, when the [`Child`] is dropped and when the supervisor dies, even by `SIGKILL`.
//!
//! `PR_SET_PDEATHSIG` relative to the supervisor would not be enough. It follows the spawning *thread*, so
//! a healthy worker would die with a thread of a pool, and it reaches only one process. The worker does use
//! it relative to the guardian, which has one thread and outlives the tree.
//!
//! Invariants:
//! - When [`Child::stop`] or [`Child::wait`] returns an [`Exit`] without survivors, no process of the tree
//!   exists, the guardian is reaped and its descriptors are closed.
//! - The guardian holds no copy of the worker's pipe ends, so the end of a pipe means that no process of
//!   the tree has it open.
//! - Between fork and exec nothing allocates, locks or panics.
//! - The kernel continues a stopped guardian when an order arrives, when the handle is dropped and when the
//!   supervisor dies. While a caller waits for the guardian, it is continued repeatedly.
//! - The library reads no environment variable; the caller passes the worker's variables.
//!
//! Limits: a worker runs as the same user as its guardian, so a hostile worker can stop or kill the
//! guardian.
//! - If a guardian is killed, the worker dies with it, and the supervisor kills the rest of the session
//!   ([`ExitClass::Lost`]). A process that had called `setsid` is adopted by init and survives, unless the
//!   supervisor has called [`adopt_orphans`]. If the supervisor is dead too, all processes but the worker
//!   survive.
//! - If a guardian is stopped again and again, [`Child::stop`] ends the tree without it after ten seconds.
//!   If the supervisor is dead, processes that stop the guardian after that death survive.
//!
//! A [`Sandbox`] prevents both. Bubblewrap uses a PID namespace, which no process outlives, and so does
//! Landlock if PID namespaces are available. Landlock alone forbids signals to processes outside, on
//! kernels that support it ([`Confined::guardian`]). A sandbox also confines the tree's access to files and
//! the network. It is prepared before the fork, and only the worker enters it, so the guardian can still
//! end the tree.
//!
//! With Landlock and a PID namespace there is one more process, `init`. It forks the worker, reaps orphans
//! and reports the worker's end to the guardian:
//!
//! ```text
//! supervisor ── control socket ── guardian ── status socket ── init ── worker ── processes that it starts
//! ```
//!
//! The guardian stays outside, where every process has a second pid. [`Child::pid`] and all signals use
//! the pids outside.
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
