//! This process's stdin and stdout as a link, hidden from all other code.
//!
//! After [`take`], descriptor 1 is stderr and descriptor 0 is empty. So a `println!` in a library cannot
//! corrupt the protocol, and a child process that inherits both descriptors cannot consume its input.

use std::fs::File;
use std::future::ready;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::{FileType, Mode, OFlags};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

use crate::close::CloseReason;
use crate::hangup;
use crate::link::{Link, Options};
use crate::stream::{PeerSignals, stream_until};

/// Takes stdin and stdout for the protocol. Must be called once, inside a runtime, before any other code
/// reads stdin.
///
/// # Errors
/// If stdin or stdout is closed, or no descriptor is free.
pub fn take(options: &Options) -> io::Result<Link> {
    let (input, output) = take_descriptors()?;
    let (input, output) = (Descriptor::new(input, OFlags::RDONLY)?, Descriptor::new(output, OFlags::WRONLY)?);
    let signs = PeerSignals {
        why: ready(CloseReason::Eof),
        reader_gone: hangup::reader_gone(output.fd().try_clone()),
        peer_closed: hangup::peer_closed(input.fd().try_clone()),
    };
    Ok(stream_until(input.into_reader()?, output.into_writer()?, options, signs))
}

/// Moves descriptors 0 and 1 to private ones and replaces them by `/dev/null` and stderr.
fn take_descriptors() -> io::Result<(OwnedFd, OwnedFd)> {
    // The new descriptor is at least 3, because a lower number could become a standard stream of a child
    // process.
    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(nothing)?;
    Ok((input, output))
}

/// A standard stream, and the way to use it without blocking this process or affecting others.
enum Descriptor {
    /// A non-blocking descriptor. No other process shares the open file.
    Own(OwnedFd),
    /// A non-blocking descriptor of an open file that other processes share. Holds the flags to restore.
    Shared(OwnedFd, OFlags),
    /// A blocking descriptor, which must be used from another thread.
    Blocking(OwnedFd),
}

impl Descriptor {
    fn new(fd: OwnedFd, access: OFlags) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        if kind == FileType::RegularFile {
            return Ok(Self::Blocking(fd));
        }
        // Non-blocking mode belongs to the open file, which parents and siblings share. Reopening gives
        // this process a separate open file. That works for pipes and terminals, but not for sockets or
        // another user's pipe.
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        if let Ok(own) = rustix::fs::open(path, flags, Mode::empty()) {
            return Ok(Self::Own(own));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        // A terminal that cannot be reopened stays blocking, because the shell uses the same open file.
        Ok(if matches!(kind, FileType::Fifo | FileType::Socket) {
            Self::Shared(fd, flags)
        } else {
            Self::Blocking(fd)
        })
    }

    fn fd(&self) -> &OwnedFd {
        match self {
            Self::Own(fd) | Self::Shared(fd, _) | Self::Blocking(fd) => fd,
        }
    }

    fn into_reader(self) -> io::Result<Box<dyn AsyncRead + Send + Unpin>> {
        // The unchecked constructor also accepts sockets and terminals, which are read in the same way as
        // pipes.
        Ok(match self {
            Self::Own(fd) => match fd.try_clone().and_then(pipe::Receiver::from_owned_fd_unchecked) {
                Ok(reader) => Box::new(reader),
                // Some files cannot be polled, such as `/dev/null`.
                Err(_) => Box::new(blocking(fd)),
            },
            Self::Shared(fd, flags) => {
                let restore = RestoreFlags::after_setting_nonblocking(&fd, flags)?;
                Box::new(RestoringStream {
                    stream: pipe::Receiver::from_owned_fd_unchecked(fd)?,
                    _restore: restore,
                })
            }
            Self::Blocking(fd) => Box::new(blocking(fd)),
        })
    }

    fn into_writer(self) -> io::Result<Box<dyn AsyncWrite + Send + Unpin>> {
        Ok(match self {
            Self::Own(fd) => match fd.try_clone().and_then(pipe::Sender::from_owned_fd_unchecked) {
                Ok(writer) => Box::new(writer),
                Err(_) => Box::new(blocking(fd)),
            },
            Self::Shared(fd, flags) => {
                let restore = RestoreFlags::after_setting_nonblocking(&fd, flags)?;
                Box::new(RestoringStream {
                    stream: pipe::Sender::from_owned_fd_unchecked(fd)?,
                    _restore: restore,
                })
            }
            Self::Blocking(fd) => Box::new(blocking(fd)),
        })
    }
}

fn blocking(fd: OwnedFd) -> tokio::fs::File {
    tokio::fs::File::from_std(File::from(fd))
}

/// Restores the flags of a shared descriptor on drop.
struct RestoreFlags {
    fd: OwnedFd,
    flags: OFlags,
}

impl RestoreFlags {
    fn after_setting_nonblocking(fd: &OwnedFd, flags: OFlags) -> io::Result<Self> {
        let restore = Self { fd: fd.try_clone()?, flags };
        rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
        Ok(restore)
    }
}

impl Drop for RestoreFlags {
    fn drop(&mut self) {
        let _ = rustix::fs::fcntl_setfl(&self.fd, self.flags);
    }
}

/// A stream that restores its descriptor on drop.
struct RestoringStream<S> {
    stream: S,
    _restore: RestoreFlags,
}

impl<S: AsyncRead + Unpin> AsyncRead for RestoringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RestoringStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
