//! Bytes that move, and the ways in which they do not.

use mori_core::{Access, Region};
use mori_rdma::verbs::{
    Opcode, QueuePairState, RecvList, RegionAccess, RemoteAddress, SendFlags, SendList, WcStatus,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::support::{End, LENGTH, Sim, init, options, rtr, rts};

const SIGNALED: SendFlags = SendFlags::SIGNALED;

#[test]
fn writes_and_reads_gather_and_scatter() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    a.fill(0, b"hello, ");
    a.fill(100, b"world");
    let mut list = SendList::with_capacity(2, 4);
    list.write(1, &[a.sge(0, 7), a.sge(100, 5)], b.remote(50), SendFlags::NONE);
    list.read(2, &[a.sge(200, 5), a.sge(300, 7)], b.remote(50), SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(b.bytes(50, 12), b"hello, world");
    assert_eq!((a.bytes(200, 5), a.bytes(300, 7)), (b"hello".to_vec(), b", world".to_vec()));
    let done = a.poll();
    assert_eq!(done.len(), 1, "only the second is signalled: {done:?}");
    assert_eq!((done[0].wr_id(), done[0].status(), done[0].opcode()), (2, WcStatus::Success, Opcode::Read));
    assert_eq!((done[0].byte_length(), done[0].queue_pair_number()), (12, a.pair.number()));
    assert_eq!(done[0].immediate(), None);
    assert!(b.poll().is_empty());
}

#[test]
fn messages_reach_receives_with_their_immediate_data() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let mut receives = RecvList::new();
    receives.receive(10, &[b.sge(0, 4), b.sge(100, 60)]);
    receives.receive(11, &[b.sge(200, 64)]);
    receives.receive(12, &[]);
    b.pair.post_receive(&mut receives).unwrap();
    a.fill(0, b"0123456789");
    let mut list = SendList::new();
    list.send(1, &[a.sge(0, 10)], None, SendFlags::NONE);
    list.send_inline(2, b"inline", Some(0x1234_5678), SendFlags::SOLICITED);
    list.write_with_immediate(3, &[a.sge(0, 10)], b.remote(1000), 0xcafe_f00d, SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!((b.bytes(0, 4), b.bytes(100, 6)), (b"0123".to_vec(), b"456789".to_vec()));
    assert_eq!((b.bytes(200, 6), b.bytes(1000, 10)), (b"inline".to_vec(), b"0123456789".to_vec()));
    let got: Vec<_> =
        b.poll().iter().map(|wc| (wc.wr_id(), wc.opcode(), wc.byte_length(), wc.immediate())).collect();
    let expected = [
        (10, Opcode::Receive, 10, None),
        (11, Opcode::Receive, 6, Some(0x1234_5678)),
        (12, Opcode::ReceiveWriteImmediate, 10, Some(0xcafe_f00d)),
    ];
    assert_eq!(got, expected);
    assert_eq!(a.poll()[0].opcode(), Opcode::Write);
}

#[test]
fn inline_bytes_are_copied_when_the_list_is_built() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let mut list = SendList::new();
    {
        let bytes = b"short-lived".to_vec();
        list.write_inline(1, &bytes, b.remote(7), SendFlags::NONE);
        list.write_inline(2, b"", b.remote(0), SendFlags::NONE);
        list.write_inline(3, b"next", b.remote(18), SendFlags::NONE);
    }
    list.flag_last(SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(b.bytes(7, 15), b"short-livednext");
    assert_eq!(a.poll().iter().map(mori_rdma::verbs::WorkCompletion::wr_id).collect::<Vec<_>>(), [3]);
    // The same list can be posted again.
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(a.poll().len(), 1);
}

#[test]
fn memory_that_is_not_registered_for_it_is_not_touched() {
    let sim = Sim::new();
    type Attempt = fn(&End, &End, &mut SendList);
    let attempts: [(&str, Attempt, WcStatus); 6] = [
        (
            "a wrong local key",
            |a, b, list| {
                let mut piece = a.sge(0, 10);
                piece.key ^= 0x800;
                list.write(1, &[piece], b.remote(0), SendFlags::NONE);
            },
            WcStatus::LocalProtection,
        ),
        (
            "past the local end",
            |a, b, list| {
                let mut piece = a.sge(0, 10);
                piece.address += LENGTH as u64 - 9;
                list.read(1, &[piece], b.remote(0), SendFlags::NONE);
            },
            WcStatus::LocalProtection,
        ),
        (
            "the other device's key",
            |a, b, list| {
                let remote = RemoteAddress { key: a.memory.remote_key(), ..b.remote(0) };
                list.write(1, &[a.sge(0, 10)], remote, SendFlags::NONE);
            },
            WcStatus::RemoteAccess,
        ),
        (
            "a local key for a remote one",
            |a, b, list| {
                let remote = RemoteAddress { key: b.memory.local_key(), ..b.remote(0) };
                list.write(1, &[a.sge(0, 10)], remote, SendFlags::NONE);
            },
            WcStatus::RemoteAccess,
        ),
        (
            "past the remote end",
            |a, b, list| {
                list.read(1, &[a.sge(0, 10)], b.remote(LENGTH as u64 - 9), SendFlags::NONE);
            },
            WcStatus::RemoteAccess,
        ),
        (
            "before the remote start",
            |a, b, list| {
                let remote = RemoteAddress { address: b.memory.address() - 1, ..b.remote(0) };
                list.write(1, &[a.sge(0, 10)], remote, SendFlags::NONE);
            },
            WcStatus::RemoteAccess,
        ),
    ];
    for (what, attempt, status) in attempts {
        let (a, b) = End::couple(&sim);
        a.fill(0, &[1; 100]);
        let mut list = SendList::new();
        attempt(&a, &b, &mut list);
        list.write(2, &[a.sge(0, 10)], b.remote(0), SendFlags::NONE);
        a.pair.post_send(&mut list).unwrap();
        let ended: Vec<_> = a.poll().iter().map(|wc| (wc.wr_id(), wc.status())).collect();
        assert_eq!(ended, [(1, status), (2, WcStatus::Flushed)], "{what}");
        assert_eq!(b.bytes(0, LENGTH), vec![0; LENGTH], "{what}");
        assert_eq!(a.pair.state().unwrap(), QueuePairState::Error, "{what}");
    }
}

#[test]
fn access_is_what_the_registration_grants() {
    let sim = Sim::new();
    let (a, b) = (End::new(&sim.open(0)), End::new(&sim.open(1)));
    let region = Region::zeroed(LENGTH, Access::READ_ONLY).unwrap();
    let readable = b.domain.register(&region, RegionAccess::of(region.access())).unwrap();
    let remote = RemoteAddress { address: readable.address(), key: readable.remote_key() };
    a.connect(&b);
    let mut list = SendList::new();
    list.read(1, &[a.sge(0, 10)], remote, SIGNALED);
    list.write(2, &[a.sge(0, 10)], remote, SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    let ended: Vec<_> = a.poll().iter().map(|wc| (wc.wr_id(), wc.status())).collect();
    assert_eq!(ended, [(1, WcStatus::Success), (2, WcStatus::RemoteAccess)]);
}

#[test]
fn a_message_without_a_receive_waits_or_fails_as_asked() {
    let sim = Sim::new();
    for retries in [7, 3] {
        let (a, b) = (End::new(&sim.open(0)), End::new(&sim.open(1)));
        for (end, peer) in [(&a, &b), (&b, &a)] {
            end.pair.to_init(&init()).unwrap();
            end.pair.to_ready_to_receive(&rtr(&peer.context, peer.pair.number())).unwrap();
            end.pair.to_ready_to_send(&rts(retries)).unwrap();
        }
        let mut list = SendList::new();
        list.send_inline(1, b"now", None, SIGNALED);
        a.pair.post_send(&mut list).unwrap();
        if retries == 7 {
            assert!(a.poll().is_empty());
            let mut receives = RecvList::new();
            receives.receive(5, &[b.sge(0, 10)]);
            b.pair.post_receive(&mut receives).unwrap();
            assert_eq!((a.poll()[0].status(), b.poll()[0].wr_id()), (WcStatus::Success, 5));
        } else {
            assert_eq!(a.poll()[0].status(), WcStatus::ReceiverNotReady);
        }
    }
}

#[test]
fn a_receive_that_is_too_short_fails_both_sides() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    let mut receives = RecvList::new();
    receives.receive(5, &[b.sge(0, 2)]);
    b.pair.post_receive(&mut receives).unwrap();
    let mut list = SendList::new();
    list.send_inline(1, b"long", None, SendFlags::NONE);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(b.poll()[0].status(), WcStatus::LocalLength);
    assert_eq!(a.poll()[0].status(), WcStatus::RemoteInvalidRequest);
}

#[test]
fn a_peer_that_is_gone_does_not_answer() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    drop(b);
    let mut list = SendList::new();
    let remote = RemoteAddress { address: 0, key: 0 };
    list.write(1, &[a.sge(0, 10)], remote, SendFlags::NONE);
    a.pair.post_send(&mut list).unwrap();
    let ended = a.poll();
    assert_eq!(ended[0].status(), WcStatus::RetryExceeded);
    assert_eq!(ended[0].status().name(), "IBV_WC_RETRY_EXC_ERR");
    assert_ne!(ended[0].vendor_error(), 0);
}

