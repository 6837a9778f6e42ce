//! The fetcher over the engine: one serving process, one session, one batch of reads for each request.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use mori_engine::{
    Access, Clock, Engine, EngineDesc, EngineKey, Error, ErrorKind, MemoryDesc, Piece, Session, Status,
    TransferOptions,
};

use crate::child::ServeChild;
use crate::control::{self, Answer, ControlError, Description, Question, Secret};
use crate::failure::Failure;
use crate::fetch::{BlockRead, FailureKind, Fetcher, Outcome, ReconnectError, Remote};
use crate::layout::Layout;
use crate::medium::{Medium, Node, Pool};
use crate::stop::Stop;

/// How long a serving process may take to answer a question.
const ANSWER: Duration = Duration::from_secs(5);
/// The same while a lost one is looked for: the next try follows soon.
const ANSWER_AGAIN: Duration = Duration::from_secs(2);
/// A wait looks this often whether somebody asked to stop.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// How long cancelled transfers may take to become quiet before their slots are kept back.
const SETTLE: Duration = Duration::from_secs(1);
/// Bytes that are shown at a time.
const RUN_BYTES: usize = 16 << 10;
/// Bytes at each end of a range that are spoilt.
const SPOIL_BYTES: u64 = 8;

/// How a serving process that ends with us is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// Where the serving process is.
#[derive(Debug)]
pub enum Server {
    /// It runs at this address.
    At(String),
    /// It is started here.
    Own {
        /// How.
        launch: Launch,
        /// The one that runs; none between two.
        child: Option<ServeChild>,
    },
}

impl Server {
    /// Starts a serving process of our own.
    ///
    /// # Errors
    ///
    /// When it does not get ready.
    pub fn start(launch: Launch) -> Result<Self, Failure> {
        let child = ServeChild::start(&launch.program, &launch.args).map_err(Failure::server)?;
        Ok(Self::Own { launch, child: Some(child) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> &str {
        match self {
            Self::At(address) => address,
            Self::Own { child, .. } => child.as_ref().map_or("(not running)", ServeChild::address),
        }
    }

    /// Starts it again if it is ours.
    fn start_again(&mut self) -> Result<(), ReconnectError> {
        if let Self::Own { launch, child } = self {
            // The old one is gone or of no use; it must not outlive its successor.
            *child = None;
            let new = ServeChild::start(&launch.program, &launch.args);
            *child = Some(new.map_err(|error| ReconnectError::NotYet(error.to_string()))?);
        }
        Ok(())
    }

    /// What it serves.
    ///
    /// # Errors
    ///
    /// What the control exchange says.
    pub fn describe(
        &self,
        secret: Option<&Secret>,
        bound: Option<Duration>,
    ) -> Result<Description, ControlError> {
        let target = self.address();
        match control::ask(target, Question::Describe, secret, bound.unwrap_or(ANSWER))? {
            Answer::Description(description) => Ok(description),
            other => Err(beside_the_question(target, &other)),
        }
    }

    /// Its process id, if it was started here and runs.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::At(_) => None,
            Self::Own { child, .. } => child.as_ref().map(ServeChild::pid),
        }
    }

    /// Its seed, and the processor time that it has used.
    ///
    /// # Errors
    ///
    /// What the control exchange says.
    pub fn usage(&self, secret: Option<&Secret>) -> Result<(u64, Duration), ControlError> {
        let target = self.address();
        match control::ask(target, Question::Usage, secret, ANSWER_AGAIN)? {
            Answer::Usage(usage) => Ok((usage.seed, Duration::from_micros(usage.cpu_micros))),
            other => Err(beside_the_question(target, &other)),
        }
    }
}

fn beside_the_question(target: &str, answer: &Answer) -> ControlError {
    ControlError::Foreign { target: target.to_owned(), what: format!("it answers {answer:?}") }
}

/// A session with the serving process as it is now.
#[derive(Debug)]
struct Link {
    session: Session,
    key: EngineKey,
    remote: Remote,
    /// Processor time that the process had used when we met it.
    cpu_before: Option<Duration>,
}

/// Reads blocks through an engine.
#[derive(Debug)]
pub struct EngineFetcher {
    engine: Engine,
    pool: Pool,
    layout: Layout,
    link: Link,
    server: Server,
    secret: Option<Secret>,
    stop: Stop,
    clock: Clock,
    scratch: Vec<u8>,
    /// Transfers that were cancelled and are not quiet yet, with the slots that they write to.
    restless: Vec<(u32, Status)>,
}

impl EngineFetcher {
    /// Makes an engine with a local pool, and connects it to the serving process that was described.
    ///
    /// # Errors
    ///
    /// When the pool does not fit, or the process cannot be reached.
    pub fn new(
        medium: &Medium,
        layout: Layout,
        server: Server,
        description: &Description,
        secret: Option<Secret>,
        stop: Stop,
    ) -> Result<Self, Failure> {
        let name = format!("mori-replay-{}-{:08x}", std::process::id(), getrandom::u32().unwrap_or(0));
        let Node { engine, pool } = medium.node(&name, &layout, Access::LOCAL)?;
        let link = connect(&engine, &pool, &server, description, secret.as_ref()).map_err(Failure::server)?;
        Ok(Self {
            clock: engine.wait_policy().clock.clone(),
            engine,
            pool,
            layout,
            link,
            server,
            secret,
            stop,
            scratch: vec![0; RUN_BYTES],
            restless: Vec::new(),
        })
    }

