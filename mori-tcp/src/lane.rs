//! One connection to a peer, as the threads that submit see it.
//!
//! Any thread may submit: it enters the request in the table, puts the frames into the inbox, and then tries to be the
//! one that writes. The writer takes what is in the inbox over into its queue, sends, and looks at the inbox once more after
//! giving the queue back, so that no frame is left behind: whoever put it there either got to write or was seen by
//! the one who did. A thread that finds the socket full leaves the rest to the lane's own I/O thread, which is told by the
//! system when there is room.
//!
//! Everything else (connecting, reading, stopping, ending) is done by the I/O thread alone; see [`crate::initiator`].

use std::collections::HashMap;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::sync::{Condvar, Mutex};
use mio::net::TcpStream;
use mori_core::{EngineKey, Error, ErrorKind, Notify, Result};

use crate::driven::Driven;
use crate::outgoing::{Flush, Outgoing, Queue, Sending, Stopped};
use crate::sys::Scatter;
use crate::transfer::Transfer;
use crate::wire::{AFTER_WRITE, ANNOUNCE, FAILED, Header, Kind, MAX_TEXT, ON_FAILURE, cut};
use crate::worker::{Command, WorkerHandle};

/// How much a submitting thread sends by itself before it leaves the rest to the I/O thread.
const INLINE_BUDGET: u64 = 256 << 10;
/// How often the I/O thread takes over what came while it sent, before the other connections get their turn.
const TAKE_OVERS: u32 = 8;

/// A request that is not quiet yet.
#[derive(Debug)]
pub(crate) enum Request {
    /// A read whose bytes go to memory.
    Read { transfer: Arc<Transfer>, scatter: Scatter, bytes: u64 },
    /// A read that was stopped: its transfer is done with it, its remaining bytes are thrown away.
    Drain,
    /// A write.
    Write { transfer: Arc<Transfer>, bytes: u64, sending: Sending },
    /// A notification.
    Note { transfer: Arc<Transfer> },
}

impl Request {
    pub(crate) fn transfer(&self) -> Option<&Arc<Transfer>> {
        match self {
            Self::Read { transfer, .. } | Self::Write { transfer, .. } | Self::Note { transfer } => {
                Some(transfer)
            }
            Self::Drain => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) requests: HashMap<u64, Request>,
    pub(crate) closed: Option<Error>,
}

#[derive(Debug, Default)]
struct Inbox {
    frames: Vec<Outgoing>,
    closed: bool,
}

pub(crate) struct Lane {
    /// Its number at its I/O thread.
    pub(crate) token: usize,
    pub(crate) worker: Arc<WorkerHandle>,
    pub(crate) peer: EngineKey,
    /// Set when the handshake is over; nothing is sent before.
    socket: OnceLock<TcpStream>,
    pub(crate) table: Mutex<Table>,
    inbox: Mutex<Inbox>,
    writer: Mutex<Queue>,
    next_request: AtomicU64,
    /// Bytes of requests in the table.
    load: AtomicU64,
    closed: AtomicBool,
    opening: Mutex<Option<Result<()>>>,
    opened: Condvar,
    /// Its reading end.
    driven: OnceLock<Weak<Driven>>,
}

impl Lane {
    pub(crate) fn new(token: usize, worker: Arc<WorkerHandle>, peer: EngineKey) -> Arc<Self> {
        Arc::new(Self {
            token,
            worker,
            peer,
            socket: OnceLock::new(),
            table: Mutex::default(),
            inbox: Mutex::default(),
            writer: Mutex::default(),
            next_request: AtomicU64::new(1),
            load: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            opening: Mutex::new(None),
            opened: Condvar::new(),
            driven: OnceLock::new(),
        })
    }

