//! The decode node's block cache: least recently used, in slots of a pool that are handed out in scattered order.
//!
//! A block in use by a request is *pinned* and is never evicted. A slot that a late transfer may still write to is in
//! *quarantine*: it belongs to no block and is not handed out until it is given back.

use std::collections::HashMap;

use lru::LruCache;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;

/// What [`BlockCache::acquire`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// The block is here, in this slot, or another pin is already fetching it.
    Here(u32),
    /// The block is not here; this slot is reserved for it and waits to be filled.
    Reserved(u32),
    /// Every slot is pinned or in quarantine.
    Full,
}

#[derive(Debug)]
struct Pinned {
    slot: u32,
    pins: u32,
    filled: bool,
}

/// A cache of blocks by id.
///
/// ```
/// use mori_cli::cache::{Acquired, BlockCache};
///
/// let mut cache = BlockCache::new(2, 0);
/// assert!(matches!(cache.acquire(7), Acquired::Reserved(_)));
/// cache.filled(7);
/// cache.release(7);
/// assert!(matches!(cache.acquire(7), Acquired::Here(_)));
/// ```
#[derive(Debug)]
pub struct BlockCache {
    /// Blocks that are here and not in use, the least recently used first to go.
    idle: LruCache<u64, u32>,
    pinned: HashMap<u64, Pinned>,
    free: Vec<u32>,
    slots: u32,
    evictions: u64,
}

impl BlockCache {
    /// A cache of `slots` slots, whose order of use is shuffled by `seed`.
    pub fn new(slots: u32, seed: u64) -> Self {
        let mut free: Vec<u32> = (0..slots).collect();
        free.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
        Self { idle: LruCache::unbounded(), pinned: HashMap::new(), free, slots, evictions: 0 }
    }

    /// Pins a block, and reserves a slot for it if it is not here, at the cost of the least recently used one.
    pub fn acquire(&mut self, block: u64) -> Acquired {
        if let Some(pinned) = self.pinned.get_mut(&block) {
            pinned.pins += 1;
            return Acquired::Here(pinned.slot);
        }
        if let Some(slot) = self.idle.pop(&block) {
            self.pinned.insert(block, Pinned { slot, pins: 1, filled: true });
            return Acquired::Here(slot);
        }
        let Some(slot) = self.free.pop().or_else(|| self.evict()) else { return Acquired::Full };
        self.pinned.insert(block, Pinned { slot, pins: 1, filled: false });
        Acquired::Reserved(slot)
    }

    /// Whether a block is here; it changes nothing, not even what was used last.
    pub fn contains(&self, block: u64) -> bool {
        self.idle.contains(&block) || self.pinned.get(&block).is_some_and(|pinned| pinned.filled)
    }

    fn evict(&mut self) -> Option<u32> {
        let (_, slot) = self.idle.pop_lru()?;
        self.evictions += 1;
        Some(slot)
    }

    /// Says that the bytes of a reserved block have arrived and are right.
    pub fn filled(&mut self, block: u64) {
        if let Some(pinned) = self.pinned.get_mut(&block) {
            pinned.filled = true;
        }
    }

    /// Takes one pin off a block. Without pins it stays as the most recently used, or, if it was never filled, is
    /// forgotten and its slot is free again. A block that is not pinned is left alone.
    pub fn release(&mut self, block: u64) {
        let Some(pinned) = self.pinned.get_mut(&block) else { return };
        pinned.pins = pinned.pins.saturating_sub(1);
        if pinned.pins > 0 {
            return;
        }
        let Some(Pinned { slot, filled, .. }) = self.pinned.remove(&block) else { return };
        if filled {
            self.idle.put(block, slot);
        } else {
            self.free.push(slot);
        }
    }

    /// Forgets a reserved block, whatever its pins, and keeps its slot back, since something may still write to it.
    pub fn quarantine(&mut self, block: u64) {
        self.pinned.remove(&block);
    }

    /// Takes a slot out of quarantine.
    pub fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Slots in quarantine.
    pub fn quarantined(&self) -> u32 {
        let known = self.idle.len() + self.pinned.len() + self.free.len();
        self.slots - u32::try_from(known).unwrap_or(self.slots).min(self.slots)
    }

