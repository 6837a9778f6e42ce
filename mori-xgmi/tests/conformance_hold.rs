//! The part of the conformance suite that needs transfers to be held, in both completion modes.
//!
//! Holding is done on the simulated device: copies that touch the node's memory wait on their stream. No host can stop a
//! copy that is queued on a device, so the cases that want a held transfer to end *before* it is released ask for
//! something that this transport does not promise (it has no `cancel`), and are left out here, by name.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program and its report")]

mod support;

use mori_testkit::{CASES, Need, run_some};
use mori_xgmi::Completion;

/// Cases that want the copies of a device that does not move to end, with the reason.
const LEFT_OUT: [(&str, &str); 4] = [
    ("removing_a_peer_ends_its_transfers", "they end when the device has done their copies"),
    (
        "a_restarted_peer_is_a_new_one",
        "transfers with the earlier one end when the device has done their copies",
    ),
    ("shutdown_ends_every_transfer", "their statuses end, but the device's copies land when it moves again"),
    (
        "shutdown_releases_the_waiters",
        "a thread that synchronises on an event returns when the device gets there",
    ),
];

fn run(completion: Completion) {
    for (name, why) in LEFT_OUT {
        assert!(CASES.iter().any(|case| case.name == name), "there is no case {name}");
        println!("left out: {name}: {why}");
    }
    let report = run_some(support::SimHarness::new(completion, true), |case| {
        case.needs.contains(&Need::Hold) && LEFT_OUT.iter().all(|(name, _)| *name != case.name)
    });
    println!("{report}");
    report.assert_good();
}

#[test]
fn held_transfers_without_a_notifier() {
    run(Completion::EventQuery);
}

#[test]
fn held_transfers_with_callbacks() {
    run(Completion::HostCallback);
}
