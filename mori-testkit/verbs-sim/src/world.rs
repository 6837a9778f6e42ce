//! The state of the simulation, one for the process, and how calls enter it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use crate::config::Config;
use crate::faults::Faults;
use crate::types::{ibv_qp_cap, ibv_sge, ibv_wc};

/// An object of the library's, by its address. Addresses are never used again, so that late use is noticed.
pub(crate) type Handle = usize;

/// Everything.
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) devices: Vec<Device>,
    pub(crate) lists: BTreeSet<Handle>,
    pub(crate) contexts: HashMap<Handle, Context>,
    pub(crate) domains: HashMap<Handle, Domain>,
    pub(crate) regions: HashMap<Handle, Region>,
    pub(crate) channels: HashMap<Handle, Channel>,
    pub(crate) completions: HashMap<Handle, Completions>,
    pub(crate) pairs: HashMap<Handle, Pair>,
    /// What was destroyed, with the kind of each.
    pub(crate) gone: HashMap<Handle, &'static str>,
    pub(crate) faults: Faults,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) misuse: Vec<String>,
    /// Whether no send queue is worked on.
    pub(crate) held: bool,
    /// Whether completions stay invisible in their queues.
    pub(crate) withheld: bool,
    /// Whether there is something for the thread to do.
    pub(crate) dirty: bool,
}

/// A device.
pub(crate) struct Device {
    /// The structure that the list points to.
    pub(crate) raw: Handle,
    pub(crate) name: String,
    pub(crate) ports: Vec<Port>,
    /// Whether it has failed for good.
    pub(crate) dead: bool,
    pub(crate) next_key: u32,
}

/// A port of a device.
pub(crate) struct Port {
    pub(crate) up: bool,
    pub(crate) lid: u16,
    pub(crate) gids: Vec<Gid>,
}

/// A line of a port's table.
#[derive(Clone, Copy)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
    pub(crate) kind: u32,
}

pub(crate) struct Context {
    pub(crate) device: usize,
    /// The reading and the writing end of the pipe behind its events.
    pub(crate) pipe: (c_int, c_int),
    pub(crate) events: VecDeque<Event>,
}

/// Something that happened by itself, and is not read yet.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) kind: u32,
    /// A handle or a port.
    pub(crate) element: usize,
}

pub(crate) struct Domain {
    pub(crate) context: Handle,
}

pub(crate) struct Region {
    pub(crate) domain: Handle,
    pub(crate) device: usize,
    /// The address that work requests use.
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// Where the bytes are.
    pub(crate) base: usize,
    pub(crate) access: u32,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
    /// The start and the length of the mapping of a dmabuf.
    pub(crate) mapping: Option<(usize, usize)>,
}

pub(crate) struct Channel {
    pub(crate) context: Handle,
    pub(crate) pipe: (c_int, c_int),
}

pub(crate) struct Completions {
    pub(crate) context: Handle,
    pub(crate) channel: Option<Handle>,
    pub(crate) capacity: usize,
    pub(crate) entries: VecDeque<Entry>,
    /// Armed for solicited completions only, for any, or not.
    pub(crate) armed: Option<bool>,
    pub(crate) broken: bool,
    pub(crate) unacknowledged: u32,
    pub(crate) unacknowledged_async: u32,
}

/// A completion in its queue.
pub(crate) struct Entry {
    pub(crate) wc: ibv_wc,
    pub(crate) pair: Handle,
    pub(crate) is_send: bool,
    pub(crate) sequence: u64,
}

/// A queue pair.
pub(crate) struct Pair {
    pub(crate) context: Handle,
    pub(crate) device: usize,
    pub(crate) domain: Handle,
    pub(crate) number: u32,
    pub(crate) send_completions: Handle,
    pub(crate) receive_completions: Handle,
    pub(crate) capacity: ibv_qp_cap,
    pub(crate) signal_all: bool,
    pub(crate) state: u32,
    pub(crate) port: u8,
    pub(crate) access: u32,
    pub(crate) peer: Option<Peer>,
    pub(crate) rnr_retries: u8,
    pub(crate) sends: VecDeque<Request>,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) sent: Slots,
    pub(crate) received: Slots,
    pub(crate) held: bool,
    pub(crate) unacknowledged: u32,
}

/// Which slots of a queue are in use: one is free again when a completion of it or of a later one is taken.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slots {
    pub(crate) posted: u64,
    pub(crate) retired: u64,
}

impl Slots {
    pub(crate) fn used(self) -> u64 {
        self.posted - self.retired
    }
}

