//! The peer's process is killed, replaced or stopped.

use std::time::Duration;

use mori_core::{Backend, Clock, Error, ErrorKind, Op, TransferOptions};
use rustix::process::Signal;

use super::play::{DEPTH, Play, ended, told};
use super::{PEER_TIMEOUT, within};

/// The system says at once that a process is gone; the rest is for the emulation.
const GONE: Duration = Duration::from_secs(8);
/// What needs a peer that is stopped ends after the peer timeout, each step of it once.
const STOPPED: Duration = Duration::from_secs(2 * PEER_TIMEOUT.as_secs() + 8);
/// Calls of a batch's condition after which it is well under way.
const WELL_UNDER_WAY: usize = 2 * DEPTH;

fn all_lost(failures: &[Error]) {
    assert!(!failures.is_empty());
    for error in failures {
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error:?}");
    }
}

/// Does something to a batch that is under way, and waits for the failures.
fn in_mid_batch(play: &Play, op: Op, act: impl FnOnce()) -> Vec<Error> {
    let (mut calls, mut act) = (0, Some(act));
    play.keep_going(op, |failures| {
        calls += 1;
        if calls == WELL_UNDER_WAY
            && let Some(act) = act.take()
        {
            act();
        }
        failures.is_empty()
    })
}

pub(crate) fn a_killed_peer_is_lost_and_its_successor_is_another() {
    let op = Op::Write;
    let mut play = Play::new();
    let failures =
        within(GONE, "noticing the death", || in_mid_batch(&play, op, || play.peer.signal(Signal::KILL)));
    all_lost(&failures);
    let nobody = within(GONE, "failing meanwhile", || {
        ended(&play.submit(op, 0, &TransferOptions::default())).unwrap_err()
    });
    assert!(nobody.message().len() > 20 && !play.session.alive(), "{nobody:?}");

    let (fresh, desc) = play.successor(3);
    play.node.backend.add_peer(&desc).unwrap();
    let (_, stale) = play.replace(fresh);
    let error = ended(&play.submit(op, 0, &TransferOptions::default())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error:?}");
    assert!(error.message().contains("new incarnation"), "{error:?}");
    let error = play.node.backend.session(&play.local, &stale).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("stale"), "{error:?}");
    play.reopen();
    within(GONE, "the successor's transfers", || play.works());
    play.end();
}

/// Two processes of one name: who was there first is given up.
pub(crate) fn a_replaced_peer_ends_what_is_under_way() {
    let mut play = Play::new();
    let (fresh, desc) = play.successor(3);
    let failures = within(GONE, "ending what is under way", || {
        in_mid_batch(&play, Op::Read, || play.node.backend.add_peer(&desc).unwrap())
    });
    all_lost(&failures);
    let (old, stale) = play.replace(fresh);
    old.end();
    assert!(play.node.backend.session(&play.local, &stale).is_err());
    play.reopen();
    play.works();
    play.end();
}

/// The cards go on without the process; only what has to be taken by it waits.
pub(crate) fn a_stopped_peer_serves_reads_and_writes_and_takes_no_messages() {
    let mut play = Play::new();
    play.peer.signal(Signal::STOP);
    let clock = Clock::system();
    let until = clock.now() + PEER_TIMEOUT + PEER_TIMEOUT / 2;
    for op in [Op::Read, Op::Write] {
        let failures = play.keep_going(op, |_| clock.now() < until);
        assert!(failures.is_empty(), "{failures:?}");
    }
    assert!(play.session.alive());

    // Four messages find a place; the others wait for one.
    let hurried = TransferOptions { deadline: Some(PEER_TIMEOUT / 4), ..told() };
    within(STOPPED, "giving the messages up", || {
        let messages: Vec<_> = (0..8).map(|slot| play.submit(Op::Write, slot, &told())).collect();
        let late = play.submit(Op::Write, 8, &hurried);
        let error = ended(&late).unwrap_err();
        assert!(error.kind() == ErrorKind::Cancelled && error.message().contains("message"), "{error:?}");
        let failures: Vec<Error> = messages.iter().map(|status| ended(status).unwrap_err()).collect();
        all_lost(&failures);
        for error in &failures {
            assert!(error.message().contains("message"), "{error:?}");
        }
    });
    play.peer.signal(Signal::CONT);
    play.works();
    ended(&play.submit(Op::Write, 0, &told())).unwrap();
    // The four were on their way when they were given up; they arrive now, those without a place never.
    assert_eq!(play.peer.ask("messages"), "5");
    play.end();
}

/// Nobody says that the peer's side is quiet: the writes end after the peer timeout.
pub(crate) fn cancelled_writes_to_a_stopped_peer_end_in_time() {
    let mut play = Play::new();
    play.peer.signal(Signal::STOP);
    within(STOPPED, "ending the cancelled", || {
        let statuses = play.batch(Op::Write, &TransferOptions::default());
        statuses.iter().for_each(|status| status.cancel().unwrap());
        for error in statuses.iter().filter_map(|status| ended(status).err()) {
            assert!([ErrorKind::Cancelled, ErrorKind::PeerLost].contains(&error.kind()), "{error:?}");
        }
    });
    play.peer.signal(Signal::CONT);
    play.works();
    play.end();
}
