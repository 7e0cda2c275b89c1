//! The stdin and stdout of this process as a client. All other code of the process loses access to them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::driver::stream::Stream;

const COPY_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct StdioStreams {
    pub(crate) input: Stream,
    pub(crate) output: Stream,
    /// Disconnected when all output was copied to a file. `None`: stdout is not copied.
    pub(crate) copied: Option<Receiver<()>>,
}

/// Takes descriptors 0 and 1 and replaces them by `/dev/null` and stderr. No library can then corrupt the
/// output by printing, and no child that inherits the descriptors can read the input.
pub(super) fn take_stdio() -> io::Result<StdioStreams> {
    // A process that is started later would use a descriptor below 3 as a standard stream.
    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(nothing)?;
    ends(input, output)
}

fn ends(input: OwnedFd, output: OwnedFd) -> io::Result<StdioStreams> {
    let input = match usable(input, OFlags::RDONLY)? {
        Ok(stream) => stream,
        Err(input) => {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            copier("narrows-stdin", input, theirs)?;
            nonblocking(ours)?
        }
    };
    let (output, copied) = match usable(output, OFlags::WRONLY)? {
        Ok(stream) => (stream, None),
        Err(output) => {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            let copied = copier("narrows-stdout", theirs, output)?;
            (nonblocking(ours)?, Some(copied))
        }
    };
    Ok(StdioStreams { input, output, copied })
}

/// Returns the descriptor in non-blocking mode if that affects no other process. Otherwise returns the
/// unchanged descriptor as the inner error.
fn usable(fd: OwnedFd, access: OFlags) -> io::Result<Result<Stream, OwnedFd>> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if kind == FileType::Socket {
        // Calls on a socket have a flag for not blocking, so the mode does not matter.
        return Ok(Ok(Stream::socket(fd)));
    }
    if kind == FileType::Fifo || rustix::termios::isatty(&fd) {
        // Non-blocking mode belongs to the open file, which parents and siblings share. Opening the file
        // again gives a separate open file, unless the file belongs to another user.
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        if let Ok(own) = rustix::fs::open(path, flags, Mode::empty()) {
            return Ok(Ok(Stream::pipe(own)));
        }
    }
    Ok(Err(fd))
}

fn nonblocking(fd: OwnedFd) -> io::Result<Stream> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(Stream::pipe(fd))
}

/// Starts a thread that copies between a pipe and a file that cannot be polled. The thread ends when either
/// side does.
fn copier(name: &str, from: OwnedFd, to: OwnedFd) -> io::Result<Receiver<()>> {
    let (done, copied) = sync_channel(1);
    std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(move || {
        let _done = done;
        if let Err(error) = copy(&from, &to) {
            tracing::debug!(%error, "cannot copy stdin or stdout");
        }
    })?;
    Ok(copied)
}

fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let mut chunk = vec![0; COPY_BYTES];
    loop {
        // This poll also returns when the other side is closed, which a read would not notice.
        let mut fds = [PollFd::new(from, PollFlags::IN), PollFd::new(to, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        if fds[1].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return Ok(());
        }
        let read = match rustix::io::read(from, &mut chunk[..]) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(error) => return Err(error),
        };
        let mut rest = &chunk[..read];
        while !rest.is_empty() {
            match rustix::io::write(to, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    _ = poll(&mut [PollFd::new(to, PollFlags::OUT)], None);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn read_to_end(stream: &Stream) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 16]);
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return all,
                Ok(read) => all.extend_from_slice(&buffer[..read]),
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn files_on_stdio_are_copied_by_threads() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, "what stands in a file\n").unwrap();
        let taken = ends(File::open(&from).unwrap().into(), File::create(&to).unwrap().into()).unwrap();
        assert_eq!(read_to_end(&taken.input), b"what stands in a file\n");
        taken.output.write(b"answer\n").unwrap();
        drop(taken.output);
        assert!(taken.copied.unwrap().recv().is_err(), "the sender is dropped when everything is copied");
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "answer\n");
    }

    #[test]
    fn pipes_and_sockets_are_used_directly_and_left_unchanged() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let kept = read.try_clone().unwrap();
        let taken = ends(read, ours.try_clone().unwrap()).unwrap();
        assert!(taken.copied.is_none());
        let mut buffer = [0; 8];
        assert_eq!(taken.input.read(&mut buffer), Err(Errno::AGAIN));
        assert_eq!(Stream::socket(ours.try_clone().unwrap()).read(&mut buffer), Err(Errno::AGAIN));
        for fd in [&kept, &ours] {
            assert!(!rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK));
        }
        rustix::io::write(&write, b"x\n").unwrap();
        assert_eq!(taken.input.read(&mut buffer), Ok(2));
        taken.output.write(b"y").unwrap();
        let mut answer = [0; 1];
        std::os::unix::net::UnixStream::from(theirs).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"y");
    }
}
