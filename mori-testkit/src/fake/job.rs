//! One transfer of the fake, and how it gets on.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mori_core::{
    Clock, Completer, EngineKey, Error, ErrorKind, Notification, Op, Piece, Pin, Region, Result,
    TransferOptions,
};

use super::core::Core;
use super::fabric::Gate;
use super::locked;
use super::target::Served;
use crate::mutants::Flaw;

/// How many bytes are copied between two looks at the halt.
const CHUNK: usize = 64 << 10;

/// Where a peer was when a transfer was submitted.
#[derive(Clone, Debug)]
pub(super) struct PeerAt {
    pub(super) engine: EngineKey,
    pub(super) address: u64,
    pub(super) instance: [u8; 16],
}

/// Set by whoever wants a job to stop that somebody is advancing; the first reason stays.
pub(super) type Halt = Arc<OnceLock<Error>>;

/// What a job has to do.
pub(super) enum Work {
    /// Move bytes.
    Copy(Copying),
    /// Wait for the script: how it ends, after how many polls.
    Script(Option<(u64, Result<()>)>),
}

pub(super) struct Copying {
    pub(super) op: Op,
    pub(super) pieces: Vec<Piece>,
    pub(super) local: Region,
    pub(super) target: PeerAt,
    pub(super) key: u128,
    pub(super) options: TransferOptions,
}

pub(super) struct Job {
    pub(super) completer: Completer,
    pub(super) pin: Option<Pin>,
    pub(super) submitted: Instant,
    pub(super) halt: Halt,
    pub(super) work: Work,
}

/// Whether a job can get on.
pub(super) enum Reach {
    /// Its target answers.
    Ready(Arc<Core>),
    /// Not now; look again at this point at the latest. The words say what it waits for.
    Later(Option<Instant>, String),
    /// Never.
    Lost(Error),
}

/// What became of a job.
pub(super) enum Step {
    /// It has ended.
    Ended,
    /// It waits, until this point at the latest.
    Waits(Box<Job>, Option<Instant>),
}

