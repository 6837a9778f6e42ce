//! Reading frames off a socket: headers and bodies through a small buffer, payloads straight into memory.
//!
//! A read may bring a little more than what was asked for (the beginning of what follows); that little is kept in the
//! look-ahead buffer, so that a small frame costs one system call and a payload is copied at most for its first few
//! hundred bytes.

use std::io::{self, IoSliceMut, Read};

use mio::net::TcpStream;

use crate::sys::{Ranges, Scatter, receive};
use crate::wire::HEADER;

const AHEAD: usize = 4608;
/// How much of an unwanted payload is read at a time.
const SINK: usize = 64 << 10;

/// The reading end of a connection.
#[derive(Debug)]
pub(crate) struct Reader {
    ahead: Box<[u8; AHEAD]>,
    start: usize,
    end: usize,
    scratch: Ranges,
    sink: Vec<u8>,
    /// Whether the socket was found empty since it last became readable.
    drained: bool,
    /// Whether the peer has closed its side, so that a short read says nothing.
    closed: bool,
    /// Bytes read since the last look.
    pub(crate) read: u64,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            ahead: Box::new([0; AHEAD]),
            start: 0,
            end: 0,
            scratch: Ranges::default(),
            sink: Vec::new(),
            drained: false,
            closed: false,
            read: 0,
        }
    }

    /// The socket has become readable; `closed`: the peer has closed its side.
    pub(crate) fn readable(&mut self, closed: bool) {
        self.drained = false;
        self.closed |= closed;
    }

    /// Whether there is nothing to read until the socket becomes readable again.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained && self.start == self.end
    }

    /// How many bytes were read ahead.
    pub(crate) fn ahead(&self) -> usize {
        self.end - self.start
    }

    /// Whether part of a header has arrived.
    pub(crate) fn mid_header(&self) -> bool {
        self.start < self.end
    }

    /// Counts what a call brought; `false` if that was nothing because the socket is empty.
    fn note(&mut self, got: io::Result<usize>, wanted: usize) -> io::Result<Option<usize>> {
        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                // A short read means an empty socket (epoll(7)), unless the end of the stream is what cut it short.
                self.drained = count < wanted && !self.closed;
                self.read += count as u64;
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.drained = true;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    fn buffered(&self) -> &[u8] {
        &self.ahead[self.start..self.end]
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// The next header; `None` if it has not wholly arrived.
    pub(crate) fn header(&mut self, socket: &TcpStream) -> io::Result<Option<[u8; HEADER]>> {
        loop {
            if let Some(header) = self.buffered().first_chunk::<HEADER>().copied() {
                self.consume(HEADER);
                return Ok(Some(header));
            }
            if self.drained {
                return Ok(None);
            }
            self.ahead.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let room = &mut self.ahead[self.end..];
            let wanted = room.len();
            let got = (&mut &*socket).read(room);
            match self.note(got, wanted)? {
                Some(count) => self.end += count,
                None => return Ok(None),
            }
        }
    }

    /// Reads on until `body` has `total` bytes; `false` if they have not wholly arrived.
    pub(crate) fn body(&mut self, socket: &TcpStream, body: &mut Vec<u8>, total: usize) -> io::Result<bool> {
        loop {
            let take = self.buffered().len().min(total - body.len());
            body.extend_from_slice(&self.ahead[self.start..self.start + take]);
            self.consume(take);
            if body.len() >= total {
                return Ok(true);
            }
            if self.drained {
                return Ok(false);
            }
            // The buffer is empty here: what comes beyond the body lands in it.
            let have = body.len();
            body.resize(total, 0);
            let wanted = total - have + AHEAD;
            let mut parts = [IoSliceMut::new(&mut body[have..]), IoSliceMut::new(&mut self.ahead[..])];
            let got = (&mut &*socket).read_vectored(&mut parts);
            let noted = self.note(got, wanted);
            let count = noted.as_ref().map_or(0, |count| count.unwrap_or(0));
            body.truncate((have + count).min(total));
            self.end = (have + count).saturating_sub(total);
            if noted?.is_none() {
                return Ok(false);
            }
        }
    }

    /// Reads `left` bytes straight into memory, counting them down; `false` if they have not wholly arrived.
    pub(crate) fn payload(
        &mut self,
        socket: &TcpStream,
        scatter: &mut Scatter,
        left: &mut u64,
    ) -> io::Result<bool> {
        let ready = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buffered().len());
        let copied = scatter.copy_in(&self.ahead[self.start..self.start + ready]);
        self.consume(copied);
        *left -= copied as u64;
        if *left == 0 {
            return Ok(true);
        }
        if self.drained {
            return Ok(false);
        }
        let got = receive(socket, scatter, *left, &mut self.ahead[..], &mut self.scratch);
        let (direct, beyond) = got.as_ref().map_or((0, 0), |parts| *parts);
        let room = self.scratch.room();
        self.note(got.map(|(direct, beyond)| direct + beyond), room)?;
        *left -= direct as u64;
        self.start = 0;
        self.end = beyond;
        Ok(*left == 0)
    }

    /// Reads `left` bytes and forgets them; `false` if they have not wholly arrived.
    pub(crate) fn discard(&mut self, socket: &TcpStream, left: &mut u64) -> io::Result<bool> {
        let ready = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buffered().len());
        self.consume(ready);
        *left -= ready as u64;
        if *left == 0 {
            return Ok(true);
        }
        if self.drained {
            return Ok(false);
        }
        let wanted = usize::try_from(*left).unwrap_or(usize::MAX).min(SINK);
        self.sink.resize(SINK, 0);
        let got = (&mut &*socket).read(&mut self.sink[..wanted]);
        let count = self.note(got, wanted)?.unwrap_or(0);
        *left -= count as u64;
        Ok(*left == 0)
    }

    /// Reads what there is, for the handshake.
    pub(crate) fn some(&mut self, socket: &TcpStream, into: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let ready = self.buffered().len();
            into.extend_from_slice(&self.ahead[self.start..self.start + ready]);
            self.consume(ready);
            if self.drained || ready > 0 {
                return Ok(());
            }
            let got = (&mut &*socket).read(&mut self.ahead[..]);
            if let Some(count) = self.note(got, AHEAD)? {
                self.end = count;
            }
        }
    }

    /// Gives back what the handshake read beyond its end, so that frames start there.
    pub(crate) fn unread(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = self.ahead.get_mut(..bytes.len()).filter(|_| self.start == self.end);
        match room {
            Some(room) => room.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
        self.start = 0;
        self.end = bytes.len();
        Ok(())
    }
}
