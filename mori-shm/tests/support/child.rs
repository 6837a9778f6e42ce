//! The other process: it obeys commands, one a line, and answers each with a line that starts with `@`.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    NotificationQueue, Notify, Op, Piece, Region, Result, TransferOptions,
};
use mori_shm::{Secret, ShmBackend, ShmConfig};

/// Asks the process to be the child.
pub(crate) const VARIABLE: &str = "MORI_SHM_TEST_CHILD";

/// Runs the child if the process was started as one.
pub(crate) fn run_if_asked() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut child = Child::default();
    for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
        let answer = match child.obey(&line) {
            Ok(answer) => format!("ok {answer}"),
            Err(error) => format!("error {} {}", error.kind().number(), error.message()),
        };
        let mut out = std::io::stdout().lock();
        if writeln!(out, "\n@{answer}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// The configuration that a word asks for: everything by the threads, or the default; the rest is a secret.
pub(crate) fn config(word: &str, secret: &str) -> ShmConfig {
    let secret = Some(Secret::new(secret)).filter(|_| secret != "-");
    let base = ShmConfig {
        connect_timeout: Duration::from_secs(2),
        peer_timeout: Duration::from_secs(2),
        drain: Duration::from_millis(500),
        secret,
        ..ShmConfig::default()
    };
    match word {
        "threads" => ShmConfig { inline_bytes: 0, chunk_bytes: 64 << 10, ..base },
        _ => base,
    }
}

#[derive(Default)]
struct Child {
    nodes: HashMap<u64, Node>,
    regions: HashMap<u64, (u64, Region)>,
    traffic: Option<(Arc<AtomicBool>, Vec<JoinHandle<Error>>)>,
    last: u64,
}

struct Node {
    backend: Arc<ShmBackend>,
    key: EngineKey,
    inbox: NotificationQueue,
}

fn wrong(what: impl Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the command is wrong: {what}"))
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| wrong(text))
}

/// Bytes as text.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// Text as bytes.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>> {
    if text == "-" {
        return Ok(Vec::new());
    }
    let digit = |letter: u8| char::from(letter).to_digit(16).ok_or_else(|| wrong("hex"));
    let byte = |pair: &[u8]| Ok(u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).unwrap_or_default());
    text.as_bytes().chunks_exact(2).map(byte).collect()
}

/// Rights as a number.
pub(crate) fn access_number(access: Access) -> u64 {
    u64::from(access.remote_read) + 2 * u64::from(access.remote_write)
}

fn access_of(text: &str) -> Result<Access> {
    let bits = number(text)?;
    Ok(Access { remote_read: bits & 1 != 0, remote_write: bits & 2 != 0 })
}

fn op_of(text: &str) -> Op {
    if text == "read" { Op::Read } else { Op::Write }
}

fn pieces_of(texts: &[&str]) -> Result<Vec<Piece>> {
    let numbers = texts.iter().map(|text| number(text)).collect::<Result<Vec<u64>>>()?;
    Ok(numbers.chunks_exact(3).map(|piece| Piece::new(piece[0], piece[1], piece[2])).collect())
}

impl Child {
    fn node(&self, text: &str) -> Result<&Node> {
        self.nodes.get(&number(text)?).ok_or_else(|| wrong("no such node"))
    }

    fn region(&self, text: &str) -> Result<&(u64, Region)> {
        self.regions.get(&number(text)?).ok_or_else(|| wrong("no such region"))
    }

    fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn attach(&mut self, node: &str, key: &str, instance: &str) -> Result<String> {
        let instance = from_hex(instance)?.try_into().map_err(|_| wrong("instance"))?;
        let number = number(node)?;
        let node = self.nodes.get_mut(&number).ok_or_else(|| wrong("no such node"))?;
        node.key = EngineKey::from(key);
        let attachment = node.backend.attach(BackendContext {
            engine: node.key.clone(),
            instance,
            node_id: "node".to_owned(),
            notifications: node.inbox.clone(),
        })?;
        let transports = attachment.blob.into_iter().collect();
        let desc = EngineDesc { key: node.key.clone(), transports, ..EngineDesc::default() };
        Ok(to_hex(&desc.pack()))
    }

    /// Registers a region, and says its descriptor.
    fn register(&self, region: &str) -> Result<String> {
        let (node, region) = self.region(region)?;
        let node = self.nodes.get(node).ok_or_else(|| wrong("no such node"))?;
        let mut desc = MemoryDesc::for_region(&node.key, region);
        desc.transports.extend(node.backend.register(region)?);
        Ok(to_hex(&desc.pack()))
    }

