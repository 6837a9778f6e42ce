//! Messages about transfers that other backends carry: a transfer without bytes and memory, whose message is all of it.

use std::sync::{Arc, Weak};

use mori_core::{Backend, Error, ErrorKind, Message, Messenger, Origin, Result, Status};

use crate::peer::Peer;
use crate::shared::Shared;
use crate::transfer::Transfer;

pub(crate) struct TcpMessenger {
    pub(crate) shared: Arc<Shared>,
    pub(crate) backend: Weak<dyn Backend>,
    pub(crate) peer: Arc<Peer>,
}

impl Messenger for TcpMessenger {
    fn send(&self, message: &Message) -> Status {
        let backend = Some(Weak::clone(&self.backend));
        let (completer, status) =
            Status::pair(Origin { id: message.transfer, tag: message.tag, backend, notifier: true });
        completer.submit();
        let transfer = Transfer::message(completer, message, &self.shared);
        if let Err(error) = self.start(&transfer) {
            transfer.fail(error);
        }
        // The last count: the message goes out, on whatever connection was found.
        transfer.release();
        status
    }
}

impl TcpMessenger {
    fn start(&self, transfer: &Arc<Transfer>) -> Result<()> {
        self.shared.remember(transfer)?;
        let lanes = self.peer.lanes(&self.shared, false)?;
        let lane =
            lanes.first().ok_or_else(|| Error::new(ErrorKind::PeerLost, "the peer has no connection"))?;
        transfer.route_note(lane);
        Ok(())
    }
}
