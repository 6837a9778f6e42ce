//! The verbs' safe interface over real devices: the two of `cargo xtask rdma-guest`. Elsewhere the tests are skipped by name.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test stops where something is not as it should be, and says what it skips"
)]

mod guest;

use std::time::Duration;

use guest::{
    DEVICES, End, PATIENCE, QUICK, at, bytes, net, net_begun, over, pair, patience, pattern, readable,
};
use mori_core::ErrorKind;
use mori_rdma::topology::{Near, Rules, Topology};
use mori_rdma::verbs::{
    AsyncEventKind, AsyncEventSource, LinkLayer, Opcode, PortState, QueuePairState, RecvList, RemoteAddress,
    RtsAttributes, SendFlags, SendList, Verbs, WcStatus, WorkCompletion,
};

fn main() {
    guest::main(&[
        ("devices_and_ports_are_described", devices_and_ports_are_described),
        ("the_kernels_tree_says_what_the_library_says", the_kernels_tree_says_what_the_library_says),
        ("a_write_lands_where_it_should", a_write_lands_where_it_should),
        ("a_read_fetches_what_is_there", a_read_fetches_what_is_there),
        ("a_send_fills_a_receive", a_send_fills_a_receive),
        ("a_write_with_immediate_uses_up_a_receive", a_write_with_immediate_uses_up_a_receive),
        ("pieces_are_gathered_and_scattered", pieces_are_gathered_and_scattered),
        ("a_chain_completes_once_at_its_end", a_chain_completes_once_at_its_end),
        ("inline_bytes_need_no_registration", inline_bytes_need_no_registration),
        ("a_sleeper_is_woken_by_a_completion", a_sleeper_is_woken_by_a_completion),
        ("a_full_queue_says_how_many_it_took", a_full_queue_says_how_many_it_took),
        ("a_wrong_key_fails_and_flushes_what_follows", a_wrong_key_fails_and_flushes_what_follows),
        ("memory_that_is_no_longer_registered_is_refused", memory_that_is_no_longer_registered_is_refused),
        ("a_peer_without_a_receive_is_not_ready", a_peer_without_a_receive_is_not_ready),
        ("the_move_to_error_flushes_at_once", the_move_to_error_flushes_at_once),
        ("a_cut_at_the_peer_ends_in_retries_exceeded", a_cut_at_the_peer_ends_in_retries_exceeded),
        ("a_black_hole_ends_in_retries_exceeded", a_black_hole_ends_in_retries_exceeded),
        (
            "the_own_link_going_down_is_told_and_ends_requests",
            the_own_link_going_down_is_told_and_ends_requests,
        ),
        ("a_short_loss_recovers_by_itself", a_short_loss_recovers_by_itself),
        ("a_deleted_device_serves_those_who_have_it_open", a_deleted_device_serves_those_who_have_it_open),
        ("everything_is_given_back", everything_is_given_back),
    ]);
}

fn succeeded(completions: &[WorkCompletion]) -> Vec<u64> {
    for completion in completions {
        assert_eq!(completion.status(), WcStatus::Success, "{completion:?}");
    }
    completions.iter().map(WorkCompletion::wr_id).collect()
}

fn statuses(completions: &[WorkCompletion]) -> Vec<WcStatus> {
    completions.iter().map(WorkCompletion::status).collect()
}

/// Sets both ends back and connects them again.
fn reconnect([first, second]: &[End; 2]) {
    for end in [first, second] {
        end.queue.reset().unwrap();
        let mut room = [WorkCompletion::default(); 16];
        while !end.completions.poll(&mut room).unwrap().is_empty() {}
    }
    first.connect(second, QUICK);
    second.connect(first, QUICK);
}

/// Moves bytes from the first end to the second, which proves that both work.
fn works([first, second]: &[End; 2]) {
    let from = first.memory(pattern(9000, 3));
    let to = second.memory(vec![0; 9000]);
    first.post(|list| list.write(1, &[from.sge(0, 9000).unwrap()], at(&to, 0), SendFlags::SIGNALED));
    assert_eq!(succeeded(&first.take(1)), [1]);
    assert!(bytes(&to) == pattern(9000, 3));
}

