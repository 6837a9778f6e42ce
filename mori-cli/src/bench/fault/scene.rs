//! One broken transfer from the marks before it to the count after it.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use mori_engine::{Access, Clock, EngineDesc, ErrorKind, MemoryDesc, Piece, Status, TransferOptions};
use rustix::process::{Pid, Signal, kill_process};

use super::proxy::Proxy;
use super::{Ender, FaultKind, FaultReport};
use crate::bench::args::BenchArgs;
use crate::bench::measure::{Trouble, wait};
use crate::bench::pair::{Near, Pair, Site};
use crate::bench::plan::{Layout, Op, Row, Walk};
use crate::bench::verify::runs;
use crate::failure::Failure;
use crate::link::Server;
use crate::medium::Pool;
use crate::pattern::Pattern;
use crate::stop::Stop;

/// The size of a piece, where the total has room for many.
const PIECE: u64 = 64 << 10;
/// Pieces of the broken transfer at least.
const MIN_PIECES: u64 = 64;
/// The deadline of a transfer that is to end by it.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long a terminal state may take beyond the deadline and the time after which a silent peer is lost.
const GRACE: Duration = Duration::from_secs(20);
/// How long late bytes are waited for.
const SETTLE: Duration = Duration::from_millis(500);
/// Bytes of a later transfer.
const SPARE: u64 = 4096;
/// Where first bytes are looked for: the transfer in so many parts, the first bytes of each.
const PROBES: usize = 16;
const PROBE: u64 = 8;
/// Pieces that are marked or read back in one transfer.
const CHUNK: usize = 1024;

/// Everything for one broken transfer.
pub(super) struct Scene<'a> {
    args: &'a BenchArgs,
    site: &'a Site,
    stop: &'a Stop,
    fault: FaultKind,
    op: Op,
    ender: Ender,
    walk: Walk,
    bytes: u64,
    /// Of what the transfer moves; its complement is the mark.
    pattern: Pattern,
    /// Ours for later transfers, apart from the buffer.
    spare: Pool,
    /// A second engine that looks at the target's memory.
    observer: Near,
    pair: Pair,
    proxy: Option<Proxy>,
    clock: Clock,
}

impl<'a> Scene<'a> {
    /// Starts a target and two engines.
    ///
    /// # Errors
    ///
    /// When one of them cannot be started.
    pub(super) fn set(
        args: &'a BenchArgs,
        site: &'a Site,
        stop: &'a Stop,
        fault: FaultKind,
        op: Op,
        ender: Ender,
    ) -> Result<Self, Trouble> {
        let (server, proxy) = start(site, fault).map_err(Trouble::Failed)?;
        let pair = site.connect(server).map_err(Trouble::Failed)?;
        let near = &pair.near;
        let observer =
            site.near(&near.peer, near.source.clone(), near.sink.clone()).map_err(Trouble::Failed)?;
        let spare = site.medium.buffer(&near.engine, SPARE, Access::LOCAL).map_err(Trouble::Failed)?;
        let size = PIECE.min(args.total() / MIN_PIECES).max(PROBE);
        let row = Row { op, size, batch: (args.total() / size).max(1), layout: Layout::Scattered };
        let pattern = match op {
            Op::Read => Pattern::of_scratch(pair.seed),
            Op::Write => Pattern::new(getrandom::u64().unwrap_or(pair.seed), 0, 0),
        };
        Ok(Self {
            args,
            site,
            stop,
            fault,
            op,
            ender,
            walk: Walk::new(&row, args.total(), 1),
            bytes: row.bytes(),
            pattern,
            spare,
            observer,
            clock: near.engine.wait_policy().clock.clone(),
            pair,
            proxy,
        })
    }

