//! A peer that this engine may reach: its flow, its link, and what has to be done for them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mori_core::{EngineKey, Error, ErrorKind, Result};

use crate::control::{FailureNote, Link, LinkId, Target};
use crate::core::Core;
use crate::flow::{Actions, Finished, Flow, LateNote};
use crate::sync::{Condvar, Mutex};

pub(crate) struct Peer {
    pub(crate) key: EngineKey,
    /// `None` for an existing peer, which does not say.
    pub(crate) instance: Option<[u8; 16]>,
    addresses: Mutex<Vec<(String, u16)>>,
    flow: Mutex<Flow>,
    changed: Condvar,
    link: Mutex<Option<Arc<Link>>>,
    /// Held by whoever connects, so that one connection is made.
    gate: Mutex<()>,
    gone: OnceLock<Error>,
    busy: AtomicBool,
}

impl Peer {
    /// A peer with `devices` devices.
    pub(crate) fn new(
        core: &Core,
        key: EngineKey,
        instance: Option<[u8; 16]>,
        address: (String, u16),
        devices: usize,
    ) -> Arc<Self> {
        let remotes = (0..core.nics.len()).map(|local| local % devices.max(1));
        let flow = Flow::new(key.clone(), core.settings(), remotes);
        Arc::new(Self {
            key,
            instance,
            addresses: Mutex::new(vec![address]),
            flow: Mutex::new(flow),
            changed: Condvar::new(),
            link: Mutex::default(),
            gate: Mutex::default(),
            gone: OnceLock::new(),
            busy: AtomicBool::new(false),
        })
    }

    /// The same engine at another address.
    pub(crate) fn moved_to(&self, address: (String, u16)) {
        *self.addresses.lock() = vec![address];
    }

    pub(crate) fn gone(&self) -> Option<Error> {
        self.gone.get().cloned()
    }