fn devices_and_ports_are_described() {
    let verbs = Verbs::load(None).unwrap();
    for (at, device) in verbs.devices().unwrap().iter().enumerate() {
        assert!(DEVICES.contains(&device.name()), "{device:?}");
        assert!(device.sysfs_path().unwrap().join("ports/1").exists(), "{device:?}");
        assert_ne!(device.guid(), 0);
        let context = device.open().unwrap();
        let attributes = context.attributes().unwrap();
        assert!(attributes.ports == 1 && attributes.max_sge >= 8 && attributes.max_queue_pairs > 100);
        let port = context.port(1).unwrap();
        assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet), "device {at}");
        assert!(port.active_mtu.bytes() >= 1024 && port.max_message >= 1 << 20, "{port:?}");
        assert!(context.port(9).is_err());
        let gids = context.gids(1).unwrap();
        for entry in &gids {
            assert_eq!(context.gid(1, entry.index).unwrap().as_ref(), Some(entry));
        }
        assert!(gids.iter().any(|entry| entry.gid.ipv4().is_some()), "{gids:?}");
    }
}

fn the_kernels_tree_says_what_the_library_says() {
    let topology = Topology::read("/sys");
    let verbs = Verbs::load(None).unwrap();
    for device in verbs.devices().unwrap() {
        let context = device.open().unwrap();
        let shown = topology.device(device.name()).unwrap();
        assert!(shown.is_virtual && shown.pci.is_none(), "{shown:?}");
        assert_eq!(shown.ports.len(), usize::from(context.attributes().unwrap().ports));
        for port in &shown.ports {
            let asked = context.port(port.number).unwrap();
            assert_eq!((port.state, port.link_layer), (asked.state, asked.link_layer), "{port:?}");
            assert_eq!((port.gigabits, &port.gids), (asked.gigabits(), &context.gids(port.number).unwrap()));
        }
    }
    let choice = topology.choose(&Rules::default(), Near::Anywhere, 1);
    let chosen: Vec<_> =
        choice.candidates.iter().map(|of| (of.device.as_str(), of.gid.entry.index)).collect();
    assert_eq!(chosen, [("rxeb", 1), ("rxea", 1)], "{choice}");
}

fn a_write_lands_where_it_should() {
    let ends = pair();
    let [first, second] = &ends;
    for (round, length) in [1, 4096, 65_537, 1 << 20].into_iter().enumerate() {
        let from = first.memory(pattern(length, round));
        let to = second.memory(vec![0xee; length + 64]);
        let piece = from.sge(0, u32::try_from(length).unwrap()).unwrap();
        first.post(|list| list.write(7, &[piece], at(&to, 32), SendFlags::SIGNALED));
        let done = first.take(1);
        assert_eq!((succeeded(&done), done[0].opcode()), (vec![7], Opcode::Write));
        let there = bytes(&to);
        assert!(there[32..32 + length] == pattern(length, round)[..], "{length} bytes");
        assert!(there[..32].iter().chain(&there[32 + length..]).all(|byte| *byte == 0xee), "{length} bytes");
    }
    second.nothing_more();
}

fn a_read_fetches_what_is_there() {
    let ends = pair();
    let [first, second] = &ends;
    for (round, length) in [1, 4096, 65_537, 1 << 20].into_iter().enumerate() {
        let from = second.memory(pattern(length, round));
        let to = first.memory(vec![0; length]);
        let piece = to.sge(0, u32::try_from(length).unwrap()).unwrap();
        first.post(|list| list.read(8, &[piece], at(&from, 0), SendFlags::SIGNALED));
        let done = first.take(1);
        assert_eq!((succeeded(&done), done[0].opcode()), (vec![8], Opcode::Read));
        assert!(bytes(&to) == pattern(length, round), "{length} bytes");
    }
}

fn a_send_fills_a_receive() {
    let ends = pair();
    let [first, second] = &ends;
    let from = first.memory(pattern(3000, 1));
    let to = second.memory(vec![0; 5000]);
    let mut receives = RecvList::new();
    receives.receive(21, &[to.sge(0, 5000).unwrap()]);
    receives.receive(22, &[]);
    second.queue.post_receive(&mut receives).unwrap();
    first.post(|list| {
        list.send(1, &[from.sge(0, 3000).unwrap()], None, SendFlags::NONE);
        list.send(2, &[], Some(0xdead_beef), SendFlags::SIGNALED | SendFlags::SOLICITED);
    });
    assert_eq!(succeeded(&first.take(1)), [2]);
    let received = second.take(2);
    assert_eq!(succeeded(&received), [21, 22]);
    assert!(received.iter().all(|completion| completion.opcode() == Opcode::Receive));
    assert_eq!((received[0].byte_length(), received[0].immediate()), (3000, None));
    assert_eq!((received[1].byte_length(), received[1].immediate()), (0, Some(0xdead_beef)));
    assert!(bytes(&to)[..3000] == pattern(3000, 1)[..]);
}

