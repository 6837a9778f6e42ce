//! A peer that this engine may connect to, and its connections.

use std::fmt;
use std::sync::Arc;

use crate::sync::Mutex;
use mori_core::{EngineKey, Error, ErrorKind, Result};

use crate::handshake::Identity;
use crate::lane::Lane;
use crate::shared::Shared;
use crate::worker::Command;

pub(crate) struct Peer {
    pub(crate) key: EngineKey,
    pub(crate) instance: [u8; 16],
    state: Mutex<State>,
}

struct State {
    host: String,
    port: u16,
    lanes: Vec<Option<Arc<Lane>>>,
    /// Why it is not to be used any more.
    gone: Option<Error>,
    /// Whether the last connection ended, or could not be made.
    lost: bool,
}

impl Peer {
    pub(crate) fn new(identity: Identity, host: String, port: u16, lanes: usize) -> Arc<Self> {
        Arc::new(Self {
            key: identity.key,
            instance: identity.instance,
            state: Mutex::new(State { host, port, lanes: vec![None; lanes], gone: None, lost: false }),
        })
    }

    /// The same engine at another address.
    pub(crate) fn moved_to(&self, host: String, port: u16) {
        let mut state = self.state.lock();
        state.host = host;
        state.port = port;
    }

    pub(crate) fn address(&self) -> (String, u16) {
        let state = self.state.lock();
        (state.host.clone(), state.port)
    }

    /// Whether the engine that answered is this one.
    pub(crate) fn check(&self, who: &Identity) -> Result<()> {
        let (host, port) = self.address();
        if who.key != self.key {
            return Err(Error::new(
                ErrorKind::PeerLost,
                format!(
                    "the engine at {host}:{port} is {}, not {}; exchange descriptors again",
                    who.key, self.key
                ),
            ));
        }
        if who.instance != self.instance {
            return Err(Error::new(
                ErrorKind::PeerLost,
                format!(
                    "engine {} was restarted; descriptors of its earlier incarnation are stale, exchange them again",
                    self.key
                ),
            ));
        }
        Ok(())
    }

    pub(crate) fn gone(&self) -> Option<Error> {
        self.state.lock().gone.clone()
    }

    /// Whether a transfer can be expected to work.
    pub(crate) fn alive(&self) -> bool {
        let state = self.state.lock();
        state.gone.is_none() && (!state.lost || state.lanes.iter().flatten().any(|lane| lane.is_open()))
    }

    /// A connection stands.
    pub(crate) fn connected(&self) {
        self.state.lock().lost = false;
    }

    /// A connection has ended or could not be made.
    pub(crate) fn disconnected(&self, lane: &Arc<Lane>) {
        let mut state = self.state.lock();
        state.lost = true;
        let ended =
            |slot: &&mut Option<Arc<Lane>>| slot.as_ref().is_some_and(|known| Arc::ptr_eq(known, lane));
        // Its socket is not kept until the next transfer, which may never come.
        state.lanes.iter_mut().filter(ended).for_each(|slot| *slot = None);
    }

    /// The connections for a transfer, making those that are missing: all of them if it is to be striped, else the one with
    /// the least under way.
    pub(crate) fn lanes(self: &Arc<Self>, shared: &Arc<Shared>, striped: bool) -> Result<Vec<Arc<Lane>>> {
        let mut state = self.state.lock();
        if let Some(gone) = &state.gone {
            return Err(gone.clone());
        }
        for slot in &mut state.lanes {
            if slot.as_ref().is_none_or(|lane| lane.is_closed()) {
                *slot = Some(shared.dial(self)?);
            }
        }
        let lanes = state.lanes.iter().flatten();
        Ok(if striped {
            lanes.cloned().collect()
        } else {
            lanes.min_by_key(|lane| lane.load()).cloned().into_iter().collect()
        })
    }

    /// Ends every connection because the peer is lost; new transfers try again.
    pub(crate) fn lose(&self, why: &Error) {
        let lanes: Vec<_> = {
            let mut state = self.state.lock();
            state.lost = true;
            state.lanes.iter_mut().filter_map(Option::take).collect()
        };
        for lane in lanes {
            lane.worker.send(Command::Close { token: lane.token, why: why.clone() });
        }
    }

    /// Ends every connection for good.
    pub(crate) fn retire(&self, why: &Error) {
        self.state.lock().gone.get_or_insert_with(|| why.clone());
        self.lose(why);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("key", &self.key).finish_non_exhaustive()
    }
}
