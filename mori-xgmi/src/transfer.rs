//! A transfer under way.
//!
//! # Protocol
//!
//! 1. *Running*: copies are queued; the transfer has pins, a hold on the target, an event. Whoever finds the event complete
//!    moves it to *quiet* and gives all of that back, also if nobody polls the status.
//! 2. *Quiet*: no byte can land any more, and the result is known. Whoever may complete the status moves it to *over*.
//! 3. The stage's lock is never held across a call of the runtime. The event is looked at through a handle of its own, so that it
//!    is not reused meanwhile.
//! 4. An event that answers with an error proves nothing about the copies (contract E1): the transfer is doomed, and its
//!    stream is asked instead. A stream that fails as well is a device that has stopped.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use mori_core::{Clock, Completer, Error, ErrorKind, Pin, TransferId};

use crate::device::Lent;
use crate::hip::{Failure, Landings, Stream};
use crate::peer::{Hold, Peer, lost};
use crate::sync::lock;

/// One transfer.
pub(crate) struct Transfer {
    completer: Completer,
    pub(crate) peer: Arc<Peer>,
    /// For messages.
    bytes: u64,
    stage: Mutex<Stage>,
    /// Why it fails when it is quiet, whatever the copies say.
    doom: Mutex<Option<Error>>,
}

enum Stage {
    Running(Running),
    Quiet(Result<(), Error>, Instant),
    Over,
}

/// What a transfer has while its copies are under way.
pub(crate) struct Running {
    pub(crate) probe: Probe,
    pub(crate) pin: Pin,
    pub(crate) hold: Hold,
    /// The token of its callback, if it has one.
    pub(crate) token: Option<usize>,
}

/// What tells whether the copies are over.
#[derive(Clone)]
pub(crate) enum Probe {
    /// The event that was recorded behind them.
    Event(Arc<Lent>, Arc<Stream>),
    /// The stream, with whatever was queued since.
    Stream(Arc<Stream>),
}

impl Probe {
    fn query(&self) -> Result<bool, Failure> {
        match self {
            Self::Event(event, _) => event.event().map_or(Ok(true), crate::hip::Event::query),
            Self::Stream(stream) => stream.query(),
        }
    }
}

/// Who looks at a transfer, and so what may be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looker {
    /// A waiter, or the notifier: completes the status.
    Waiter,
    /// The housekeeping: completes statuses that nobody has polled since this point, and doomed ones.
    Keeper(Instant),
}

impl Transfer {
    pub(crate) fn new(
        completer: Completer,
        peer: Arc<Peer>,
        bytes: u64,
        running: Running,
        doom: Option<Error>,
    ) -> Self {
        Self { completer, peer, bytes, stage: Mutex::new(Stage::Running(running)), doom: Mutex::new(doom) }
    }

    pub(crate) fn id(&self) -> TransferId {
        self.completer.id()
    }

    /// It fails with this error as soon as it is quiet, unless it is doomed already.
    pub(crate) fn doom(&self, error: Error) {
        lock(&self.doom).get_or_insert(error);
    }

    /// Remembers the token of its callback. Says whether the transfer is still running.
    pub(crate) fn set_token(&self, token: usize) -> bool {
        match &mut *lock(&self.stage) {
            Stage::Running(running) => {
                running.token = Some(token);
                true
            }
            _ => false,
        }
    }

    /// The event to synchronise on, if there is one.
    pub(crate) fn probe(&self) -> Option<Probe> {
        match &*lock(&self.stage) {
            Stage::Running(running) => Some(running.probe.clone()),
            _ => None,
        }
    }

    /// Looks whether the copies are over, and moves the transfer on. Returns whether it is over.
    pub(crate) fn look(&self, looker: Looker) -> bool {
        if let Some(probe) = self.probe() {
            match probe.query() {
                Ok(false) => return false,
                Ok(true) => self.land(Ok(())),
                Err(failure) => {
                    if !self.strike(&probe, failure) {
                        return false;
                    }
                }
            }
        }
        self.complete(looker)
    }

    /// The probe has failed. Returns whether the transfer is quiet now (rule 4).
    pub(crate) fn strike(&self, probe: &Probe, failure: Failure) -> bool {
        let error = Error::from(failure).context(format_args!("the copies of {} bytes failed", self.bytes));
        match probe {
            Probe::Event(_, stream) => {
                self.doom(error);
                let spent = {
                    let mut stage = lock(&self.stage);
                    let Stage::Running(running) = &mut *stage else { return true };
                    std::mem::replace(&mut running.probe, Probe::Stream(Arc::clone(stream)))
                };
                drop(spent);
                false
            }
            Probe::Stream(_) => {
                self.land(Err(error));
                true
            }
        }
    }

    /// Running to quiet.
    fn land(&self, result: Result<(), Error>) {
        // The peer is asked before its hold is given back, and outside of the lock.
        let running = {
            let mut stage = lock(&self.stage);
            match std::mem::replace(&mut *stage, Stage::Over) {
                Stage::Running(running) => {
                    let alive = running.hold.is_alive();
                    let result = match lock(&self.doom).take() {
                        Some(doom) => Err(doom),
                        None if !alive => Err(lost(&self.peer.key)),
                        None => result,
                    };
                    *stage = Stage::Quiet(result, Clock::system().now());
                    running
                }
                other => {
                    *stage = other;
                    return;
                }
            }
        };
        let Running { probe, pin, hold, token } = running;
        if let Some(token) = token {
            Landings::forget(token);
        }
        drop((pin, hold, probe));
    }

    /// Quiet to over. Returns whether it is over.
    fn complete(&self, looker: Looker) -> bool {
        let result = {
            let mut stage = lock(&self.stage);
            match std::mem::replace(&mut *stage, Stage::Over) {
                Stage::Over => return true,
                Stage::Quiet(Ok(()), since) if matches!(looker, Looker::Keeper(horizon) if since > horizon) =>
                {
                    *stage = Stage::Quiet(Ok(()), since);
                    return false;
                }
                Stage::Quiet(result, _) => result,
                running @ Stage::Running(_) => {
                    *stage = running;
                    return false;
                }
            }
        };
        // Whether it is applied does not matter: only a shutdown that has given the device up ends a status before.
        let _ = match result {
            Ok(()) => self.completer.succeed(),
            Err(error) => self.completer.fail(error),
        };
        true
    }

    /// Ends the status of a transfer whose device does not finish; what it holds stays held.
    pub(crate) fn give_up(&self) {
        let _ = self.completer.fail(Error::new(
            ErrorKind::Device,
            format!(
                "the device has not finished the copies of {} bytes by the end of the shutdown; they may still land, so the memory of both sides stays registered until they have",
                self.bytes
            ),
        ));
    }
}