    /// Breaks the transfer and counts; none when it was over too early to be broken.
    ///
    /// # Errors
    ///
    /// When something else than the broken transfer fails, or somebody asked to stop.
    pub(super) fn play(mut self) -> Result<Option<FaultReport>, Trouble> {
        self.mark_before()?;
        let options = TransferOptions {
            deadline: (self.ender == Ender::Deadline).then_some(DEADLINE),
            ..TransferOptions::default()
        };
        let status = self.pair.near.submit(self.op, self.walk.pieces(), options);
        if let Some(note) = unsupported(&status) {
            return Ok(Some(self.without(note)));
        }
        if !self.first_bytes(&status)? {
            return Ok(None);
        }
        let broken_at = self.clock.now();
        if let Some(note) = self.break_it(&status)? {
            return Ok(Some(self.without(note)));
        }
        let ended = self.wait_for_end(&status)?;
        let seconds = ended.then(|| self.clock.now().saturating_duration_since(broken_at).as_secs_f64());
        let copied_alone = self.copied_alone().filter(|_| status.is_success());
        if status.is_success() && copied_alone.is_none() {
            // The last bytes were on their way already.
            return Ok(None);
        }
        let (arrived_bytes, late_bytes, works_after) = self.after()?;
        let note = if let Some(note) = copied_alone {
            note
        } else if self.op == Op::Write && self.fault == FaultKind::Kill {
            "the target's memory is gone".to_owned()
        } else {
            String::new()
        };
        Ok(Some(FaultReport {
            fault: self.fault,
            op: self.op,
            ended_by: self.ender,
            total_bytes: self.bytes,
            arrived_bytes,
            status: name(&status),
            message: status.message(),
            seconds_to_end: seconds,
            late_bytes,
            works_after,
            note,
        }))
    }

    /// Where our own side copies, a target that is stopped is in nobody's way; then this says so.
    fn copied_alone(&self) -> Option<String> {
        let tcp = self.args.link.transport == crate::args::Transport::Tcp;
        (!tcp && self.fault != FaultKind::Cancel)
            .then(|| "the copy needs no help from the target's process".to_owned())
    }

    fn without(&self, note: String) -> FaultReport {
        FaultReport::without(self.fault, self.op, self.ender, self.bytes, note)
    }

    /// Where a piece's part of the pattern begins.
    fn position(&self, piece: &Piece) -> u64 {
        match self.op {
            Op::Read => piece.remote,
            Op::Write => piece.local,
        }
    }

    /// Fills pieces of a memory with the pattern, or with its complement, the mark.
    fn fill(&self, pool: &Pool, pieces: &[Piece], mark: bool) -> Result<(), Trouble> {
        for piece in pieces {
            let filled = runs(piece, |at, run| {
                self.expect(piece, at, run, mark);
                pool.write_at(piece.local + at, run).map_err(Failure::internal)
            });
            filled.map_err(Trouble::Failed)?;
        }
        Ok(())
    }

