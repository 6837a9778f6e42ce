//! What breaks while bytes are moving, between two processes over the guest's two devices: the wire, the peer, the device, the
//! memory. Elsewhere the tests are skipped by name.
//!
//! In each case everything that is under way ends within the bound that the test states, nothing is left over (transfers,
//! credits, records, registrations, queue pairs here and there, and what the kernel counts), and later transfers work with the
//! same engines.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test stops where something is not as it should be, and says what it skips"
)]

mod faults;
mod guest;

use faults::{devices, peers, quiet, wire};

fn main() {
    faults::run_if_asked();
    guest::main(&[
        ("the_peers_link_goes_down_under_writes", wire::the_peers_link_goes_down_under_writes),
        ("the_own_link_goes_down_under_reads", wire::the_own_link_goes_down_under_reads),
        ("a_black_hole_swallows_writes", wire::a_black_hole_swallows_writes),
        ("the_other_device_carries_on", wire::the_other_device_carries_on),
        ("a_short_black_hole_recovers_by_itself", wire::a_short_black_hole_recovers_by_itself),
        ("a_lossy_wire_loses_no_transfer", wire::a_lossy_wire_loses_no_transfer),
        (
            "a_killed_peer_is_lost_and_its_successor_is_another",
            peers::a_killed_peer_is_lost_and_its_successor_is_another,
        ),
        ("a_replaced_peer_ends_what_is_under_way", peers::a_replaced_peer_ends_what_is_under_way),
        (
            "a_stopped_peer_serves_reads_and_writes_and_takes_no_messages",
            peers::a_stopped_peer_serves_reads_and_writes_and_takes_no_messages,
        ),
        (
            "cancelled_writes_to_a_stopped_peer_end_in_time",
            peers::cancelled_writes_to_a_stopped_peer_end_in_time,
        ),
        (
            "a_deleted_device_is_used_until_its_engine_ends",
            devices::a_deleted_device_is_used_until_its_engine_ends,
        ),
        (
            "a_device_deleted_at_the_peer_is_used_until_the_peer_ends",
            devices::a_device_deleted_at_the_peer_is_used_until_the_peer_ends,
        ),
        ("nothing_moves_after_a_cancel", quiet::nothing_moves_after_a_cancel),
        ("nothing_moves_after_a_deadline", quiet::nothing_moves_after_a_deadline),
        ("nothing_moves_after_the_peer_deregisters", quiet::nothing_moves_after_the_peer_deregisters),
        ("own_memory_waits_for_its_transfers", quiet::own_memory_waits_for_its_transfers),
    ]);
}
