//! Where the pieces of a block lie in a paged pool, and where a block is at home in the serving process.
//!
//! A pool holds one contiguous tensor for each piece of the [`Shape`]: all slots' pieces 0, then all slots' pieces 1, and
//! so on. A block in slot `s` is therefore one piece in each tensor, far apart. Which slot a block gets is the
//! allocator's matter, on either side; neighbouring blocks of a request are hardly ever neighbours in memory.

use crate::model::Shape;

/// Tensors start at multiples of this many bytes.
const TENSOR_ALIGN: u64 = 4096;

/// A run of bytes of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First byte, from the start of the pool.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Why a pool cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No slots.
    #[error("a pool of 0 blocks can hold nothing; give it at least 1")]
    NoSlots,
    /// The pool does not fit in the address space.
    #[error(
        "a pool of {slots} blocks of {block_bytes} bytes is larger than this machine can address; raise --scale or give it fewer blocks"
    )]
    TooLarge {
        /// Slots asked for.
        slots: u32,
        /// Bytes of each block.
        block_bytes: u64,
    },
    /// The machine has less memory than that.
    #[error(
        "a pool of {slots} blocks needs {wanted} bytes and only {available} are available; raise --scale or give it fewer \
         blocks"
    )]
    NotEnoughMemory {
        /// Slots asked for.
        slots: u32,
        /// Bytes that they need.
        wanted: u64,
        /// Bytes that the system can give.
        available: u64,
    },
}

/// A paged pool: `slots` blocks of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    slots: u32,
    tensor_stride: u64,
    total_bytes: u64,
}

impl Layout {
    /// Lays out a pool.
    ///
    /// # Errors
    ///
    /// [`LayoutError::NoSlots`] and [`LayoutError::TooLarge`].
    pub fn new(shape: Shape, slots: u32) -> Result<Self, LayoutError> {
        if slots == 0 {
            return Err(LayoutError::NoSlots);
        }
        let too_large = LayoutError::TooLarge { slots, block_bytes: shape.block_bytes() };
        let sizes = shape
            .piece_bytes()
            .checked_mul(u64::from(slots))
            .and_then(|bytes| bytes.checked_next_multiple_of(TENSOR_ALIGN))
            .and_then(|stride| Some((stride, stride.checked_mul(u64::from(shape.pieces()))?)));
        match sizes {
            Some((tensor_stride, total_bytes)) if isize::try_from(total_bytes).is_ok() => {
                Ok(Self { shape, slots, tensor_stride, total_bytes })
            }
            _ => Err(too_large),
        }
    }

    /// Checks that the pool fits in `available` bytes.
    ///
    /// # Errors
    ///
    /// [`LayoutError::NotEnoughMemory`].
    pub fn check_fits(&self, available: u64) -> Result<(), LayoutError> {
        if self.total_bytes <= available {
            return Ok(());
        }
        Err(LayoutError::NotEnoughMemory { slots: self.slots, wanted: self.total_bytes, available })
    }

    /// The shape of its blocks.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of blocks that it holds.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The bytes of the whole pool.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Piece `piece` of slot `slot`; none when there is no such slot or piece.
    pub fn piece(&self, slot: u32, piece: u32) -> Option<Piece> {
        if slot >= self.slots || piece >= self.shape.pieces() {
            return None;
        }
        let len = self.shape.piece_bytes();
        Some(Piece { offset: u64::from(piece) * self.tensor_stride + u64::from(slot) * len, len })
    }

    /// All pieces of a slot in order; none at all when there is no such slot.
    pub fn pieces(&self, slot: u32) -> impl Iterator<Item = Piece> + '_ {
        (0..self.shape.pieces()).filter_map(move |piece| self.piece(slot, piece))
    }
}

/// The slot of the serving pool in which a block is at home.
///
/// A trace names more blocks than a pool can hold, and the serving process takes no part in a transfer that could fill
/// a slot in time. So a block is at home in slot `(id × a + c) mod slots`, for good, and blocks whose ids differ by a
/// multiple of the slots share a home, and its bytes. The factor `a` has no common divisor with the slots, so that any
/// `slots` consecutive ids have homes of their own, and is such that neighbours lie far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Homes {
    slots: u32,
    factor: u64,
}

