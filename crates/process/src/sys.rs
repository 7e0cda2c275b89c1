//! The few system calls without a safe interface, and the memory that crosses the fork.
#![expect(unsafe_code, reason = "clone, exec, signal masks and raw mappings have no safe interface")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Size of the kernel's signal set: 64 bits on all supported targets.
const SIGNAL_SET_BYTES: usize = 8;
const LAST_SIGNAL: c_int = 64;
/// Number of `F_SETSIG` on all supported targets. Missing from the bindings.
const F_SETSIG: c_int = 10;
/// Number of the system call `mount_setattr` on all supported targets. Missing from the bindings.
const MOUNT_SETATTR: libc::c_long = 442;

/// Types for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes must be a valid value of the type.
pub(crate) unsafe trait Zero: Copy {}
// SAFETY: zero is a valid number.
unsafe impl Zero for u8 {}
// SAFETY: zeros are a valid pair of numbers.
unsafe impl Zero for crate::tree::Member {}
// SAFETY: zero is the null pointer.
unsafe impl Zero for *const c_char {}

/// A private mapping for everything that the forked processes need, so that they can unmap all other memory.
///
/// An arena hands out disjoint pieces, and frees them only when it is dropped.
pub(crate) struct Arena {
    base: NonNull<u8>,
    len: usize,
    used: Cell<usize>,
}

impl Arena {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let base = unsafe {
            libc::mmap(core::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, len, used: Cell::new(0) })
    }

    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.base.as_ptr().addr();
        start..start + self.len
    }

    fn reserve(&self, size: usize, align: usize) -> io::Result<NonNull<u8>> {
        let start = self.used.get().next_multiple_of(align);
        let end = start.checked_add(size).filter(|end| *end <= self.len).ok_or(io::ErrorKind::OutOfMemory)?;
        self.used.set(end);
        // SAFETY: `start` lies within the mapping, which begins at a page boundary.
        Ok(unsafe { self.base.add(start) })
    }

    #[expect(clippy::mut_from_ref, reason = "every call returns a different piece")]
    pub(crate) fn zeroed<T: Zero>(&self, len: usize) -> io::Result<&mut [T]> {
        let start = self.reserve(len * size_of::<T>(), align_of::<T>())?;
        // SAFETY: the piece is aligned, exclusive, lives as long as the arena, and fresh pages are zero.
        Ok(unsafe { core::slice::from_raw_parts_mut(start.as_ptr().cast(), len) })
    }

    #[expect(clippy::mut_from_ref, reason = "every call returns a different piece")]
    pub(crate) fn value<T>(&self, value: T) -> io::Result<&mut T> {
        let mut place = self.reserve(size_of::<T>(), align_of::<T>())?.cast::<T>();
        // SAFETY: the piece is aligned, exclusive and lives as long as the arena.
        unsafe {
            place.write(value);
            Ok(place.as_mut())
        }
    }

    pub(crate) fn string(&self, bytes: &CStr) -> io::Result<&CStr> {
        let copy = self.zeroed::<u8>(bytes.count_bytes() + 1)?;
        copy.copy_from_slice(bytes.to_bytes_with_nul());
        CStr::from_bytes_with_nul(copy).map_err(io::Error::other)
    }

    /// Copies strings into a null-terminated array, the form that `execve` requires.
    pub(crate) fn strings<S: AsRef<CStr>>(&self, strings: &[S]) -> io::Result<StringArray<'_>> {
        let pointers = self.zeroed::<*const c_char>(strings.len() + 1)?;
        for (pointer, string) in pointers.iter_mut().zip(strings) {
            *pointer = self.string(string.as_ref())?.as_ptr();
        }
        Ok(StringArray { pointers })
    }

    /// Creates a stack with an unmapped page below it.
    pub(crate) fn stack(&self, len: usize) -> io::Result<Stack<'_>> {
        let page = rustix::param::page_size();
        let len = len.next_multiple_of(page);
        let guard = self.reserve(page + len, page)?;
        // SAFETY: the page belongs to the new piece, to which no other reference exists.
        if unsafe { libc::mprotect(guard.as_ptr().cast(), page, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the address is one past the end of the piece.
        Ok(Stack { top: unsafe { guard.add(page + len) }, arena: PhantomData })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the arena owns the mapping, and all borrows of it have ended.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The top of a stack inside an [`Arena`].
#[derive(Clone, Copy)]
pub(crate) struct Stack<'a> {
    top: NonNull<u8>,
    arena: PhantomData<&'a Arena>,
}

/// Strings inside an [`Arena`], with a null pointer at the end of the array.
#[derive(Clone, Copy)]
pub(crate) struct StringArray<'a> {
    pointers: &'a [*const c_char],
}

