//! The replay over a fetcher in memory that fails on demand, with a clock that only the replay moves.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::*;
use crate::fetch::Remote;
use crate::model::{LLAMA_3_8B, Pieces, Shape};
use crate::trace::LineProblem;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Fail(FailureKind),
    Late {
        quiet: bool,
    },
    Interrupt,
    /// Arrives with one bit flipped in that piece, at that position.
    Flip(u32, u64),
    /// Says that it arrived and writes nothing.
    Nothing,
    /// Arrives with two of its pieces exchanged.
    Exchange,
}

type Script<'a> = Box<dyn FnMut(usize, &BlockRead) -> Fault + 'a>;

/// A serving process and a local pool in memory.
struct Fake<'a> {
    remote: Remote,
    local: Vec<u8>,
    script: Script<'a>,
    batches: RefCell<Vec<Vec<BlockRead>>>,
    bounds: Vec<Duration>,
    quiet: Vec<u32>,
    come_back: VecDeque<Result<Remote, ReconnectError>>,
    pace: &'a FakePace,
    read_takes: Duration,
}

fn shape() -> Shape {
    LLAMA_3_8B.shape(8192, Pieces::Layer).expect("fits")
}

fn remote(slots: u32, seed: u64) -> Remote {
    let (layout, transport) = (Layout::new(shape(), slots).expect("fits"), "tcp".to_owned());
    Remote { peer: format!("peer-{seed}"), layout, seed, transport, detour: None }
}

impl<'a> Fake<'a> {
    fn new(pace: &'a FakePace, pool: &Layout, script: impl FnMut(usize, &BlockRead) -> Fault + 'a) -> Self {
        Self {
            remote: remote(64, 11),
            local: vec![0; pool.total_bytes() as usize],
            script: Box::new(script),
            batches: RefCell::default(),
            bounds: Vec::new(),
            quiet: Vec::new(),
            come_back: VecDeque::new(),
            pace,
            read_takes: Duration::from_millis(1),
        }
    }

    fn copy(&mut self, read: &BlockRead, exchange: bool) {
        for (number, piece) in (0..).zip(&read.pieces) {
            let from = if exchange && number < 2 { 1 - number } else { number };
            assert_eq!(Some(piece.remote), self.remote.layout.piece(read.home, number).map(|p| p.offset));
            let range = piece.local as usize..(piece.local + piece.len) as usize;
            self.remote.pattern(read.home, from).fill(0, &mut self.local[range]);
        }
    }
}

impl Fetcher for Fake<'_> {
    fn remote(&self) -> &Remote {
        &self.remote
    }

    fn read_blocks(&mut self, reads: &[BlockRead], bound: Duration) -> Vec<Outcome> {
        let batch = self.batches.borrow().len();
        self.batches.borrow_mut().push(reads.to_vec());
        self.bounds.push(bound);
        self.pace.now.set(self.pace.now.get() + self.read_takes);
        let mut outcomes = Vec::new();
        for read in reads {
            let fault = (self.script)(batch, read);
            let message = "as scripted".to_owned();
            outcomes.push(match fault {
                Fault::Fail(kind) => Outcome::Failed { kind, message },
                Fault::Late { quiet } => Outcome::Late { message, quiet },
                Fault::Interrupt => Outcome::Interrupted { quiet: true },
                Fault::Nothing => Outcome::Arrived,
                Fault::None | Fault::Flip(..) | Fault::Exchange => {
                    self.copy(read, fault == Fault::Exchange);
                    if let Fault::Flip(piece, position) = fault {
                        self.local[(read.pieces[piece as usize].local + position) as usize] ^= 0x40;
                    }
                    Outcome::Arrived
                }
            });
        }
        outcomes
    }

    fn take_quiet(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.quiet)
    }

    fn inspect(
        &mut self,
        offset: u64,
        len: u64,
        look: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let bytes = self.local.get(offset as usize..(offset + len) as usize).ok_or("outside")?;
        // Two uneven runs, as a fetcher may give them.
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        if look(0, head).is_continue() {
            let _ = look(head.len() as u64, tail);
        }
        Ok(())
    }

    fn spoil(&mut self, offset: u64, len: u64) -> Result<(), String> {
        self.local[offset as usize] ^= 0xff;
        self.local[(offset + len - 1) as usize] ^= 0xff;
        Ok(())
    }

    fn reconnect(&mut self) -> Result<(), ReconnectError> {
        let answer = self.come_back.pop_front();
        self.remote = answer.unwrap_or_else(|| Err(ReconnectError::NotYet("nobody there".to_owned())))?;
        Ok(())
    }
}

