//! The two processes of a measurement: a serving process with scratch memory, and an engine of ours with a session to it.

use std::ffi::OsString;
use std::time::Duration;

use mori_engine::{
    Access, Engine, EngineDesc, MemoryDesc, Op as EngineOp, Piece, Session, Status, TransferOptions,
};

use super::args::BenchArgs;
use super::plan::Op;
use super::raw::RawClient;
use super::yardstick::{BareCopies, Yardstick};
use crate::args::Transport;
use crate::control::Secret;
use crate::failure::Failure;
use crate::link::{Launch, Server};
use crate::medium::{Medium, Pool};

/// What all repetitions have in common.
#[derive(Debug)]
pub struct Site {
    /// What bytes move over.
    pub medium: Medium,
    /// The secret of both sides.
    pub secret: Option<Secret>,
    /// How serving processes are started; none when there is a target.
    launch: Option<Launch>,
    /// The target's address.
    target: Option<String>,
    connections: u16,
    threads: u16,
    transport: Transport,
    /// Bytes of our memory.
    total: u64,
    baseline: bool,
    sessions: bool,
}

impl Site {
    /// What the command line asks for. Nothing is started yet.
    ///
    /// # Errors
    ///
    /// When this machine does not have it.
    pub fn new(args: &BenchArgs, secret: Option<Secret>) -> Result<Self, Failure> {
        let medium = Medium::of_replay(&args.link, secret.as_ref())?;
        let launch = match &args.target {
            Some(_) => None,
            None => Some(launch(args, &medium)?),
        };
        Ok(Self {
            medium,
            secret,
            launch,
            target: args.target.clone(),
            connections: args.link.connections,
            threads: args.link.threads,
            transport: args.link.transport,
            total: args.total(),
            baseline: args.baseline,
            sessions: !args.no_session,
        })
    }

    /// What a baseline is made of.
    pub fn yardstick(&self) -> &'static str {
        if self.transport == Transport::Shm { "copies" } else { "sockets" }
    }

    /// Starts a serving process, with further options, unless there is a target.
    ///
    /// # Errors
    ///
    /// When it does not get ready.
    pub fn server(&self, options: &[OsString]) -> Result<Server, Failure> {
        match (&self.launch, &self.target) {
            (Some(launch), _) => {
                let mut launch = launch.clone();
                launch.args.extend_from_slice(options);
                Server::start(launch)
            }
            (None, target) => Ok(Server::At(target.clone().unwrap_or_default())),
        }
    }

    /// A fresh pair.
    ///
    /// # Errors
    ///
    /// When the server cannot be started or reached, or does not have what is needed.
    pub fn pair(&self) -> Result<Pair, Failure> {
        self.connect(self.server(&[])?)
    }

    /// A fresh engine of ours, connected to a serving process.
    ///
    /// # Errors
    ///
    /// As [`Site::pair`].
    pub fn connect(&self, server: Server) -> Result<Pair, Failure> {
        let description = server.describe(self.secret.as_ref(), None).map_err(Failure::server)?;
        let address = server.address();
        let Some(scratch) = &description.scratch else {
            return Err(Failure::server(format!(
                "{address} has no memory for measurements; start it with --scratch {}",
                self.total
            )));
        };
        if scratch.bytes < self.total {
            return Err(Failure::server(format!(
                "{address} has {} bytes of scratch memory; start it with --scratch {}, or give --total {} here",
                scratch.bytes, self.total, scratch.bytes
            )));
        }
        let peer = EngineDesc::unpack(&description.engine).map_err(Failure::server)?;
        let source = MemoryDesc::unpack(&scratch.source).map_err(Failure::server)?;
        let sink = MemoryDesc::unpack(&scratch.sink).map_err(Failure::server)?;
        let near = self.near(&peer, source, sink)?;
        let raw = match (self.baseline, scratch.raw_port) {
            (false, _) => None,
            (true, _) if self.transport == Transport::Shm => {
                let local = near.local.memory().region().clone();
                let pid = description.pid;
                let copies = BareCopies::new(pid, local, &near.source, &near.sink, self.threads);
                Some(Yardstick::Copies(copies.map_err(Failure::server)?))
            }
            (true, Some(port)) => Some(Yardstick::Sockets(self.raw(host(address), port)?)),
            (true, None) => {
                return Err(Failure::server(format!(
                    "{address} does not listen for raw sockets; start it with --raw-listen, or leave out --baseline"
                )));
            }
        };
        let peer = format!("{address} (process {})", description.pid);
        tracing::info!(%peer, "connected");
        Ok(Pair { near, seed: description.seed, peer, raw, secret: self.secret.clone(), server })
    }

    /// An engine of ours with memory, that knows the peer.
    ///
    /// # Errors
    ///
    /// When there is too little memory, or the peer cannot be reached.
    pub fn near(&self, peer: &EngineDesc, source: MemoryDesc, sink: MemoryDesc) -> Result<Near, Failure> {
        let name = format!("mori-bench-{}-{:08x}", std::process::id(), getrandom::u32().unwrap_or(0));
        let engine = self.medium.engine(&name)?;
        let local = self.medium.buffer(&engine, self.total, Access::LOCAL)?;
        engine.add_peer(peer).map_err(Failure::server)?;
        let session = |remote: &MemoryDesc| engine.session(local.memory(), remote).map_err(Failure::server);
        let sessions = if self.sessions { Some((session(&source)?, session(&sink)?)) } else { None };
        Ok(Near { sessions, local, source, sink, peer: peer.clone(), engine })
    }

    fn raw(&self, host: &str, port: u16) -> Result<RawClient, Failure> {
        RawClient::connect(host, port, self.connections, self.total)
            .map_err(|error| Failure::server(format!("cannot connect raw sockets to {host}:{port}: {error}")))
    }
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// How a serving process for this measurement is started.
fn launch(args: &BenchArgs, medium: &Medium) -> Result<Launch, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::server(format!("cannot find this program to start it again: {error}")))?;
    let mut command: Vec<OsString> =
        ["serve", "--exit-with-parent", "--pool-blocks", "1", "--scratch"].map(OsString::from).into();
    command.push(args.total().to_string().into());
    if args.baseline && args.link.transport == Transport::Tcp {
        command.extend(["--raw-listen", "127.0.0.1:0"].map(OsString::from));
    }
    if !args.fault.is_empty() {
        // It loses its peer again and again, as it is meant to.
        command.push("--quiet".into());
    }
    let device = medium.server_device(&args.link, args.peer_device.as_deref())?;
    command.extend(args.link.of_server(device));
    Ok(Launch { program, args: command })
}

