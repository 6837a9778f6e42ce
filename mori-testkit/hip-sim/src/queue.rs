//! Streams and events.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::memory::Block;
use crate::world::World;
use crate::{code, lock};

/// A function of the test subject's, to be called by a stream.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);
/// The older form.
pub(crate) type StreamCallback = unsafe extern "C" fn(*mut c_void, i32, *mut c_void);

/// A part of a block.
pub(crate) struct Place {
    pub(crate) block: Arc<Block>,
    pub(crate) offset: usize,
}

/// What a stream does.
pub(crate) enum Step {
    /// Moves bytes.
    Copy { to: Place, from: Place, length: usize },
    /// Completes an event that was recorded for the n-th time.
    Complete { event: Arc<Event>, turn: u64 },
    /// Calls a function.
    Call { function: HostFunction, data: usize },
    /// Calls a function with the stream and its error.
    CallBack { function: StreamCallback, stream: usize, data: usize },
}

/// An ordered queue with a thread.
pub(crate) struct Stream {
    /// The physical device.
    pub(crate) physical: usize,
    state: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    steps: VecDeque<Step>,
    running: bool,
    closed: bool,
    /// An asynchronous failure that nobody has been told of.
    error: i32,
}

impl Stream {
    /// A stream and its thread.
    pub(crate) fn start(world: &'static World, physical: usize) -> Result<Arc<Self>, i32> {
        let stream = Arc::new(Self { physical, state: Mutex::default(), changed: Condvar::new() });
        let runner = Arc::clone(&stream);
        std::thread::Builder::new()
            .name(format!("sim-stream-{physical}"))
            .spawn(move || runner.run(world))
            .map_err(|_| code::OUT_OF_MEMORY)?;
        Ok(stream)
    }

    /// Appends a step.
    pub(crate) fn push(&self, step: Step) {
        lock(&self.state).steps.push_back(step);
        self.changed.notify_one();
    }

    /// What a query answers: not ready, the failure that nobody was told of, or success.
    pub(crate) fn query(&self) -> i32 {
        let mut state = lock(&self.state);
        if state.running || !state.steps.is_empty() {
            return code::NOT_READY;
        }
        std::mem::take(&mut state.error)
    }

    /// Somebody has been told of the failure.
    fn told(&self) {
        lock(&self.state).error = code::SUCCESS;
    }

    /// The thread ends when what is queued is done.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_one();
    }

    fn run(self: &Arc<Self>, world: &'static World) {
        loop {
            let mut state = lock(&self.state);
            state.running = false;
            let step = loop {
                match state.steps.pop_front() {
                    Some(step) => break step,
                    None if state.closed => return,
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            state.running = true;
            drop(state);
            self.step(world, step);
        }
    }

    fn step(self: &Arc<Self>, world: &'static World, step: Step) {
        match step {
            Step::Copy { to, from, length } => {
                let outcome = copy(world, &to, &from, length);
                if outcome != code::SUCCESS {
                    lock(&self.state).error = outcome;
                }
            }
            Step::Complete { event, turn } => {
                let error = lock(&self.state).error;
                event.complete(turn, error, self);
            }
            // As on a device, a function is not called on a stream that has failed.
            Step::Call { function, data } => {
                if lock(&self.state).error == code::SUCCESS {
                    // SAFETY: whoever queued the function said that it takes this argument.
                    world.in_callback(|| unsafe { function(std::ptr::without_provenance_mut(data)) });
                }
            }
            Step::CallBack { function, stream, data } => {
                let error = lock(&self.state).error;
                let (stream, data) =
                    (std::ptr::without_provenance_mut(stream), std::ptr::without_provenance_mut(data));
                // SAFETY: as above.
                world.in_callback(|| unsafe { function(stream, error, data) });
            }
        }
    }
}

/// Does one copy, when nothing holds it back.
fn copy(world: &World, to: &Place, from: &Place, length: usize) -> i32 {
    let blocks = [&to.block, &from.block];
    world.wait_until_free(|| blocks.iter().any(|block| block.held.load(Ordering::Relaxed)));
    let (latency, rate) = {
        let config = lock(&world.config);
        (config.latency, config.bytes_per_us)
    };
    let time = latency + (length as u64).checked_div(rate).map_or(Duration::ZERO, Duration::from_micros);
    if !time.is_zero() {
        // tidy: allow(sleep): this is the time that a simulated copy takes
        std::thread::sleep(time);
    }
    if let Some(code) = world.faults.next_copy() {
        return code;
    }
    if blocks.iter().any(|block| block.gone.load(Ordering::Relaxed)) {
        world.misuse("a copy ran after its memory was freed or closed".to_owned());
        return code::ILLEGAL_ADDRESS;
    }
    Block::copy((&to.block, to.offset), (&from.block, from.offset), length);
    code::SUCCESS
}

/// An event.
pub(crate) struct Event {
    /// The physical device.
    pub(crate) physical: usize,
    state: Mutex<Marks>,
    done: Condvar,
}

#[derive(Default)]
struct Marks {
    recorded: u64,
    completed: u64,
    error: i32,
    /// Where it was recorded, to tell it that its failure is known.
    stream: Option<Arc<Stream>>,
}

impl Event {
    pub(crate) fn new(physical: usize) -> Arc<Self> {
        Arc::new(Self { physical, state: Mutex::default(), done: Condvar::new() })
    }

    /// Queues the event's completion.
    pub(crate) fn record(self: &Arc<Self>, stream: &Stream) {
        let turn = {
            let mut state = lock(&self.state);
            state.recorded += 1;
            state.recorded
        };
        stream.push(Step::Complete { event: Arc::clone(self), turn });
    }

    fn complete(&self, turn: u64, error: i32, stream: &Arc<Stream>) {
        let mut state = lock(&self.state);
        // A stream and its events do not keep each other: only a failure is remembered with its stream.
        state.completed = turn;
        state.error = error;
        state.stream = (error != code::SUCCESS).then(|| Arc::clone(stream));
        self.done.notify_all();
    }

    fn answer(state: &mut Marks) -> (i32, Option<Arc<Stream>>) {
        (state.error, state.stream.take())
    }

    /// What a query answers.
    pub(crate) fn query(&self) -> i32 {
        let (error, stream) = {
            let mut state = lock(&self.state);
            if state.completed < state.recorded {
                return code::NOT_READY;
            }
            Self::answer(&mut state)
        };
        if let Some(stream) = stream {
            stream.told();
        }
        error
    }

    /// Blocks until the event completes.
    pub(crate) fn synchronise(&self) -> i32 {
        let (error, stream) = {
            let mut state = lock(&self.state);
            while state.completed < state.recorded {
                state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            Self::answer(&mut state)
        };
        if let Some(stream) = stream {
            stream.told();
        }
        error
    }
}