impl<'a> StringArray<'a> {
    /// Iterates over the strings, without the null pointer at the end.
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a CStr> {
        // SAFETY: every pointer that is not null is a string in the arena, which outlives `self`.
        self.pointers.iter().filter(|text| !text.is_null()).map(|text| unsafe { CStr::from_ptr(*text) })
    }
}

/// The code of a forked process.
///
/// # Safety
/// `run` executes in a copy of a program with many threads, of which only the calling one exists in the
/// copy. It must do only async-signal-safe work: no allocation, no locks, no panics. It must not touch
/// descriptors other than those it was given.
pub(crate) unsafe trait Program {
    /// Runs the process. Returns its exit status.
    fn run(&mut self) -> c_int;
}

extern "C" fn start<P: Program>(program: *mut c_void) -> c_int {
    // SAFETY: `fork` passes a pointer to a `P` that is borrowed mutably for as long as this copy exists.
    unsafe { (*program.cast::<P>()).run() }
}

/// Forks the guardian without an exit signal. Returns its pid, and a pidfd to reap it by. Without an exit
/// signal, the guardian is invisible to an embedding program that handles `SIGCHLD` or waits for any child.
///
/// All signals are blocked in the guardian until it unblocks them. No signal handler of this program ever
/// runs there.
pub(crate) fn fork_guardian<P: Program>(stack: Stack<'_>, program: &mut P) -> io::Result<(i32, OwnedFd)> {
    let _blocked = SignalsBlocked::new();
    let mut pidfd: RawFd = -1;
    // SAFETY: without CLONE_VM, the call is a fork on another stack. `Program` guarantees that its code may
    // run there. Unlike `fork`, this wrapper runs no handlers that the embedding program has registered.
    let pid = unsafe {
        libc::clone(
            start::<P>,
            stack.top.as_ptr().cast(),
            libc::CLONE_PIDFD,
            core::ptr::from_mut(program).cast(),
            &raw mut pidfd,
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for the caller.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Forks an ordinary child in the given new namespaces. `stack` must not be the stack in use.
pub(crate) fn fork_child<P: Program>(
    stack: Stack<'_>,
    program: &mut P,
    namespaces: UnshareFlags,
) -> Result<Pid, Errno> {
    let flags = libc::SIGCHLD | namespaces.bits().cast_signed();
    // SAFETY: as in `fork_guardian`.
    let pid = unsafe {
        libc::clone(start::<P>, stack.top.as_ptr().cast(), flags, core::ptr::from_mut(program).cast())
    };
    if pid < 0 { Err(last_errno()) } else { Pid::from_raw(pid).ok_or(Errno::SRCH) }
}

/// Waits until a child has ended. The child stays a zombie, so that its pid is not reused before it is
/// reaped.
pub(crate) fn find_ended_child() -> Result<Pid, Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the call writes only to the local structure.
    match unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) } {
        // SAFETY: zeros are a value of this structure, and a call that succeeds fills in the pid.
        0 => Pid::from_raw(unsafe { info.assume_init().si_pid() }).ok_or(Errno::SRCH),
        _ => Err(last_errno()),
    }
}

/// Replaces the start of a piece of memory by `text`, and the rest by zeros.
///
/// # Safety
/// The memory must be mapped and writable, and nothing may ever read its old contents.
pub(crate) unsafe fn overwrite(range: &Range<usize>, text: &[u8]) {
    for (index, address) in range.clone().enumerate() {
        let byte = text.get(index).copied().unwrap_or(0);
        // SAFETY: the caller guarantees that the memory is writable and no longer read.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(address).write(byte) };
    }
}

/// Executes a program; returns only if that failed.
pub(crate) fn execute(path: &CStr, argv: StringArray<'_>, envp: StringArray<'_>) -> Errno {
    // SAFETY: both arrays end with a null pointer and their strings live as long as they do.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), envp.pointers.as_ptr()) };
    last_errno()
}

