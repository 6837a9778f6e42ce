//! What tests in the guest share: its two devices, the command that disturbs the wire between them, and connected pairs of
//! queues.
#![allow(dead_code, reason = "each test uses its own part")]

use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use mori_core::{Access, Clock, Deadline, Region};
use mori_rdma::verbs::{
    CompletionQueue, Context, GidEntry, GidKind, InitAttributes, MemoryRegion, Path, ProtectionDomain,
    QueuePair, QueuePairCapacities, QueuePairOptions, RegionAccess, RemoteAddress, Route, RtrAttributes,
    RtsAttributes, SendList, Verbs, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec};

/// The guest's device of the first and of the second host.
pub(crate) const DEVICES: [&str; 2] = ["rxea", "rxeb"];

/// The longest wait for anything: what takes longer has failed. The wire's own give-up times are below four seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the tests one after the other: they share the wire. Where the guest's devices are missing they are skipped by name,
/// or fail, if `RDMA_REQUIRED` is set.
pub(crate) fn main(tests: &[(&str, fn())]) {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let skipped = match missing() {
        Some(why) if std::env::var_os("RDMA_REQUIRED").is_none() => {
            eprintln!("skipped without the guest of `cargo xtask rdma-guest`: {why}");
            true
        }
        _ => false,
    };
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        let run = move || {
            net(&["heal"]);
            std::panic::catch_unwind(test).map_err(|_| Failed::without_message())
        };
        Trial::test(*name, run).with_ignored_flag(skipped)
    };
    libtest_mimic::run(&arguments, tests.iter().map(trial).collect()).exit();
}

/// Why there are no devices to test with.
fn missing() -> Option<String> {
    let verbs = match Verbs::load(None) {
        Ok(verbs) => verbs,
        Err(error) => return Some(error.to_string()),
    };
    let devices = match verbs.devices() {
        Ok(devices) => devices,
        Err(error) => return Some(error.to_string()),
    };
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    DEVICES.iter().find(|device| !names.contains(device)).map(|device| format!("there is no device {device}"))
}

/// Calls the guest's command for its network.
pub(crate) fn net(arguments: &[&str]) -> String {
    let output = Command::new("mori-guest-net").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mori-guest-net {}: {said}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Starts the command and does not wait for it.
pub(crate) fn net_begun(arguments: &[&str]) -> Child {
    Command::new("mori-guest-net").args(arguments).spawn().unwrap()
}

/// One end of a pair: a device with everything that a queue pair needs.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) completions: CompletionQueue,
    pub(crate) queue: QueuePair,
    pub(crate) gid: GidEntry,
}

impl End {
    /// On the device of that name.
    pub(crate) fn open(name: &str) -> Self {
        let verbs = Verbs::load(None).unwrap();
        let device = verbs.devices().unwrap().into_iter().find(|device| device.name() == name).unwrap();
        let context = device.open().unwrap();
        let domain = context.protection_domain().unwrap();
        let channel = context.completion_channel().unwrap();
        let completions = context.completion_queue(256, Some(&channel), 0).unwrap();
        let capacities = QueuePairCapacities {
            send_requests: 32,
            receive_requests: 32,
            send_pieces: 8,
            receive_pieces: 8,
            inline_bytes: 64,
        };
        let queue = domain
            .queue_pair(&QueuePairOptions {
                send_completions: &completions,
                receive_completions: &completions,
                capacities,
                signal_all: false,
            })
            .unwrap();
        let gids = context.gids(1).unwrap();
        let usable = |entry: &GidEntry| entry.kind == GidKind::RoceV2 && entry.gid.ipv4().is_some();
        let gid = gids.into_iter().find(usable).unwrap();
        Self { context, domain, completions, queue, gid }
    }

