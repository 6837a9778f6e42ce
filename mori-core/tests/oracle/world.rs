//! The world: the same operations on real statuses.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mori_core::{
    Attachment, Backend, BackendContext, Capabilities, Completer, EngineDesc, EngineKey, Error, ErrorKind,
    Gathering, ManualClock, MemoryDesc, Observe, Origin, Region, RegionId, Result, Session, Status,
    StatusCode, Tag, Timeout, TransferId, TransportBlob, WaitPolicy, scan,
};

use crate::operations::{During, End, Kind, Operation, Plan, Want};
use crate::reference::{Answer, Outcome, Sight, words};

const BOUND: Duration = Duration::from_millis(5);

type Writer = Arc<Mutex<Option<Completer>>>;

/// One transfer of a backend: how often it was polled, and which poll ends it.
struct Transfer {
    polls: u32,
    ends: Option<(u32, End)>,
    writer: Writer,
}

#[derive(Default)]
struct Fake {
    notifier: bool,
    transfers: Mutex<HashMap<TransferId, Transfer>>,
}

/// Ends a status; whether that was applied.
fn end(writer: &Writer, end: End) -> bool {
    let mut writer = writer.lock().unwrap();
    let Some(completer) = writer.as_ref() else { return false };
    match end {
        End::Success => completer.succeed().applied(),
        End::Failure(kind) => completer.fail(Error::new(kind, words(kind))).applied(),
        End::Drop => {
            let applies = !completer.code().is_terminal();
            *writer = None;
            applies
        }
    }
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "this backend has scripted progress only")
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn has_notifier(&self) -> bool {
        self.notifier
    }

    fn poll_progress(&self, id: TransferId) {
        let due = {
            let mut transfers = self.transfers.lock().unwrap();
            let Some(transfer) = transfers.get_mut(&id) else { return };
            transfer.polls += 1;
            let due = transfer.ends.filter(|(number, _)| *number == transfer.polls);
            due.map(|(_, how)| (Arc::clone(&transfer.writer), how))
        };
        if let Some((writer, how)) = due {
            end(&writer, how);
        }
    }

    fn attach(&self, _context: BackendContext) -> Result<Attachment> {
        Err(unsupported())
    }

    fn register(&self, _region: &Region) -> Result<Option<TransportBlob>> {
        Err(unsupported())
    }

    fn deregister(&self, _region: RegionId) {}

    fn add_peer(&self, _peer: &EngineDesc) -> Result<()> {
        Err(unsupported())
    }

    fn remove_peer(&self, _peer: &EngineKey) {}

    fn route(&self, _local: &Region, _remote: &MemoryDesc) -> Result<()> {
        Err(unsupported())
    }

    fn session(&self, _local: &Region, _remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        Err(unsupported())
    }

    fn shutdown(&self) {}
}

/// Keeps what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<StatusCode>>);

impl Observe for Told {
    fn on_terminal(&self, code: StatusCode) {
        self.0.lock().unwrap().push(code);
    }
}

struct Entry {
    /// Readers' handles; there is always one.
    handles: Vec<Status>,
    writer: Writer,
    told: Vec<Arc<Told>>,
    subscribed: Vec<Arc<dyn Observe>>,
    backend: Option<Arc<Fake>>,
}

impl Entry {
    fn new(plan: &Plan, fakes: &[Arc<Fake>; 2], number: u64) -> Self {
        let backend = match plan.kind {
            Kind::Detached => None,
            Kind::Notified => Some(Arc::clone(&fakes[0])),
            Kind::Polled => Some(Arc::clone(&fakes[1])),
        };
        let origin = match &backend {
            None => Origin { tag: Tag(number), ..Origin::detached() },
            Some(fake) => {
                let weak: Weak<Fake> = Arc::downgrade(fake);
                let backend: Weak<dyn Backend> = weak;
                Origin::backend(&backend, fake.notifier, Tag(number))
            }
        };
        let (completer, status) = Status::pair(origin);
        let writer = Arc::new(Mutex::new(Some(completer)));
        if let Some(fake) = &backend {
            let transfer = Transfer { polls: 0, ends: plan.ends, writer: Arc::clone(&writer) };
            fake.transfers.lock().unwrap().insert(status.id(), transfer);
        }
        Self { handles: vec![status], writer, told: Vec::new(), subscribed: Vec::new(), backend }
    }

