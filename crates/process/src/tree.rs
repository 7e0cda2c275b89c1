//! Finds and signals the descendants of a process, without allocation.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RawDir, openat, readlinkat_raw};
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Maximum number of rounds, a millisecond apart, to stop a tree completely. A few rounds usually suffice.
const MAX_STOP_ROUNDS: u32 = 256;

/// A process of a tree, and the parent by which it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
}

/// Source of the parent ids by which a tree is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParentageSource {
    /// `/proc/<pid>/task/<tid>/children`, which some kernels lack.
    Children,
    /// `/proc/<pid>/stat` of every process.
    Stat,
}

/// The tree of the descendants of `root`.
pub(crate) struct Tree<'a> {
    proc: BorrowedFd<'a>,
    root: i32,
    source: ParentageSource,
    /// Buffer for the found processes. A tree that exceeds it is handled in portions.
    members: &'a mut [Member],
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignalOutcome {
    /// Number of found processes that are not dead.
    pub(crate) alive: u32,
    /// Number of found processes that could still fork.
    moving: u32,
}

impl SignalOutcome {
    fn add(&mut self, state: Option<u8>) {
        if let Some(state) = state.filter(|state| !matches!(state, b'Z' | b'X')) {
            self.alive = self.alive.saturating_add(1);
            // A stopped process cannot fork. A process that sleeps in the kernel stops when it wakes.
            self.moving = self.moving.saturating_add(u32::from(!matches!(state, b'T' | b't' | b'D')));
        }
    }
}

impl<'a> Tree<'a> {
    pub(crate) fn new(proc: BorrowedFd<'a>, root: i32, members: &'a mut [Member]) -> Self {
        let source = match open_at(proc, &PathBuffer::new(&[root, root], &["", "/task/", "/children"])) {
            Ok(_) => ParentageSource::Children,
            Err(_) => ParentageSource::Stat,
        };
        Self { proc, root, source, members }
    }

    /// Sends `signal` to every process of the tree, parents first.
    pub(crate) fn signal(&mut self, signal: Signal) -> SignalOutcome {
        let count = self.find();
        let mut seen = SignalOutcome::default();
        self.members
            .iter()
            .take(count)
            .for_each(|member| seen.add(signal_member(self.proc, *member, signal)));
        seen
    }

    /// Stops the tree, then kills it, so that no child of a dying process escapes. Returns the processes that
    /// were alive. The caller must repeat the call until no process was alive.
    pub(crate) fn kill(&mut self) -> SignalOutcome {
        for _ in 0..MAX_STOP_ROUNDS {
            if self.signal(Signal::STOP).moving == 0 {
                break;
            }
            // A process stops only when it runs next, so a pause is needed.
            let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            _ = rustix::event::poll(&mut [], Some(&pause));
        }
        // Children are killed first: after the death of its parent, a process has another parent and would
        // not be signalled.
        let count = self.find();
        let mut seen = SignalOutcome::default();
        let found = self.members.get(..count).unwrap_or_default();
        found.iter().rev().for_each(|member| seen.add(signal_member(self.proc, *member, Signal::KILL)));
        seen
    }

    fn find(&mut self) -> usize {
        match self.source {
            ParentageSource::Children => self.find_by_children(),
            ParentageSource::Stat => self.find_by_stat(),
        }
    }

    fn find_by_children(&mut self) -> usize {
        let mut found = 0;
        children(self.proc, self.root, self.members, &mut found);
        let mut next = 0;
        while let Some(member) = self.members.get(next).filter(|_| next < found) {
            children(self.proc, member.pid, self.members, &mut found);
            next += 1;
        }
        found
    }

    fn find_by_stat(&mut self) -> usize {
        let mut known = 0;
        numbers_in(self.proc, |pid| {
            if let Some(stat) = stat(self.proc, pid)
                && let Some(slot) = self.members.get_mut(known)
            {
                *slot = Member { pid, parent: stat.parent };
                known += 1;
            }
        });
        // Each pass moves further descendants to the front. The loop ends when a pass adds none.
        let mut found = 0;
        loop {
            let before = found;
            for index in before..known {
                let Some(candidate) = self.members.get(index).copied() else { break };
                let mut ancestors = self.members.iter().take(found);
                if candidate.parent == self.root || ancestors.any(|member| member.pid == candidate.parent) {
                    self.members.swap(index, found);
                    found += 1;
                }
            }
            if found == before {
                return found;
            }
        }
    }
}