/// An engine of ours that knows a peer.
#[derive(Debug)]
pub struct Near {
    /// With the source and with the sink; none to go through the engine.
    sessions: Option<(Session, Session)>,
    /// Our memory.
    pub local: Pool,
    /// The peer's memory to read from.
    pub source: MemoryDesc,
    /// The peer's memory to write to.
    pub sink: MemoryDesc,
    /// The peer.
    pub peer: EngineDesc,
    /// The engine.
    pub engine: Engine,
}

impl Near {
    /// Submits a transfer with the source or the sink.
    pub fn submit(&self, op: Op, pieces: &[Piece], options: TransferOptions) -> Status {
        match (&self.sessions, op) {
            (Some((source, _)), Op::Read) => source.read_batch(pieces, options),
            (Some((_, sink)), Op::Write) => sink.write_batch(pieces, options),
            (None, Op::Read) => {
                self.engine.submit(EngineOp::Read, self.local.memory(), &self.source, pieces, options)
            }
            (None, Op::Write) => {
                self.engine.submit(EngineOp::Write, self.local.memory(), &self.sink, pieces, options)
            }
        }
    }

    /// Submits a transfer that reads from the sink what was written there.
    pub fn read_back(&self, pieces: &[Piece], options: TransferOptions) -> Status {
        match &self.sessions {
            Some((_, sink)) => sink.read_batch(pieces, options),
            None => self.engine.submit(EngineOp::Read, self.local.memory(), &self.sink, pieces, options),
        }
    }
}

/// Two processes that can be measured. The engine goes before the serving process does.
#[derive(Debug)]
pub struct Pair {
    /// Our side.
    pub near: Near,
    /// The seed of the source's pattern.
    pub seed: u64,
    /// The serving process, for people.
    pub peer: String,
    /// What is measured beside it, if anything.
    pub raw: Option<Yardstick>,
    secret: Option<Secret>,
    /// The serving process.
    pub server: Server,
}

impl Pair {
    /// Processor time that the serving process has used, if it can be asked.
    pub fn far_cpu(&self) -> Option<Duration> {
        let (seed, time) = self.server.usage(self.secret.as_ref()).ok()?;
        (seed == self.seed).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_stands_before_the_port() {
        for (address, name) in [("10.0.0.5:7000", "10.0.0.5"), ("[::1]:7000", "::1"), ("node-1:7", "node-1")]
        {
            assert_eq!(host(address), name);
        }
    }
}
