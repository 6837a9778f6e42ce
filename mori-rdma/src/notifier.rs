//! The thread that learns of completions, of events, and of the passing of time.
//!
//! # Rules
//!
//! 1. A completion queue is armed before it is drained, and the thread sleeps only after that, so that no completion is missed.
//! 2. Without anything in flight, the thread sleeps without a timer.
//! 3. When it polls, it looks at the queues as long as something is in flight and the last completion is not long ago, lets other
//!    threads run in between, and arms the queues before it goes back to sleep.
//! 4. No call of the application's, a waker or an observer, takes the thread with it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mori_core::{Error, ErrorKind, Result};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;

use crate::core::{Core, Owner};
use crate::flow::Completed;
use crate::nic::Nic;
use crate::send_queue::{Kind, WorkId};
use crate::verbs::{AsyncEvent, AsyncEventKind, AsyncEventSource, CompletionQueue, WorkCompletion};

/// How many completions are taken at once.
const BATCH: usize = 64;

/// How long after the last completion, or the last time that it was woken, the thread that polls goes on looking. What takes longer
/// than that is not worth a processor.
const SPIN: Duration = Duration::from_millis(1);

/// The bell's place among the descriptors; those of the devices follow.
const BELL: u64 = 0;

pub(crate) struct Notifier {
    core: Arc<Core>,
    epoll: OwnedFd,
    /// Whether queues may be unarmed because they were polled.
    spun: bool,
    /// When the last completion was found, or something was begun.
    active: Instant,
    taken: Vec<WorkCompletion>,
    completed: Vec<Completed>,
    /// How often in a row a device's descriptors could not be read, by device.
    failures: Vec<u32>,
}

/// After so many failures in a row a device counts as gone. One alone may be anything; what was to be announced is looked for then.
const FAILURES: u32 = 3;

impl Notifier {
    /// Sets up the descriptors.
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self> {
        let exhausted = |error: rustix::io::Errno| {
            Error::io(ErrorKind::ResourceExhausted, "cannot set up epoll", &error.into())
        };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(exhausted)?;
        let readable = EventFlags::IN;
        epoll::add(&epoll, core.bell_fd(), EventData::new_u64(BELL), readable).map_err(exhausted)?;
        for (index, nic) in (0_u64..).zip(&core.nics) {
            let channel = EventData::new_u64(1 + 2 * index);
            epoll::add(&epoll, nic.channel.as_fd(), channel, readable).map_err(exhausted)?;
            let events = EventData::new_u64(2 + 2 * index);
            epoll::add(&epoll, nic.context.as_fd(), events, readable).map_err(exhausted)?;
        }
        let taken = vec![WorkCompletion::default(); BATCH];
        let failures = vec![0; core.nics.len()];
        Ok(Self {
            core: Arc::clone(core),
            epoll,
            spun: false,
            active: core.clock.now(),
            taken,
            completed: Vec::new(),
            failures,
        })
    }

    pub(crate) fn run(mut self) {
        while !self.core.notifier_stops() {
            let spins = self.spins();
            if self.spun && !spins {
                self.spun = false;
                self.drain_all(true);
            }
            self.spun |= spins;
            let ready = match self.sleep(spins) {
                Ok(ready) => ready,
                Err(error) => {
                    // Only a descriptor that is broken does this; timers go on.
                    tracing::error!(%error, "waiting for events failed");
                    Vec::new()
                }
            };
            for token in ready {
                self.event(token, spins);
            }
            if spins {
                self.drain_all(false);
                std::thread::yield_now();
            }
            let now = self.core.clock.now();
            if self.core.due(now) {
                self.tick();
            }
        }
    }

    /// Whether to look at the queues rather than to sleep.
    fn spins(&self) -> bool {
        self.core.polls()
            && self.core.busy.load(Ordering::Relaxed) > 0
            && self.core.clock.now().saturating_duration_since(self.active) < SPIN
    }

