//! The replay: requests one after the other, each as one batch of reads, every byte checked.
//!
//! For each request the blocks that the cache has are pinned and reused, slots are reserved for the others, and these are
//! read as one batch with one bound. A request that needs more blocks than the cache has slots is served in *waves*, each
//! as large as the cache allows, under the one bound. What fails is reported with its request and blocks, and the
//! replay goes on; only a lost peer ends it, unless it is told to keep going: then it waits for the peer to come back,
//! reads what is missing again, and goes on.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::cache::{Acquired, BlockCache};
use crate::fetch::{BlockRead, FailureKind, Fetcher, Outcome, ReadPiece, ReconnectError};
use crate::layout::Layout;
use crate::pace::Pace;
use crate::pattern::Mismatch;
use crate::tally::{FailedRequest, Tally};
use crate::trace::{Request, TraceError};

/// How often one wave is read again after the peer was lost, before the replay gives up.
const MAX_LOSSES_IN_A_WAVE: u32 = 16;
/// The first pause between two tries to reach a lost peer; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What the replay is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The bound on the waits of one request together.
    pub bound: Duration,
    /// How long a lost peer may take to come back; none ends the replay when a peer is lost.
    pub keep_going: Option<Duration>,
    /// Whether bytes are checked.
    pub verify: bool,
    /// By which factor the trace's clock runs faster than ours; none ignores it.
    pub speed: Option<f64>,
}

/// Hears what happens while it happens.
pub trait Watcher {
    /// A request is over, well or not.
    fn request_over(&mut self, tally: &Tally);
    /// Blocks of a request failed.
    fn failed(&mut self, request: &FailedRequest);
    /// The peer was lost while blocks of a request were read.
    fn peer_lost(&mut self, peer: &str, request: u64, blocks: &[u64], message: &str);
    /// The peer, or the one that took its place, is there again.
    fn reconnected(&mut self, peer: &str);
}

/// Why a replay ended.
#[derive(Debug)]
pub enum End {
    /// The trace is over.
    Finished,
    /// Somebody asked to stop.
    Interrupted,
    /// The trace cannot be read further.
    BadTrace(TraceError),
    /// A peer was lost, and did not come back, or nobody waited for it.
    PeerLost {
        /// Which.
        peer: String,
        /// Why it is not there again.
        message: String,
    },
    /// The peer that came back is not one to go on with.
    Unusable {
        /// Which.
        peer: String,
        /// Why not.
        message: String,
    },
    /// The replay asked for bytes outside of its pool; a bug of ours.
    Internal(String),
}

/// A replay in progress.
pub struct Replay<'a> {
    fetcher: &'a mut dyn Fetcher,
    watcher: &'a mut dyn Watcher,
    pace: &'a dyn Pace,
    pool: Layout,
    cache: BlockCache,
    options: Options,
    tally: Tally,
}

impl std::fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay")
            .field("options", &self.options)
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}

/// One request while it is served.
struct Serving {
    record: FailedRequest,
    deadline: Duration,
    took: Duration,
}

/// Blocks that are pinned together: as many as the cache allows.
#[derive(Default)]
struct Wave {
    pinned: Vec<u64>,
    missing: Vec<BlockRead>,
}

impl<'a> Replay<'a> {
    /// A replay into a local pool laid out as `pool`; `seed` decides the order in which its slots are used.
    pub fn new(
        fetcher: &'a mut dyn Fetcher,
        watcher: &'a mut dyn Watcher,
        pace: &'a dyn Pace,
        pool: Layout,
        seed: u64,
        options: Options,
    ) -> Self {
        let cache = BlockCache::new(pool.slots(), seed);
        Self { fetcher, watcher, pace, pool, cache, options, tally: Tally::new() }
    }