#[test]
fn every_status_arrives_as_it_is_and_flushes_the_rest() {
    let sim = Sim::new();
    for &status in WcStatus::ALL.iter().filter(|status| !status.is_success()) {
        let (a, b) = End::couple(&sim);
        let mut receives = RecvList::new();
        receives.receive(9, &[a.sge(0, 10)]);
        a.pair.post_receive(&mut receives).unwrap();
        let mut list = SendList::new();
        for id in 1..=3 {
            list.write(id, &[a.sge(0, 10)], b.remote(0), SendFlags::NONE);
        }
        sim.fail_request(2, status.number()).unwrap();
        a.pair.post_send(&mut list).unwrap();
        let ended: Vec<_> = a.poll().iter().map(|wc| (wc.wr_id(), wc.status())).collect();
        assert_eq!(ended, [(2, status), (3, WcStatus::Flushed), (9, WcStatus::Flushed)]);
    }
}

#[test]
fn device_memory_is_registered_by_its_descriptor() {
    let sim = Sim::new();
    let (a, b) = (End::new(&sim.open(0)), End::new(&sim.open(1)));
    let buffer = memfd_create("device-memory", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&buffer, 3 * 4096).unwrap();
    // The region's own bytes play no part: the descriptor's do.
    let region = Region::zeroed(LENGTH, Access::READ_WRITE).unwrap();
    use std::os::fd::AsFd;
    let memory = b.domain.register_dmabuf(&region, buffer.as_fd(), 8192, RegionAccess::REMOTE).unwrap();
    a.connect(&b);
    let mut list = SendList::new();
    let remote = RemoteAddress { address: region.address() as u64 + 100, key: memory.remote_key() };
    list.write_inline(1, b"onto the device", remote, SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(a.poll()[0].status(), WcStatus::Success);
    let mut there = [0; 15];
    rustix::io::pread(&buffer, &mut there, 8192 + 100).unwrap();
    assert_eq!(&there, b"onto the device");
    let askew = b.domain.register_dmabuf(&region, buffer.as_fd(), 8193, RegionAccess::REMOTE).unwrap_err();
    assert!(askew.to_string().contains("agree within a page"), "{askew}");
    sim.fault("ibv_reg_dmabuf_mr", 1, libc::EOPNOTSUPP).unwrap();
    let old = b.domain.register_dmabuf(&region, buffer.as_fd(), 0, RegionAccess::REMOTE).unwrap_err();
    assert_eq!(old.kind(), mori_core::ErrorKind::Unsupported);
}

#[test]
fn infiniband_finds_its_peer_by_lid() {
    let sim = Sim::new();
    sim.set("link", "infiniband").unwrap();
    let (a, b) = (End::new(&sim.open(0)), End::new(&sim.open(1)));
    for (end, peer) in [(&a, &b), (&b, &a)] {
        let port = peer.context.port(1).unwrap();
        assert_eq!(port.link_layer, mori_rdma::verbs::LinkLayer::InfiniBand);
        let mut way = {
            let mut route = rtr_by_lid(port.lid);
            route.peer_number = peer.pair.number();
            route
        };
        way.path.route = None;
        end.pair.to_init(&init()).unwrap();
        end.pair.to_ready_to_receive(&way).unwrap();
        end.pair.to_ready_to_send(&rts(7)).unwrap();
    }
    let mut list = SendList::new();
    list.write_inline(1, b"by lid", b.remote(0), SIGNALED);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(b.bytes(0, 6), b"by lid");
}

fn rtr_by_lid(lid: u16) -> mori_rdma::verbs::RtrAttributes {
    mori_rdma::verbs::RtrAttributes {
        path: mori_rdma::verbs::Path {
            port: 1,
            lid,
            service_level: 0,
            source_path_bits: 0,
            static_rate: 0,
            route: None,
        },
        mtu: mori_rdma::verbs::Mtu::Bytes1024,
        peer_number: 0,
        receive_sequence: 1,
        max_reads_as_target: 1,
        min_rnr_timer: 12,
    }
}

#[test]
fn a_queue_pair_that_signals_all_does() {
    let sim = Sim::new();
    let (a, b) = (End::new(&sim.open(0)), End::new(&sim.open(1)));
    let mut wanted = options(&a.queue);
    wanted.signal_all = true;
    let pair = a.domain.queue_pair(&wanted).unwrap();
    let a = End { pair, ..a };
    a.connect(&b);
    let mut list = SendList::new();
    list.write_inline(1, b"x", b.remote(0), SendFlags::NONE);
    a.pair.post_send(&mut list).unwrap();
    assert_eq!(a.poll().len(), 1);
}
