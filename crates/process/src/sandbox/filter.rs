//! The system call filter of a sandbox: Landlock covers paths, TCP ports and signals, but no other sockets
//! and no other calls that act on processes outside.
//!
//! The filter is a classic BPF program for seccomp. It decides by the number of the call and the lower
//! halves of its arguments. That suffices: families, types, process ids and commands are 32 bits wide, and
//! the kernel reads nothing else.

mod calls;

use core::mem::offset_of;

use self::calls::{CALLS, Calls, FILE_COMMANDS, Rule, TERMINAL_COMMANDS};
use crate::sys::Instruction;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_IF_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
/// Verdict on refused sockets: `EACCES`, the error of systems that restrict sockets.
const DENIED: u32 = libc::SECCOMP_RET_ERRNO | libc::EACCES as u32;
/// Verdict on calls that act on other processes or the whole machine.
const FORBIDDEN: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
/// Verdict on calls that programs can do without: `ENOSYS`, as if the call did not exist.
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
/// Verdict on changes of extended attributes: `EOPNOTSUPP`, the error of a file system without them, which
/// programs that copy files handle.
const UNSUPPORTED: u32 = libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32;

/// Mode bits that make a program run as its owner or group.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// Flags with which `open` uses its mode argument.
const CREATE_FLAGS: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).cast_unsigned();

/// Bits of a socket's type argument that are the type. The other bits are flags.
const SOCKET_TYPE_MASK: u32 = 0xf;

/// `true` if a filter exists for this processor.
pub(crate) const IS_SUPPORTED: bool = !CALLS.is_empty();

/// The families of sockets that a process may create.
///
/// Never `AF_UNIX`: such a socket leads to services of this machine that start programs (systemd) or
/// containers (docker) outside the sandbox. Pairs of connected stream sockets are allowed, because they
/// stay connected to each other; a datagram socket of a pair could send to any other.
///
/// Never `AF_VSOCK` or other ways to neighboring machines.
///
/// Of netlink only the routing protocol, which the C library needs to resolve names: through others,
/// processes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    /// Internet sockets, in the machine's network or in an own one.
    Internet,
    None,
}

/// The process ids on which a process may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pids {
    /// Only the process itself, written as `0`.
    Own,
    /// All process ids, because in a PID namespace the processes outside have none.
    Namespace,
}

pub(crate) fn program(families: Families, pids: Pids) -> Vec<Instruction> {
    assemble(|rule| match rule {
        Rule::Refused => Some(vec![end(FORBIDDEN)]),
        Rule::Absent => Some(vec![end(ABSENT)]),
        Rule::Socket => Some(sockets(families)),
        Rule::Pair => Some(pairs()),
        Rule::OwnProcess if pids == Pids::Own => Some(own_process()),
        Rule::OwnOf(kind) if pids == Pids::Own => Some(own_of(kind)),
        Rule::Commands(commands) => Some(without(commands)),
        Rule::Mode(index) => Some(modes(index)),
        Rule::ModeIfCreated(index) => {
            let mut body = vec![argument(index - 1), jump(JUMP_IF_ANY, CREATE_FLAGS, 1, 0), end(ALLOW)];
            body.extend(modes(index));
            Some(body)
        }
        Rule::Ioctl => Some(without(TERMINAL_COMMANDS)),
        Rule::Namespaces => Some(without_flags(0, libc::CLONE_NEWUSER.cast_unsigned())),
        Rule::OwnProcess | Rule::OwnOf(_) | Rule::SystemV | Rule::Attributes => None,
    })
}

/// Builds the second filter for a process without its own IPC namespace. With an id or a key, the process
/// could use the System V queues, semaphores and memory of all processes of its user.
pub(crate) fn no_system_v() -> Vec<Instruction> {
    assemble(|rule| (rule == Rule::SystemV).then(|| vec![end(FORBIDDEN)]))
}

/// Builds the second filter for a process without any namespace. Landlock does not cover attributes and
/// flags, and no mount is read-only. A filter cannot know the path of a file, so changes are refused in
/// writable paths too.
pub(crate) fn no_system_v_nor_attributes() -> Vec<Instruction> {
    assemble(|rule| match rule {
        Rule::SystemV => Some(vec![end(FORBIDDEN)]),
        Rule::Attributes => Some(vec![end(UNSUPPORTED)]),
        Rule::Ioctl => Some(without(FILE_COMMANDS)),
        _ => None,
    })
}

