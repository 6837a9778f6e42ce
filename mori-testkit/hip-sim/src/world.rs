//! The state of the simulation: one for the process.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};

use crate::config::Config;
use crate::lock;
use crate::memory::Blocks;
use crate::queue::{Event, Stream};

/// Everything.
pub(crate) struct World {
    pub(crate) config: Mutex<Config>,
    pub(crate) blocks: Mutex<Blocks>,
    pub(crate) objects: Mutex<Objects>,
    pub(crate) faults: Faults,
    pub(crate) calls: Mutex<BTreeMap<&'static str, u64>>,
    pub(crate) misuse: Mutex<Vec<String>>,
    pub(crate) trace: Mutex<Option<Vec<String>>>,
    holds: Mutex<()>,
    freed: Condvar,
}

/// Streams, events and enabled pairs.
#[derive(Default)]
pub(crate) struct Objects {
    last: usize,
    pub(crate) streams: HashMap<usize, Arc<Stream>>,
    pub(crate) events: HashMap<usize, Arc<Event>>,
    /// Pairs of physical devices: who may address whose memory.
    pub(crate) enabled: HashSet<(usize, usize)>,
}

impl Objects {
    /// A handle that was never given out.
    pub(crate) fn fresh(&mut self) -> usize {
        self.last += 64;
        self.last
    }
}

/// The failures that were asked for.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Plan>);

#[derive(Default)]
struct Plan {
    /// Name or `*`, calls that still go well, the number to return.
    calls: Vec<(String, u64, i32)>,
    /// Copies that still go well, the number that their stream then fails with.
    copies: Vec<(u64, i32)>,
}

impl Faults {
    /// The `nth` call of `name` from now on returns `code`.
    pub(crate) fn add_call(&self, name: &str, nth: u64, code: i32) {
        lock(&self.0).calls.push((name.to_owned(), nth.max(1), code));
    }

    /// The `nth` copy from now on fails with `code` when its stream does it.
    pub(crate) fn add_copy(&self, nth: u64, code: i32) {
        lock(&self.0).copies.push((nth.max(1), code));
    }

    /// Forgets all of them; says whether there were any left.
    pub(crate) fn clear(&self) -> bool {
        let plan = std::mem::take(&mut *lock(&self.0));
        !plan.calls.is_empty() || !plan.copies.is_empty()
    }

    fn next_call(&self, name: &str) -> Option<i32> {
        let calls = &mut lock(&self.0).calls;
        let mut found = None;
        calls.retain_mut(|(of, left, code)| {
            if of != "*" && of != name {
                return true;
            }
            *left -= 1;
            if *left == 0 {
                found = Some(*code);
            }
            *left > 0
        });
        found
    }

    /// What the next copy fails with, if it does.
    pub(crate) fn next_copy(&self) -> Option<i32> {
        let copies = &mut lock(&self.0).copies;
        let mut found = None;
        copies.retain_mut(|(left, code)| {
            *left -= 1;
            if *left == 0 {
                found = Some(*code);
            }
            *left > 0
        });
        found
    }
}

thread_local! {
    /// The thread's current device, by the process's own numbers.
    pub(crate) static CURRENT: Cell<i32> = const { Cell::new(0) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

static WORLD: LazyLock<World> = LazyLock::new(|| World {
    config: Mutex::new(Config::from_environment()),
    blocks: Mutex::default(),
    objects: Mutex::default(),
    faults: Faults::default(),
    calls: Mutex::default(),
    misuse: Mutex::default(),
    trace: Mutex::default(),
    holds: Mutex::default(),
    freed: Condvar::new(),
});

/// The one of this process.
pub(crate) fn world() -> &'static World {
    &WORLD
}

impl World {
    /// Begins a call: counts it, and says what it must return at once, if it must.
    pub(crate) fn enter(&self, name: &'static str) -> Option<i32> {
        *lock(&self.calls).entry(name).or_default() += 1;
        if IN_CALLBACK.get() {
            self.misuse(format!("{name} was called from a callback"));
        }
        let fault = self.faults.next_call(name);
        if let Some(trace) = &mut *lock(&self.trace) {
            let thread = std::thread::current();
            let fault = fault.map_or(String::new(), |code| format!(" fails with {code}"));
            trace.push(format!(
                "{} device {} {name}{fault}",
                thread.name().unwrap_or("unnamed"),
                CURRENT.get()
            ));
        }
        fault
    }

    /// Remembers a mistake of the caller's.
    pub(crate) fn misuse(&self, what: String) {
        let mut list = lock(&self.misuse);
        // The first ones tell the story; a thousand of them would hide it.
        if list.len() < 100 {
            list.push(what);
        }
    }

    /// The physical device that is current on this thread.
    pub(crate) fn current(&self) -> Option<usize> {
        lock(&self.config).physical(CURRENT.get())
    }

    /// Runs a callback, in which no call of the runtime is allowed.
    pub(crate) fn in_callback(&self, call: impl FnOnce()) {
        IN_CALLBACK.set(true);
        call();
        IN_CALLBACK.set(false);
    }

    /// Waits while `held`.
    pub(crate) fn wait_until_free(&self, held: impl Fn() -> bool) {
        let mut guard = lock(&self.holds);
        while held() {
            guard = self.freed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Changes what is held, and lets everybody look again.
    pub(crate) fn change_hold(&self, change: impl FnOnce()) {
        let _guard = lock(&self.holds);
        change();
        self.freed.notify_all();
    }
}
