//! The filtered system calls and their numbers for every kind of program.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Refused,
    /// The call fails with `ENOSYS`, as if the kernel did not have it. For calls that programs can do
    /// without.
    Absent,
    /// The rule for `socket`, which decides by the socket's family, and for netlink by the protocol.
    Socket,
    /// The rule for `socketpair`: only unix pairs that cannot be connected to other sockets are allowed.
    Pair,
    /// The first argument of the call is a process id. Only `0`, the caller's own process, is allowed.
    OwnProcess,
    /// The second argument of the call is an id, and the first is its kind. Only this kind of id with the
    /// value `0`, the caller itself, is allowed.
    OwnOf(u32),
    /// The second argument of the call is a command. The listed commands are refused.
    Commands(&'static [u32]),
    /// The rule for `ioctl`, which decides by the command.
    Ioctl,
    /// The call changes file flags or extended attributes, which include access control lists.
    Attributes,
    /// The argument of the call with this index is a file mode. Modes that make a program run as its owner or
    /// group are refused.
    Mode(usize),
    /// Like [`Rule::Mode`], for a call that uses the mode only if the flags in the argument before it create
    /// a file.
    ModeIfCreated(usize),
    /// The call belongs to System V IPC, and is refused if the tree has no IPC namespace.
    SystemV,
    /// The first argument of the call has flags. Creating a user namespace is refused.
    Namespaces,
}

/// The numbers of one system call, by architecture: x86_64, i386, aarch64 and riscv64, 32-bit ARM.
type Numbers = [Option<u32>; 4];

const fn all(number: u32) -> Numbers {
    [Some(number); 4]
}

const fn on(x86_64: u32, i386: u32, generic: u32, arm: u32) -> Numbers {
    [Some(x86_64), Some(i386), Some(generic), Some(arm)]
}

/// Returns the numbers of a system call that exists only for 32-bit programs.
const fn on_32_bit(i386: u32, arm: u32) -> Numbers {
    [None, Some(i386), None, Some(arm)]
}

/// Returns the numbers of a system call that newer architectures lack.
const fn on_old(x86_64: u32, i386: u32, arm: u32) -> Numbers {
    [Some(x86_64), Some(i386), None, Some(arm)]
}

/// `ioctl` command that inserts input into a terminal.
const TIOCSTI: u32 = 0x5412;
/// `ioctl` command that controls the console's selection buffer, which can be pasted as input.
const TIOCLINUX: u32 = 0x541c;
/// `ioctl` commands that are always refused.
pub(crate) const TERMINAL_COMMANDS: &[u32] = &[TIOCSTI, TIOCLINUX];
/// `ioctl` commands that change a file or directory that is open only for reading. Landlock does not cover
/// them. If a command has two numbers, the second one is for 32-bit programs.
pub(crate) const FILE_COMMANDS: &[u32] = &[
    // FS_IOC_SETFLAGS
    0x4008_6602,
    0x4004_6602,
    // FS_IOC_FSSETXATTR
    0x401c_5820,
    // FS_IOC_SETVERSION, EXT4_IOC_SETVERSION
    0x4008_7602,
    0x4004_7602,
    0x4008_6604,
    0x4004_6604,
    // FS_IOC_SET_ENCRYPTION_POLICY, FS_IOC_ENABLE_VERITY
    0x800c_6613,
    0x4080_6685,
    // FAT_IOCTL_SET_ATTRIBUTES
    0x4004_7211,
    // BTRFS_IOC_SNAP_CREATE, SUBVOL_CREATE, SNAP_DESTROY, SNAP_CREATE_V2, SUBVOL_CREATE_V2, SUBVOL_SETFLAGS,
    // SNAP_DESTROY_V2
    0x5000_9401,
    0x5000_940e,
    0x5000_940f,
    0x5000_9417,
    0x5000_9418,
    0x4008_941a,
    0x5000_943f,
];
const PRIORITY_OF_PROCESS: u32 = 0;
const IO_PRIORITY_OF_PROCESS: u32 = 1;

