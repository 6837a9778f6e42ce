//! Sequences of operations by several handles on several statuses, against a reference that is simple enough to read.
//!
//! The reference ([`reference`]) has no threads, no locks and no clock: it says what every operation answers and where every
//! status stands afterwards. The world ([`world`]) does the same with the crate. Waits that sleep are made on a hand-moved
//! clock; a second thread sees the waiter asleep, does one thing, and moves the clock to the deadline if that did not end
//! the wait. So every sequence has one right result.

#![cfg(not(any(mori_loom, mori_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod operations;
mod reference;
mod world;

use proptest::prelude::*;

use operations::{Sequence, sequences};
use reference::Reference;
use world::World;

/// Runs the sequence on both, and compares each answer and everything that can be seen after it.
fn agree(sequence: &Sequence) -> Result<(), TestCaseError> {
    let mut reference = Reference::new(&sequence.statuses);
    let mut world = World::new(&sequence.statuses);
    for (step, operation) in sequence.operations.iter().enumerate() {
        let expected = reference.apply(operation);
        let answer = world.apply(operation);
        prop_assert_eq!(&answer, &expected, "step {}: {:?}", step, operation);
        prop_assert_eq!(world.sight(), reference.sight(), "after step {}: {:?}", step, operation);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_answers_as_the_reference_does(sequence in sequences()) {
        agree(&sequence)?;
    }
}
