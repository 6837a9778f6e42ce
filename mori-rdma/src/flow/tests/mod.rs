//! The flow over a device that is a list: what it posts, what it makes of completions, and that nothing is lost whatever
//! happens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod random;
mod world;

use std::collections::HashSet;
use std::time::Duration;

use mori_core::{Error, ErrorKind, Notify, Op, Piece};

use super::*;
use world::{World, settings};

fn bytes(pieces: &[Piece]) -> HashSet<(u64, u64)> {
    pieces.iter().flat_map(|p| (0..p.length).map(move |i| (p.local + i, p.remote + i))).collect()
}

const BIG: [Piece; 1] = [Piece::new(0, 100, 200)];

#[test]
fn a_transfer_is_posted_in_chains_and_ends_with_the_last() {
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    assert_eq!(world.flow.held().credits, 13);
    while world.step(0, WcStatus::Success) {}
    assert_eq!(world.kind(key), None);
    let executed: HashSet<_> = world.executed[&key].iter().copied().collect();
    assert_eq!(executed, bytes(&BIG));
    world.nothing_held();
}

#[test]
fn transfers_beyond_the_credits_wait_and_take_turns() {
    let mut world = World::new(settings(), 1, 4);
    let keys: Vec<u64> = (0..3).map(|_| world.submit(Op::Write, &BIG, None)).collect();
    assert_eq!(world.flow.held().credits, 4);
    // After as many requests as one of them has, each has had its share.
    for _ in 0..13 {
        world.step(0, WcStatus::Success);
    }
    assert!(keys.iter().all(|key| world.executed.contains_key(key)));
    world.run();
    assert!(keys.iter().all(|key| world.kind(*key).is_none()));
    world.nothing_held();
}

#[test]
fn one_transfers_fault_fails_it_alone() {
    let mut world = World::new(settings(), 1, 64);
    let bad = world.submit(Op::Read, &BIG, None);
    let good = world.submit(Op::Write, &[Piece::new(0, 0, 100)], None);
    world.step(0, WcStatus::Success);
    world.step(0, WcStatus::RemoteAccess);
    world.run();
    assert_eq!(world.kind(bad), Some(ErrorKind::NotFound));
    let words = world.words(bad);
    assert!(words.contains("IBV_WC_REM_ACCESS_ERR") && words.contains("remote offset 116"), "{words}");
    assert!(words.contains("more requests were flushed"), "{words}");
    // The other one was flushed as well, and carried again.
    assert_eq!(world.kind(good), None);
    world.nothing_held();
}

#[test]
fn a_write_is_not_posted_again_before_the_peer_is_quiet() {
    let mut world = World::new(settings(), 1, 64);
    world.answers = false;
    let bad = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    let good = world.submit(Op::Write, &[Piece::new(0, 0, 8)], None);
    world.step(0, WcStatus::LocalProtection);
    world.run();
    assert_eq!(world.kind(bad), Some(ErrorKind::Transport));
    assert!(!world.ended.contains_key(&good) && !world.executed.contains_key(&good));
    let lane = world.unanswered.pop().unwrap();
    world.flow.retired(lane, &Ok(()), world.now, &mut world.out);
    world.act();
    world.run();
    assert_eq!(world.kind(good), None);
    world.nothing_held();
}

#[test]
fn a_way_that_fails_is_left_for_another() {
    let mut world = World::new(settings(), 2, 64);
    let key = world.submit(Op::Read, &BIG, None);
    // Both paths are made at once, and the load is on both.
    assert_eq!(world.devices.len(), 2);
    world.step(0, WcStatus::RetryExceeded);
    world.run();
    assert_eq!(world.kind(key), None);
    world.nothing_held();
    // It is tried again when the pause is over, although the other one works.
    world.advance(Duration::from_secs(1));
    let key = world.submit(Op::Read, &BIG, None);
    world.run();
    assert_eq!((world.kind(key), world.flow.held().lanes), (None, 2));
    // With no other way, it fails with the cause.
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    world.step(0, WcStatus::RetryExceeded);
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::PeerLost));
    assert!(world.words(key).contains("12 more requests were flushed"), "{}", world.words(key));
    world.nothing_held();
    // And the next one works when the pause is over.
    world.advance(Duration::from_secs(1));
    let key = world.submit(Op::Read, &BIG, None);
    world.run();
    assert_eq!(world.kind(key), None);
}

#[test]
fn a_peer_that_cannot_be_reached_fails_what_waits() {
    let mut world = World::new(settings(), 1, 64);
    world.reachable = false;
    let key = world.submit(Op::Write, &BIG, None);
    assert_eq!(world.kind(key), Some(ErrorKind::PeerLost));
    assert!(world.flow.trouble().is_some());
    world.reachable = true;
    world.advance(Duration::from_secs(1));
    let key = world.submit(Op::Write, &BIG, None);
    world.run();
    assert_eq!(world.kind(key), None);
    assert!(world.flow.trouble().is_none());
}

#[test]
fn a_cancelled_transfer_ends_when_its_requests_have() {
    let mut world = World::new(settings(), 1, 4);
    let key = world.submit(Op::Read, &BIG, None);
    let other = world.submit(Op::Read, &BIG, None);
    let why = Error::new(ErrorKind::Cancelled, "by the test");
    world.flow.cancel(key, why, world.now, &mut world.out);
    world.act();
    assert!(!world.ended.contains_key(&key));
    // What is posted goes on for the grace; then the queue pair is closed, and the other one's requests are posted anew.
    world.advance(Duration::from_millis(100));
    assert!(world.device(0).lock().failed);
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::Cancelled));
    assert_eq!(world.kind(other), None);
    world.nothing_held();
}

