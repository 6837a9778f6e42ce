//! `mori bench`: how fast transfers are on this machine, and what is left of one after its end.
//!
//! A *sweep* measures rows (direction, size of a piece, pieces of a transfer, layout) between two processes, as an
//! application would: transfers through an engine's session, waited for with `wait_all`. Throughput over loopback has
//! two or more steady states that a process keeps until its end, so the whole sweep is repeated with fresh
//! processes rather than each row for longer. A *baseline* measures raw sockets beside each row. A *fault* run
//! breaks transfers instead, and looks for bytes that change after their transfer has ended.

use std::path::Path;

pub mod args;
pub mod compare;
pub mod fault;
pub mod measure;
pub mod pair;
pub mod plan;
pub mod plot;
pub mod raw;
pub mod report;
pub mod table;
#[cfg(test)]
mod testing;
pub mod times;
pub mod verify;
pub mod yardstick;

use args::{BenchArgs, BenchCommand};
use measure::{Effort, Trouble};
use pair::{Pair, Site};
use plan::Walk;
use report::{Report, Setup, Sum};
use verify::Marked;

use crate::args::Transport;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::node;
use crate::run::print;
use crate::screen::Screen;
use crate::stop::Stop;

/// Runs `mori bench`.
///
/// # Errors
///
/// [`Failure`] when it cannot begin, or its output cannot be written.
pub fn bench(args: &BenchArgs, stop: &Stop) -> Result<Exit, Failure> {
    if let Some(BenchCommand::Compare(args)) = &args.command {
        return compare::run(args);
    }
    // A measurement is of one transport, whatever the machine has.
    let mut args = args.clone();
    if args.link.transport == Transport::Auto {
        args.link.transport = Transport::Tcp;
    }
    let args = &args;
    let secret = node::read_secret(args.link.secret_file.as_deref())?;
    if args.baseline && matches!(args.link.transport, Transport::Rdma | Transport::Xgmi) {
        let transport = args.link.transport;
        return Err(Failure::usage(format!("there is no --baseline for {transport}; leave it out")));
    }
    let site = Site::new(args, secret)?;
    if !args.fault.is_empty() {
        return fault::run(args, &site, stop);
    }
    // What cannot be written is told before anything is measured.
    for path in args.csv.iter().chain(&args.plot) {
        write(path, "")?;
    }
    let mut sweep = Sweep::new(args, &site, stop)?;
    let end = sweep.run();
    if let Err(Trouble::Failed(failure)) = &end
        && !sweep.has_rows()
    {
        // It could not begin.
        return Err(failure.clone());
    }
    let report = sweep.report(end);
    if let Some(path) = &args.csv {
        write(path, &table::csv(&report))?;
    }
    // A sweep that ends before its first row has nothing to draw.
    if let Some(path) = args.plot.as_ref().filter(|_| !report.rows.is_empty()) {
        write(path, &plot::svg(&report).map_err(Failure::internal)?)?;
    }
    let text = if args.json {
        serde_json::to_string(&report).map_err(Failure::internal)?
    } else {
        table::table(&report)
    };
    finish(&report, &text)
}

/// Prints a report; its status is the program's.
///
/// # Errors
///
/// None; the status says when it cannot be printed.
pub fn finish(report: &Report, text: &str) -> Result<Exit, Failure> {
    let printed = print(text);
    let exit =
        Exit::ALL.into_iter().find(|exit| exit.number() == report.exit_status).unwrap_or(Exit::Internal);
    Ok(if exit == Exit::Ok { printed } else { exit })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))
}

/// A sweep while it runs.
struct Sweep<'a> {
    args: &'a BenchArgs,
    site: &'a Site,
    stop: &'a Stop,
    effort: Effort,
    sums: Vec<(plan::Row, Sum)>,
    left_out: usize,
    peer: String,
    screen: Screen,
}

impl<'a> Sweep<'a> {
    fn new(args: &'a BenchArgs, site: &'a Site, stop: &'a Stop) -> Result<Self, Failure> {
        let (rows, left_out) =
            plan::rows(args.op.ops(), args.sizes(), args.batches(), args.layout.layouts(), args.total());
        if rows.is_empty() {
            return Err(Failure::usage(format!(
                "every transfer of this sweep is larger than {} bytes; raise --total, or give smaller --sizes or --batches",
                args.total()
            )));
        }
        let steps = rows.len() as u64 * u64::from(args.repeat());
        let sums = rows.into_iter().map(|row| (row, Sum::new(row))).collect();
        let screen = Screen::counting(Some(steps), "rows");
        Ok(Self { args, site, stop, effort: Effort::new(args), sums, left_out, peer: String::new(), screen })
    }

    /// Whether any row was measured.
    fn has_rows(&self) -> bool {
        self.sums.iter().any(|(_, sum)| sum.report().is_some())
    }

    fn run(&mut self) -> Result<(), Trouble> {
        let end = (0..self.args.repeat()).try_for_each(|_| {
            let mut pair = self.site.pair().map_err(Trouble::Failed)?;
            self.peer.clone_from(&pair.peer);
            (0..self.sums.len()).try_for_each(|index| self.row(&mut pair, index))
        });
        self.screen.clear();
        end
    }

    fn row(&mut self, pair: &mut Pair, index: usize) -> Result<(), Trouble> {
        let Some((row, sum)) = self.sums.get_mut(index) else { return Ok(()) };
        if self.stop.asked() {
            return Err(Trouble::Stopped);
        }
        self.screen.now(row.to_string());
        let walk = Walk::new(row, self.args.total(), self.effort.in_flight());
        let marked = if self.args.verify {
            Some(Marked::before(pair, *row, &walk).map_err(Trouble::Failed)?)
        } else {
            None
        };
        let measured = measure::measure(pair, *row, &walk, &self.effort, self.stop)?;
        if let Some(marked) = marked {
            marked.after(pair, &walk, measured.covered, self.args.timeout, self.stop)?;
        }
        let raw = measure::measure_raw(pair, *row, &walk, &measured)?;
        sum.add(&measured, raw);
        self.screen.step();
        Ok(())
    }

    fn report(&self, end: Result<(), Trouble>) -> Report {
        let (exit, reason) = match end {
            Ok(()) => (Exit::Ok, String::new()),
            Err(Trouble::Stopped) => {
                (Exit::Interrupted, "interrupted before the end of the sweep".to_owned())
            }
            Err(Trouble::Failed(failure)) => (failure.exit, failure.message),
        };
        if exit != Exit::Ok {
            self.screen.line(&reason);
        }
        Report {
            outcome: exit.name().to_owned(),
            exit_status: exit.number(),
            reason,
            setup: setup(self.args, self.site, self.peer.clone()),
            rows: self.sums.iter().filter_map(|(_, sum)| sum.report()).collect(),
            rows_left_out: self.left_out,
            faults: Vec::new(),
        }
    }
}

/// What is measured, over what.
fn setup(args: &BenchArgs, site: &Site, peer: String) -> Setup {
    Setup {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        transport: args.link.transport.to_string(),
        memory: site.medium.memory(),
        peer,
        connections: args.link.connections,
        threads: args.link.threads,
        workers: args.workers,
        depth: args.depth,
        sessions: !args.no_session,
        total: args.total(),
        seconds: args.time().as_secs_f64(),
        iterations: args.iterations,
        repeat: args.repeat(),
        verified: args.verify,
        baseline: args.baseline.then(|| site.yardstick().to_owned()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
    }
}