/// Where a queue pair is connected to.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) gid: Option<[u8; 16]>,
    pub(crate) lid: u16,
    pub(crate) number: u32,
}

/// A posted request of a send queue.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) pieces: Vec<ibv_sge>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) remote: (u64, u32),
    pub(crate) immediate: u32,
    pub(crate) sequence: u64,
    /// Whether `expire` was commanded: waiting is over.
    pub(crate) expired: bool,
    /// Once it has begun: the status that it was decided to end with, if it was.
    pub(crate) fate: Option<Option<u32>>,
}

/// A posted receive.
#[derive(Clone)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) pieces: Vec<ibv_sge>,
    pub(crate) sequence: u64,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::new()));
static WORK: Condvar = Condvar::new();
static ACKNOWLEDGED: Condvar = Condvar::new();
/// For how long destroying a queue waits for somebody who acknowledges its events; the real library waits for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// The one of this process.
pub(crate) fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, when no event of this object is taken and not acknowledged, or after a while.
pub(crate) fn world_when_acknowledged(object: Handle) -> MutexGuard<'static, World> {
    let waited = ACKNOWLEDGED.wait_timeout_while(world(), PATIENCE, |world| world.is_unacknowledged(object));
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// Lets those look again who wait for events to be acknowledged.
pub(crate) fn acknowledged() {
    ACKNOWLEDGED.notify_all();
}

impl World {
    /// Whether an event of this object was taken and not acknowledged.
    pub(crate) fn is_unacknowledged(&self, object: Handle) -> bool {
        self.pairs.get(&object).is_some_and(|pair| pair.unacknowledged > 0)
            || self
                .completions
                .get(&object)
                .is_some_and(|queue| queue.unacknowledged > 0 || queue.unacknowledged_async > 0)
    }

    fn new() -> Self {
        Self {
            config: Config::from_environment(),
            devices: Vec::new(),
            lists: BTreeSet::new(),
            contexts: HashMap::new(),
            domains: HashMap::new(),
            regions: HashMap::new(),
            channels: HashMap::new(),
            completions: HashMap::new(),
            pairs: HashMap::new(),
            gone: HashMap::new(),
            faults: Faults::default(),
            calls: BTreeMap::new(),
            misuse: Vec::new(),
            held: false,
            withheld: false,
            dirty: false,
        }
    }

    /// Counts a call, and says with which errno it must fail, if it must.
    pub(crate) fn enter(&mut self, name: &'static str) -> Result<(), i32> {
        *self.calls.entry(name).or_default() += 1;
        self.faults.next_call(name).map_or(Ok(()), Err)
    }

    /// Remembers a mistake of the caller's.
    pub(crate) fn misuse(&mut self, what: String) {
        // The first ones tell the story; a thousand of them would hide it.
        if self.misuse.len() < 100 {
            self.misuse.push(what);
        }
    }

    /// The errno for a handle that is not alive, which is remembered as a mistake.
    pub(crate) fn stranger(&mut self, call: &str, handle: Handle) -> i32 {
        let what = match self.gone.get(&handle) {
            Some(kind) => format!("{call}: the {kind} {handle:#x} was destroyed before"),
            None => format!("{call}: {handle:#x} is nothing that this library made for it"),
        };
        self.misuse(what);
        libc::EINVAL
    }

    /// `EIO` for a device that has failed.
    pub(crate) fn alive(&self, device: usize) -> Result<(), i32> {
        if self.devices.get(device).is_none_or(|device| device.dead) { Err(libc::EIO) } else { Ok(()) }
    }

    /// Forgets everything: as if the library had just been loaded. Handles from before are strangers.
    pub(crate) fn reset(&mut self) {
        let contexts = self.contexts.values().map(|open| open.pipe);
        for pipe in contexts.chain(self.channels.values().map(|channel| channel.pipe)) {
            crate::call::close(pipe);
        }
        *self = Self::new();
    }

    /// Carries out what is queued, here or on the thread.
    pub(crate) fn kick(&mut self) {
        if self.config.threaded {
            static THREAD: Once = Once::new();
            THREAD.call_once(|| {
                let _ = std::thread::Builder::new().name("verbs-sim".to_owned()).spawn(work);
            });
            self.dirty = true;
            WORK.notify_all();
        } else {
            self.advance();
        }
    }
}

/// The thread that carries requests out.
fn work() {
    let mut world = world();
    loop {
        while !world.dirty {
            world = WORK.wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        world.dirty = false;
        world.advance();
    }
}