    /// Processor time that the serving process has used for us, if it can still be asked. If it was restarted, only the
    /// last one is known.
    pub fn server_cpu(&self) -> Option<Duration> {
        let (seed, now) = self.server.usage(self.secret.as_ref()).ok()?;
        let before = self.link.cpu_before.filter(|_| seed == self.link.remote.seed)?;
        Some(now.saturating_sub(before))
    }

    /// Waits for all, at most for `bound`, in short waits so that a request to stop is seen. Says whether to stop.
    fn wait(&self, statuses: &[Status], bound: Duration) -> bool {
        let start = self.clock.now();
        loop {
            let left = bound.saturating_sub(self.clock.now().saturating_duration_since(start));
            let outcome = self.engine.wait_all(statuses, left.min(STOP_LOOK));
            if outcome.all_quiet() || left.is_zero() {
                return false;
            }
            if self.stop.asked() {
                return true;
            }
        }
    }

    /// Stops what is unfinished, and remembers what does not become quiet soon.
    fn cancel(&mut self, reads: &[BlockRead], statuses: &[Status], unfinished: &[bool]) {
        let restless: Vec<(u32, Status)> = reads
            .iter()
            .zip(statuses)
            .zip(unfinished)
            .filter(|(_, unfinished)| **unfinished)
            .map(|((read, status), _)| (read.slot, status.clone()))
            .collect();
        for (_, status) in &restless {
            if let Err(error) = status.cancel() {
                tracing::debug!(%error, "cannot cancel a transfer; its slot is kept back until it ends");
            }
        }
        let statuses: Vec<Status> = restless.iter().map(|(_, status)| status.clone()).collect();
        self.engine.wait_all(&statuses, SETTLE);
        self.restless.extend(restless.into_iter().filter(|(_, status)| !is_quiet(status)));
    }
}

fn is_quiet(status: &Status) -> bool {
    status.is_success() || status.is_failure()
}

/// Makes the peer known and opens a session with its pool.
fn connect(
    engine: &Engine,
    pool: &Pool,
    server: &Server,
    description: &Description,
    secret: Option<&Secret>,
) -> Result<Link, String> {
    let address = server.address();
    let layout = description.layout().map_err(|what| format!("{address} serves no pool: {what}"))?;
    let peer = EngineDesc::unpack(&description.engine).map_err(|error| error.to_string())?;
    let memory = MemoryDesc::unpack(&description.memory).map_err(|error| error.to_string())?;
    if memory.size < layout.total_bytes() {
        return Err(format!("{address} has {} bytes for a pool of {}", memory.size, layout.total_bytes()));
    }
    let before = server.usage(secret).ok().filter(|(seed, _)| *seed == description.seed);
    engine.add_peer(&peer).map_err(|error| error.to_string())?;
    let session = engine.session(pool.memory(), &memory).map_err(|error| error.to_string())?;
    tracing::info!(%address, pid = description.pid, backend = session.backend(), "connected");
    let remote = Remote {
        peer: format!("{address} (process {})", description.pid),
        layout,
        seed: description.seed,
        transport: session.backend().to_owned(),
        detour: detour(engine, pool, &memory),
    };
    Ok(Link { session, key: peer.key, remote, cpu_before: before.map(|(_, time)| time) })
}

/// Why there are no copies between processes, if the engine could make them and does not.
fn detour(engine: &Engine, pool: &Pool, memory: &MemoryDesc) -> Option<String> {
    let report = engine.explain(pool.memory(), memory);
    let direct = report.considered.into_iter().find(|considered| considered.backend == "shm")?;
    direct.verdict.err().map(|why| why.message().to_owned())
}

impl Fetcher for EngineFetcher {
    fn remote(&self) -> &Remote {
        &self.link.remote
    }