/// The system calls that are restricted; all other calls are allowed.
///
/// Calls that the kernel guards like `ptrace` (`process_vm_readv`, `kcmp` and others) are not listed:
/// Landlock lets a process trace only within its own sandbox.
///
/// Signals are not listed either, because a filter cannot know the owner of a process id. Landlock prevents
/// signals to the outside since version 6, and in a PID namespace other processes have no id.
const RULES: &[(Rule, Numbers)] = &[
    (Rule::Socket, on(41, 359, 198, 281)),
    (Rule::Pair, on(53, 360, 199, 288)),
    // socketcall: stands for every socket call. Its arguments are in memory, where a filter cannot read them.
    (Rule::Refused, on_32_bit(102, 102)),
    // io_uring_setup: a ring can create sockets without the call `socket`.
    (Rule::Absent, all(425)),
    // prlimit64
    (Rule::OwnProcess, on(302, 340, 261, 369)),
    // sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr
    (Rule::OwnProcess, on(203, 241, 122, 241)),
    (Rule::OwnProcess, on(144, 156, 119, 156)),
    (Rule::OwnProcess, on(142, 154, 118, 154)),
    (Rule::OwnProcess, on(314, 351, 274, 380)),
    // migrate_pages, move_pages, get_robust_list
    (Rule::OwnProcess, on(256, 294, 238, 400)),
    (Rule::OwnProcess, on(279, 317, 239, 344)),
    (Rule::OwnProcess, on(274, 312, 100, 339)),
    // setpriority, ioprio_set: the other kinds of id, a process group and a user, may include the guardian.
    (Rule::OwnOf(PRIORITY_OF_PROCESS), on(141, 97, 140, 97)),
    (Rule::OwnOf(IO_PRIORITY_OF_PROCESS), on(251, 289, 30, 314)),
    // process_madvise, process_mrelease, pidfd_getfd
    (Rule::Refused, all(440)),
    (Rule::Refused, all(448)),
    (Rule::Refused, all(438)),
    // perf_event_open, bpf, setns
    (Rule::Refused, on(298, 336, 241, 364)),
    (Rule::Refused, on(321, 357, 280, 386)),
    (Rule::Refused, on(308, 346, 268, 375)),
    // clone, unshare: in a user namespace a program has every capability, and so reaches more of the kernel.
    (Rule::Namespaces, on(56, 120, 220, 120)),
    (Rule::Namespaces, on(272, 310, 97, 337)),
    // clone3: its flags are in memory, where a filter cannot read them. Without clone3, the C library uses
    // clone.
    (Rule::Absent, all(435)),
    // fanotify_init, open_by_handle_at, quotactl, quotactl_fd
    (Rule::Refused, on(300, 338, 262, 367)),
    (Rule::Refused, on(304, 342, 265, 371)),
    (Rule::Refused, on(179, 131, 60, 131)),
    (Rule::Refused, all(443)),
    // userfaultfd
    (Rule::Absent, on(323, 374, 282, 388)),
    // add_key, request_key, keyctl: the worker inherits the keyring of the session.
    (Rule::Absent, on(248, 286, 217, 309)),
    (Rule::Absent, on(249, 287, 218, 310)),
    (Rule::Absent, on(250, 288, 219, 311)),
    // mq_open, mq_unlink, mq_timedsend (and time64), mq_timedreceive (and time64), mq_notify, mq_getsetattr:
    // also in an IPC namespace, because a queue opened for reading below /dev/mqueue belongs to the outside.
    (Rule::Absent, on(240, 277, 180, 274)),
    (Rule::Absent, on(241, 278, 181, 275)),
    (Rule::Absent, on(242, 279, 182, 276)),
    (Rule::Absent, on_32_bit(418, 418)),
    (Rule::Absent, on(243, 280, 183, 277)),
    (Rule::Absent, on_32_bit(419, 419)),
    (Rule::Absent, on(244, 281, 184, 278)),
    (Rule::Absent, on(245, 282, 185, 279)),
    // ioctl
    (Rule::Ioctl, on(16, 54, 29, 54)),
    // setxattr, lsetxattr, fsetxattr, setxattrat
    (Rule::Attributes, on(188, 226, 5, 226)),
    (Rule::Attributes, on(189, 227, 6, 227)),
    (Rule::Attributes, on(190, 228, 7, 228)),
    (Rule::Attributes, all(463)),
    // removexattr, lremovexattr, fremovexattr, removexattrat, file_setattr
    (Rule::Attributes, on(197, 235, 14, 235)),
    (Rule::Attributes, on(198, 236, 15, 236)),
    (Rule::Attributes, on(199, 237, 16, 237)),
    (Rule::Attributes, all(466)),
    (Rule::Attributes, all(469)),
    // fcntl, fcntl64: a lease on a readable file delays every process that opens the file for writing.
    (Rule::Commands(&[libc::F_SETLEASE as u32]), on(72, 55, 25, 55)),
    (Rule::Commands(&[libc::F_SETLEASE as u32]), on_32_bit(221, 221)),
    // chmod, fchmod, fchmodat, fchmodat2, creat, mknod, mknodat, open, openat: a set-user-id program that
    // stays behind would give the user's rights to every user who starts it outside.
    (Rule::Mode(1), on_old(90, 15, 15)),
    (Rule::Mode(1), on(91, 94, 52, 94)),
    (Rule::Mode(2), on(268, 306, 53, 333)),
    (Rule::Mode(2), all(452)),
    (Rule::Mode(1), on_old(85, 8, 8)),
    (Rule::Mode(1), on_old(133, 14, 14)),
    (Rule::Mode(2), on(259, 297, 33, 324)),
    (Rule::ModeIfCreated(2), on_old(2, 5, 5)),
    (Rule::ModeIfCreated(3), on(257, 295, 56, 322)),
    // openat2: its mode is in memory, where a filter cannot read it.
    (Rule::Absent, all(437)),
    // shmget, shmat, shmctl
    (Rule::SystemV, on(29, 395, 194, 307)),
    (Rule::SystemV, on(30, 397, 196, 305)),
    (Rule::SystemV, on(31, 396, 195, 308)),
    // semget, semctl, semop, semtimedop (and time64)
    (Rule::SystemV, on(64, 393, 190, 299)),
    (Rule::SystemV, on(66, 394, 191, 300)),
    (Rule::SystemV, [Some(65), None, Some(193), Some(298)]),
    (Rule::SystemV, [Some(220), None, Some(192), Some(312)]),
    (Rule::SystemV, on_32_bit(420, 420)),
    // msgget, msgsnd, msgrcv, msgctl
    (Rule::SystemV, on(68, 399, 186, 303)),
    (Rule::SystemV, on(69, 400, 189, 301)),
    (Rule::SystemV, on(70, 401, 188, 302)),
    (Rule::SystemV, on(71, 402, 187, 304)),
    // ipc: stands for all System V calls.
    (Rule::SystemV, on_32_bit(117, 117)),
];

