//! Broken backends: each does one thing wrong, and names the case of the suite that must catch it.
//!
//! They are the proof that the suite can fail. An author who adds a case adds the flaw that it is for, and runs
//! the suite's own tests.

use crate::fake::FakeConfig;
use crate::harness::{Bounds, Harness};
use crate::suite::{CASES, Case};
use crate::{FakeHarness, Problem};

use std::sync::Arc;
use std::time::Duration;

/// Which kind of fake shows a flaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One with a notifier.
    Notified,
    /// One that has to be polled and has a blocking hook.
    Hooked,
    /// One with a notifier that declares neither `cancel` nor `notify`.
    Bare,
}

macro_rules! flaws {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ident, $case:ident;)+) => {
        /// One thing that a [`FakeBackend`](crate::FakeBackend) does wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Flaw {
            $($(#[doc = $doc])+ $name,)+
            /// Fails a transfer that has succeeded. Harmless: the first terminal state is final (S2), so no case can see it.
            CompletesAgain,
        }

        /// Every flaw that the suite must catch.
        const ALL: &[(Flaw, Kind, &str)] = &[$((Flaw::$name, Kind::$kind, stringify!($case)),)+];
    };
}

flaws! {
    /// Says success before the bytes have moved.
    CompletesBeforeData: Notified, bytes_are_there_when_the_status_says_so;
    /// Says failure first and success afterwards.
    CompletesTwice: Notified, one_session_used_again_and_again;
    /// Forgets the writer's side of every fifth transfer.
    ForgetsCompletions: Notified, one_session_used_again_and_again;
    /// Moves one byte more than the last piece has.
    WritesPastThePiece: Notified, read_every_size;
    /// Moves one byte less than the last piece has.
    LosesTheLastByte: Notified, write_every_size;
    /// Takes the first piece's bytes for the second one and the other way round.
    SwapsPieces: Notified, a_batch_read_of_scattered_pieces;
    /// Moves 1024 pieces of a batch and forgets the others.
    DropsPieces: Notified, thousands_of_pieces_in_one_transfer;
    /// Keeps 16 bits of an offset.
    CutsOffsets: Notified, a_batch_write_of_scattered_pieces;
    /// Writes into the memory that a write only reads.
    TouchesTheSource: Notified, write_every_size;
    /// Uses one region of a peer for all of its regions.
    MixesUpRegions: Notified, regions_of_one_peer_are_kept_apart;
    /// Never ends a transfer without bytes.
    EmptyTransfersHang: Notified, an_empty_transfer_succeeds;
    /// Leaves the status in *init*.
    LeavesInit: Notified, submit_leaves_init_while_nothing_moves;
    /// Returns from a submission only when the transfer has ended.
    SubmitBlocks: Notified, submit_does_not_wait_for_the_peer;
    /// Gives several transfers the same number.
    SharesNumbers: Notified, transfers_have_numbers_of_their_own;
    /// Forgets the caller's tags.
    LosesTags: Notified, the_tag_comes_back;
    /// Says something else about its notifier after a while.
    ChangesItsNotifier: Notified, statuses_say_what_the_backend_says;
    /// Joins a second engine.
    AttachesTwice: Notified, attaching_twice_is_a_bad_state;
    /// Accepts a cancellation although it declares that it cannot cancel.
    CancelsUndeclared: Bare, undeclared_capabilities_answer_unsupported;
    /// Says that it completes transfers by itself, and needs polls.
    NotifierNeedsPolls: Notified, transfers_end_with_nobody_polling;
    /// Blocks in a poll until the transfer ends.
    PollsBlock: Hooked, a_poll_of_an_unfinished_transfer_returns_at_once;
    /// Holds a lock in its blocking hook that polls need.
    HookHoldsALock: Hooked, a_poll_never_waits_behind_a_blocked_waiter;
    /// Never returns from its blocking hook.
    HookSleepsForGood: Hooked, an_unbounded_wait_ends_with_the_transfer;
    /// Says *cancelled*, and the bytes land later.
    CancelledBytesLand: Notified, no_byte_of_a_cancelled_read_lands;
    /// Declares that it can cancel, and answers that it cannot.
    CancelIsDeclaredOnly: Notified, cancel_stops_transfers_that_are_under_way;
    /// Accepts a cancellation and does nothing.
    CancelDoesNothing: Notified, cancel_stops_transfers_that_are_under_way;
    /// Stops every transfer when one is cancelled.
    CancelStopsOthers: Notified, cancelling_one_leaves_the_others;
    /// Takes no notice of a transfer's own deadline.
    IgnoresDeadlines: Notified, a_deadline_cancels_and_says_what_it_waited_for;
    /// Takes every deadline for passed.
    DeadlinesAtOnce: Notified, a_deadline_that_does_not_pass_changes_nothing;
    /// Does not say what a transfer was waiting for when its deadline passed.
    DeadlinesWithoutWords: Notified, a_deadline_cancels_and_says_what_it_waited_for;
    /// Keeps its pins for ever.
    LeaksPins: Notified, pins_are_given_back_however_a_transfer_ends;
    /// Takes no pins.
    TakesNoPins: Notified, a_region_in_use_does_not_close;
    /// Stops the transfers of a session that is dropped.
    SessionsCancel: Notified, dropping_the_session_disturbs_nothing;
    /// Leaves transfers in progress when it is dropped without a shutdown.
    DroppingForgets: Notified, a_dropped_backend_leaves_nothing_in_progress;
    /// Serves regions that are deregistered and closed.
    KeepsStaleKeys: Notified, a_deregistered_region_is_gone;
    /// Never returns from its shutdown.
    ShutdownHangs: Notified, shutdown_returns_in_bounded_time;
    /// Leaves transfers in progress when it shuts down.
    ShutdownForgets: Notified, shutdown_ends_every_transfer;
    /// Takes transfers after its shutdown, and never ends them.
    SubmitsAfterShutdown: Notified, after_shutdown_everything_answers_with_an_error;
    /// Does not notice that a connection is closed.
    IgnoresCutLinks: Notified, a_cut_link_is_a_lost_peer;
    /// Reports the transfers with a lost peer as successful.
    LossIsSuccess: Notified, a_cut_link_is_a_lost_peer;
    /// Waits for a silent peer for ever.
    IgnoresSilence: Notified, a_silent_peer_is_lost_within_its_bound;
    /// Says *peer lost*, and the bytes land when the peer is back.
    LostBytesLand: Notified, no_byte_lands_after_the_peer_was_lost;
    /// Lets one peer that does not answer delay all others.
    OnePeerDelaysAll: Notified, one_peer_does_not_delay_the_others;
    /// Takes no transfers for a peer that was lost once.
    NeverReconnects: Notified, a_peer_that_is_back_works_again;
    /// Takes a restarted peer for the old one.
    MissesRestarts: Notified, a_restarted_peer_is_a_new_one;
    /// Leaves transfers with a removed peer in progress.
    ForgetsRemovedPeers: Notified, removing_a_peer_ends_its_transfers;
    /// Opens sessions to peers that it does not know, and never ends their transfers.
    AcceptsUnknownPeers: Notified, an_unknown_peer_is_not_found;
    /// Gives the target each message twice.
    NotifiesTwice: Notified, a_write_is_notified_once_after_its_bytes;
    /// Gives the target the message before the bytes.
    NotifiesEarly: Notified, a_write_is_notified_once_after_its_bytes;
    /// Declares notifications, and delivers none.
    NotifiesNever: Notified, a_write_is_notified_once_after_its_bytes;
    /// Delivers the messages of writes only.
    NotifiesWritesOnly: Notified, a_read_is_notified_once;
    /// Delivers failures that nobody asked for.
    NotifiesFailuresUnasked: Notified, a_failure_is_notified_only_if_asked_for;
    /// Does not deliver failures.
    NotifiesNoFailures: Notified, a_failure_is_notified_only_if_asked_for;
    /// Cuts long messages.
    CutsMessages: Notified, messages_of_every_length_up_to_the_limit;
    /// Drops the message when the target's queue is full, and says success.
    DropsMessages: Notified, a_full_queue_fails_the_transfer_at_its_submitter;
    /// Panics when a blob is too short.
    PanicsOnGarbage: Notified, malformed_engine_blobs_are_refused;
    /// Takes any blob.
    AcceptsGarbage: Notified, malformed_engine_blobs_are_refused;
    /// Lets peers read and write whatever the region's rights are.
    IgnoresAccess: Notified, access_rights_are_kept_by_the_target;
    /// Leaves out what is out of range and says success.
    IgnoresRanges: Notified, ranges_are_checked_by_the_target;
}

