//! What breaks a transport, over the guest's devices: links that are cut, peers that die, stop and come back, a device that is
//! deleted. Each time nothing hangs, transfers say why they failed, the next ones work without a restart, and the kernel holds
//! what it held before. Elsewhere the tests are skipped by name.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops where something is not as it should be; a child talks to its parent over its standard streams"
)]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest::{DEVICES, net, net_begun};
use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    NotificationQueue, Notify, Op, Piece, Region, Session, Status, TransferOptions,
};
use mori_rdma::{RdmaBackend, RdmaConfig};

const LENGTH: usize = 1 << 20;

/// Says to this program that it is a peer of the test's: its name and its incarnation.
const CHILD: &str = "MORI_RDMA_TEST_CHILD";

/// How long anything that needs a peer's processor may take.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);

/// From the disturbance to the end of every transfer: retries take half a second to four seconds, and emulation is slow.
const BOUND: Duration = Duration::from_secs(20);

/// From the repair to the first transfer that works.
const RECOVERY: Duration = Duration::from_secs(30);

fn main() {
    if let Ok(who) = std::env::var(CHILD) {
        return be_a_peer(&who);
    }
    guest::main(&[
        ("a_cut_at_the_peer_in_mid_batch", a_cut_at_the_peer_in_mid_batch),
        ("the_own_link_goes_down_in_mid_batch", the_own_link_goes_down_in_mid_batch),
        ("one_of_two_devices_loses_its_link", one_of_two_devices_loses_its_link),
        ("a_peer_is_killed_in_mid_batch_and_started_anew", a_peer_is_killed_in_mid_batch_and_started_anew),
        ("a_peer_is_stopped_and_goes_on", a_peer_is_stopped_and_goes_on),
        ("a_device_is_deleted_under_the_engine", a_device_is_deleted_under_the_engine),
    ]);
}

fn config(devices: &str) -> RdmaConfig {
    RdmaConfig {
        devices: devices.parse().unwrap(),
        chunk_bytes: 128 << 10,
        // A processor of the guest may stand still for longer than a card ever does.
        ack_timeout: 16,
        peer_timeout: PEER_TIMEOUT,
        ..RdmaConfig::default()
    }
}

struct Node {
    backend: Arc<RdmaBackend>,
    desc: EngineDesc,
    inbox: NotificationQueue,
}

impl Node {
    fn new(key: &str, instance: u8, devices: &str) -> Self {
        let backend = RdmaBackend::new(config(devices)).unwrap();
        let inbox = NotificationQueue::new(100);
        let attached = backend
            .attach(BackendContext {
                engine: key.into(),
                instance: [instance; 16],
                node_id: "guest".into(),
                notifications: inbox.clone(),
            })
            .unwrap();
        let desc = EngineDesc {
            key: key.into(),
            host: attached.host.unwrap(),
            port: attached.port.unwrap(),
            transports: attached.blob.into_iter().collect(),
            ..EngineDesc::default()
        };
        Self { backend, desc, inbox }
    }

    fn area(&self, fill: u8) -> (Region, MemoryDesc) {
        let region = Region::from_vec(vec![fill; LENGTH], Access::READ_WRITE).unwrap();
        let mut desc = MemoryDesc::for_region(&self.desc.key, &region);
        desc.transports.extend(self.backend.register(&region).unwrap());
        (region, desc)
    }

    fn is_quiet(&self) -> bool {
        let stats = self.backend.stats();
        (stats.transfers, stats.credits_in_use, stats.records, stats.messages, stats.draining)
            == (0, 0, 0, 0, 0)
    }
}

fn now() -> Instant {
    Clock::system().now()
}

