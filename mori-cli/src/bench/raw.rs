//! The yardstick: raw blocking sockets between the same two processes, with a thread for each connection on both sides.
//!
//! A connection carries orders of the near side, one after the other. A *stream* moves a number of bytes in blocks, with
//! nothing in between, and a byte at its end that says that they arrived. A *round trip* is what one small transfer cannot
//! do without: a request of 64 bytes and its answer, where the answer of a read and the request of a write carry the piece.
//! The bytes are of no meaning, and whoever connects can make the far side send and receive such bytes, nothing else.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mori_engine::Clock;

use super::plan::Op;
use super::times::Times;
use crate::stop::Stop;

/// Bytes of a stream between two calls of the system.
const BLOCK: usize = 1 << 20;
/// Bytes of a request, and of what answers a write.
const REQUEST: usize = 64;
/// The largest piece of a round trip.
pub const MAX_ROUND_TRIP: u64 = 64 << 10;
/// Connections at once.
const MAX_CONNECTIONS: usize = 64;
/// How long either side may be silent in the middle of an order.
const SILENCE: Duration = Duration::from_secs(30);
/// The pause after the system refused to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Begins each order.
const MAGIC: &[u8; 8] = b"moriraw1";
/// Bytes of an order: the magic, what to do, and three numbers.
const ORDER: usize = 8 + 1 + 24;

/// What a connection is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    op: Op,
    /// Whether it is round trips.
    trips: bool,
    /// Bytes of a stream, or round trips.
    count: u64,
    /// Bytes of a piece of a round trip.
    size: u64,
    /// Bytes of memory that are walked.
    window: u64,
}

impl Order {
    fn encode(self) -> [u8; ORDER] {
        let what = u8::from(self.op == Op::Write) | u8::from(self.trips) << 1;
        let mut bytes = [0; ORDER];
        let numbers = [self.count, self.size, self.window].map(u64::to_le_bytes).concat();
        for (to, from) in bytes.iter_mut().zip(MAGIC.iter().chain(&[what]).chain(&numbers)) {
            *to = *from;
        }
        bytes
    }

    fn decode(bytes: [u8; ORDER]) -> Option<Self> {
        let numbers = bytes.strip_prefix(MAGIC)?;
        let (what, numbers) = numbers.split_first()?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let [count, size, window] = numbers else { return None };
        let op = if what & 1 == 0 { Op::Read } else { Op::Write };
        let [count, size, window] = [count, size, window].map(|number| u64::from_le_bytes(*number));
        (*what < 4).then_some(Self { op, trips: what & 2 != 0, count, size, window })
    }
}

