//! Owns a server's process from the moment its start begins.

use narrows_process::{Child, Ladder, SpawnError, Spec};
use tokio::task::JoinHandle;

use crate::Confinement;
use crate::connection::{Process, StartError};
use crate::stdio_transport::StdioTransport;
use crate::verbatim::Verbatim;

/// Holds at most one process. The process of a start that was cancelled stays in the slot, so that it can be
/// stopped.
#[derive(Default)]
pub(crate) struct ProcessSlot {
    /// Starting runs as a separate task, because a start that is cancelled halfway would create a process
    /// without an owner.
    starting: Option<JoinHandle<Result<Child, SpawnError>>>,
    process: Option<Process>,
}

impl ProcessSlot {
    /// Ends the previous process, if any, and starts another.
    pub(crate) async fn start(
        &mut self,
        spec: Spec,
        ladder: Ladder,
        verbatim: Verbatim,
        confinement: Option<&Confinement>,
    ) -> Result<StdioTransport, StartError> {
        self.stop(ladder).await;
        let starting = self.starting.insert(tokio::spawn(narrows_process::spawn(spec)));
        let started = starting.await;
        self.starting = None;
        let (process, transport) =
            Process::new(started.unwrap_or(Err(SpawnError::Guardian))?, verbatim, confinement)?;
        self.process = Some(process);
        Ok(transport)
    }

    /// Adds the process's stderr and exit status to `reason`.
    pub(crate) async fn explain(&self, reason: &str, disconnected: bool) -> String {
        match &self.process {
            Some(process) => process.explain(reason, disconnected).await,
            None => reason.to_owned(),
        }
    }

    /// Stops the process and its tree. If a call was cancelled, it can be repeated.
    pub(crate) async fn stop(&mut self, ladder: Ladder) {
        if let Some(starting) = &mut self.starting {
            let started = starting.await;
            self.starting = None;
            let process = started
                .ok()
                .and_then(Result::ok)
                .and_then(|child| Process::new(child, Verbatim::default(), None).ok());
            self.process = process.map(|(process, _)| process);
        }
        if let Some(process) = &self.process {
            process.stop(ladder).await;
        }
        self.process = None;
    }
}
