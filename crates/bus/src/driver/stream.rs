//! A file descriptor that the event loop reads and writes without blocking.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

/// One end of a socket or a pipe. Pipes must be in non-blocking mode; sockets need not be.
#[derive(Debug)]
pub(crate) struct Stream {
    fd: OwnedFd,
    socket: bool,
}

impl Stream {
    pub(crate) fn socket(fd: OwnedFd) -> Self {
        Self { fd, socket: true }
    }

    pub(crate) fn pipe(fd: OwnedFd) -> Self {
        Self { fd, socket: false }
    }

    #[inline]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            let read = if self.socket {
                rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT).map(|(read, _)| read)
            } else {
                rustix::io::read(&self.fd, &mut *buffer)
            };
            if read != Err(Errno::INTR) {
                return read;
            }
        }
    }

    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let written = if self.socket {
                rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            } else {
                rustix::io::write(&self.fd, bytes)
            };
            if written != Err(Errno::INTR) {
                return written.map_err(Into::into);
            }
        }
    }

    pub(crate) fn write_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            let written = if self.socket {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                rustix::net::sendmsg(&self.fd, parts, &mut SendAncillaryBuffer::default(), flags)
            } else {
                rustix::io::writev(&self.fd, parts)
            };
            if written != Err(Errno::INTR) {
                return written.map_err(Into::into);
            }
        }
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Signals the end of output to the peer, if that is possible without closing the descriptor.
    pub(crate) fn shut(&self) {
        if self.socket {
            _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        }
    }

    pub(crate) fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.fd).unwrap_or(0)
    }

    /// Enlarges a pipe so that one read can fill the whole read buffer.
    pub(crate) fn widen(&self, bytes: usize) {
        // A larger pipe only makes reading faster, so it does not matter if it is not permitted.
        _ = rustix::pipe::fcntl_setpipe_size(self.fd.as_fd(), bytes);
    }

    pub(crate) fn register(&self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.fd.as_raw_fd()), token, interest)
    }

    pub(crate) fn reregister(&self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        registry.reregister(&mut SourceFd(&self.fd.as_raw_fd()), token, interest)
    }

    /// Removes the descriptor from the poll. Closing it is not enough: the same open file may have another
    /// holder, even a fork that has not called exec yet, and would stay registered.
    pub(crate) fn deregister(&self, registry: &Registry) {
        _ = registry.deregister(&mut SourceFd(&self.fd.as_raw_fd()));
    }
}
