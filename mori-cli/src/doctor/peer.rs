//! `--peer`: each transport tried with a running `mori serve`, with a few reads of several sizes, every byte checked.

use std::time::{Duration, Instant};

use mori_engine::{
    Access, Clock, Engine, EngineDesc, MemoryDesc, Piece, Secret as Shared, Session, ShmConfig, TcpConfig,
    TransferOptions,
};
use serde::Serialize;

use super::finding::{Finding, Findings, table};
use super::host::bytes;
use crate::control::{self, Answer, Description, Question, Secret};
use crate::exit::Exit;
use crate::layout::Layout;
use crate::medium::{Medium, Node, Pool};
use crate::pattern::Pattern;

/// The sizes that are read. What the peer's pool does not have is left out.
const SIZES: [u64; 3] = [8, 64 << 10, 1 << 20];
/// How often each is read; the fastest is told.
const ROUNDS: u32 = 5;

/// The transports of this program, the one that an engine prefers first, and how an engine with only that one is made.
type Maker = fn(Option<&Secret>, Duration) -> Result<Medium, String>;
const TRANSPORTS: [(&str, Maker); 3] = [("xgmi", xgmi), ("shm", shm), ("tcp", tcp)];

/// What was tried with a peer, and what came of it.
#[derive(Debug, Serialize)]
pub struct PeerReport {
    /// The address, as given.
    pub target: String,
    /// The steps in order.
    pub steps: Vec<Finding>,
    /// What the reads took.
    pub reads: Vec<Measured>,
    /// Which route an engine with all these transports takes, and why; none if the peer was not reached.
    pub route: Option<String>,
    /// Whether any transport works.
    pub usable: bool,
    #[serde(skip)]
    reached: bool,
    #[serde(skip)]
    wrong_bytes: bool,
}

/// One size over one transport.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The transport.
    pub transport: &'static str,
    /// Bytes of the read.
    pub bytes: u64,
    /// Microseconds of the fastest of a few.
    pub micros: f64,
}

impl PeerReport {
    /// The status that the program ends with.
    pub fn exit(&self) -> Exit {
        match (self.reached, self.wrong_bytes, self.usable) {
            (false, ..) => Exit::NoServer,
            (true, true, _) => Exit::WrongBytes,
            (true, false, false) => Exit::Failed,
            (true, false, true) => Exit::Ok,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = table(&self.steps);
        if let Some(route) = &self.route {
            text.push_str("\nroute\n");
            for line in route.lines() {
                text.push_str(&format!("  {line}\n"));
            }
        }
        text
    }
}

/// Why a transport does not work: at which step, and what was said there.
struct Stopped {
    step: &'static str,
    why: String,
    wrong_bytes: bool,
}

impl Stopped {
    fn at(step: &'static str) -> impl Fn(String) -> Self {
        move |why| Self { step, why, wrong_bytes: false }
    }
}

/// Tries everything within `bound`.
pub fn try_all(target: &str, secret: Option<&Secret>, bound: Duration) -> PeerReport {
    let clock = Clock::system();
    let until = clock.now() + bound;
    let mut steps = Findings::of("peer");
    let mut report = PeerReport {
        target: target.to_owned(),
        steps: Vec::new(),
        reads: Vec::new(),
        route: None,
        usable: false,
        reached: false,
        wrong_bytes: false,
    };
    match describe(target, secret, bound) {
        Err(why) => steps.absent(
            "answer",
            why,
            "start `mori serve --listen ADDRESS:PORT` there, and look at the address, the port and what filters between the two",
        ),
        Ok(peer) => {
            report.reached = true;
            steps.ok("answer", format!("{target} is process {} with {}", peer.description.pid, peer.pool()));
            for (name, make) in TRANSPORTS {
                let left = until.saturating_duration_since(clock.now());
                let tried = peer.offers(name).and_then(|()| {
                    let medium = make(secret, left).map_err(Stopped::at("this side"))?;
                    peer.read_over(name, &medium, &clock, until)
                });
                match tried {
                    Ok(reads) => {
                        report.usable = true;
                        let told = reads.iter().map(|read| format!("{} in {:.0} µs", bytes(read.bytes), read.micros));
                        steps.ok(name, told.collect::<Vec<_>>().join(", "));
                        report.reads.extend(reads);
                    }
                    Err(stopped) => {
                        report.wrong_bytes |= stopped.wrong_bytes;
                        steps.absent(name, format!("{}: {}", stopped.step, stopped.why), "");
                    }
                }
            }
            let left = until.saturating_duration_since(clock.now());
            report.route = Some(peer.route(secret, left).unwrap_or_else(|why| format!("cannot tell: {why}")));
        }
    }
    report.steps = steps.into_list();
    report
}

/// A serving process that has said what it has.
struct Peer {
    description: Description,
    engine: EngineDesc,
    memory: MemoryDesc,
    layout: Layout,
}

fn describe(target: &str, secret: Option<&Secret>, bound: Duration) -> Result<Peer, String> {
    let answer =
        control::ask(target, Question::Describe, secret, bound).map_err(|error| error.to_string())?;
    let Answer::Description(description) = answer else {
        return Err(format!("{target} does not say what it serves"));
    };
    let engine = EngineDesc::unpack(&description.engine).map_err(|error| error.to_string())?;
    let memory = MemoryDesc::unpack(&description.memory).map_err(|error| error.to_string())?;
    let layout = description.layout()?;
    if memory.size < layout.total_bytes() {
        return Err(format!(
            "{target} has {} for a pool of {}",
            bytes(memory.size),
            bytes(layout.total_bytes())
        ));
    }
    Ok(Peer { description, engine, memory, layout })
}

impl Peer {
    fn pool(&self) -> String {
        format!("{} blocks of {}", self.layout.slots(), bytes(self.layout.shape().block_bytes()))
    }

