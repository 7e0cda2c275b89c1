//! Client sockets of all kinds, and buffers that connections share.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use narrows_base::sync::lock;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

const READ_BYTES: usize = 64 << 10;

const MAX_SPARE_BUFFERS: usize = 8;

/// Kernel buffer size of a resumable connection: bytes in flight must be fewer than those kept for replay.
const SOCKET_BUFFER_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) enum Io {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Io {
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    pub(super) fn limit_kernel_buffers(&self) -> io::Result<()> {
        let fd = match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_fd(),
        };
        sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER_BYTES)?;
        sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER_BYTES)?;
        Ok(())
    }

    /// Enables TCP keepalive and disables Nagle's algorithm.
    pub(super) fn tune(&self, idle: Duration) -> io::Result<()> {
        match self.tcp() {
            Some(stream) => tune(stream, idle),
            None => Ok(()),
        }
    }
}

pub(super) fn tune(stream: &TcpStream, idle: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let third = (idle / 3).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, third)?;
    sockopt::set_tcp_keepintvl(stream, third)?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    // Data is sent at least every third of the idle timeout, and must be acknowledged within the other two.
    sockopt::set_tcp_user_timeout(stream, u32::try_from((idle - idle / 3).as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, from),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, from),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, from),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Buffers that connections borrow for one read or write, so that an idle connection holds no buffer.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Scratch {
    pub(super) fn take_buffer(&self) -> Vec<u8> {
        let spare = lock(&self.spare).pop();
        spare.unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
    }

    pub(super) fn return_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() < READ_BYTES || buffer.capacity() > 4 * READ_BYTES {
            return;
        }
        let mut spare = lock(&self.spare);
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(buffer);
        }
    }

    /// Reads once and passes the bytes to `see`. Ready with the number of bytes, which is 0 at the end of
    /// input.
    pub(super) fn poll_read<T: AsyncRead + Unpin>(
        &self,
        cx: &mut Context<'_>,
        from: &mut T,
        see: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        let mut buffer = self.take_buffer();
        let mut read = ReadBuf::uninit(buffer.spare_capacity_mut());
        let polled = Pin::new(from).poll_read(cx, &mut read);
        let filled = read.filled_mut();
        let count = filled.len();
        if matches!(polled, Poll::Ready(Ok(()))) && count > 0 {
            see(filled);
        }
        self.return_buffer(buffer);
        polled.map_ok(|()| count)
    }
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    at: usize,
}

impl Outbox {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the bytes in memory, those included that are already written.
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn open(&mut self, scratch: &Scratch) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = scratch.take_buffer();
        }
        &mut self.bytes
    }

    pub(super) fn clear(&mut self, scratch: &Scratch) {
        self.at = 0;
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() > 0 {
            scratch.return_buffer(bytes);
        }
    }

    /// Writes as much as possible. Ready when the queue is empty, with `true` if anything was written.
    pub(super) fn poll_write<T: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut T,
        scratch: &Scratch,
    ) -> Poll<io::Result<bool>> {
        let mut moved = false;
        while !self.is_empty() {
            let count = match Pin::new(&mut *to).poll_write(cx, &self.bytes[self.at..]) {
                Poll::Ready(count) => count?,
                Poll::Pending => return Poll::Pending,
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.at += count;
            moved = true;
        }
        self.clear(scratch);
        Poll::Ready(Ok(moved))
    }
}
