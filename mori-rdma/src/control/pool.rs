//! The threads that call the service.
//!
//! Every connection and every link is a *lane* of jobs, of which one at a time runs, in order. Urgent jobs (an end, a loss, a
//! note), which do not block for long, have a thread of their own. The others run on threads that are started when there is
//! work and end when there is none; the lanes of one address get at most half of them, and addresses take turns.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mori_core::{Clock, Deadline, Error, ErrorKind, Result};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// How long a thread waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(2);

/// Something to do.
pub(super) struct Job {
    /// Whether it belongs on the thread for what does not block.
    pub(super) urgent: bool,
    /// Whether it is dropped when the lane ends before it has begun.
    pub(super) droppable: bool,
    pub(super) run: Box<dyn FnOnce() + Send>,
}

struct Lane {
    address: IpAddr,
    jobs: VecDeque<Job>,
    busy: bool,
}

#[derive(Default)]
struct State {
    lanes: HashMap<u64, Lane>,
    urgent: VecDeque<u64>,
    /// Lanes whose next job is not urgent, by their address.
    ready: HashMap<IpAddr, VecDeque<u64>>,
    /// The addresses of those lanes, in the order of their turns.
    turns: VecDeque<IpAddr>,
    running: HashMap<IpAddr, usize>,
    idle: usize,
    threads: usize,
    stopping: bool,
}

