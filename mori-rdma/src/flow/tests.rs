//! The flow over a device that is a list: what it posts, what it makes of completions, and that nothing is lost whatever
//! happens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mori_core::{
    Access, Clock, EngineKey, Error, ErrorKind, Notify, Op, Origin, Piece, Region, Result, Status,
};
use proptest::prelude::*;

use super::*;
use crate::plan::{Limits, Plan};
use crate::sync::Mutex;

/// What a request on the device is.
#[derive(Clone, Debug)]
enum Job {
    /// The bytes of the transfer with this address: (local, remote) pairs.
    Bytes(u64, Vec<(u64, u64)>),
    Message {
        slot: u16,
        transfer: u64,
        failed: bool,
    },
    Nothing,
}

#[derive(Default)]
struct Device {
    posted: VecDeque<(u64, bool, Job)>,
    failed: bool,
    /// How the next posts are refused: how many requests are taken, and whether the queue says that it is full.
    refuse: VecDeque<(usize, bool)>,
}

struct FakeWire(Arc<Mutex<Device>>);

fn refused(accepted: usize, full: bool) -> Refused {
    Refused { accepted, full, error: Error::new(ErrorKind::Transport, "refused by the script") }
}

impl Wire for FakeWire {
    fn post(&self, posting: &Posting<'_>) -> Result<(), Refused> {
        let mut device = self.0.lock();
        let count = posting.chain.requests.len();
        let refuse = device.refuse.pop_front().filter(|(taken, _)| *taken < count);
        let taken = refuse.map_or(count, |(taken, _)| taken);
        for (index, (request, segments)) in posting.chain.iter().enumerate().take(taken) {
            let mut bytes = Vec::new();
            let mut remote = request.remote;
            for segment in segments {
                for i in 0..u64::from(segment.length) {
                    bytes.push((segment.local + i, remote));
                    remote += 1;
                }
            }
            let job = Job::Bytes(posting.keys.local_address, bytes);
            device.posted.push_back((posting.first_id + index as u64, index + 1 == count, job));
        }
        refuse.map_or(Ok(()), |(taken, full)| Err(refused(taken, full)))
    }

    fn post_message(&self, message: &Message<'_>) -> Result<(), Refused> {
        let mut device = self.0.lock();
        if let Some((0, full)) = device.refuse.pop_front() {
            return Err(refused(0, full));
        }
        let job =
            Job::Message { slot: message.slot, transfer: message.transfer, failed: message.error.is_some() };
        device.posted.push_back((message.id, true, job));
        Ok(())
    }

    fn post_nothing(&self, id: u64) -> Result<(), Refused> {
        let mut device = self.0.lock();
        if let Some((0, full)) = device.refuse.pop_front() {
            return Err(refused(0, full));
        }
        device.posted.push_back((id, true, Job::Nothing));
        Ok(())
    }

    fn fail(&self) {
        self.0.lock().failed = true;
    }

    fn message_slots(&self) -> u16 {
        2
    }
}

struct World {
    flow: Flow,
    now: Instant,
    out: Actions,
    ended: HashMap<u64, Result<()>>,
    devices: Vec<(u32, Arc<Mutex<Device>>)>,
    next_lane: u32,
    region: Region,
    /// Which transfer has which address.
    owners: HashMap<u64, u64>,
    executed: HashMap<u64, Vec<(u64, u64)>>,
    told: Vec<(u64, bool)>,
    statuses: Vec<Status>,
    /// Whether connecting works.
    reachable: bool,
    /// Whether the peer answers.
    answers: bool,
    unanswered: Vec<u32>,
    unanswered_messages: Vec<(u32, u16, u64)>,
    depth: usize,
    late_notes: usize,
}

fn settings() -> Settings {
    Settings {
        max_chain: 4,
        chain_bytes: 40,
        max_transfers: 1000,
        lanes_per_path: 1,
        admission_timeout: Duration::from_secs(30),
        cancel_grace: Duration::from_millis(100),
        peer_timeout: Duration::from_secs(10),
    }
}