    /// Replays all requests, or those up to the end that it returns.
    pub fn run(mut self, requests: impl IntoIterator<Item = Result<Request, TraceError>>) -> (Tally, End) {
        let start = self.pace.now();
        let mut end = End::Finished;
        for (number, request) in (1..).zip(requests) {
            let served = match request {
                Ok(request) => self.request(start, number, &request),
                Err(error) => ControlFlow::Break(End::BadTrace(error)),
            };
            if let ControlFlow::Break(why) = served {
                end = why;
                break;
            }
        }
        self.tally.wall = self.pace.now().saturating_sub(start);
        self.tally.evictions = self.cache.evictions();
        (self.tally, end)
    }

    fn request(&mut self, start: Duration, number: u64, request: &Request) -> ControlFlow<End> {
        let stopped = match self.options.speed {
            Some(speed) => self.pace.wait_until(start.saturating_add(due(request.timestamp_ms, speed))),
            None => self.pace.stopped(),
        };
        if stopped {
            return ControlFlow::Break(End::Interrupted);
        }
        self.tally.blocks_referenced += request.hash_ids.len() as u64;
        let mut serving = Serving {
            record: FailedRequest { number, line: request.line, groups: Vec::new() },
            deadline: self.pace.now().saturating_add(self.options.bound),
            took: Duration::ZERO,
        };
        let flow = self.waves(&request.hash_ids, &mut serving);
        if !serving.record.groups.is_empty() {
            self.watcher.failed(&serving.record);
            self.tally.request_failed(serving.record);
        } else if flow.is_break() {
            self.tally.requests_interrupted += 1;
        } else {
            self.tally.request_done(serving.took);
        }
        self.watcher.request_over(&self.tally);
        flow
    }

    fn waves(&mut self, blocks: &[u64], serving: &mut Serving) -> ControlFlow<End> {
        let mut rest = blocks;
        while !rest.is_empty() {
            self.take_quiet();
            let (wave, taken) = self.gather(rest);
            if taken == 0 {
                self.no_room(rest, serving);
                break;
            }
            rest = rest.get(taken..).unwrap_or_default();
            let flow = self.fetch(&wave, serving);
            // The start of a prompt is shared more than its end, so it is released last and stays longest.
            for block in wave.pinned.iter().rev() {
                self.cache.release(*block);
            }
            if let ControlFlow::Break(end) = flow {
                if let End::PeerLost { message, .. } | End::Unusable { message, .. } = &end {
                    self.not_started(rest, message, serving);
                }
                return ControlFlow::Break(end);
            }
        }
        ControlFlow::Continue(())
    }

    fn take_quiet(&mut self) {
        if self.cache.quarantined() > 0 {
            for slot in self.fetcher.take_quiet() {
                self.cache.give_back(slot);
            }
        }
    }

    /// Pins blocks from the front of `blocks` as long as the cache has slots, and says how many.
    fn gather(&mut self, blocks: &[u64]) -> (Wave, usize) {
        let homes = self.fetcher.remote().homes();
        let mut wave = Wave::default();
        for block in blocks {
            match self.cache.acquire(*block) {
                Acquired::Here(_) => self.tally.blocks_reused += 1,
                Acquired::Reserved(slot) => {
                    wave.missing.push(BlockRead {
                        block: *block,
                        slot,
                        home: homes.of(*block),
                        pieces: Vec::new(),
                    });
                }
                Acquired::Full => break,
            }
            wave.pinned.push(*block);
        }
        let taken = wave.pinned.len();
        (wave, taken)
    }

    fn no_room(&mut self, blocks: &[u64], serving: &mut Serving) {
        let message =
            format!("late transfers may still write to all {} slots of the cache", self.cache.slots());
        for block in blocks {
            serving.record.add(*block, FailureKind::NoRoom, &message);
        }
    }

    /// Blocks of later waves fail with the peer unless they are here.
    fn not_started(&mut self, blocks: &[u64], message: &str, serving: &mut Serving) {
        let absent: HashSet<u64> =
            blocks.iter().copied().filter(|block| !self.cache.contains(*block)).collect();
        let mut named = HashSet::new();
        for block in blocks.iter().filter(|block| absent.contains(block)) {
            if named.insert(*block) {
                serving.record.add(*block, FailureKind::PeerLost, message);
            }
        }
    }

