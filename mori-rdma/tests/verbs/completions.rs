//! Announcing completions, and queues that overrun.

use mori_rdma::verbs::{
    AsyncEvent, AsyncEventKind, AsyncEventSource, QueuePairState, RecvList, SendFlags, SendList, VerbsError,
    WorkCompletion,
};

use crate::support::{End, Sim, is_readable};

fn write(a: &End, b: &End) {
    let mut list = SendList::new();
    list.write(1, &[a.sge(0, 1)], b.remote(0), SendFlags::SIGNALED);
    a.pair.post_send(&mut list).unwrap();
}

#[test]
fn a_queue_announces_once_when_it_is_armed() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    write(&a, &b);
    assert!(!is_readable(&a.channel));
    a.queue.arm(false).unwrap();
    // What was there before the arming is announced by nobody.
    assert!(!is_readable(&a.channel));
    assert_eq!(a.poll().len(), 1);
    write(&a, &b);
    write(&a, &b);
    assert!(is_readable(&a.channel));
    assert_eq!(a.channel.next_event().unwrap(), Some(a.queue.id()));
    assert_eq!(a.channel.next_event().unwrap(), None);
    assert!(!is_readable(&a.channel));
    assert_eq!(a.poll().len(), 2);
}

#[test]
fn a_channel_tells_its_queues_apart() {
    let sim = Sim::new();
    let context = sim.open(0);
    let (a, b) = (End::new(&context), End::new(&sim.open(1)));
    let other = context.completion_queue(8, Some(&a.channel), 1).unwrap();
    assert_ne!(other.id(), a.queue.id());
    assert_eq!(
        other.channel().map(std::os::fd::AsFd::as_fd).map(|fd| fd_number(&fd)),
        Some(fd_number(&a.channel))
    );
    a.connect(&b);
    a.queue.arm(false).unwrap();
    other.arm(false).unwrap();
    write(&a, &b);
    assert_eq!(a.channel.next_event().unwrap(), Some(a.queue.id()));
    assert_eq!(a.channel.next_event().unwrap(), None);
}

fn fd_number(descriptor: &impl std::os::fd::AsFd) -> i32 {
    use std::os::fd::AsRawFd;
    descriptor.as_fd().as_raw_fd()
}

#[test]
fn an_announcement_of_a_queue_that_is_gone_is_none() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    a.queue.arm(false).unwrap();
    write(&a, &b);
    let End { pair, queue, channel, .. } = a;
    drop((pair, queue));
    assert_eq!(sim.report().live("completions"), 1);
    assert_eq!(channel.next_event().unwrap(), None);
}

#[test]
fn solicited_completions_and_failures_wake_who_asked_for_them() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let mut receives = RecvList::new();
    for id in 0..3 {
        receives.receive(id, &[]);
    }
    b.pair.post_receive(&mut receives).unwrap();
    b.queue.arm(true).unwrap();
    let mut list = SendList::new();
    list.send_inline(1, b"", Some(1), SendFlags::NONE);
    a.pair.post_send(&mut list).unwrap();
    assert!(!is_readable(&b.channel));
    list.clear();
    list.send_inline(2, b"", Some(2), SendFlags::SOLICITED);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(b.channel.next_event().unwrap(), Some(b.queue.id()));
    b.queue.arm(true).unwrap();
    b.pair.to_error().unwrap();
    assert_eq!(b.channel.next_event().unwrap(), Some(b.queue.id()));
    assert_eq!(b.poll().len(), 3);
}

#[test]
fn withheld_completions_are_announced_when_they_are_delivered() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    a.queue.arm(false).unwrap();
    sim.withhold(true).unwrap();
    a.fill(0, b"x");
    write(&a, &b);
    assert_eq!((b.bytes(0, 1), a.poll().len()), (b"x".to_vec(), 0));
    assert!(!is_readable(&a.channel));
    sim.withhold(false).unwrap();
    assert!(is_readable(&a.channel));
    assert_eq!(a.channel.next_event().unwrap(), Some(a.queue.id()));
    assert_eq!(a.poll().len(), 1);
}

#[test]
fn a_queue_that_overruns_says_so_and_fails_its_queue_pairs() {
    let sim = Sim::new();
    let (a, b) = (End::with_entries(&sim.open(0), 4), End::new(&sim.open(1)));
    a.connect(&b);
    assert_eq!(a.queue.capacity(), 4);
    for _ in 0..5 {
        write(&a, &b);
    }
    let overrun = AsyncEvent {
        kind: AsyncEventKind::CompletionQueueError,
        source: AsyncEventSource::CompletionQueue(a.queue.id()),
    };
    let fatal =
        AsyncEvent { kind: AsyncEventKind::QueuePairFatal, source: AsyncEventSource::QueuePair(a.pair.id()) };
    assert!(is_readable(&a.context));
    assert_eq!(a.context.next_event().unwrap(), Some(overrun));
    assert_eq!(a.context.next_event().unwrap(), Some(fatal));
    assert_eq!(a.context.next_event().unwrap(), None);
    assert_eq!(a.pair.state().unwrap(), QueuePairState::Error);
    let mut buffer = [WorkCompletion::default(); 8];
    assert_eq!(a.queue.poll(&mut buffer).unwrap().len(), 4);
    let error = a.queue.poll(&mut buffer).unwrap_err();
    assert!(error.to_string().contains("overrun"), "{error}");
    assert_eq!(error.errno(), None);
}

#[test]
fn a_longer_queue_does_not_overrun() {
    let sim = Sim::new();
    let (a, b) = (End::with_entries(&sim.open(0), 4), End::new(&sim.open(1)));
    a.connect(&b);
    a.queue.resize(8).unwrap();
    for _ in 0..8 {
        write(&a, &b);
    }
    assert_eq!(a.queue.capacity(), 8);
    let mut small = [WorkCompletion::default(); 3];
    let counts: Vec<usize> = (0..4).map(|_| a.queue.poll(&mut small).unwrap().len()).collect();
    assert_eq!(counts, [3, 3, 2, 0]);
    assert!(a.queue.resize(0).is_err());
    assert!(a.queue.poll(&mut []).unwrap().is_empty());
}

#[test]
fn a_queue_without_a_channel_cannot_be_armed() {
    let sim = Sim::new();
    let queue = sim.open(0).completion_queue(8, None, 0).unwrap();
    assert!(matches!(queue.arm(false), Err(VerbsError::Argument(_))));
    assert!(queue.channel().is_none());
}
