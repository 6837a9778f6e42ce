//! Every way in which the library can fail, one at a time, over the simulation: each is a clear failure or none at all, nothing is
//! held afterwards, and the next transfer works.
//!
//! The simulation is one for the whole process and so are its faults; the tests take turns.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where something is not as it should be")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, MemoryDesc, NotificationQueue,
    Notify, Op, Piece, Region, Session, Status, TransferOptions,
};
use mori_rdma::verbs::WcStatus;
use mori_rdma::{Completion, RdmaBackend, RdmaConfig};
use mori_verbs_sim::{Report, Simulation};

/// The longest that anything may take; nothing comes near it but what hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const LENGTH: usize = 64 << 10;

/// The simulation, for one test at a time.
fn simulation() -> (MutexGuard<'static, ()>, Simulation) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let simulation = Simulation::open().unwrap();
    simulation.reset().unwrap();
    (turn, simulation)
}

struct Node {
    backend: Arc<RdmaBackend>,
    key: EngineKey,
    inbox: NotificationQueue,
    desc: EngineDesc,
}

fn config(simulation: &Simulation, device: usize) -> RdmaConfig {
    RdmaConfig {
        library: Some(simulation.library().to_owned()),
        devices: format!("mori_sim{device}").parse().unwrap(),
        chunk_bytes: 4096,
        max_chain: 4,
        send_queue: 16,
        notify_slots: 4,
        cancel_grace: Duration::from_millis(5),
        connect_timeout: Duration::from_secs(2),
        peer_timeout: Duration::from_secs(1),
        completion: Completion::Events,
        ..RdmaConfig::default()
    }
}

/// A failure that says something.
fn clear(error: &Error) {
    assert!(error.message().len() > 10, "a failure without words: {error:?}");
}

