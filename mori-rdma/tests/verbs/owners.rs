//! Owners: what they say, and in which order they go.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mori_core::{Access, Location, Region};
use mori_rdma::verbs::{
    CompletionChannel, CompletionQueue, Context, LinkLayer, MemoryRegion, Mtu, NodeType, PortState,
    ProtectionDomain, QueuePair, QueuePairState, RegionAccess, Transport, VerbsError,
};

use crate::support::{End, LENGTH, Sim, init, options, rtr, rts};

#[test]
fn devices_say_what_they_are() {
    let sim = Sim::new();
    sim.set("devices", "3").unwrap();
    let devices = sim.devices();
    let names: Vec<&str> = devices.iter().map(mori_rdma::verbs::Device::name).collect();
    assert_eq!(names, ["mori_sim0", "mori_sim1", "mori_sim2"]);
    let device = &devices[1];
    assert_eq!(device.guid(), 0x6d6f_7269_0000_0001);
    assert_eq!((device.node_type(), device.transport()), (NodeType::ChannelAdapter, Transport::InfiniBand));
    assert_eq!(device.sysfs_path().unwrap(), Path::new("/sys/class/infiniband/mori_sim1"));
    // A device outlives the call that listed it, and the other devices.
    let device = device.clone();
    drop(devices);
    assert_eq!(device.open().unwrap().device().name(), "mori_sim1");
    assert_eq!(sim.verbs().optional_functions().len(), 3);
}

#[test]
fn a_kernel_without_rdma_is_one_without_devices() {
    let sim = Sim::new();
    sim.set("kernel", "no").unwrap();
    assert!(sim.devices().is_empty());
    sim.fault("ibv_get_device_list", 1, libc::EPERM).unwrap();
    let error = sim.verbs().devices().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EPERM));
}

#[test]
fn a_context_says_what_device_and_ports_can() {
    let sim = Sim::new();
    sim.set("max_requests", "100").unwrap();
    sim.set("max_message", "8388608").unwrap();
    let context = sim.open(0);
    let attributes = context.attributes().unwrap();
    assert_eq!((attributes.ports, attributes.max_work_requests, attributes.max_sge), (1, 100, 16));
    assert_eq!((attributes.firmware.as_str(), attributes.max_reads_as_initiator), ("0.simulated", 16));
    assert_eq!(attributes.node_guid, context.device().guid());
    assert_eq!(context.completion_vectors(), 4);
    let port = context.port(1).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.active_mtu, port.max_mtu, port.max_message), (Mtu::Bytes1024, Mtu::Bytes4096, 8 << 20));
    assert_eq!(port.gigabits(), Some(100.0));
    assert_eq!(context.port(2).unwrap_err().errno(), Some(libc::EINVAL));
}

#[test]
fn addresses_are_the_same_in_one_call_and_line_by_line() {
    let sim = Sim::new();
    sim.set("ports", "2").unwrap();
    let context = sim.open(1);
    let at_once = context.gids(2).unwrap();
    assert_eq!(at_once.len(), 4);
    assert!(at_once.iter().all(|entry| entry.port == 2));
    sim.fault("ibv_query_gid_table", 1, libc::EOPNOTSUPP).unwrap();
    assert_eq!(context.gids(2).unwrap(), at_once);
    assert!(sim.report().calls_of("ibv_query_gid_ex") > 0);
    assert_eq!(context.gid(2, 3).unwrap(), Some(at_once[3]));
    assert_eq!(context.gid(2, 7).unwrap(), None);
    sim.set_gid("mori_sim1", 2, 3, None).unwrap();
    assert_eq!(context.gids(2).unwrap().len(), 3);
}

