//! The limit beside which a row is measured: raw sockets for TCP, bare copies for the copies between processes.

use std::io;
use std::time::Duration;

use mori_engine::{BareProcess, Clock, MemoryDesc, Piece, Region};

use super::plan::{Op, Row, Walk};
use super::raw::RawClient;
use super::times::Times;

/// Pieces of at least so many bytes get a call of the system each; smaller ones share it.
const OWN_CALL: u64 = 64 << 10;
/// Pieces of one call.
const CALL_PIECES: usize = 1024;

/// What is measured beside the transport.
#[derive(Debug)]
pub enum Yardstick {
    /// Raw blocking sockets.
    Sockets(RawClient),
    /// Bare calls of the system that copies between processes.
    Copies(BareCopies),
}

impl Yardstick {
    /// One transfer at a time, each with its time; says how long all took.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn trips(&mut self, row: Row, walk: &Walk, count: u64, times: &mut Times) -> io::Result<Duration> {
        match self {
            Self::Sockets(sockets) => sockets.trips(row.op, row.size, count, times),
            Self::Copies(copies) => copies.trips(row.op, walk, count, times),
        }
    }

    /// So many transfers' bytes as fast as it goes; says how long it took.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn stream(&mut self, row: Row, walk: &Walk, transfers: u64) -> io::Result<Duration> {
        match self {
            Self::Sockets(sockets) => sockets.stream(row.op, transfers.saturating_mul(row.bytes())),
            Self::Copies(copies) => copies.stream(row, walk, transfers),
        }
    }
}

/// Bare copies between our memory and the serving process's, by as many threads as the transport has.
#[derive(Debug)]
pub struct BareCopies {
    process: BareProcess,
    local: Region,
    source: u64,
    sink: u64,
    threads: u64,
    clock: Clock,
}

impl BareCopies {
    /// Copies with the process that has these two regions.
    ///
    /// # Errors
    ///
    /// When it is no other process of this host.
    pub fn new(
        process: u32,
        local: Region,
        source: &MemoryDesc,
        sink: &MemoryDesc,
        threads: u16,
    ) -> mori_engine::Result<Self> {
        let threads = u64::from(threads.max(1));
        let (source, sink) = (source.address, sink.address);
        Ok(Self { process: BareProcess::new(process)?, local, source, sink, threads, clock: Clock::system() })
    }

    fn copy(&self, op: Op, pieces: &[Piece]) -> io::Result<()> {
        let address = match op {
            Op::Read => self.source,
            Op::Write => self.sink,
        };
        self.process.copy(op.engine(), &self.local, address, pieces).map_err(io::Error::other)
    }

    fn trips(&self, op: Op, walk: &Walk, count: u64, times: &mut Times) -> io::Result<Duration> {
        let start = self.clock.now();
        let mut last = start;
        for number in 0..count {
            self.copy(op, walk.transfer(number))?;
            let now = self.clock.now();
            times.record(now.saturating_duration_since(last));
            last = now;
        }
        Ok(last.saturating_duration_since(start))
    }

    fn stream(&self, row: Row, walk: &Walk, transfers: u64) -> io::Result<Duration> {
        let start = self.clock.now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| scope.spawn(move || self.share(row, walk, transfers, thread)))
                .collect();
            let panicked = || io::Error::other("a thread of the bare copies panicked");
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
        })?;
        Ok(self.clock.now().saturating_duration_since(start))
    }

    /// One thread's share of each transfer: some of its pieces, or a part of a single one.
    fn share(&self, row: Row, walk: &Walk, transfers: u64, thread: u64) -> io::Result<()> {
        let at_once = if row.size < OWN_CALL { CALL_PIECES } else { 1 };
        for number in 0..transfers {
            let pieces = walk.transfer(number);
            if let [single] = pieces {
                let cut = |share: u64| {
                    (u128::from(single.length) * u128::from(share) / u128::from(self.threads)) as u64
                };
                let (from, to) = (cut(thread), cut(thread + 1));
                self.copy(row.op, &[Piece::new(single.local + from, single.remote + from, to - from)])?;
                continue;
            }
            let share = pieces.len().div_ceil(self.threads as usize).max(1);
            let own = pieces.chunks(share).nth(thread as usize).unwrap_or_default();
            own.chunks(at_once).try_for_each(|pieces| self.copy(row.op, pieces))?;
        }
        Ok(())
    }
}