    fn offers(&self, transport: &str) -> Result<(), Stopped> {
        if self.engine.blob(transport).is_some() {
            return Ok(());
        }
        let theirs: Vec<&str> = self.engine.transports.iter().map(|blob| blob.transport.as_str()).collect();
        Err(Stopped::at("the peer")(format!(
            "it does not offer {transport}, only {}; start it with --transport {transport}",
            theirs.join(", ")
        )))
    }

    /// As many slots as the largest read needs.
    fn local_layout(&self) -> Result<Layout, String> {
        let block = self.layout.shape().block_bytes().max(1);
        let largest = SIZES.into_iter().max().unwrap_or(1);
        let slots = u32::try_from(largest.div_ceil(block)).unwrap_or(u32::MAX).min(self.layout.slots());
        Layout::new(*self.layout.shape(), slots).map_err(|error| error.to_string())
    }

    fn session(&self, medium: &Medium, local: &Layout) -> Result<(Engine, Pool, Session), Stopped> {
        let name = format!("mori-doctor-{}-{:08x}", std::process::id(), getrandom::u32().unwrap_or(0));
        let node = medium.node(&name, local, Access::LOCAL);
        let Node { engine, pool } = node.map_err(|failure| Stopped::at("this side")(failure.message))?;
        engine.add_peer(&self.engine).map_err(|error| Stopped::at("descriptor")(error.to_string()))?;
        let session = engine.session(pool.memory(), &self.memory);
        let session = session.map_err(|error| Stopped::at("connecting")(error.to_string()))?;
        Ok((engine, pool, session))
    }

    fn read_over(
        &self,
        transport: &'static str,
        medium: &Medium,
        clock: &Clock,
        until: Instant,
    ) -> Result<Vec<Measured>, Stopped> {
        let local = self.local_layout().map_err(Stopped::at("this side"))?;
        let (engine, pool, session) = self.session(medium, &local)?;
        let mut reads = Vec::new();
        for size in SIZES {
            let places = self.places(&local, size);
            if places.iter().map(|(_, _, piece)| piece.length).sum::<u64>() < size {
                continue;
            }
            let pieces: Vec<Piece> = places.iter().map(|(_, _, piece)| *piece).collect();
            let mut fastest = Duration::MAX;
            for _ in 0..ROUNDS {
                let before = clock.now();
                let left = until.saturating_duration_since(before);
                let status = session.read_batch(&pieces, TransferOptions::default());
                engine.wait_all(&[&status], left);
                fastest = fastest.min(clock.now().saturating_duration_since(before));
                if !status.is_success() {
                    let why = status
                        .error()
                        .map_or_else(|| "it was not over in time".to_owned(), |error| error.to_string());
                    return Err(Stopped::at("transfer")(format!("a read of {}: {why}", bytes(size))));
                }
            }
            self.check(&pool, &places, size)?;
            reads.push(Measured { transport, bytes: size, micros: fastest.as_secs_f64() * 1e6 });
        }
        engine.shutdown();
        Ok(reads)
    }