/// Signals a process if it is still a member of the tree. Returns its state before.
///
/// The pid is pinned first and its parent is checked afterwards, so a reused pid is never signalled. A
/// process that got a new parent is found by the next search.
fn signal_member(proc: BorrowedFd<'_>, member: Member, signal: Signal) -> Option<u8> {
    let pidfd = pidfd_open(Pid::from_raw(member.pid)?, PidfdFlags::empty()).ok()?;
    let stat = stat(proc, member.pid).filter(|stat| stat.parent == member.parent)?;
    match pidfd_send_signal(&pidfd, signal) {
        // A process of another user is alive, but waiting for it to stop is useless.
        Err(Errno::PERM) => Some(b'D'),
        _ => Some(stat.state),
    }
}

/// Appends the children of every thread of `pid`.
fn children(proc: BorrowedFd<'_>, pid: i32, members: &mut [Member], found: &mut usize) {
    let Ok(tasks) = open_at(proc, &PathBuffer::new(&[pid], &["", "/task"])) else { return };
    numbers_in(&tasks, |tid| {
        let Ok(list) = open_at(proc, &PathBuffer::new(&[pid, tid], &["", "/task/", "/children"])) else {
            return;
        };
        let mut chunk = [0; 1024];
        let mut child = 0;
        while let Some(text) =
            read(&list, &mut chunk).ok().and_then(|len| chunk.get(..len)).filter(|text| !text.is_empty())
        {
            for byte in text {
                if byte.is_ascii_digit() {
                    child = push_digit(child, *byte);
                } else if child != 0 {
                    if let Some(slot) = members.get_mut(*found) {
                        *slot = Member { pid: child, parent: pid };
                        *found += 1;
                    }
                    child = 0;
                }
            }
        }
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: i32,
    session: i32,
}

impl Stat {
    /// Parses `pid (name) state parent group session …`, in which the name can contain any characters.
    fn parse(text: &[u8]) -> Option<Self> {
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let mut fields = text.get(name_end.checked_add(2)?..)?.split(|byte| *byte == b' ');
        let state = *fields.next()?.first()?;
        let parent = number(fields.next()?)?;
        let session = number(fields.nth(1)?)?;
        Some(Self { state, parent, session })
    }
}

fn stat(proc: BorrowedFd<'_>, pid: i32) -> Option<Stat> {
    let file = open_at(proc, &PathBuffer::new(&[pid], &["", "/stat"])).ok()?;
    // Name, state and ids fit into the first half of the buffer.
    let mut text = [0; 256];
    let len = read(&file, &mut text).ok()?;
    Stat::parse(text.get(..len)?)
}

/// Returns the session id of a process. The id is 0 if the session's leader is outside this PID namespace, as
/// in a container that was entered. `getsid` cannot return that id.
pub(crate) fn session(proc: BorrowedFd<'_>, pid: i32) -> Option<i32> {
    Some(stat(proc, pid)?.session)
}

/// Kills every process of a session, which processes can leave only by `setsid`. The best option for a tree
/// whose subreaper is gone. The session's leader must not be reaped yet, so that the id still belongs to the
/// session.
pub(crate) fn kill_session(session: i32) {
    let Ok(proc) = open_proc() else { return };
    let proc = proc.as_fd();
    numbers_in(proc, |pid| {
        if pid != session
            && let Some(id) = Pid::from_raw(pid)
            && let Ok(pidfd) = pidfd_open(id, PidfdFlags::empty())
            && stat(proc, pid).is_some_and(|stat| stat.session == session)
        {
            _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    });
}

/// A process that this program has adopted, not started.
pub(crate) struct Orphan {
    pub(crate) pid: Pid,
    pidfd: OwnedFd,
}

impl Orphan {
    pub(crate) fn kill(&self, signal: Signal) {
        // Fails if the orphan has ended or now belongs to another user.
        _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

/// Calls `each` with every child of `parent` that has left `session` and is not a guardian. Guardians have no
/// exit signal, but adopted processes have one.
pub(crate) fn orphans(proc: BorrowedFd<'_>, parent: i32, session: i32, mut each: impl FnMut(Orphan)) {
    numbers_in(proc, |number| {
        if let Some(pid) = Pid::from_raw(number)
            && stat(proc, number).is_some_and(|stat| stat.parent == parent)
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            && stat(proc, number).is_some_and(|stat| stat.parent == parent && stat.session != session)
            && exit_signal(proc, number).is_some_and(|signal| signal != 0)
        {
            each(Orphan { pid, pidfd });
        }
    });
}

/// Returns the signal that a process sends to its parent when it ends.
fn exit_signal(proc: BorrowedFd<'_>, pid: i32) -> Option<i32> {
    let mut text = [0; 1024];
    number(stat_fields(proc, &PathBuffer::new(&[pid], &["", "/stat"]), &mut text)?.nth(38 - 3)?)
}

/// Returns the address range of this process's arguments, which other processes can read.
pub(crate) fn own_arguments(proc: BorrowedFd<'_>) -> Option<Range<usize>> {
    let mut text = [0; 1024];
    let mut fields = stat_fields(proc, &PathBuffer::new(&[], &["self/stat"]), &mut text)?;
    let [start, end] = [fields.nth(48 - 3)?, fields.next()?].map(address);
    Some(start?..end?)
}

/// Iterates over the fields of a `stat` file from the third on. The second field is a name, which can contain
/// any characters.
fn stat_fields<'a>(
    proc: BorrowedFd<'_>,
    path: &PathBuffer,
    text: &'a mut [u8],
) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
    let file = open_at(proc, path).ok()?;
    let len = read(&file, &mut *text).ok()?;
    let text = text.get(..len)?;
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    Some(text.get(name_end.checked_add(2)?..)?.split(|byte| *byte == b' '))
}

/// Returns the pid of this process in the PID namespace of `proc`, which may differ from the pid in its own
/// namespace.
pub(crate) fn own_pid(proc: BorrowedFd<'_>) -> Result<i32, Errno> {
    let mut text = [0; 16];
    let len = readlinkat_raw(proc, c"self", &mut text[..])?;
    text.get(..len).and_then(number).ok_or(Errno::SRCH)
}

pub(crate) fn open_proc() -> Result<OwnedFd, Errno> {
    let proc = openat(
        rustix::fs::CWD,
        c"/proc",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // Any directory could have the name of procfs, so the content is checked.
    open_at(proc.as_fd(), &PathBuffer::new(&[], &["self/stat"]))?;
    Ok(proc)
}

/// Calls `each` with every entry of a directory whose name is a number.
fn numbers_in<D: AsFd>(directory: D, mut each: impl FnMut(i32)) {
    if rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0)).is_err() {
        return;
    }
    let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if let Some(number) = number(entry.file_name().to_bytes()) {
            each(number);
        }
    }
}

fn open_at(proc: BorrowedFd<'_>, path: &PathBuffer) -> Result<OwnedFd, Errno> {
    openat(proc, path.as_c_str()?, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// A short path such as `12/task/34/children`, built on the stack.
struct PathBuffer {
    bytes: [u8; 64],
    len: usize,
}

impl PathBuffer {
    /// Joins `words` and `numbers` alternately.
    fn new(numbers: &[i32], words: &[&str]) -> Self {
        let mut path = Self { bytes: [0; 64], len: 0 };
        let mut numbers = numbers.iter();
        for word in words {
            path.push(word.as_bytes());
            if let Some(number) = numbers.next() {
                path.push_number(*number);
            }
        }
        path
    }

    fn push(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = *byte;
                self.len += 1;
            }
        }
    }

    fn push_number(&mut self, number: i32) {
        let mut digits = [0; 10];
        let mut rest = number.unsigned_abs();
        let mut first = digits.len();
        for slot in digits.iter_mut().rev() {
            *slot = b'0' + (rest % 10) as u8;
            rest /= 10;
            first -= 1;
            if rest == 0 {
                break;
            }
        }
        self.push(digits.get(first..).unwrap_or_default());
    }

    fn as_c_str(&self) -> Result<&CStr, Errno> {
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::NAMETOOLONG)
    }
}

