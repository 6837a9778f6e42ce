//! An engine on this host, as this one knows it.

use std::sync::Arc;
use std::time::Instant;

use mori_core::{Error, Result};

use crate::blob::EngineBlob;
use crate::conn::Conn;
use crate::handshake::Identity;
use crate::obstacle::Obstacle;
use crate::shared::Shared;
use crate::sync::Mutex;
use crate::waiter::Broken;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) identity: Identity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    blob: EngineBlob,
    conn: Option<Arc<Conn>>,
    /// Why there was no connection at all, the last time that one was wanted.
    failed: Option<(Broken, Instant)>,
    /// Why it is not used any more.
    retired: Option<Error>,
}

impl Peer {
    pub(crate) fn new(identity: Identity, blob: EngineBlob) -> Arc<Self> {
        let state = State { blob, conn: None, failed: None, retired: None };
        Arc::new(Self { identity, state: Mutex::new(state) })
    }

    /// The same incarnation under another address.
    pub(crate) fn moved_to(&self, blob: EngineBlob) {
        self.state.lock().blob = blob;
    }

    /// The connection, made anew if there is none. It may be on its way still.
    ///
    /// # Errors
    ///
    /// What stands in the way.
    pub(crate) fn conn(&self, shared: &Arc<Shared>) -> Result<Arc<Conn>> {
        let mut state = self.state.lock();
        if let Some(retired) = &state.retired {
            return Err(retired.clone());
        }
        let now = shared.clock.now();
        if let Some(conn) = &state.conn {
            if !conn.is_dead() {
                return Ok(Arc::clone(conn));
            }
            // One that did not answer is not waited for again and again.
            if let Some((obstacle @ Obstacle::Silent, at)) = conn.obstacle()
                && now.saturating_duration_since(at) < shared.config.connect_timeout
            {
                return Err(obstacle.error());
            }
        }
        match self.dial(shared, &state.blob) {
            Ok(conn) => {
                state.conn = Some(Arc::clone(&conn));
                state.failed = None;
                Ok(conn)
            }
            Err(broken) => {
                let why = broken.why.clone();
                state.failed = Some((broken, now));
                Err(why)
            }
        }
    }

    fn dial(&self, shared: &Arc<Shared>, blob: &EngineBlob) -> Result<Arc<Conn>, Broken> {
        if blob.boot != shared.boot()? {
            return Err(Obstacle::OtherHost.into());
        }
        let conn = Conn::dial(shared, shared.control.fresh_token(), &self.identity, blob)?;
        shared.control.dial(shared, &conn)?;
        Ok(conn)
    }

    /// An open connection, waiting for one if need be.
    ///
    /// # Errors
    ///
    /// What stands in the way.
    pub(crate) fn reach(&self, shared: &Arc<Shared>) -> Result<Arc<Conn>> {
        let conn = self.conn(shared)?;
        // Twice the bound: the control thread's clock decides, this is the net under it.
        let deadline = shared.clock.deadline(shared.config.connect_timeout.saturating_mul(2));
        conn.wait_open(deadline)?;
        Ok(conn)
    }

    /// What stood in the way the last time, if something did.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        let state = self.state.lock();
        let failed = state.failed.as_ref().and_then(|(broken, _)| broken.obstacle.clone());
        failed.or_else(|| state.conn.as_ref()?.obstacle().map(|(obstacle, _)| obstacle))
    }

    /// Why it is not used any more, if so.
    pub(crate) fn retired(&self) -> Option<Error> {
        self.state.lock().retired.clone()
    }

    /// Whether it is connected, or not known to be lost.
    pub(crate) fn alive(&self) -> bool {
        let state = self.state.lock();
        state.retired.is_none()
            && state.failed.is_none()
            && state.conn.as_ref().is_none_or(|conn| !conn.is_dead())
    }

    /// Ends its connection for good.
    pub(crate) fn retire(&self, shared: &Shared, why: &Error) {
        let conn = {
            let mut state = self.state.lock();
            state.retired.get_or_insert_with(|| why.clone());
            state.conn.take()
        };
        if let Some(conn) = conn {
            conn.close(&Broken::from(why.clone()), shared.clock.now());
            shared.control.forget(conn.token);
        }
    }
}
