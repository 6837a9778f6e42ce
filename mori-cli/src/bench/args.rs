//! The command line of `mori bench`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::fault::FaultKind;
use super::plan::{Layout, Op};
use crate::args::{LinkArgs, parse_bytes, parse_seconds};

/// Sizes of pieces that are measured.
const SIZES: RangeInclusive<u64> = 1..=1 << 30;
/// Pieces of one transfer that are measured.
const BATCHES: RangeInclusive<u64> = 1..=32_768;
/// The most values of one list.
const MAX_VALUES: usize = 256;
/// What a sweep has when nobody says otherwise.
const DEFAULT: Defaults = Defaults {
    sizes: &[8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20],
    batches: &[1, 32, 1024],
    total: 256 << 20,
    warm_up: Duration::from_millis(100),
    time: Duration::from_millis(300),
    repeat: 3,
};
/// The same with `--quick`.
const QUICK: Defaults = Defaults {
    sizes: &[4 << 10, 64 << 10, 1 << 20],
    batches: &[1, 32],
    total: 64 << 20,
    warm_up: Duration::from_millis(50),
    time: Duration::from_millis(200),
    repeat: 1,
};

struct Defaults {
    sizes: &'static [u64],
    batches: &'static [u64],
    total: u64,
    warm_up: Duration,
    time: Duration,
    repeat: u32,
}

/// Options of `mori bench`. The ones that are hidden are named at the end of the help.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "mori bench [OPTIONS], or mori bench compare BEFORE.json AFTER.json",
    after_help = "Also --warm-up, --iterations, --timeout, --workers, --no-session, --peer-device: see the README."
)]
pub struct BenchArgs {
    /// Instead of measuring.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// read, write or both
    #[arg(long, value_name = "OP", default_value = "both", hide_possible_values = true)]
    pub op: OpArg,
    /// As 8,64KiB or 8..64MiB (doubling) or 8..64MiB:8 [default: 9, 8..64MiB]
    #[arg(long, value_name = "LIST", value_parser = parse_sizes)]
    pub sizes: Option<Values>,
    /// Pieces of a transfer, written alike [default: 1,32,1024]
    #[arg(long, value_name = "LIST", value_parser = parse_batches)]
    pub batches: Option<Values>,
    /// scattered, contiguous or both
    #[arg(long, value_name = "HOW", default_value = "scattered", hide_possible_values = true)]
    pub layout: LayoutArg,
    /// The largest transfer, and the memory of a region [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub total: Option<u64>,
    /// Transfers in flight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// Threads that submit and wait, each with its own depth.
    #[arg(long, value_name = "N", default_value_t = 1, hide = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Seconds of a row before it counts.
    #[arg(long, value_name = "S", hide = true, value_parser = parse_warm_up)]
    pub warm_up: Option<Duration>,
    /// Seconds of a row in each repetition [default: 0.3]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub time: Option<Duration>,
    /// Transfers of a row in each repetition, instead of a time.
    #[arg(long, value_name = "N", hide = true, conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// Repetitions of the sweep, with fresh processes [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// Fewer sizes and batches, once, in a few seconds
    #[arg(long)]
    pub quick: bool,
    /// Address of a running `mori serve --scratch`; without, one is started
    #[arg(long, value_name = "HOST:PORT")]
    pub target: Option<String>,
    /// Device of the server started here, with xgmi, or its devices, with rdma.
    #[arg(long, value_name = "N", hide = true, conflicts_with = "target")]
    pub peer_device: Option<String>,
    /// How bytes move.
    #[command(flatten)]
    pub link: LinkArgs,
    /// Bound on each wait, in seconds.
    #[arg(long, value_name = "S", default_value = "30", hide = true, value_parser = parse_seconds)]
    pub timeout: Duration,
    /// Transfer through the engine, without a session of our own.
    #[arg(long, hide = true)]
    pub no_session: bool,
    /// Compare the bytes that were read and written
    #[arg(long)]
    pub verify: bool,
    /// Measure raw sockets (with shm, bare copies) beside each row
    #[arg(long)]
    pub baseline: bool,
    /// Break transfers instead, by stop, kill, cut, cancel or all
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        hide_possible_values = true,
        conflicts_with_all = ["target", "baseline", "csv", "plot", "verify"]
    )]
    pub fault: Vec<FaultArg>,
    /// Print the result as one JSON object, for compare
    #[arg(long)]
    pub json: bool,
    /// Write the rows to a file as CSV, too
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw bandwidth and latency over size, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// What `mori bench` does instead of measuring.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Print the ratios of two results, and mark what got worse
    #[command(hide = true)]
    Compare(CompareArgs),
}