/// A broken backend and the case that must catch it.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What it does wrong.
    pub flaw: Flaw,
    /// The name of the case that must catch it.
    pub caught_by: &'static str,
    config: FakeConfig,
}

impl Mutant {
    /// The fake with this flaw, made so that the flaw can show.
    #[must_use]
    pub fn config(&self) -> FakeConfig {
        self.config.clone()
    }

    /// The same fake without the flaw.
    #[must_use]
    pub fn healthy(&self) -> FakeConfig {
        FakeConfig { flaw: None, ..self.config.clone() }
    }

    /// Runs the case that must catch it, and gives what the case says about it.
    ///
    /// # Errors
    ///
    /// If the case passes or is skipped, does not exist, or fails without the flaw as well.
    pub fn catch(&self) -> Result<Problem, String> {
        let case = self.case()?;
        let healthy: Arc<dyn Harness> = Arc::new(FakeHarness::new(self.healthy()));
        let broken: Arc<dyn Harness> = Arc::new(FakeHarness::new(self.config()).with_bounds(short()));
        let declared = crate::suite::declared(&healthy).map_err(|problem| problem.to_string())?;
        if let Some(why) = case.skipped(&declared) {
            return Err(format!("{} is skipped: {why}", case.name));
        }
        if let Err(problem) = case.run(&healthy) {
            return Err(format!("{} fails without the flaw as well: {problem}", case.name));
        }
        match case.run(&broken) {
            Ok(()) => Err(format!("{} does not catch {:?}", case.name, self.flaw)),
            Err(problem) => Ok(problem),
        }
    }