impl World {
    fn new(settings: Settings, paths: usize, depth: usize) -> Self {
        Self {
            flow: Flow::new(EngineKey::from("peer"), settings, 0..paths),
            now: Clock::system().now(),
            out: Actions::default(),
            ended: HashMap::new(),
            devices: Vec::new(),
            next_lane: 1,
            region: Region::zeroed(4096, Access::LOCAL).unwrap(),
            owners: HashMap::new(),
            executed: HashMap::new(),
            told: Vec::new(),
            statuses: Vec::new(),
            reachable: true,
            answers: true,
            unanswered: Vec::new(),
            unanswered_messages: Vec::new(),
            depth,
            late_notes: 0,
        }
    }

    fn submit(&mut self, op: Op, pieces: &[Piece], note: Option<Notify>) -> u64 {
        self.submit_with(op, pieces, note, None, 2)
    }

    fn submit_with(
        &mut self,
        op: Op,
        pieces: &[Piece],
        note: Option<Notify>,
        deadline: Option<Duration>,
        devices: usize,
    ) -> u64 {
        let (completer, status) = Status::pair(Origin::detached());
        completer.submit();
        let key = completer.id().get();
        self.statuses.push(status);
        let ways = Arc::new(Ways {
            local_address: key,
            local: vec![Some(1); devices],
            near: vec![true; devices],
            remote: vec![Some(RemoteKey { address: 0, key: 2 }); devices],
            dead: OnceLock::new(),
        });
        self.owners.insert(key, key);
        let submission = Submission {
            completer,
            pin: self.region.pin().unwrap(),
            op,
            plan: Plan::new(pieces, Limits { max_sge: 2, max_bytes: 16 }),
            ways,
            note,
            deadline: deadline.map(|after| (after, self.now + after)),
            refusal: None,
        };
        self.flow.submit(submission, self.now, &mut self.out);
        self.act();
        key
    }

    /// Carries out the actions, as the real caller does.
    fn act(&mut self) {
        loop {
            let out = std::mem::take(&mut self.out);
            for Finished { completer, pin, result } in out.finished {
                drop(pin);
                let before = self.ended.insert(completer.id().get(), result.clone());
                assert!(before.is_none(), "a transfer has ended twice");
                let _ = match result {
                    Ok(()) => completer.succeed(),
                    Err(error) => completer.fail(error),
                };
            }
            self.late_notes += out.notes.len();
            out.fail.iter().for_each(|wire| wire.fail());
            let mut more = false;
            for (lane, wire) in out.destroy {
                drop(wire);
                self.devices.iter().filter(|(number, _)| *number == lane).for_each(|(_, device)| {
                    device.lock().posted.clear();
                });
                self.flow.destroyed(lane, self.now, &mut self.out);
                more = true;
            }
            for lane in out.retire {
                if self.answers {
                    self.flow.retired(lane, &Ok(()), self.now, &mut self.out);
                    more = true;
                } else {
                    self.unanswered.push(lane);
                }
            }
            for path in out.connect {
                let missing = self.flow.missing(path);
                let mut lanes = Vec::new();
                let mut failure = None;
                if self.reachable {
                    for _ in 0..missing {
                        let device = Arc::new(Mutex::new(Device::default()));
                        let wire = Arc::new(FakeWire(Arc::clone(&device)));
                        lanes.push(Lane::new(self.next_lane, path, path, self.depth, wire));
                        self.devices.push((self.next_lane, device));
                        self.next_lane += 1;
                    }
                } else {
                    failure = Some(Error::new(ErrorKind::PeerLost, "unreachable by the script"));
                }
                self.flow.connected(path, lanes, failure, self.now, &mut self.out);
                more = true;
            }
            for gone in out.gone {
                self.devices.retain(|(number, _)| *number != gone);
            }
            if !more {
                break;
            }
        }
    }

    fn device(&self, index: usize) -> Arc<Mutex<Device>> {
        Arc::clone(&self.devices[index].1)
    }

