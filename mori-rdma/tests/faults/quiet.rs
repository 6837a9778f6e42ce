//! A transfer that is cancelled, is late, or loses its memory: when it has ended, no byte of it moves any more.

use std::time::Duration;

use mori_core::{Backend, Clock, ErrorKind, Op, Status, TransferOptions};

use super::play::{DEPTH, LENGTH, PIECE, Play, ended};
use super::{differs, mark, within};
use crate::guest::net;

/// Tearing a queue pair down, asking the peer to do the same, and connecting anew.
const BOUND: Duration = Duration::from_secs(20);
/// How long each packet is on its way, in milliseconds.
const DELAY: &str = "20";
/// The seeds of the marks: of the source, of the destination, and anew after the end.
const SOURCE: usize = 101;
const BEFORE: usize = 102;
const AFTER: usize = 103;

/// Marks the destination of a transfer, or a part of it.
fn mark_destination(play: &mut Play, op: Op, offset: usize, length: usize, seed: usize) {
    match op {
        Op::Write => play.peer.mark(offset, length, seed),
        Op::Read => mark(&play.local, offset, length, seed),
    }
}

fn destination_differs(play: &mut Play, op: Op, offset: usize, seed: usize) -> Option<usize> {
    match op {
        Op::Write => play.peer.differs(offset, PIECE, seed),
        Op::Read => differs(&play.local, offset, PIECE, seed),
    }
}

/// Runs a batch that `end` disturbs. Where a transfer has ended without success, the destination is marked anew at once, and has
/// to stay as it is. Those that succeed have the source's bytes. Says how many did not.
fn stays_quiet(
    op: Op,
    options: &dyn Fn(usize) -> TransferOptions,
    end: impl FnOnce(&[Status]),
    of: ErrorKind,
) -> usize {
    let mut play = Play::new();
    // The same marks in each part, so that a part can be compared by itself.
    for slot in 0..DEPTH {
        match op {
            Op::Write => mark(&play.local, slot * PIECE, PIECE, SOURCE),
            Op::Read => play.peer.mark(slot * PIECE, PIECE, SOURCE),
        }
    }
    mark_destination(&mut play, op, 0, LENGTH, BEFORE);
    // What was sent before the end arrives after it.
    net(&["delay", DELAY]);
    let broken = within(BOUND, "the batch", || {
        let statuses: Vec<Status> = (0..DEPTH).map(|slot| play.submit(op, slot, &options(slot))).collect();
        end(&statuses);
        let mut broken = Vec::new();
        for (slot, status) in statuses.iter().enumerate() {
            match ended(status) {
                Ok(()) => {
                    let found = destination_differs(&mut play, op, slot * PIECE, SOURCE);
                    assert_eq!(found, None, "part {slot} was carried");
                }
                Err(error) => {
                    assert_eq!(error.kind(), of, "{error:?}");
                    mark_destination(&mut play, op, slot * PIECE, PIECE, AFTER);
                    broken.push(slot);
                }
            }
        }
        broken
    });
    // What follows on the same wire arrives later than all of that.
    let carried = (0..DEPTH).find(|slot| !broken.contains(slot)).unwrap();
    ended(&play.submit(op, carried, &TransferOptions::default())).unwrap();
    play.rests();
    for &slot in &broken {
        let found = destination_differs(&mut play, op, slot * PIECE, AFTER);
        assert_eq!(found, None, "part {slot} was written to after its end");
    }
    net(&["heal"]);
    play.works();
    play.end();
    broken.len()
}

pub(crate) fn nothing_moves_after_a_cancel() {
    for op in [Op::Write, Op::Read] {
        let plain = |_| TransferOptions::default();
        // From the last on: those have not begun. The others go on.
        let cancel = |statuses: &[Status]| {
            statuses.iter().rev().step_by(2).for_each(|status| status.cancel().unwrap());
        };
        let broken = stays_quiet(op, &plain, cancel, ErrorKind::Cancelled);
        assert!((1..=DEPTH / 2).contains(&broken), "{broken} were cancelled");
    }
}

pub(crate) fn nothing_moves_after_a_deadline() {
    let hurried = |slot: usize| TransferOptions {
        deadline: (slot % 2 == 1).then_some(Duration::from_millis(2)),
        ..TransferOptions::default()
    };
    let broken = stays_quiet(Op::Write, &hurried, |_| (), ErrorKind::Cancelled);
    assert!((1..=DEPTH / 2).contains(&broken), "{broken} were late");
}

/// The peer takes its registration back under a batch. Whoever then uses the memory for something else finds it untouched.
pub(crate) fn nothing_moves_after_the_peer_deregisters() {
    let mut play = Play::new();
    net(&["delay", DELAY]);
    let statuses: Vec<Status> =
        (0..4).flat_map(|_| play.batch(Op::Write, &TransferOptions::default())).collect();
    play.peer.ask("deregister");
    play.peer.mark(0, LENGTH, AFTER);
    let failed: Vec<_> =
        within(BOUND, "the batch", || statuses.iter().filter_map(|status| ended(status).err()).collect());
    for error in &failed {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        assert!(error.message().contains("deregistered"), "{error:?}");
    }
    assert!(!failed.is_empty());
    let error = ended(&play.submit(Op::Read, 0, &TransferOptions::default())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    play.rests();
    net(&["heal"]);
    assert_eq!(play.peer.differs(0, LENGTH, AFTER), None, "memory was written to after its deregistration");
    // Other memory there is as good as before.
    play.remote = play.peer.area(LENGTH);
    play.reopen();
    ended(&play.submit(Op::Read, 0, &TransferOptions::default())).unwrap();
    play.end();
}

/// Own memory is held for as long as a transfer needs it.
pub(crate) fn own_memory_waits_for_its_transfers() {
    let play = Play::new();
    let clock = Clock::system();
    net(&["delay", DELAY]);
    let statuses = play.batch(Op::Read, &TransferOptions::default());
    let error = play.local.close(Duration::ZERO, &clock).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    within(BOUND, "closing", || play.local.close(BOUND, &clock).unwrap());
    // Whoever sees the region closed finds its transfers over.
    statuses.iter().for_each(|status| ended(status).unwrap());
    play.node.backend.deregister(play.local.id());
    mark(&play.local, 0, LENGTH, AFTER);
    let error = ended(&play.submit(Op::Read, 0, &TransferOptions::default())).unwrap_err();
    assert!(!error.message().is_empty());
    assert_eq!(differs(&play.local, 0, LENGTH, AFTER), None);
    play.end();
}
