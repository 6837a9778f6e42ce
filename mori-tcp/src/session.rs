//! Submitting transfers: merging, splitting over connections and requests.

use std::sync::{Arc, Weak};

use mori_core::{
    Backend, Error, ErrorKind, Notify, Op, Origin, Piece, Pin, Region, Result, Session, Status,
    TransferOptions, merge,
};

use crate::config::MAX_PIECES;
use crate::lane::{Lane, Request};
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::regions::{MemoryBlob, may};
use crate::shared::Shared;
use crate::sys::Scatter;
use crate::transfer::{Transfer, TransferDeadline};
use crate::wire::{Header, Kind, encode_pieces};

pub(crate) struct TcpSession {
    pub(crate) shared: Arc<Shared>,
    pub(crate) backend: Weak<dyn Backend>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) local: Region,
    pub(crate) remote: MemoryBlob,
}

impl Session for TcpSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        let (completer, status) = Status::pair(Origin::backend(&self.backend, true, options.tag));
        completer.submit();
        let start = || {
            may(self.remote.access, op == Op::Write)?;
            if let Some(gone) = self.peer.gone() {
                return Err(gone);
            }
            self.local.pin().map(Arc::new)
        };
        let pin = match start() {
            Ok(pin) => pin,
            Err(error) => {
                completer.fail(error);
                return status;
            }
        };
        let pieces = merge(pieces);
        let bytes = pieces.iter().map(|piece| piece.length).sum();
        let deadline = options.deadline.and_then(|after| {
            let at = self.shared.clock.now().checked_add(after)?;
            Some(TransferDeadline { after, at })
        });
        let transfer = Transfer::new(
            completer,
            op,
            bytes,
            Arc::clone(&pin),
            deadline,
            options.notify.clone(),
            &self.shared,
        );
        if let Err(error) = self.start(&transfer, &pin, &pieces) {
            transfer.fail(error);
        }
        // Before the transfer can end, so that no pin outlives it.
        drop(pin);
        transfer.release();
        status
    }

    fn alive(&self) -> bool {
        self.peer.alive()
    }
}

impl TcpSession {
    /// Splits the transfer and submits its requests; on an error, those that were submitted are stopped by the caller.
    fn start(&self, transfer: &Arc<Transfer>, pin: &Arc<Pin>, pieces: &[Piece]) -> Result<()> {
        self.shared.remember(transfer)?;
        let stripe = self.shared.config.stripe_bytes;
        let striped = transfer.bytes >= stripe.saturating_mul(2);
        let lanes = self.peer.lanes(&self.shared, striped)?;
        let Some(first) = lanes.first() else {
            return Err(Error::new(ErrorKind::PeerLost, "the peer has no connection"));
        };
        if pieces.is_empty() {
            // Only the message, if there is one; it is sent when the transfer is released.
            transfer.route_note(first);
            return Ok(());
        }
        let stripes = lanes.len().min(usize::try_from(transfer.bytes / stripe).unwrap_or(usize::MAX)).max(1);
        let share = transfer.bytes.div_ceil(stripes as u64);
        let parts: Vec<_> = lanes
            .iter()
            .zip(split(pieces, share))
            .flat_map(|(lane, part)| {
                part.chunks(MAX_PIECES as usize).map(move |c| (lane, c.to_vec())).collect::<Vec<_>>()
            })
            .collect();
        // A write of a single request takes its message along; otherwise the message waits for the last request.
        let alone = parts.len() == 1 && transfer.op == Op::Write;
        let note = if alone { transfer.take_note() } else { None };
        if !alone {
            transfer.announce(first);
        }
        let count = parts.len();
        for (index, (lane, part)) in parts.into_iter().enumerate() {
            self.request(transfer, lane, Arc::clone(pin), &part, note.as_ref())?;
            if index + 1 < count && transfer.stopping() {
                break;
            }
        }
        Ok(())
    }

    fn request(
        &self,
        transfer: &Arc<Transfer>,
        lane: &Arc<Lane>,
        pin: Arc<Pin>,
        pieces: &[Piece],
        note: Option<&Notify>,
    ) -> Result<()> {
        let id = lane.fresh_request();
        let bytes = pieces.iter().map(|piece| piece.length).sum();
        let scatter = Scatter::new(pin, pieces.iter().map(|piece| (piece.local, piece.length)))?;
        let mut header = Header {
            key: self.remote.key,
            b: bytes,
            count: u32::try_from(pieces.len()).unwrap_or(u32::MAX),
            ..Header::new(if transfer.op == Op::Read { Kind::Read } else { Kind::Write }, id)
        };
        let mut body = Vec::new();
        if let [only] = pieces {
            header.a = only.remote;
        } else {
            body.reserve_exact(pieces.len() * crate::wire::PIECE);
            encode_pieces(&mut body, pieces.iter().map(|piece| (piece.remote, piece.length)));
        }
        let transfer_again = Arc::clone(transfer);
        let (request, outgoing) = match transfer.op {
            Op::Read => {
                (Request::Read { transfer: transfer_again, scatter, bytes }, Outgoing::frame(header, &body))
            }
            Op::Write => {
                let chunk = self.shared.config.chunk_bytes;
                let (outgoing, sending) = Outgoing::write(header, &body, scatter, chunk);
                (Request::Write { transfer: transfer_again, bytes, sending }, outgoing)
            }
        };
        transfer.add(lane, id);
        if note.is_some() {
            transfer.add_note();
        }
        let submitted = lane.submit(transfer, id, request, outgoing, note);
        if let Err(error) = submitted {
            // Neither the request nor its note was entered, so both are quiet.
            if note.is_some() {
                transfer.release();
            }
            transfer.quiet(Err(error));
        } else if transfer.stopping() {
            // It was stopped while this request was on its way into the table.
            lane.cancel(id);
        }
        Ok(())
    }
}

/// Splits pieces, in order, into parts of `share` bytes each; the last may be shorter.
fn split(pieces: &[Piece], share: u64) -> Vec<Vec<Piece>> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut room = share;
    for piece in pieces {
        let mut piece = *piece;
        while piece.length > room {
            part.push(Piece { length: room, ..piece });
            piece = Piece::new(
                piece.local.wrapping_add(room),
                piece.remote.wrapping_add(room),
                piece.length - room,
            );
            parts.push(std::mem::take(&mut part));
            room = share;
        }
        room -= piece.length;
        part.push(piece);
        if room == 0 {
            parts.push(std::mem::take(&mut part));
            room = share;
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_equal_shares_and_all_bytes() {
        let pieces = [Piece::new(0, 100, 10), Piece::new(50, 0, 3), Piece::new(60, 10, 8)];
        let parts = split(&pieces, 7);
        assert_eq!(parts.len(), 3);
        assert!(parts.iter().all(|part| part.iter().map(|piece| piece.length).sum::<u64>() == 7));
        let bytes = |pieces: &mut dyn Iterator<Item = &Piece>| -> Vec<(u64, u64)> {
            pieces.flat_map(|p| (0..p.length).map(move |i| (p.local + i, p.remote + i))).collect()
        };
        assert_eq!(bytes(&mut parts.iter().flatten()), bytes(&mut pieces.iter()));
        assert!(parts.iter().flatten().all(|piece| piece.length > 0));
    }
}
