//! Ctrl-C, SIGTERM and SIGHUP, as something to wait for.

use std::io;

use tokio::signal::unix::{self, SignalKind};

/// Somebody wants us to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGINT, which is Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

impl Signal {
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::HangUp => 1,
            Self::Interrupt => 2,
            Self::Terminate => 15,
        }
    }
}

/// These signals; while this lives they no longer end the program by themselves.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    /// None if whoever started us wants us to outlive the terminal.
    hang_up: Option<unix::Signal>,
}

impl Interrupts {
    /// Takes them. Must be called inside a runtime.
    pub(crate) fn take() -> io::Result<Self> {
        // Under `nohup` it is ignored, which listening to it would undo.
        let stays = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hang_up(&status));
        Self::with(!stays)
    }

    /// The same for who does not end by SIGHUP anyway.
    pub(crate) fn take_all() -> io::Result<Self> {
        Self::with(true)
    }

    fn with(hang_up: bool) -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hang_up: if hang_up { Some(unix::signal(SignalKind::hangup())?) } else { None },
        })
    }

    /// Waits for the next. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Signal {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            _ = hang_up => Signal::HangUp,
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

/// Whether a process of this status ignores SIGHUP, which is the first of the signals.
fn ignores_hang_up(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_tells_whether_hanging_up_is_ignored() {
        for (status, expected) in [
            ("Name:\ta\nSigIgn:\t0000000000000001\nSigCgt:\t0\n", true),
            ("SigIgn:\t0000000000001001\n", true),
            ("SigIgn:\t0000000000001000\nSigBlk:\t1\n", false),
            ("SigIgn:\tx\n", false),
            ("", false),
        ] {
            assert_eq!(ignores_hang_up(status), expected, "{status}");
        }
    }

    proptest! {
        #[test]
        fn every_mask_is_read(mask: u64, before in "[A-Za-z:\t0-9\n]{0,40}") {
            let status = format!("{}\nSigIgn:\t{mask:016x}\n", before.replace("SigIgn", ""));
            prop_assert_eq!(ignores_hang_up(&status), mask % 2 == 1);
        }

        #[test]
        fn whatever_stands_there_is_no_harm(status in "\\PC{0,80}") {
            prop_assert!(!ignores_hang_up(&status));
        }
    }
}