fn a_write_with_immediate_uses_up_a_receive() {
    let ends = pair();
    let [first, second] = &ends;
    let from = first.memory(pattern(10_000, 2));
    let to = second.memory(vec![0; 10_000]);
    let mut receives = RecvList::new();
    receives.receive(31, &[]);
    second.queue.post_receive(&mut receives).unwrap();
    let piece = from.sge(0, 10_000).unwrap();
    first.post(|list| list.write_with_immediate(3, &[piece], at(&to, 0), 0x0102_0304, SendFlags::SIGNALED));
    assert_eq!(succeeded(&first.take(1)), [3]);
    let received = second.take(1);
    assert_eq!((succeeded(&received), received[0].opcode()), (vec![31], Opcode::ReceiveWriteImmediate));
    assert_eq!((received[0].byte_length(), received[0].immediate()), (10_000, Some(0x0102_0304)));
    assert!(bytes(&to) == pattern(10_000, 2), "the data comes before what announces it");
}

fn pieces_are_gathered_and_scattered() {
    let ends = pair();
    let [first, second] = &ends;
    let sent = pattern(6000, 4);
    let from = first.memory(sent.clone());
    let to = second.memory(vec![0; 1500]);
    let places = [(5000, 700), (0, 1), (2000, 300), (100, 99), (3000, 400)];
    let gathered: Vec<_> =
        places.iter().map(|(offset, length)| from.sge(*offset, *length).unwrap()).collect();
    first.post(|list| list.write(1, &gathered, at(&to, 0), SendFlags::SIGNALED));
    assert_eq!(succeeded(&first.take(1)), [1]);
    let expected: Vec<u8> = places
        .iter()
        .flat_map(|(offset, length)| {
            let start = usize::try_from(*offset).unwrap();
            sent[start..start + *length as usize].to_vec()
        })
        .collect();
    assert!(bytes(&to) == expected);
    let back = first.memory(vec![0; 2000]);
    let scattered = [back.sge(1000, 500).unwrap(), back.sge(0, 1000).unwrap()];
    first.post(|list| list.read(2, &scattered, at(&to, 0), SendFlags::SIGNALED));
    assert_eq!(succeeded(&first.take(1)), [2]);
    let back = bytes(&back);
    assert!(back[1000..1500] == expected[..500] && back[..1000] == expected[500..1500]);
}

fn a_chain_completes_once_at_its_end() {
    let ends = pair();
    let [first, second] = &ends;
    let from = first.memory(pattern(32 << 10, 5));
    let to = second.memory(vec![0; 32 << 10]);
    for round in 0..4 {
        first.post(|list| {
            for at_piece in 0..32_u64 {
                let piece = from.sge(at_piece << 10, 1 << 10).unwrap();
                list.write(round * 100 + at_piece, &[piece], at(&to, at_piece << 10), SendFlags::NONE);
            }
            list.flag_last(SendFlags::SIGNALED);
        });
        assert_eq!(succeeded(&first.take(1)), [round * 100 + 31]);
    }
    first.nothing_more();
    assert!(bytes(&to) == pattern(32 << 10, 5));
}

fn inline_bytes_need_no_registration() {
    let ends = pair();
    let [first, second] = &ends;
    let to = second.memory(vec![0; 64]);
    let mut receives = RecvList::new();
    receives.receive(1, &[to.sge(32, 32).unwrap()]);
    second.queue.post_receive(&mut receives).unwrap();
    first.post(|list| {
        list.write_inline(1, b"written", at(&to, 0), SendFlags::NONE);
        list.send_inline(2, b"sent", Some(9), SendFlags::SIGNALED);
    });
    assert_eq!(succeeded(&first.take(1)), [2]);
    assert_eq!(second.take(1)[0].immediate(), Some(9));
    let there = bytes(&to);
    assert!(there.starts_with(b"written\0") && there[32..].starts_with(b"sent\0"));
}

fn a_sleeper_is_woken_by_a_completion() {
    let ends = pair();
    let [first, second] = &ends;
    let mut receives = RecvList::new();
    receives.receive(5, &[]);
    second.queue.post_receive(&mut receives).unwrap();
    second.completions.arm(false).unwrap();
    let channel = second.completions.channel().unwrap();
    assert!(!readable(channel, Duration::ZERO) && channel.next_event().unwrap().is_none());
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| readable(channel, PATIENCE));
        first.post(|list| list.send(1, &[], None, SendFlags::SIGNALED));
        assert!(sleeper.join().unwrap());
    });
    assert_eq!(channel.next_event().unwrap(), Some(second.completions.id()));
    assert_eq!(channel.next_event().unwrap(), None);
    assert_eq!(succeeded(&second.take(1)), [5]);
}