#[derive(Default)]
struct FakePace {
    now: Cell<Duration>,
    stop_at: Cell<Option<Duration>>,
}

impl Pace for FakePace {
    fn now(&self) -> Duration {
        self.now.get()
    }

    fn wait_until(&self, point: Duration) -> bool {
        let point = self.stop_at.get().map_or(point, |stop| stop.min(point));
        self.now.set(self.now.get().max(point));
        self.stopped()
    }

    fn stopped(&self) -> bool {
        self.stop_at.get().is_some_and(|stop| self.now.get() >= stop)
    }
}

#[derive(Default)]
struct Heard {
    failed: Vec<FailedRequest>,
    lost: Vec<(String, u64, Vec<u64>)>,
    back: Vec<String>,
    over: usize,
}

impl Watcher for Heard {
    fn request_over(&mut self, _: &Tally) {
        self.over += 1;
    }
    fn failed(&mut self, request: &FailedRequest) {
        self.failed.push(request.clone());
    }
    fn peer_lost(&mut self, peer: &str, request: u64, blocks: &[u64], _: &str) {
        self.lost.push((peer.to_owned(), request, blocks.to_vec()));
    }
    fn reconnected(&mut self, peer: &str) {
        self.back.push(peer.to_owned());
    }
}

fn request(line: u64, hash_ids: &[u64]) -> Result<Request, TraceError> {
    let input_length = hash_ids.len() as u64 * 512;
    Ok(Request {
        line,
        timestamp_ms: line * 1000,
        input_length,
        output_length: 1,
        hash_ids: hash_ids.to_vec(),
    })
}

fn requests(all: &[&[u64]]) -> Vec<Result<Request, TraceError>> {
    (1..).zip(all).map(|(line, ids)| request(line, ids)).collect()
}

fn options() -> Options {
    Options { bound: Duration::from_secs(5), keep_going: None, verify: true, speed: None }
}

struct Ran {
    tally: Tally,
    end: End,
    heard: Heard,
    batches: Vec<Vec<u64>>,
    bounds: Vec<Duration>,
    now: Duration,
}

struct Run<'a> {
    pace: &'a FakePace,
    slots: u32,
    options: Options,
    come_back: Vec<Result<Remote, ReconnectError>>,
}

impl<'a> Run<'a> {
    fn new(pace: &'a FakePace, slots: u32) -> Self {
        Self { pace, slots, options: options(), come_back: Vec::new() }
    }

    fn go(self, trace: &[&[u64]], script: impl FnMut(usize, &BlockRead) -> Fault) -> Ran {
        self.with(requests(trace), script)
    }

    fn with(
        self,
        trace: Vec<Result<Request, TraceError>>,
        script: impl FnMut(usize, &BlockRead) -> Fault,
    ) -> Ran {
        let pool = Layout::new(shape(), self.slots).expect("fits");
        let mut fake = Fake::new(self.pace, &pool, script);
        fake.come_back.extend(self.come_back);
        let mut heard = Heard::default();
        let replay = Replay::new(&mut fake, &mut heard, self.pace, pool, 1, self.options);
        let (tally, end) = replay.run(trace);
        let batches = fake.batches.take();
        let batches = batches.iter().map(|batch| batch.iter().map(|read| read.block).collect()).collect();
        Ran { tally, end, heard, batches, bounds: fake.bounds, now: self.pace.now() }
    }
}

fn good(_: usize, _: &BlockRead) -> Fault {
    Fault::None
}

#[test]
fn missing_blocks_are_one_batch_and_known_ones_are_reused() {
    let pace = FakePace::default();
    let ran = Run::new(&pace, 16).go(&[&[0, 1, 2], &[0, 1, 3, 4], &[0, 1, 2]], good);
    assert!(matches!(ran.end, End::Finished));
    assert_eq!(ran.batches, [vec![0, 1, 2], vec![3, 4]], "a request without missing blocks reads nothing");
    assert_eq!((ran.tally.requests_done, ran.tally.blocks_failed()), (3, 0));
    assert_eq!((ran.tally.blocks_referenced, ran.tally.blocks_reused, ran.tally.blocks_fetched), (10, 5, 5));
    assert_eq!(ran.tally.bytes, 5 * shape().block_bytes());
    assert_eq!(ran.tally.fetching, Duration::from_millis(2));
    assert_eq!(ran.bounds, [Duration::from_secs(5); 2]);
    assert_eq!(ran.heard.over, 3);
}