    /// Readies the queue pair, which is new or set back, for the peer's.
    pub(crate) fn connect(&self, peer: &Self, last: RtsAttributes) {
        let init = InitAttributes { port: 1, partition_key_index: 0, access: RegionAccess::REMOTE };
        self.queue.to_init(&init).unwrap();
        let mtu = self.context.port(1).unwrap().active_mtu;
        let route = Route {
            gid: peer.gid.gid,
            source_gid_index: u8::try_from(self.gid.index).unwrap(),
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        };
        let rtr = RtrAttributes {
            path: Path {
                port: 1,
                lid: 0,
                service_level: 0,
                source_path_bits: 0,
                static_rate: 0,
                route: Some(route),
            },
            mtu: mtu.smaller(peer.context.port(1).unwrap().active_mtu),
            peer_number: peer.queue.number(),
            receive_sequence: 77,
            max_reads_as_target: 16,
            min_rnr_timer: 12,
        };
        // After the link has been down the kernel may have to look for the neighbour for longer than it waits.
        let deadline = patience();
        while let Err(error) = self.queue.to_ready_to_receive(&rtr) {
            assert!(error.errno() == Some(libc::ETIMEDOUT) && !over(deadline), "{error}");
        }
        self.queue.to_ready_to_send(&last).unwrap();
    }

    /// Memory of this end with these bytes, which peers may read and write.
    pub(crate) fn memory(&self, bytes: Vec<u8>) -> MemoryRegion {
        let region = Region::from_vec(bytes, Access::READ_WRITE).unwrap();
        self.domain.register(&region, RegionAccess::REMOTE).unwrap()
    }

    /// Posts requests that one call fills in.
    pub(crate) fn post(&self, fill: impl FnOnce(&mut SendList)) {
        let mut list = SendList::new();
        fill(&mut list);
        self.queue.post_send(&mut list).unwrap();
    }

    /// The next completions, asleep until they are there.
    pub(crate) fn take(&self, count: usize) -> Vec<WorkCompletion> {
        let deadline = patience();
        let mut taken: Vec<WorkCompletion> = Vec::new();
        let mut room = [WorkCompletion::default(); 16];
        loop {
            // Armed first and looked at second: one that comes between the two is seen, too.
            self.completions.arm(false).unwrap();
            loop {
                let most = room.len().min(count - taken.len());
                let found = self.completions.poll(&mut room[..most]).unwrap();
                if found.is_empty() {
                    break;
                }
                taken.extend_from_slice(found);
            }
            if taken.len() == count {
                return taken;
            }
            assert!(!over(deadline), "{} of {count} completions: {taken:?}", taken.len());
            let channel = self.completions.channel().unwrap();
            if readable(channel, PATIENCE) {
                while let Some(id) = channel.next_event().unwrap() {
                    assert_eq!(id, self.completions.id());
                }
            }
        }
    }

    /// Asserts that no completion is there.
    pub(crate) fn nothing_more(&self) {
        let mut room = [WorkCompletion::default(); 4];
        let found = self.completions.poll(&mut room).unwrap();
        assert!(found.is_empty(), "{found:?}");
    }
}

/// Gives up on silence after about half a second.
pub(crate) const QUICK: RtsAttributes =
    RtsAttributes { send_sequence: 77, timeout: 14, retries: 6, rnr_retries: 6, max_reads_as_initiator: 16 };

/// The two devices, connected.
pub(crate) fn pair() -> [End; 2] {
    let ends = DEVICES.map(End::open);
    ends[0].connect(&ends[1], QUICK);
    ends[1].connect(&ends[0], QUICK);
    ends
}

/// The place in a peer's memory.
pub(crate) fn at(memory: &MemoryRegion, offset: u64) -> RemoteAddress {
    RemoteAddress { address: memory.address() + offset, key: memory.remote_key() }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 31 + at / 251 + seed * 101) % 256).unwrap()).collect()
}

/// The bytes of memory.
pub(crate) fn bytes(memory: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(memory.len()).unwrap()];
    memory.region().read_at(0, &mut bytes).unwrap();
    bytes
}

/// When something that begins now has taken too long.
pub(crate) fn patience() -> Deadline {
    Clock::system().deadline(PATIENCE)
}

/// Whether that time has come.
pub(crate) fn over(deadline: Deadline) -> bool {
    deadline.passed(Clock::system().now())
}

/// Sleeps until the descriptor is readable; says whether it is.
pub(crate) fn readable(what: &impl AsFd, longest: Duration) -> bool {
    let longest = Timespec::try_from(longest).unwrap();
    let mut polled = [PollFd::new(what, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&longest)).unwrap() > 0
}
