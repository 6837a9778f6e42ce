//! What waits to be sent on a connection, and the sending of it.
//!
//! A connection's queue holds frames in order. A frame with a payload of many bytes is sent as several chunks, each with a
//! header of its own; between two chunks, urgent frames go first and a stopped one ends.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

use crate::sys::{Gather, Scatter, send};
use crate::wire::{Header, Kind, LAST};

/// One frame, or a request whose payload goes out in several.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The request that it belongs to.
    pub(crate) id: u64,
    /// Header and body of the frame that is being sent.
    head: Vec<u8>,
    head_sent: usize,
    payload: Option<Payload>,
}

#[derive(Debug)]
struct Payload {
    source: Source,
    /// Bytes of the frame that is being sent which have not been sent yet.
    chunk_left: u64,
    chunk_bytes: u64,
    /// The kind of the frames after this one.
    next: Kind,
    stopped: bool,
    /// Lives as long as something of the payload may still be sent.
    _sending: Option<Arc<()>>,
}

/// Where a payload comes from.
#[derive(Debug)]
enum Source {
    Memory(Scatter),
    /// So many bytes that the receiver throws away.
    Zeros(u64),
}

static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

impl Source {
    fn left(&self) -> u64 {
        match self {
            Self::Memory(scatter) => scatter.left(),
            Self::Zeros(left) => *left,
        }
    }

    fn pieces(&self) -> usize {
        match self {
            Self::Memory(scatter) => scatter.pieces(),
            Self::Zeros(_) => 1,
        }
    }

    fn advance(&mut self, count: u64) {
        match self {
            Self::Memory(scatter) => scatter.advance(count),
            Self::Zeros(left) => *left = left.saturating_sub(count),
        }
    }

    /// Appends the next `bytes` bytes; `false` if not all of them found room.
    fn append<'a>(&'a self, gather: &mut Gather<'a>, mut bytes: u64) -> bool {
        match self {
            Self::Memory(scatter) => gather.push_scatter(scatter, bytes),
            Self::Zeros(_) => {
                while bytes > 0 {
                    let count = usize::try_from(bytes).unwrap_or(usize::MAX).min(ZEROS.len());
                    if !gather.push_bytes(&ZEROS[..count]) {
                        return false;
                    }
                    bytes -= count as u64;
                }
                true
            }
        }
    }
}

/// Tells whether something of a write may still be sent.
#[derive(Debug)]
pub(crate) struct Sending(Weak<()>);

