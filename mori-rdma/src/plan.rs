//! From pieces to work requests: what is asked of the network card, and what is still to be asked.
//!
//! A work request touches one contiguous range of remote memory and up to `max_sge` ranges of local memory. Pieces that touch on
//! both sides are merged; pieces that touch on the remote side only share a request, with one local range each. A request
//! never has more than `max_bytes` bytes, so that long pieces are split.
//!
//! The requests of a transfer are numbered by where they begin: a [`Cursor`] into the merged pieces. The same cursor always
//! gives the same request, so that a record of posted requests is a cursor and a count, and whatever did not take place is
//! asked for again from its cursor. Nothing is allocated for a piece or a request.

use mori_core::{Piece, merge};

/// What one work request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Local ranges; at least one.
    pub(crate) max_sge: usize,
    /// Bytes; at least one.
    pub(crate) max_bytes: u32,
}

/// Where a request begins: a merged piece, and a number of bytes into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    piece: usize,
    offset: u64,
}

/// One range of local memory, as an offset into the local region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) local: u64,
    pub(crate) length: u32,
}

/// One work request: a range of remote memory, as an offset into the remote region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) remote: u64,
    pub(crate) bytes: u32,
    /// How many segments, at the end of those that the list holds.
    pub(crate) segments: usize,
}

/// Several requests that follow each other in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: Cursor,
    pub(crate) count: usize,
}

/// The requests of one chain, with room that is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) requests: Vec<Request>,
    pub(crate) segments: Vec<Segment>,
}

impl Chain {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.bytes)).sum()
    }

    /// Each request with its segments.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Request, &[Segment])> {
        let mut rest = self.segments.as_slice();
        self.requests.iter().map(move |request| {
            let (own, others) = rest.split_at(request.segments.min(rest.len()));
            rest = others;
            (request, own)
        })
    }
}

/// The requests of a transfer: those that have not been given out, and those that were given back.
#[derive(Debug)]
pub(crate) struct Plan {
    pieces: Vec<Piece>,
    limits: Limits,
    bytes: u64,
    cursor: Cursor,
    returned: Vec<Span>,
}

impl Plan {
    pub(crate) fn new(pieces: &[Piece], limits: Limits) -> Self {
        let limits = Limits { max_sge: limits.max_sge.max(1), max_bytes: limits.max_bytes.max(1) };
        let pieces = merge(pieces);
        let bytes = pieces.iter().map(|piece| piece.length).sum();
        Self { pieces, limits, bytes, cursor: Cursor::default(), returned: Vec::new() }
    }

    /// All bytes of the transfer.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is something left to give out.
    pub(crate) fn pending(&self) -> bool {
        !self.returned.is_empty() || self.cursor.piece < self.pieces.len()
    }

    /// Gives out the next requests into `chain`, which is emptied first: at most `count`, and none beyond the one with which
    /// they reach `bytes` bytes. `None` when everything is given out.
    pub(crate) fn take(&mut self, count: usize, bytes: u64, chain: &mut Chain) -> Option<Span> {
        chain.clear();
        if count == 0 {
            return None;
        }
        let (start, most) = match self.returned.last() {
            Some(span) => (span.start, span.count.min(count)),
            None => (self.cursor, count),
        };
        let mut next = start;
        let mut total = 0;
        while chain.requests.len() < most && total < bytes.max(1) {
            let Some(after) = self.request(next, chain) else { break };
            total += chain.requests.last().map_or(0, |request| u64::from(request.bytes));
            next = after;
        }
        let taken = Span { start, count: chain.requests.len() };
        match self.returned.last_mut() {
            Some(span) if span.count > taken.count => {
                *span = Span { start: next, count: span.count - taken.count }
            }
            Some(_) => drop(self.returned.pop()),
            None => self.cursor = next,
        }
        (taken.count > 0).then_some(taken)
    }

    /// Takes back the requests of a span from number `from` on: they are given out again before all others.
    pub(crate) fn give_back(&mut self, span: Span, from: usize) {
        if from < span.count {
            let start = self.skip(span.start, from);
            self.returned.push(Span { start, count: span.count - from });
        }
    }

