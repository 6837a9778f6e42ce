//! A device that is a list, and a caller that carries out what the flow wants done.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mori_core::{
    Access, Clock, EngineKey, Error, ErrorKind, Notify, Op, Origin, Piece, Region, Result, Status,
};

use super::super::*;
use crate::plan::{Limits, Plan};
use crate::sync::Mutex;

/// What a request on the device is.
#[derive(Clone, Debug)]
pub(super) enum Job {
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
pub(super) struct Device {
    pub(super) posted: VecDeque<(u64, bool, Job)>,
    pub(super) failed: bool,
    /// How the next posts are refused: how many requests are taken, and whether the queue says that it is full.
    pub(super) refuse: VecDeque<(usize, bool)>,
}

pub(super) struct FakeWire(Arc<Mutex<Device>>);

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

pub(super) struct World {
    pub(super) flow: Flow,
    pub(super) now: Instant,
    pub(super) out: Actions,
    pub(super) ended: HashMap<u64, Result<()>>,
    pub(super) devices: Vec<(u32, Arc<Mutex<Device>>)>,
    pub(super) next_lane: u32,
    pub(super) region: Region,
    /// Which transfer has which address.
    pub(super) owners: HashMap<u64, u64>,
    pub(super) executed: HashMap<u64, Vec<(u64, u64)>>,
    pub(super) told: Vec<(u64, bool)>,
    pub(super) statuses: Vec<Status>,
    /// Whether connecting works.
    pub(super) reachable: bool,
    /// Whether the peer answers.
    pub(super) answers: bool,
    pub(super) unanswered: Vec<u32>,
    pub(super) unanswered_messages: Vec<(u32, u16, u64)>,
    pub(super) depth: usize,
    pub(super) late_notes: usize,
}

pub(super) fn settings() -> Settings {
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
    pub(super) fn new(settings: Settings, paths: usize, depth: usize) -> Self {
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

    pub(super) fn submit(&mut self, op: Op, pieces: &[Piece], note: Option<Notify>) -> u64 {
        self.submit_with(op, pieces, note, None, 2)
    }

    pub(super) fn submit_with(
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
    pub(super) fn act(&mut self) {
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
                        lanes.push(Lane::new(self.next_lane, path, path, self.depth, 100_000, wire));
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

    pub(super) fn device(&self, index: usize) -> Arc<Mutex<Device>> {
        Arc::clone(&self.devices[index].1)
    }

    /// Has the device of lane `index` carry out its next request, or fail at it. `false` if it has none.
    pub(super) fn step(&mut self, index: usize, status: WcStatus) -> bool {
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
    pub(super) fn run(&mut self) {
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

    pub(super) fn advance(&mut self, by: Duration) {
        self.now += by;
        self.flow.tick(self.now, &mut self.out);
        self.act();
    }

    pub(super) fn kind(&self, key: u64) -> Option<ErrorKind> {
        self.ended.get(&key).unwrap().as_ref().err().map(Error::kind)
    }

    pub(super) fn words(&self, key: u64) -> String {
        self.ended[&key].as_ref().unwrap_err().message().to_owned()
    }

    pub(super) fn nothing_held(&self) {
        let held = self.flow.held();
        assert_eq!(
            (held.transfers, held.credits, held.records, held.messages, held.draining),
            (0, 0, 0, 0, 0),
            "{held:?}"
        );
        assert_eq!(self.region.pins(), 0);
    }
}