/// The numbers of the restricted calls for one kind of program. A processor may support two kinds.
pub(crate) struct Calls {
    pub(crate) arch: u32,
    /// Column of the table of rules with the numbers of this kind of program.
    column: usize,
    /// Lowest call number that belongs to another kind of program.
    pub(crate) foreign_from: Option<u32>,
}

impl Calls {
    /// Returns the rules for this kind of program, each with its call number.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (u32, Rule)> {
        RULES.iter().filter_map(|(rule, numbers)| Some(((*numbers.get(self.column)?)?, *rule)))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) const CALLS: &[Calls] = &[
    Calls { arch: 0xc000_003e, column: 0, foreign_from: Some(0x4000_0000) },
    Calls { arch: 0x4000_0003, column: 1, foreign_from: None },
];
#[cfg(target_arch = "aarch64")]
pub(crate) const CALLS: &[Calls] = &[
    Calls { arch: 0xc000_00b7, column: 2, foreign_from: None },
    Calls { arch: 0x4000_0028, column: 3, foreign_from: None },
];
#[cfg(target_arch = "riscv64")]
pub(crate) const CALLS: &[Calls] = &[Calls { arch: 0xc000_00f3, column: 2, foreign_from: None }];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
pub(crate) const CALLS: &[Calls] = &[];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_number_has_one_rule() {
        for column in 0..4 {
            let calls = Calls { arch: 0, column, foreign_from: None };
            let mut seen = BTreeSet::new();
            for (number, rule) in calls.rules() {
                assert!(seen.insert(number), "{number} of column {column} is there twice: {rule:?}");
            }
            assert!(seen.len() > 40, "{}", seen.len());
        }
    }

    #[test]
    fn the_numbers_of_this_processor_are_those_of_the_c_library() {
        let Some(calls) = CALLS.first() else { return };
        let rules: Vec<(u32, Rule)> = calls.rules().collect();
        for (number, expected) in [
            (libc::SYS_socket, Rule::Socket),
            (libc::SYS_socketpair, Rule::Pair),
            (libc::SYS_io_uring_setup, Rule::Absent),
            (libc::SYS_prlimit64, Rule::OwnProcess),
            (libc::SYS_sched_setaffinity, Rule::OwnProcess),
            (libc::SYS_sched_setscheduler, Rule::OwnProcess),
            (libc::SYS_sched_setparam, Rule::OwnProcess),
            (libc::SYS_sched_setattr, Rule::OwnProcess),
            (libc::SYS_migrate_pages, Rule::OwnProcess),
            (libc::SYS_move_pages, Rule::OwnProcess),
            (libc::SYS_get_robust_list, Rule::OwnProcess),
            (libc::SYS_setpriority, Rule::OwnOf(0)),
            (libc::SYS_ioprio_set, Rule::OwnOf(1)),
            (libc::SYS_process_madvise, Rule::Refused),
            (libc::SYS_process_mrelease, Rule::Refused),
            (libc::SYS_pidfd_getfd, Rule::Refused),
            (libc::SYS_perf_event_open, Rule::Refused),
            (libc::SYS_bpf, Rule::Refused),
            (libc::SYS_setns, Rule::Refused),
            (libc::SYS_clone, Rule::Namespaces),
            (libc::SYS_unshare, Rule::Namespaces),
            (libc::SYS_clone3, Rule::Absent),
            (libc::SYS_fanotify_init, Rule::Refused),
            (libc::SYS_open_by_handle_at, Rule::Refused),
            (libc::SYS_quotactl, Rule::Refused),
            (libc::SYS_userfaultfd, Rule::Absent),
            (libc::SYS_add_key, Rule::Absent),
            (libc::SYS_request_key, Rule::Absent),
            (libc::SYS_keyctl, Rule::Absent),
            (libc::SYS_mq_open, Rule::Absent),
            (libc::SYS_mq_timedreceive, Rule::Absent),
            (libc::SYS_ioctl, Rule::Ioctl),
            (libc::SYS_setxattr, Rule::Attributes),
            (libc::SYS_lsetxattr, Rule::Attributes),
            (libc::SYS_fsetxattr, Rule::Attributes),
            (libc::SYS_removexattr, Rule::Attributes),
            (libc::SYS_lremovexattr, Rule::Attributes),
            (libc::SYS_fremovexattr, Rule::Attributes),
            (libc::SYS_fchmod, Rule::Mode(1)),
            (libc::SYS_fchmodat, Rule::Mode(2)),
            (libc::SYS_mknodat, Rule::Mode(2)),
            (libc::SYS_openat, Rule::ModeIfCreated(3)),
            (libc::SYS_openat2, Rule::Absent),
            (libc::SYS_shmget, Rule::SystemV),
            (libc::SYS_shmat, Rule::SystemV),
            (libc::SYS_semget, Rule::SystemV),
            (libc::SYS_semop, Rule::SystemV),
            (libc::SYS_semtimedop, Rule::SystemV),
            (libc::SYS_msgget, Rule::SystemV),
            (libc::SYS_msgctl, Rule::SystemV),
        ] {
            let found = rules.iter().find(|(other, _)| i64::from(*other) == number);
            assert_eq!(found.map(|(_, rule)| *rule), Some(expected), "{number}");
        }
        let is_fcntl = |(number, rule): &(u32, Rule)| {
            i64::from(*number) == libc::SYS_fcntl && matches!(rule, Rule::Commands(_))
        };
        assert!(rules.iter().any(is_fcntl));
    }
}