/// Options of `mori bench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// The result to compare with, as `mori bench --json` printed it
    pub before: PathBuf,
    /// The result to judge
    pub after: PathBuf,
    /// Worse means by more than so many percent
    #[arg(long, value_name = "PCT", default_value = "10", value_parser = parse_percent)]
    pub threshold: f64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `--op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// One after the other.
    Both,
}

impl OpArg {
    /// The operations.
    pub fn ops(self) -> &'static [Op] {
        match self {
            Self::Read => &[Op::Read],
            Self::Write => &[Op::Write],
            Self::Both => &[Op::Read, Op::Write],
        }
    }
}

/// `--layout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LayoutArg {
    /// Pieces that touch on neither side.
    Scattered,
    /// Pieces one behind the other on both sides.
    Contiguous,
    /// One after the other.
    Both,
}

impl LayoutArg {
    /// The layouts.
    pub fn layouts(self) -> &'static [Layout] {
        match self {
            Self::Scattered => &[Layout::Scattered],
            Self::Contiguous => &[Layout::Contiguous],
            Self::Both => &[Layout::Scattered, Layout::Contiguous],
        }
    }
}

/// `--fault`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FaultArg {
    /// The target is stopped, and goes on later.
    Stop,
    /// The target is killed.
    Kill,
    /// The connections are cut.
    Cut,
    /// The transfer is cancelled while the target works.
    Cancel,
    /// Each of them.
    All,
}

/// Values of a list or a range, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values(pub Vec<u64>);

impl BenchArgs {
    fn defaults(&self) -> &'static Defaults {
        if self.quick { &QUICK } else { &DEFAULT }
    }

    /// Bytes of a piece.
    pub fn sizes(&self) -> &[u64] {
        self.sizes.as_ref().map_or(self.defaults().sizes, |values| &values.0)
    }

    /// Pieces of a transfer.
    pub fn batches(&self) -> &[u64] {
        self.batches.as_ref().map_or(self.defaults().batches, |values| &values.0)
    }

    /// The largest transfer, and bytes of each region.
    pub fn total(&self) -> u64 {
        self.total.unwrap_or(self.defaults().total)
    }

    /// Time of a row that does not count.
    pub fn warm_up(&self) -> Duration {
        self.warm_up.unwrap_or(self.defaults().warm_up)
    }

    /// Time of a row that counts.
    pub fn time(&self) -> Duration {
        self.time.unwrap_or(self.defaults().time)
    }

    /// Repetitions.
    pub fn repeat(&self) -> u32 {
        self.repeat.unwrap_or(self.defaults().repeat)
    }

    /// The faults, each once, in the order of their first mention.
    pub fn faults(&self) -> Vec<FaultKind> {
        let mut faults = Vec::new();
        for arg in &self.fault {
            let kinds: &[FaultKind] = match arg {
                FaultArg::Stop => &[FaultKind::Stop],
                FaultArg::Kill => &[FaultKind::Kill],
                FaultArg::Cut => &[FaultKind::Cut],
                FaultArg::Cancel => &[FaultKind::Cancel],
                FaultArg::All => &FaultKind::ALL,
            };
            for kind in kinds {
                if !faults.contains(kind) {
                    faults.push(*kind);
                }
            }
        }
        faults
    }
}