/// The far side: listens, and does what is ordered until it is dropped.
#[derive(Debug)]
pub struct RawServer {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl RawServer {
    /// Starts to listen; a connection walks over at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// When the socket has no address or the thread cannot be started.
    pub fn start(listener: TcpListener, limit: u64) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = Stop::new();
        let thread = std::thread::Builder::new().name("mori-raw".to_owned()).spawn({
            let stop = stop.clone();
            move || accept(&listener, limit, &stop)
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for RawServer {
    /// Stops to accept. Connections end when their near side closes them.
    fn drop(&mut self) {
        self.stop.ask();
        // One connection of ours wakes the thread; if that fails, it is left to the end of the process.
        let woken = crate::control::knock(self.address);
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
    }
}

/// Holds one of the places for connections.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, limit: u64, stop: &Stop) {
    let open = Arc::new(AtomicUsize::new(0));
    while !stop.asked() {
        match listener.accept() {
            Ok(_) if stop.asked() => return,
            Ok((stream, from)) => {
                let before = open.fetch_add(1, Ordering::Relaxed);
                let place = Place(Arc::clone(&open));
                if before >= MAX_CONNECTIONS {
                    tracing::warn!(%from, "turned a raw connection away: {MAX_CONNECTIONS} are open already");
                    continue;
                }
                let serve = move || {
                    let _place = place;
                    if let Err(error) = obey(stream, limit) {
                        tracing::debug!(%from, %error, "a raw connection ended");
                    }
                };
                if let Err(error) = std::thread::Builder::new().name("mori-raw".to_owned()).spawn(serve) {
                    tracing::warn!(%from, %error, "cannot start a thread for a raw connection");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a raw connection");
                stop.wait(ACCEPT_PAUSE);
            }
        }
    }
}

/// Does what is ordered until the near side closes the connection.
fn obey(mut stream: TcpStream, limit: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut memory = Vec::new();
    loop {
        let mut bytes = [0; ORDER];
        // Between two orders the near side may take its time.
        stream.set_read_timeout(None)?;
        match stream.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        stream.set_read_timeout(Some(SILENCE))?;
        let order = Order::decode(bytes).filter(|order| order.window <= limit && order.size <= order.window);
        let order = order.ok_or_else(|| io::Error::other("its order cannot be followed"))?;
        provide(&mut memory, order.window);
        match (order.trips, order.op) {
            (false, Op::Read) => send(&mut stream, &memory, order.count)?,
            (false, Op::Write) => {
                receive(&mut stream, &mut memory, order.count)?;
                stream.write_all(&[1])?;
            }
            (true, op) => answer(&mut stream, &mut memory, op, order)?,
        }
    }
}

/// Makes the memory as long as the window, and touches all of it.
fn provide(memory: &mut Vec<u8>, window: u64) {
    let length = usize::try_from(window).unwrap_or(usize::MAX).max(REQUEST);
    if memory.len() < length {
        *memory = vec![1; length];
    }
}

fn send(stream: &mut TcpStream, memory: &[u8], mut count: u64) -> io::Result<()> {
    for block in memory.chunks(BLOCK).cycle() {
        let length = count.min(block.len() as u64);
        stream.write_all(block.get(..length as usize).unwrap_or(block))?;
        count -= length;
        if count == 0 {
            break;
        }
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, memory: &mut [u8], mut count: u64) -> io::Result<()> {
    while count > 0 {
        for block in memory.chunks_mut(BLOCK) {
            let length = count.min(block.len() as u64);
            stream.read_exact(block.get_mut(..length as usize).unwrap_or_default())?;
            count -= length;
        }
    }
    Ok(())
}

/// The places of pieces of `size` bytes in a memory, again and again.
fn places(memory: usize, size: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let count = (memory / size.max(1)).max(1);
    (0..count).cycle().map(move |index| index * size..(index + 1) * size)
}

fn answer(stream: &mut TcpStream, memory: &mut [u8], op: Op, order: Order) -> io::Result<()> {
    let mut request = [0; REQUEST];
    for (place, _) in places(memory.len(), order.size).zip(0..order.count) {
        stream.read_exact(&mut request)?;
        let piece = memory.get_mut(place).unwrap_or_default();
        match op {
            Op::Read => stream.write_all(piece)?,
            Op::Write => {
                stream.read_exact(piece)?;
                stream.write_all(&request)?;
            }
        }
    }
    Ok(())
}

/// One connection of the near side.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    memory: Vec<u8>,
}

/// The near side.
#[derive(Debug)]
pub struct RawClient {
    links: Vec<Link>,
    window: u64,
    clock: Clock,
}

impl RawClient {
    /// Connects to a far side, with regions of `total` bytes over all connections.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn connect(host: &str, port: u16, connections: u16, total: u64) -> io::Result<Self> {
        let connections = connections.max(1);
        let window = (total / u64::from(connections)).max(total.min(MAX_ROUND_TRIP));
        let mut links = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect((host, port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(SILENCE))?;
            let mut memory = Vec::new();
            provide(&mut memory, window);
            links.push(Link { stream, memory });
        }
        let mut this = Self { links, window, clock: Clock::system() };
        // With the first order the far side provides its memory; that is no part of a measurement.
        this.stream(Op::Read, 0)?;
        Ok(this)
    }

    /// Moves this many bytes, split evenly over the connections; says how long it took.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn stream(&mut self, op: Op, bytes: u64) -> io::Result<Duration> {
        let (window, count) = (self.window, bytes / self.links.len() as u64);
        let order = Order { op, trips: false, count: count.max(1), size: 0, window };
        let start = self.clock.now();
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.links.iter_mut().map(|link| scope.spawn(|| link.stream(order))).collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a thread of the raw sockets panicked")))
            })
        })?;
        Ok(self.clock.now().saturating_duration_since(start))
    }

    /// Makes round trips of a piece of `size` bytes over one connection, and records how long each takes; says how
    /// long all took.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn trips(&mut self, op: Op, size: u64, count: u64, times: &mut Times) -> io::Result<Duration> {
        let order = Order { op, trips: true, count, size, window: self.window };
        let Some(link) = self.links.first_mut() else { return Ok(Duration::ZERO) };
        link.stream.write_all(&order.encode())?;
        let (start, mut request) = (self.clock.now(), [0; REQUEST]);
        let mut last = start;
        for (place, _) in places(link.memory.len(), size).zip(0..count) {
            let piece = link.memory.get_mut(place).unwrap_or_default();
            match op {
                Op::Read => {
                    link.stream.write_all(&request)?;
                    link.stream.read_exact(piece)?;
                }
                Op::Write => {
                    write_both(&mut link.stream, &request, piece)?;
                    link.stream.read_exact(&mut request)?;
                }
            }
            let now = self.clock.now();
            times.record(now.saturating_duration_since(last));
            last = now;
        }
        Ok(last.saturating_duration_since(start))
    }
}

impl Link {
    fn stream(&mut self, order: Order) -> io::Result<()> {
        self.stream.write_all(&order.encode())?;
        match order.op {
            Op::Read => receive(&mut self.stream, &mut self.memory, order.count),
            Op::Write => {
                send(&mut self.stream, &self.memory, order.count)?;
                self.stream.read_exact(&mut [0])
            }
        }
    }
}

/// Writes both in one call of the system if it takes them.
fn write_both(stream: &mut TcpStream, first: &[u8], second: &[u8]) -> io::Result<()> {
    let written = match stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
        written => written?,
    };
    stream.write_all(first.get(written..).unwrap_or_default())?;
    stream.write_all(second.get(written.saturating_sub(first.len())..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        for (op, trips) in [(Op::Read, false), (Op::Write, true)] {
            let order = Order { op, trips, count: 1 << 40, size: 7, window: u64::MAX };
            assert_eq!(Order::decode(order.encode()), Some(order));
        }
        assert_eq!(Order::decode([0; ORDER]), None);
    }

    #[test]
    fn streams_and_round_trips_go_both_ways() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let server = RawServer::start(listener, 1 << 20).expect("start");
        let mut client = RawClient::connect("127.0.0.1", server.port(), 3, 1 << 20).expect("connect");
        let mut times = Times::new();
        for op in [Op::Read, Op::Write] {
            client.stream(op, 5 << 20).expect("moved");
            client.trips(op, 4096, 20, &mut times).expect("answered");
        }
        assert_eq!(times.count(), 40);
    }

    #[test]
    fn more_memory_than_the_far_side_gives_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let server = RawServer::start(listener, 1 << 10).expect("start");
        assert!(RawClient::connect("127.0.0.1", server.port(), 1, 1 << 20).is_err());
        assert!(RawClient::connect("127.0.0.1", server.port(), 1, 1 << 10).is_ok());
    }
}
