//! The target's regions: keys, what peers may use right now, and taking it back.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mori_core::{Access, Clock, Deadline, EngineKey, Error, ErrorKind, Region, RegionId, Result};

use crate::page::{Page, SLOTS};
use crate::sync::Mutex;
use crate::{handshake, sys};

/// What a peer may do with a region; the numbers are those of the message.
const READABLE: u8 = 1;
const WRITABLE: u8 = 2;

pub(crate) fn rights(access: Access) -> u8 {
    (if access.remote_read { READABLE } else { 0 }) | (if access.remote_write { WRITABLE } else { 0 })
}

/// Whether a grant's rights allow it.
pub(crate) fn may(rights: u8, writing: bool) -> Result<()> {
    let (bit, what) = if writing { (WRITABLE, "written") } else { (READABLE, "read") };
    if rights & bit != 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::AccessDenied,
        format!("the region may not be {what} by peers; register it with that access"),
    ))
}

/// The error for a region that a peer does not have (any more).
pub(crate) fn unknown() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "the target does not know this region's key: it was deregistered, or belongs to an earlier incarnation of the engine; exchange descriptors again",
    )
}

/// A peer with an open connection, as the target knows it.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) key: EngineKey,
    page: Page,
    process: OwnedFd,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    next: u32,
    free: Vec<u32>,
    generation: u32,
}

impl User {
    pub(crate) fn new(key: EngineKey, page: Page, process: OwnedFd) -> Arc<Self> {
        Arc::new(Self { key, page, process, slots: Mutex::default() })
    }

    fn take(&self) -> Result<(u32, u32)> {
        let mut slots = self.slots.lock();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None if slots.next < SLOTS => {
                slots.next += 1;
                slots.next - 1
            }
            None => {
                return Err(Error::new(
                    ErrorKind::ResourceExhausted,
                    format!("a peer has {SLOTS} regions of this engine open already; deregister some"),
                ));
            }
        };
        slots.generation = slots.generation.wrapping_add(1);
        Ok((slot, slots.generation))
    }
}

/// A slot of a peer's page that a region has.
#[derive(Debug)]
struct Lent {
    user: Arc<User>,
    slot: u32,
    generation: u32,
}

impl Lent {
    /// Whether the peer is in the middle of a copy.
    fn is_busy(&self) -> bool {
        self.user.page.users(self.slot) > 0 && !sys::ended(&self.user.process)
    }

    /// Whether the peer copies nothing any more, and gives the slot back if so.
    fn is_quiet(&self) -> bool {
        if self.user.page.users(self.slot) == 0 {
            self.user.slots.lock().free.push(self.slot);
            return true;
        }
        sys::ended(&self.user.process)
    }
}

#[derive(Debug)]
struct Entry {
    region: Region,
    lent: Vec<Lent>,
    /// It is about to be taken back: peers wait.
    closing: bool,
}

/// What a peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) rights: u8,
}

/// The regions of this engine.
#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    by_key: HashMap<u128, Entry>,
    keys: HashMap<RegionId, u128>,
    /// Regions that were taken back while a peer was stopped in the middle of a copy. Their memory stays until it goes on.
    overdue: Vec<Entry>,
    paused: bool,
    ended: bool,
}

impl Tables {
    fn entry(&mut self, region: RegionId) -> Option<&mut Entry> {
        let key = self.keys.get(&region)?;
        self.by_key.get_mut(key)
    }
}

impl Regions {
    /// Adds a region under a fresh random key; the same region again keeps its key.
    pub(crate) fn add(&self, region: &Region) -> Result<u128> {
        let fresh = u128::from_le_bytes(handshake::random()?);
        let mut tables = self.0.lock();
        let key = *tables.keys.entry(region.id()).or_insert(fresh);
        tables.by_key.entry(key).or_insert_with(|| Entry {
            region: region.clone(),
            lent: Vec::new(),
            closing: false,
        });
        Ok(key)
    }

    /// Lets a peer use a region.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for an unknown key, [`ErrorKind::ResourceExhausted`] if the peer has too many regions.
    pub(crate) fn grant(&self, user: &Arc<User>, key: u128) -> Result<Granted> {
        let mut tables = self.0.lock();
        let (paused, ended) = (tables.paused, tables.ended);
        let entry = tables.by_key.get_mut(&key).filter(|_| !ended).ok_or_else(unknown)?;
        let known = entry.lent.iter().find(|lent| Arc::ptr_eq(&lent.user, user));
        let (slot, generation) = match known {
            Some(lent) => (lent.slot, lent.generation),
            None => {
                let (slot, generation) = user.take()?;
                user.page.open(slot, generation, paused || entry.closing);
                entry.lent.push(Lent { user: Arc::clone(user), slot, generation });
                (slot, generation)
            }
        };
        let region = &entry.region;
        Ok(Granted {
            slot,
            generation,
            address: region.address() as u64,
            length: region.len() as u64,
            rights: rights(region.access()),
        })
    }