impl Job {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.work {
            Work::Copy(copying) => {
                copying.options.deadline.and_then(|bound| self.submitted.checked_add(bound))
            }
            Work::Script(_) => None,
        }
    }

    pub(super) fn target(&self) -> Option<&PeerAt> {
        match &self.work {
            Work::Copy(copying) => Some(&copying.target),
            Work::Script(_) => None,
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

pub(super) fn lost(engine: &EngineKey, why: &str) -> Error {
    Error::new(
        ErrorKind::PeerLost,
        format!("{engine} {why}; what has arrived there is unknown, nothing more arrives here"),
    )
}

impl Core {
    /// Whether a transfer to `target` that was submitted at this point can get on.
    pub(super) fn reach(&self, target: &PeerAt, submitted: Instant) -> Reach {
        let gone = |why| Reach::Lost(lost(&target.engine, why));
        let Some(node) = self.fabric.node(target.address) else {
            return if self.has(Flaw::IgnoresCutLinks) {
                Reach::Later(None, String::new())
            } else {
                gone("is gone")
            };
        };
        let (gate, instance) = node.answers();
        if instance != Some(target.instance) {
            return gone("has shut down or was started anew");
        }
        match gate {
            Gate::Open => Reach::Ready(node),
            Gate::Held => Reach::Later(None, format!("{} has not answered", target.engine)),
            Gate::Cut if self.has(Flaw::IgnoresCutLinks) => Reach::Later(None, String::new()),
            Gate::Cut => gone("is cut off"),
            Gate::Silent(since) => {
                let since = since.max(submitted);
                let until = since.checked_add(self.config.silence);
                let notices = self.config.capabilities.peer_loss && !self.has(Flaw::IgnoresSilence);
                if notices && until.is_none_or(|until| Clock::system().now() >= until) {
                    gone("has been silent for too long")
                } else {
                    let quiet = Clock::system().now().saturating_duration_since(since);
                    Reach::Later(
                        until.filter(|_| notices),
                        format!("{} is silent since {quiet:?}", target.engine),
                    )
                }
            }
        }
    }

    /// Gets a job on as far as it goes without waiting.
    pub(super) fn advance(&self, mut job: Job) -> Step {
        if let Some(error) = job.halt.get().cloned() {
            return self.end(job, Err(error));
        }
        let now = Clock::system().now();
        let deadline = job.deadline().filter(|_| !self.has(Flaw::IgnoresDeadlines));
        let copying = match &mut job.work {
            Work::Script(None) => return Step::Waits(Box::new(job), None),
            Work::Script(Some((_, result))) => {
                let result = result.clone();
                return self.end(job, result);
            }
            Work::Copy(copying) => copying,
        };
        let reach = self.reach(&copying.target, job.submitted);
        let total: u64 = copying.pieces.iter().map(|piece| piece.length).sum();
        if deadline.is_some_and(|deadline| now >= deadline)
            || (deadline.is_some() && self.has(Flaw::DeadlinesAtOnce))
        {
            let waiting = match reach {
                Reach::Ready(_) => "nobody has driven its progress".to_owned(),
                Reach::Later(_, waiting) => waiting,
                Reach::Lost(error) => error.message().to_owned(),
            };
            let words = format!("its deadline has passed with 0 of {total} bytes done: {waiting}");
            let words = if self.has(Flaw::DeadlinesWithoutWords) { "no".to_owned() } else { words };
            return self.end(job, Err(Error::new(ErrorKind::Cancelled, words)));
        }
        match reach {
            Reach::Later(until, _) => Step::Waits(Box::new(job), earlier(until, deadline)),
            Reach::Lost(error) if self.has(Flaw::LostBytesLand) => {
                job.completer.fail(error);
                Step::Waits(Box::new(job), None)
            }
            Reach::Lost(error) => self.end(job, Err(error)),
            Reach::Ready(target) => {
                if self.has(Flaw::CompletesBeforeData) {
                    job.completer.succeed();
                    self.dawdle();
                }
                if self.has(Flaw::CompletesTwice) {
                    job.completer.fail(Error::new(ErrorKind::Transport, "not the last word"));
                }
                let result = self.carry(copying, &job.completer, &target, &job.halt);
                self.end(job, result)
            }
        }
    }

    /// Moves the bytes of one transfer and tells the target.
    fn carry(&self, copying: &Copying, completer: &Completer, target: &Arc<Core>, halt: &Halt) -> Result<()> {
        let served = target.serve(copying)?;
        if self.has(Flaw::NotifiesEarly) {
            self.notify(copying, completer, target, None)?;
            self.dawdle();
        }
        self.copy(copying, &served, halt)?;
        drop(served);
        if self.has(Flaw::NotifiesEarly) {
            return Ok(());
        }
        self.notify(copying, completer, target, None)
    }

    fn copy(&self, copying: &Copying, served: &Served, halt: &Halt) -> Result<()> {
        let mut buffer = vec![0; CHUNK];
        let within = |piece: &Piece| served.region().piece(piece.remote, piece.length).is_ok();
        for piece in self
            .misplaced(&copying.pieces)
            .into_iter()
            .filter(|piece| !self.has(Flaw::IgnoresRanges) || within(piece))
        {
            let mut done = 0;
            while done < piece.length {
                if let Some(error) = halt.get() {
                    return Err(error.clone());
                }
                served.still_answers()?;
                let length = (piece.length - done).min(CHUNK as u64);
                let chunk = buffer.get_mut(..usize::try_from(length).unwrap_or(CHUNK)).unwrap_or_default();
                let (local, remote) = (piece.local + done, piece.remote + done);
                match copying.op {
                    Op::Read => {
                        served.region().read_at(remote, chunk)?;
                        copying.local.write_at(local, chunk)?;
                    }
                    Op::Write => {
                        copying.local.read_at(local, chunk)?;
                        served.region().write_at(remote, chunk)?;
                        if self.has(Flaw::TouchesTheSource) {
                            copying.local.write_at(local, &[0])?;
                        }
                    }
                }
                done += length;
            }
        }
        Ok(())
    }

    /// The pieces as they are, unless a flaw says otherwise.
    fn misplaced(&self, pieces: &[Piece]) -> Vec<Piece> {
        let mut pieces = pieces.to_vec();
        match self.config.flaw {
            Some(Flaw::WritesPastThePiece) => {
                if let Some(last) = pieces.last_mut() {
                    last.length += 1;
                }
            }
            Some(Flaw::LosesTheLastByte) => {
                if let Some(last) = pieces.last_mut() {
                    last.length = last.length.saturating_sub(1);
                }
            }
            Some(Flaw::SwapsPieces) => {
                if let [first, second, ..] = pieces.as_mut_slice() {
                    std::mem::swap(&mut first.remote, &mut second.remote);
                }
            }
            Some(Flaw::DropsPieces) => pieces.truncate(1024),
            Some(Flaw::CutsOffsets) => pieces.iter_mut().for_each(|piece| piece.remote &= 0xffff),
            _ => {}
        }
        pieces
    }

    /// Puts the message of a transfer into the target's queue.
    fn notify(
        &self,
        copying: &Copying,
        completer: &Completer,
        target: &Core,
        error: Option<Error>,
    ) -> Result<()> {
        let Some(notify) = &copying.options.notify else { return Ok(()) };
        let wanted = error.is_none() || notify.on_failure || self.has(Flaw::NotifiesFailuresUnasked);
        let silent = self.has(Flaw::NotifiesNever)
            || (self.has(Flaw::NotifiesWritesOnly) && copying.op == Op::Read)
            || (self.has(Flaw::NotifiesNoFailures) && error.is_some());
        let Some((own, queue)) = self.engine().zip(target.inbox()).filter(|_| wanted && !silent) else {
            return Ok(());
        };
        let mut message = notify.message.clone();
        if self.has(Flaw::CutsMessages) {
            message.truncate(1000);
        }
        let notification =
            Notification { peer: own, transfer: completer.id().get(), tag: completer.tag(), message, error };
        if self.has(Flaw::NotifiesTwice) {
            queue.push(notification.clone())?;
        }
        match queue.push(notification) {
            Err(_) if self.has(Flaw::DropsMessages) => Ok(()),
            pushed => pushed,
        }
    }

    /// Ends a job: its memory is given back first, then the target is told of a failure, then the status.
    pub(super) fn end(&self, job: Job, result: Result<()>) -> Step {
        let Job { completer, pin, work, .. } = job;
        if self.has(Flaw::LeaksPins) {
            std::mem::forget(pin);
        } else {
            drop(pin);
        }
        match result {
            _ if self.forgets(&completer) => std::mem::forget(completer),
            Ok(()) => {
                completer.succeed();
                if self.has(Flaw::CompletesAgain) {
                    completer.fail(Error::new(ErrorKind::Transport, "a second thought"));
                }
            }
            Err(error) if error.kind() == ErrorKind::PeerLost && self.has(Flaw::LossIsSuccess) => {
                drop(error);
                completer.succeed();
            }
            Err(error) => {
                if let Work::Copy(copying) = &work {
                    if error.kind() == ErrorKind::PeerLost && self.has(Flaw::NeverReconnects) {
                        locked(&self.state).lost_once.insert(copying.target.engine.clone());
                    }
                    if let Reach::Ready(target) = self.reach(&copying.target, Clock::system().now()) {
                        // The transfer has failed already; that its message finds no room changes nothing.
                        let _ = self.notify(copying, &completer, &target, Some(error.clone()));
                    }
                }
                completer.fail(error);
            }
        }
        Step::Ended
    }

    fn forgets(&self, completer: &Completer) -> bool {
        self.has(Flaw::ForgetsCompletions) && completer.id().get().is_multiple_of(5)
    }

    /// Gives others time to see what a flaw does too early.
    fn dawdle(&self) {
        let until = Clock::system().now() + Duration::from_millis(15);
        while Clock::system().now() < until {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}
