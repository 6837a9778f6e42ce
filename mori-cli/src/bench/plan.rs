//! Which rows a sweep has, and where the pieces of a row lie.

use std::fmt;

use mori_engine::Piece;
use serde::{Deserialize, Serialize};

/// Pieces that a row walks over at least, if its memory has room for them, so that it does not run from a cache.
const MIN_SLOTS: u64 = 1 << 16;
/// Scattered pieces begin at multiples of this where there is room.
const LINE: u64 = 64;

/// The direction of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// From the target to us.
    Read,
    /// From us to the target.
    Write,
}

impl Op {
    /// The engine's word for it.
    pub fn engine(self) -> mori_engine::Op {
        match self {
            Self::Read => mori_engine::Op::Read,
            Self::Write => mori_engine::Op::Write,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// How the pieces of a batch lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Neighbours of a batch touch on neither side.
    Scattered,
    /// One behind the other on both sides.
    Contiguous,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scattered => "scattered",
            Self::Contiguous => "contiguous",
        })
    }
}

/// One row of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Row {
    /// The direction.
    pub op: Op,
    /// Bytes of a piece.
    pub size: u64,
    /// Pieces of a transfer.
    pub batch: u64,
    /// How they lie.
    pub layout: Layout,
}

impl Row {
    /// Bytes of a transfer.
    pub fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.batch)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} x {} B {}", self.op, self.batch, self.size, self.layout)
    }
}

/// The rows of a sweep whose transfers have at most `total` bytes, and how many are left out. One piece lies in one way
/// only, so it gets one row.
pub fn rows(ops: &[Op], sizes: &[u64], batches: &[u64], layouts: &[Layout], total: u64) -> (Vec<Row>, usize) {
    let mut rows = Vec::new();
    for &layout in layouts {
        for &op in ops {
            for &batch in batches.iter().filter(|batch| **batch > 1 || Some(&layout) == layouts.first()) {
                rows.extend(sizes.iter().map(|&size| Row { op, size, batch, layout }));
            }
        }
    }
    let all = rows.len();
    rows.retain(|row| row.bytes() <= total);
    let left_out = all - rows.len();
    (rows, left_out)
}

/// Where the pieces of a row lie in two regions of one length. Each local slot has one remote slot for good, so that the
/// bytes which must be there do not depend on how often or in which order transfers ran.
#[derive(Debug)]
pub struct Walk {
    pieces: Vec<Piece>,
    batch: usize,
}

impl Walk {
    /// Lays out a row in regions of `total` bytes, with room for `in_flight` transfers at once if the regions have it.
    /// The row must fit into them.
    pub fn new(row: &Row, total: u64, in_flight: u64) -> Self {
        let size = row.size.max(1);
        let room = (total / size).max(1);
        let wanted = row.batch.saturating_mul(in_flight).max(MIN_SLOTS).min(room);
        // Whole transfers only.
        let slots = (wanted - wanted % row.batch.clamp(1, wanted)).max(1);
        let slot = |index: u64| match row.layout {
            Layout::Contiguous => (index * size, index * size),
            Layout::Scattered => {
                let stride = stride(size, total / slots);
                let step = jump(slots);
                let local = mul_mod(index, step, slots);
                let remote = mul_mod(slots - 1 - index, step, slots);
                (local * stride, remote * stride)
            }
        };
        let pieces =
            (0..slots).map(slot).map(|(local, remote)| Piece::new(local, remote, row.size)).collect();
        Self { pieces, batch: usize::try_from(row.batch).unwrap_or(usize::MAX).max(1) }
    }

    /// The pieces of a transfer; after the last comes the first again.
    pub fn transfer(&self, number: u64) -> &[Piece] {
        let transfers = (self.pieces.len() / self.batch).max(1);
        let first = (number % transfers as u64) as usize * self.batch;
        self.pieces.get(first..first + self.batch).unwrap_or(&self.pieces)
    }

    /// All pieces.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Transfers until all pieces had their turn.
    pub fn transfers(&self) -> u64 {
        (self.pieces.len() / self.batch).max(1) as u64
    }
}

/// The distance of slots: as much as there is, in whole cache lines if that leaves room for the piece.
fn stride(size: u64, most: u64) -> u64 {
    (most - most % LINE).max(size)
}

/// A step that visits every slot and goes far each time.
fn jump(slots: u64) -> u64 {
    let mut step = (slots / 2 + 1) | 1;
    while gcd(step, slots) != 1 {
        step += 2;
    }
    step
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn mul_mod(a: u64, b: u64, modulus: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(modulus)) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sweep_has_every_row_that_fits_once() {
        let (rows, left_out) = rows(
            &[Op::Read, Op::Write],
            &[8, 1024],
            &[1, 2, 1 << 15],
            &[Layout::Scattered, Layout::Contiguous],
            4096,
        );
        // Of 1 piece: 2 x 2 rows; of 2: 2 x 2 x 2; of 32768 none fits.
        assert_eq!((rows.len(), left_out), (4 + 8, 8));
        assert_eq!(rows.iter().collect::<HashSet<_>>().len(), rows.len());
        assert!(rows.iter().all(|row| row.batch > 1 || row.layout == Layout::Scattered));
    }

    #[test]
    fn scattered_neighbours_touch_on_neither_side_and_contiguous_ones_on_both() {
        for (layout, touch) in [(Layout::Scattered, false), (Layout::Contiguous, true)] {
            for (size, batch) in [(8, 1000), (4096, 64), (1 << 20, 16)] {
                let row = Row { op: Op::Read, size, batch, layout };
                let walk = Walk::new(&row, 64 << 20, 1);
                for pair in walk.transfer(0).windows(2) {
                    assert_eq!(pair[0].local + size == pair[1].local, touch, "{row}");
                    assert_eq!(pair[0].remote + size == pair[1].remote, touch, "{row}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_lie_inside_and_apart(
            size in 1_u64..100_000, batch in 1_u64..300, spare in 0_u64..2_000_000, in_flight in 1_u64..4,
            contiguous in any::<bool>(),
        ) {
            let total = size * batch + spare;
            let layout = if contiguous { Layout::Contiguous } else { Layout::Scattered };
            let walk = Walk::new(&Row { op: Op::Write, size, batch, layout }, total, in_flight);
            prop_assert_eq!(walk.pieces().len() as u64, walk.transfers() * batch);
            for side in [|piece: &Piece| piece.local, |piece: &Piece| piece.remote] {
                let mut starts: Vec<u64> = walk.pieces().iter().map(side).collect();
                starts.sort_unstable();
                prop_assert!(starts.windows(2).all(|pair| pair[0] + size <= pair[1]));
                prop_assert!(starts.last().is_none_or(|last| last + size <= total));
            }
            for number in 0..walk.transfers() + 2 {
                prop_assert_eq!(walk.transfer(number).len() as u64, batch);
            }
        }
    }
}
