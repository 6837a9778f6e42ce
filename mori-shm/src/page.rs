//! The page that a target shares with one peer: which regions the peer may use right now, and whether it is using them.
//!
//! Copies between processes take no part of the target, so the target cannot know by itself that a peer is in the middle of
//! one (contract E3), and the peer cannot know that a region has been taken back. Both are one word of this page.
//!
//! # Protocol
//!
//! 1. The target makes a page for each connection. The first word says whether the connection is over; each further
//!    word is a *slot*, which the target gives to one region at a time: a generation (32 bits), *open*, *paused*, and the number of
//!    the peer's copies under way.
//! 2. The peer enters with one addition, which also tells it the generation and the bits as they were. If they are not what it
//!    expects, it leaves at once and copies nothing.
//! 3. It stays inside for one bounded step of a copy and leaves with one subtraction. It enters anew for the next step.
//! 4. To take a region back, the target clears *open*, which stops all later comers (2), and waits until nobody is inside. The
//!    addition and the clearing are read-modify-writes of one word: whoever enters before the clearing is counted, whoever comes
//!    later sees it.
//! 5. Somebody inside who has ended never leaves; the target learns of that end from the kernel, and waits no longer.
//!
//! The peer can write to the page. By that it can lie about itself and about nobody else: whatever it claims, the target waits
//! for a bounded time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::sys::Mapping;

/// How many regions a peer can have open at a time.
pub(crate) const SLOTS: u32 = 1 << 16;

/// Words before the slots, so that they have a cache line of their own.
const HEADER: usize = 8;
const WORDS: usize = HEADER + SLOTS as usize;

const OPEN: u64 = 1 << 31;
const PAUSED: u64 = 1 << 30;
const COUNT: u64 = PAUSED - 1;

/// What a peer finds when it wants to enter.
#[derive(Debug)]
pub(crate) enum Entry<'a> {
    /// It is inside until this is dropped.
    Inside(Inside<'a>),
    /// The target makes everybody wait.
    Paused,
    /// The region is not open (any more).
    Closed,
}

/// Being inside a slot.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a AtomicU64);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        leave(self.0);
    }
}

fn leave(slot: &AtomicU64) {
    // Release pairs with the acquire in `users`: what was copied inside is done when the target sees the count.
    slot.fetch_sub(1, Ordering::Release);
}

/// One side's view of the page.
#[derive(Debug)]
pub(crate) struct Page(Mapping);

