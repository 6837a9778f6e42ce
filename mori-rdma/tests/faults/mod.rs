//! What the tests of faults share: an engine's backend on some devices, and the same in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, MemoryDesc, NotificationQueue,
    Region,
};
use mori_rdma::{RdmaBackend, RdmaConfig};
use rustix::process::{Pid, Signal};

use crate::guest::{PATIENCE, over, patience, readable};

pub(crate) mod devices;
pub(crate) mod peers;
pub(crate) mod play;
pub(crate) mod quiet;
pub(crate) mod wire;

/// Asks the program to be the process of a peer.
const VARIABLE: &str = "MORI_RDMA_TEST_PEER";

/// How long a peer may be silent where its processor is needed.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// An attached backend with its regions.
pub(crate) struct Node {
    pub(crate) backend: Arc<RdmaBackend>,
    pub(crate) key: EngineKey,
    pub(crate) inbox: NotificationQueue,
    pub(crate) desc: EngineDesc,
    regions: Vec<Region>,
}

/// The configuration of both sides.
pub(crate) fn config(devices: &[&str]) -> RdmaConfig {
    RdmaConfig {
        devices: devices.join(",").parse().unwrap(),
        chunk_bytes: 64 << 10,
        max_chain: 8,
        send_queue: 64,
        notify_slots: 4,
        cancel_grace: Duration::from_millis(5),
        peer_timeout: PEER_TIMEOUT,
        // Gives up after two seconds: a processor of the guest may stand still for longer than a card ever does.
        ack_timeout: 16,
        retry_count: 6,
        ..RdmaConfig::default()
    }
}

impl Node {
    pub(crate) fn start(key: &str, instance: u8, config: RdmaConfig) -> Result<Self, Error> {
        let inbox = NotificationQueue::new(1000);
        let key = EngineKey::from(key);
        let backend = RdmaBackend::new(config)?;
        let attached = backend.attach(BackendContext {
            engine: key.clone(),
            instance: [instance; 16],
            node_id: "guest".into(),
            notifications: inbox.clone(),
        })?;
        let desc = EngineDesc {
            key: key.clone(),
            host: attached.host.unwrap(),
            port: attached.port.unwrap(),
            transports: attached.blob.into_iter().collect(),
            ..EngineDesc::default()
        };
        Ok(Self { backend, key, inbox, desc, regions: Vec::new() })
    }

    /// Registers memory.
    pub(crate) fn area(&mut self, length: usize) -> Result<(Region, MemoryDesc), Error> {
        let region = Region::zeroed(length, Access::READ_WRITE)?;
        let blob = self.backend.register(&region)?;
        let mut desc = MemoryDesc::for_region(&self.key, &region);
        desc.transports.extend(blob);
        self.regions.push(region.clone());
        Ok((region, desc))
    }

    /// Takes back every registration, and ends the backend.
    pub(crate) fn end(self) {
        self.regions.iter().for_each(|region| self.backend.deregister(region.id()));
        self.backend.shutdown();
    }
}

/// Bytes that tell where they belong and when they were written. Made of whole blocks, since emulation is slow.
fn marks(length: usize, seed: usize) -> Vec<u8> {
    const BLOCK: usize = 1024;
    let mut bytes = vec![u8::try_from(seed % 256).unwrap(); length];
    for (number, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        block[..8].copy_from_slice(&(number << 32 | seed).to_le_bytes());
    }
    bytes
}

/// Writes marks into a part of a region.
pub(crate) fn mark(region: &Region, offset: usize, length: usize, seed: usize) {
    region.write_at(offset as u64, &marks(length, seed)).unwrap();
}

/// Where a part of a region is not as [`mark`] has left it.
pub(crate) fn differs(region: &Region, offset: usize, length: usize, seed: usize) -> Option<usize> {
    let mut found = vec![0; length];
    region.read_at(offset as u64, &mut found).unwrap();
    let expected = marks(length, seed);
    if found == expected {
        return None;
    }
    found.iter().zip(&expected).position(|(found, expected)| found != expected)
}

