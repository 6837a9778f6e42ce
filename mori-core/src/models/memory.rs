//! A region's bytes against the status (S4), and pins against closing a region (E3).

use super::{Bytes, in_progress};
use crate::memory::{Access, Region};
use crate::sync::{model, thread};
use crate::time::{Clock, Timeout};

/// S4 with plain memory: what was copied in before the success is copied out after it. The checkers do not watch plain
/// memory; a sanitizer that runs this on real threads does.
#[test]
fn a_regions_bytes_are_there_when_the_status_says_so() {
    model(|| {
        let region = Region::zeroed(64, Access::LOCAL).unwrap();
        let (completer, status) = in_progress();
        let target = region.clone();
        let writer = thread::spawn(move || {
            target.write_at(0, &[7; 64]).unwrap();
            completer.succeed();
        });
        let look = |when: &str| {
            let mut bytes = [0; 64];
            region.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 64], "{when}");
        };
        if status.is_success() {
            look("without a lock");
        }
        assert!(status.wait(None).is_success());
        look("after the wait");
        writer.join().unwrap();
    });
}

/// E3: a pin is given out before the region is closed, which then waits for it, or not at all.
#[test]
fn a_pin_is_given_before_the_close_or_not_at_all() {
    model(|| {
        let region = Region::zeroed(8, Access::LOCAL).unwrap();
        let gone = Bytes::new();
        let (closing, freed) = (region.clone(), gone.clone());
        let closer = thread::spawn(move || {
            closing.close(Timeout::Unbounded, &Clock::system()).unwrap();
            freed.land();
        });
        if let Ok(pin) = region.pin() {
            thread::yield_now();
            assert!(!gone.have_landed(), "the region was closed under a pin");
            drop(pin);
        }
        closer.join().unwrap();
        assert!(region.is_closed());
    });
}

/// E3: the last of two pins ends the wait.
#[test]
fn closing_waits_for_the_last_pin() {
    model(|| {
        let region = Region::zeroed(8, Access::LOCAL).unwrap();
        let pins = [region.pin().unwrap(), region.pin().unwrap()];
        let users = pins.map(|pin| thread::spawn(move || drop(pin)));
        region.close(Timeout::Unbounded, &Clock::system()).unwrap();
        assert_eq!(region.pins(), 0);
        for user in users {
            user.join().unwrap();
        }
    });
}