/// The threads and what they have to do.
pub(super) struct Pool {
    state: Mutex<State>,
    /// For the thread of urgent jobs.
    urgent: Condvar,
    /// For the others.
    work: Condvar,
    workers: usize,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Starts the thread for urgent jobs; at most `workers` others follow when needed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] if there is no thread to be had.
    pub(super) fn start(workers: usize) -> Result<Arc<Self>> {
        let pool = Arc::new(Self {
            state: Mutex::default(),
            urgent: Condvar::new(),
            work: Condvar::new(),
            workers: workers.max(1),
            handles: Mutex::default(),
        });
        let own = Arc::clone(&pool);
        let handle = std::thread::Builder::new()
            .name("mori-rdma-urgent".into())
            .spawn(move || own.run_urgent())
            .map_err(|error| Error::io(ErrorKind::ResourceExhausted, "cannot start a thread", &error))?;
        pool.handles.lock().push(handle);
        Ok(pool)
    }

    /// Appends a job to a lane.
    pub(super) fn submit(self: &Arc<Self>, lane: u64, address: IpAddr, job: Job) {
        let mut state = self.state.lock();
        let entry =
            state.lanes.entry(lane).or_insert_with(|| Lane { address, jobs: VecDeque::new(), busy: false });
        entry.jobs.push_back(job);
        if entry.jobs.len() == 1 && !entry.busy {
            self.schedule(&mut state, lane);
        }
    }

    /// Drops what a lane has not begun and does not need any more, and appends its last job.
    pub(super) fn end(self: &Arc<Self>, lane: u64, address: IpAddr, last: Job) {
        let mut state = self.state.lock();
        let dropped: VecDeque<Job> = match state.lanes.get_mut(&lane) {
            None => VecDeque::new(),
            Some(entry) => {
                let (dropped, kept) =
                    std::mem::take(&mut entry.jobs).into_iter().partition(|job| job.droppable);
                entry.jobs = kept;
                dropped
            }
        };
        self.unschedule(&mut state, lane);
        drop(state);
        // Outside of the lock: what a job holds may be the last of something.
        drop(dropped);
        self.submit(lane, address, last);
    }

    /// Takes a lane out of the queues; puts it back if something is left to do.
    fn unschedule(self: &Arc<Self>, state: &mut State, lane: u64) {
        let Some((address, busy, empty)) =
            state.lanes.get(&lane).map(|entry| (entry.address, entry.busy, entry.jobs.is_empty()))
        else {
            return;
        };
        state.urgent.retain(|queued| *queued != lane);
        if let Some(queue) = state.ready.get_mut(&address) {
            queue.retain(|queued| *queued != lane);
        }
        if !empty && !busy {
            self.schedule(state, lane);
        }
    }

    /// Queues a lane whose next job may begin.
    fn schedule(self: &Arc<Self>, state: &mut State, lane: u64) {
        let Some(entry) = state.lanes.get(&lane) else { return };
        let Some(job) = entry.jobs.front() else { return };
        if job.urgent {
            state.urgent.push_back(lane);
            self.urgent.notify_one();
            return;
        }
        let address = entry.address;
        state.ready.entry(address).or_default().push_back(lane);
        if !state.turns.contains(&address) {
            state.turns.push_back(address);
        }
        if state.idle > 0 {
            self.work.notify_one();
        } else if state.threads < self.workers && !state.stopping {
            self.spawn(state);
        }
    }

    fn spawn(self: &Arc<Self>, state: &mut State) {
        let own = Arc::clone(self);
        let spawned =
            std::thread::Builder::new().name("mori-rdma-serve".into()).spawn(move || own.run_work());
        match spawned {
            Ok(handle) => {
                state.threads += 1;
                let mut handles = self.handles.lock();
                handles.retain(|handle| !handle.is_finished());
                handles.push(handle);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start another thread for peers' requests");
                // With none at all, the thread for urgent jobs does it.
                self.urgent.notify_one();
            }
        }
    }

    fn run_urgent(self: Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if let Some(lane) = state.urgent.pop_front() {
                state = self.run(state, lane);
            } else if state.threads == 0
                && let Some(lane) = self.take(&mut state)
            {
                state = self.run(state, lane);
            } else if state.stopping && state.lanes.is_empty() {
                return;
            } else {
                self.urgent.wait(&mut state);
            }
        }
    }

    fn run_work(self: Arc<Self>) {
        let clock = Clock::system();
        let mut state = self.state.lock();
        let mut until = clock.deadline(LINGER);
        loop {
            if let Some(lane) = self.take(&mut state) {
                state = self.run(state, lane);
                until = clock.deadline(LINGER);
                continue;
            }
            if state.stopping || until.passed(clock.now()) {
                state.threads -= 1;
                // What came since the look above, or waits for its address' turn, needs somebody to look at it.
                self.urgent.notify_one();
                return;
            }
            state.idle += 1;
            match until {
                Deadline::At(point) => drop(self.work.wait_until(&mut state, point)),
                Deadline::Never => self.work.wait(&mut state),
            }
            state.idle -= 1;
        }
    }

    /// The next lane with work that may begin: addresses take turns, and none gets more than half of the threads.
    fn take(&self, state: &mut State) -> Option<u64> {
        let most = self.workers.div_ceil(2);
        for _ in 0..state.turns.len() {
            let address = state.turns.pop_front()?;
            let Some(queue) = state.ready.get_mut(&address) else { continue };
            if queue.is_empty() {
                state.ready.remove(&address);
                continue;
            }
            state.turns.push_back(address);
            if state.running.get(&address).copied().unwrap_or(0) < most {
                return queue.pop_front();
            }
        }
        None
    }

    /// Runs a lane's next job without the lock, and queues the lane again if it has more.
    fn run<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, lane: u64) -> MutexGuard<'a, State> {
        let Some(entry) = state.lanes.get_mut(&lane) else { return state };
        let Some(job) = entry.jobs.pop_front() else { return state };
        let address = entry.address;
        entry.busy = true;
        if !job.urgent {
            *state.running.entry(address).or_default() += 1;
        }
        let urgent = job.urgent;
        drop(state);
        if catch_unwind(AssertUnwindSafe(job.run)).is_err() {
            tracing::error!("a call of the control plane's service panicked");
        }
        let mut state = self.state.lock();
        if !urgent && let Some(count) = state.running.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                state.running.remove(&address);
            }
        }
        let more = state.lanes.get_mut(&lane).map(|entry| {
            entry.busy = false;
            !entry.jobs.is_empty()
        });
        match more {
            Some(true) => self.schedule(&mut state, lane),
            Some(false) => {
                state.lanes.remove(&lane);
                if state.stopping {
                    self.urgent.notify_one();
                }
            }
            None => {}
        }
        // Another lane of the address may begin now, and the thread that was told of it may have found it had to wait.
        if !urgent && state.idle > 0 && !state.turns.is_empty() {
            self.work.notify_one();
        }
        state
    }

    /// Lets the threads end when every job has.
    pub(super) fn finish(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.urgent.notify_all();
        self.work.notify_all();
    }

    /// Lets every job end and the threads with them. Returns after that, except on one of the threads itself.
    pub(super) fn stop(&self) {
        self.finish();
        let own = std::thread::current().id();
        let handles = std::mem::take(&mut *self.handles.lock());
        if handles.iter().any(|handle| handle.thread().id() == own) {
            return;
        }
        for handle in handles {
            let _ = handle.join();
        }
    }
}
