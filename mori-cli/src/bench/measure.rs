//! One row of one repetition: transfers through the engine, and the yardstick beside them.
//!
//! Each worker keeps its transfers in flight and waits for the oldest with the engine's `wait_all`; nothing here looks again
//! and again whether something is done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mori_engine::{Clock, ErrorKind, Status, TransferOptions};

use super::args::BenchArgs;
use super::pair::{Near, Pair};
use super::plan::{Row, Walk};
use super::raw::MAX_ROUND_TRIP;
use super::times::Times;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::machine;
use crate::stop::Stop;

/// A wait looks this often whether somebody asked to stop.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// How long cancelled transfers may take to become quiet.
const SETTLE: Duration = Duration::from_secs(1);
/// Parts of the time of a row, the fastest of which is its best throughput.
const PARTS: u32 = 10;
/// The yardstick moves at least so many bytes, or makes at least so many round trips; a part of that many goes before.
const MIN_RAW_BYTES: u64 = 32 << 20;
const MIN_RAW_TRIPS: u64 = 200;
const RAW_WARM_UP: u64 = 4;

/// How long a row is measured, and how many transfers it has in flight.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    warm_up: Duration,
    until: Until,
    depth: usize,
    workers: u64,
    bound: Duration,
}

impl Effort {
    /// What the command line asks for.
    pub fn new(args: &BenchArgs) -> Self {
        Self {
            warm_up: args.warm_up(),
            until: args.iterations.map_or(Until::Time(args.time()), Until::Transfers),
            depth: usize::from(args.depth),
            workers: u64::from(args.workers),
            bound: args.timeout,
        }
    }

    /// Transfers in flight at once.
    pub fn in_flight(&self) -> u64 {
        self.workers * self.depth as u64
    }
}

/// When a phase ends.
#[derive(Debug, Clone, Copy)]
enum Until {
    Time(Duration),
    /// Of all workers.
    Transfers(u64),
}

/// Why a row has no result.
#[derive(Debug)]
pub enum Trouble {
    /// Somebody asked to stop.
    Stopped,
    /// It failed, and so does the program.
    Failed(Failure),
}

/// What a row gave in one repetition.
#[derive(Debug)]
pub struct Measured {
    /// How long transfers took.
    pub times: Times,
    /// The transfers with lower numbers have all run.
    pub covered: u64,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
    /// Bytes per second of the fastest part.
    pub best: f64,
    /// Processor time of this process.
    pub near_cpu: Duration,
    /// Processor time of the serving process, if it could be asked.
    pub far_cpu: Option<Duration>,
}

/// What the yardstick gave beside it.
#[derive(Debug)]
pub struct RawMeasured {
    /// How long round trips took; none for a stream.
    pub times: Option<Times>,
    /// Bytes moved.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Processor time of this process.
    pub near_cpu: Duration,
    /// Processor time of the serving process, if it could be asked.
    pub far_cpu: Option<Duration>,
}

/// Measures a row over the engine.
///
/// # Errors
///
/// [`Trouble`] when a transfer fails or is late, or somebody asked to stop.
pub fn measure(
    pair: &Pair,
    row: Row,
    walk: &Walk,
    effort: &Effort,
    stop: &Stop,
) -> Result<Measured, Trouble> {
    let clock = pair.near.engine.wait_policy().clock.clone();
    let run = Run { near: &pair.near, row, walk, effort, stop, clock };
    run.phase(Until::Time(effort.warm_up))?;
    let far_before = pair.far_cpu();
    let near_before = machine::cpu_time();
    let logs = run.phase(effort.until)?;
    let near_cpu = machine::cpu_time().saturating_sub(near_before);
    let far_cpu = pair.far_cpu().zip(far_before).map(|(after, before)| after.saturating_sub(before));
    let mut times = Times::new();
    logs.iter().for_each(|log| times.add(&log.times));
    let least = logs.iter().map(|log| log.ends.len()).min().unwrap_or(0);
    let covered = (least as u64).saturating_mul(effort.workers);
    let mut ends: Vec<Duration> = logs.into_iter().flat_map(|log| log.ends).collect();
    ends.sort_unstable();
    let elapsed = ends.last().copied().unwrap_or_default();
    Ok(Measured { times, covered, elapsed, best: best(&ends, row.bytes()), near_cpu, far_cpu })
}

/// Bytes per second of the fastest part, where each part ends with a transfer.
fn best(ends: &[Duration], bytes: u64) -> f64 {
    let Some(last) = ends.last() else { return 0.0 };
    let part = *last / PARTS;
    let (mut from, mut count, mut best) = (Duration::ZERO, 0_u64, 0.0_f64);
    for end in ends {
        count += 1;
        let took = end.saturating_sub(from);
        if took >= part && !took.is_zero() {
            best = best.max((count * bytes) as f64 / took.as_secs_f64());
            (from, count) = (*end, 0);
        }
    }
    best
}