    /// Throws away what has not been given out.
    pub(crate) fn drop_rest(&mut self) {
        self.returned.clear();
        self.cursor = Cursor { piece: self.pieces.len(), offset: 0 };
    }

    /// How many bytes the first `count` requests of a span have. Goes through them; for failures, not for every chain.
    pub(crate) fn bytes_of(&self, span: Span, count: usize) -> u64 {
        let mut scratch = Chain::default();
        let mut at = span.start;
        let mut total = 0;
        for _ in 0..count.min(span.count) {
            scratch.clear();
            let Some(next) = self.request(at, &mut scratch) else { break };
            total += scratch.bytes();
            at = next;
        }
        total
    }

    /// Request number `index` of a span, in words: which bytes of both regions.
    pub(crate) fn describe(&self, span: Span, index: usize) -> String {
        let at = self.skip(span.start, index);
        let mut chain = Chain::default();
        let _ = self.request(at, &mut chain);
        let local = chain.segments.first().map_or(0, |segment| segment.local);
        match chain.requests.first() {
            Some(request) => format!(
                "{} bytes at remote offset {} and local offset {local} (piece {} after merging)",
                request.bytes, request.remote, at.piece
            ),
            None => "a piece".to_owned(),
        }
    }

    fn skip(&self, mut at: Cursor, count: usize) -> Cursor {
        let mut scratch = Chain::default();
        for _ in 0..count {
            scratch.clear();
            match self.request(at, &mut scratch) {
                Some(next) => at = next,
                None => break,
            }
        }
        at
    }

