//! The bytes that a block must have: a pattern that depends on the serving process, the slot, the piece and the position.
//!
//! Each 8 bytes are one word, `fold(key + i × STEP)` for the word number `i`. The key is mixed from the seed of the
//! serving process, the block's home slot and the piece; the step is odd, so that all words of a piece differ, and the
//! fold is a bijection, so that words differ whenever their inputs do. A byte that comes from another slot, layer or
//! position, from an earlier run of the serving process, or from nowhere, is therefore found. The inner loops have no
//! branch and touch 8 bytes at a time, so the compiler turns them into vector code.

/// An odd number near the golden section of 2^64: the difference between neighbouring words.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes compared between two looks at the verdict.
const STRIDE: usize = 4096;

/// The pattern of one piece.
///
/// ```
/// use mori_cli::pattern::Pattern;
///
/// let pattern = Pattern::new(7, 3, 0);
/// let mut bytes = [0; 100];
/// pattern.fill(0, &mut bytes);
/// assert_eq!(pattern.verify(0, &bytes), Ok(()));
/// bytes[40] ^= 1;
/// assert_eq!(pattern.verify(0, &bytes).unwrap_err().position, 40);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    key: u64,
}

/// The first byte that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Its position in the piece.
    pub position: u64,
    /// What must stand there.
    pub expected: u8,
    /// What stands there.
    pub found: u8,
}

impl Pattern {
    /// The pattern of piece `piece` of slot `slot` of the serving process with that seed.
    pub fn new(seed: u64, slot: u32, piece: u32) -> Self {
        Self { key: mix(mix(seed) ^ (u64::from(slot) << 32 | u64::from(piece))) }
    }

    /// The pattern of the scratch memory of the serving process with that seed, as one piece of a slot that no pool has.
    pub fn of_scratch(seed: u64) -> Self {
        Self::new(seed, u32::MAX, u32::MAX)
    }

    fn word(self, index: u64) -> u64 {
        fold(self.key.wrapping_add(index.wrapping_mul(STEP)))
    }

    /// The byte at a position of the piece.
    pub fn byte(self, position: u64) -> u8 {
        self.word(position / 8).to_le_bytes()[(position % 8) as usize]
    }

    /// Writes the bytes that belong at `position` and after it. Positions end at 2^64.
    pub fn fill(self, position: u64, bytes: &mut [u8]) {
        let head = head_len(position, bytes.len());
        let (head, rest) = bytes.split_at_mut(head);
        self.fill_slowly(position, head);
        let first = position.div_ceil(8);
        let (words, tail) = rest.as_chunks_mut::<8>();
        let after = first.wrapping_add(words.len() as u64).wrapping_mul(8);
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.word(first.wrapping_add(i as u64)).to_le_bytes();
        }
        self.fill_slowly(after, tail);
    }

    fn fill_slowly(self, position: u64, bytes: &mut [u8]) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(position.wrapping_add(i as u64));
        }
    }

    /// Compares bytes with those that belong at `position` and after it.
    ///
    /// # Errors
    ///
    /// The first byte that differs.
    pub fn verify(self, position: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let (head, rest) = bytes.split_at(head_len(position, bytes.len()));
        self.verify_slowly(position, head)?;
        let mut at = position.wrapping_add(head.len() as u64);
        for stride in rest.chunks(STRIDE) {
            let (words, tail) = stride.as_chunks::<8>();
            if self.difference(at / 8, words) != 0 {
                self.verify_slowly(at, stride)?;
            }
            self.verify_slowly(at.wrapping_add((words.len() * 8) as u64), tail)?;
            at = at.wrapping_add(stride.len() as u64);
        }
        Ok(())
    }

    /// The bits in which any word differs from the pattern; zero when all are right.
    fn difference(self, first: u64, words: &[[u8; 8]]) -> u64 {
        let mut difference = 0;
        for (i, word) in words.iter().enumerate() {
            difference |= u64::from_le_bytes(*word) ^ self.word(first.wrapping_add(i as u64));
        }
        difference
    }

    fn verify_slowly(self, position: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        for (i, found) in bytes.iter().enumerate() {
            let position = position.wrapping_add(i as u64);
            let expected = self.byte(position);
            if expected != *found {
                return Err(Mismatch { position, expected, found: *found });
            }
        }
        Ok(())
    }
}