    /// Reads the missing blocks of a wave, again and again if the peer is lost and it may.
    fn fetch(&mut self, wave: &Wave, serving: &mut Serving) -> ControlFlow<End> {
        let mut todo = wave.missing.clone();
        for _ in 0..MAX_LOSSES_IN_A_WAVE {
            if todo.is_empty() {
                return ControlFlow::Continue(());
            }
            self.place(&mut todo)?;
            let (lost, message) = self.read(&todo, serving)?;
            if lost.is_empty() {
                return ControlFlow::Continue(());
            }
            self.lost(&lost, &message, serving)?;
            // The peer took its time to come back; the blocks get the whole bound again.
            serving.deadline = self.pace.now().saturating_add(self.options.bound);
            todo = lost;
        }
        let message = format!("it was lost {MAX_LOSSES_IN_A_WAVE} times over the same blocks");
        self.give_up(&todo, &message, serving)
    }

    /// Sets the pieces of each read for the pool of the peer as it is now.
    fn place(&mut self, reads: &mut [BlockRead]) -> ControlFlow<End> {
        let remote = self.fetcher.remote();
        let (homes, layout) = (remote.homes(), remote.layout);
        for read in &mut *reads {
            read.home = homes.of(read.block);
            read.pieces.clear();
            read.pieces.extend(
                layout.pieces(read.home).zip(self.pool.pieces(read.slot)).map(|(from, to)| ReadPiece {
                    remote: from.offset,
                    local: to.offset,
                    len: to.len,
                }),
            );
        }
        if self.options.verify {
            for piece in reads.iter().flat_map(|read| &read.pieces) {
                if let Err(why) = self.fetcher.spoil(piece.local, piece.len) {
                    return ControlFlow::Break(End::Internal(why));
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads blocks once. Gives back those that were lost with the peer, and why.
    fn read(
        &mut self,
        reads: &[BlockRead],
        serving: &mut Serving,
    ) -> ControlFlow<End, (Vec<BlockRead>, String)> {
        let before = self.pace.now();
        let outcomes = self.fetcher.read_blocks(reads, serving.deadline.saturating_sub(before));
        let took = self.pace.now().saturating_sub(before);
        serving.took += took;
        self.tally.fetching += took;

        let (mut lost, mut why, mut interrupted) = (Vec::new(), String::new(), false);
        let mut outcomes = outcomes.into_iter();
        for read in reads {
            let missing = || Outcome::Failed {
                kind: FailureKind::Transport,
                message: "the transport said nothing about it".to_owned(),
            };
            match outcomes.next().unwrap_or_else(missing) {
                Outcome::Arrived => self.arrived(read, serving)?,
                Outcome::Failed { kind: FailureKind::PeerLost, message } => {
                    lost.push(read.clone());
                    why = message;
                }
                Outcome::Failed { kind, message } => serving.record.add(read.block, kind, &message),
                Outcome::Late { message, quiet } => {
                    serving.record.add(read.block, FailureKind::Late, &message);
                    self.keep_back(read, quiet);
                }
                Outcome::Interrupted { quiet } => {
                    interrupted = true;
                    self.keep_back(read, quiet);
                }
            }
        }
        if interrupted { ControlFlow::Break(End::Interrupted) } else { ControlFlow::Continue((lost, why)) }
    }

    fn keep_back(&mut self, read: &BlockRead, quiet: bool) {
        if !quiet {
            self.cache.quarantine(read.block);
        }
    }

    fn arrived(&mut self, read: &BlockRead, serving: &mut Serving) -> ControlFlow<End> {
        if self.options.verify {
            let before = self.pace.now();
            let verdict = self.verify(read);
            self.tally.verifying += self.pace.now().saturating_sub(before);
            match verdict {
                Ok(None) => {}
                Ok(Some(message)) => {
                    serving.record.add(read.block, FailureKind::WrongBytes, &message);
                    return ControlFlow::Continue(());
                }
                Err(why) => return ControlFlow::Break(End::Internal(why)),
            }
        }
        self.cache.filled(read.block);
        self.tally.blocks_fetched += 1;
        self.tally.bytes += self.pool.shape().block_bytes();
        ControlFlow::Continue(())
    }

    /// Checks every byte of a block; the first wrong one in words.
    fn verify(&mut self, read: &BlockRead) -> Result<Option<String>, String> {
        for (number, piece) in (0..).zip(&read.pieces) {
            let pattern = self.fetcher.remote().pattern(read.home, number);
            let mut wrong: Option<Mismatch> = None;
            self.fetcher.inspect(piece.local, piece.len, &mut |position, bytes| {
                wrong = pattern.verify(position, bytes).err();
                if wrong.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if let Some(wrong) = wrong {
                let place = self.pool.shape().place(number, wrong.position);
                return Ok(Some(format!(
                    "{place} is {:#04x} and must be {:#04x} (slot {}, home {})",
                    wrong.found, wrong.expected, read.slot, read.home
                )));
            }
        }
        Ok(None)
    }

    /// The peer was lost with these blocks: ends the replay, or waits for the peer to come back.
    fn lost(&mut self, lost: &[BlockRead], message: &str, serving: &mut Serving) -> ControlFlow<End> {
        self.tally.peers_lost += 1;
        let peer = self.fetcher.remote().peer.clone();
        let blocks: Vec<u64> = lost.iter().map(|read| read.block).collect();
        self.watcher.peer_lost(&peer, serving.record.number, &blocks, message);
        let Some(bound) = self.options.keep_going else {
            return self.give_up(lost, message, serving);
        };
        let before = self.pace.now();
        let flow = self.come_back(before.saturating_add(bound));
        serving.took += self.pace.now().saturating_sub(before);
        match flow {
            Ok(()) => {
                self.tally.reconnects += 1;
                let peer = self.fetcher.remote().peer.clone();
                self.watcher.reconnected(&peer);
                ControlFlow::Continue(())
            }
            Err(None) => ControlFlow::Break(End::Interrupted),
            Err(Some(ReconnectError::NotYet(why))) => {
                let message = format!("{message}; not there again within {bound:?}: {why}");
                self.give_up(lost, &message, serving)
            }
            Err(Some(ReconnectError::Never(why))) => {
                self.record_lost(lost, &why, serving);
                ControlFlow::Break(End::Unusable { peer, message: why })
            }
        }
    }

    /// Tries to reach the peer until it is there or `point` has come; no error means that somebody asked to stop.
    fn come_back(&mut self, point: Duration) -> Result<(), Option<ReconnectError>> {
        let mut pause = FIRST_PAUSE;
        loop {
            if self.pace.stopped() {
                return Err(None);
            }
            let error = match self.fetcher.reconnect() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if matches!(error, ReconnectError::Never(_)) || self.pace.now() >= point {
                return Err(Some(error));
            }
            let next = self.pace.now().saturating_add(pause).min(point);
            if self.pace.wait_until(next) {
                return Err(None);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn give_up(&mut self, lost: &[BlockRead], message: &str, serving: &mut Serving) -> ControlFlow<End> {
        self.record_lost(lost, message, serving);
        let peer = self.fetcher.remote().peer.clone();
        ControlFlow::Break(End::PeerLost { peer, message: message.to_owned() })
    }

    fn record_lost(&mut self, lost: &[BlockRead], message: &str, serving: &mut Serving) {
        for read in lost {
            serving.record.add(read.block, FailureKind::PeerLost, message);
        }
    }
}

/// When a request is due, from the start of the replay.
fn due(timestamp_ms: u64, speed: f64) -> Duration {
    Duration::try_from_secs_f64(timestamp_ms as f64 / 1000.0 / speed).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
