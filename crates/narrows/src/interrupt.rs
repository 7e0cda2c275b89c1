//! SIGINT, SIGTERM and SIGHUP as asynchronous events.

use std::io;

use tokio::signal::unix::{self, SignalKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGINT, as sent by Ctrl-C.
    Interrupt,
    Terminate,
    /// SIGHUP: the terminal was closed.
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

/// Receives the signals. They do not end the program while this exists.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    /// `None` if SIGHUP is ignored, as under `nohup`.
    hang_up: Option<unix::Signal>,
}

impl Interrupts {
    /// Starts to receive the signals. Must be called inside a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        // Under `nohup` SIGHUP is ignored; a handler would undo that.
        let stays = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hang_up(&status));
        Self::with(!stays)
    }

    /// Starts to receive all signals, even SIGHUP if it was ignored.
    pub(crate) fn listen_all() -> io::Result<Self> {
        Self::with(true)
    }

    fn with(hang_up: bool) -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hang_up: if hang_up { Some(unix::signal(SignalKind::hangup())?) } else { None },
        })
    }

    /// Waits for the next signal. Cancel-safe.
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

    pub(crate) async fn unless_signal<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Err(signal),
            outcome = work => Ok(outcome),
        }
    }
}

/// Returns `true` if a `/proc` status has SIGHUP, signal 1, among the ignored ones.
fn ignores_hang_up(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ignored_sighup_is_read_from_the_process_status() {
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
        fn any_signal_mask_is_parsed(mask: u64, before in "[A-Za-z:\t0-9\n]{0,40}") {
            let status = format!("{}\nSigIgn:\t{mask:016x}\n", before.replace("SigIgn", ""));
            prop_assert_eq!(ignores_hang_up(&status), mask % 2 == 1);
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(status in "\\PC{0,80}") {
            prop_assert!(!ignores_hang_up(&status));
        }
    }
}
