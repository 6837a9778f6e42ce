//! The mutants: ways of breaking the protocols, and for each the model that has to reject it.

/// Name of a mutant (as in `MORI_MUTANT`, and at the line that it breaks), and the model.
const ALL: &[(&str, &str)] = &[
    ("store_outside_lock", "single::waiter_and_success"),
    ("notifies_before_store", "single::waiter_and_success"),
    ("looks_before_arming", "single::waiter_and_success"),
    ("relaxed_code", "single::reader_without_lock_sees_the_bytes"),
    ("message_after_code", "single::code_and_message_are_one_fact"),
    ("later_state_wins", "single::first_terminal_state_wins"),
    ("wakes_one_waiter", "single::two_waiters_are_both_released"),
    ("wakes_one_waiter", "queue::closing_releases_every_reader"),
    ("if_for_while", "single::a_wake_without_reason_ends_no_wait"),
    ("clock_beats_completion", "single::completion_beats_the_clock"),
    ("note_checks_before_lock", "single::a_note_after_the_end_changes_nothing"),
    ("drop_leaves_in_progress", "single::dropping_the_writer_releases_the_waiter"),
    ("hook_under_lock", "backend::a_blocked_hook_holds_up_neither_poll_nor_update"),
    ("no_repoll", "backend::a_wait_without_hook_polls_again"),
    ("no_last_poll", "backend::the_last_poll_comes_at_the_deadline"),
    ("no_last_poll", "many::every_unfinished_member_is_polled_at_the_deadline"),
    ("tells_one_observer", "observer::both_observers_are_told"),
    ("counts_twice", "many::completions_in_any_order"),
    ("relaxed_countdown", "future::a_batch_that_is_woken_is_terminal"),
    ("gate_skips_terminal", "many::completions_in_any_order"),
    ("wakes_per_completion", "many::one_wake_for_all_completions"),
    ("gate_if_for_while", "many::a_wake_without_reason_ends_no_wait"),
    ("first_failure_waits", "many::first_failure_ends_the_wait"),
    ("all_ends_at_failure", "many::a_failure_wins_after_all_are_quiet"),
    ("stale_verdict", "many::a_failure_beats_the_clock"),
    ("waker_forgotten", "future::future_and_update"),
    ("arms_without_looking", "future::future_and_update"),
    ("first_waker_stays", "future::the_waker_is_replaced"),
    ("pin_checks_before_lock", "memory::a_pin_is_given_before_the_close_or_not_at_all"),
];

/// Prints the list for `cargo xtask loom`, which runs each mutant in a process of its own.
#[test]
fn list() {
    let distinct: std::collections::BTreeSet<_> = ALL.iter().collect();
    assert_eq!(distinct.len(), ALL.len(), "a row is there twice");
    for (name, model) in ALL {
        println!("mutant {name} models::{model}");
    }
}