    /// Appends the request that begins at `at`, and says where the next one begins. `None` at the end.
    fn request(&self, at: Cursor, chain: &mut Chain) -> Option<Cursor> {
        let first = self.pieces.get(at.piece)?;
        let remote = first.remote + at.offset;
        let mut next = at;
        let mut bytes: u32 = 0;
        let mut segments = 0;
        while let Some(piece) = self.pieces.get(next.piece) {
            let room = self.limits.max_bytes - bytes;
            let follows = piece.remote + next.offset == remote + u64::from(bytes);
            if room == 0 || segments == self.limits.max_sge || !follows {
                break;
            }
            let left = piece.length - next.offset;
            let length = u32::try_from(left).map_or(room, |left| left.min(room));
            chain.segments.push(Segment { local: piece.local + next.offset, length });
            segments += 1;
            bytes += length;
            next = if u64::from(length) == left {
                Cursor { piece: next.piece + 1, offset: 0 }
            } else {
                Cursor { piece: next.piece, offset: next.offset + u64::from(length) }
            };
        }
        chain.requests.push(Request { remote, bytes, segments });
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Which local byte goes with which remote byte.
    fn bytes_of_pieces(pieces: &[Piece]) -> Vec<(u64, u64)> {
        pieces.iter().flat_map(|p| (0..p.length).map(move |i| (p.local + i, p.remote + i))).collect()
    }

    fn bytes_of_chain(chain: &Chain, from: usize, to: usize) -> Vec<(u64, u64)> {
        let mut bytes = Vec::new();
        for (request, segments) in chain.iter().skip(from).take(to - from) {
            let mut remote = request.remote;
            for segment in segments {
                for i in 0..u64::from(segment.length) {
                    bytes.push((segment.local + i, remote));
                    remote += 1;
                }
            }
            assert_eq!(remote, request.remote + u64::from(request.bytes));
        }
        bytes
    }

    fn limits(max_sge: usize, max_bytes: u32) -> Limits {
        Limits { max_sge, max_bytes }
    }

    #[test]
    fn pieces_that_touch_on_the_remote_side_share_a_request() {
        let pieces =
            [Piece::new(0, 100, 10), Piece::new(50, 110, 5), Piece::new(20, 115, 5), Piece::new(0, 0, 4)];
        let mut plan = Plan::new(&pieces, limits(8, 1000));
        let mut chain = Chain::default();
        let span = plan.take(10, 1000, &mut chain).unwrap();
        assert_eq!(span.count, 2);
        assert_eq!(chain.requests[0], Request { remote: 100, bytes: 20, segments: 3 });
        assert_eq!(chain.requests[1], Request { remote: 0, bytes: 4, segments: 1 });
        assert!(!plan.pending() && plan.take(10, 1000, &mut chain).is_none());
        assert!(plan.describe(span, 1).contains("remote offset 0"), "{}", plan.describe(span, 1));
    }

    #[test]
    fn pieces_beyond_four_gibibytes_are_split() {
        let length = (1 << 33) + 5;
        let mut plan = Plan::new(&[Piece::new(1, 2, length)], limits(4, 1 << 31));
        let mut chain = Chain::default();
        let span = plan.take(100, u64::MAX, &mut chain).unwrap();
        assert_eq!((span.count, chain.bytes()), (5, length));
        assert_eq!(chain.requests[4], Request { remote: 2 + (1 << 33), bytes: 5, segments: 1 });
    }

    #[test]
    fn an_empty_transfer_has_no_request() {
        let mut plan = Plan::new(&[Piece::new(3, 4, 0)], limits(1, 1));
        assert!(!plan.pending());
        assert_eq!(plan.take(1, 1, &mut Chain::default()), None);
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        // Small numbers, so that pieces often touch on either side.
        let raw = prop::collection::vec((0_u64..60, 0_u64..60, 0_u64..9, any::<bool>()), 0..30);
        raw.prop_map(|raw| {
            let mut remote = 0;
            raw.into_iter()
                .map(|(local, other, length, follow)| {
                    let start = if follow { remote } else { other };
                    remote = start + length;
                    Piece::new(local, start, length)
                })
                .collect()
        })
    }

    proptest! {
        /// Whatever is given out, given back and given out again: every byte is asked for and goes where it belongs, and no
        /// request exceeds a limit.
        #[test]
        fn every_byte_is_carried_once(
            pieces in pieces(),
            max_sge in 1_usize..5,
            max_bytes in 1_u32..12,
            steps in prop::collection::vec((1_usize..6, 1_u64..40, 0_usize..6), 1..200),
        ) {
            let mut plan = Plan::new(&pieces, limits(max_sge, max_bytes));
            let mut chain = Chain::default();
            let mut carried = Vec::new();
            let mut steps = steps.into_iter();
            while plan.pending() {
                // Once the steps are used up, everything goes through.
                let (count, bytes, keep) = steps.next().unwrap_or((4, 30, usize::MAX));
                let span = plan.take(count, bytes, &mut chain).unwrap();
                prop_assert!(span.count >= 1 && span.count <= count && span.count == chain.requests.len());
                for (request, segments) in chain.iter() {
                    prop_assert!(segments.len() <= max_sge && !segments.is_empty());
                    prop_assert!(request.bytes <= max_bytes && request.bytes > 0);
                }
                let keep = keep.min(span.count);
                let kept = bytes_of_chain(&chain, 0, keep);
                prop_assert_eq!(plan.bytes_of(span, keep), kept.len() as u64);
                carried.extend(kept);
                plan.give_back(span, keep);
            }
            let mut expected = bytes_of_pieces(&pieces);
            prop_assert_eq!(plan.bytes(), expected.len() as u64);
            expected.sort_unstable();
            carried.sort_unstable();
            prop_assert_eq!(carried, expected);
        }

        /// Given out in one go, the bytes keep the pieces' order.
        #[test]
        fn the_order_of_the_bytes_stays(pieces in pieces(), max_sge in 1_usize..5, max_bytes in 1_u32..12) {
            let mut plan = Plan::new(&pieces, limits(max_sge, max_bytes));
            let (mut chain, mut carried) = (Chain::default(), Vec::new());
            while let Some(span) = plan.take(3, 1000, &mut chain) {
                carried.extend(bytes_of_chain(&chain, 0, span.count));
            }
            prop_assert_eq!(carried, bytes_of_pieces(&pieces));
        }
    }
}