    /// Slots in all.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Blocks that had to go so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn put(cache: &mut BlockCache, block: u64) -> u32 {
        let Acquired::Reserved(slot) = cache.acquire(block) else { panic!("{block} is new") };
        cache.filled(block);
        cache.release(block);
        slot
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = BlockCache::new(2, 0);
        let one = put(&mut cache, 1);
        let two = put(&mut cache, 2);
        assert_eq!(cache.acquire(1), Acquired::Here(one));
        cache.release(1);
        assert_eq!(put(&mut cache, 3), two, "block 2 had to go");
        assert_eq!(cache.acquire(1), Acquired::Here(one));
        assert_eq!(cache.evictions(), 1);
    }

    #[test]
    fn pinned_blocks_stay() {
        let mut cache = BlockCache::new(2, 0);
        let one = put(&mut cache, 1);
        put(&mut cache, 2);
        assert_eq!(cache.acquire(1), Acquired::Here(one));
        assert_eq!(cache.acquire(2), Acquired::Here(if one == 0 { 1 } else { 0 }));
        assert_eq!(cache.acquire(3), Acquired::Full);
        cache.release(2);
        assert!(matches!(cache.acquire(3), Acquired::Reserved(_)));
        assert_eq!(cache.acquire(1), Acquired::Here(one), "a second pin");
        cache.release(1);
        assert_eq!(cache.acquire(4), Acquired::Full, "the first pin still holds");
    }

    #[test]
    fn a_block_that_never_arrived_is_forgotten() {
        let mut cache = BlockCache::new(1, 0);
        let Acquired::Reserved(slot) = cache.acquire(1) else { panic!("new") };
        assert_eq!(cache.acquire(1), Acquired::Here(slot), "fetched once for both pins");
        cache.release(1);
        cache.release(1);
        assert_eq!(cache.acquire(1), Acquired::Reserved(slot));
    }

    #[test]
    fn a_slot_in_quarantine_is_not_handed_out() {
        let mut cache = BlockCache::new(1, 0);
        let Acquired::Reserved(slot) = cache.acquire(1) else { panic!("new") };
        cache.quarantine(1);
        cache.release(1);
        assert_eq!(cache.acquire(1), Acquired::Full);
        assert_eq!(cache.quarantined(), 1);
        cache.give_back(slot);
        assert_eq!(cache.quarantined(), 0);
        assert_eq!(cache.acquire(1), Acquired::Reserved(slot));
    }

    #[test]
    fn slots_come_in_scattered_order_that_the_seed_decides() {
        let order = |seed| {
            let mut cache = BlockCache::new(100, seed);
            (0..100).map(|block| put(&mut cache, block)).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let neighbours = order(1).windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(neighbours < 20, "{neighbours} of 99 are neighbours");
    }

    #[test]
    fn a_cache_without_slots_is_full() {
        assert_eq!(BlockCache::new(0, 0).acquire(1), Acquired::Full);
    }

    proptest! {
        /// A plain list as the oracle: most recently used last.
        #[test]
        fn it_agrees_with_a_plain_list(slots in 1_usize..6, blocks in prop::collection::vec(0_u64..12, 0..200)) {
            let mut cache = BlockCache::new(slots as u32, 1);
            let mut list: Vec<u64> = Vec::new();
            for block in blocks {
                let here = matches!(cache.acquire(block), Acquired::Here(_));
                cache.filled(block);
                cache.release(block);
                prop_assert_eq!(here, list.contains(&block));
                list.retain(|other| *other != block);
                list.push(block);
                if list.len() > slots {
                    list.remove(0);
                }
            }
        }

        /// Whatever is done, no slot belongs to two blocks, and none is lost.
        #[test]
        fn slots_are_neither_shared_nor_lost(steps in prop::collection::vec((0_u8..6, 0_u64..10), 0..300)) {
            let mut cache = BlockCache::new(4, 3);
            let mut away = Vec::new();
            for (step, block) in steps {
                match step {
                    0 | 1 => { cache.acquire(block); }
                    2 => cache.filled(block),
                    3 => cache.release(block),
                    4 => {
                        if let Some(pinned) = cache.pinned.get(&block) && !pinned.filled {
                            away.push(pinned.slot);
                            cache.quarantine(block);
                        }
                    }
                    _ => if let Some(slot) = away.pop() { cache.give_back(slot) },
                }
                let held: Vec<u32> = cache.pinned.values().map(|p| p.slot)
                    .chain(cache.idle.iter().map(|(_, slot)| *slot))
                    .chain(cache.free.iter().copied())
                    .chain(away.iter().copied())
                    .collect();
                prop_assert_eq!(held.len(), 4);
                prop_assert_eq!(held.iter().collect::<HashSet<_>>().len(), 4);
                prop_assert_eq!(cache.quarantined() as usize, away.len());
            }
        }
    }
}