fn last_errno() -> Errno {
    // SAFETY: the pointer always refers to the thread's own value.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Returns two addresses in the C library's per-thread state. If that memory is gone, not even a failed
/// system call can return.
pub(crate) fn thread_state() -> [usize; 2] {
    // SAFETY: both calls only compute addresses.
    unsafe { [libc::__errno_location().addr(), libc::pthread_self() as usize] }
}

/// Replaces the contents of whole pages by zeros, and returns their memory to the system.
///
/// # Safety
/// Nothing may ever read the old contents, unless the pages belong to a file.
pub(crate) unsafe fn discard(range: &Range<usize>) {
    let start = core::ptr::with_exposed_provenance_mut::<c_void>(range.start);
    // SAFETY: the caller guarantees that the contents are not needed. If the kernel refuses, the pages simply
    // stay.
    unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) };
}

/// Returns the free pages of the C library's heap to the system, including those between blocks in use. Does
/// nothing with C libraries other than glibc.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call has no preconditions, locks the heap itself and changes no block in use.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Sets the calling thread's signal mask, including signals of the C library. Returns the old mask.
fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both sets have the length that is passed to the kernel.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut old,
            SIGNAL_SET_BYTES,
        )
    };
    old
}

struct SignalsBlocked(u64);

impl SignalsBlocked {
    fn new() -> Self {
        Self(set_signal_mask(!0))
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_signal_mask(self.0);
    }
}

pub(crate) fn unblock_signals() {
    set_signal_mask(0);
}

/// Resets every signal to its default action, because ignored signals would stay ignored across an exec.
pub(crate) fn default_signals() {
    // In the kernel's structure, which has at most 32 bytes, zeros mean SIG_DFL without flags.
    let action = [0u64; 8];
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: the structure is large enough, and no handler is installed.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                action.as_ptr(),
                core::ptr::null::<u8>(),
                SIGNAL_SET_BYTES,
            )
        };
    }
}

/// Makes a write beyond the size limit of files (`RLIMIT_FSIZE`) fail with an ordinary error (`EFBIG`). By
/// default, a signal would end this program. Workers get the default action again.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Ends this program by a signal, as if the program had no handler for it, so that the parent process sees
/// the signal.
pub fn end_by_signal(signal: i32) {
    // SAFETY: no handler is installed.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Returns a descriptor that becomes readable when a child changes state, provided that `SIGCHLD` is blocked.
pub(crate) fn child_signals() -> Result<OwnedFd, Errno> {
    let set: u64 = 1 << (libc::SIGCHLD - 1);
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set has the length that is passed to the kernel.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const set, SIGNAL_SET_BYTES, flags) };
    let fd = RawFd::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just opened this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the kernel send `SIGCONT` to the process `me` when input or the end of input arrives on a socket. If
/// the kernel refuses, a stopped process merely stays stopped.
pub(crate) fn continue_when_readable(socket: BorrowedFd<'_>, me: i32) {
    let fd = socket.as_raw_fd();
    // SAFETY: the calls take numbers and set properties of an open descriptor. `SIGCONT` is blocked, so it is
    // never handled, but it still continues the process.
    unsafe {
        libc::fcntl(fd, libc::F_SETOWN, me);
        libc::fcntl(fd, F_SETSIG, libc::SIGCONT);
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_ASYNC);
        }
    }
}

/// Closes every descriptor but those in `keep`, which gets sorted.
///
/// # Safety
/// Nothing in this process may use any of the others again.
pub(crate) unsafe fn close_all_but(keep: &mut [RawFd]) -> Result<(), Errno> {
    keep.sort_unstable();
    let mut first = 0;
    for fd in keep.iter() {
        let fd = fd.cast_unsigned();
        if fd > first {
            // SAFETY: the caller guarantees that the other descriptors are not used again.
            unsafe { close_range(first, fd - 1) }?;
        }
        first = fd.wrapping_add(1);
    }
    // SAFETY: the caller guarantees that the other descriptors are not used again.
    unsafe { close_range(first, u32::MAX) }
}

/// # Safety
/// Nothing in this process may use these descriptors again.
unsafe fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: the caller guarantees that these descriptors are not used again.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// # Safety
/// Nothing in this process may use this descriptor again.
pub(crate) unsafe fn close(fd: RawFd) {
    // SAFETY: the caller guarantees that the descriptor is not used again.
    unsafe { libc::close(fd) };
}