impl Page {
    /// A new page, and the file that a peer maps it from.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("mori-shm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (WORDS * size_of::<AtomicU64>()) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(file.as_fd())?, file))
    }

    /// The page that a target has made.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a file that is not such a page; else what the system says.
    pub(crate) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        Mapping::new(file, WORDS).map(Self)
    }

    fn slot(&self, slot: u32) -> Option<&AtomicU64> {
        self.0.words().get(HEADER..)?.get(slot as usize)
    }

    fn header(&self) -> Option<&AtomicU64> {
        self.0.words().first()
    }

    /// As the target: gives a slot to a region.
    pub(crate) fn open(&self, slot: u32, generation: u32, paused: bool) {
        let word = u64::from(generation) << 32 | OPEN | if paused { PAUSED } else { 0 };
        if let Some(slot) = self.slot(slot) {
            // The count of whoever looks in with a key of before, just now, is kept. Release is the partner of the acquire in
            // `enter`, in a peer that learns of the slot in whatever way.
            let _ =
                slot.fetch_update(Ordering::Release, Ordering::Relaxed, |before| Some(word | before & COUNT));
        }
    }

    /// As the target: nobody enters the slot any more.
    pub(crate) fn close(&self, slot: u32) {
        if let Some(slot) = self.slot(slot) {
            // AcqRel pairs with the addition in `enter`: one of the two comes first, and the other sees it.
            slot.fetch_and(!OPEN, Ordering::AcqRel);
        }
    }

    /// As the target: whoever comes from now on waits, or no longer.
    pub(crate) fn pause(&self, slot: u32, paused: bool) {
        let Some(slot) = self.slot(slot) else { return };
        // AcqRel pairs with the addition in `enter`, as in `close`.
        if paused {
            slot.fetch_or(PAUSED, Ordering::AcqRel);
        } else {
            // AcqRel pairs with the addition in `enter`.
            slot.fetch_and(!PAUSED, Ordering::AcqRel);
        }
    }

    /// As the target: how many copies are under way.
    pub(crate) fn users(&self, slot: u32) -> u64 {
        // Acquire pairs with the release of `leave`.
        self.slot(slot).map_or(0, |slot| slot.load(Ordering::Acquire) & COUNT)
    }

    /// As the target: the connection is over.
    pub(crate) fn end(&self) {
        if let Some(header) = self.header() {
            // Release pairs with the acquire in `ended`; a peer that finds its slot closed after this sees it.
            header.store(1, Ordering::Release);
        }
    }

    /// As the peer: whether the target says that the connection is over.
    pub(crate) fn ended(&self) -> bool {
        // Acquire pairs with the release in `end`.
        self.header().is_none_or(|header| header.load(Ordering::Acquire) != 0)
    }

    /// As the peer: enters for one step.
    pub(crate) fn enter(&self, slot: u32, generation: u32) -> Entry<'_> {
        let Some(slot) = self.slot(slot) else { return Entry::Closed };
        // AcqRel pairs with `close` and `pause`: one of the two comes first, and the other sees it. So nothing of the copy
        // that follows happens before.
        let before = slot.fetch_add(1, Ordering::AcqRel);
        if before >> 32 == u64::from(generation) && before & (OPEN | PAUSED) == OPEN {
            return Entry::Inside(Inside(slot));
        }
        leave(slot);
        if before >> 32 == u64::from(generation) && before & OPEN != 0 {
            Entry::Paused
        } else {
            Entry::Closed
        }
    }

    /// As the peer: whether entering would have to wait.
    pub(crate) fn is_paused(&self, slot: u32, generation: u32) -> bool {
        matches!(self.enter(slot, generation), Entry::Paused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn both() -> (Page, Page) {
        let (target, file) = Page::create().unwrap();
        (target, Page::map(file.as_fd()).unwrap())
    }

    #[test]
    fn a_slot_is_open_for_its_generation_only() {
        let (target, peer) = both();
        assert!(matches!(peer.enter(3, 1), Entry::Closed));
        target.open(3, 1, false);
        let inside = peer.enter(3, 1);
        assert!(matches!(inside, Entry::Inside(_)));
        assert_eq!(target.users(3), 1);
        target.close(3);
        assert!(matches!(peer.enter(3, 1), Entry::Closed));
        assert_eq!(target.users(3), 1, "whoever is inside stays counted");
        drop(inside);
        assert_eq!(target.users(3), 0);
        target.open(3, 2, false);
        assert!(matches!(peer.enter(3, 1), Entry::Closed));
        assert!(matches!(peer.enter(3, 2), Entry::Inside(_)));
        assert!(matches!(peer.enter(SLOTS, 0), Entry::Closed));
        assert_eq!(target.users(3), 0);
    }

    #[test]
    fn a_paused_slot_lets_nobody_in_and_goes_on() {
        let (target, peer) = both();
        target.open(0, 9, true);
        assert!(matches!(peer.enter(0, 9), Entry::Paused) && peer.is_paused(0, 9));
        target.pause(0, false);
        assert!(matches!(peer.enter(0, 9), Entry::Inside(_)));
        target.pause(0, true);
        assert!(peer.is_paused(0, 9));
        target.close(0);
        assert!(matches!(peer.enter(0, 9), Entry::Closed));
        assert!(!peer.ended());
        target.end();
        assert!(peer.ended());
    }

    /// E3: after the close and the wait, nobody is inside.
    #[test]
    fn closing_and_waiting_leaves_nobody_inside() {
        let (target, peer) = both();
        for generation in 1..200 {
            let taken = AtomicBool::new(false);
            target.open(5, generation, false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while let Entry::Inside(_inside) = peer.enter(5, generation) {
                            assert!(!taken.load(Ordering::Relaxed), "inside after it was taken back");
                        }
                    });
                }
                target.close(5);
                while target.users(5) > 0 {
                    std::thread::yield_now();
                }
                taken.store(true, Ordering::Relaxed);
            });
        }
    }
}