    fn expect(&self, piece: &Piece, at: u64, run: &mut [u8], mark: bool) {
        self.pattern.fill(self.position(piece) + at, run);
        if mark {
            run.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }

    /// Counts the bytes of pieces of a memory that do not have their mark.
    fn unmarked(&self, pool: &Pool, pieces: &[Piece]) -> Result<u64, Trouble> {
        let (mut count, mut expected) = (0, Vec::new());
        for piece in pieces {
            let looked = runs(piece, |at, run| {
                expected.resize(run.len(), 0);
                self.expect(piece, at, &mut expected, true);
                pool.read_at(piece.local + at, run).map_err(Failure::internal)?;
                if *run != *expected {
                    count += run.iter().zip(&expected).filter(|(found, mark)| found != mark).count() as u64;
                }
                Ok(())
            });
            looked.map_err(Trouble::Failed)?;
        }
        Ok(count)
    }

    /// Puts marks where the transfer will write to, and the pattern where it reads from.
    fn mark_before(&self) -> Result<(), Trouble> {
        match self.op {
            Op::Read => self.fill(&self.pair.near.local, self.walk.pieces(), true),
            Op::Write => {
                self.mark_target()?;
                self.fill(&self.pair.near.local, self.walk.pieces(), false)
            }
        }
    }

    /// Puts marks into the target's memory by writes of the observer.
    fn mark_target(&self) -> Result<(), Trouble> {
        let observer = &self.observer;
        self.fill(&observer.local, self.walk.pieces(), true)?;
        for chunk in self.walk.pieces().chunks(CHUNK) {
            let status = observer.submit(Op::Write, chunk, TransferOptions::default());
            wait(observer, &status, self.args.timeout, self.stop)?;
        }
        Ok(())
    }

    /// Counts the bytes of the target's memory that do not have their mark.
    fn unmarked_at_target(&self) -> Result<u64, Trouble> {
        let observer = &self.observer;
        let mut count = 0;
        for chunk in self.walk.pieces().chunks(CHUNK) {
            let status = observer.read_back(chunk, TransferOptions::default());
            wait(observer, &status, self.args.timeout, self.stop)?;
            count += self.unmarked(&observer.local, chunk)?;
        }
        Ok(count)
    }

    /// Looks until the first bytes have arrived; says whether the transfer is still under way then.
    fn first_bytes(&self, status: &Status) -> Result<bool, Trouble> {
        let pieces = self.walk.pieces();
        let every = (pieces.len() / PROBES).max(1);
        let probes: Vec<Piece> =
            pieces.iter().step_by(every).map(|piece| Piece { length: PROBE, ..*piece }).collect();
        let start = self.clock.now();
        while !is_over(status) {
            let arrived = match self.op {
                Op::Read => self.unmarked(&self.pair.near.local, &probes)?,
                Op::Write => {
                    let back = self.observer.read_back(&probes, TransferOptions::default());
                    wait(&self.observer, &back, self.args.timeout, self.stop)?;
                    self.unmarked(&self.observer.local, &probes)?
                }
            };
            if arrived > 0 {
                return Ok(!is_over(status));
            }
            if self.stop.asked() {
                return Err(Trouble::Stopped);
            }
            if self.clock.now().saturating_duration_since(start) > self.args.timeout {
                let message = format!("no byte arrived within {:?}: {}", self.args.timeout, status.message());
                return Err(Trouble::Failed(Failure { exit: crate::exit::Exit::Failed, message }));
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// Does the damage; says why not when the transport cannot do its part.
    fn break_it(&self, status: &Status) -> Result<Option<String>, Trouble> {
        match self.fault {
            FaultKind::Stop => self.signal(Signal::STOP)?,
            FaultKind::Kill => self.signal(Signal::KILL)?,
            FaultKind::Cut => self.proxy.iter().for_each(Proxy::cut),
            FaultKind::Cancel => {}
        }
        if self.ender == Ender::Cancel
            && let Err(error) = status.cancel()
        {
            // The target must not stay as it is while its transfer is waited for.
            self.go_on()?;
            return Ok(Some(error.to_string()));
        }
        Ok(None)
    }

    fn signal(&self, signal: Signal) -> Result<(), Trouble> {
        let pid = self.pair.server.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let sent = pid.map_or_else(
            || Err("the target was not started here".to_owned()),
            |pid| kill_process(pid, signal).map_err(|error| error.to_string()),
        );
        sent.map_err(|error| Trouble::Failed(Failure::internal(format!("cannot signal the target: {error}"))))
    }

    /// Lets a stopped target go on.
    fn go_on(&self) -> Result<(), Trouble> {
        if self.fault == FaultKind::Stop { self.signal(Signal::CONT) } else { Ok(()) }
    }

    /// Waits for the terminal state; false when it does not come.
    fn wait_for_end(&self, status: &Status) -> Result<bool, Trouble> {
        let bound = DEADLINE.saturating_add(self.args.link.peer_timeout).saturating_add(GRACE);
        match wait(&self.pair.near, status, bound, self.stop) {
            Err(Trouble::Stopped) => Err(Trouble::Stopped),
            // Failures are what is wanted here, and a state that does not come is told below.
            Ok(()) | Err(Trouble::Failed(_)) if is_over(status) => Ok(true),
            Ok(()) | Err(Trouble::Failed(_)) => {
                let message = format!(
                    "after {} the transfer did not end within {bound:?}: {}",
                    self.fault,
                    status.message()
                );
                Err(Trouble::Failed(Failure { exit: crate::exit::Exit::Failed, message }))
            }
        }
    }

    /// Marks anew, lets the target go on, and counts: bytes that had arrived, bytes that came late, and whether a later
    /// transfer works.
    fn after(&mut self) -> Result<(Option<u64>, Option<u64>, bool), Trouble> {
        let killed = self.fault == FaultKind::Kill;
        match self.op {
            Op::Read => {
                let near = &self.pair.near;
                // Counting and marking take a while. What changes meanwhile is seen at the starts of the pieces, the last
                // ones first, since they are the last to arrive.
                let starts = self.walk.pieces().iter().rev().map(|piece| Piece { length: PROBE, ..*piece });
                let starts: Vec<Piece> = starts.collect();
                let at_once = self.unmarked(&near.local, &starts)?;
                let arrived = self.unmarked(&near.local, self.walk.pieces())?;
                let early = self.unmarked(&near.local, &starts)?.saturating_sub(at_once);
                self.fill(&near.local, self.walk.pieces(), true)?;
                self.go_on()?;
                let works = self.works_after()?;
                self.settle()?;
                let late = self.unmarked(&self.pair.near.local, self.walk.pieces())?;
                Ok((Some(arrived), Some(late + early), works))
            }
            Op::Write if killed => Ok((None, None, self.works_after()?)),
            Op::Write => {
                self.go_on()?;
                let works = self.works_after()?;
                let arrived = self.unmarked_at_target()?;
                self.mark_target()?;
                self.settle()?;
                Ok((Some(arrived), Some(self.unmarked_at_target()?), works))
            }
        }
    }

    fn settle(&self) -> Result<(), Trouble> {
        if self.stop.wait(SETTLE) { Err(Trouble::Stopped) } else { Ok(()) }
    }

    /// A later transfer of the same engine, with the target or, when that is dead, with a new one.
    fn works_after(&mut self) -> Result<bool, Trouble> {
        let mut source = self.pair.near.source.clone();
        let mut seed = self.pair.seed;
        if self.fault == FaultKind::Kill {
            self.pair.server = self.site.server(&[]).map_err(Trouble::Failed)?;
            let description = self.pair.server.describe(self.site.secret.as_ref(), None);
            let description = description.map_err(Failure::server).map_err(Trouble::Failed)?;
            let unreadable = |error: mori_engine::Error| Trouble::Failed(Failure::server(error));
            let scratch = description.scratch.as_ref().map(|scratch| scratch.source.as_slice());
            source = MemoryDesc::unpack(scratch.unwrap_or_default()).map_err(unreadable)?;
            let peer = EngineDesc::unpack(&description.engine).map_err(unreadable)?;
            self.pair.near.engine.add_peer(&peer).map_err(unreadable)?;
            seed = description.seed;
        }
        let near = &self.pair.near;
        let options = TransferOptions::default();
        let status = near.engine.read(self.spare.memory(), 0, &source, 0, SPARE, options);
        match wait(near, &status, self.args.timeout, self.stop) {
            Err(Trouble::Stopped) => Err(Trouble::Stopped),
            Err(Trouble::Failed(failure)) => {
                tracing::warn!(%failure, "the later transfer failed");
                Ok(false)
            }
            Ok(()) => {
                let mut bytes = [0; SPARE as usize];
                let read = self.spare.read_at(0, &mut bytes).map_err(Failure::internal);
                read.map_err(Trouble::Failed)?;
                Ok(Pattern::of_scratch(seed).verify(0, &bytes).is_ok())
            }
        }
    }
}

/// The target, and a proxy in front of it when its connections are to be cut: both have one port, on two addresses of the
/// loopback, so that the target is reached through the proxy by the host that it advertises.
fn start(site: &Site, fault: FaultKind) -> Result<(Server, Option<Proxy>), Failure> {
    if fault != FaultKind::Cut {
        return Ok((site.server(&[])?, None));
    }
    let unbound = |error: std::io::Error| Failure::server(format!("cannot start a proxy: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(unbound)?;
    let port = listener.local_addr().map_err(unbound)?.port();
    let behind = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), port));
    let proxy = Proxy::start(listener, behind).map_err(unbound)?;
    let options = ["--data-listen", &behind.to_string(), "--advertise", "127.0.0.1"].map(OsString::from);
    Ok((site.server(&options)?, Some(proxy)))
}

fn is_over(status: &Status) -> bool {
    status.is_success() || status.is_failure()
}

/// What a transport says that cannot stop transfers.
fn unsupported(status: &Status) -> Option<String> {
    let error = status.error().filter(|error| error.kind() == ErrorKind::Unsupported)?;
    Some(error.message().to_owned())
}

/// How a transfer ended, in a word or two.
fn name(status: &Status) -> String {
    status.error().map_or_else(|| "success".to_owned(), |error| error.kind().to_string())
}