    /// Has the peers of a region wait that is about to be taken back, and says whether none is in the middle of a copy.
    pub(crate) fn evict(&self, region: RegionId) -> bool {
        let mut tables = self.0.lock();
        let Some(entry) = tables.entry(region) else { return true };
        if !std::mem::replace(&mut entry.closing, true) {
            entry.lent.iter().for_each(|lent| lent.user.page.pause(lent.slot, true));
        }
        entry.lent.iter().all(|lent| !lent.is_busy())
    }

    /// The region is not taken back after all; says whether peers have waited.
    pub(crate) fn readmit(&self, region: RegionId) -> bool {
        let mut tables = self.0.lock();
        let paused = tables.paused;
        let Some(entry) = tables.entry(region).filter(|entry| entry.closing) else { return false };
        entry.closing = false;
        if !paused {
            entry.lent.iter().for_each(|lent| lent.user.page.pause(lent.slot, false));
        }
        true
    }

    /// Takes a region back (contract E3): nobody begins a copy any more, and this returns when those under way are over, at
    /// the latest after `drain`. After [`evict`](Regions::evict) has said that there are none, it does not wait.
    /// Returns whether peers may be waiting for the region.
    pub(crate) fn remove(&self, region: RegionId, drain: Duration, clock: &Clock) -> bool {
        let (paused, removed) = {
            let mut tables = self.0.lock();
            tables.overdue.retain_mut(|entry| !settle(entry));
            (tables.paused, tables.keys.remove(&region).and_then(|key| tables.by_key.remove(&key)))
        };
        let Some(mut entry) = removed else { return false };
        let waiting = paused || entry.closing;
        close(&entry);
        if !wait(&mut entry, clock.deadline(drain), clock) {
            overdue(&entry);
            self.0.lock().overdue.push(entry);
        }
        waiting
    }

    /// A peer's connection is closed.
    pub(crate) fn leave(&self, user: &Arc<User>) {
        // First, so that a copy that finds its slot closed knows that it is the connection and not the region.
        user.page.end();
        let mut tables = self.0.lock();
        for entry in tables.by_key.values_mut() {
            entry.lent.retain(|lent| {
                let its = Arc::ptr_eq(&lent.user, user);
                if its {
                    lent.user.page.close(lent.slot);
                }
                // What it is in the middle of is waited for when the region is taken back.
                !its || !lent.is_quiet()
            });
        }
        tables.overdue.retain_mut(|entry| !settle(entry));
    }

    /// Makes all peers wait, or lets them go on.
    pub(crate) fn pause(&self, paused: bool) {
        let mut tables = self.0.lock();
        tables.paused = paused;
        for entry in tables.by_key.values() {
            let paused = paused || entry.closing;
            entry.lent.iter().for_each(|lent| lent.user.page.pause(lent.slot, paused));
        }
    }

    /// Whether no copy is under way, for at most `bound`.
    pub(crate) fn wait_quiet(&self, bound: Duration, clock: &Clock) -> bool {
        let busy = || {
            let tables = self.0.lock();
            let mut lent = tables.by_key.values().flat_map(|entry| &entry.lent);
            lent.any(Lent::is_busy)
        };
        patiently(clock.deadline(bound), clock, || !busy())
    }

    /// Takes everything back, for good. Nobody begins a copy any more; what is under way ends within [`Ending::wait`].
    pub(crate) fn end(&self) -> Ending {
        let mut entries: Vec<Entry> = {
            let mut tables = self.0.lock();
            tables.ended = true;
            tables.keys.clear();
            tables.by_key.drain().map(|(_, entry)| entry).collect()
        };
        // A peer that finds its slot closed looks whether everything is over, so this comes first.
        for lent in entries.iter().flat_map(|entry| &entry.lent) {
            lent.user.page.end();
        }
        entries.iter().for_each(close);
        entries.append(&mut self.0.lock().overdue);
        Ending(entries)
    }
}

/// Regions of an engine that has ended.
#[must_use = "copies of peers may be under way; their memory must not be given back before they are over"]
pub(crate) struct Ending(Vec<Entry>);

impl Ending {
    /// Waits for the copies under way, for at most `drain`.
    pub(crate) fn wait(mut self, drain: Duration, clock: &Clock) {
        let deadline = clock.deadline(drain);
        self.0.retain_mut(|entry| !wait(entry, deadline, clock));
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        for mut entry in self.0.drain(..) {
            if !settle(&mut entry) {
                overdue(&entry);
                // Memory that somebody may still write to must not be given back, whatever becomes of the engine.
                std::mem::forget(entry.region);
            }
        }
    }
}

