//! What a transfer is: a direction, pieces, and options.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::id::Tag;
use crate::memory::out_of_range;

/// The direction of a transfer, seen from the side that submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// From the peer's memory to ours.
    Read,
    /// From our memory to the peer's.
    Write,
}

/// One contiguous piece of a transfer: `length` bytes, at `local` in the local region and at `remote` in the remote one.
/// All three are in bytes; there is no limit below 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Offset in the local region.
    pub local: u64,
    /// Offset in the remote region.
    pub remote: u64,
    /// Length.
    pub length: u64,
}

impl Piece {
    /// A piece of `length` bytes at these offsets.
    #[must_use]
    pub const fn new(local: u64, remote: u64, length: u64) -> Self {
        Self { local, remote, length }
    }
}

/// The longest notification message, in bytes.
pub const MAX_NOTIFICATION: usize = 1024;

/// A message for the target of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    /// The message, at most [`MAX_NOTIFICATION`] bytes.
    pub message: Vec<u8>,
    /// Whether the target is also told when the transfer fails.
    pub on_failure: bool,
}

/// What a caller may say about a transfer beside its pieces.
///
/// ```
/// use mori_core::{Tag, TransferOptions};
/// use std::time::Duration;
/// let options = TransferOptions { tag: Tag(7), deadline: Some(Duration::from_secs(2)), ..Default::default() };
/// assert!(options.notify.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferOptions {
    /// The caller's own mark, handed back in outcomes and notifications.
    pub tag: Tag,
    /// A deadline of the transfer's own, counted from its submission (contract E2).
    pub deadline: Option<Duration>,
    /// A message for the target, delivered once, after every byte is in place.
    pub notify: Option<Notify>,
}

impl TransferOptions {
    /// Options with a tag and nothing else.
    #[must_use]
    pub fn tagged(tag: u64) -> Self {
        Self { tag: Tag(tag), ..Self::default() }
    }
}

/// Checks the pieces and options of a transfer against the lengths of both regions, as every submission must be.
/// Returns the number of bytes.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for a piece that is not wholly inside both regions, a sum of lengths that does not fit
/// 64 bits, or a message that is too long.
pub fn check(pieces: &[Piece], options: &TransferOptions, local: u64, remote: u64) -> Result<u64> {
    if let Some(notify) = &options.notify {
        if notify.message.len() > MAX_NOTIFICATION {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the notification's message has {} bytes; at most {MAX_NOTIFICATION} are carried",
                    notify.message.len()
                ),
            ));
        }
    }
    let mut total: u64 = 0;
    for (index, piece) in pieces.iter().enumerate() {
        for (side, offset, region) in [("local", piece.local, local), ("remote", piece.remote, remote)] {
            if offset.checked_add(piece.length).is_none_or(|end| end > region) {
                return Err(out_of_range(offset, piece.length, region)
                    .context(format!("{side} side of piece {index}")));
            }
        }
        total = total.checked_add(piece.length).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "the pieces add up to more than 64 bits of bytes")
        })?;
    }
    Ok(total)
}

/// Merges neighbours that touch on both sides, and drops pieces without bytes. The order stays.
///
/// ```
/// use mori_core::{merge, Piece};
/// let merged = merge(&[Piece::new(0, 100, 10), Piece::new(10, 110, 5), Piece::new(20, 115, 5)]);
/// assert_eq!(merged, [Piece::new(0, 100, 15), Piece::new(20, 115, 5)]);
/// ```
#[must_use]
pub fn merge(pieces: &[Piece]) -> Vec<Piece> {
    let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces.iter().filter(|piece| piece.length > 0) {
        match merged.last_mut() {
            Some(last)
                if last.local.checked_add(last.length) == Some(piece.local)
                    && last.remote.checked_add(last.length) == Some(piece.remote) =>
            {
                last.length = last.length.saturating_add(piece.length);
            }
            _ => merged.push(*piece),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pieces_at_beyond_and_wrapping_past_either_end() {
        let options = TransferOptions::default();
        assert_eq!(check(&[Piece::new(0, 0, 10), Piece::new(5, 15, 5)], &options, 10, 20).unwrap(), 15);
        assert_eq!(check(&[Piece::new(10, 20, 0)], &options, 10, 20).unwrap(), 0);
        for piece in [
            Piece::new(1, 0, 10),
            Piece::new(0, 11, 10),
            Piece::new(u64::MAX, 0, 1),
            Piece::new(0, u64::MAX, 1),
            Piece::new(0, 0, u64::MAX),
            Piece::new(11, 0, 0),
        ] {
            let error = check(&[Piece::new(0, 0, 1), piece], &options, 10, 20).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{piece:?}");
            assert!(error.message().contains("piece 1"), "{error}");
        }
        let huge = Piece::new(0, 0, u64::MAX);
        let error = check(&[huge, huge], &options, u64::MAX, u64::MAX).unwrap_err();
        assert!(error.message().contains("64 bits"), "{error}");
    }

    #[test]
    fn a_message_has_a_limit() {
        let mut options = TransferOptions {
            notify: Some(Notify { message: vec![0; MAX_NOTIFICATION], on_failure: false }),
            ..Default::default()
        };
        assert!(check(&[], &options, 0, 0).is_ok());
        options.notify = Some(Notify { message: vec![0; MAX_NOTIFICATION + 1], on_failure: false });
        assert_eq!(check(&[], &options, 0, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    proptest! {
        /// Merging changes neither which byte goes where nor the order of the bytes.
        #[test]
        fn merging_keeps_the_bytes(raw in prop::collection::vec((0_u64..40, 0_u64..40, 0_u64..5), 0..40)) {
            let pieces: Vec<Piece> = raw.iter().map(|&(l, r, n)| Piece::new(l, r, n)).collect();
            let bytes = |pieces: &[Piece]| -> Vec<(u64, u64)> {
                pieces.iter().flat_map(|p| (0..p.length).map(move |i| (p.local + i, p.remote + i))).collect()
            };
            let merged = merge(&pieces);
            prop_assert_eq!(bytes(&merged), bytes(&pieces));
            for pair in merged.windows(2) {
                let touch = pair[0].local + pair[0].length == pair[1].local
                    && pair[0].remote + pair[0].length == pair[1].remote;
                prop_assert!(!touch);
            }
        }
    }
}
