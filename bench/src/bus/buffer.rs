//! Data in transit: the incomplete line of a source, and the unwritten bytes of a sink.

use std::io::{self, ErrorKind, Read, Write};

/// Bytes per read, as in the bus.
pub(crate) const READ: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// There may be more data now.
    More,
    /// There is no more data for now.
    Drained,
    /// The end of the stream was reached.
    Ended,
}

pub(crate) fn read<'a>(source: &mut impl Read, scratch: &'a mut [u8]) -> io::Result<(Got, &'a [u8])> {
    loop {
        return match source.read(scratch) {
            Ok(0) => Ok((Got::Ended, &[])),
            // A short read has emptied the pipe or the socket, and new data causes another event.
            Ok(count) => {
                let got = if count == scratch.len() { Got::More } else { Got::Drained };
                Ok((got, &scratch[..count]))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok((Got::Drained, &[])),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
    }
}

#[derive(Default)]
pub(crate) struct Rest(Vec<u8>);

impl Rest {
    /// Cuts a read into lines, without their ends.
    pub(crate) fn lines(&mut self, mut read: &[u8], mut each: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            let Some(end) = memchr::memchr(b'\n', read) else { return self.0.extend_from_slice(read) };
            self.0.extend_from_slice(&read[..end]);
            each(&self.0);
            self.0 = Vec::new();
            read = &read[end + 1..];
        }
        while let Some(end) = memchr::memchr(b'\n', read) {
            each(&read[..end]);
            read = &read[end + 1..];
        }
        self.0.extend_from_slice(read);
    }
}

#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Writes as much as the sink accepts.
    pub(crate) fn flush(&mut self, sink: &mut impl Write) -> io::Result<()> {
        while self.written < self.bytes.len() {
            match sink.write(&self.bytes[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.written = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_read_boundaries() {
        let stream = b"one\ntwo\n\nthree\nfo";
        for size in 1..=stream.len() {
            let (mut rest, mut lines) = (Rest::default(), Vec::new());
            stream.chunks(size).for_each(|read| rest.lines(read, |line| lines.push(line.to_vec())));
            assert_eq!(lines, [&b"one"[..], b"two", b"", b"three"], "{size}");
            assert_eq!(rest.0, b"fo");
        }
    }

    #[test]
    fn unwritten_bytes_wait_for_their_sink() {
        struct Narrow(Vec<u8>, usize);
        impl Write for Narrow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if self.1 == 0 {
                    return Err(ErrorKind::WouldBlock.into());
                }
                let count = bytes.len().min(self.1);
                self.1 -= count;
                self.0.extend_from_slice(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut outbox, mut sink) = (Outbox::default(), Narrow(Vec::new(), 0));
        outbox.bytes().extend_from_slice(b"abcdef");
        for (room, expected) in [(0, &b""[..]), (4, b"abcd"), (9, b"abcdef")] {
            sink.1 = room;
            outbox.flush(&mut sink).expect("a sink");
            assert_eq!(sink.0, expected);
        }
        assert!(outbox.bytes.is_empty());
    }
}