/// Measures the yardstick of a pair in the shape of a row; none when it has none.
///
/// # Errors
///
/// [`Trouble::Failed`] when it breaks.
pub fn measure_raw(
    pair: &mut Pair,
    row: Row,
    walk: &Walk,
    ours: &Measured,
) -> Result<Option<RawMeasured>, Trouble> {
    let Some(mut raw) = pair.raw.take() else { return Ok(None) };
    let least = MIN_RAW_BYTES.div_ceil(row.bytes().max(1));
    let trips = row.batch == 1 && row.size <= MAX_ROUND_TRIP;
    let broken = |error| Failure { exit: Exit::Failed, message: format!("the baseline broke: {error}") };
    let warm = if trips {
        raw.trips(row, walk, MIN_RAW_TRIPS / RAW_WARM_UP, &mut Times::new())
    } else {
        raw.stream(row, walk, least.div_ceil(RAW_WARM_UP))
    };
    warm.map_err(broken).map_err(Trouble::Failed)?;
    let far_before = pair.far_cpu();
    let near_before = machine::cpu_time();
    let mut times = None;
    let moved = if trips {
        let count = ours.times.count().max(MIN_RAW_TRIPS);
        let took = raw.trips(row, walk, count, times.insert(Times::new()));
        took.map(|took| (count.saturating_mul(row.size), took))
    } else {
        let count = ours.times.count().max(least);
        raw.stream(row, walk, count).map(|took| (count.saturating_mul(row.bytes()), took))
    };
    let near_cpu = machine::cpu_time().saturating_sub(near_before);
    let far_cpu = pair.far_cpu().zip(far_before).map(|(after, before)| after.saturating_sub(before));
    let (bytes, elapsed) = moved.map_err(broken).map_err(Trouble::Failed)?;
    pair.raw = Some(raw);
    Ok(Some(RawMeasured { times, bytes, elapsed, near_cpu, far_cpu }))
}

/// What a worker saw: how long each transfer took, and when it was over.
struct Log {
    times: Times,
    ends: Vec<Duration>,
}

struct Run<'a> {
    near: &'a Near,
    row: Row,
    walk: &'a Walk,
    effort: &'a Effort,
    stop: &'a Stop,
    clock: Clock,
}

impl Run<'_> {
    fn phase(&self, until: Until) -> Result<Vec<Log>, Trouble> {
        let start = self.clock.now();
        if self.effort.workers == 1 {
            return Ok(vec![self.work(0, start, until)?]);
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.effort.workers)
                .map(|worker| scope.spawn(move || self.work(worker, start, until)))
                .collect();
            let panicked = || Trouble::Failed(Failure::internal("a worker of the measurement panicked"));
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(panicked()))).collect()
        })
    }

    fn work(&self, worker: u64, start: Instant, until: Until) -> Result<Log, Trouble> {
        let mut log = Log { times: Times::new(), ends: Vec::new() };
        let mut flight: VecDeque<(Status, Instant)> = VecDeque::with_capacity(self.effort.depth);
        let (mut submitted, mut now) = (0, start);
        loop {
            while flight.len() < self.effort.depth && self.more(until, worker, submitted, now - start) {
                let pieces = self.walk.transfer(worker + submitted * self.effort.workers);
                let begun = self.clock.now();
                let status = self.near.submit(self.row.op, pieces, TransferOptions::default());
                flight.push_back((status, begun));
                submitted += 1;
            }
            let Some((status, begun)) = flight.pop_front() else { return Ok(log) };
            if let Err(trouble) = wait(self.near, &status, self.effort.bound, self.stop) {
                flight.push_front((status, begun));
                self.abandon(&flight);
                return Err(trouble);
            }
            now = self.clock.now();
            log.times.record(now.saturating_duration_since(begun));
            log.ends.push(now.saturating_duration_since(start));
        }
    }

    fn more(&self, until: Until, worker: u64, submitted: u64, elapsed: Duration) -> bool {
        match until {
            Until::Time(time) => submitted == 0 || elapsed < time,
            Until::Transfers(count) => worker + submitted * self.effort.workers < count,
        }
    }

    /// Stops what is in flight.
    fn abandon(&self, flight: &VecDeque<(Status, Instant)>) {
        let statuses: Vec<&Status> = flight.iter().map(|(status, _)| status).collect();
        for status in &statuses {
            if let Err(error) = status.cancel() {
                tracing::debug!(%error, "cannot cancel a transfer");
            }
        }
        self.near.engine.wait_all(&statuses, SETTLE);
    }
}

/// Waits for one transfer, in waits that a request to stop ends.
///
/// # Errors
///
/// [`Trouble`] when it fails or is late, or somebody asked to stop.
pub fn wait(near: &Near, status: &Status, bound: Duration, stop: &Stop) -> Result<(), Trouble> {
    let mut left = bound;
    loop {
        let slice = left.min(STOP_LOOK);
        let outcome = near.engine.wait_all(std::slice::from_ref(status), slice);
        if status.is_success() {
            // A stop counts between transfers, too.
            return if stop.asked() { Err(Trouble::Stopped) } else { Ok(()) };
        }
        if outcome.all_quiet() {
            return Err(Trouble::Failed(failed(status)));
        }
        if stop.asked() {
            return Err(Trouble::Stopped);
        }
        left = left.saturating_sub(slice);
        if left.is_zero() {
            let message = format!("a transfer was not there after {bound:?}: {}", status.message());
            return Err(Trouble::Failed(Failure { exit: Exit::Failed, message }));
        }
    }
}

fn failed(status: &Status) -> Failure {
    match status.error() {
        Some(error) => {
            let exit = if error.kind() == ErrorKind::PeerLost { Exit::PeerLost } else { Exit::Failed };
            Failure { exit, message: format!("a transfer failed: {error}") }
        }
        None => Failure::internal(format!("a transfer ended in the state {:?}", status.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_part_is_the_fastest_one() {
        let ends: Vec<Duration> = [10, 20, 30, 40, 45, 50, 55, 60, 80, 100].map(Duration::from_millis).into();
        // The fastest tenths have one transfer in 10 ms, or two in 10: parts end with the first transfer after 10 ms.
        assert!((best(&ends, 1000) - 200_000.0).abs() < 1e-6, "{}", best(&ends, 1000));
        assert_eq!(best(&[], 1000), 0.0);
        let one = [Duration::from_secs(2)];
        assert!((best(&one, 1000) - 500.0).abs() < 1e-9);
    }
}