#[test]
fn evicted_blocks_are_fetched_again() {
    let pace = FakePace::default();
    let ran = Run::new(&pace, 3).go(&[&[0, 1, 2], &[0, 3, 4], &[0, 1]], good);
    assert_eq!(ran.batches, [vec![0, 1, 2], vec![3, 4], vec![1]]);
    assert_eq!(ran.tally.evictions, 3);
}

#[test]
fn a_request_larger_than_the_cache_comes_in_waves_under_one_bound() {
    let pace = FakePace::default();
    let ran = Run::new(&pace, 4).go(&[&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]], good);
    assert_eq!(ran.batches, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
    assert_eq!(ran.bounds, [5000, 4999, 4998].map(Duration::from_millis));
    assert_eq!((ran.tally.requests_done, ran.tally.blocks_fetched), (1, 10));
    assert!(ran.tally.time_at(1.0) >= Duration::from_millis(3));
}

#[test]
fn a_block_that_stands_twice_in_a_request_is_fetched_once() {
    let pace = FakePace::default();
    let ran = Run::new(&pace, 4).go(&[&[7, 7, 8, 7], &[7]], good);
    assert_eq!(ran.batches, [vec![7, 8]]);
    assert_eq!(ran.tally.requests_done, 2);
}

#[test]
fn a_wrong_byte_is_named_with_its_place_and_the_replay_goes_on() {
    let pace = FakePace::default();
    let ran = Run::new(&pace, 8).go(&[&[0, 1], &[1, 2]], |batch, read| match (batch, read.block) {
        (0, 1) => Fault::Flip(5, 70),
        _ => Fault::None,
    });
    assert!(matches!(ran.end, End::Finished));
    assert_eq!(ran.batches, [vec![0, 1], vec![1, 2]], "a wrong block is not kept");
    assert_eq!(ran.tally.failures(FailureKind::WrongBytes), 1);
    let text = ran.heard.failed[0].to_string();
    assert!(
        text.contains("request 1 (line 1 of the trace): 1 block failed, wrong bytes: 1: layer 5, K, byte 70"),
        "{text}"
    );
}

#[test]
fn exchanged_pieces_and_writes_that_never_happened_are_found() {
    for fault in [Fault::Exchange, Fault::Nothing] {
        let pace = FakePace::default();
        let ran = Run::new(&pace, 8).go(&[&[0, 1]], |_, _| fault);
        assert_eq!(ran.tally.failures(FailureKind::WrongBytes), 2, "{fault:?}");
    }
}

#[test]
fn a_write_that_never_happened_is_found_even_where_the_bytes_were_right_before() {
    let pace = FakePace::default();
    // One slot: block 0 and block 64 share a home and, here, the local slot.
    let ran = Run::new(&pace, 1)
        .go(&[&[0], &[64]], |batch, _| if batch == 1 { Fault::Nothing } else { Fault::None });
    assert_eq!(ran.tally.failures(FailureKind::WrongBytes), 1);
}

#[test]
fn without_verification_nothing_is_looked_at() {
    let pace = FakePace::default();
    let mut run = Run::new(&pace, 8);
    run.options.verify = false;
    let ran = run.go(&[&[0, 1]], |_, _| Fault::Nothing);
    assert_eq!((ran.tally.requests_done, ran.tally.verifying), (1, Duration::ZERO));
}

#[test]
fn failed_and_late_blocks_are_reported_and_fetched_again_when_needed() {
    let pace = FakePace::default();
    let ran = Run::new(&pace, 8).go(&[&[0, 1, 2], &[0, 1, 2]], |batch, read| match (batch, read.block) {
        (0, 1) => Fault::Fail(FailureKind::Refused),
        (0, 2) => Fault::Late { quiet: true },
        _ => Fault::None,
    });
    assert_eq!(ran.batches, [vec![0, 1, 2], vec![1, 2]]);
    assert_eq!((ran.tally.requests_failed, ran.tally.requests_done), (1, 1));
    assert_eq!(ran.tally.failures(FailureKind::Refused), 1);
    assert_eq!(ran.tally.failures(FailureKind::Late), 1);
    assert_eq!(ran.heard.failed[0].blocks(), 2);
}