fn close(entry: &Entry) {
    entry.lent.iter().for_each(|lent| lent.user.page.close(lent.slot));
}

/// Forgets those that are quiet; says whether nobody is left.
fn settle(entry: &mut Entry) -> bool {
    entry.lent.retain(|lent| !lent.is_quiet());
    entry.lent.is_empty()
}

fn wait(entry: &mut Entry, deadline: Deadline, clock: &Clock) -> bool {
    patiently(deadline, clock, || settle(entry))
}

fn overdue(entry: &Entry) {
    let peers: Vec<&str> = entry.lent.iter().map(|lent| lent.user.key.as_str()).collect();
    tracing::warn!(
        region = %entry.region.id(),
        peers = peers.join(", "),
        "a region is taken back while a peer is stopped in the middle of a copy; its memory is kept until that goes on"
    );
}

/// Looks again and again, with growing pauses, until `done`.
fn patiently(deadline: Deadline, clock: &Clock, mut done: impl FnMut() -> bool) -> bool {
    let mut pause = Duration::from_micros(20);
    loop {
        if done() {
            return true;
        }
        if deadline.passed(clock.now()) {
            return false;
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Entry as Look;
    use std::os::fd::AsFd;

    fn user() -> (Arc<User>, Page) {
        let (page, file) = Page::create().unwrap();
        let peer = Page::map(file.as_fd()).unwrap();
        let own = rustix::process::getpid();
        let process = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap();
        (User::new("peer".into(), page, process), peer)
    }

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_key_opens_its_region_until_that_is_taken_back() {
        let (regions, clock) = (Regions::default(), Clock::system());
        let (user, page) = user();
        let region = Region::zeroed(64, Access::READ_ONLY).unwrap();
        let key = regions.add(&region).unwrap();
        assert_eq!(regions.add(&region).unwrap(), key);
        let granted = regions.grant(&user, key).unwrap();
        assert_eq!(regions.grant(&user, key).unwrap(), granted, "asked again");
        assert_eq!((granted.address, granted.length), (region.address() as u64, 64));
        assert!(may(granted.rights, false).is_ok());
        assert_eq!(may(granted.rights, true).unwrap_err().kind(), ErrorKind::AccessDenied);
        assert_eq!(regions.grant(&user, key ^ 1).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(matches!(page.enter(granted.slot, granted.generation), Look::Inside(_)));
        regions.remove(region.id(), SHORT, &clock);
        assert!(matches!(page.enter(granted.slot, granted.generation), Look::Closed));
        assert_eq!(regions.grant(&user, key).unwrap_err().kind(), ErrorKind::NotFound);
        // The slot serves again, for another region and another generation.
        let other = Region::zeroed(64, Access::READ_ONLY).unwrap();
        let again = regions.grant(&user, regions.add(&other).unwrap()).unwrap();
        assert!(again.slot == granted.slot && again.generation != granted.generation);
        assert!(matches!(page.enter(granted.slot, granted.generation), Look::Closed));
    }

    #[test]
    fn memory_stays_while_a_peer_is_inside() {
        let (regions, clock) = (Regions::default(), Clock::system());
        let (user, page) = user();
        let region = Region::zeroed(64, Access::READ_WRITE).unwrap();
        let granted = regions.grant(&user, regions.add(&region).unwrap()).unwrap();
        let inside = page.enter(granted.slot, granted.generation);
        regions.remove(region.id(), SHORT, &clock);
        assert_eq!(regions.0.lock().overdue.len(), 1, "it is kept");
        drop(inside);
        regions.leave(&user);
        assert!(regions.0.lock().overdue.is_empty());
    }

    #[test]
    fn a_pause_holds_for_later_grants_too() {
        let regions = Regions::default();
        let (user, page) = user();
        let (first, second) =
            (Region::zeroed(8, Access::READ_WRITE).unwrap(), Region::zeroed(8, Access::READ_WRITE).unwrap());
        let one = regions.grant(&user, regions.add(&first).unwrap()).unwrap();
        regions.pause(true);
        let two = regions.grant(&user, regions.add(&second).unwrap()).unwrap();
        assert!(page.is_paused(one.slot, one.generation) && page.is_paused(two.slot, two.generation));
        assert!(regions.wait_quiet(SHORT, &Clock::system()));
        regions.pause(false);
        assert!(!page.is_paused(one.slot, one.generation) && !page.is_paused(two.slot, two.generation));
    }
}
