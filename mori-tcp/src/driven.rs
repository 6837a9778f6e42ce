//! An initiator's connection as two kinds of threads share it: its I/O thread, and a thread that waits for an answer.
//!
//! A waiting thread that has just submitted may *linger*: it takes the socket off the list of what the I/O thread is told
//! about, reads and carries out the answers itself for as long as they come, and gives the socket back when its wait is over or
//! nothing has come for the busy window. That saves two wake-ups: the I/O thread's and its own. Giving the socket back makes
//! the system look at it afresh, so nothing that arrived meanwhile is overlooked. The I/O thread keeps all other duties, the
//! clock's above all, and gets its turn between any two steps of the waiting thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mori_core::Error;

use crate::initiator::Initiator;
use crate::lane::Lane;
use crate::peer::Peer;
use crate::shared::Shared;
use crate::sync::{Mutex, MutexGuard};
use crate::worker::Command;

thread_local! {
    static DRIVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread carries out answers in place of an I/O thread, and observers on it must not wait for one.
pub(crate) fn is_driving() -> bool {
    DRIVING.get()
}

pub(crate) struct Driven {
    conn: Mutex<Initiator>,
    /// How many I/O threads want it; only a hint, the lock orders everything.
    wanted: AtomicUsize,
}

impl Driven {
    pub(crate) fn new(lane: Arc<Lane>, peer: Arc<Peer>, now: Instant, timeout: Duration) -> Arc<Self> {
        let conn = Initiator::new(lane, peer, now, timeout);
        Arc::new_cyclic(|driven| {
            conn.lane.read_by(Weak::clone(driven));
            Self { conn: Mutex::new(conn), wanted: AtomicUsize::new(0) }
        })
    }

    /// For the I/O thread: a waiting thread makes way within one step.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Initiator) -> R) -> R {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut conn = self.conn.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        work(&mut conn)
    }

    /// Reads on the calling thread until `over` says so, or nothing has come for the busy window. Does nothing if another
    /// thread does it already.
    pub(crate) fn linger(&self, shared: &Arc<Shared>, over: &dyn Fn() -> bool) {
        // An observer that waits is on a thread that drives already.
        if is_driving() {
            return;
        }
        let Some(conn) = self.conn.try_lock().filter(|conn| conn.is_open()) else { return };
        if let Some(mut taken) = Taken::new(conn) {
            taken.drive(shared, &self.wanted, over);
        }
    }
}

/// The socket while it is off its I/O thread's list. Whatever happens, also to an observer, it goes back.
struct Taken<'a> {
    conn: MutexGuard<'a, Initiator>,
}

impl<'a> Taken<'a> {
    fn new(mut conn: MutexGuard<'a, Initiator>) -> Option<Self> {
        if !conn.take() {
            return None;
        }
        DRIVING.set(true);
        Some(Self { conn })
    }

    fn drive(&mut self, shared: &Arc<Shared>, wanted: &AtomicUsize, over: &dyn Fn() -> bool) {
        let window = shared.config.busy_window;
        let mut until = shared.clock.now() + window;
        while !over() && self.conn.is_open() {
            match self.conn.look(shared) {
                Ok(true) => until = shared.clock.now() + window,
                Ok(false) if shared.clock.now() >= until => return,
                // Who is to answer may need this processor.
                Ok(false) => std::thread::yield_now(),
                Err(why) => {
                    self.close(why);
                    return;
                }
            }
            if wanted.load(Ordering::Relaxed) > 0 {
                MutexGuard::bump(&mut self.conn);
            }
        }
    }
}

impl Taken<'_> {
    /// Asks the I/O thread to end the connection.
    fn close(&self, why: Error) {
        let lane = &self.conn.lane;
        lane.worker.send(Command::Close { token: lane.token, why });
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        DRIVING.set(false);
        if let Err(why) = self.conn.give_back() {
            self.close(why);
        }
    }
}
