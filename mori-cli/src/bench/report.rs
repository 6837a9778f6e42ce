//! What a measurement says at its end: the structure of its JSON, which `compare` reads again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::FaultReport;
use super::measure::{Measured, RawMeasured};
use super::plan::Row;
use super::times::Times;

/// A whole result. The field names are an interface; fields are added, not changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// How the program ended: the name of its exit status.
    pub outcome: String,
    /// The exit status.
    pub exit_status: u8,
    /// Why, in words; empty when all is well.
    pub reason: String,
    /// What was measured, over what.
    pub setup: Setup,
    /// The rows that were measured.
    #[serde(default)]
    pub rows: Vec<RowReport>,
    /// Rows that the limit of the total left out.
    #[serde(default)]
    pub rows_left_out: usize,
    /// With `--fault`: what became of broken transfers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultReport>,
}

/// What was measured, over what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The version of this program.
    pub version: String,
    /// The transport.
    pub transport: String,
    /// Where our memory is.
    pub memory: String,
    /// The last serving process.
    pub peer: String,
    /// Connections to it.
    pub connections: u16,
    /// Threads that move bytes, on each side.
    pub threads: u16,
    /// Threads that submit and wait.
    pub workers: u16,
    /// Transfers that each of them has in flight.
    pub depth: u16,
    /// Whether transfers go through sessions of the measurement's own.
    pub sessions: bool,
    /// Bytes of each region.
    pub total: u64,
    /// Seconds of a row in a repetition.
    pub seconds: f64,
    /// Transfers instead, if they were given.
    pub iterations: Option<u64>,
    /// Repetitions, each with a fresh serving process unless there is a target.
    pub repeat: u32,
    /// Whether bytes were verified.
    pub verified: bool,
    /// What `raw` is: `sockets` or `copies`, if anything.
    pub baseline: Option<String>,
    /// Processors that this process may use.
    pub processors: usize,
}

/// A row over all repetitions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RowReport {
    /// What was moved.
    #[serde(flatten)]
    pub row: Row,
    /// Bytes of a transfer.
    pub total_bytes: u64,
    /// Transfers.
    pub transfers: u64,
    /// Throughput in 10^9 bytes for each second.
    pub gb_per_s: Throughput,
    /// Times of a transfer, from its submission until its wait returned, in microseconds.
    pub latency_us: Latency,
    /// Processor time.
    pub cpu_seconds: CpuSeconds,
    /// What each repetition gave.
    pub repetitions: Vec<Repetition>,
    /// The same by the baseline.
    pub raw: Option<RawReport>,
}

/// Throughput in 10^9 bytes for each second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// The fastest tenth of a repetition.
    pub max: f64,
    /// All bytes over all time.
    pub avg: f64,
}

/// Times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub avg: f64,
    /// The median.
    pub p50: f64,
    /// 99 of 100 are not longer.
    pub p99: f64,
}

impl From<&Times> for Latency {
    fn from(times: &Times) -> Self {
        Self { min: times.min(), avg: times.mean(), p50: times.at(0.5), p99: times.at(0.99) }
    }
}

/// Processor time of a row.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CpuSeconds {
    /// Of this process.
    pub near: f64,
    /// Of the serving process; null when it could not be asked each time.
    pub far: Option<f64>,
    /// Of both, for each 10^9 bytes.
    pub per_gb: Option<f64>,
}

/// A row in one repetition.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Repetition {
    /// Throughput.
    pub gb_per_s: f64,
    /// The median of the times of a transfer.
    pub p50_us: f64,
    /// Throughput of the baseline.
    pub raw_gb_per_s: Option<f64>,
}

/// A row by the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RawReport {
    /// `round_trip` or `stream`.
    pub shape: String,
    /// Throughput: the best repetition, and all of them.
    pub gb_per_s: Throughput,
    /// Times of a round trip.
    pub latency_us: Option<Latency>,
    /// Processor time.
    pub cpu_seconds: CpuSeconds,
    /// Our throughput over theirs: the median over the repetitions.
    pub ratio: f64,
}

/// Sums up a row over its repetitions.
#[derive(Debug)]
pub struct Sum {
    row: Row,
    times: Times,
    best: f64,
    cost: Cost,
    repetitions: Vec<Repetition>,
    raw: Option<(Option<Times>, Cost)>,
}

/// Bytes, and what moving them took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    bytes: u64,
    elapsed: Duration,
    near: Duration,
    far: Option<Duration>,
}

impl Cost {
    const NONE: Self =
        Self { bytes: 0, elapsed: Duration::ZERO, near: Duration::ZERO, far: Some(Duration::ZERO) };

    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.elapsed += other.elapsed;
        self.near += other.near;
        self.far = self.far.zip(other.far).map(|(ours, theirs)| ours + theirs);
    }

    fn rate(&self) -> f64 {
        rate(self.bytes, self.elapsed)
    }

    fn cpu(&self) -> CpuSeconds {
        let (near, far) = (self.near.as_secs_f64(), self.far.map(|time| time.as_secs_f64()));
        let per_gb = far.filter(|_| self.bytes > 0).map(|far| (near + far) / (self.bytes as f64 / 1e9));
        CpuSeconds { near, far, per_gb }
    }
}