/// Tries until it works.
fn at_last<T>(what: &str, mut call: impl FnMut() -> Result<T, Error>) -> T {
    let clock = Clock::system();
    let until = clock.now() + PATIENCE;
    loop {
        match call() {
            Ok(value) => return value,
            Err(error) => {
                clear(&error);
                assert!(clock.now() < until, "{what}: never again: {error}");
                std::thread::park_timeout(Duration::from_millis(2));
            }
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let clock = Clock::system();
    let end = clock.now() + PATIENCE;
    while !holds() {
        assert!(clock.now() < end, "{what}: never");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

impl Node {
    fn new(config: &RdmaConfig, name: &str, instance: u8) -> Self {
        let key = EngineKey::from(name);
        let inbox = NotificationQueue::new(1000);
        let backend = RdmaBackend::new(config.clone()).unwrap();
        let attached = at_last("attaching", || {
            backend.attach(BackendContext {
                engine: key.clone(),
                instance: [instance; 16],
                node_id: "sweep".into(),
                notifications: inbox.clone(),
            })
        });
        let desc = EngineDesc {
            key: key.clone(),
            host: attached.host.unwrap(),
            port: attached.port.unwrap(),
            transports: attached.blob.into_iter().collect(),
            ..EngineDesc::default()
        };
        Self { backend, key, inbox, desc }
    }

    fn area(&self) -> (Region, MemoryDesc) {
        let region = Region::zeroed(LENGTH, Access::READ_WRITE).unwrap();
        let blob = at_last("registering", || self.backend.register(&region));
        let mut desc = MemoryDesc::for_region(&self.key, &region);
        desc.transports.extend(blob);
        (region, desc)
    }

    /// Nothing is in progress, and nothing is held for it.
    fn is_quiet(&self) -> bool {
        let stats = self.backend.stats();
        (stats.transfers, stats.credits_in_use, stats.records, stats.messages, stats.draining)
            == (0, 0, 0, 0, 0)
    }
}

/// Two nodes and a session between an area at each.
struct Play {
    a: Node,
    b: Node,
    local: Region,
    remote: Region,
    there: MemoryDesc,
    rounds: u8,
}

impl Play {
    fn new(simulation: &Simulation) -> Self {
        Self::between(&config(simulation, 0), &config(simulation, 1))
    }

    fn between(a: &RdmaConfig, b: &RdmaConfig) -> Self {
        let (a, b) = (Node::new(a, "a", 1), Node::new(b, "b", 2));
        a.backend.add_peer(&b.desc).unwrap();
        b.backend.add_peer(&a.desc).unwrap();
        let (local, _) = a.area();
        let (remote, there) = b.area();
        Self { a, b, local, remote, there, rounds: 0 }
    }

    fn session(&self) -> Result<Arc<dyn Session>, Error> {
        self.a.backend.session(&self.local, &self.there)
    }

    /// Transfers of every kind; each ends, as a success or as a clear failure. Says how many failed.
    fn transfers(&mut self) -> usize {
        let session = match self.session() {
            Ok(session) => session,
            Err(error) => {
                clear(&error);
                return 1;
            }
        };
        let whole = [Piece::new(0, 0, LENGTH as u64)];
        let scattered: Vec<Piece> = (0..40).map(|n| Piece::new(n * 100, 60_000 - n * 100, 70)).collect();
        let note = Notify { message: b"done".to_vec(), on_failure: true };
        let told = TransferOptions { notify: Some(note), ..TransferOptions::default() };
        let plain = TransferOptions::default();
        let statuses = [
            session.submit(Op::Read, &scattered, &plain),
            session.submit(Op::Write, &whole, &plain),
            session.submit(Op::Write, &scattered, &told),
            session.submit(Op::Read, &[Piece::new(1, 2, 3)], &told),
        ];
        statuses.iter().filter(|status| !ended(status)).count()
    }

    /// One transfer whose bytes are compared.
    fn one(&mut self, op: Op) -> Result<(), Error> {
        self.rounds = self.rounds.wrapping_add(1);
        let bytes = |seed: u8| -> Vec<u8> { (0..LENGTH).map(|n| (n / 7) as u8 ^ seed).collect() };
        let (here, there) = (bytes(self.rounds), bytes(!self.rounds));
        self.local.write_at(0, &here)?;
        self.remote.write_at(0, &there)?;
        let status =
            self.session()?.submit(op, &[Piece::new(0, 0, LENGTH as u64)], &TransferOptions::default());
        if !ended(&status) {
            return Err(status.error().unwrap());
        }
        let mut found = vec![0; LENGTH];
        let (at, expected) = if op == Op::Read { (&self.local, there) } else { (&self.remote, here) };
        at.read_at(0, &mut found)?;
        assert!(found == expected, "wrong bytes after a {op:?} that succeeded");
        Ok(())
    }

    /// The next transfers work, and nothing is held.
    fn works(&mut self) {
        for op in [Op::Read, Op::Write] {
            at_last("the next transfer", || self.one(op));
        }
        until("both sides are quiet", || self.a.is_quiet() && self.b.is_quiet());
        while self.b.inbox.poll().is_some() {}
        assert_eq!(self.local.pins(), 0);
    }

    fn end(self) {
        self.a.backend.deregister(self.local.id());
        self.b.backend.deregister(self.remote.id());
        self.a.backend.shutdown();
        self.b.backend.shutdown();
    }
}

/// Waits for the end of a transfer; whether it is a success. A failure is a clear one.
fn ended(status: &Status) -> bool {
    let code = status.wait(PATIENCE);
    assert!(code.is_terminal(), "a transfer hangs: {}", status.message());
    if let Some(error) = status.error() {
        clear(&error);
    }
    code.is_success()
}

/// Calls of which the failure leaves the object where it is, with the real library as well.
const DESTROYS: [&str; 7] = [
    "ibv_free_device_list",
    "ibv_destroy_qp",
    "ibv_destroy_cq",
    "ibv_destroy_comp_channel",
    "ibv_dealloc_pd",
    "ibv_close_device",
    "ibv_dereg_mr",
];

fn all_given_back(report: &Report, after: &str) {
    assert_eq!(report.all_live(), 0, "after {after}: {:?}", report.live);
    assert!(report.misuse.is_empty(), "after {after}: {:?}", report.misuse);
}

#[test]
fn every_call_may_fail_once() {
    let (_turn, simulation) = simulation();
    let mut play = Play::new(&simulation);
    assert_eq!(play.transfers(), 0);
    play.works();
    play.end();
    let report = simulation.report().unwrap();
    all_given_back(&report, "a run without faults");
    for (name, calls) in &report.calls {
        // What is called for every transfer behaves alike after a while.
        for nth in 1..=(*calls).min(6) {
            let errno = if nth % 2 == 0 { libc_errno::EIO } else { libc_errno::ENOMEM };
            let what = format!("call {nth} of {name} with errno {errno}");
            simulation.reset().unwrap();
            simulation.fault(name, nth, errno).unwrap();
            let mut play = Play::new(&simulation);
            let failed = play.transfers();
            assert!(failed <= 4, "{what}");
            play.works();
            play.end();
            let unused = simulation.clear().unwrap();
            let report = simulation.report().unwrap();
            if DESTROYS.contains(&name.as_str()) && !unused {
                // The object stays, and so does what it was made from; nothing is destroyed twice or too early.
                continue;
            }
            all_given_back(&report, &what);
        }
    }
}

#[test]
fn every_status_once() {
    let (_turn, simulation) = simulation();
    let mut play = Play::new(&simulation);
    play.works();
    for &status in WcStatus::ALL {
        if status.is_success() {
            continue;
        }
        for nth in [1, 2, 7, 17, 25] {
            simulation.fail_request(nth, status.number()).unwrap();
            let failed = play.transfers();
            let unused = simulation.clear().unwrap();
            assert!(failed <= 4, "{status:?} at request {nth}");
            // A flush without a cause is the way's fault, like the others that are not the transfer's own.
            assert!(unused || failed > 0 || nth > 1, "{status:?} at request {nth} failed nothing");
            play.works();
        }
    }
    play.end();
    all_given_back(&simulation.report().unwrap(), "every status");
}

#[test]
fn lists_may_be_taken_in_part() {
    let (_turn, simulation) = simulation();
    let mut play = Play::new(&simulation);
    play.works();
    for errno in [libc_errno::ENOMEM, libc_errno::EINVAL] {
        for taken in 0..4 {
            simulation.partial_send(taken, errno).unwrap();
            let failed = play.transfers();
            simulation.clear().unwrap();
            if errno == libc_errno::ENOMEM {
                assert_eq!(failed, 0, "a queue that is full for a moment fails nothing; {taken} were taken");
            } else {
                assert_eq!(failed, 1, "one transfer cannot be posted; {taken} were taken");
            }
            play.works();
            simulation.partial_receive(taken.min(1), errno).unwrap();
            let _ = play.transfers();
            simulation.clear().unwrap();
            play.works();
        }
    }
    play.end();
    all_given_back(&simulation.report().unwrap(), "partial posts");
}

#[test]
fn queues_devices_and_ports_may_fail() {
    let (_turn, simulation) = simulation();
    let mut play = Play::new(&simulation);
    play.works();
    for device in ["mori_sim0", "mori_sim1"] {
        simulation.overrun(device).unwrap();
        let _ = play.transfers();
        play.works();
        simulation.set_port(device, 1, false).unwrap();
        let _ = play.transfers();
        simulation.set_port(device, 1, true).unwrap();
        play.works();
        for passive in play.b.backend.stats().passive {
            simulation.kill_pair(&passive.device, passive.queue_pair).unwrap();
        }
        let _ = play.transfers();
        play.works();
    }
    play.end();
    all_given_back(&simulation.report().unwrap(), "overruns, ports and pairs");
}

#[test]
fn a_device_that_dies_leaves_its_transfers_to_the_other() {
    let (_turn, simulation) = simulation();
    let both = RdmaConfig { devices: "mori_sim0,mori_sim1".parse().unwrap(), ..config(&simulation, 0) };
    let mut play = Play::between(&both, &both);
    play.works();
    until("both devices are connected", || play.a.backend.stats().lanes.len() == 2);
    simulation.hold(true).unwrap();
    let session = play.session().unwrap();
    let whole = [Piece::new(0, 0, LENGTH as u64)];
    let statuses: Vec<Status> = [Op::Read, Op::Write, Op::Read]
        .into_iter()
        .map(|op| session.submit(op, &whole, &TransferOptions::default()))
        .collect();
    simulation.kill_device("mori_sim0").unwrap();
    simulation.hold(false).unwrap();
    for status in &statuses {
        let good = ended(status);
        assert!(good, "{}; {:?}", status.message(), play.a.backend.stats());
    }
    play.works();
    let stats = play.a.backend.stats();
    assert!(stats.lanes.iter().all(|lane| lane.device == "mori_sim1"), "{stats:?}");
    play.end();
    let report = simulation.report().unwrap();
    assert!(report.misuse.is_empty(), "{:?}", report.misuse);
    // What cannot be destroyed on a dead device is not the next test's to find.
    simulation.reset().unwrap();
}

#[test]
fn a_queue_that_stays_full_is_named() {
    let (_turn, simulation) = simulation();
    let narrow = RdmaConfig { admission_timeout: Duration::from_millis(50), ..config(&simulation, 0) };
    let mut play = Play::between(&narrow, &config(&simulation, 1));
    play.works();
    simulation.hold(true).unwrap();
    let session = play.session().unwrap();
    let whole = [Piece::new(0, 0, LENGTH as u64)];
    let statuses: Vec<Status> =
        (0..3).map(|_| session.submit(Op::Read, &whole, &TransferOptions::default())).collect();
    // The first has its requests in the queue, as far as they fit; the last has none.
    assert!(!ended(&statuses[2]));
    let words = statuses[2].message();
    assert!(words.contains("SQ full") && words.contains("0 of 65536 bytes"), "{words}");
    simulation.hold(false).unwrap();
    statuses.iter().for_each(|status| {
        let _ = ended(status);
    });
    play.works();
    play.end();
    all_given_back(&simulation.report().unwrap(), "a full queue");
}

/// The numbers that are injected, as Linux has them.
mod libc_errno {
    pub(crate) const EIO: i32 = 5;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EINVAL: i32 = 22;
}