fn parse_sizes(text: &str) -> Result<Values, String> {
    parse_values(text, parse_bytes, SIZES, "sizes are 1 to 1GiB, as in 8,64KiB or 8..64MiB")
}

fn parse_batches(text: &str) -> Result<Values, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    parse_values(text, number, BATCHES, "batches are 1 to 32768, as in 1,32 or 1..32768")
}

/// Parses `a,b,c`, `a..b` (doubling) and `a..b:f` (times f); the end of a range belongs to it.
fn parse_values(
    text: &str,
    one: impl Fn(&str) -> Result<u64, String>,
    bounds: RangeInclusive<u64>,
    hint: &str,
) -> Result<Values, String> {
    let number = |text: &str| {
        one(text.trim()).ok().filter(|value| bounds.contains(value)).ok_or_else(|| hint.to_owned())
    };
    let mut values: Vec<u64> = Vec::new();
    for part in text.split(',') {
        let Some((first, rest)) = part.split_once("..") else {
            values.push(number(part)?);
            continue;
        };
        let (last, factor) = rest.split_once(':').unwrap_or((rest, "2"));
        let factor = factor.trim().parse::<u64>().ok().filter(|factor| *factor > 1);
        let factor = factor.ok_or("the factor of a range is a whole number above 1, as in 8..64MiB:8")?;
        let (mut value, last) = (number(first)?, number(last)?);
        if value > last {
            return Err("a range goes from the smaller to the larger value".to_owned());
        }
        while value < last {
            values.push(value);
            value = value.saturating_mul(factor);
        }
        values.push(last);
    }
    let mut seen = std::collections::HashSet::new();
    values.retain(|value| seen.insert(*value));
    if values.len() > MAX_VALUES {
        Err(format!("at most {MAX_VALUES} values are taken"))
    } else {
        Ok(Values(values))
    }
}

fn parse_warm_up(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok_and(|seconds| seconds == 0.0) {
        Ok(Duration::ZERO)
    } else {
        parse_seconds(text)
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=1000.0).contains(percent));
    percent.ok_or_else(|| "a number of percent from 0 to 1000 is needed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        for (text, values) in [
            ("8", vec![8]),
            ("8,64KiB,8", vec![8, 65_536]),
            ("8..64", vec![8, 16, 32, 64]),
            ("8..100", vec![8, 16, 32, 64, 100]),
            ("8..4KiB:8, 5", vec![8, 64, 512, 4096, 5]),
            ("7..7", vec![7]),
        ] {
            assert_eq!(parse_sizes(text), Ok(Values(values)), "{text}");
        }
        assert_eq!(parse_batches("1..32768").map(|values| values.0.len()), Ok(16));
    }

    #[test]
    fn wrong_lists_say_what_is_right() {
        for (text, says) in [
            ("", "1 to 1GiB"),
            ("8,,9", "1 to 1GiB"),
            ("0", "1 to 1GiB"),
            ("2GiB", "1 to 1GiB"),
            ("8..", "1 to 1GiB"),
            ("64..8", "smaller"),
            ("8..64:1", "factor"),
            ("8..64:x", "factor"),
        ] {
            let error = parse_sizes(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        for text in ["0", "32769", "1KiB", "-1", "1..40000"] {
            assert!(parse_batches(text).is_err(), "{text}");
        }
        assert!(parse_batches(&(1..=257).map(|n| n.to_string()).collect::<Vec<_>>().join(",")).is_err());
    }

    #[test]
    fn percents_and_warm_ups_have_bounds() {
        assert_eq!(parse_percent("2.5"), Ok(2.5));
        for text in ["-1", "nan", "1001", "x"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
        assert_eq!(parse_warm_up("0"), Ok(Duration::ZERO));
        assert!(parse_warm_up("-1").is_err());
    }
}
