//! What the runtime's own threads call when a stream gets there.
//!
//! # Protocol
//!
//! 1. A token is a number that is never used twice in a process. It goes into the library as the callback's argument, so
//!    that a callback that never comes leaks nothing, and one that comes late finds nothing.
//! 2. The callback looks the token up and hands the transfer's number to its backend's inbox. It makes no call of the
//!    library, which would deadlock, and blocks on two short locks only.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex};

use mori_core::TransferId;

use super::sys;
use crate::sync::lock;

/// Where callbacks go: transfers whose copies are over, in the order of their ends.
#[derive(Default)]
pub(crate) struct Landings {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    landed: VecDeque<TransferId>,
    kicked: bool,
}

static NEXT: AtomicUsize = AtomicUsize::new(1);
/// Which transfer of which backend a token stands for.
type Tokens = HashMap<usize, (Arc<Landings>, TransferId)>;
static TOKENS: LazyLock<Mutex<Tokens>> = LazyLock::new(Mutex::default);

impl Landings {
    /// A token for the end of `transfer`'s copies.
    pub(crate) fn expect(self: &Arc<Self>, transfer: TransferId) -> usize {
        let token = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&TOKENS).insert(token, (Arc::clone(self), transfer));
        token
    }

    /// Forgets a token.
    pub(crate) fn forget(token: usize) {
        lock(&TOKENS).remove(&token);
    }

    /// Waits for a landing, a [`kick`](Landings::kick) or the end of `most`, and takes what has landed.
    pub(crate) fn wait(&self, most: Option<std::time::Duration>) -> Vec<TransferId> {
        let mut state = lock(&self.state);
        while state.landed.is_empty() && !state.kicked {
            state = match most {
                None => self.arrived.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner),
                Some(most) => {
                    let waited = self.arrived.wait_timeout(state, most);
                    let (mut state, ended) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
                    if ended.timed_out() {
                        state.kicked = true;
                    }
                    state
                }
            };
        }
        state.kicked = false;
        state.landed.drain(..).collect()
    }

    /// Ends a wait.
    pub(crate) fn kick(&self) {
        lock(&self.state).kicked = true;
        self.arrived.notify_all();
    }

    fn land(token: usize) {
        let Some((landings, transfer)) = lock(&TOKENS).remove(&token) else { return };
        lock(&landings.state).landed.push_back(transfer);
        landings.arrived.notify_all();
    }
}

/// For `hipLaunchHostFunc`.
pub(super) unsafe extern "C" fn landed(token: *mut c_void) {
    // A panic must not cross into the library; there is nothing here that panics, and nobody to tell.
    let _ = catch_unwind(|| Landings::land(token.addr()));
}

/// For `hipStreamAddCallback`. The code is not looked at: the event says the same, and is asked anyway.
pub(super) unsafe extern "C" fn landed_on_stream(_stream: sys::Stream, _code: sys::Code, token: *mut c_void) {
    let _ = catch_unwind(|| Landings::land(token.addr()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_landing_reaches_its_own_backend_once() {
        let (mine, other) = (Arc::new(Landings::default()), Arc::new(Landings::default()));
        let (first, second) = (TransferId::fresh(), TransferId::fresh());
        let (a, b) = (mine.expect(first), other.expect(second));
        Landings::land(a);
        Landings::land(a);
        Landings::forget(b);
        Landings::land(b);
        assert_eq!(mine.wait(None), [first]);
        assert_eq!(mine.wait(Some(Duration::ZERO)), []);
        assert_eq!(other.wait(Some(Duration::ZERO)), []);
    }
}
