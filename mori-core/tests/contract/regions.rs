//! E3, as far as the core is concerned: pins keep regions open, and their memory in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

use mori_core::{Access, Clock, ErrorKind, Location, ManualClock, Region, Timeout};

use crate::support::{BOUND, Lockstep, TICK, Waiter};

fn region() -> Region {
    Region::zeroed(4096, Access::READ_WRITE).unwrap()
}

/// E3: closing waits until the last pin is gone, sleeping; then no pin is given out any more.
#[test]
fn e3_closing_waits_for_the_last_pin() {
    for bound in [None, Some(BOUND)] {
        let region = region();
        let clock = ManualClock::new();
        let pins = [region.pin().unwrap(), region.pin().unwrap()];
        assert_eq!(region.pins(), 2);
        scope(|scope| {
            let closer = Waiter::start(scope, || region.close(bound, &clock.clock()));
            closer.asleep(&clock, 1);
            let [first, last] = pins;
            drop(first);
            clock.advance(TICK);
            closer.asleep(&clock, 2);
            assert!(!region.is_closed());
            let late = region.pin().unwrap();
            drop(last);
            clock.advance(TICK);
            closer.asleep(&clock, 3);
            drop(late);
            assert_eq!(closer.end(), Ok(()));
        });
        assert!(region.is_closed());
        assert_eq!(region.pin().unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(region.pins(), 0);
    }
}

/// E3: when the time runs out the region is refused as busy, and stays open and usable.
#[test]
fn e3_a_region_in_use_is_refused_as_busy() {
    let region = region();
    let pin = region.pin().unwrap();
    let clock = ManualClock::new();
    scope(|scope| {
        let closer = Waiter::start(scope, || region.close(BOUND, &clock.clock()));
        closer.asleep(&clock, 1);
        clock.advance(BOUND - TICK);
        closer.asleep(&clock, 2);
        clock.advance(TICK);
        let busy = closer.end().unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert!(busy.message().contains("1 transfer"), "{busy}");
    });
    assert_eq!(region.close(Timeout::Poll, &clock.clock()).unwrap_err().kind(), ErrorKind::Busy);
    assert!(!region.is_closed());
    drop(region.pin().unwrap());
    drop(pin);
    assert_eq!(region.close(Duration::ZERO, &clock.clock()), Ok(()));
}

/// E3: several threads may close one region; all are answered, and closing again is fine.
#[test]
fn e3_several_threads_may_close_a_region() {
    let region = region();
    let pin = region.pin().unwrap();
    let clock = ManualClock::new();
    scope(|scope| {
        let closers = [(); 3].map(|()| Waiter::start(scope, || region.close(None, &clock.clock())));
        closers[0].asleep(&clock, 3);
        drop(pin);
        assert_eq!(closers.map(Waiter::end), [Ok(()), Ok(()), Ok(())]);
    });
    assert_eq!(region.close(None, &Clock::system()), Ok(()));
}

/// E3: the memory stays in place as long as a pin does, also when every other handle of the region is gone.
#[test]
fn e3_a_pin_keeps_the_memory() {
    struct Keeper(Arc<AtomicBool>);
    impl Drop for Keeper {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let freed = Arc::new(AtomicBool::new(false));
    let owner = region();
    let address = std::ptr::with_exposed_provenance_mut(owner.address());
    let keeper = (Keeper(Arc::clone(&freed)), owner);
    // SAFETY: the range belongs to the region inside the keeper, which lives as long as this one.
    let region = unsafe {
        Region::from_raw_with_keeper(address, 4096, Location::HOST, Access::LOCAL, Some(Box::new(keeper)))
    }
    .unwrap();
    let pin = region.pin().unwrap();
    drop(region);
    assert!(!freed.load(Ordering::Acquire));
    pin.region().write_at(4090, b"pinned").unwrap();
    let mut back = [0; 6];
    pin.region().read_at(4090, &mut back).unwrap();
    assert_eq!(&back, b"pinned");
    drop(pin);
    assert!(freed.load(Ordering::Acquire));
}

/// E3: pins and a close that race: either the pin came first and the close waited, or the pin is refused.
#[test]
fn e3_pins_that_race_with_a_close_are_refused_or_waited_for() {
    let regions: Vec<_> = (0..1000).map(|_| region()).collect();
    let start = Lockstep::new(2);
    scope(|scope| {
        let pinner = Waiter::start(scope, || {
            for (round, region) in regions.iter().enumerate() {
                start.meet(round);
                match region.pin() {
                    Ok(pin) => assert!(!pin.region().is_closed(), "closed under a pin"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                }
            }
        });
        for (round, region) in regions.iter().enumerate() {
            start.meet(round);
            region.close(None, &Clock::system()).unwrap();
            assert_eq!((region.is_closed(), region.pins()), (true, 0));
        }
        pinner.end();
    });
}