    fn case(&self) -> Result<&'static Case, String> {
        CASES.iter().find(|case| case.name == self.caught_by).ok_or_else(|| {
            format!("there is no case {}, which {:?} is said to be caught by", self.caught_by, self.flaw)
        })
    }
}

/// Bounds for what is expected to fail, so that what hangs is found soon.
fn short() -> Bounds {
    let second = Duration::from_secs(1);
    Bounds {
        transfer: second * 3,
        prompt: second,
        cut: second * 2,
        silence: second * 3,
        reconnect: second * 2,
        shutdown: second * 2,
        case: second * 10,
        ..Bounds::default()
    }
}

/// Every broken backend.
///
/// ```
/// let mutants = mori_testkit::mutants();
/// assert!(mutants.iter().all(|mutant| mutant.config().flaw == Some(mutant.flaw)));
/// ```
#[must_use]
pub fn mutants() -> Vec<Mutant> {
    ALL.iter()
        .map(|&(flaw, kind, caught_by)| {
            let mut config = match kind {
                Kind::Notified | Kind::Bare => FakeConfig::notified(),
                Kind::Hooked => FakeConfig::polled(true),
            };
            if kind == Kind::Bare {
                config.capabilities.cancel = false;
                config.capabilities.notify = false;
            }
            Mutant { flaw, caught_by, config: config.flawed(flaw) }
        })
        .collect()
}
