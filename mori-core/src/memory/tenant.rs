//! Users of a region that hold no pins of this process, and closing in spite of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::id::RegionId;
use crate::time::{Clock, Deadline};

/// Stands for users of a region that are not in this process: peers that a backend has let in, and that copy without this
/// process taking part, so that no [`Pin`](super::Pin) says when they do. For backends.
///
/// # For backend authors
///
/// - [`evict`](Tenant::evict) and [`readmit`](Tenant::readmit) do not wait, and do not call into the region.
/// - Between the two, users wait; they do not fail. After a region is closed, `readmit` does not come, and the backend's
///   [`deregister`](crate::Backend::deregister) does.
///
/// # Threads
///
/// Any number of threads may close a region at a time. `evict` may come more than once; `readmit` comes when the last of them
/// has given up.
pub trait Tenant: Send + Sync + 'static {
    /// Lets no user begin anything on the region from now on, and says whether none is at it any more. Asked again until it is
    /// so. Unknown regions have no users.
    fn evict(&self, region: RegionId) -> bool;

    /// The region stays open after all: users may go on.
    fn readmit(&self, region: RegionId);
}

/// How long a close sleeps before it asks the tenants again.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

impl Region {
    /// Has `tenant` asked before the region is closed, for as long as that lives.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the region is closed.
    pub fn let_to(&self, tenant: Weak<dyn Tenant>) -> Result<()> {
        let mut pins = self.0.pins.lock();
        if pins.closed {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("region {} is deregistered; register the memory again", self.0.id),
            ));
        }
        pins.tenants.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&tenant));
        pins.tenants.push(tenant);
        pins.lettings += 1;
        Ok(())
    }

    /// Closes the region when neither tenants nor pins are left.
    pub(super) fn close_by(&self, deadline: Deadline, clock: &Clock) -> Result<()> {
        let mut asked = 0;
        let result = loop {
            match self.close_unpinned(&mut asked, deadline, clock) {
                Ok(None) => break Ok(()),
                Ok(Some(tenants)) => {
                    if let Err(busy) = self.evict(&tenants, deadline, clock) {
                        break Err(busy);
                    }
                }
                Err(busy) => break Err(busy),
            }
        };
        if asked > 0 {
            self.readmit();
        }
        result
    }

    /// Waits until no pin is left, and closes in the same step; unless there are tenants that have not been asked, who are
    /// returned. `asked` counts the lettings up to which they have been.
    fn close_unpinned(
        &self,
        asked: &mut u64,
        deadline: Deadline,
        clock: &Clock,
    ) -> Result<Option<Vec<Arc<dyn Tenant>>>> {
        let mut pins = self.0.pins.lock();
        loop {
            // Under the lock that closes, so that no tenant slips in.
            if pins.lettings != *asked {
                if *asked == 0 {
                    pins.closers += 1;
                }
                *asked = pins.lettings;
                return Ok(Some(pins.tenants.iter().filter_map(Weak::upgrade).collect()));
            }
            if pins.count == 0 {
                pins.closed = true;
                return Ok(None);
            }
            if deadline != Deadline::Never && deadline.passed(clock.now()) {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "region {} is in use by {} transfers in progress; wait for them and try again",
                        self.0.id, pins.count
                    ),
                ));
            }
            clock.sleep(&self.0.quiet, &mut pins, deadline);
        }
    }

    fn evict(&self, tenants: &[Arc<dyn Tenant>], deadline: Deadline, clock: &Clock) -> Result<()> {
        loop {
            // All are asked, also after the first that says no.
            let busy = tenants.iter().filter(|tenant| !tenant.evict(self.0.id)).count();
            if busy == 0 {
                return Ok(());
            }
            if deadline != Deadline::Never && deadline.passed(clock.now()) {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "region {} is in use by a peer that copies by itself, and that may be stopped in it; try again, or end that peer",
                        self.0.id
                    ),
                ));
            }
            let mut pins = self.0.pins.lock();
            clock.sleep(&self.0.quiet, &mut pins, clock.deadline(LOOK_AGAIN).min(deadline));
        }
    }

    /// Ends a close that has asked tenants.
    fn readmit(&self) {
        let again: Vec<Arc<dyn Tenant>> = {
            let mut pins = self.0.pins.lock();
            pins.closers -= 1;
            if pins.closed || pins.closers > 0 {
                Vec::new()
            } else {
                pins.tenants.iter().filter_map(Weak::upgrade).collect()
            }
        };
        again.iter().for_each(|tenant| tenant.readmit(self.0.id));
    }
}

