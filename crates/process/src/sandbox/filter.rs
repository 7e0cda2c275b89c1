//! The system calls that a sandboxed process is refused: Landlock knows paths and TCP ports, and no other sockets.
//!
//! The program is a classic BPF program for seccomp. It decides by the number of the call and the family of the
//! socket, which is all it can see.

use core::mem::offset_of;

use crate::sys::Instruction;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
/// For sockets: what a system says that does not let everybody have every socket.
const DENIED: u32 = libc::SECCOMP_RET_ERRNO | libc::EACCES as u32;
/// For calls that programs know how to do without.
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// The same number on every processor.
const IO_URING_SETUP: u32 = 425;

/// The way one kind of program calls the kernel, of which a processor may have two.
struct Calls {
    arch: u32,
    socket: u32,
    /// Every socket call in one, with its arguments out of sight.
    socketcall: Option<u32>,
    /// From here on the numbers mean another kind of program.
    foreign_from: Option<u32>,
}

#[cfg(target_arch = "x86_64")]
const CALLS: &[Calls] = &[
    Calls { arch: 0xc000_003e, socket: 41, socketcall: None, foreign_from: Some(0x4000_0000) },
    Calls { arch: 0x4000_0003, socket: 359, socketcall: Some(102), foreign_from: None },
];
#[cfg(target_arch = "aarch64")]
const CALLS: &[Calls] = &[
    Calls { arch: 0xc000_00b7, socket: 198, socketcall: None, foreign_from: None },
    Calls { arch: 0x4000_0028, socket: 281, socketcall: Some(102), foreign_from: None },
];
#[cfg(target_arch = "riscv64")]
const CALLS: &[Calls] = &[Calls { arch: 0xc000_00f3, socket: 198, socketcall: None, foreign_from: None }];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const CALLS: &[Calls] = &[];

/// Whether there is a filter for this processor.
pub(crate) const KNOWN: bool = !CALLS.is_empty();

/// The families of sockets a process may have.
///
/// Never `AF_UNIX`: behind such a socket stands a service of this machine, which starts programs (systemd) or
/// containers (docker) for whoever asks, outside the sandbox. Pairs of connected sockets are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    /// Whatever is not of this machine.
    Network,
    /// Internet sockets, because the process has a network of its own with nothing in it.
    OwnNetwork,
    /// No sockets.
    None,
}

/// The filter, ready for the kernel.
pub(crate) fn program(families: Families) -> Vec<Instruction> {
    let mut program = vec![load(offset_of!(libc::seccomp_data, arch))];
    for calls in CALLS {
        let block = block(calls, families);
        // Well below the 255 that a jump can span.
        program.push(jump(JUMP_IF_EQUAL, calls.arch, 0, block.len() as u8));
        program.extend(block);
    }
    program.push(end(KILL));
    program
}

fn block(calls: &Calls, families: Families) -> Vec<Instruction> {
    let mut block = vec![load(offset_of!(libc::seccomp_data, nr))];
    if let Some(first) = calls.foreign_from {
        block.extend([jump(JUMP_IF_AT_LEAST, first, 0, 1), end(ABSENT)]);
    }
    // A ring makes sockets without the call.
    block.extend(when(IO_URING_SETUP, ABSENT));
    if let Some(socketcall) = calls.socketcall {
        block.extend(when(socketcall, DENIED));
    }
    block.extend([jump(JUMP_IF_EQUAL, calls.socket, 1, 0), end(ALLOW)]);
    // The kernel looks at the lower half only, which comes first on every processor above.
    block.push(load(offset_of!(libc::seccomp_data, args)));
    let (named, verdict, otherwise): (&[i32], _, _) = match families {
        Families::Network => (&[libc::AF_UNIX], DENIED, ALLOW),
        Families::OwnNetwork => (&[libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK], ALLOW, DENIED),
        Families::None => (&[], ALLOW, DENIED),
    };
    for family in named {
        block.extend(when(family.cast_unsigned(), verdict));
    }
    block.push(end(otherwise));
    block
}

fn when(value: u32, verdict: u32) -> [Instruction; 2] {
    [jump(JUMP_IF_EQUAL, value, 0, 1), end(verdict)]
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

/// The filter as bytes, as launchers read it from a descriptor.
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

    /// What the kernel would do with a call.
    fn run(program: &[Instruction], arch: u32, number: u32, first: u64) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let mut branch = |taken: bool| at += usize::from(if taken { jt } else { jf });
            match code {
                LOAD_WORD if k == 0 => value = number,
                LOAD_WORD if k == 4 => value = arch,
                LOAD_WORD if k == 16 => value = first as u32,
                JUMP_IF_EQUAL => branch(value == k),
                JUMP_IF_AT_LEAST => branch(value >= k),
                RETURN => return k,
                other => panic!("instruction {other:#x} at {at}"),
            }
        }
    }

    #[test]
    fn sockets_are_judged_by_family() {
        let [unix, inet, inet6, netlink, packet, vsock] =
            [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK];
        for (families, allowed) in [
            (Families::Network, &[inet, inet6, netlink, packet, vsock][..]),
            (Families::OwnNetwork, &[inet, inet6, netlink]),
            (Families::None, &[]),
        ] {
            let program = program(families);
            for family in [unix, inet, inet6, netlink, packet, vsock] {
                let expected = if allowed.contains(&family) { ALLOW } else { DENIED };
                for calls in CALLS {
                    let family = family.cast_unsigned().into();
                    assert_eq!(run(&program, calls.arch, calls.socket, family), expected, "{family}");
                    // The upper half means nothing to the kernel.
                    assert_eq!(run(&program, calls.arch, calls.socket, family | 1 << 40), expected);
                }
            }
        }
    }

    #[test]
    fn side_doors_are_closed_and_the_rest_is_open() {
        let program = program(Families::Network);
        for calls in CALLS {
            assert_eq!(run(&program, calls.arch, IO_URING_SETUP, 0), ABSENT);
            for number in [0, 1, calls.socket - 1, calls.socket + 1, 400, 600] {
                assert_eq!(run(&program, calls.arch, number, 1), ALLOW, "{number}");
            }
            if let Some(number) = calls.socketcall {
                assert_eq!(run(&program, calls.arch, number, 1), DENIED);
            }
            if let Some(first) = calls.foreign_from {
                assert_eq!(run(&program, calls.arch, first | calls.socket, 1), ABSENT);
            }
        }
        assert_eq!(run(&program, 0x1234, 41, 2), KILL);
    }

    #[test]
    fn the_first_kind_of_program_is_our_own() {
        assert_eq!(CALLS.first().map(|calls| i64::from(calls.socket)), Some(libc::SYS_socket));
        assert_eq!(i64::from(IO_URING_SETUP), libc::SYS_io_uring_setup);
    }

    #[test]
    fn bytes_are_the_instructions_in_order() {
        let program = [load(4), jump(JUMP_IF_EQUAL, 7, 1, 2)];
        assert_eq!(bytes(&program), [[0x20, 0, 0, 0, 4, 0, 0, 0], [0x15, 0, 1, 2, 7, 0, 0, 0]].concat());
    }
}