/// Bytes up to the next whole word.
fn head_len(position: u64, len: usize) -> usize {
    let to_word = position.wrapping_neg() % 8;
    len.min(to_word as usize)
}

/// A bijection that spreads the high bits of the sum over the low ones.
fn fold(sum: u64) -> u64 {
    sum ^ (sum >> 29)
}

/// A strong bijective mix of 64 bits (two rounds of multiply and shift).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(STEP);
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ (value >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(pattern: Pattern, position: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern.fill(position, &mut bytes);
        bytes
    }

    #[test]
    fn every_flipped_bit_is_found_at_its_place() {
        let pattern = Pattern::new(1, 2, 3);
        let mut bytes = filled(pattern, 0, 4_200);
        for at in 0..bytes.len() {
            bytes[at] ^= 1 << (at % 8);
            let wrong = pattern.verify(0, &bytes).expect_err("a flipped bit");
            assert_eq!((wrong.position, wrong.found), (at as u64, bytes[at]));
            assert_eq!(wrong.expected, pattern.byte(at as u64));
            bytes[at] ^= 1 << (at % 8);
        }
        assert_eq!(pattern.verify(0, &bytes), Ok(()));
    }

    #[test]
    fn untouched_memory_is_found() {
        for (slot, piece) in [(0, 0), (0, 1), (7, 31)] {
            let pattern = Pattern::new(0, slot, piece);
            for byte in [0, 0xff, 0xa5] {
                assert!(pattern.verify(0, &[byte; 64]).is_err());
            }
        }
    }

    #[test]
    fn all_words_of_the_pieces_of_a_pool_differ() {
        let mut seen = std::collections::HashSet::new();
        for (slot, piece) in (0..64).flat_map(|slot| (0..32).map(move |piece| (slot, piece))) {
            let pattern = Pattern::new(5, slot, piece);
            for word in 0..64 {
                assert!(
                    seen.insert(pattern.word(word)),
                    "slot {slot}, piece {piece}, word {word} repeats another"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn filling_in_parts_equals_filling_at_once(start in 0_u64..5_000, len in 0_usize..9_000, cut in 0_usize..9_000) {
            let pattern = Pattern::new(9, 8, 7);
            let whole = filled(pattern, start, len);
            let cut = cut.min(len);
            let mut parts = filled(pattern, start, cut);
            parts.extend(filled(pattern, start + cut as u64, len - cut));
            prop_assert_eq!(&whole, &parts);
            prop_assert_eq!(pattern.verify(start, &whole), Ok(()));
            for (i, byte) in whole.iter().enumerate() {
                prop_assert_eq!(*byte, pattern.byte(start + i as u64));
            }
        }

        /// Another slot, piece, seed, or a position shifted by any number of bytes: the first 16 bytes betray it.
        #[test]
        fn bytes_from_elsewhere_are_found(
            seed in any::<u64>(), slot in 0_u32..10_000, piece in 0_u32..200,
            other_slot in 0_u32..10_000, other_piece in 0_u32..200, other_seed in any::<u64>(),
            position in 0_u64..1 << 21, shift in 1_u64..1 << 21,
        ) {
            let right = Pattern::new(seed, slot, piece);
            let shifted = filled(right, position + shift, 16);
            prop_assert!(right.verify(position, &shifted).is_err(), "shifted by {}", shift);
            for wrong in [
                Pattern::new(seed, other_slot, piece),
                Pattern::new(seed, slot, other_piece),
                Pattern::new(other_seed, slot, piece),
                Pattern::new(seed, other_piece, slot),
            ] {
                let bytes = filled(wrong, position, 16);
                prop_assert_eq!(right.verify(position, &bytes).is_ok(), wrong == right);
            }
        }

        #[test]
        fn positions_up_to_the_end_of_the_range_work(back in 0_u64..64, len in 0_u64..64) {
            let pattern = Pattern::new(1, 1, 1);
            let (start, len) = (u64::MAX - back, len.min(back) as usize);
            prop_assert_eq!(pattern.verify(start, &filled(pattern, start, len)), Ok(()));
        }
    }
}