fn until(bound: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = now() + bound;
    while !holds() {
        assert!(now() < end, "{what}: not within {bound:?}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// A batch of whole areas.
fn batch(session: &Arc<dyn Session>, count: usize) -> Vec<Status> {
    let op = |n: usize| if n.is_multiple_of(2) { Op::Read } else { Op::Write };
    let whole = [Piece::new(0, 0, LENGTH as u64)];
    (0..count).map(|n| session.submit(op(n), &whole, &TransferOptions::default())).collect()
}

/// Every one of them ends within the bound; those that failed say why, of one of these kinds. Gives the failures' words.
fn all_end(statuses: &[Status], kinds: &[ErrorKind]) -> Vec<String> {
    let end = now() + BOUND;
    let mut words = Vec::new();
    for status in statuses {
        let code = status.wait(end.saturating_duration_since(now()));
        assert!(code.is_terminal(), "{BOUND:?} after the disturbance a transfer is {code}");
        if let Some(error) = status.error() {
            assert!(kinds.contains(&error.kind()), "{error}");
            words.push(error.to_string());
        }
    }
    words
}

/// The next transfers work, with every byte compared.
fn works(open: impl Fn() -> Result<Arc<dyn Session>, Error>, local: &Region) {
    let mut last = String::new();
    let once = |last: &mut String| {
        let session = match open() {
            Ok(session) => session,
            Err(error) => {
                *last = error.to_string();
                return false;
            }
        };
        local.write_at(0, &vec![0x5c; LENGTH]).unwrap();
        for op in [Op::Write, Op::Read] {
            let status = session.submit(op, &[Piece::new(0, 0, LENGTH as u64)], &TransferOptions::default());
            if !status.wait(BOUND).is_success() {
                *last = status.message();
                return false;
            }
            if op == Op::Write {
                local.write_at(0, &vec![0; LENGTH]).unwrap();
            }
        }
        let mut back = vec![0; LENGTH];
        local.read_at(0, &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 0x5c), "wrong bytes after the repair");
        true
    };
    let end = now() + RECOVERY;
    while !once(&mut last) {
        assert!(now() < end, "not within {RECOVERY:?} of the repair: {last}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Runs a test between two snapshots of what the kernel holds.
fn leaves_nothing(test: impl FnOnce()) {
    let before = net(&["rdma-resource"]);
    test();
    // The kernel gives back a little later than the calls return.
    let mut after = String::new();
    until(BOUND, "the kernel holds what it held before", || {
        after = net(&["rdma-resource"]);
        after == before
    });
}

/// Two nodes of this process, on the two devices.
fn disturbed(disturb: &str, devices: [&str; 2], check: impl FnOnce(&[String])) {
    leaves_nothing(|| {
        let (a, b) = (Node::new("a", 1, devices[0]), Node::new("b", 2, devices[1]));
        a.backend.add_peer(&b.desc).unwrap();
        let ((local, _), (_remote, there)) = (a.area(1), b.area(2));
        let session = a.backend.session(&local, &there).unwrap();
        let statuses = batch(&session, 24);
        assert!(statuses[0].wait(BOUND).is_terminal());
        net(&[disturb]);
        let kinds = [ErrorKind::PeerLost, ErrorKind::Transport];
        check(&all_end(&statuses, &kinds));
        until(BOUND, "nothing is held", || a.is_quiet());
        net(&["heal"]);
        works(|| Ok(Arc::clone(&session)), &local);
        until(BOUND, "nothing is held", || a.is_quiet() && b.is_quiet());
        assert_eq!(local.pins(), 0);
        let start = now();
        a.backend.shutdown();
        b.backend.shutdown();
        assert!(now() - start < BOUND, "the shutdown took {:?}", now() - start);
    });
}

fn a_cut_at_the_peer_in_mid_batch() {
    disturbed("cut-remote", DEVICES, |failures| {
        assert!(!failures.is_empty(), "24 transfers were done before the link was cut");
        let cause = |words: &String| words.contains("retries exceeded") || words.contains("port");
        assert!(failures.iter().all(cause), "{failures:?}");
    });
}

fn the_own_link_goes_down_in_mid_batch() {
    disturbed("cut-local", DEVICES, |failures| {
        assert!(!failures.is_empty(), "24 transfers were done before the link was cut");
        let cause = |words: &String| !words.contains("IBV_WC_WR_FLUSH_ERR");
        assert!(failures.iter().any(cause), "nothing but consequences: {failures:?}");
    });
}

fn one_of_two_devices_loses_its_link() {
    // Each node has both devices; the first ones are joined with each other, and so are the second ones.
    disturbed("cut-remote", ["rxea,rxeb", "rxea,rxeb"], |failures| {
        assert!(failures.is_empty(), "the other device carries on: {failures:?}");
    });
}

/// A peer in a process of its own.
struct Remote {
    child: Child,
    engine: EngineDesc,
    memory: MemoryDesc,
}

impl Remote {
    fn start(key: &str, instance: u8) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(CHILD, format!("{key} {instance}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || from_hex(&lines.next().unwrap().unwrap());
        let (engine, memory) = (next(), next());
        Self {
            child,
            engine: EngineDesc::unpack(&engine).unwrap(),
            memory: MemoryDesc::unpack(&memory).unwrap(),
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// What the child does: serves an area until its parent goes.
fn be_a_peer(who: &str) {
    let (key, instance) = who.split_once(' ').unwrap();
    let node = Node::new(key, instance.parse().unwrap(), DEVICES[1]);
    let (_region, desc) = node.area(3);
    println!("{}", to_hex(&node.desc.pack()));
    println!("{}", to_hex(&desc.pack()));
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    drop(node.inbox);
    node.backend.shutdown();
}

fn a_peer_is_killed_in_mid_batch_and_started_anew() {
    leaves_nothing(|| {
        let a = Node::new("a", 1, DEVICES[0]);
        let (local, _) = a.area(1);
        let mut remote = Remote::start("b", 2);
        a.backend.add_peer(&remote.engine).unwrap();
        let session = a.backend.session(&local, &remote.memory).unwrap();
        let statuses = batch(&session, 24);
        assert!(statuses[0].wait(BOUND).is_terminal());
        remote.child.kill().unwrap();
        let killed = now();
        let failures = all_end(&statuses, &[ErrorKind::PeerLost]);
        assert!(!failures.is_empty(), "24 transfers were done before the peer was killed");
        assert!(now() - killed < PEER_TIMEOUT * 2, "it took {:?}", now() - killed);
        until(BOUND, "nothing is held", || a.is_quiet());
        drop(remote);
        assert!(!session.alive(), "a session with a dead peer says that it is alive");
        // Under the same name, it is a new one.
        let again = Remote::start("b", 3);
        a.backend.add_peer(&again.engine).unwrap();
        works(|| a.backend.session(&local, &again.memory), &local);
        let stale = session.submit(Op::Read, &[Piece::new(0, 0, 1)], &TransferOptions::default());
        assert!(stale.wait(BOUND).is_failure(), "a stale key works");
        until(BOUND, "nothing is held", || a.is_quiet());
        a.backend.shutdown();
    });
}

fn a_peer_is_stopped_and_goes_on() {
    leaves_nothing(|| {
        let a = Node::new("a", 1, DEVICES[0]);
        let (local, _) = a.area(1);
        let remote = Remote::start("b", 2);
        a.backend.add_peer(&remote.engine).unwrap();
        let session = a.backend.session(&local, &remote.memory).unwrap();
        remote.signal("-STOP");
        // Reads and writes take nothing of its processor.
        let failures = all_end(&batch(&session, 4), &[]);
        assert!(failures.is_empty(), "{failures:?}");
        // A message does.
        let note = Notify { message: b"are you there".to_vec(), on_failure: false };
        let options = TransferOptions { notify: Some(note), ..TransferOptions::default() };
        let told = session.submit(Op::Write, &[Piece::new(0, 0, 64)], &options);
        let failures = all_end(&[told], &[ErrorKind::PeerLost]);
        assert!(failures.iter().any(|words| words.contains("may be stopped")), "{failures:?}");
        remote.signal("-CONT");
        works(|| Ok(Arc::clone(&session)), &local);
        let told = session.submit(Op::Write, &[Piece::new(0, 0, 64)], &options);
        assert!(told.wait(BOUND).is_success(), "{}", told.message());
        until(BOUND, "nothing is held", || a.is_quiet());
        a.backend.shutdown();
    });
}

fn a_device_is_deleted_under_the_engine() {
    let before = net(&["rdma-resource"]);
    let (a, b) = (Node::new("a", 1, DEVICES[0]), Node::new("b", 2, DEVICES[1]));
    a.backend.add_peer(&b.desc).unwrap();
    let ((local, _), (_remote, there)) = (a.area(1), b.area(2));
    let session = a.backend.session(&local, &there).unwrap();
    let statuses = batch(&session, 24);
    assert!(statuses[0].wait(BOUND).is_terminal());
    let mut deletion = net_begun(&["delete-device", DEVICES[1]]);
    // Whether the driver lets those go on who have it open is the driver's to say; nothing hangs.
    all_end(&statuses, &[ErrorKind::PeerLost, ErrorKind::Transport, ErrorKind::Device, ErrorKind::NotFound]);
    until(BOUND, "nothing is held", || a.is_quiet());
    let start = now();
    a.backend.shutdown();
    b.backend.shutdown();
    assert!(now() - start < BOUND, "the shutdown took {:?}", now() - start);
    drop((a, b, session));
    assert!(deletion.wait().unwrap().success());
    net(&["add-device", DEVICES[1]]);
    net(&["heal"]);
    until(BOUND, "the kernel holds what it held before", || net(&["rdma-resource"]) == before);
    let key = EngineKey::from("c");
    let (c, d) = (Node::new(key.as_str(), 3, DEVICES[0]), Node::new("d", 4, DEVICES[1]));
    c.backend.add_peer(&d.desc).unwrap();
    let ((local, _), (_remote, there)) = (c.area(1), d.area(2));
    works(|| c.backend.session(&local, &there), &local);
    c.backend.shutdown();
    d.backend.shutdown();
}
