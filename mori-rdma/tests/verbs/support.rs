//! The simulated library, loaded once, and connected queue pairs on its devices.

use std::os::fd::AsFd;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use mori_core::{Access, Region};
use mori_rdma::verbs::{
    CompletionChannel, CompletionQueue, Context, Device, GidKind, InitAttributes, MemoryRegion, Mtu, Path,
    ProtectionDomain, QueuePair, QueuePairCapacities, QueuePairOptions, RegionAccess, RemoteAddress, Route,
    RtrAttributes, RtsAttributes, Sge, Verbs, WorkCompletion,
};
use mori_verbs_sim::{Report, Simulation};

static LOADED: LazyLock<(Simulation, Verbs)> = LazyLock::new(|| {
    let simulation = Simulation::open().expect("the simulated library is built with the tests");
    let verbs = Verbs::load(Some(simulation.library())).expect("the simulated library loads");
    (simulation, verbs)
});

/// The simulation, fresh, for one test at a time. Dropping it checks that nothing is left and nothing was misused.
pub(crate) struct Sim {
    _alone: MutexGuard<'static, ()>,
    leftovers: bool,
}

impl Sim {
    pub(crate) fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        LOADED.0.reset().unwrap();
        Self { _alone: alone, leftovers: false }
    }

    /// Objects may be left at the end.
    pub(crate) fn with_leftovers() -> Self {
        let mut sim = Self::new();
        sim.leftovers = true;
        sim
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        &LOADED.1
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        self.verbs().devices().unwrap()
    }

    pub(crate) fn open(&self, device: usize) -> Context {
        self.devices()[device].open().unwrap()
    }

    pub(crate) fn report(&self) -> Report {
        LOADED.0.report().unwrap()
    }
}

impl std::ops::Deref for Sim {
    type Target = Simulation;

    fn deref(&self) -> &Simulation {
        &LOADED.0
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let report = self.report();
        assert_eq!(report.misuse, [""; 0]);
        assert!(self.leftovers || report.all_live() == 0, "left: {:?}", report.live);
        assert!(!LOADED.0.clear().unwrap(), "a fault that was asked for did not come");
    }
}

/// One end of a connection, with memory.
pub(crate) struct End {
    // In an order in which plain C would have to destroy them, too.
    pub(crate) pair: QueuePair,
    pub(crate) memory: MemoryRegion,
    pub(crate) queue: CompletionQueue,
    pub(crate) channel: CompletionChannel,
    pub(crate) domain: ProtectionDomain,
    pub(crate) context: Context,
}

pub(crate) const LENGTH: usize = 4096;

pub(crate) const CAPACITIES: QueuePairCapacities = QueuePairCapacities {
    send_requests: 16,
    receive_requests: 16,
    send_pieces: 4,
    receive_pieces: 4,
    inline_bytes: 64,
};

impl End {
    pub(crate) fn new(context: &Context) -> Self {
        Self::with_entries(context, 64)
    }

    pub(crate) fn with_entries(context: &Context, entries: u32) -> Self {
        let channel = context.completion_channel().unwrap();
        let queue = context.completion_queue(entries, Some(&channel), 0).unwrap();
        let domain = context.protection_domain().unwrap();
        let region = Region::zeroed(LENGTH, Access::READ_WRITE).unwrap();
        let memory = domain.register(&region, RegionAccess::REMOTE).unwrap();
        let pair = domain.queue_pair(&options(&queue)).unwrap();
        Self { pair, memory, queue, channel, domain, context: context.clone() }
    }

    /// Connects both ends.
    pub(crate) fn connect(&self, other: &Self) {
        for (end, peer) in [(self, other), (other, self)] {
            end.pair.to_init(&init()).unwrap();
            end.pair.to_ready_to_receive(&rtr(&peer.context, peer.pair.number())).unwrap();
            end.pair.to_ready_to_send(&rts(7)).unwrap();
        }
    }

    /// Both ends of a connection between the first two devices.
    pub(crate) fn couple(sim: &Sim) -> (Self, Self) {
        let (a, b) = (Self::new(&sim.open(0)), Self::new(&sim.open(1)));
        a.connect(&b);
        (a, b)
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        self.memory.sge(offset, length).unwrap()
    }

    pub(crate) fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.memory.address() + offset, key: self.memory.remote_key() }
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.memory.region().write_at(offset, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.region().read_at(offset, &mut bytes).unwrap();
        bytes
    }

    /// What is in the completion queue now.
    pub(crate) fn poll(&self) -> Vec<WorkCompletion> {
        let mut buffer = [WorkCompletion::default(); 32];
        let mut all = Vec::new();
        loop {
            let some = self.queue.poll(&mut buffer).unwrap();
            if some.is_empty() {
                return all;
            }
            all.extend_from_slice(some);
        }
    }
}

pub(crate) fn options(queue: &CompletionQueue) -> QueuePairOptions<'_> {
    QueuePairOptions {
        send_completions: queue,
        receive_completions: queue,
        capacities: CAPACITIES,
        signal_all: false,
    }
}

pub(crate) fn init() -> InitAttributes {
    InitAttributes { port: 1, partition_key_index: 0, access: RegionAccess::REMOTE }
}

/// The way to the first port of the peer's device, over RoCE v2 and IPv4.
pub(crate) fn rtr(peer: &Context, number: u32) -> RtrAttributes {
    let gids = peer.gids(1).unwrap();
    let usable =
        |entry: &&mori_rdma::verbs::GidEntry| entry.kind == GidKind::RoceV2 && entry.gid.ipv4().is_some();
    let entry = gids.iter().find(usable).unwrap();
    let route = Route { gid: entry.gid, source_gid_index: 3, hop_limit: 64, traffic_class: 0, flow_label: 0 };
    RtrAttributes {
        path: Path {
            port: 1,
            lid: 0,
            service_level: 0,
            source_path_bits: 0,
            static_rate: 0,
            route: Some(route),
        },
        mtu: Mtu::Bytes1024,
        peer_number: number,
        receive_sequence: 0x12_3456,
        max_reads_as_target: 16,
        min_rnr_timer: 12,
    }
}

pub(crate) fn rts(rnr_retries: u8) -> RtsAttributes {
    RtsAttributes {
        send_sequence: 0x12_3456,
        timeout: 14,
        retries: 6,
        rnr_retries,
        max_reads_as_initiator: 16,
    }
}

/// Whether something can be read from a descriptor now.
pub(crate) fn is_readable(descriptor: &impl AsFd) -> bool {
    let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}