    /// Has the device of lane `index` carry out its next request, or fail at it. `false` if it has none.
    fn step(&mut self, index: usize, status: WcStatus) -> bool {
        let Some((number, device)) = self.devices.get(index).cloned() else { return false };
        let mut device = device.lock();
        let Some((id, signalled, job)) = device.posted.pop_front() else { return false };
        let status = if device.failed { WcStatus::Flushed } else { status };
        device.failed |= !status.is_success();
        let silent = status.is_success() && !signalled;
        drop(device);
        let mut answer = None;
        if status.is_success() {
            match job {
                Job::Bytes(owner, bytes) => {
                    assert!(!self.ended.contains_key(&owner), "bytes land after the end of their transfer");
                    self.executed.entry(owner).or_default().extend(bytes);
                }
                Job::Message { slot, transfer, failed } => {
                    self.told.push((transfer, failed));
                    if self.answers {
                        answer = Some((slot, transfer));
                    } else {
                        self.unanswered_messages.push((number, slot, transfer));
                    }
                }
                Job::Nothing => {}
            }
        }
        if !silent {
            let completed = Completed { id: WorkId::from_number(id), status, vendor: 0 };
            self.flow.complete(number, &[completed], self.now, &mut self.out);
            self.act();
        }
        if let Some((slot, transfer)) = answer {
            self.flow.answered(number, slot, transfer, Ok(()), self.now, &mut self.out);
            self.act();
        }
        true
    }

    /// Has everything carried out.
    fn run(&mut self) {
        loop {
            let mut any = false;
            for index in 0..self.devices.len() {
                any |= self.step(index, WcStatus::Success);
            }
            if !any {
                break;
            }
        }
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        self.flow.tick(self.now, &mut self.out);
        self.act();
    }

    fn kind(&self, key: u64) -> Option<ErrorKind> {
        self.ended.get(&key).unwrap().as_ref().err().map(Error::kind)
    }

    fn words(&self, key: u64) -> String {
        self.ended[&key].as_ref().unwrap_err().message().to_owned()
    }

    fn nothing_held(&self) {
        let held = self.flow.held();
        assert_eq!(
            (held.transfers, held.credits, held.records, held.messages, held.draining),
            (0, 0, 0, 0, 0),
            "{held:?}"
        );
        assert_eq!(self.region.pins(), 0);
    }
}

fn bytes(pieces: &[Piece]) -> HashSet<(u64, u64)> {
    pieces.iter().flat_map(|p| (0..p.length).map(move |i| (p.local + i, p.remote + i))).collect()
}

const BIG: [Piece; 1] = [Piece::new(0, 100, 200)];

#[test]
fn a_transfer_is_posted_in_chains_and_ends_with_the_last() {
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    assert_eq!(world.flow.held().credits, 13);
    while world.step(0, WcStatus::Success) {}
    assert_eq!(world.kind(key), None);
    let executed: HashSet<_> = world.executed[&key].iter().copied().collect();
    assert_eq!(executed, bytes(&BIG));
    world.nothing_held();
}

#[test]
fn transfers_beyond_the_credits_wait_and_take_turns() {
    let mut world = World::new(settings(), 1, 4);
    let keys: Vec<u64> = (0..3).map(|_| world.submit(Op::Write, &BIG, None)).collect();
    assert_eq!(world.flow.held().credits, 4);
    // After as many requests as one of them has, each has had its share.
    for _ in 0..13 {
        world.step(0, WcStatus::Success);
    }
    assert!(keys.iter().all(|key| world.executed.contains_key(key)));
    world.run();
    assert!(keys.iter().all(|key| world.kind(*key).is_none()));
    world.nothing_held();
}

#[test]
fn one_transfers_fault_fails_it_alone() {
    let mut world = World::new(settings(), 1, 64);
    let bad = world.submit(Op::Read, &BIG, None);
    let good = world.submit(Op::Write, &[Piece::new(0, 0, 100)], None);
    world.step(0, WcStatus::Success);
    world.step(0, WcStatus::RemoteAccess);
    world.run();
    assert_eq!(world.kind(bad), Some(ErrorKind::NotFound));
    let words = world.words(bad);
    assert!(words.contains("IBV_WC_REM_ACCESS_ERR") && words.contains("remote offset 116"), "{words}");
    assert!(words.contains("more requests were flushed"), "{words}");
    // The other one was flushed as well, and carried again.
    assert_eq!(world.kind(good), None);
    world.nothing_held();
}

#[test]
fn a_write_is_not_posted_again_before_the_peer_is_quiet() {
    let mut world = World::new(settings(), 1, 64);
    world.answers = false;
    let bad = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    let good = world.submit(Op::Write, &[Piece::new(0, 0, 8)], None);
    world.step(0, WcStatus::LocalProtection);
    world.run();
    assert_eq!(world.kind(bad), Some(ErrorKind::Transport));
    assert!(!world.ended.contains_key(&good) && !world.executed.contains_key(&good));
    let lane = world.unanswered.pop().unwrap();
    world.flow.retired(lane, &Ok(()), world.now, &mut world.out);
    world.act();
    world.run();
    assert_eq!(world.kind(good), None);
    world.nothing_held();
}