    /// Whether it is gone for good; a new one takes its place.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the handshake is over and the connection stands.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.get().is_some() && !self.is_closed()
    }

    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        self.socket.get()
    }

    /// Says what reads it; once.
    pub(crate) fn read_by(&self, driven: Weak<Driven>) {
        let _ = self.driven.set(driven);
    }

    /// What reads it, while it stands.
    pub(crate) fn driven(&self) -> Option<Arc<Driven>> {
        self.driven.get().and_then(Weak::upgrade)
    }

    /// Bytes under way on it.
    pub(crate) fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    /// Waits until it is open, or cannot be opened, or the time is up.
    pub(crate) fn wait_open(&self, bound: Duration) -> Result<()> {
        let mut opening = self.opening.lock();
        self.opened.wait_while_for(&mut opening, |opening| opening.is_none(), bound);
        opening.clone().unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("engine {} did not complete the connection within {bound:?}", self.peer),
            ))
        })
    }

    /// The handshake is over: sending may begin.
    pub(crate) fn open(&self, socket: TcpStream) {
        let _ = self.socket.set(socket);
        self.opening.lock().get_or_insert(Ok(()));
        self.opened.notify_all();
    }

    /// It is gone: refuses what comes, and hands out what was in progress.
    pub(crate) fn close(&self, why: &Error) -> Vec<Request> {
        self.closed.store(true, Ordering::Relaxed);
        let requests = {
            let mut table = self.table.lock();
            table.closed.get_or_insert_with(|| why.clone());
            std::mem::take(&mut table.requests)
        };
        let frames = {
            let mut inbox = self.inbox.lock();
            inbox.closed = true;
            std::mem::take(&mut inbox.frames)
        };
        drop(frames);
        self.writer.lock().clear();
        self.opening.lock().get_or_insert_with(|| Err(why.clone()));
        self.opened.notify_all();
        requests.into_values().collect()
    }

    pub(crate) fn fresh_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters requests in the table. On refusal they are handed back to nobody: the caller's transfer ends with the error.
    fn enter(&self, entries: Vec<(u64, Request)>) -> Result<()> {
        let mut earliest = None;
        {
            let mut table = self.table.lock();
            if let Some(why) = &table.closed {
                return Err(why.clone());
            }
            for (id, request) in entries {
                if let Request::Read { bytes, .. } | Request::Write { bytes, .. } = &request {
                    self.load.fetch_add(*bytes, Ordering::Relaxed);
                }
                if let Some(deadline) = request.transfer().and_then(|transfer| transfer.deadline) {
                    earliest = Some(deadline.at);
                }
                table.requests.insert(id, request);
            }
        }
        self.worker.busy(earliest);
        Ok(())
    }

    /// Takes a request out of the table: it is quiet.
    pub(crate) fn leave(&self, id: u64) -> Option<Request> {
        let request = self.table.lock().requests.remove(&id)?;
        self.unload(&request);
        Some(request)
    }

    pub(crate) fn unload(&self, request: &Request) {
        if let Request::Read { bytes, .. } | Request::Write { bytes, .. } = request {
            self.load.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }

    /// Puts frames into the inbox, one after the other with nothing in between.
    fn deliver(&self, frames: impl IntoIterator<Item = Outgoing>) {
        let mut inbox = self.inbox.lock();
        if !inbox.closed {
            inbox.frames.extend(frames);
        }
    }

    /// Submits a read or a write of one request's worth of pieces, with the frames that go before and after it.
    pub(crate) fn submit(
        self: &Arc<Self>,
        transfer: &Arc<Transfer>,
        id: u64,
        request: Request,
        outgoing: Outgoing,
        note: Option<&Notify>,
    ) -> Result<()> {
        let mut entries = vec![(id, request)];
        let mut frames = Vec::with_capacity(3);
        let mut follower = None;
        if let Some(note) = note {
            if note.on_failure {
                frames.push(note_frame(transfer, 0, note, None, ANNOUNCE, 0));
            }
            let note_id = self.fresh_request();
            entries.push((note_id, Request::Note { transfer: Arc::clone(transfer) }));
            follower = Some(note_frame(transfer, note_id, note, None, AFTER_WRITE, id));
        }
        self.enter(entries)?;
        frames.push(outgoing);
        frames.extend(follower);
        self.deliver(frames);
        self.write();
        Ok(())
    }

    /// Tells the target that a transfer will carry a message, so that it can report a failure by itself.
    pub(crate) fn announce(&self, transfer: &Transfer, note: &Notify) {
        self.deliver([note_frame(transfer, 0, note, None, ANNOUNCE, 0)]);
    }

    /// Sends a transfer's message, after everything else of it is quiet.
    pub(crate) fn note(
        self: &Arc<Self>,
        transfer: &Arc<Transfer>,
        note: &Notify,
        failure: Option<&Error>,
        after: Option<u64>,
    ) -> Result<()> {
        let id = self.fresh_request();
        self.enter(vec![(id, Request::Note { transfer: Arc::clone(transfer) })])?;
        let flags = if after.is_some() { AFTER_WRITE } else { 0 };
        self.deliver([note_frame(transfer, id, note, failure, flags, after.unwrap_or(0))]);
        self.write();
        Ok(())
    }

    /// Sends a frame without a request of its own, before everything that waits.
    pub(crate) fn urgent(&self, header: Header) {
        let mut writer = self.writer.lock();
        writer.push_urgent(Outgoing::frame(header, &[]));
        drop(writer);
        self.write();
    }

    /// Asks the I/O thread to stop a request.
    pub(crate) fn cancel(self: &Arc<Self>, request: u64) {
        self.worker.send(Command::Cancel { token: self.token, request });
    }

    /// Stops the sending of a request, and tells the target unless nothing of it was sent. For the I/O thread.
    pub(crate) fn stop_sending(&self, id: u64) -> Stopped {
        let mut writer = self.writer.lock();
        self.take_over(&mut writer);
        let stopped = writer.stop(id);
        if stopped != Stopped::Unsent {
            writer.push_urgent(Outgoing::frame(Header::new(Kind::Cancel, id), &[]));
        }
        drop(writer);
        self.write();
        stopped
    }

    /// Stops the sending of a write that the target has refused: what it still gets for the sake of the frame, it throws
    /// away, so nothing of the region is sent any more. For the I/O thread.
    pub(crate) fn abandon(&self, id: u64) {
        let mut writer = self.writer.lock();
        self.take_over(&mut writer);
        if writer.abandon(id) == Stopped::Cut {
            writer.push_urgent(Outgoing::frame(Header::new(Kind::Cancel, id), &[]));
        }
        drop(writer);
        self.write();
    }

    /// Waits until no thread is in the middle of sending; what was sent has then been taken off the queue.
    pub(crate) fn settle(&self) {
        drop(self.writer.lock());
        self.write_left_over();
    }

    /// How many frames wait to be sent. For the I/O thread.
    pub(crate) fn backlog(&self) -> usize {
        let frames = self.writer.lock().len() + self.inbox.lock().frames.len();
        self.write_left_over();
        frames
    }

    /// After the queue was held without sending: a submitting thread may have found it taken and gone its way.
    fn write_left_over(&self) {
        if !self.inbox.lock().frames.is_empty() {
            self.write();
        }
    }

    fn take_over(&self, writer: &mut Queue) {
        let mut inbox = self.inbox.lock();
        inbox.frames.drain(..).for_each(|frame| writer.push(frame));
    }

    /// Sends what there is unless another thread does; for submitting threads.
    pub(crate) fn write(&self) {
        let Some(socket) = self.socket.get() else { return };
        while let Some(mut writer) = self.writer.try_lock() {
            self.take_over(&mut writer);
            let flushed = writer.flush(socket, INLINE_BUDGET);
            drop(writer);
            self.flushed(&flushed);
            if !matches!(flushed, Ok(Flush::Empty)) || self.inbox.lock().frames.is_empty() {
                return;
            }
        }
    }

    /// Sends what there is; for the I/O thread, when there is room. Says whether the peer has made room since the last time.
    pub(crate) fn write_some(&self, budget: u64) -> (std::io::Result<Flush>, bool) {
        let Some(socket) = self.socket.get() else { return (Ok(Flush::Empty), false) };
        let mut drained = false;
        for _ in 0..TAKE_OVERS {
            let mut writer = self.writer.lock();
            self.take_over(&mut writer);
            let flushed = writer.flush(socket, budget);
            drained |= std::mem::take(&mut writer.drained);
            drop(writer);
            // As in `write`: who found the queue taken meanwhile relies on this look.
            if !matches!(flushed, Ok(Flush::Empty)) || self.inbox.lock().frames.is_empty() {
                return (flushed, drained);
            }
        }
        (Ok(Flush::More), drained)
    }

    fn flushed(&self, flushed: &std::io::Result<Flush>) {
        match flushed {
            Ok(Flush::Empty | Flush::Blocked) => {}
            // On an error, the I/O thread reads the reason off the socket and ends the connection.
            Ok(Flush::More) | Err(_) => {
                self.worker.send(Command::Write(self.token));
            }
        }
    }
}