/// Makes `target` a second name of `fd` that survives an exec.
///
/// # Safety
/// Nothing in this process may use the file that was open at `target`.
pub(crate) unsafe fn duplicate_onto(fd: BorrowedFd<'_>, target: RawFd) -> Result<(), Errno> {
    // SAFETY: the caller guarantees that the file at `target` is not used again.
    match unsafe { libc::dup2(fd.as_raw_fd(), target) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

pub(crate) fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to the local structure. Unlike the clock of std, the call is certainly
    // async-signal-safe.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1000).wrapping_add(time.tv_nsec as u64 / 1_000_000)
}

/// Registers a descriptor with the runtime, to wait until the descriptor can be read.
pub(crate) fn readable(fd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the registration owns the descriptor, which therefore stays open and the same.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// One instruction of a seccomp filter.
pub(crate) type Instruction = libc::sock_filter;
// SAFETY: an instruction consists of four numbers, for which zero is valid.
unsafe impl Zero for Instruction {}

/// Returns the version of Landlock in this kernel; `None` if it is missing or disabled.
pub(crate) fn landlock_version() -> Option<i32> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no structure.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, core::ptr::null::<c_void>(), 0usize, VERSION)
    };
    i32::try_from(version).ok().filter(|version| *version > 0)
}

/// Confines the process, and every program that it executes, to a ruleset. The process must have set
/// no_new_privs before.
pub(crate) fn landlock_restrict(ruleset: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the call takes numbers.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Returns `true` if `path` is the path of the working directory without links.
pub(crate) fn is_working_directory(path: &CStr) -> Result<bool, Errno> {
    let mut buffer = [0u8; libc::PATH_MAX as usize];
    // SAFETY: the kernel writes at most as many bytes as it is passed.
    let length = unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    let length = usize::try_from(length).map_err(|_| last_errno())?;
    Ok(buffer.get(..length) == Some(path.to_bytes_with_nul()))
}

/// Adds a rule to a ruleset: reading and executing everything below `place` is allowed. The ruleset must not
/// be in force yet.
pub(crate) fn landlock_allow_reading(ruleset: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    /// The kernel's `struct landlock_path_beneath_attr`.
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: RawFd,
    }
    const RULE_PATH_BENEATH: c_int = 1;
    const EXECUTE: u64 = 1 << 0;
    const READ_FILE: u64 = 1 << 2;
    const READ_DIR: u64 = 1 << 3;
    let rule = PathBeneath { allowed_access: EXECUTE | READ_FILE | READ_DIR, parent_fd: place.as_raw_fd() };
    // SAFETY: the structure is the one that the kernel expects for this type of rule.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Moves the process, which must have only one thread, into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the call is only dangerous for other threads, and the process has none.
    unsafe { unshare_unsafe(flags) }
}

/// Enables the loopback device of the process's network namespace.
pub(crate) fn start_loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: libc::IFF_UP as libc::c_short },
    };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = c_char::from_ne_bytes([*byte]);
    }
    // SAFETY: the request is a structure of the kind that the call reads, and outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Makes the mounts of a tree read-only. Mounts that are read-only already stay so.
pub(crate) fn make_read_only(tree: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the structure has the length that is passed to the kernel, and the path ends with a zero.
    let result = unsafe {
        libc::syscall(
            MOUNT_SETATTR,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Returns `true` if the kernel supports seccomp filters that can refuse a system call.
pub(crate) fn filters_available() -> bool {
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the action is a number that outlives the call.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0u32, &raw const action) == 0 }
}

/// Installs a filter that judges every later system call of the process. The process must have set
/// no_new_privs before.
pub(crate) fn install_filter(filter: &[Instruction]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which it checks and does not change.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0u32, &raw const program) }
    {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// `true` if the program was started with its stdout closed. Set before `main`.
static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns `true` if the program was started with its stdout closed. The standard library opens /dev/null
/// in place of closed standard descriptors, so that a write would seem to succeed.
pub fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}

/// Runs before `main`, and so before the standard library opens anything.
// SAFETY: the section holds pointers to functions of this signature. This function needs nothing that is
// initialized later.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_STDOUT_STATE: extern "C" fn() = {
    extern "C" fn record_state() {
        // SAFETY: reading the flags of a descriptor changes nothing, even if it is closed.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        STDOUT_WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
    }
    record_state
};
