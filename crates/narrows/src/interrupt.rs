//! Ctrl-C and SIGTERM, as something to wait for.

use std::io;

use tokio::signal::unix::{self, SignalKind};

/// Somebody wants us to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGINT, which is Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Both signals; while this lives they no longer end the program by themselves.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Interrupts {
    /// Takes both. Must be called inside a runtime.
    pub(crate) fn take() -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }

    /// What comes of `work`, unless a signal comes first.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Err(signal),
            outcome = work => Ok(outcome),
        }
    }
}
