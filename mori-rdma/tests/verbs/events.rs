//! What happens by itself.

use mori_rdma::verbs::{
    AsyncEvent, AsyncEventKind, AsyncEventSource, PortState, QueuePairState, SendFlags, SendList, WcStatus,
};

use crate::support::{End, Sim, is_readable};

fn event(kind: AsyncEventKind, source: AsyncEventSource) -> Option<AsyncEvent> {
    Some(AsyncEvent { kind, source })
}

fn write(a: &End, b: &End) -> WcStatus {
    let mut list = SendList::new();
    list.write(1, &[a.sge(0, 1)], b.remote(0), SendFlags::SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    a.poll()[0].status()
}

#[test]
fn a_port_that_goes_down_is_told_to_each_open_context() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let again = sim.open(0);
    assert!(!is_readable(&a.context));
    sim.set_port("mori_sim0", 1, false).unwrap();
    let down = event(AsyncEventKind::PortError, AsyncEventSource::Port(1));
    assert!(is_readable(&a.context));
    assert_eq!((a.context.next_event().unwrap(), again.next_event().unwrap()), (down, down));
    assert_eq!(b.context.next_event().unwrap(), None);
    assert_eq!(a.context.port(1).unwrap().state, PortState::Down);
    assert_eq!(write(&a, &b), WcStatus::LocalQueuePair);
    sim.set_port("mori_sim0", 1, true).unwrap();
    let up = event(AsyncEventKind::PortActive, AsyncEventSource::Port(1));
    assert_eq!(a.context.next_event().unwrap(), up);
    assert_eq!(a.context.next_event().unwrap(), None);
}

#[test]
fn a_peer_whose_port_is_down_is_waited_for_as_long_as_asked() {
    let sim = Sim::new();
    sim.set("retries", "manual").unwrap();
    let (a, b) = End::couple(&sim);
    sim.set_port("mori_sim1", 1, false).unwrap();
    let mut list = SendList::new();
    list.write(1, &[a.sge(0, 1)], b.remote(0), SendFlags::SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    assert!(a.poll().is_empty());
    sim.set_port("mori_sim1", 1, true).unwrap();
    assert_eq!(a.poll()[0].status(), WcStatus::Success);
    sim.set_port("mori_sim1", 1, false).unwrap();
    a.pair.post_send(&mut list).unwrap();
    sim.expire().unwrap();
    assert_eq!(a.poll()[0].status(), WcStatus::RetryExceeded);
}

#[test]
fn a_failed_queue_pair_is_named_by_its_id() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    // Equal numbers: only the ids tell them apart.
    assert_eq!(a.pair.number(), b.pair.number());
    sim.kill_pair("mori_sim1", b.pair.number()).unwrap();
    let fatal = event(AsyncEventKind::QueuePairFatal, AsyncEventSource::QueuePair(b.pair.id()));
    assert_eq!(b.context.next_event().unwrap(), fatal);
    assert_eq!(a.context.next_event().unwrap(), None);
    assert_eq!(b.pair.state().unwrap(), QueuePairState::Error);
    assert_eq!(a.pair.state().unwrap(), QueuePairState::ReadyToSend);
}

#[test]
fn an_access_violation_is_told_to_the_side_that_was_attacked() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let mut list = SendList::new();
    let remote = mori_rdma::verbs::RemoteAddress { key: 1, ..b.remote(0) };
    list.write(1, &[a.sge(0, 1)], remote, SendFlags::NONE);
    a.pair.post_send(&mut list).unwrap();
    let access = event(AsyncEventKind::QueuePairAccess, AsyncEventSource::QueuePair(b.pair.id()));
    assert_eq!(b.context.next_event().unwrap(), access);
}

#[test]
fn events_of_what_is_gone_are_none_and_hold_nothing_up() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    sim.kill_pair("mori_sim0", a.pair.number()).unwrap();
    sim.overrun("mori_sim0").unwrap();
    let End { pair, queue, channel, context, .. } = a;
    drop((pair, queue, channel));
    assert_eq!(context.next_event().unwrap(), None);
    drop(b);
}

#[test]
fn a_device_that_fails_says_so_and_flushes() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    sim.hold(true).unwrap();
    let mut list = SendList::new();
    list.write(1, &[a.sge(0, 1)], b.remote(0), SendFlags::NONE);
    a.pair.post_send(&mut list).unwrap();
    sim.kill_device("mori_sim0").unwrap();
    assert_eq!(a.context.next_event().unwrap(), event(AsyncEventKind::DeviceFatal, AsyncEventSource::Device));
    assert_eq!(a.poll()[0].status(), WcStatus::Flushed);
    sim.revive_device("mori_sim0").unwrap();
    assert_eq!(sim.devices().len(), 2);
}

#[test]
fn a_changed_address_is_told() {
    let sim = Sim::new();
    let context = sim.open(0);
    sim.set_gid("mori_sim0", 1, 3, Some("::ffff:10.1.2.3".parse().unwrap())).unwrap();
    let changed = event(AsyncEventKind::GidChange, AsyncEventSource::Port(1));
    assert_eq!(context.next_event().unwrap(), changed);
    let gid = context.gid(1, 3).unwrap().unwrap().gid;
    assert_eq!(gid.to_string(), "::ffff:10.1.2.3");
}