/// Every owner, in a form in which each can be dropped at any time.
enum Owner {
    Context(#[allow(dead_code, reason = "it is dropped")] Context),
    Channel(#[allow(dead_code, reason = "it is dropped")] CompletionChannel),
    Queue(#[allow(dead_code, reason = "it is dropped")] CompletionQueue),
    Domain(#[allow(dead_code, reason = "it is dropped")] ProtectionDomain),
    Memory(#[allow(dead_code, reason = "it is dropped")] MemoryRegion),
    Pair(#[allow(dead_code, reason = "it is dropped")] QueuePair),
}

fn permutations(items: Vec<usize>) -> Vec<Vec<usize>> {
    if items.len() <= 1 {
        return vec![items];
    }
    let mut all = Vec::new();
    for at in 0..items.len() {
        let mut rest = items.clone();
        let first = rest.remove(at);
        all.extend(permutations(rest).into_iter().map(|mut tail| {
            tail.insert(0, first);
            tail
        }));
    }
    all
}

#[test]
fn owners_can_be_dropped_in_any_order() {
    let sim = Sim::new();
    for order in permutations((0..6).collect()) {
        let End { pair, memory, queue, channel, domain, context } = End::new(&sim.open(0));
        let mut owners = [
            Some(Owner::Context(context)),
            Some(Owner::Channel(channel)),
            Some(Owner::Queue(queue)),
            Some(Owner::Domain(domain)),
            Some(Owner::Memory(memory)),
            Some(Owner::Pair(pair)),
        ];
        for at in &order {
            owners[*at] = None;
        }
        let report = sim.report();
        assert_eq!((report.all_live(), report.misuse.len()), (0, 0), "{order:?}: {report:?}");
    }
}

#[test]
fn what_cannot_be_destroyed_is_left_and_harms_nobody() {
    for call in [
        "ibv_destroy_qp",
        "ibv_dereg_mr",
        "ibv_destroy_cq",
        "ibv_destroy_comp_channel",
        "ibv_dealloc_pd",
        "ibv_close_device",
    ] {
        let sim = Sim::with_leftovers();
        let end = End::new(&sim.open(0));
        sim.fault(call, 1, libc::EBUSY).unwrap();
        drop(end);
        assert!(sim.report().all_live() > 0, "{call}");
        // Its parents could not be destroyed then, either, which is no mistake of ours.
        sim.forgive().unwrap();
        let (a, b) = End::couple(&sim);
        drop((a, b));
    }
}

/// Says when it is dropped.
struct Keeper(Arc<AtomicBool>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn kept(bytes: &'static mut [u8]) -> (Region, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let keeper = Box::new(Keeper(Arc::clone(&gone)));
    // SAFETY: the bytes are leaked.
    let region = unsafe {
        Region::from_raw_with_keeper(
            bytes.as_mut_ptr(),
            bytes.len(),
            Location::HOST,
            Access::READ_WRITE,
            Some(keeper),
        )
    };
    (region.unwrap(), gone)
}

#[test]
fn a_registration_keeps_its_memory() {
    let sim = Sim::new();
    let domain = sim.open(0).protection_domain().unwrap();
    let (region, gone) = kept(vec![0; 100].leak());
    let memory = domain.register(&region, RegionAccess::REMOTE).unwrap();
    drop(region);
    assert!(!gone.load(Ordering::Relaxed));
    assert_eq!(memory.region().len(), 100);
    drop(memory);
    assert!(gone.load(Ordering::Relaxed));
}

#[test]
fn memory_whose_registration_cannot_be_taken_back_is_never_given_back() {
    let sim = Sim::with_leftovers();
    let domain = sim.open(0).protection_domain().unwrap();
    let (region, gone) = kept(vec![0; 100].leak());
    let memory = domain.register(&region, RegionAccess::REMOTE).unwrap();
    drop(region);
    sim.fault("ibv_dereg_mr", 1, libc::EIO).unwrap();
    drop(memory);
    assert!(!gone.load(Ordering::Relaxed));
    assert_eq!(sim.report().live("regions"), 1);
    drop(domain);
    sim.forgive().unwrap();
}

#[test]
fn the_same_memory_has_different_keys_on_different_devices_and_in_parts() {
    let sim = Sim::new();
    let region = Region::zeroed(LENGTH, Access::READ_ONLY).unwrap();
    let access = RegionAccess::of(region.access());
    let (a, b) = (sim.open(0).protection_domain().unwrap(), sim.open(1).protection_domain().unwrap());
    let (first, again, other) = (
        a.register(&region, access).unwrap(),
        a.register(&region, access | RegionAccess::RELAXED_ORDERING).unwrap(),
        b.register(&region, access).unwrap(),
    );
    assert_eq!(sim.report().calls_of("ibv_reg_mr_iova2"), 1);
    let keys = [first.remote_key(), again.remote_key(), other.remote_key()];
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
    assert_ne!(first.local_key(), first.remote_key());
    let part = a.register_part(&region, 1000, 96, access).unwrap();
    assert_eq!((part.address(), part.len()), (first.address() + 1000, 96));
    assert_eq!(part.sge(90, 6).unwrap().address, first.address() + 1090);
    for (offset, length) in [(90, 7), (97, 0), (u64::MAX, 1)] {
        assert!(matches!(part.sge(offset, length), Err(VerbsError::Argument(_))), "{offset} {length}");
    }
    for (offset, length) in [(4096, 1), (0, 4097), (0, 0), (u64::MAX, 2)] {
        let result = a.register_part(&region, offset, length, access);
        assert!(matches!(result, Err(VerbsError::Argument(_))), "{offset} {length}");
    }
}

#[test]
fn a_queue_pair_goes_through_its_states() {
    let sim = Sim::new();
    let (a, b) = (End::new(&sim.open(0)), End::new(&sim.open(1)));
    let state = || a.pair.state().unwrap();
    assert_eq!(state(), QueuePairState::Reset);
    a.pair.to_init(&init()).unwrap();
    assert_eq!(state(), QueuePairState::Init);
    a.pair.to_ready_to_receive(&rtr(&b.context, b.pair.number())).unwrap();
    assert_eq!(state(), QueuePairState::ReadyToReceive);
    a.pair.to_ready_to_send(&rts(7)).unwrap();
    assert_eq!(state(), QueuePairState::ReadyToSend);
    a.pair.to_error().unwrap();
    assert_eq!(state(), QueuePairState::Error);
    a.pair.reset().unwrap();
    assert_eq!(state(), QueuePairState::Reset);
    let wrong = a.pair.to_ready_to_send(&rts(7)).unwrap_err();
    assert_eq!(wrong.errno(), Some(libc::EINVAL));
    sim.forgive().unwrap();
}

#[test]
fn queue_pairs_of_two_devices_have_equal_numbers_and_different_ids() {
    let sim = Sim::new();
    let (a, b) = (End::new(&sim.open(0)), End::new(&sim.open(1)));
    assert_eq!(a.pair.number(), b.pair.number());
    assert_ne!(a.pair.id(), b.pair.id());
    let (number, id) = (a.pair.number(), a.pair.id());
    drop(a);
    let later = End::new(&sim.open(0));
    assert_eq!(later.pair.number(), number);
    assert!(later.pair.id() > id);
    assert!(later.pair.capacities().inline_bytes >= 64);
}

#[test]
fn parts_of_different_open_devices_do_not_mix() {
    let sim = Sim::new();
    let (a, b) = (sim.open(0), sim.open(0));
    let channel = a.completion_channel().unwrap();
    let wrong = b.completion_queue(10, Some(&channel), 0).unwrap_err();
    assert!(matches!(wrong, VerbsError::Argument(_)), "{wrong}");
    let queue = a.completion_queue(10, Some(&channel), 0).unwrap();
    let wrong = b.protection_domain().unwrap().queue_pair(&options(&queue)).unwrap_err();
    assert!(matches!(wrong, VerbsError::Argument(_)), "{wrong}");
    assert!(matches!(a.completion_queue(0, None, 0), Err(VerbsError::Argument(_))));
    assert!(a.is_same(&a.clone()) && !a.is_same(&b));
}