impl Sending {
    /// Whether that is so. Ask only after waiting for threads in the middle of sending.
    pub(crate) fn is_under_way(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl Payload {
    fn new(scatter: Scatter, chunk_bytes: u64, next: Kind) -> Self {
        let source = Source::Memory(scatter);
        Self { source, chunk_left: 0, chunk_bytes, next, stopped: false, _sending: None }
    }

    /// The length of the chunk that starts at the scatter's position.
    fn next_chunk(&self) -> u64 {
        self.source.left().min(self.chunk_bytes)
    }
}

impl Outgoing {
    /// A frame without payload.
    pub(crate) fn frame(mut header: Header, body: &[u8]) -> Self {
        header.body = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut head = header.encode().to_vec();
        head.extend_from_slice(body);
        Self { id: header.id, head, head_sent: 0, payload: None }
    }

    /// The answer to a read: chunks.
    pub(crate) fn reply(id: u64, scatter: Scatter, chunk_bytes: u64) -> Self {
        let mut payload = Payload::new(scatter, chunk_bytes, Kind::Chunk);
        let head = start_chunk(id, &mut payload);
        Self { id, head, head_sent: 0, payload: Some(payload) }
    }

    /// A write: its header and pieces with the first chunk, then data frames.
    pub(crate) fn write(
        mut header: Header,
        body: &[u8],
        scatter: Scatter,
        chunk_bytes: u64,
    ) -> (Self, Sending) {
        let mut payload = Payload::new(scatter, chunk_bytes, Kind::Data);
        header.payload = payload.next_chunk();
        payload.chunk_left = header.payload;
        let marker = Arc::new(());
        let sending = Sending(Arc::downgrade(&marker));
        payload._sending = Some(marker);
        (Self { payload: Some(payload), ..Self::frame(header, body) }, sending)
    }

    fn kind_byte(&self) -> u8 {
        self.head.first().copied().unwrap_or_default()
    }

    /// Whether it is a request, or carries a payload; the others are answers and signals, which always go out.
    fn can_stop(&self) -> bool {
        let kind = self.kind_byte();
        [Kind::Read, Kind::Write, Kind::Data, Kind::Chunk].iter().any(|&stoppable| stoppable as u8 == kind)
    }

    /// How many pieces of memory it keeps.
    fn weight(&self) -> usize {
        self.payload.as_ref().map_or(1, |payload| payload.source.pieces())
    }

    /// Whether part of its current frame is on its way, so that nothing may come in between.
    fn mid_frame(&self) -> bool {
        self.head_sent > 0
    }

    fn stopped(&self) -> bool {
        self.payload.as_ref().is_some_and(|payload| payload.stopped)
    }

    /// Takes note of `count` sent bytes; returns what is left of them when the frame is over.
    fn advance(&mut self, mut count: u64) -> u64 {
        let of_head = count.min((self.head.len() - self.head_sent) as u64);
        self.head_sent += usize::try_from(of_head).unwrap_or(usize::MAX);
        count -= of_head;
        if let Some(payload) = &mut self.payload {
            let of_chunk = count.min(payload.chunk_left);
            payload.source.advance(of_chunk);
            payload.chunk_left -= of_chunk;
            count -= of_chunk;
        }
        count
    }

    fn frame_over(&self) -> bool {
        self.head_sent == self.head.len()
            && self.payload.as_ref().is_none_or(|payload| payload.chunk_left == 0)
    }

    /// Goes on to the next chunk; `false` when there is none.
    fn next_frame(&mut self) -> bool {
        match &mut self.payload {
            Some(payload) if payload.source.left() > 0 && !payload.stopped => {
                self.head = start_chunk(self.id, payload);
                self.head_sent = 0;
                true
            }
            _ => false,
        }
    }
}

fn start_chunk(id: u64, payload: &mut Payload) -> Vec<u8> {
    let length = payload.next_chunk();
    payload.chunk_left = length;
    let flags = if length == payload.source.left() { LAST } else { 0 };
    Header { flags, payload: length, ..Header::new(payload.next, id) }.encode().to_vec()
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Everything is sent.
    Empty,
    /// The socket takes no more for now; it becomes writable.
    Blocked,
    /// The budget is used up, and there is more.
    More,
}

/// What became of an attempt to stop a request's sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Nothing of it had been sent, and nothing will be.
    Unsent,
    /// Part of it had been sent; nothing beyond the current chunk, which is not the last, will be.
    Cut,
    /// It is not in the queue (any more), or what is left of it goes out with the current frame.
    Absent,
}

/// A connection's queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    frames: VecDeque<Outgoing>,
    /// Whether the last call found the socket full.
    blocked: bool,
    /// Whether the socket took bytes after it had been full: the peer has made room, so it is alive.
    pub(crate) drained: bool,
}

impl Queue {
    pub(crate) fn push(&mut self, outgoing: Outgoing) {
        self.frames.push_back(outgoing);
    }

    /// Appends at the earliest place: before everything that is not being sent.
    pub(crate) fn push_urgent(&mut self, outgoing: Outgoing) {
        let place = usize::from(self.frames.front().is_some_and(Outgoing::mid_frame));
        self.frames.insert(place, outgoing);
    }

    /// How many pieces of memory its frames keep, at least one for each frame.
    pub(crate) fn weight(&self) -> usize {
        self.frames.iter().map(Outgoing::weight).sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.frames.clear();
    }

    /// Stops the sending of request `id`.
    pub(crate) fn stop(&mut self, id: u64) -> Stopped {
        let Some(place) = self.frames.iter().position(|frame| frame.id == id && frame.can_stop()) else {
            return Stopped::Absent;
        };
        let frame = &mut self.frames[place];
        let whole = frame.kind_byte() != Kind::Data as u8;
        if frame.mid_frame() {
            return match &mut frame.payload {
                Some(payload) if payload.source.left() > payload.chunk_left => {
                    payload.stopped = true;
                    Stopped::Cut
                }
                // The rest of it goes out with the current frame.
                _ => Stopped::Absent,
            };
        }
        self.frames.remove(place);
        if whole { Stopped::Unsent } else { Stopped::Cut }
    }

