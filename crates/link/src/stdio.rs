//! Our own stdin and stdout as a link, taken away from everybody else.
//!
//! After [`take`], descriptor 1 is stderr and descriptor 0 is empty: no `println!` of any library can corrupt the
//! wire, and no child that inherits them can eat its input.

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
use crate::link::{Link, Options};
use crate::other_end;
use crate::stream::{Signs, stream_until};

/// Takes stdin and stdout for the protocol. Must be called inside a runtime, once, before anything is read.
///
/// # Errors
/// When they cannot be duplicated or replaced: they are closed, or there is no descriptor left.
pub fn take(options: &Options) -> io::Result<Link> {
    let (input, output) = take_descriptors()?;
    let (input, output) = (Descriptor::new(input, OFlags::RDONLY)?, Descriptor::new(output, OFlags::WRONLY)?);
    let signs = Signs {
        why: ready(CloseReason::Eof),
        deaf: other_end::deaf(output.fd().try_clone()),
        hung_up: other_end::hung_up(input.fd().try_clone()),
    };
    Ok(stream_until(input.into_reader()?, output.into_writer()?, options, signs))
}

/// Moves descriptors 0 and 1 to private ones and puts `/dev/null` and stderr in their places.
fn take_descriptors() -> io::Result<(OwnedFd, OwnedFd)> {
    // 3 and up: a low number would be taken for a standard stream by whatever is started later.
    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(nothing)?;
    Ok((input, output))
}

/// One of the two, and how it can be used without blocking and without harm to others.
enum Descriptor {
    /// Non-blocking, and ours alone.
    Own(OwnedFd),
    /// Non-blocking only once we set it so, for everybody who shares it; these are the flags to put back.
    Shared(OwnedFd, OFlags),
    /// Only to be used from another thread.
    Blocking(OwnedFd),
}

impl Descriptor {
    fn new(fd: OwnedFd, access: OFlags) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        if kind == FileType::RegularFile {
            return Ok(Self::Blocking(fd));
        }
        // Non-blocking mode belongs to the open file, which parents and siblings share. Opening it anew gives us
        // one of our own; that works for pipes and terminals, but not for sockets, nor for another user's pipe.
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        if let Ok(own) = rustix::fs::open(path, flags, Mode::empty()) {
            return Ok(Self::Own(own));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        // A terminal that cannot be opened anew stays as it is: a shell must find it blocking.
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
        // "Unchecked" means that it may be something else than a pipe: a socket or a terminal is read the same way.
        Ok(match self {
            Self::Own(fd) => match fd.try_clone().and_then(pipe::Receiver::from_owned_fd_unchecked) {
                Ok(reader) => Box::new(reader),
                // Not everything can be polled; `/dev/null` cannot.
                Err(_) => Box::new(blocking(fd)),
            },
            Self::Shared(fd, flags) => {
                let restore = Restore::after_setting_nonblocking(&fd, flags)?;
                Box::new(Restoring {
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
                let restore = Restore::after_setting_nonblocking(&fd, flags)?;
                Box::new(Restoring { stream: pipe::Sender::from_owned_fd_unchecked(fd)?, _restore: restore })
            }
            Self::Blocking(fd) => Box::new(blocking(fd)),
        })
    }
}

fn blocking(fd: OwnedFd) -> tokio::fs::File {
    tokio::fs::File::from_std(File::from(fd))
}

/// Puts the flags of a shared descriptor back.
struct Restore {
    fd: OwnedFd,
    flags: OFlags,
}

impl Restore {
    fn after_setting_nonblocking(fd: &OwnedFd, flags: OFlags) -> io::Result<Self> {
        let restore = Self { fd: fd.try_clone()?, flags };
        rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
        Ok(restore)
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = rustix::fs::fcntl_setfl(&self.fd, self.flags);
    }
}

/// A stream that leaves its descriptor as it found it.
struct Restoring<S> {
    stream: S,
    _restore: Restore,
}

impl<S: AsyncRead + Unpin> AsyncRead for Restoring<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Restoring<S> {
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