#[test]
fn a_way_that_fails_is_left_for_another() {
    let mut world = World::new(settings(), 2, 64);
    let key = world.submit(Op::Read, &BIG, None);
    // Both paths are made at once, and the load is on both.
    assert_eq!(world.devices.len(), 2);
    world.step(0, WcStatus::RetryExceeded);
    world.run();
    assert_eq!(world.kind(key), None);
    world.nothing_held();
    // With no other way, it fails with the cause.
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    world.step(0, WcStatus::RetryExceeded);
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::PeerLost));
    assert!(world.words(key).contains("12 more requests were flushed"), "{}", world.words(key));
    world.nothing_held();
    // And the next one works when the pause is over.
    world.advance(Duration::from_secs(1));
    let key = world.submit(Op::Read, &BIG, None);
    world.run();
    assert_eq!(world.kind(key), None);
}

#[test]
fn a_peer_that_cannot_be_reached_fails_what_waits() {
    let mut world = World::new(settings(), 1, 64);
    world.reachable = false;
    let key = world.submit(Op::Write, &BIG, None);
    assert_eq!(world.kind(key), Some(ErrorKind::PeerLost));
    assert!(world.flow.trouble().is_some());
    world.reachable = true;
    world.advance(Duration::from_secs(1));
    let key = world.submit(Op::Write, &BIG, None);
    world.run();
    assert_eq!(world.kind(key), None);
    assert!(world.flow.trouble().is_none());
}

#[test]
fn a_cancelled_transfer_ends_when_its_requests_have() {
    let mut world = World::new(settings(), 1, 4);
    let key = world.submit(Op::Read, &BIG, None);
    let other = world.submit(Op::Read, &BIG, None);
    let why = Error::new(ErrorKind::Cancelled, "by the test");
    world.flow.cancel(key, why, world.now, &mut world.out);
    world.act();
    assert!(!world.ended.contains_key(&key));
    // What is posted goes on for the grace; then the queue pair is closed, and the other one's requests are posted anew.
    world.advance(Duration::from_millis(100));
    assert!(world.device(0).lock().failed);
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::Cancelled));
    assert_eq!(world.kind(other), None);
    world.nothing_held();
}

#[test]
fn a_cancellation_that_comes_too_late_changes_nothing() {
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    world.flow.cancel(key, Error::new(ErrorKind::Cancelled, "late"), world.now, &mut world.out);
    world.run();
    assert_eq!(world.kind(key), None);
    world.nothing_held();
}

#[test]
fn a_deadline_says_what_it_waited_for() {
    let mut world = World::new(settings(), 1, 4);
    let key = world.submit_with(Op::Read, &BIG, None, Some(Duration::from_millis(50)), 1);
    world.step(0, WcStatus::Success);
    world.advance(Duration::from_millis(50));
    assert!(!world.ended.contains_key(&key));
    world.advance(Duration::from_millis(100));
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::Cancelled));
    let words = world.words(key);
    assert!(words.contains("deadline of 50ms") && words.contains("of 200 bytes"), "{words}");
    world.nothing_held();
}

#[test]
fn without_progress_the_queue_is_full() {
    let mut world = World::new(Settings { max_transfers: 2, ..settings() }, 1, 1);
    let first = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    let second = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    let third = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    assert_eq!(world.kind(third), Some(ErrorKind::ResourceExhausted));
    assert!(world.words(third).contains("SQ full"));
    world.advance(Duration::from_secs(30));
    assert_eq!(world.kind(second), Some(ErrorKind::ResourceExhausted));
    assert!(world.words(second).contains("SQ full") && world.words(second).contains("0 of 8 bytes"));
    world.run();
    assert_eq!(world.kind(first), None);
    world.nothing_held();
}