/// A process with a node of its own.
pub(crate) struct Peer {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn spawn() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, commands, answers }
    }

    /// Has it obey a command; an answer that does not come is a failure.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        writeln!(self.commands.as_ref().unwrap(), "{command}").unwrap();
        assert!(readable(self.answers.get_ref(), PATIENCE), "the peer does not answer `{command}`");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer
            .trim_end_matches('\n')
            .strip_prefix("ok ")
            .unwrap_or_else(|| panic!("{command}: {answer}"))
            .to_owned()
    }

    pub(crate) fn start(&mut self, key: &str, instance: u8, devices: &[&str]) -> EngineDesc {
        let answer = self.ask(&format!("start {key} {instance} {}", devices.join(",")));
        EngineDesc::unpack(&from_hex(&answer)).unwrap()
    }

    /// Registers memory; the first such area has the number 0.
    pub(crate) fn area(&mut self, length: usize) -> MemoryDesc {
        MemoryDesc::unpack(&from_hex(&self.ask(&format!("area {length}")))).unwrap()
    }

    pub(crate) fn add(&mut self, desc: &EngineDesc) {
        self.ask(&format!("add {}", to_hex(&desc.pack())));
    }

    pub(crate) fn mark(&mut self, offset: usize, length: usize, seed: usize) {
        self.ask(&format!("mark {offset} {length} {seed}"));
    }

    /// Where a part of its area is not as [`Peer::mark`] has left it.
    pub(crate) fn differs(&mut self, offset: usize, length: usize, seed: usize) -> Option<usize> {
        self.ask(&format!("differs {offset} {length} {seed}")).parse().ok()
    }

    /// How many queue pairs serve others there.
    pub(crate) fn passive(&mut self) -> usize {
        self.ask("passive").parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Ends its node, then the process.
    pub(crate) fn end(mut self) {
        self.ask("end");
        self.commands = None;
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Obeys commands, if the program was started for that.
pub(crate) fn run_if_asked() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut node = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match obey(&mut node, &line) {
            Ok(answer) => format!("ok {answer}"),
            Err(error) => format!("error {error}"),
        };
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    std::process::exit(0);
}

fn obey(node: &mut Option<Node>, line: &str) -> Result<String, Error> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| -> usize { words[at].parse().unwrap() };
    if words[0] == "start" {
        let devices: Vec<&str> = words[3].split(',').collect();
        let started = Node::start(words[1], u8::try_from(number(2)).unwrap(), config(&devices))?;
        let desc = to_hex(&started.desc.pack());
        *node = Some(started);
        return Ok(desc);
    }
    if words[0] == "end" {
        node.take().unwrap().end();
        return Ok(String::new());
    }
    let node = node.as_mut().unwrap();
    Ok(match words[0] {
        "area" => to_hex(&node.area(number(1))?.1.pack()),
        "add" => {
            node.backend.add_peer(&EngineDesc::unpack(&from_hex(words[1])).unwrap())?;
            String::new()
        }
        "mark" => {
            mark(&node.regions[0], number(1), number(2), number(3));
            String::new()
        }
        "differs" => match differs(&node.regions[0], number(1), number(2), number(3)) {
            Some(at) => at.to_string(),
            None => "no".to_owned(),
        },
        "deregister" => {
            node.backend.deregister(node.regions[0].id());
            String::new()
        }
        "messages" => std::iter::from_fn(|| node.inbox.poll()).count().to_string(),
        "passive" => node.backend.stats().passive.len().to_string(),
        other => panic!("no such command: {other}"),
    })
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Looks again and again, for as long as anything may take.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = patience();
    while !holds() {
        assert!(!over(deadline), "{what}: never");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// What something takes is not longer than this.
pub(crate) fn within<T>(bound: Duration, what: &str, act: impl FnOnce() -> T) -> T {
    let clock = Clock::system();
    let begun = clock.now();
    let result = act();
    let took = clock.now() - begun;
    assert!(took <= bound, "{what} took {took:?}");
    result
}