/// Builds a program that runs `body` for the filtered calls and allows all others. A body starts with the
/// call's number loaded, and ends with a verdict.
fn assemble(body: impl Fn(Rule) -> Option<Vec<Instruction>>) -> Vec<Instruction> {
    let mut program = vec![load(offset_of!(libc::seccomp_data, arch))];
    for calls in CALLS {
        let block = block(calls, &body);
        // A conditional jump spans at most 255 instructions, so an unconditional jump skips the block.
        let skip = Instruction { code: JUMP, jt: 0, jf: 0, k: block.len() as u32 };
        program.extend([jump(JUMP_IF_EQUAL, calls.arch, 1, 0), skip]);
        program.extend(block);
    }
    program.push(end(KILL));
    program
}

fn block(calls: &Calls, body: impl Fn(Rule) -> Option<Vec<Instruction>>) -> Vec<Instruction> {
    let mut block = vec![load(offset_of!(libc::seccomp_data, nr))];
    if let Some(first) = calls.foreign_from {
        block.extend([jump(JUMP_IF_AT_LEAST, first, 0, 1), end(ABSENT)]);
    }
    for (number, rule) in calls.rules() {
        if let Some(body) = body(rule) {
            block.push(jump(JUMP_IF_EQUAL, number, 0, body.len() as u8));
            block.extend(body);
        }
    }
    block.push(end(ALLOW));
    block
}

fn sockets(families: Families) -> Vec<Instruction> {
    if families == Families::None {
        return vec![end(DENIED)];
    }
    let mut body = vec![argument(0)];
    for family in [libc::AF_INET, libc::AF_INET6] {
        body.extend(when(family.cast_unsigned(), ALLOW));
    }
    let protocol = [argument(2), jump(JUMP_IF_EQUAL, libc::NETLINK_ROUTE.cast_unsigned(), 0, 1), end(ALLOW)];
    body.push(jump(JUMP_IF_EQUAL, libc::AF_NETLINK.cast_unsigned(), 0, protocol.len() as u8));
    body.extend(protocol);
    body.push(end(DENIED));
    body
}

fn pairs() -> Vec<Instruction> {
    let mut body = vec![argument(0), jump(JUMP_IF_EQUAL, libc::AF_UNIX.cast_unsigned(), 1, 0), end(DENIED)];
    body.extend([argument(1), Instruction { code: AND, jt: 0, jf: 0, k: SOCKET_TYPE_MASK }]);
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
        body.extend(when(kind.cast_unsigned(), ALLOW));
    }
    body.push(end(DENIED));
    body
}

fn own_process() -> Vec<Instruction> {
    let mut body = vec![argument(0)];
    body.extend(when(0, ALLOW));
    body.push(end(FORBIDDEN));
    body
}

fn own_of(kind: u32) -> Vec<Instruction> {
    let mut body = vec![argument(0), jump(JUMP_IF_EQUAL, kind, 1, 0), end(FORBIDDEN), argument(1)];
    body.extend(when(0, ALLOW));
    body.push(end(FORBIDDEN));
    body
}

fn without(commands: &[u32]) -> Vec<Instruction> {
    let mut body = vec![argument(1)];
    for command in commands {
        body.extend(when(*command, FORBIDDEN));
    }
    body.push(end(ALLOW));
    body
}

fn modes(index: usize) -> Vec<Instruction> {
    without_flags(index, SET_ID)
}

fn without_flags(index: usize, flags: u32) -> Vec<Instruction> {
    vec![argument(index), jump(JUMP_IF_ANY, flags, 0, 1), end(FORBIDDEN), end(ALLOW)]
}

fn when(value: u32, verdict: u32) -> [Instruction; 2] {
    [jump(JUMP_IF_EQUAL, value, 0, 1), end(verdict)]
}

/// Loads the lower half of an argument, which comes first in memory on every supported processor.
fn argument(index: usize) -> Instruction {
    load(offset_of!(libc::seccomp_data, args) + index * size_of::<u64>())
}

