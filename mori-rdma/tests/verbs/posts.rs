//! Lists that are accepted only in part, and queues that are full.

use mori_rdma::verbs::{PostError, QueuePairState, RecvList, SendFlags, SendList, VerbsError, WcStatus};

use crate::support::{CAPACITIES, End, Sim};

fn writes(a: &End, b: &End, count: u64) -> SendList {
    let mut list = SendList::new();
    for id in 0..count {
        list.write(id, &[a.sge(id, 1)], b.remote(id), SendFlags::SIGNALED);
    }
    list
}

#[test]
fn a_list_can_be_cut_off_at_each_position() {
    let sim = Sim::new();
    for taken in 0..5 {
        let (a, b) = End::couple(&sim);
        a.fill(0, b"abcde");
        let mut list = writes(&a, &b, 5);
        sim.partial_send(taken, libc::ENOMEM).unwrap();
        let error = a.pair.post_send(&mut list).unwrap_err();
        assert_eq!((error.accepted, error.posted), (taken, 5));
        assert!(error.is_full());
        assert_eq!(error.error.errno(), Some(libc::ENOMEM));
        assert!(error.to_string().contains("ibv_post_send failed with ENOMEM"), "{error}");
        // What was accepted is carried out and completes; the rest is as if it had not been posted.
        let done: Vec<_> = a.poll().iter().map(mori_rdma::verbs::WorkCompletion::wr_id).collect();
        assert_eq!(done, (0..taken as u64).collect::<Vec<_>>());
        assert_eq!(b.bytes(0, 5), [&b"abcde"[..taken], &[0; 5][taken..]].concat());
        a.pair.post_send(&mut list).unwrap();
        assert_eq!(a.poll().len(), 5);
    }
}

#[test]
fn receives_can_be_cut_off_at_each_position() {
    let sim = Sim::new();
    for taken in 0..4 {
        let (a, _b) = End::couple(&sim);
        let mut list = RecvList::new();
        for id in 0..4 {
            list.receive(id, &[a.sge(0, 10)]);
        }
        sim.partial_receive(taken, libc::EINVAL).unwrap();
        let error = a.pair.post_receive(&mut list).unwrap_err();
        assert_eq!((error.accepted, error.posted, error.error.errno()), (taken, 4, Some(libc::EINVAL)));
        assert!(!error.is_full());
        assert_eq!(sim.report().queued("receives"), taken as u64);
        a.pair.to_error().unwrap();
        assert_eq!(a.poll().len(), taken);
    }
}

#[test]
fn a_call_that_fails_at_once_accepts_nothing() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let mut list = writes(&a, &b, 3);
    sim.fault("ibv_post_send", 1, libc::EIO).unwrap();
    let error = a.pair.post_send(&mut list).unwrap_err();
    assert_eq!((error.accepted, error.error.errno()), (0, Some(libc::EIO)));
    sim.fault("ibv_post_recv", 1, libc::EIO).unwrap();
    let mut receives = RecvList::new();
    receives.receive(1, &[]);
    assert_eq!(a.pair.post_receive(&mut receives).unwrap_err().accepted, 0);
    assert!(a.poll().is_empty());
}

#[test]
fn a_full_queue_takes_again_when_completions_are_taken() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let most = u64::from(CAPACITIES.send_requests);
    let mut list = writes(&a, &b, most + 3);
    let error = a.pair.post_send(&mut list).unwrap_err();
    assert_eq!((error.accepted as u64, error.is_full()), (most, true));
    // Done is not enough: the slot is in use until its completion is taken.
    let mut one = writes(&a, &b, 1);
    assert!(a.pair.post_send(&mut one).unwrap_err().is_full());
    assert_eq!(a.poll().len() as u64, most);
    a.pair.post_send(&mut one).unwrap();
    assert_eq!(a.poll().len(), 1);
}

#[test]
fn requests_without_a_signal_are_freed_by_a_later_one() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let most = u64::from(CAPACITIES.send_requests);
    let mut list = SendList::new();
    for round in 0..3 {
        list.clear();
        for id in 0..most {
            list.write(round * most + id, &[a.sge(0, 1)], b.remote(0), SendFlags::NONE);
        }
        list.flag_last(SendFlags::SIGNALED);
        a.pair.post_send(&mut list).unwrap();
        let done = a.poll();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].wr_id(), round * most + most - 1);
    }
}

#[test]
fn an_error_flushes_what_is_held_and_frees_all_slots() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    sim.hold(true).unwrap();
    let mut list = SendList::new();
    for id in 0..u64::from(CAPACITIES.send_requests) {
        list.write(id, &[a.sge(0, 1)], b.remote(0), SendFlags::NONE);
    }
    a.pair.post_send(&mut list).unwrap();
    assert!(a.poll().is_empty());
    a.pair.to_error().unwrap();
    let flushed = a.poll();
    assert_eq!(flushed.len(), list.len());
    assert!(flushed.iter().all(|wc| wc.status() == WcStatus::Flushed && wc.status().is_flush()));
    // What is posted to a failed queue pair is flushed, too.
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(a.poll().len(), list.len());
    sim.hold(false).unwrap();
    assert!(a.poll().is_empty());
}

#[test]
fn a_queue_pair_takes_no_more_than_its_capacities() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let is_argument = |error: PostError| {
        assert!(matches!(error.error, VerbsError::Argument(_)), "{error}");
        error.accepted
    };
    let mut list = writes(&a, &b, 2);
    list.write(9, &[a.sge(0, 1); 5], b.remote(0), SendFlags::NONE);
    assert_eq!(is_argument(a.pair.post_send(&mut list).unwrap_err()), 0);
    list.clear();
    list.write_inline(9, &[0; 65], b.remote(0), SendFlags::NONE);
    assert_eq!(is_argument(a.pair.post_send(&mut list).unwrap_err()), 0);
    let mut receives = RecvList::new();
    receives.receive(9, &[a.sge(0, 1); 5]);
    assert_eq!(is_argument(a.pair.post_receive(&mut receives).unwrap_err()), 0);
    assert!(a.poll().is_empty());
    list.clear();
    a.pair.post_send(&mut list).unwrap();
}

#[test]
fn a_queue_pair_that_is_not_ready_takes_nothing() {
    let sim = Sim::new();
    let a = End::new(&sim.open(0));
    let mut list = SendList::new();
    list.send_inline(1, b"x", None, SendFlags::NONE);
    assert_eq!(a.pair.state().unwrap(), QueuePairState::Reset);
    assert_eq!(a.pair.post_send(&mut list).unwrap_err().error.errno(), Some(libc::EINVAL));
    let mut receives = RecvList::new();
    receives.receive(1, &[]);
    assert_eq!(a.pair.post_receive(&mut receives).unwrap_err().error.errno(), Some(libc::EINVAL));
    assert_eq!(sim.report().misuse.len(), 2);
    sim.forgive().unwrap();
}