    fn sleep(&self, spins: bool) -> io::Result<Vec<u64>> {
        let bound = if spins {
            Some(Duration::ZERO)
        } else {
            let now: Instant = self.core.clock.now();
            self.core.next_look().map(|at| at.saturating_duration_since(now))
        };
        let timeout = bound.map(|bound| Timespec {
            tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(bound.subsec_nanos()),
        });
        let mut buffer = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        match epoll::wait(&self.epoll, &mut buffer[..], timeout.as_ref()) {
            Ok(count) => Ok(buffer.iter().take(count).map(|event| event.data.u64()).collect()),
            Err(error) if error == rustix::io::Errno::INTR => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn event(&mut self, token: u64, spins: bool) {
        if token == BELL {
            self.core.heard();
            self.active = self.core.clock.now();
            return;
        }
        let index = usize::try_from((token - 1) / 2).unwrap_or(usize::MAX);
        let Some(nic) = self.core.nics.get(index).cloned() else { return };
        if token % 2 == 1 {
            self.announced(&nic, spins);
        } else {
            self.happened(&nic);
        }
    }

    /// Queues of a device announce completions.
    fn announced(&mut self, nic: &Arc<Nic>, spins: bool) {
        let mut announced = Vec::new();
        loop {
            match nic.channel.next_event() {
                Ok(Some(id)) => announced.push(id),
                Ok(None) => {
                    self.reads_again(nic);
                    break;
                }
                Err(error) => {
                    if self.cannot_read(nic, &error.into()) {
                        return;
                    }
                    announced.extend(nic.queues().iter().map(CompletionQueue::id));
                    break;
                }
            }
        }
        for queue in nic.queues() {
            if announced.contains(&queue.id()) {
                self.drain(nic, &queue, !spins);
            }
        }
    }

    fn drain_all(&mut self, arm: bool) {
        for nic in self.core.nics.clone() {
            for queue in nic.queues() {
                self.drain(&nic, &queue, arm);
            }
        }
    }

    /// Arms a queue, and takes everything that is in it.
    fn drain(&mut self, nic: &Arc<Nic>, queue: &CompletionQueue, arm: bool) {
        if arm && let Err(error) = queue.arm(false) {
            self.queue_failed(nic, queue.id(), &error.into());
            return;
        }
        loop {
            let mut taken = std::mem::take(&mut self.taken);
            let found = match queue.poll(&mut taken) {
                Ok(found) => found.len(),
                Err(error) => {
                    self.taken = taken;
                    self.queue_failed(nic, queue.id(), &error.into());
                    return;
                }
            };
            self.dispatch(taken.get(..found).unwrap_or(&[]));
            if found > 0 && self.core.polls() {
                self.active = self.core.clock.now();
            }
            self.taken = taken;
            if found == 0 {
                return;
            }
        }
    }

    /// Hands completions to whom they belong.
    fn dispatch(&mut self, completions: &[WorkCompletion]) {
        let mut rest = completions;
        while let Some(first) = rest.first() {
            let id = WorkId::from_number(first.wr_id());
            let owner = self.core.owner(id.queue);
            if id.kind == Kind::Receive {
                if let Some(owner) = owner {
                    self.received(&owner, id.slot, first);
                }
                rest = rest.get(1..).unwrap_or(&[]);
                continue;
            }
            // Those of one queue go together.
            self.completed.clear();
            let mut count = 0;
            for completion in rest {
                let other = WorkId::from_number(completion.wr_id());
                if other.kind != Kind::Send || other.queue != id.queue {
                    break;
                }
                self.completed.push(Completed {
                    id: other,
                    status: completion.status(),
                    vendor: completion.vendor_error(),
                });
                count += 1;
            }
            rest = rest.get(count..).unwrap_or(&[]);
            if let Some(Owner::Active(peer, _)) = owner {
                let completed = &self.completed;
                peer.drive(&self.core, |flow, now, out| flow.complete(id.queue, completed, now, out));
            }
        }
    }

    fn received(&self, owner: &Owner, slot: u16, completion: &WorkCompletion) {
        if !completion.status().is_success() {
            // The queue pair is ending; its other requests say why.
            return;
        }
        match owner {
            Owner::Active(peer, active) => match active.answered(slot) {
                Ok(answer) => peer.drive(&self.core, |flow, now, out| {
                    flow.answered(active.number, answer.slot, answer.transfer, answer.result, now, out);
                }),
                Err(error) => {
                    tracing::warn!(peer = %peer.key, %error, "an answer to a message is no use");
                    peer.drive(&self.core, |flow, now, out| flow.lane_down(active.number, &error, now, out));
                }
            },
            Owner::Passive(passive) => {
                let inbox = &self.core.context.notifications;
                if let Err(error) = passive.received(slot, completion.byte_length(), inbox) {
                    tracing::warn!(peer = %passive.owner.peer, %error, "a message cannot be taken");
                    let _ = passive.end();
                }
            }
        }
    }

    /// Something has happened to a device by itself.
    fn happened(&mut self, nic: &Arc<Nic>) {
        loop {
            match nic.context.next_event() {
                Ok(Some(event)) => self.act_on(nic, &event),
                Ok(None) => {
                    self.reads_again(nic);
                    return;
                }
                Err(error) => {
                    self.cannot_read(nic, &error.into());
                    return;
                }
            }
        }
    }

    fn reads_again(&mut self, nic: &Nic) {
        if let Some(count) = self.failures.get_mut(nic.index) {
            *count = 0;
        }
    }

    /// A device's descriptor could not be read; `true` if the device counts as gone.
    fn cannot_read(&mut self, nic: &Nic, error: &Error) -> bool {
        let Some(count) = self.failures.get_mut(nic.index) else { return true };
        *count += 1;
        let gone = *count >= FAILURES;
        if gone {
            self.device_failed(nic, error);
        } else {
            tracing::warn!(device = %nic.name, %error, "a device's events could not be read");
        }
        gone
    }

    fn act_on(&mut self, nic: &Arc<Nic>, event: &AsyncEvent) {
        let words = format!("device {}: {}", nic.name, event.kind);
        match (event.kind, event.source) {
            (AsyncEventKind::DeviceFatal, _) => {
                self.device_failed(nic, &Error::new(ErrorKind::Device, words));
            }
            (AsyncEventKind::CompletionQueueError, AsyncEventSource::CompletionQueue(id)) => {
                self.queue_failed(nic, id, &Error::new(ErrorKind::Device, words));
            }
            (AsyncEventKind::PortError, AsyncEventSource::Port(port)) if port == nic.port => {
                tracing::warn!(device = %nic.name, port, "a port went down");
                self.path_down(nic, &Error::new(ErrorKind::Transport, words), false);
            }
            (AsyncEventKind::PortActive, AsyncEventSource::Port(port)) if port == nic.port => {
                tracing::info!(device = %nic.name, port, "a port came up");
                nic.refresh_gid();
                self.forgive(nic);
            }
            (AsyncEventKind::GidChange | AsyncEventKind::LidChange, _) => {
                let before = nic.gid();
                nic.refresh_gid();
                if before.gid != nic.gid().gid || before.index != nic.gid().index {
                    self.path_down(nic, &Error::new(ErrorKind::Transport, words), false);
                }
                self.forgive(nic);
            }
            (AsyncEventKind::QueuePairFatal, AsyncEventSource::QueuePair(id)) => self.pair_failed(id, &words),
            _ => tracing::debug!(device = %nic.name, event = %event.kind, "an event"),
        }
    }

    fn path_down(&self, nic: &Nic, cause: &Error, mute: bool) {
        for peer in self.core.all_peers() {
            peer.drive(&self.core, |flow, now, out| flow.path_down(nic.index, cause, mute, now, out));
        }
    }

    fn forgive(&self, nic: &Nic) {
        for peer in self.core.all_peers() {
            peer.drive(&self.core, |flow, _, _| flow.forgive(nic.index));
        }
    }

    fn device_failed(&self, nic: &Nic, cause: &Error) {
        if !nic.is_dead() {
            tracing::error!(device = %nic.name, %cause, "a device has failed");
            nic.set_dead();
            // Its descriptors stay readable for ever.
            let _ = epoll::delete(&self.epoll, nic.context.as_fd());
            let _ = epoll::delete(&self.epoll, nic.channel.as_fd());
        }
        self.path_down(nic, cause, true);
        self.core.end_passives_where(|passive| passive.nic.index == nic.index);
    }

    /// A completion queue delivers nothing any more; its lanes are destroyed, and the next ones get another queue.
    fn queue_failed(&self, nic: &Nic, id: u64, cause: &Error) {
        tracing::error!(device = %nic.name, %cause, "a completion queue has failed");
        nic.discard_queue(id);
        self.path_down(nic, cause, true);
        // Their messages would never be seen; without them, the peers notice and connect again.
        self.core.end_passives_where(|passive| passive.pair.receive_completions().id() == id);
        self.forgive(nic);
    }

    fn pair_failed(&self, id: u64, words: &str) {
        let found = self.core.owners.read().values().find_map(|owner| match owner {
            Owner::Active(peer, active) if active.pair.id() == id => Some((Arc::clone(peer), active.number)),
            _ => None,
        });
        if let Some((peer, number)) = found {
            let cause = Error::new(ErrorKind::Transport, words);
            peer.drive(&self.core, |flow, now, out| flow.lane_down(number, &cause, now, out));
        }
    }

    fn tick(&self) {
        for peer in self.core.all_peers() {
            peer.tick(&self.core);
        }
    }
}