    /// Looks at the flow.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Flow) -> R) -> R {
        look(&self.flow.lock())
    }

    /// Does something with the flow, and then what the flow wants done.
    pub(crate) fn drive<R>(
        self: &Arc<Self>,
        core: &Arc<Core>,
        act: impl FnOnce(&mut Flow, Instant, &mut Actions) -> R,
    ) -> R {
        let mut out = Actions::default();
        let now = core.clock.now();
        let (result, wake) = {
            let mut flow = self.flow.lock();
            let result = act(&mut flow, now, &mut out);
            if core.polls() {
                self.note_busy(core, flow.is_busy());
            }
            (result, flow.next_wake())
        };
        core.wake_by(wake);
        self.carry_out(core, out);
        result
    }

    /// Counts the peers that completions are expected of, for the notifier that polls.
    fn note_busy(&self, core: &Core, busy: bool) {
        // The flow's lock is held, so that the two changes do not overtake each other.
        if self.busy.swap(busy, Ordering::Relaxed) != busy {
            if busy {
                core.busy.fetch_add(1, Ordering::Relaxed);
                core.ring();
            } else {
                core.busy.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn carry_out(self: &Arc<Self>, core: &Arc<Core>, out: Actions) {
        let Actions { finished, fail, destroy, garbage, gone, connect, retire, notes } = out;
        fail.iter().for_each(|wire| wire.fail());
        drop(fail);
        gone.into_iter().for_each(|number| core.forget_queue(number));
        drop(garbage);
        for (number, wire) in destroy {
            core.forget_queue(number);
            drop(wire);
            self.drive(core, |flow, now, out| flow.destroyed(number, now, out));
        }
        for Finished { completer, pin, result } in finished {
            // The pin first: whoever sees the end may deregister the region at once (E3).
            drop(pin);
            crate::guarded(|| match result {
                Ok(()) => completer.succeed(),
                Err(error) => completer.fail(error),
            });
        }
        notes.into_iter().for_each(|note| self.note(note));
        for path in connect {
            let peer = Arc::clone(self);
            let started = core.errand(move |core| peer.connect(core, path));
            if let Err(error) = started {
                self.drive(core, |flow, now, out| flow.connected(path, Vec::new(), Some(error), now, out));
            }
        }
        for lane in retire {
            let peer = Arc::clone(self);
            let started = core.errand(move |core| {
                let answer = peer.retire_lane(core, lane);
                peer.drive(core, |flow, now, out| flow.retired(lane, &answer, now, out));
            });
            if let Err(error) = started {
                self.drive(core, |flow, now, out| flow.retired(lane, &Err(error), now, out));
            }
        }
        self.changed.notify_all();
    }

    /// Tells the target of a failure over the link, if it stands.
    fn note(&self, note: LateNote) {
        let Some(link) = self.open_link() else { return };
        let LateNote { transfer, tag, message, error } = note;
        let failure = FailureNote { lane: 0, transfer, tag, message, error };
        if let Err(error) = link.note_failure(&failure) {
            tracing::debug!(peer = %self.key, %error, "a failure could not be reported to its target");
        }
    }

    fn open_link(&self) -> Option<Arc<Link>> {
        self.link.lock().clone().filter(|link| link.is_open())
    }

    /// Does what is due.
    pub(crate) fn tick(self: &Arc<Self>, core: &Arc<Core>) {
        let heard = self.open_link().map(|link| link.heard());
        self.drive(core, |flow, now, out| {
            flow.set_heard(heard);
            flow.tick(now, out);
        });
    }

    /// The link to the peer, making it if there is none. Blocks.
    pub(crate) fn link(self: &Arc<Self>, core: &Core, bound: Duration) -> Result<Arc<Link>> {
        let _gate = self.gate.lock();
        if let Some(gone) = self.gone() {
            return Err(gone);
        }
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        let target = Target {
            key: self.key.clone(),
            instance: self.instance,
            addresses: self.addresses.lock().clone(),
        };
        let link = core.server()?.connect(&target, core.deadline(bound))?;
        core.links.lock().insert(link.id(), Arc::downgrade(self));
        *self.link.lock() = Some(Arc::clone(&link));
        if let Some(gone) = self.gone() {
            self.close_link(core);
            return Err(gone);
        }
        if !link.is_open() {
            self.close_link(core);
            return Err(self.lost());
        }
        Ok(link)
    }

    fn close_link(&self, core: &Core) {
        let link = self.link.lock().take();
        if let Some(link) = link {
            core.links.lock().remove(&link.id());
            link.close();
        }
    }

    fn lost(&self) -> Error {
        let words = format!("the connection to engine {} ended; it has shut down or died", self.key);
        Error::new(ErrorKind::PeerLost, words)
    }

    /// The link has ended: the peer's process is gone, and with it everything under way.
    pub(crate) fn link_lost(self: &Arc<Self>, core: &Arc<Core>, id: LinkId, cause: &Error) {
        let current = {
            let mut link = self.link.lock();
            let current = link.as_ref().is_some_and(|link| link.id() == id);
            if current { link.take() } else { None }
        };
        core.links.lock().remove(&id);
        if current.is_none() {
            return;
        }
        let lost = if cause.kind() == ErrorKind::PeerLost {
            cause.clone()
        } else {
            Error::new(ErrorKind::PeerLost, cause.message())
        };
        tracing::debug!(peer = %self.key, error = %lost, "peer lost");
        self.drive(core, |flow, now, out| flow.lose(&lost, false, now, out));
    }

    /// Makes sure that the link stands after something was made that depends on it.
    pub(crate) fn check_link(self: &Arc<Self>, core: &Arc<Core>, link: &Link) {
        if !link.is_open() {
            let lost = self.lost();
            self.drive(core, |flow, now, out| flow.lose(&lost, false, now, out));
        }
    }

    /// Has the peer end its side of a lane. Blocks.
    fn retire_lane(&self, core: &Core, lane: u32) -> Result<()> {
        let link = self.open_link().ok_or_else(|| self.lost())?;
        match link.retire_endpoint(u64::from(lane), core.deadline(core.config.peer_timeout)) {
            // Existing peers cannot do it; that this side is quiet is all there is.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            answer => answer,
        }
    }

    /// Has the peer end what it made for a lane that did not come to be.
    pub(crate) fn forget_lane(&self, core: &Arc<Core>, link: &Arc<Link>, lane: u32) {
        let link = Arc::clone(link);
        // Without a thread, the peer keeps it until the link ends.
        let _ = core.errand(move |core| {
            let _ = link.retire_endpoint(u64::from(lane), core.deadline(core.config.peer_timeout));
        });
    }

    /// Waits until a lane stands. Blocks for the configured time at most.
    pub(crate) fn reach(self: &Arc<Self>, core: &Arc<Core>) -> Result<()> {
        if let Some(gone) = self.gone() {
            return Err(gone);
        }
        let until = core.clock.now() + core.config.connect_timeout;
        self.drive(core, |flow, now, out| {
            if !flow.has_lane() {
                for path in 0..flow.paths() {
                    // Somebody asks for it by name, so that earlier failures do not count.
                    flow.forgive(path);
                    if flow.wants(path, now) {
                        out.connect.push(path);
                    }
                }
            }
        });
        let mut flow = self.flow.lock();
        loop {
            if flow.has_lane() {
                return Ok(());
            }
            if let Some(trouble) = flow.trouble() {
                return Err(trouble);
            }
            if self.changed.wait_until(&mut flow, until).timed_out() {
                let words =
                    format!("engine {} was not connected within {:?}", self.key, core.config.connect_timeout);
                return Err(Error::new(ErrorKind::TimedOut, words));
            }
        }
    }

    /// Ends everything with this peer, for good.
    pub(crate) fn retire(self: &Arc<Self>, core: &Arc<Core>, why: &Error) {
        let _ = self.gone.set(why.clone());
        core.leave(self);
        self.drive(core, |flow, now, out| flow.lose(why, true, now, out));
        self.close_link(core);
    }

    /// Waits until no transfer is left; does not wait for devices any more after half of `bound`.
    pub(crate) fn await_end(self: &Arc<Self>, core: &Arc<Core>, bound: Duration) {
        for half in 0..2 {
            let until = core.clock.now() + bound / 2;
            {
                let mut flow = self.flow.lock();
                while flow.held().lanes > 0 || flow.held().transfers > 0 {
                    if self.changed.wait_until(&mut flow, until).timed_out() {
                        break;
                    }
                }
                if flow.held().lanes == 0 && flow.held().transfers == 0 {
                    return;
                }
            }
            if half == 0 {
                self.drive(core, |flow, now, out| flow.give_up_waiting(now, out));
            }
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("key", &self.key).finish_non_exhaustive()
    }
}