impl Homes {
    /// The homes in a pool.
    pub fn new(layout: &Layout) -> Self {
        let slots = layout.slots();
        // Near the golden section of the slots, neighbours are spread evenly.
        let mut factor = (u64::from(slots) * 618_034 / 1_000_000).max(1);
        while gcd(factor, u64::from(slots)) != 1 {
            factor += 1;
        }
        Self { slots, factor }
    }

    /// The home of a block.
    pub fn of(&self, block: u64) -> u32 {
        let slots = u64::from(self.slots);
        let home = (block % slots * self.factor + slots / 3) % slots;
        // The remainder of a division by a u32 fits one.
        home as u32
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{DEEPSEEK_V3, LLAMA_3_8B, Pieces};

    fn layout(slots: u32) -> Layout {
        Layout::new(LLAMA_3_8B.shape(512, Pieces::Layer).expect("fits"), slots).expect("fits")
    }

    #[test]
    fn a_block_is_one_piece_in_each_layers_tensor() {
        let layout = layout(10);
        let pieces: Vec<_> = layout.pieces(3).collect();
        assert_eq!(pieces.len(), 32);
        assert_eq!(pieces[0], Piece { offset: 3 * 4096, len: 4096 });
        assert_eq!(pieces[1], Piece { offset: 10 * 4096 + 3 * 4096, len: 4096 });
        assert_eq!(layout.total_bytes(), 10 * 32 * 4096);
    }

    #[test]
    fn slots_and_pieces_beyond_the_end_are_none() {
        let layout = layout(10);
        assert_eq!(layout.piece(10, 0), None);
        assert_eq!(layout.piece(0, 32), None);
        assert_eq!(layout.pieces(10).count(), 0);
    }

    #[test]
    fn impossible_pools_are_refused() {
        let full = DEEPSEEK_V3.shape(1, Pieces::Layer).expect("full");
        assert_eq!(Layout::new(full, 0), Err(LayoutError::NoSlots));
        let huge = Shape::new(1, 1, 1, 1 << 40).expect("largest");
        assert!(matches!(Layout::new(huge, u32::MAX), Err(LayoutError::TooLarge { .. })));
        let small = layout(2);
        assert_eq!(small.check_fits(small.total_bytes()), Ok(()));
        assert!(matches!(
            small.check_fits(small.total_bytes() - 1),
            Err(LayoutError::NotEnoughMemory { slots: 2, .. })
        ));
    }

    proptest! {
        #[test]
        fn pieces_never_overlap_and_stay_inside(slots in 1_u32..40, scale in 1_u64..8000) {
            let shape = DEEPSEEK_V3.shape(scale, Pieces::Layer).expect("fits");
            let layout = Layout::new(shape, slots).expect("fits");
            let mut all: Vec<_> = (0..slots).flat_map(|slot| layout.pieces(slot)).collect();
            prop_assert_eq!(all.len() as u32, slots * shape.pieces());
            all.sort_by_key(|piece| piece.offset);
            for pair in all.windows(2) {
                prop_assert!(pair[0].offset + pair[0].len <= pair[1].offset);
            }
            let last = all[all.len() - 1];
            prop_assert!(last.offset + last.len <= layout.total_bytes());
        }

        #[test]
        fn consecutive_ids_have_homes_of_their_own(slots in 1_u32..3000, first in any::<u64>()) {
            let homes = Homes::new(&layout(slots));
            let first = first.min(u64::MAX - u64::from(slots));
            // Across a wrap of the remainder the homes stay apart as well.
            let all: HashSet<_> = (0..u64::from(slots)).map(|i| homes.of(first + i)).collect();
            prop_assert_eq!(all.len(), slots as usize);
            prop_assert!(all.iter().all(|home| *home < slots));
        }

        #[test]
        fn neighbours_are_apart(slots in 10_u32..3000, block in 0_u64..100_000) {
            let homes = Homes::new(&layout(slots));
            prop_assert_ne!(homes.of(block) + 1, homes.of(block + 1));
        }
    }
}
