//! The end of a worker: a class for programs, and text for users.

use std::fmt;

use rustix::process::Signal;

/// Class of a worker's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitClass {
    /// The worker exited with status 0 on its own.
    Clean,
    /// The worker exited with another status on its own.
    Failed,
    /// A signal from elsewhere ended the worker.
    Crashed,
    Stopped,
    /// The guardian vanished, so the worker's status is unknown.
    Lost,
}

/// The end of a worker and of its process tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Exit {
    pub class: ExitClass,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Number of processes of the tree, other than the worker, that were alive when ending the tree began.
    pub swept: u32,
    /// Number of processes that could not be ended, because they belong to another user or hang in the
    /// kernel. The guardian keeps trying to end them.
    pub survivors: u32,
    /// `true` if the kernel killed the worker because its tree exceeded the memory of its
    /// [`Limits`](crate::Limits).
    pub oom: bool,
}

impl Exit {
    pub(crate) const LOST: Self =
        Self { class: ExitClass::Lost, code: None, signal: None, swept: 0, survivors: 0, oom: false };

    pub(crate) fn exited(code: i32, asked: bool) -> Self {
        let class = match code {
            _ if asked => ExitClass::Stopped,
            0 => ExitClass::Clean,
            _ => ExitClass::Failed,
        };
        Self { class, code: Some(code), ..Self::LOST }
    }

    /// Returns the exit of a worker that a signal ended. If the worker was asked to stop, `SIGPIPE` and the
    /// signals that this program sends count as stopped. Any other signal counts as a crash.
    pub(crate) fn signaled(signal: i32, asked: bool) -> Self {
        let expected = [Signal::TERM, Signal::KILL, Signal::PIPE].map(Signal::as_raw).contains(&signal);
        let class = if asked && expected { ExitClass::Stopped } else { ExitClass::Crashed };
        Self { class, signal: Some(signal), ..Self::LOST }
    }

    /// Returns `true` if the worker was not asked to stop, and ended like a process that the kernel killed,
    /// or like a shell or launcher whose program was killed.
    pub(crate) fn may_be_oom(&self) -> bool {
        let killed = Signal::KILL.as_raw();
        self.class != ExitClass::Stopped && (self.signal == Some(killed) || self.code == Some(128 + killed))
    }
}

impl Exit {
    /// Returns the name of the signal that ended the worker, such as `SIGKILL`.
    pub fn signal_name(&self) -> Option<&'static str> {
        self.signal.and_then(signal_name)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exited with status {code}")?,
            (None, Some(signal)) => match signal_name(signal) {
                Some(name) => write!(f, "killed by {name}")?,
                None => write!(f, "killed by signal {signal}")?,
            },
            (None, None) => write!(f, "lost: its guardian was killed")?,
        }
        if self.oom {
            write!(f, ": memory limit exceeded")?;
        }
        match self.survivors {
            0 => Ok(()),
            1 => write!(f, "; 1 process could not be ended"),
            n => write!(f, "; {n} processes could not be ended"),
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: &[(Signal, &str)] = &[
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::IO, "SIGIO"),
        (Signal::POWER, "SIGPWR"),
        (Signal::SYS, "SIGSYS"),
    ];
    NAMES.iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_classified_by_status_signal_and_request() {
        let segv = Signal::SEGV.as_raw();
        let term = Signal::TERM.as_raw();
        for (exit, class) in [
            (Exit::exited(0, false), ExitClass::Clean),
            (Exit::exited(3, false), ExitClass::Failed),
            (Exit::exited(0, true), ExitClass::Stopped),
            (Exit::exited(143, true), ExitClass::Stopped),
            (Exit::signaled(term, false), ExitClass::Crashed),
            (Exit::signaled(term, true), ExitClass::Stopped),
            (Exit::signaled(segv, true), ExitClass::Crashed),
        ] {
            assert_eq!(exit.class, class, "{exit:?}");
        }
    }

    #[test]
    fn only_unrequested_kills_may_be_oom() {
        let kill = Signal::KILL.as_raw();
        for (exit, expected) in [
            (Exit::signaled(kill, false), true),
            (Exit::signaled(kill, true), false),
            (Exit::signaled(Signal::TERM.as_raw(), false), false),
            (Exit::exited(137, false), true),
            (Exit::exited(137, true), false),
            (Exit::exited(0, false), false),
            (Exit::LOST, false),
        ] {
            assert_eq!(exit.may_be_oom(), expected, "{exit:?}");
        }
    }

    #[test]
    fn signals_have_their_usual_names() {
        assert_eq!(Exit::signaled(Signal::KILL.as_raw(), true).signal_name(), Some("SIGKILL"));
        assert_eq!(Exit::signaled(40, true).signal_name(), None);
        assert_eq!(Exit::exited(9, false).signal_name(), None);
    }

    #[test]
    fn an_exit_is_described_for_users() {
        assert_eq!(Exit::exited(3, false).to_string(), "exited with status 3");
        assert_eq!(Exit::signaled(Signal::SEGV.as_raw(), false).to_string(), "killed by SIGSEGV");
        assert_eq!(Exit::signaled(40, false).to_string(), "killed by signal 40");
        assert_eq!(Exit::LOST.to_string(), "lost: its guardian was killed");
        let oom = Exit { oom: true, ..Exit::signaled(Signal::KILL.as_raw(), false) };
        assert_eq!(oom.to_string(), "killed by SIGKILL: memory limit exceeded");
        let stuck = Exit { survivors: 2, ..Exit::exited(0, true) };
        assert_eq!(stuck.to_string(), "exited with status 0; 2 processes could not be ended");
    }
}