/// A notification's frame: the message, and for a failure its number and text.
fn note_frame(
    transfer: &Transfer,
    id: u64,
    note: &Notify,
    failure: Option<&Error>,
    flags: u8,
    after: u64,
) -> Outgoing {
    let mut body = u16::try_from(note.message.len()).unwrap_or(u16::MAX).to_le_bytes().to_vec();
    body.extend_from_slice(&note.message);
    if let Some(error) = failure {
        let room = MAX_TEXT - body.len();
        body.extend_from_slice(cut(error.message(), room).as_bytes());
    }
    let header = Header {
        flags: flags
            | if note.on_failure { ON_FAILURE } else { 0 }
            | if failure.is_some() { FAILED } else { 0 },
        key: u128::from(transfer.id.get()),
        a: transfer.tag.0,
        b: after,
        count: failure.map_or(0, |error| error.kind().number()),
        ..Header::new(Kind::Note, id)
    };
    Outgoing::frame(header, &body)
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("token", &self.token)
            .field("peer", &self.peer)
            .field("socket", &self.socket.get().map(AsRawFd::as_raw_fd))
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// A lane that is open, and the other end of its connection.
    fn lane() -> (Arc<Lane>, std::net::TcpStream, mio::Poll) {
        let poll = mio::Poll::new().unwrap();
        let base = mori_core::Clock::system().now();
        let worker = Arc::new(WorkerHandle::new(poll.registry(), base).unwrap());
        let lane = Lane::new(worker.fresh_token(), worker, "far".into());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        lane.open(TcpStream::from_std(near));
        (lane, listener.accept().unwrap().0, poll)
    }

    /// Two threads meet without sleeping, so that both go on at the same moment.
    #[derive(Default)]
    struct Meet([AtomicU64; 2]);

    impl Meet {
        fn wait(&self, own: usize) {
            // Release and acquire pair on both counters: what one did before is seen by the other after.
            let round = self.0[own].fetch_add(1, Ordering::Release) + 1;
            let mut spins = 0;
            while self.0[1 - own].load(Ordering::Acquire) < round {
                spins += 1;
                if spins % 1000 == 0 {
                    std::thread::yield_now();
                }
            }
        }
    }

    /// S7: whoever holds the queue when a frame is delivered sends it, whatever it holds the queue for.
    #[test]
    fn no_frame_is_left_behind_by_a_thread_that_holds_the_queue() {
        let (lane, mut far, _poll) = lane();
        let (meet, left_behind) = (Meet::default(), AtomicBool::new(false));
        let rounds = |own| {
            let meet = &meet;
            let left_behind = &left_behind;
            (0..40_000).take_while(move |_| {
                meet.wait(own);
                !left_behind.load(Ordering::Relaxed)
            })
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in rounds(0) {
                    match round % 3 {
                        0 => drop(lane.write_some(1 << 20)),
                        1 => lane.settle(),
                        _ => drop(lane.backlog()),
                    }
                    meet.wait(0);
                }
            });
            for round in rounds(1) {
                let frame = [Outgoing::frame(Header::new(Kind::Ping, 0), &[])];
                // Anywhere into what the other thread does.
                (0..round % 40).for_each(|_| std::hint::spin_loop());
                lane.deliver(frame);
                lane.write();
                meet.wait(1);
                if lane.inbox.lock().frames.is_empty() {
                    far.read_exact(&mut [0; crate::wire::HEADER]).unwrap();
                } else {
                    left_behind.store(true, Ordering::Relaxed);
                }
            }
        });
        assert!(!left_behind.load(Ordering::Relaxed));
    }
}