    /// The first `size` bytes of the pool's blocks: slot, number of the piece, and where it goes.
    fn places(&self, local: &Layout, size: u64) -> Vec<(u32, u32, Piece)> {
        let mut left = size;
        let mut places = Vec::new();
        for slot in 0..local.slots() {
            let pairs = local.pieces(slot).zip(self.layout.pieces(slot));
            for (number, (to, from)) in (0..).zip(pairs) {
                if left == 0 {
                    return places;
                }
                let length = from.len.min(left);
                places.push((slot, number, Piece::new(to.offset, from.offset, length)));
                left -= length;
            }
        }
        places
    }

    fn check(&self, pool: &Pool, places: &[(u32, u32, Piece)], size: u64) -> Result<(), Stopped> {
        let mut got = Vec::new();
        for (slot, number, piece) in places {
            got.resize(usize::try_from(piece.length).unwrap_or(usize::MAX), 0);
            pool.read_at(piece.local, &mut got)
                .map_err(|error| Stopped::at("transfer")(error.to_string()))?;
            if let Err(wrong) = Pattern::new(self.description.seed, *slot, *number).verify(0, &got) {
                return Err(Stopped {
                    step: "transfer",
                    why: format!(
                        "a read of {}: byte {} of piece {number} of block {slot} is {:#04x} and must be {:#04x}",
                        bytes(size),
                        wrong.position,
                        wrong.found,
                        wrong.expected
                    ),
                    wrong_bytes: true,
                });
            }
        }
        Ok(())
    }

    /// What an engine with all transports of this machine would do, for memory of the peer's kind.
    fn route(&self, secret: Option<&Secret>, left: Duration) -> Result<String, String> {
        let name = "mori-doctor";
        let tcp = tcp_config(secret, left)?;
        let device = self.memory.location().is_some_and(|location| !location.is_host());
        let medium = if device { xgmi(secret, left) } else { Err(String::new()) };
        let (engine, medium, absent) = match medium {
            Ok(medium) => {
                let engine = medium.engine(name).map_err(|failure| failure.message)?;
                engine.add_tcp(tcp).map_err(|error| error.to_string())?;
                (engine, medium, None)
            }
            Err(_) => {
                let medium = Medium::tcp(tcp);
                let engine = medium.engine(name).map_err(|failure| failure.message)?;
                let absent = engine.add_xgmi(mori_engine::XgmiConfig::default()).err();
                (engine, medium, absent)
            }
        };
        let no_copies = engine.add_shm(shm_config(secret, left)?).err();
        engine.add_peer(&self.engine).map_err(|error| error.to_string())?;
        let pool = medium.buffer(&engine, 4096, Access::LOCAL).map_err(|failure| failure.message)?;
        let mut text = engine.explain(pool.memory(), &self.memory).to_string();
        for (transport, error) in [("xgmi", absent), ("shm", no_copies)] {
            if let Some(error) = error {
                text.push_str(&format!("\n  {transport}: not on this machine, because {}", error.message()));
            }
        }
        engine.shutdown();
        Ok(text)
    }
}

fn tcp_config(secret: Option<&Secret>, left: Duration) -> Result<TcpConfig, String> {
    if left.is_zero() {
        return Err("the time is up".to_owned());
    }
    let secret = secret.map(|secret| Shared::new(secret.bytes()));
    Ok(TcpConfig { secret, connect_timeout: left, ..TcpConfig::default() })
}

fn tcp(secret: Option<&Secret>, left: Duration) -> Result<Medium, String> {
    tcp_config(secret, left).map(Medium::tcp)
}

fn shm_config(secret: Option<&Secret>, left: Duration) -> Result<ShmConfig, String> {
    if left.is_zero() {
        return Err("the time is up".to_owned());
    }
    let secret = secret.map(|secret| Shared::new(secret.bytes()));
    let connect_timeout = left.max(Duration::from_millis(1));
    Ok(ShmConfig { secret, connect_timeout, ..ShmConfig::default() })
}

fn shm(secret: Option<&Secret>, left: Duration) -> Result<Medium, String> {
    shm_config(secret, left).map(Medium::shm)
}

fn xgmi(_: Option<&Secret>, left: Duration) -> Result<Medium, String> {
    if left.is_zero() {
        return Err("the time is up".to_owned());
    }
    Medium::xgmi(0).map_err(|failure| failure.message)
}
