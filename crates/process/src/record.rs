//! The messages between guardian, init, worker and supervisor. They have a fixed size, so that decoding needs
//! no allocation.

pub(crate) const RECORD_BYTES: usize = 12;

/// A report of a forked process to the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// The worker exists and is about to execute its program.
    Started {
        pid: i32,
    },
    /// The program does not run because this step failed.
    Failed {
        stage: Stage,
        errno: i32,
    },
    Exited {
        code: i32,
    },
    Signaled {
        signal: i32,
    },
    /// Some processes of the tree have survived `SIGKILL`.
    Stuck {
        swept: u32,
        alive: u32,
    },
    /// All processes of the tree are gone.
    Finished {
        swept: u32,
    },
}

/// The steps between fork and exec that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Isolate,
    CloseDescriptors,
    OpenProc,
    WatchChildren,
    Fork,
    Attach,
    Chdir,
    Limit,
    Confine,
    Exec,
}

impl Stage {
    const ALL: [Self; 10] = [
        Self::Isolate,
        Self::CloseDescriptors,
        Self::OpenProc,
        Self::WatchChildren,
        Self::Fork,
        Self::Attach,
        Self::Chdir,
        Self::Limit,
        Self::Confine,
        Self::Exec,
    ];

    /// Returns the action of the stage, worded to follow "cannot".
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Isolate => "create a session for the guardian",
            Self::CloseDescriptors => "close inherited descriptors",
            Self::OpenProc => "read /proc, which is needed to end a process tree",
            Self::WatchChildren => "watch for the end of children",
            Self::Fork => "fork the worker",
            Self::Attach => "attach the worker's pipes",
            Self::Chdir => "change the working directory",
            Self::Limit => "apply the limits to the worker",
            Self::Confine => "apply the sandbox to the worker",
            Self::Exec => "execute the program",
        }
    }
}

impl Record {
    /// Creates the record of a worker's end from its exit status or signal.
    pub(crate) fn ended(code: Option<i32>, signal: Option<i32>) -> Self {
        match code {
            Some(code) => Self::Exited { code },
            None => Self::Signaled { signal: signal.unwrap_or(0) },
        }
    }

    pub(crate) fn encode(self) -> [u8; RECORD_BYTES] {
        let [kind, a, b] = match self {
            Self::Started { pid } => [1, pid, 0],
            Self::Failed { stage, errno } => [2, stage as i32, errno],
            Self::Exited { code } => [3, code, 0],
            Self::Signaled { signal } => [4, signal, 0],
            Self::Stuck { swept, alive } => [5, swept.cast_signed(), alive.cast_signed()],
            Self::Finished { swept } => [6, swept.cast_signed(), 0],
        }
        .map(i32::to_ne_bytes);
        let mut bytes = [0; RECORD_BYTES];
        for (to, from) in bytes.iter_mut().zip(kind.into_iter().chain(a).chain(b)) {
            *to = from;
        }
        bytes
    }

    /// Decodes the record at the start of `bytes`. Returns `None` if the record is incomplete or unknown.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let field = |index: usize| {
            let bytes = bytes.get(index * 4..index * 4 + 4)?;
            Some(i32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (kind, a, b) = (field(0)?, field(1)?, field(2)?);
        Some(match kind {
            1 => Self::Started { pid: a },
            2 => Self::Failed { stage: *Stage::ALL.get(usize::try_from(a).ok()?)?, errno: b },
            3 => Self::Exited { code: a },
            4 => Self::Signaled { signal: a },
            5 => Self::Stuck { swept: a.cast_unsigned(), alive: b.cast_unsigned() },
            6 => Self::Finished { swept: a.cast_unsigned() },
            _ => return None,
        })
    }
}

/// An order of the supervisor to the guardian, one byte each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Send `SIGTERM` to the worker's process group.
    Terminate = b'T',
    /// Send `SIGKILL` to the whole tree.
    Kill = b'K',
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_as_encoded() {
        let mut records = vec![
            Record::Started { pid: 4_000_000 },
            Record::Exited { code: 255 },
            Record::Signaled { signal: 11 },
            Record::Stuck { swept: u32::MAX, alive: 1 },
            Record::Finished { swept: 7 },
        ];
        records.extend(Stage::ALL.map(|stage| Record::Failed { stage, errno: 2 }));
        for record in records {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn short_and_unknown_records_are_refused() {
        let bytes = Record::Finished { swept: 0 }.encode();
        assert_eq!(Record::decode(&bytes[..RECORD_BYTES - 1]), None);
        let failed = |stage: i32| [2i32, stage, 0].map(i32::to_ne_bytes).concat();
        assert_eq!(Record::decode(&failed(10)), None);
        assert_eq!(Record::decode(&failed(-1)), None);
        assert_eq!(Record::decode(&[9; RECORD_BYTES]), None);
    }
}