    fn read_blocks(&mut self, reads: &[BlockRead], bound: Duration) -> Vec<Outcome> {
        let mut pieces = Vec::new();
        let statuses: Vec<Status> = reads
            .iter()
            .map(|read| {
                pieces.clear();
                pieces
                    .extend(read.pieces.iter().map(|piece| Piece::new(piece.local, piece.remote, piece.len)));
                self.link.session.read_batch(&pieces, TransferOptions::tagged(read.block))
            })
            .collect();
        let stopped = self.wait(&statuses, bound);
        // What is unfinished now stays late, even if it arrives while it is being cancelled.
        let unfinished: Vec<bool> = statuses.iter().map(|status| !is_quiet(status)).collect();
        if unfinished.contains(&true) {
            self.cancel(reads, &statuses, &unfinished);
        }
        let outcome = |(status, unfinished): (&Status, &bool)| match (unfinished, stopped) {
            (true, true) => Outcome::Interrupted { quiet: is_quiet(status) },
            (true, false) => Outcome::Late { message: late(status, bound), quiet: is_quiet(status) },
            (false, _) => match status.error() {
                None => Outcome::Arrived,
                Some(error) => Outcome::Failed { kind: kind(&error), message: words(&error) },
            },
        };
        statuses.iter().zip(&unfinished).map(outcome).collect()
    }

    fn take_quiet(&mut self) -> Vec<u32> {
        let (quiet, restless) =
            std::mem::take(&mut self.restless).into_iter().partition(|(_, status)| is_quiet(status));
        self.restless = restless;
        let quiet: Vec<(u32, Status)> = quiet;
        quiet.into_iter().map(|(slot, _)| slot).collect()
    }

    fn inspect(
        &mut self,
        offset: u64,
        len: u64,
        look: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let mut position = 0;
        while position < len {
            let count = (len - position).min(RUN_BYTES as u64);
            let run = self.scratch.get_mut(..count as usize).unwrap_or_default();
            self.pool.read_at(offset + position, run).map_err(|error| error.to_string())?;
            if look(position, run).is_break() {
                break;
            }
            position += count;
        }
        Ok(())
    }

    fn spoil(&mut self, offset: u64, len: u64) -> Result<(), String> {
        let count = len.min(SPOIL_BYTES);
        for at in [offset, offset + (len - count)] {
            let mut bytes = [0; SPOIL_BYTES as usize];
            let bytes = bytes.get_mut(..count as usize).unwrap_or_default();
            // The complement of what stands there is never what stood there.
            self.pool.read_at(at, bytes).map_err(|error| error.to_string())?;
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            self.pool.write_at(at, bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn reconnect(&mut self) -> Result<(), ReconnectError> {
        let not_yet = |message: String| ReconnectError::NotYet(message);
        let mut description = self.server.describe(self.secret.as_ref(), Some(ANSWER_AGAIN));
        if matches!(self.server, Server::Own { .. }) && description.is_err() {
            self.server.start_again()?;
            description = self.server.describe(self.secret.as_ref(), Some(ANSWER_AGAIN));
        }
        let description = description.map_err(|error| {
            let text = error.to_string();
            match error {
                ControlError::Foreign { .. }
                | ControlError::Version { .. }
                | ControlError::SecretNeeded { .. }
                | ControlError::NoSecretThere { .. }
                | ControlError::WrongSecret { .. } => ReconnectError::Never(text),
                _ => ReconnectError::NotYet(text),
            }
        })?;
        let layout = description.layout().map_err(ReconnectError::Never)?;
        if layout.shape() != self.layout.shape() {
            let message =
                format!("it now serves blocks of {}, not of {}", layout.shape(), self.layout.shape());
            return Err(ReconnectError::Never(message));
        }
        if description.seed != self.link.remote.seed {
            // Another process has taken its place. If the old one is forgotten already, so much the better.
            if let Err(error) = self.engine.remove_peer(&self.link.key) {
                tracing::debug!(%error, "the lost peer was not known any more");
            }
        }
        self.link = connect(&self.engine, &self.pool, &self.server, &description, self.secret.as_ref())
            .map_err(not_yet)?;
        Ok(())
    }
}

fn late(status: &Status, bound: Duration) -> String {
    let message = status.message();
    if message.is_empty() {
        format!("not there after {bound:?}")
    } else {
        format!("not there after {bound:?}: {message}")
    }
}

/// The error in words; its kind is left out where ours says the same.
fn words(error: &Error) -> String {
    match kind(error) {
        FailureKind::PeerLost | FailureKind::Late => error.message().to_owned(),
        _ => error.to_string(),
    }
}

fn kind(error: &Error) -> FailureKind {
    match error.kind() {
        ErrorKind::PeerLost => FailureKind::PeerLost,
        ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::AccessDenied => FailureKind::Refused,
        ErrorKind::TimedOut => FailureKind::Late,
        _ => FailureKind::Transport,
    }
}