#[test]
fn a_slot_that_may_still_be_written_to_is_not_used_until_it_is_quiet() {
    let pool = Layout::new(shape(), 2).expect("fits");
    let pace = FakePace::default();
    let slot = Cell::new(None);
    let mut fake = Fake::new(&pace, &pool, |batch, read| {
        if batch == 0 {
            slot.set(Some(read.slot));
            return Fault::Late { quiet: false };
        }
        assert_ne!(Some(read.slot), slot.get(), "in quarantine");
        Fault::None
    });
    let mut heard = Heard::default();
    let trace = requests(&[&[0], &[1], &[2], &[3, 4]]);
    let (tally, _) = Replay::new(&mut fake, &mut heard, &pace, pool, 1, options()).run(trace);
    assert_eq!((tally.requests_done, tally.requests_failed), (3, 1));
    assert_eq!(fake.batches.take().len(), 5, "one slot left: the last request takes two waves");
}

#[test]
fn when_every_slot_is_in_quarantine_blocks_fail_until_one_is_quiet() {
    let pool = Layout::new(shape(), 1).expect("fits");
    let pace = FakePace::default();
    let mut fake =
        Fake::new(
            &pace,
            &pool,
            |batch, _| if batch == 0 { Fault::Late { quiet: false } } else { Fault::None },
        );
    let mut heard = Heard::default();
    let mut replay = Replay::new(&mut fake, &mut heard, &pace, pool, 1, options());
    assert!(replay.request(Duration::ZERO, 1, &request(1, &[0]).expect("ok")).is_continue());
    assert!(replay.request(Duration::ZERO, 2, &request(2, &[1]).expect("ok")).is_continue());
    assert_eq!(replay.tally.failures(FailureKind::NoRoom), 1);
    replay.cache.give_back(0);
    assert!(replay.request(Duration::ZERO, 3, &request(3, &[2]).expect("ok")).is_continue());
    assert_eq!(replay.tally.requests_done, 1);
}

fn peer_dies(batch: usize, at: usize, read: &BlockRead) -> Fault {
    if batch == at && read.block % 2 == 1 { Fault::Fail(FailureKind::PeerLost) } else { Fault::None }
}

#[test]
fn a_lost_peer_ends_the_replay_and_names_request_and_blocks() {
    let pace = FakePace::default();
    let ran =
        Run::new(&pace, 4).go(&[&[0], &[0, 1, 2, 3, 4, 5], &[9]], |batch, read| peer_dies(batch, 1, read));
    let End::PeerLost { peer, message } = ran.end else { panic!("{:?}", ran.end) };
    assert_eq!((peer.as_str(), message.as_str()), ("peer-11", "as scripted"));
    assert_eq!(ran.heard.lost, [("peer-11".to_owned(), 2, vec![1, 3])]);
    assert_eq!(ran.heard.failed[0].groups.len(), 1);
    assert_eq!(
        ran.heard.failed[0].groups[0].blocks,
        [1, 3, 4, 5],
        "with those of the wave that never started"
    );
    assert_eq!((ran.tally.requests_done, ran.tally.requests_failed), (1, 1));
    assert_eq!(ran.tally.failures(FailureKind::PeerLost), 4);
    assert_eq!(ran.batches.len(), 2, "the third request is not begun");
}

#[test]
fn told_to_keep_going_it_waits_for_the_peer_and_ends_right() {
    let pace = FakePace::default();
    let mut run = Run::new(&pace, 8);
    run.options.keep_going = Some(Duration::from_secs(30));
    // The new one has a new seed and another size of pool.
    run.come_back = vec![
        Err(ReconnectError::NotYet("refused".to_owned())),
        Err(ReconnectError::NotYet("refused".to_owned())),
        Ok(remote(50, 12)),
    ];
    let ran = run.go(&[&[0, 1, 2, 3], &[60, 0]], |batch, read| peer_dies(batch, 0, read));
    assert!(matches!(ran.end, End::Finished), "{:?}", ran.end);
    assert_eq!(ran.batches, [vec![0, 1, 2, 3], vec![1, 3], vec![60]], "only what is missing is read again");
    assert_eq!((ran.tally.requests_done, ran.tally.blocks_failed()), (2, 0));
    assert_eq!((ran.tally.peers_lost, ran.tally.reconnects), (1, 1));
    assert_eq!(ran.heard.back, ["peer-12"]);
    assert!(ran.now >= FIRST_PAUSE * 3, "it paused between the tries");
    assert_eq!(ran.bounds[1], Duration::from_secs(5), "the bound starts afresh");
}