fn load(offset: usize) -> Instruction {
    Instruction { code: LOAD_WORD, jt: 0, jf: 0, k: offset as u32 }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn end(verdict: u32) -> Instruction {
    Instruction { code: RETURN, jt: 0, jf: 0, k: verdict }
}

/// Encodes a filter in the format in which launchers read it from a descriptor.
pub(crate) fn bytes(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for Instruction { code, jt, jf, k } in program {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([*jt, *jf]);
        bytes.extend(k.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the verdict of a filter, evaluated as the kernel would.
    fn run(program: &[Instruction], arch: u32, number: u32, arguments: [u64; 4]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let mut branch = |taken: bool| at += usize::from(if taken { jt } else { jf });
            match code {
                LOAD_WORD if k == 0 => value = number,
                LOAD_WORD if k == 4 => value = arch,
                LOAD_WORD if matches!(k, 16 | 24 | 32 | 40) => value = arguments[k as usize / 8 - 2] as u32,
                AND => value &= k,
                JUMP => at += k as usize,
                JUMP_IF_ANY => branch(value & k != 0),
                JUMP_IF_EQUAL => branch(value == k),
                JUMP_IF_AT_LEAST => branch(value >= k),
                RETURN => return k,
                other => panic!("instruction {other:#x} at {at}"),
            }
        }
    }

    /// Checks the verdict on one kind of call for every kind of program. The upper halves of the arguments
    /// must not matter.
    #[track_caller]
    fn check(program: &[Instruction], kind: Rule, [one, two, three]: [u32; 3], expected: u32) {
        check_all(program, kind, [one, two, three, 0], expected);
    }

    #[track_caller]
    fn check_all(program: &[Instruction], kind: Rule, arguments: [u32; 4], expected: u32) {
        for calls in CALLS {
            for (number, _) in calls.rules().filter(|(_, rule)| *rule == kind) {
                for upper in [0, 1 << 40] {
                    let arguments = arguments.map(|argument| u64::from(argument) | upper);
                    let verdict = run(program, calls.arch, number, arguments);
                    assert_eq!(verdict, expected, "{number} {arguments:x?}");
                }
            }
        }
    }

    #[test]
    fn sockets_are_judged_by_family_and_netlink_by_protocol() {
        let [internet, none] = [Families::Internet, Families::None].map(|it| program(it, Pids::Own));
        for family in 0..50 {
            let is_internet = [libc::AF_INET, libc::AF_INET6].contains(&family);
            for protocol in [0, 2, 4, 11, 15, 16] {
                let is_allowed = is_internet || (family == libc::AF_NETLINK && protocol == 0);
                let call = [family.cast_unsigned(), 2, protocol];
                check(&internet, Rule::Socket, call, if is_allowed { ALLOW } else { DENIED });
                check(&none, Rule::Socket, call, DENIED);
            }
        }
    }

    #[test]
    fn only_unix_pairs_that_stay_connected_can_be_made() {
        for families in [Families::Internet, Families::None] {
            let program = program(families, Pids::Namespace);
            for flags in [0, libc::SOCK_CLOEXEC, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
                for family in 0..50 {
                    for kind in 0..16 {
                        let is_allowed = family == libc::AF_UNIX
                            && [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].contains(&kind);
                        let call = [family, kind | flags, 0].map(i32::cast_unsigned);
                        check(&program, Rule::Pair, call, if is_allowed { ALLOW } else { DENIED });
                    }
                }
            }
        }
    }

    #[test]
    fn a_process_acts_on_others_only_in_a_pid_namespace() {
        let [own, namespace] = [Pids::Own, Pids::Namespace].map(|pids| program(Families::Internet, pids));
        for pid in [0, 1, 4711, u32::MAX] {
            let expected = if pid == 0 { ALLOW } else { FORBIDDEN };
            check(&own, Rule::OwnProcess, [pid, 7, 0], expected);
            check(&namespace, Rule::OwnProcess, [pid, 7, 0], ALLOW);
            for (kind, allowed) in [(0, 0), (1, 1)].map(|(kind, which)| (Rule::OwnOf(kind), which)) {
                for which in 0..4 {
                    let is_own = which == allowed && pid == 0;
                    check(&own, kind, [which, pid, 0], if is_own { ALLOW } else { FORBIDDEN });
                    check(&namespace, kind, [which, pid, 0], ALLOW);
                }
            }
        }
    }

    #[test]
    fn calls_that_are_refused_are_refused_whatever_their_arguments() {
        for program in [program(Families::Internet, Pids::Namespace), program(Families::None, Pids::Own)] {
            for arguments in [[0; 3], [1; 3], [u32::MAX; 3]] {
                check(&program, Rule::Refused, arguments, FORBIDDEN);
                check(&program, Rule::Absent, arguments, ABSENT);
                check(&program, Rule::SystemV, arguments, ALLOW);
                check(&no_system_v(), Rule::SystemV, arguments, FORBIDDEN);
                check(&no_system_v(), Rule::Refused, arguments, ALLOW);
            }
        }
    }

    #[test]
    fn input_cannot_be_put_into_terminals_nor_leases_taken() {
        let program = program(Families::Internet, Pids::Namespace);
        for calls in CALLS {
            for (number, rule) in calls.rules() {
                let commands = match rule {
                    Rule::Commands(commands) => commands,
                    Rule::Ioctl => TERMINAL_COMMANDS,
                    _ => continue,
                };
                for command in 0..0x6000 {
                    let expected = if commands.contains(&command) { FORBIDDEN } else { ALLOW };
                    assert_eq!(run(&program, calls.arch, number, [0, command.into(), 0, 0]), expected);
                }
            }
        }
    }

    #[test]
    fn without_namespaces_attributes_and_flags_cannot_be_changed() {
        let [main, alone, ipc] =
            [program(Families::Internet, Pids::Own), no_system_v_nor_attributes(), no_system_v()];
        for (program, expected) in [(&main, ALLOW), (&ipc, ALLOW), (&alone, UNSUPPORTED)] {
            check(program, Rule::Attributes, [1; 3], expected);
        }
        check(&alone, Rule::SystemV, [1; 3], FORBIDDEN);
        for command in FILE_COMMANDS {
            check(&main, Rule::Ioctl, [0, *command, 0], ALLOW);
            check(&alone, Rule::Ioctl, [0, *command, 0], FORBIDDEN);
        }
        // FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FICLONE, FICLONERANGE, TCGETS
        for command in [0x8008_6601, 0x8008_7601, 0x4004_9409, 0x4020_940d, 0x5401] {
            check(&alone, Rule::Ioctl, [0, command, 0], ALLOW);
        }
    }

    #[test]
    fn no_program_can_be_left_that_runs_as_its_owner_or_group() {
        let program = program(Families::Internet, Pids::Namespace);
        let read_write = libc::O_RDWR.cast_unsigned();
        for mode in 0..=0o7777 {
            let expected = if mode & 0o6000 == 0 { ALLOW } else { FORBIDDEN };
            check_all(&program, Rule::Mode(1), [0, mode | libc::S_IFREG, 0, 0], expected);
            check_all(&program, Rule::Mode(2), [0, 0, mode, 0], expected);
            for flags in [libc::O_CREAT, libc::O_TMPFILE, libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC] {
                let flags = flags.cast_unsigned() | read_write;
                check_all(&program, Rule::ModeIfCreated(2), [0, flags, mode, 0], expected);
                check_all(&program, Rule::ModeIfCreated(3), [0, 0, flags, mode], expected);
            }
            // Without these flags, the register of the mode has an arbitrary value.
            for flags in [libc::O_DIRECTORY.cast_unsigned(), read_write] {
                check_all(&program, Rule::ModeIfCreated(3), [0, 0, flags, mode], ALLOW);
            }
        }
    }

    #[test]
    fn no_user_namespace_is_created() {
        let program = program(Families::Internet, Pids::Namespace);
        let [user, mount] = [libc::CLONE_NEWUSER, libc::CLONE_NEWNS].map(i32::cast_unsigned);
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND).cast_unsigned();
        for (flags, expected) in [
            (user, FORBIDDEN),
            (user | mount, FORBIDDEN),
            (user | libc::SIGCHLD.cast_unsigned(), FORBIDDEN),
            (mount, ALLOW),
            (thread, ALLOW),
            (libc::SIGCHLD.cast_unsigned(), ALLOW),
        ] {
            check(&program, Rule::Namespaces, [flags, user, user], expected);
        }
    }

    #[test]
    fn calls_without_a_rule_are_allowed_and_foreign_programs_are_not() {
        for program in [program(Families::None, Pids::Own), no_system_v(), no_system_v_nor_attributes()] {
            for calls in CALLS {
                let named: Vec<u32> = calls.rules().map(|(number, _)| number).collect();
                for number in (0..600).filter(|number| !named.contains(number)) {
                    assert_eq!(run(&program, calls.arch, number, [1; 4]), ALLOW, "{number}");
                }
                if let Some(first) = calls.foreign_from {
                    for number in [0, 41, 53, 302] {
                        assert_eq!(run(&program, calls.arch, first | number, [1; 4]), ABSENT);
                    }
                }
            }
            assert_eq!(run(&program, 0x1234, 41, [2; 4]), KILL);
        }
    }

    #[test]
    fn bytes_are_the_instructions_in_order() {
        let program = [load(4), jump(JUMP_IF_EQUAL, 7, 1, 2)];
        assert_eq!(bytes(&program), [[0x20, 0, 0, 0, 4, 0, 0, 0], [0x15, 0, 1, 2, 7, 0, 0, 0]].concat());
    }
}