    fn obey(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["node", mode, secret] => {
                let backend = ShmBackend::new(config(mode, secret))?;
                let id = self.fresh();
                let inbox = NotificationQueue::new(64);
                self.nodes.insert(id, Node { backend, key: EngineKey::default(), inbox });
                Ok(id.to_string())
            }
            ["attach", node, key, instance] => self.attach(node, key, instance),
            ["allocate", node, length, access] => {
                let length = usize::try_from(number(length)?).map_err(wrong)?;
                let region = Region::from_vec(vec![0; length], access_of(access)?)?;
                let (id, node) = (self.fresh(), number(node)?);
                self.regions.insert(id, (node, region));
                Ok(id.to_string())
            }
            ["register", region] => self.register(region),
            ["close", region, millis] => {
                let bound = Duration::from_millis(number(millis)?);
                self.region(region)?.1.close(bound, &Clock::system()).map(|()| String::new())
            }
            ["deregister", region] => {
                let (node, region) = self.region(region)?;
                let node = self.nodes.get(node).ok_or_else(|| wrong("no such node"))?;
                node.backend.deregister(region.id());
                Ok(String::new())
            }
            ["free", region] => {
                self.regions.remove(&number(region)?);
                Ok(String::new())
            }
            ["store", region, offset, file] => {
                let bytes = std::fs::read(file).map_err(wrong)?;
                self.region(region)?.1.write_at(number(offset)?, &bytes).map(|()| String::new())
            }
            ["load", region, offset, length, file] => {
                let mut bytes = vec![0; usize::try_from(number(length)?).map_err(wrong)?];
                self.region(region)?.1.read_at(number(offset)?, &mut bytes)?;
                std::fs::write(file, &bytes).map_err(wrong)?;
                Ok(String::new())
            }
            ["add_peer", node, desc] => {
                let desc = EngineDesc::unpack(&from_hex(desc)?)?;
                self.node(node)?.backend.add_peer(&desc).map(|()| String::new())
            }
            ["remove_peer", node, key] => {
                self.node(node)?.backend.remove_peer(&EngineKey::from(key));
                Ok(String::new())
            }
            ["inbox", node] => {
                let found = self.node(node)?.inbox.wait(Duration::from_secs(10));
                Ok(found.map_or(String::new(), |found| to_hex(&found.message)))
            }
            ["transfer", node, op, region, desc, ref pieces @ ..] => {
                self.transfer(node, op_of(op), region, desc, &pieces_of(pieces)?)
            }
            ["traffic", node, op, region, desc, ref pieces @ ..] => {
                self.traffic(node, op_of(op), region, desc, &pieces_of(pieces)?)
            }
            ["announce", node, region, desc] => {
                let desc = MemoryDesc::unpack(&from_hex(desc)?)?;
                let session = self.node(node)?.backend.session(&self.region(region)?.1, &desc)?;
                let notify = Some(Notify { message: b"announced".to_vec(), on_failure: true });
                let options = TransferOptions { notify, ..TransferOptions::default() };
                session.submit(Op::Write, &[Piece::new(0, 0, 64)], &options);
                Ok(String::new())
            }
            ["stop"] => {
                let Some((stop, threads)) = self.traffic.take() else { return Err(wrong("no traffic")) };
                stop.store(true, Ordering::Relaxed);
                let mut errors = threads.into_iter().map(|thread| thread.join());
                let first = errors.next().and_then(std::result::Result::ok);
                errors.for_each(drop);
                first.map_or_else(|| Ok(String::new()), Err)
            }
            ["suspend", node] => {
                self.node(node)?.backend.suspend(Duration::from_secs(5)).map(|()| String::new())
            }
            ["resume", node] => {
                self.node(node)?.backend.resume();
                Ok(String::new())
            }
            ["shutdown", node] => {
                self.node(node)?.backend.shutdown();
                Ok(String::new())
            }
            ["drop", node] => {
                self.nodes.remove(&number(node)?);
                Ok(String::new())
            }
            _ => Err(wrong(line)),
        }
    }

    fn transfer(&self, node: &str, op: Op, region: &str, desc: &str, pieces: &[Piece]) -> Result<String> {
        let desc = MemoryDesc::unpack(&from_hex(desc)?)?;
        let session = self.node(node)?.backend.session(&self.region(region)?.1, &desc)?;
        let status = session.submit(op, pieces, &TransferOptions::default());
        status.wait(Duration::from_secs(20));
        status.error().map_or_else(|| Ok(status.code().to_string()), Err)
    }

    /// Two threads submit one transfer after the other, until one fails or they are told to stop.
    fn traffic(&mut self, node: &str, op: Op, region: &str, desc: &str, pieces: &[Piece]) -> Result<String> {
        let desc = MemoryDesc::unpack(&from_hex(desc)?)?;
        let session = self.node(node)?.backend.session(&self.region(region)?.1, &desc)?;
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..2).map(|_| {
            let (session, stop, pieces) = (Arc::clone(&session), Arc::clone(&stop), pieces.to_vec());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let status = session.submit(op, &pieces, &TransferOptions::default());
                    status.wait(None);
                    if let Some(error) = status.error() {
                        return error;
                    }
                }
                Error::new(ErrorKind::Cancelled, "told to stop")
            })
        });
        let threads: Vec<_> = threads.collect();
        self.traffic = Some((stop, threads));
        Ok(String::new())
    }
}