fn rate(bytes: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { bytes as f64 / elapsed.as_secs_f64() / 1e9 }
}

impl Sum {
    /// No repetition yet.
    pub fn new(row: Row) -> Self {
        Self { row, times: Times::new(), best: 0.0, cost: Cost::NONE, repetitions: Vec::new(), raw: None }
    }

    /// Adds a repetition.
    pub fn add(&mut self, ours: &Measured, raw: Option<RawMeasured>) {
        let bytes = ours.times.count().saturating_mul(self.row.bytes());
        self.cost.add(Cost { bytes, elapsed: ours.elapsed, near: ours.near_cpu, far: ours.far_cpu });
        self.times.add(&ours.times);
        self.best = self.best.max(ours.best / 1e9);
        self.repetitions.push(Repetition {
            gb_per_s: rate(bytes, ours.elapsed),
            p50_us: ours.times.at(0.5),
            raw_gb_per_s: raw.as_ref().map(|raw| rate(raw.bytes, raw.elapsed)),
        });
        if let Some(raw) = raw {
            let (times, cost) = self.raw.get_or_insert((None, Cost::NONE));
            if let Some(more) = &raw.times {
                times.get_or_insert_with(Times::new).add(more);
            }
            cost.add(Cost { bytes: raw.bytes, elapsed: raw.elapsed, near: raw.near_cpu, far: raw.far_cpu });
        }
    }

    /// The row's report; none before its first repetition.
    pub fn report(&self) -> Option<RowReport> {
        if self.repetitions.is_empty() {
            return None;
        }
        Some(RowReport {
            row: self.row,
            total_bytes: self.row.bytes(),
            transfers: self.times.count(),
            gb_per_s: Throughput { max: self.best, avg: self.cost.rate() },
            latency_us: Latency::from(&self.times),
            cpu_seconds: self.cost.cpu(),
            repetitions: self.repetitions.clone(),
            raw: self.raw.as_ref().map(|(times, cost)| self.raw_report(times.as_ref(), cost)),
        })
    }

    fn raw_report(&self, times: Option<&Times>, cost: &Cost) -> RawReport {
        let pairs: Vec<(f64, f64)> = self
            .repetitions
            .iter()
            .filter_map(|repetition| Some((repetition.gb_per_s, repetition.raw_gb_per_s?)))
            .collect();
        let ratios = pairs.iter().filter(|(_, raw)| *raw > 0.0).map(|(ours, raw)| ours / raw).collect();
        RawReport {
            shape: if times.is_some() { "round_trip" } else { "stream" }.to_owned(),
            gb_per_s: Throughput {
                max: pairs.iter().map(|(_, raw)| *raw).fold(0.0, f64::max),
                avg: cost.rate(),
            },
            latency_us: times.map(Latency::from),
            cpu_seconds: cost.cpu(),
            ratio: median(ratios),
        }
    }
}

/// The middle value; between the two middle ones if there is no middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or(0.0);
    let lower = values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
    f64::midpoint(lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{Layout, Op};

    fn measured(millis: u64, far: Option<u64>) -> Measured {
        let mut times = Times::new();
        (0..10).for_each(|_| times.record(Duration::from_millis(millis)));
        Measured {
            times,
            covered: 10,
            elapsed: Duration::from_millis(10 * millis),
            best: 2e9 / millis as f64,
            near_cpu: Duration::from_millis(5),
            far_cpu: far.map(Duration::from_millis),
        }
    }

    fn raw(millis: u64) -> RawMeasured {
        RawMeasured {
            times: None,
            bytes: 10_000_000,
            elapsed: Duration::from_millis(millis),
            near_cpu: Duration::ZERO,
            far_cpu: Some(Duration::ZERO),
        }
    }

    #[test]
    fn repetitions_are_summed_up() {
        let row = Row { op: Op::Read, size: 1000, batch: 1000, layout: Layout::Scattered };
        let mut sum = Sum::new(row);
        assert!(sum.report().is_none());
        sum.add(&measured(1, Some(5)), Some(raw(5)));
        sum.add(&measured(3, Some(15)), Some(raw(15)));
        let report = sum.report().expect("two repetitions");
        // 20 MB in 40 ms; the best part of the first went at 2 GB/s.
        assert!((report.gb_per_s.avg - 0.5).abs() < 1e-9 && (report.gb_per_s.max - 2.0).abs() < 1e-9);
        assert_eq!((report.total_bytes, report.transfers, report.repetitions.len()), (1_000_000, 20, 2));
        // 10 ms here and 20 ms there for 0.02 GB.
        assert!((report.cpu_seconds.per_gb.expect("known") - 1.5).abs() < 1e-9);
        let raw = report.raw.expect("measured");
        assert_eq!((raw.shape.as_str(), raw.latency_us), ("stream", None));
        assert!((raw.ratio - 0.5).abs() < 1e-9, "{}", raw.ratio);
        sum.add(&measured(1, None), None);
        assert_eq!(sum.report().expect("three").cpu_seconds.far, None);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }
}
