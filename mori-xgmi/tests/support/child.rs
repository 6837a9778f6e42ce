//! The other process: it obeys commands, one a line, and answers each with a line that starts with `@`.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc,
    NotificationQueue, Op, Piece, Region, Repoll, Result, Status, TransferOptions, WaitPolicy,
};
use mori_xgmi::{Completion, XgmiBackend};

use super::{MACHINE, config};

/// Asks the process to be the child.
pub(crate) const VARIABLE: &str = "MORI_XGMI_TEST_CHILD";

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

#[derive(Default)]
struct Child {
    nodes: HashMap<u64, Node>,
    regions: HashMap<u64, (u64, Region)>,
    last: u64,
}

struct Node {
    backend: Arc<XgmiBackend>,
    key: EngineKey,
}

fn wrong(what: impl std::fmt::Display) -> Error {
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
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(*byte));
    }
    text
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

    /// Registers a region, and says its number and its descriptor.
    fn register(&self, number: u64) -> Result<String> {
        let (node, region) = self.regions.get(&number).ok_or_else(|| wrong("no such region"))?;
        let node = self.nodes.get(node).ok_or_else(|| wrong("no such node"))?;
        let mut desc = MemoryDesc::for_region(&node.key, region);
        desc.transports.extend(node.backend.register(region)?);
        Ok(to_hex(&desc.pack()))
    }

    fn obey(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["node", mode] => {
                let completion =
                    if mode == "callback" { Completion::HostCallback } else { Completion::EventQuery };
                let backend = XgmiBackend::new(config(completion))?;
                let id = self.fresh();
                self.nodes.insert(id, Node { backend, key: EngineKey::from("unattached") });
                Ok(id.to_string())
            }
            ["attach", node, key, instance, node_id] => {
                let instance = from_hex(instance)?.try_into().map_err(|_| wrong("instance"))?;
                let key = EngineKey::from(key);
                let attachment = self.node(node)?.backend.attach(BackendContext {
                    engine: key.clone(),
                    instance,
                    node_id: node_id.to_owned(),
                    notifications: NotificationQueue::new(16),
                })?;
                if let Some(node) = self.nodes.get_mut(&number(node)?) {
                    node.key = key.clone();
                }
                let desc = EngineDesc {
                    key,
                    node_id: node_id.to_owned(),
                    transports: attachment.blob.into_iter().collect(),
                    ..EngineDesc::default()
                };
                Ok(to_hex(&desc.pack()))
            }
            ["allocate", node, device, length, access] => {
                let device = u32::try_from(number(device)?).map_err(wrong)?;
                let length = usize::try_from(number(length)?).map_err(wrong)?;
                let region = MACHINE.1.allocate(device, length, access_of(access)?)?;
                let (id, node) = (self.fresh(), number(node)?);
                self.regions.insert(id, (node, region));
                Ok(id.to_string())
            }
            ["view", region, offset, length, access] => {
                let (node, whole) = self.region(region)?.clone();
                let view = MACHINE.1.view(&whole, number(offset)?, number(length)?, access_of(access)?)?;
                let id = self.fresh();
                self.regions.insert(id, (node, view));
                Ok(id.to_string())
            }
            ["register", region] => self.register(number(region)?),
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
                MACHINE.1.upload(&self.region(region)?.1, number(offset)?, &bytes).map(|()| String::new())
            }
            ["load", region, offset, length, file] => {
                let mut bytes = vec![0; usize::try_from(number(length)?).map_err(wrong)?];
                MACHINE.1.download(&self.region(region)?.1, number(offset)?, &mut bytes)?;
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
            ["transfer", node, op, region, desc, ref pieces @ ..] => {
                self.transfer(node, op, region, desc, pieces)
            }
            ["shutdown", node] => {
                self.node(node)?.backend.shutdown();
                Ok(String::new())
            }
            ["drop", node] => {
                self.nodes.remove(&number(node)?);
                Ok(String::new())
            }
            ["sim", ..] => MACHINE.0.command(line.trim_start_matches("sim ")).map_err(wrong),
            ["misuse"] => {
                let report = MACHINE.0.report().map_err(wrong)?;
                Ok(format!("{:?}", report.misuse))
            }
            _ => Err(wrong(line)),
        }
    }

    fn transfer(&self, node: &str, op: &str, region: &str, desc: &str, pieces: &[&str]) -> Result<String> {
        let op = if op == "read" { Op::Read } else { Op::Write };
        let desc = MemoryDesc::unpack(&from_hex(desc)?)?;
        let numbers = pieces.iter().map(|text| number(text)).collect::<Result<Vec<u64>>>()?;
        let pieces: Vec<Piece> =
            numbers.chunks_exact(3).map(|piece| Piece::new(piece[0], piece[1], piece[2])).collect();
        let session = self.node(node)?.backend.session(&self.region(region)?.1, &desc)?;
        let status: Status = session.submit(op, &pieces, &TransferOptions::default());
        let patient = WaitPolicy { repoll: Repoll::BACKOFF, ..WaitPolicy::DEFAULT };
        status.wait_with(Duration::from_secs(20), &patient);
        match status.error() {
            None => Ok(status.code().to_string()),
            Some(error) => Err(error),
        }
    }
}