    /// Like [`Queue::stop`], for a payload that its receiver throws away from now on: what the current chunk still lacks is not
    /// taken from memory any more.
    pub(crate) fn abandon(&mut self, id: u64) -> Stopped {
        let stopped = self.stop(id);
        let frame = self.frames.front_mut().filter(|frame| frame.id == id && frame.can_stop());
        if let Some(payload) = frame.and_then(|frame| frame.payload.as_mut()) {
            payload.source = Source::Zeros(payload.chunk_left);
            payload._sending = None;
        }
        stopped
    }

    /// Sends as much as the socket takes, at most about `budget` bytes.
    pub(crate) fn flush(&mut self, socket: &impl AsRawFd, budget: u64) -> io::Result<Flush> {
        let mut sent_in_all: u64 = 0;
        loop {
            let gather = self.gather();
            let want = gather.bytes();
            if want == 0 {
                return Ok(Flush::Empty);
            }
            let sent = match send(socket, &gather) {
                Ok(sent) => sent as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(Flush::Blocked);
                }
                Err(error) => return Err(error),
            };
            self.drained |= std::mem::take(&mut self.blocked);
            self.advance(sent);
            sent_in_all += sent;
            if sent_in_all >= budget {
                return Ok(if self.is_empty() { Flush::Empty } else { Flush::More });
            }
        }
    }

    /// The frames in order, up to the end of the first chunk that is not its request's last, or what one call takes.
    fn gather(&self) -> Gather<'_> {
        let mut gather = Gather::new();
        for frame in &self.frames {
            if !gather.push_bytes(frame.head.get(frame.head_sent..).unwrap_or_default()) {
                break;
            }
            if let Some(payload) = &frame.payload {
                let whole = payload.source.append(&mut gather, payload.chunk_left);
                if !whole || payload.source.left() > payload.chunk_left {
                    break;
                }
            }
        }
        gather
    }

    fn advance(&mut self, mut count: u64) {
        while let Some(frame) = self.frames.front_mut() {
            count = frame.advance(count);
            if !frame.frame_over() {
                return;
            }
            if !frame.next_frame() {
                self.frames.pop_front();
            }
            if count == 0 {
                break;
            }
        }
        // A request that was stopped while its chunk was under way has ended with the chunk.
        if self.frames.front().is_some_and(|frame| frame.stopped() && !frame.mid_frame()) {
            self.frames.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::HEADER;
    use mori_core::{Access, Region};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    fn scatter(region: &Region, length: u64) -> Scatter {
        Scatter::new(Arc::new(region.pin().unwrap()), [(0, length)].into_iter()).unwrap()
    }

    /// Everything that comes out of a socket, as (header, body and payload).
    fn frames(mut socket: UnixStream) -> Vec<(Header, Vec<u8>)> {
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).unwrap();
        let mut frames = Vec::new();
        let mut rest = &bytes[..];
        while let Some((head, tail)) = rest.split_first_chunk::<HEADER>() {
            let header = Header::decode(head, 1 << 16).unwrap();
            let (content, tail) = tail.split_at(header.body as usize + header.payload as usize);
            frames.push((header, content.to_vec()));
            rest = tail;
        }
        assert!(rest.is_empty());
        frames
    }

    #[test]
    fn a_reply_goes_out_in_chunks_with_urgent_frames_in_between() {
        let region = Region::from_vec((0..100).collect(), Access::LOCAL).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let mut queue = Queue::default();
        queue.push(Outgoing::reply(7, scatter(&region, 100), 40));
        assert_eq!(queue.flush(&near, 1).unwrap(), Flush::More);
        queue.push_urgent(Outgoing::frame(Header::new(Kind::Pong, 1), &[]));
        assert_eq!(queue.flush(&near, u64::MAX).unwrap(), Flush::Empty);
        drop(near);
        let frames = frames(far);
        let kinds: Vec<_> = frames.iter().map(|(h, _)| (h.kind, h.flags, h.payload)).collect();
        assert_eq!(
            kinds,
            [(Kind::Chunk, 0, 40), (Kind::Pong, 0, 0), (Kind::Chunk, 0, 40), (Kind::Chunk, LAST, 20)]
        );
        let bytes: Vec<u8> = frames.into_iter().flat_map(|(_, content)| content).collect();
        assert_eq!(bytes, (0..100).collect::<Vec<u8>>());
        assert_eq!(region.pins(), 0);
    }

    #[test]
    fn stopping_tells_what_had_been_sent() {
        let region = Region::zeroed(100, Access::LOCAL).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let mut queue = Queue::default();
        let write = |id| {
            let header = Header { count: 1, a: 0, b: 100, ..Header::new(Kind::Write, id) };
            Outgoing::write(header, &[], scatter(&region, 100), 40).0
        };
        queue.push(write(1));
        queue.push(write(2));
        assert_eq!(queue.flush(&near, 1).unwrap(), Flush::More);
        assert_eq!(queue.stop(2), Stopped::Unsent);
        assert_eq!(queue.stop(1), Stopped::Cut);
        assert_eq!(queue.stop(1), Stopped::Absent);
        assert_eq!(queue.flush(&near, u64::MAX).unwrap(), Flush::Empty);
        assert_eq!(region.pins(), 0);
        drop(near);
        let kinds: Vec<_> = frames(far).iter().map(|(h, _)| (h.kind, h.id, h.payload)).collect();
        assert_eq!(kinds, [(Kind::Write, 1, 40)]);
    }

    /// Whoever gets the last chunk takes the request for finished, so there must be no answer to the stop.
    #[test]
    fn a_stop_within_the_last_chunk_comes_too_late() {
        let region = Region::zeroed(100_000, Access::LOCAL).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        socket2::SockRef::from(&near).set_send_buffer_size(4096).unwrap();
        near.set_nonblocking(true).unwrap();
        let mut queue = Queue::default();
        queue.push(Outgoing::reply(7, scatter(&region, 100_000), 100_000));
        assert_eq!(queue.flush(&near, u64::MAX).unwrap(), Flush::Blocked);
        assert_eq!(queue.stop(7), Stopped::Absent);
        let reader = std::thread::spawn(move || far.read_exact(&mut vec![0; HEADER + 100_000]).unwrap());
        while queue.flush(&near, u64::MAX).unwrap() != Flush::Empty {
            std::thread::yield_now();
        }
        reader.join().unwrap();
    }

    #[test]
    fn a_refused_write_keeps_its_frame_and_gives_up_its_memory() {
        let region = Region::from_vec(vec![1; 100_000], Access::LOCAL).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let header = Header { count: 1, a: 0, b: 100_000, ..Header::new(Kind::Write, 1) };
        let (write, sending) = Outgoing::write(header, &[], scatter(&region, 100_000), 50_000);
        let mut queue = Queue::default();
        queue.push(write);
        // Fills the socket so that the chunk stays half sent.
        socket2::SockRef::from(&near).set_send_buffer_size(4096).unwrap();
        near.set_nonblocking(true).unwrap();
        assert_eq!(queue.flush(&near, u64::MAX).unwrap(), Flush::Blocked);
        assert!(sending.is_under_way());
        assert_eq!(queue.abandon(1), Stopped::Cut);
        assert!(!sending.is_under_way());
        assert_eq!(region.pins(), 0);
        let mut bytes = vec![0; HEADER + 50_000];
        let reader = std::thread::spawn(move || {
            far.read_exact(&mut bytes).unwrap();
            (bytes, far)
        });
        while queue.flush(&near, u64::MAX).unwrap() != Flush::Empty {
            std::thread::yield_now();
        }
        let (bytes, far) = reader.join().unwrap();
        drop(near);
        assert!(frames(far).is_empty());
        let ones = bytes[HEADER..].iter().take_while(|&&byte| byte == 1).count();
        assert!(bytes[HEADER + ones..].iter().all(|&byte| byte == 0));
        assert!(ones > 0 && ones < 50_000, "{ones}");
    }
}