#[test]
fn a_list_that_is_taken_in_part_loses_nothing() {
    for full in [true, false] {
        for taken in 0..3 {
            let mut world = World::new(settings(), 1, 64);
            let first = world.submit(Op::Write, &[Piece::new(0, 0, 4)], None);
            world.run();
            world.device(0).lock().refuse.push_back((taken, full));
            let key = world.submit(Op::Write, &BIG, None);
            world.run();
            world.advance(Duration::from_millis(1));
            world.run();
            assert_eq!(world.kind(first), None);
            let expected = if full { None } else { Some(ErrorKind::Transport) };
            assert_eq!(world.kind(key), expected, "taken {taken}, full {full}");
            world.nothing_held();
            let next = world.submit(Op::Write, &BIG, None);
            world.run();
            assert_eq!(world.kind(next), None);
        }
    }
}

#[test]
fn a_queue_pair_that_gives_nothing_back_is_destroyed() {
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    let cause = Error::new(ErrorKind::Transport, "the port is down");
    world.flow.path_down(0, &cause, false, world.now, &mut world.out);
    world.act();
    assert!(!world.ended.contains_key(&key));
    world.advance(Duration::from_secs(10));
    assert_eq!(world.kind(key), Some(ErrorKind::Transport));
    assert!(world.words(key).contains("the port is down"));
    world.nothing_held();
}

#[test]
fn a_lost_peer_ends_everything_when_this_side_is_quiet() {
    let mut world = World::new(settings(), 1, 4);
    world.answers = false;
    let keys = [world.submit(Op::Read, &BIG, None), world.submit(Op::Write, &BIG, None)];
    let lost = Error::new(ErrorKind::PeerLost, "the link has closed");
    world.flow.lose(&lost, false, world.now, &mut world.out);
    world.act();
    assert!(world.ended.is_empty() || world.ended.len() == 1);
    world.run();
    assert!(keys.iter().all(|key| world.kind(*key) == Some(ErrorKind::PeerLost)));
    world.nothing_held();
    world.answers = true;
    let next = world.submit(Op::Read, &BIG, None);
    world.run();
    assert_eq!(world.kind(next), None);
}

#[test]
fn a_message_follows_the_bytes_once() {
    let mut world = World::new(settings(), 1, 64);
    let note = Notify { message: b"done".to_vec(), on_failure: false };
    let key = world.submit(Op::Write, &BIG, Some(note.clone()));
    while world.told.is_empty() {
        assert!(world.step(0, WcStatus::Success));
    }
    assert_eq!(world.executed[&key].len(), 200);
    assert_eq!(world.kind(key), None);
    // More messages than slots wait for their turn.
    let keys: Vec<u64> = (0..5).map(|_| world.submit(Op::Write, &[], Some(note.clone()))).collect();
    world.run();
    assert!(keys.iter().all(|key| world.kind(*key).is_none()));
    assert_eq!(world.told.len(), 6);
    world.nothing_held();
}

#[test]
fn a_failure_is_told_if_asked_for() {
    let mut world = World::new(settings(), 1, 64);
    let note = Notify { message: b"done".to_vec(), on_failure: true };
    let key = world.submit(Op::Write, &BIG, Some(note));
    world.step(0, WcStatus::RemoteAccess);
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::NotFound));
    assert_eq!(world.told, [(key, true)]);
    world.nothing_held();
}

#[test]
fn a_target_that_does_not_answer_a_message_is_lost() {
    let mut world = World::new(settings(), 1, 64);
    world.answers = false;
    let note = Notify { message: b"done".to_vec(), on_failure: false };
    let key = world.submit(Op::Write, &[], Some(note));
    world.run();
    assert!(!world.ended.contains_key(&key));
    world.advance(Duration::from_secs(10));
    assert_eq!(world.kind(key), Some(ErrorKind::PeerLost));
}