fn number(text: &[u8]) -> Option<i32> {
    if text.is_empty() || text.len() > 10 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |value, digit| push_digit(value, *digit)))
}

fn address(text: &[u8]) -> Option<usize> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

fn push_digit(value: i32, digit: u8) -> i32 {
    value.wrapping_mul(10).wrapping_add(i32::from(digit.wrapping_sub(b'0')))
}

#[cfg(test)]
mod tests {

    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn stat_survives_hostile_names() {
        let parse = |text: &str| Stat::parse(text.as_bytes());
        let expected = Some(Stat { state: b'S', parent: 7, session: 9 });
        assert_eq!(parse("12 (sh) S 7 8 9 0 -1 4194560"), expected);
        assert_eq!(parse("12 (a) R 1 1 1 (b)) S 7 8 9 0 -1"), expected);
        for broken in ["", "12 (sh", "12 (sh)", "12 (sh) ", "12 (sh) S", "12 (sh) S x 8 9", "12 (sh) S 7 8"] {
            assert_eq!(parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn paths_and_numbers() {
        let path = PathBuffer::new(&[i32::MAX, 0], &["", "/task/", "/children"]);
        assert_eq!(path.as_c_str().unwrap(), c"2147483647/task/0/children");
        assert_eq!(number(b"1"), Some(1));
        assert_eq!(number(b"2147483647"), Some(i32::MAX));
        for text in [&b""[..], b"self", b"1a", b"-1", b"12345678901"] {
            assert_eq!(number(text), None, "{text:?}");
        }
    }

    /// Both sources find a child, a grandchild and a great-grandchild, and no other process.
    #[test]
    fn both_sources_find_the_same_descendants() {
        let script = "sh -c 'sleep 1000 & sleep 1000 & wait' & wait";
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
        let root = child.id().cast_signed();
        let proc = open_proc().unwrap();
        let mut members = [Member { pid: 0, parent: 0 }; 4096];
        let mut find = |source| {
            let mut tree = Tree::new(proc.as_fd(), root, &mut members);
            tree.source = source;
            let count = tree.find();
            let mut pids: Vec<i32> = members[..count].iter().map(|member| member.pid).collect();
            pids.sort_unstable();
            pids
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (by_children, by_stat) = (find(ParentageSource::Children), find(ParentageSource::Stat));
            if by_children.len() == 3 && by_children == by_stat {
                break;
            }
            assert!(Instant::now() < deadline, "{by_children:?} and {by_stat:?}");
            std::thread::sleep(Duration::from_millis(5)); // sleep: polls the process table
        }
        let mut tree = Tree::new(proc.as_fd(), root, &mut members);
        assert_eq!(tree.source, ParentageSource::Children, "this kernel has the file");
        assert_eq!(tree.kill().alive, 3);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// One call must suffice for a process that forks as fast as it can, because it is stopped before its
    /// children are counted for the last time.
    #[test]
    fn a_process_that_keeps_forking_has_no_survivors() {
        let name = format!("999.{}", std::process::id());
        let script = format!("sh -c 'for i in $(seq 3000); do sleep {name} & done; wait' & wait");
        let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let proc = open_proc().unwrap();
        let mut members = [Member { pid: 0, parent: 0 }; 4096];
        let mut tree = Tree::new(proc.as_fd(), child.id().cast_signed(), &mut members);
        let deadline = Instant::now() + Duration::from_secs(20);
        // The process has so many children that it forks again while they are being killed.
        while tree.find() < 300 {
            assert!(Instant::now() < deadline, "it does not fork");
        }
        tree.kill();
        let sleeping = || {
            let mut pids = Vec::new();
            numbers_in(proc.as_fd(), |pid| {
                let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                if arguments.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes()) {
                    pids.push(pid);
                }
            });
            pids
        };
        // Killed processes may take a moment to disappear. Escaped processes stay.
        let deadline = Instant::now() + Duration::from_secs(5);
        while !sleeping().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5)); // sleep: polls the process table
        }
        let survivors = sleeping();
        for pid in &survivors {
            _ = rustix::process::kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(survivors, []);
    }

    #[test]
    fn a_process_that_is_no_longer_a_member_is_not_signalled() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let proc = open_proc().unwrap();
        assert_eq!(signal_member(proc.as_fd(), Member { pid, parent: 1 }, Signal::KILL), None);
        assert!(child.try_wait().unwrap().is_none());
        let parent = std::process::id().cast_signed();
        assert!(signal_member(proc.as_fd(), Member { pid, parent }, Signal::KILL).is_some());
        child.wait().unwrap();
    }
}