#[test]
fn a_cancellation_that_comes_too_late_changes_nothing() {
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    world.flow.cancel(key, Error::new(ErrorKind::Cancelled, "late"), world.now, &mut world.out);
    world.run();
    assert_eq!(world.kind(key), None);
    world.nothing_held();
}

#[test]
fn a_deadline_says_what_it_waited_for() {
    let mut world = World::new(settings(), 1, 4);
    let key = world.submit_with(Op::Read, &BIG, None, Some(Duration::from_millis(50)), 1);
    world.step(0, WcStatus::Success);
    world.advance(Duration::from_millis(50));
    assert!(!world.ended.contains_key(&key));
    world.advance(Duration::from_millis(100));
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::Cancelled));
    let words = world.words(key);
    assert!(words.contains("deadline of 50ms") && words.contains("of 200 bytes"), "{words}");
    world.nothing_held();
}

#[test]
fn without_progress_the_queue_is_full() {
    let mut world = World::new(Settings { max_transfers: 2, ..settings() }, 1, 1);
    let first = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    let second = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    let third = world.submit(Op::Read, &[Piece::new(0, 0, 8)], None);
    assert_eq!(world.kind(third), Some(ErrorKind::ResourceExhausted));
    assert!(world.words(third).contains("SQ full"));
    world.advance(Duration::from_secs(30));
    assert_eq!(world.kind(second), Some(ErrorKind::ResourceExhausted));
    assert!(world.words(second).contains("SQ full") && world.words(second).contains("0 of 8 bytes"));
    world.run();
    assert_eq!(world.kind(first), None);
    world.nothing_held();
}

#[test]
fn a_list_that_is_taken_in_part_loses_nothing() {
    for full in [true, false] {
        for taken in 0..3 {
            let mut world = World::new(settings(), 1, 64);
            let first = world.submit(Op::Write, &[Piece::new(0, 0, 4)], None);
            world.run();
            world.device(0).lock().refuse.push_back((taken, full));
            let key = world.submit(Op::Write, &BIG, None);
            world.run();
            world.advance(Duration::from_millis(1));
            world.run();
            assert_eq!(world.kind(first), None);
            let expected = if full { None } else { Some(ErrorKind::Transport) };
            assert_eq!(world.kind(key), expected, "taken {taken}, full {full}");
            world.nothing_held();
            let next = world.submit(Op::Write, &BIG, None);
            world.run();
            assert_eq!(world.kind(next), None);
        }
    }
}

#[test]
fn a_queue_pair_that_gives_nothing_back_is_destroyed() {
    let mut world = World::new(settings(), 1, 64);
    let key = world.submit(Op::Read, &BIG, None);
    let cause = Error::new(ErrorKind::Transport, "the port is down");
    world.flow.path_down(0, &cause, false, world.now, &mut world.out);
    world.act();
    assert!(!world.ended.contains_key(&key));
    world.advance(Duration::from_secs(10));
    assert_eq!(world.kind(key), Some(ErrorKind::Transport));
    assert!(world.words(key).contains("the port is down"));
    world.nothing_held();
}

#[test]
fn a_lost_peer_ends_everything_when_this_side_is_quiet() {
    let mut world = World::new(settings(), 1, 4);
    world.answers = false;
    let keys = [world.submit(Op::Read, &BIG, None), world.submit(Op::Write, &BIG, None)];
    let lost = Error::new(ErrorKind::PeerLost, "the link has closed");
    world.flow.lose(&lost, false, world.now, &mut world.out);
    world.act();
    assert!(world.ended.is_empty() || world.ended.len() == 1);
    world.run();
    assert!(keys.iter().all(|key| world.kind(*key) == Some(ErrorKind::PeerLost)));
    world.nothing_held();
    world.answers = true;
    let next = world.submit(Op::Read, &BIG, None);
    world.run();
    assert_eq!(world.kind(next), None);
}

#[test]
fn a_message_follows_the_bytes_once() {
    let mut world = World::new(settings(), 1, 64);
    let note = Notify { message: b"done".to_vec(), on_failure: false };
    let key = world.submit(Op::Write, &BIG, Some(note.clone()));
    while world.told.is_empty() {
        assert!(world.step(0, WcStatus::Success));
    }
    assert_eq!(world.executed[&key].len(), 200);
    assert_eq!(world.kind(key), None);
    // More messages than slots wait for their turn.
    let keys: Vec<u64> = (0..5).map(|_| world.submit(Op::Write, &[], Some(note.clone()))).collect();
    world.run();
    assert!(keys.iter().all(|key| world.kind(*key).is_none()));
    assert_eq!(world.told.len(), 6);
    world.nothing_held();
}

#[test]
fn a_failure_is_told_if_asked_for() {
    let mut world = World::new(settings(), 1, 64);
    let note = Notify { message: b"done".to_vec(), on_failure: true };
    let key = world.submit(Op::Write, &BIG, Some(note));
    world.step(0, WcStatus::RemoteAccess);
    world.run();
    assert_eq!(world.kind(key), Some(ErrorKind::NotFound));
    assert_eq!(world.told, [(key, true)]);
    world.nothing_held();
}

#[test]
fn a_target_that_does_not_answer_a_message_is_lost() {
    let mut world = World::new(settings(), 1, 64);
    world.answers = false;
    let note = Notify { message: b"done".to_vec(), on_failure: false };
    let key = world.submit(Op::Write, &[], Some(note));
    world.run();
    assert!(!world.ended.contains_key(&key));
    world.advance(Duration::from_secs(10));
    assert_eq!(world.kind(key), Some(ErrorKind::PeerLost));
}