#[derive(Clone, Debug)]
enum Event {
    Submit { write: bool, pieces: Vec<(u64, u64, u64)>, note: Option<bool> },
    Step { lane: usize, count: usize },
    Fail { lane: usize, status: usize },
    Refuse { lane: usize, taken: usize, full: bool },
    Cancel(usize),
    Advance(u64),
    Lose,
    PathDown(usize),
    Reachable(bool),
    Answers(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let pieces = prop::collection::vec((0_u64..500, 0_u64..500, 0_u64..60), 0..6);
    prop_oneof![
        5 => (any::<bool>(), pieces, any::<Option<bool>>()).prop_map(|(write, pieces, note)| Event::Submit { write, pieces, note }),
        8 => (0_usize..4, 1_usize..12).prop_map(|(lane, count)| Event::Step { lane, count }),
        1 => (0_usize..4, 1_usize..24).prop_map(|(lane, status)| Event::Fail { lane, status }),
        1 => (0_usize..4, 0_usize..4, any::<bool>()).prop_map(|(lane, taken, full)| Event::Refuse { lane, taken, full }),
        1 => (0_usize..20).prop_map(Event::Cancel),
        2 => (1_u64..400).prop_map(Event::Advance),
        1 => Just(Event::Lose),
        1 => (0_usize..2).prop_map(Event::PathDown),
        1 => any::<bool>().prop_map(Event::Reachable),
        1 => any::<bool>().prop_map(Event::Answers),
    ]
}

proptest! {
    /// Whatever happens, in whatever order: every transfer ends once, nothing lands after its end, a success has carried
    /// every byte and told its target once, and in the end nothing is held.
    #[test]
    fn nothing_is_lost_whatever_happens(
        events in prop::collection::vec(event(), 1..60),
        lanes in 1_usize..3,
        depth in 1_usize..9,
    ) {
        let mut world = World::new(Settings { lanes_per_path: lanes, ..settings() }, 2, depth);
        let mut wanted: HashMap<u64, (Vec<Piece>, Option<bool>)> = HashMap::new();
        let mut keys = Vec::new();
        for event in events {
            match event {
                Event::Submit { write, pieces, note } => {
                    let pieces: Vec<Piece> = pieces.iter().map(|&(l, r, n)| Piece::new(l, r, n)).collect();
                    let message = note.map(|on_failure| Notify { message: vec![1], on_failure });
                    let op = if write { Op::Write } else { Op::Read };
                    let key = world.submit(op, &pieces, message);
                    wanted.insert(key, (pieces, note));
                    keys.push(key);
                }
                Event::Step { lane, count } => {
                    for _ in 0..count {
                        world.step(lane, WcStatus::Success);
                    }
                }
                Event::Fail { lane, status } => {
                    world.step(lane, WcStatus::ALL[status % WcStatus::ALL.len()]);
                }
                Event::Refuse { lane, taken, full } => {
                    if let Some((_, device)) = world.devices.get(lane) {
                        device.lock().refuse.push_back((taken, full));
                    }
                }
                Event::Cancel(which) => {
                    if let Some(key) = keys.get(which) {
                        let why = Error::new(ErrorKind::Cancelled, "by the test");
                        world.flow.cancel(*key, why, world.now, &mut world.out);
                        world.act();
                    }
                }
                Event::Advance(by) => world.advance(Duration::from_millis(by)),
                Event::Lose => {
                    let lost = Error::new(ErrorKind::PeerLost, "lost");
                    world.flow.lose(&lost, false, world.now, &mut world.out);
                    world.act();
                }
                Event::PathDown(path) => {
                    let cause = Error::new(ErrorKind::Transport, "port down");
                    world.flow.path_down(path, &cause, path == 1, world.now, &mut world.out);
                    world.act();
                }
                Event::Reachable(yes) => world.reachable = yes,
                Event::Answers(yes) => world.answers = yes,
            }
            let held = world.flow.held();
            prop_assert!(held.credits <= held.lanes * depth);
        }
        world.reachable = true;
        world.answers = true;
        for _ in 0..40 {
            for lane in std::mem::take(&mut world.unanswered) {
                world.flow.retired(lane, &Ok(()), world.now, &mut world.out);
                world.act();
            }
            for (lane, slot, transfer) in std::mem::take(&mut world.unanswered_messages) {
                world.flow.answered(lane, slot, transfer, Ok(()), world.now, &mut world.out);
                world.act();
            }
            world.run();
            world.advance(Duration::from_secs(3));
        }
        world.nothing_held();
        for (key, (pieces, note)) in &wanted {
            let told: Vec<bool> = world.told.iter().filter(|(of, _)| of == key).map(|(_, failed)| *failed).collect();
            prop_assert!(told.len() <= 1);
            if world.ended[key].is_ok() {
                let carried: HashSet<_> = world.executed.get(key).into_iter().flatten().copied().collect();
                prop_assert_eq!(&carried, &bytes(pieces));
                prop_assert_eq!(told.len(), usize::from(note.is_some()));
            }
            prop_assert!(told.iter().all(|failed| !failed || note == &Some(true)));
        }
    }
}