#[cfg(all(test, not(any(mori_loom, mori_shuttle))))]
mod tests {
    use super::*;
    use crate::memory::Access;
    use crate::time::Timeout;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Users that leave when they are told to.
    #[derive(Default)]
    struct House {
        busy: AtomicBool,
        asked: AtomicUsize,
        readmitted: AtomicUsize,
    }

    impl Tenant for House {
        fn evict(&self, _region: RegionId) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed);
            !self.busy.load(Ordering::Relaxed)
        }

        fn readmit(&self, _region: RegionId) {
            self.readmitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn let_to(region: &Region, house: &Arc<House>) -> Result<()> {
        let weak: Weak<House> = Arc::downgrade(house);
        region.let_to(weak)
    }

    /// E3: a peer that copies by itself is waited for, or the region stays open and the peer goes on.
    #[test]
    fn a_tenant_is_waited_for_or_readmitted() {
        let region = Region::zeroed(8, Access::READ_WRITE).unwrap();
        let (house, other) = (Arc::new(House::default()), Arc::new(House::default()));
        let_to(&region, &house).unwrap();
        let_to(&region, &house).unwrap();
        let_to(&region, &other).unwrap();
        house.busy.store(true, Ordering::Relaxed);
        let refused = region.close(Timeout::Poll, &Clock::system()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(!region.is_closed() && region.pin().is_ok());
        assert_eq!((house.asked.load(Ordering::Relaxed), house.readmitted.load(Ordering::Relaxed)), (1, 1));
        assert_eq!(other.readmitted.load(Ordering::Relaxed), 1, "also those who were gone");

        // With a pin in the way as well, nobody is shut out for good.
        house.busy.store(false, Ordering::Relaxed);
        let pin = region.pin().unwrap();
        assert_eq!(region.close(Timeout::Poll, &Clock::system()).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(house.readmitted.load(Ordering::Relaxed), 2);
        drop(pin);
        region.close(Timeout::Poll, &Clock::system()).unwrap();
        assert_eq!(house.readmitted.load(Ordering::Relaxed), 2, "a closed region readmits nobody");
        assert_eq!(let_to(&region, &house).unwrap_err().kind(), ErrorKind::NotFound);
        region.close(Timeout::Poll, &Clock::system()).unwrap();
    }

    #[test]
    fn a_close_sleeps_until_the_tenant_has_left() {
        let region = Region::zeroed(8, Access::READ_WRITE).unwrap();
        let house = Arc::new(House::default());
        let_to(&region, &house).unwrap();
        house.busy.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let closers: Vec<_> =
                (0..2).map(|_| scope.spawn(|| region.close(None, &Clock::system()))).collect();
            while house.asked.load(Ordering::Relaxed) < 4 {
                std::thread::yield_now();
            }
            assert!(!region.is_closed());
            house.busy.store(false, Ordering::Relaxed);
            closers.into_iter().for_each(|closer| closer.join().unwrap().unwrap());
        });
        assert!(region.is_closed());
    }

    /// A tenant that comes while a close sleeps is asked, too.
    #[test]
    fn a_tenant_does_not_slip_in_behind_a_close() {
        let region = Region::zeroed(8, Access::READ_WRITE).unwrap();
        let house = Arc::new(House::default());
        let pin = region.pin().unwrap();
        std::thread::scope(|scope| {
            let closer = scope.spawn(|| region.close(None, &Clock::system()));
            let_to(&region, &house).unwrap();
            drop(pin);
            closer.join().unwrap().unwrap();
        });
        assert!(house.asked.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn a_tenant_that_is_gone_is_nobody() {
        let region = Region::zeroed(8, Access::READ_WRITE).unwrap();
        let house = Arc::new(House::default());
        let_to(&region, &house).unwrap();
        house.busy.store(true, Ordering::Relaxed);
        drop(house);
        region.close(Timeout::Poll, &Clock::system()).unwrap();
    }
}
