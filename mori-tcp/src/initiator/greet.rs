//! The handshake as the initiator goes through it; see [`crate::handshake`].

use std::sync::Arc;

use mori_core::{Error, ErrorKind, Result};

use super::{Initiator, Phase, Step, closed_by};
use crate::handshake;
use crate::shared::Shared;

impl Initiator {
    pub(super) fn greeting(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        let Phase::Greeting { socket, step, received, out } = &mut self.phase else { return Ok(false) };
        let lane = &self.lane;
        self.reader.some(socket, received).map_err(|error| closed_by(lane, &error))?;
        let Some(message) = handshake::take_message(received)? else { return Ok(!self.reader.is_drained()) };
        let secret = shared.config.secret.as_ref();
        match step {
            Step::Challenge { own } => {
                let (target, proof) = handshake::prove(&message, own, secret)?;
                out.extend_from_slice(&proof);
                *step = Step::Accept { own: *own, target };
            }
            Step::Accept { own, target } => {
                let own_identity = shared.identity()?;
                let (who, identity) = handshake::identify(&message, (own, target), secret, &own_identity)?;
                self.peer.check(&who)?;
                out.extend_from_slice(&identity);
                crate::send_all(socket, out).map_err(|error| closed_by(lane, &error))?;
                if !out.is_empty() {
                    return Err(Error::new(
                        ErrorKind::PeerLost,
                        "the peer takes no bytes during the handshake",
                    ));
                }
                return self.opened(shared);
            }
        }
        crate::send_all(socket, out).map_err(|error| closed_by(lane, &error))?;
        Ok(true)
    }

    fn opened(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        let Phase::Greeting { socket, received, .. } = std::mem::replace(&mut self.phase, Phase::Open) else {
            return Ok(false);
        };
        self.reader.unread(&received).map_err(|error| closed_by(&self.lane, &error))?;
        tracing::debug!(peer = %self.lane.peer, "connected");
        self.peer.connected();
        self.split(&socket).map_err(|error| closed_by(&self.lane, &error))?;
        self.lane.open(socket);
        self.alive(shared.clock.now());
        self.send(shared)?;
        Ok(true)
    }
}
