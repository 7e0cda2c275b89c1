//! The place of a server's process, from the moment it is being started.

use narrows_process::{Child, Ladder, SpawnError, Spec};
use tokio::task::JoinHandle;

use crate::Confinement;
use crate::connection::{Process, StartError};
use crate::pipe::Pipe;
use crate::verbatim::Verbatim;

/// At most one process. Whoever gives up waiting for its start still finds it here.
#[derive(Default)]
pub(crate) struct Slot {
    /// A task of its own: a start that is abandoned halfway would end at some time, and nobody would know when.
    starting: Option<JoinHandle<Result<Child, SpawnError>>>,
    process: Option<Process>,
}

impl Slot {
    /// Starts a process, after the end of the one before.
    pub(crate) async fn start(
        &mut self,
        spec: Spec,
        ladder: Ladder,
        verbatim: Verbatim,
        confinement: Option<&Confinement>,
    ) -> Result<Pipe, StartError> {
        self.stop(ladder).await;
        let starting = self.starting.insert(tokio::spawn(narrows_process::spawn(spec)));
        let started = starting.await;
        self.starting = None;
        let (process, pipe) =
            Process::new(started.unwrap_or(Err(SpawnError::Guardian))?, verbatim, confinement)?;
        self.process = Some(process);
        Ok(pipe)
    }

    /// The reason with what the process has to say to it.
    pub(crate) async fn explain(&self, reason: &str, hung_up: bool) -> String {
        match &self.process {
            Some(process) => process.explain(reason, hung_up).await,
            None => reason.to_owned(),
        }
    }

    /// Ends the process and everything it started. An abandoned call can be repeated.
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