    /// Another handle every time, as far as there are several.
    fn status(&self, turn: usize) -> &Status {
        &self.handles[turn % self.handles.len()]
    }
}

pub(crate) struct World {
    entries: Vec<Entry>,
    clock: ManualClock,
    policy: WaitPolicy,
    futures: Vec<Option<Gathering<Vec<Status>>>>,
    turn: usize,
}

impl World {
    pub(crate) fn new(plans: &[Plan]) -> Self {
        let fakes = [true, false].map(|notifier| Arc::new(Fake { notifier, ..Fake::default() }));
        let entries = (0..).zip(plans).map(|(number, plan)| Entry::new(plan, &fakes, number)).collect();
        let clock = ManualClock::new();
        let policy = WaitPolicy { clock: clock.clock(), ..WaitPolicy::DEFAULT };
        Self { entries, clock, policy, futures: Vec::new(), turn: 0 }
    }

    pub(crate) fn sight(&self) -> Vec<Sight> {
        let sight = |entry: &Entry| {
            let status = entry.status(self.turn);
            let polls = entry.backend.as_ref().map_or(0, |fake| {
                fake.transfers.lock().unwrap().get(&status.id()).map_or(0, |transfer| transfer.polls)
            });
            let told = entry.told.iter().map(|told| told.0.lock().unwrap().clone()).collect();
            assert_eq!(status.error().map(|error| error.kind()), kind_of(status.code()));
            Sight { code: status.code(), message: status.message(), polls, told }
        };
        self.entries.iter().map(sight).collect()
    }

    pub(crate) fn apply(&mut self, operation: &Operation) -> Answer {
        self.turn += 1;
        match operation {
            Operation::Submit(at) => Answer::Yes(self.submit(*at)),
            Operation::Note(at, note) => Answer::Yes(self.note(*at, *note)),
            Operation::End(at, how) => Answer::Yes(end(&self.entries[*at].writer, *how)),
            Operation::Clone(at) => {
                let status = self.entries[*at].status(self.turn).clone();
                self.entries[*at].handles.push(status);
                Answer::Nothing
            }
            Operation::Forget(at) => {
                self.forget(*at);
                Answer::Nothing
            }
            Operation::Poll(at) => Answer::Code(self.entries[*at].status(self.turn).poll()),
            Operation::WaitZero(at) => {
                Answer::Code(self.entries[*at].status(self.turn).wait_with(Timeout::Poll, &self.policy))
            }
            Operation::WaitBounded(at, during) => Answer::Code(self.wait(*at, BOUND.into(), *during)),
            Operation::WaitUnbounded(at, how) => {
                let status = self.entries[*at].status(self.turn);
                let bound = if status.has_notifier() { Timeout::Unbounded } else { BOUND.into() };
                Answer::Code(self.wait(*at, bound, During::End(*at, *how)))
            }
            Operation::Scan(list) => Answer::Outcome(outcome(&scan(&self.list(list)))),
            Operation::ManyZero(want, list) => many(&self.policy, *want, &self.list(list), Timeout::Poll),
            Operation::ManyBounded(want, list, during) => {
                let members = self.list(list);
                self.asleep(*during, || many(&self.policy, *want, &members, BOUND.into()))
            }
            Operation::Subscribe(at) => Answer::Yes(self.subscribe(*at)),
            Operation::Unsubscribe(at) => {
                let entry = &mut self.entries[*at];
                // Those that were told are no subscriptions any more.
                if entry.handles[0].code().is_terminal() {
                    entry.subscribed.clear();
                }
                if let Some(observer) = entry.subscribed.pop() {
                    entry.status(self.turn).unsubscribe(&observer);
                }
                Answer::Nothing
            }
            Operation::Await(list) => {
                let all = self.list(list);
                self.futures.push(Some(Gathering::all(
                    all.into_iter().filter(Status::has_notifier).collect::<Vec<_>>(),
                )));
                self.future(self.futures.len() - 1)
            }
            Operation::AwaitAgain(at) => self.future(*at),
            Operation::DropFuture(at) => {
                if !self.futures.is_empty() {
                    let at = at % self.futures.len();
                    self.futures[at] = None;
                }
                Answer::Nothing
            }
            Operation::Advance(millis) => {
                self.clock.advance(Duration::from_millis(u64::from(*millis)));
                Answer::Nothing
            }
        }
    }