/// More requests than any queue of these tests takes.
const TOO_MANY: u64 = 200;

fn a_full_queue_says_how_many_it_took() {
    let [first, second] = DEVICES.map(End::open);
    let from = first.memory(pattern(64, 1));
    let to = second.memory(vec![0; 64]);
    let fits = first.queue.capacities().send_requests as usize;
    first.connect(&second, QUICK);
    second.connect(&first, QUICK);
    // Nothing comes back, so that nothing completes while the list is posted.
    net(&["black-hole"]);
    let mut list = SendList::new();
    for id in 0..TOO_MANY {
        list.write(id, &[from.sge(0, 64).unwrap()], at(&to, 0), SendFlags::SIGNALED);
    }
    let error = first.queue.post_send(&mut list).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(error.accepted >= fits && error.posted == list.len(), "{error}");
    net(&["heal"]);
    let taken = first.take(error.accepted);
    assert_eq!(
        taken.iter().map(WorkCompletion::wr_id).collect::<Vec<_>>(),
        (0..error.accepted as u64).collect::<Vec<_>>()
    );
    first.nothing_more();
}

fn a_wrong_key_fails_and_flushes_what_follows() {
    let ends = pair();
    let [first, second] = &ends;
    let from = first.memory(pattern(4096, 1));
    let to = second.memory(vec![0; 4096]);
    let piece = from.sge(0, 4096).unwrap();
    let wrong = RemoteAddress { key: to.remote_key() ^ 0x5500, ..at(&to, 0) };
    first.post(|list| {
        list.write(1, &[piece], wrong, SendFlags::SIGNALED);
        list.write(2, &[piece], at(&to, 0), SendFlags::SIGNALED);
        list.write(3, &[piece], at(&to, 0), SendFlags::SIGNALED);
    });
    let done = first.take(3);
    assert_eq!(statuses(&done), [WcStatus::RemoteAccess, WcStatus::Flushed, WcStatus::Flushed]);
    assert_eq!(done.iter().map(WorkCompletion::wr_id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(first.queue.state().unwrap(), QueuePairState::Error);
    assert!(bytes(&to).iter().all(|byte| *byte == 0), "nothing has landed");
    reconnect(&ends);
    works(&ends);
}

fn memory_that_is_no_longer_registered_is_refused() {
    let ends = pair();
    let [first, second] = &ends;
    let from = first.memory(pattern(64, 1));
    let to = second.memory(vec![0; 64]);
    let piece = from.sge(0, 64).unwrap();
    drop(from);
    first.post(|list| list.write(1, &[piece], at(&to, 0), SendFlags::SIGNALED));
    // Soft-RoCE takes it for a fault of the queue pair.
    let refused = statuses(&first.take(1));
    assert!(matches!(refused[..], [WcStatus::LocalProtection | WcStatus::LocalQueuePair]), "{refused:?}");
    reconnect(&ends);
    let from = first.memory(pattern(64, 1));
    let gone = at(&to, 0);
    drop(to);
    first.post(|list| list.read(2, &[from.sge(0, 64).unwrap()], gone, SendFlags::SIGNALED));
    assert_eq!(statuses(&first.take(1)), [WcStatus::RemoteAccess]);
    reconnect(&ends);
    works(&ends);
}

fn a_peer_without_a_receive_is_not_ready() {
    let [first, second] = DEVICES.map(End::open);
    first.connect(&second, RtsAttributes { rnr_retries: 1, ..QUICK });
    second.connect(&first, QUICK);
    first.post(|list| list.send(1, &[], None, SendFlags::SIGNALED));
    assert_eq!(statuses(&first.take(1)), [WcStatus::ReceiverNotReady]);
}

fn the_move_to_error_flushes_at_once() {
    let ends = pair();
    let [first, second] = &ends;
    let mut receives = RecvList::new();
    (0..10).for_each(|id| receives.receive(id, &[]));
    first.queue.post_receive(&mut receives).unwrap();
    let to = second.memory(vec![0; 64]);
    let from = first.memory(vec![1; 64]);
    net(&["black-hole"]);
    first.post(|list| list.write(100, &[from.sge(0, 64).unwrap()], at(&to, 0), SendFlags::SIGNALED));
    first.queue.to_error().unwrap();
    let done = first.take(11);
    assert!(done.iter().all(|completion| completion.status().is_flush()), "{done:?}");
    let mut ids: Vec<u64> = done.iter().map(WorkCompletion::wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100]);
}

/// Disturbs the wire so that the peer is silent, in the middle of a batch, and lets it recover.
fn silence(how: &str) {
    let ends = pair();
    let [first, second] = &ends;
    let from = first.memory(pattern(64 << 10, 6));
    let to = second.memory(vec![0; 64 << 10]);
    let piece = from.sge(0, 64 << 10).unwrap();
    first.post(|list| list.write(1, &[piece], at(&to, 0), SendFlags::SIGNALED));
    assert_eq!(succeeded(&first.take(1)), [1]);
    net(&[how]);
    first.post(|list| (2..6).for_each(|id| list.write(id, &[piece], at(&to, 0), SendFlags::SIGNALED)));
    let done = first.take(4);
    assert_eq!(done[0].status(), WcStatus::RetryExceeded, "{done:?}");
    assert!(done[1..].iter().all(|completion| completion.status().is_flush()), "{done:?}");
    assert_eq!(first.queue.state().unwrap(), QueuePairState::Error);
    net(&["heal"]);
    reconnect(&ends);
    works(&ends);
}

fn a_cut_at_the_peer_ends_in_retries_exceeded() {
    silence("cut-remote");
}

fn a_black_hole_ends_in_retries_exceeded() {
    silence("black-hole");
}

/// The events that a device has told of, once one of this kind has come.
fn events_until(end: &End, kind: AsyncEventKind) -> Vec<(AsyncEventKind, AsyncEventSource)> {
    let mut seen = Vec::new();
    loop {
        assert!(readable(&end.context, PATIENCE), "no {kind:?} among {seen:?}");
        while let Some(event) = end.context.next_event().unwrap() {
            seen.push((event.kind, event.source));
            if event.kind == kind {
                return seen;
            }
        }
    }
}

fn the_own_link_going_down_is_told_and_ends_requests() {
    let ends = pair();
    let [first, second] = &ends;
    let from = first.memory(pattern(4096, 1));
    let to = second.memory(vec![0; 4096]);
    let piece = from.sge(0, 4096).unwrap();
    net(&["cut-local"]);
    let seen = events_until(first, AsyncEventKind::PortError);
    assert!(seen.contains(&(AsyncEventKind::PortError, AsyncEventSource::Port(1))), "{seen:?}");
    assert_ne!(first.context.port(1).unwrap().state, PortState::Active);
    first.post(|list| (1..4).for_each(|id| list.write(id, &[piece], at(&to, 0), SendFlags::SIGNALED)));
    let done = first.take(3);
    assert!(!done[0].status().is_success() && !done[0].status().is_flush(), "{done:?}");
    assert!(done[1..].iter().all(|completion| completion.status().is_flush()), "{done:?}");
    net(&["heal"]);
    events_until(first, AsyncEventKind::PortActive);
    reconnect(&ends);
    works(&ends);
}

fn a_short_loss_recovers_by_itself() {
    let ends = pair();
    net(&["loss", "2"]);
    works(&ends);
}

/// The driver of these devices does not take a device from those who have it open: it waits for them.
fn a_deleted_device_serves_those_who_have_it_open() {
    let ends = pair();
    let device = ends[1].context.device().clone();
    let mut deletion = net_begun(&["delete-device", DEVICES[1]]);
    let deadline = patience();
    let gone = loop {
        match device.open() {
            Err(error) => break error,
            Ok(_) => assert!(!over(deadline), "it can still be opened"),
        }
    };
    assert_eq!(gone.kind(), ErrorKind::Unavailable);
    works(&ends);
    assert!(deletion.try_wait().unwrap().is_none(), "the device is deleted and in use");
    drop((ends, device));
    assert!(deletion.wait().unwrap().success());
    let names: Vec<_> =
        Verbs::load(None).unwrap().devices().unwrap().iter().map(|d| d.name().to_owned()).collect();
    assert_eq!(names, [DEVICES[0]]);
    net(&["heal"]);
    works(&pair());
}

fn everything_is_given_back() {
    let before = net(&["rdma-resource"]);
    let ends = pair();
    let memory = ends[0].memory(vec![0; 4096]);
    let during = net(&["rdma-resource", DEVICES[0]]);
    assert!(during.contains("rxea pd 2 cq 2 qp 2 cm_id 0 mr 1 ctx 1"), "{during}");
    // In the order that would be wrong if owners did not hold what they were made from.
    let [first, second] = ends;
    let End { context, domain, completions, queue, .. } = first;
    drop((context, domain, completions));
    drop((queue, second, memory));
    assert_eq!(net(&["rdma-resource"]), before);
}
