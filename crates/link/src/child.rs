//! A link to a child process over its stdin and stdout.

use std::future::pending;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use narrows_process::Child;
/// Re-exported so that users of links can start a process and read its exit without another crate.
pub use narrows_process::{AllowList, Environment, Exit, ExitClass, Ladder, SpawnError, Spec, StderrTail};

use crate::close::CloseReason;
use crate::hangup;
use crate::link::{Link, Options};
use crate::stream::{PeerSignals, stream_until};

/// Time for a process that has closed its stdout to exit. Its exit then becomes the close reason.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of stderr lines in a close reason.
const STDERR_TAIL_LINES: usize = 20;

/// The process at the other end of a link. Dropping it ends the process tree.
#[derive(Debug)]
pub struct Process {
    child: Arc<Child>,
    gateway: Option<TcpListener>,
}

/// Starts a process and links to it. Must be called inside a runtime.
///
/// If the process exits, the link's close reason contains the exit and the last lines of stderr.
///
/// # Errors
/// If the process cannot be started.
pub async fn spawn(spec: Spec, options: &Options) -> Result<(Link, Process), SpawnError> {
    let mut child = narrows_process::spawn(spec).await?;
    let (Some(stdin), Some(stdout)) = (child.take_stdin(), child.take_stdout()) else {
        return Err(SpawnError::Guardian);
    };
    let gateway = child.take_gateway();
    let reader_gone = hangup::reader_gone(stdin.as_fd().try_clone_to_owned());
    let child = Arc::new(child);
    // The reader holds no strong reference: dropping all handles must end the process, and so the reader.
    let watched = Arc::downgrade(&child);
    let why = async move {
        let Some(child) = watched.upgrade() else { return CloseReason::Local };
        // Once the whole process tree has exited, stderr is complete. If only the process itself has exited,
        // the close reason contains the lines so far.
        let exit = match tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await {
            Ok(exit) => Some(exit),
            Err(_) => tokio::time::timeout(Duration::ZERO, child.worker_ended()).await.ok(),
        };
        match exit {
            Some(exit) => CloseReason::Exited { exit, stderr: child.stderr().tail(STDERR_TAIL_LINES) },
            None => CloseReason::Eof,
        }
    };
    let signs = PeerSignals { why, reader_gone, peer_closed: pending() };
    Ok((stream_until(stdout, stdin, options, signs), Process { child, gateway }))
}

impl Process {
    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Returns the last lines of stderr.
    #[must_use]
    pub fn stderr(&self) -> StderrTail {
        self.child.stderr()
    }

    /// Takes the listener inside the process's own network. `None` if the sandbox has no gateway, or on a
    /// second call.
    pub fn take_gateway(&mut self) -> Option<TcpListener> {
        self.gateway.take()
    }

    /// Kills the process tree if the tree is still running after `limit`. The returned task yields `true` if
    /// it killed the tree.
    pub fn kill_after(&self, limit: Duration) -> tokio::task::JoinHandle<bool> {
        let child = Arc::downgrade(&self.child);
        tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            let Some(child) = child.upgrade() else { return false };
            if child.try_wait().is_none() {
                child.kill();
            }
            true
        })
    }

    /// Waits until the process tree has ended.
    pub async fn wait(&self) -> Exit {
        self.child.wait().await
    }

    /// Ends the process tree with the steps of `ladder`. The first step, end of input, requires that the
    /// link's sender is closed or dropped.
    pub async fn stop(self, ladder: Ladder) -> Exit {
        self.child.stop(ladder).await
    }
}