    fn list(&self, list: &[usize]) -> Vec<Status> {
        list.iter().map(|&at| self.entries[at].status(self.turn).clone()).collect()
    }

    fn submit(&self, at: usize) -> bool {
        let writer = self.entries[at].writer.lock().unwrap();
        writer.as_ref().is_some_and(|completer| completer.submit().applied())
    }

    fn note(&self, at: usize, note: u8) -> bool {
        let writer = self.entries[at].writer.lock().unwrap();
        writer.as_ref().is_some_and(|completer| completer.note(note.to_string()).applied())
    }

    /// Drops one handle, or all of them and takes a new one from the writer's side (S6).
    fn forget(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        if entry.handles.len() > 1 {
            entry.handles.pop();
            return;
        }
        let writer = entry.writer.lock().unwrap();
        if let Some(completer) = writer.as_ref() {
            entry.handles.clear();
            entry.handles.push(completer.status());
        }
    }

    fn subscribe(&mut self, at: usize) -> bool {
        let told = Arc::new(Told::default());
        let observer: Arc<dyn Observe> = told.clone();
        let entry = &mut self.entries[at];
        let taken = entry.status(self.turn).subscribe(Arc::clone(&observer));
        if taken {
            entry.told.push(told);
            entry.subscribed.push(observer);
        }
        taken
    }

    fn wait(&self, at: usize, timeout: Timeout, during: During) -> StatusCode {
        let status = self.entries[at].status(self.turn);
        self.asleep(during, || {
            let clock = self.policy.clock.clone();
            let start = clock.now();
            let code = status.wait_with(timeout, &self.policy);
            // W5: in progress means that the bound is used up.
            assert!(code != StatusCode::InProgress || clock.now() - start >= BOUND, "early");
            code
        })
    }

    /// Runs a wait. If it goes to sleep, another thread does something, and then moves the clock to the deadline.
    fn asleep<T>(&self, during: During, wait: impl FnOnce() -> T) -> T {
        let before = self.clock.sleeps();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Acquire pairs with the release below: a wait that is over has slept or it never will.
                while self.clock.sleeps() == before && !over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                if self.clock.sleeps() > before {
                    self.during(during);
                    self.clock.advance(BOUND);
                }
            });
            let answer = wait();
            // Release pairs with the acquire above.
            over.store(true, Ordering::Release);
            answer
        })
    }

    fn during(&self, during: During) {
        match during {
            During::Nothing => {}
            During::Wake => self.clock.advance(Duration::ZERO),
            During::Submit(at) => {
                self.submit(at);
            }
            During::Note(at, note) => {
                self.note(at, note);
            }
            During::End(at, how) => {
                end(&self.entries[at].writer, how);
            }
            During::Poll(at) => {
                self.entries[at].status(self.turn).poll();
            }
        }
    }

    fn future(&mut self, at: usize) -> Answer {
        if self.futures.is_empty() {
            return Answer::Nothing;
        }
        let at = at % self.futures.len();
        match &mut self.futures[at] {
            None => Answer::Nothing,
            Some(future) => {
                let polled = Pin::new(future).poll(&mut Context::from_waker(Waker::noop()));
                Answer::Yes(matches!(polled, Poll::Ready(_)))
            }
        }
    }
}

fn kind_of(code: StatusCode) -> Option<ErrorKind> {
    match code {
        StatusCode::Failure(kind) => Some(kind),
        _ => None,
    }
}

fn many(policy: &WaitPolicy, want: Want, members: &[Status], timeout: Timeout) -> Answer {
    match want {
        Want::All => Answer::Outcome(outcome(&policy.wait_all(members, timeout))),
        Want::FirstFailure => Answer::Outcome(outcome(&policy.wait_first_failure(members, timeout))),
        Want::Some(count) => Answer::Outcome(outcome(&policy.wait_some(members, count, timeout))),
        Want::Any => Answer::Index(policy.wait_any(members, timeout)),
    }
}

fn outcome(outcome: &mori_core::Outcome) -> Outcome {
    Outcome {
        code: outcome.code(),
        failed: outcome
            .failed()
            .iter()
            .map(|member| {
                let message = member.error.as_ref().map(|error| error.message().to_owned());
                (member.index, member.code, message.unwrap_or_default())
            })
            .collect(),
        unfinished: outcome.unfinished().iter().map(|member| (member.index, member.code)).collect(),
    }
}