#[test]
fn a_peer_that_does_not_come_back_in_time_ends_the_replay() {
    let pace = FakePace::default();
    let mut run = Run::new(&pace, 8);
    run.options.keep_going = Some(Duration::from_secs(3));
    let ran = run.go(&[&[0, 1]], |batch, read| peer_dies(batch, 0, read));
    let End::PeerLost { message, .. } = ran.end else { panic!("{:?}", ran.end) };
    assert!(message.contains("not there again within 3s: nobody there"), "{message}");
    assert!(ran.now >= Duration::from_secs(3) && ran.now < Duration::from_secs(4), "{:?}", ran.now);
}

#[test]
fn a_peer_that_does_not_fit_ends_the_replay_at_once() {
    let pace = FakePace::default();
    let mut run = Run::new(&pace, 8);
    run.options.keep_going = Some(Duration::from_secs(3));
    run.come_back = vec![Err(ReconnectError::Never("another model".to_owned()))];
    let ran = run.go(&[&[0, 1]], |batch, read| peer_dies(batch, 0, read));
    assert!(matches!(&ran.end, End::Unusable { message, .. } if message == "another model"), "{:?}", ran.end);
    assert_eq!(ran.tally.failures(FailureKind::PeerLost), 1);
}

#[test]
fn a_peer_that_dies_over_the_same_blocks_again_and_again_is_given_up() {
    let pace = FakePace::default();
    let mut run = Run::new(&pace, 8);
    run.options.keep_going = Some(Duration::from_secs(3));
    run.come_back = (0..100).map(|seed| Ok(remote(64, seed))).collect();
    let ran = run.go(&[&[1]], |_, _| Fault::Fail(FailureKind::PeerLost));
    assert!(matches!(ran.end, End::PeerLost { .. }));
    assert_eq!(ran.batches.len(), MAX_LOSSES_IN_A_WAVE as usize);
}

#[test]
fn a_stop_while_waiting_for_the_peer_interrupts() {
    let pace = FakePace::default();
    pace.stop_at.set(Some(Duration::from_secs(1)));
    let mut run = Run::new(&pace, 8);
    run.options.keep_going = Some(Duration::from_secs(30));
    let ran = run.go(&[&[1]], |_, _| Fault::Fail(FailureKind::PeerLost));
    assert!(matches!(ran.end, End::Interrupted), "{:?}", ran.end);
    assert_eq!(ran.tally.requests_interrupted, 1);
}

#[test]
fn a_stop_between_and_within_requests_interrupts() {
    let pace = FakePace::default();
    pace.stop_at.set(Some(Duration::from_millis(2)));
    let ran = Run::new(&pace, 8).go(&[&[0], &[1], &[2]], good);
    assert!(matches!(ran.end, End::Interrupted));
    assert_eq!(ran.tally.requests_done, 2);

    let pace = FakePace::default();
    let ran = Run::new(&pace, 8)
        .go(&[&[0, 1], &[2]], |_, read| if read.block == 1 { Fault::Interrupt } else { Fault::None });
    assert!(matches!(ran.end, End::Interrupted));
    assert_eq!(
        (ran.tally.requests_interrupted, ran.tally.blocks_fetched, ran.tally.blocks_failed()),
        (1, 1, 0)
    );
}

#[test]
fn a_bad_line_ends_the_replay_with_what_was_done() {
    let pace = FakePace::default();
    let mut trace = requests(&[&[0], &[1]]);
    let bad = TraceError::Line { file: "t".to_owned(), line: 2, problem: LineProblem::Blank };
    trace.insert(1, Err(bad));
    let ran = Run::new(&pace, 8).with(trace, good);
    assert!(matches!(ran.end, End::BadTrace(_)));
    assert_eq!(ran.tally.requests_done, 1);
}

#[test]
fn with_a_speed_requests_start_by_the_traces_clock() {
    let pace = FakePace::default();
    let mut run = Run::new(&pace, 8);
    run.options.speed = Some(10.0);
    // Lines 1, 2 and 3 are due at 1 s, 2 s and 3 s of the trace.
    let ran = run.go(&[&[0], &[1], &[2]], good);
    assert_eq!(ran.now, Duration::from_millis(301));
    assert_eq!(ran.tally.wall, Duration::from_millis(301));
    assert_eq!(due(u64::MAX, 1e-300), Duration::MAX);
}
