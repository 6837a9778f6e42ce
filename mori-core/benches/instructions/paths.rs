//! The paths and their limits.
//!
//! Each function is counted alone, from its call to its return, once. What it works on is prepared before and dropped after.
//! A limit is about a quarter above what the path takes with the compiler and the profile of today, and at least four
//! instructions above it: room for another version of the compiler, and none for a lock, an allocation or a second pass.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, reason = "what the macros write")]

use std::hint::black_box;

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};
use mori_core::{Completer, Origin, Outcome, Status, StatusCode, Tag, scan, wait_all};

const MANY: usize = 1024;

/// Fails the row that takes more instructions.
fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut counter = Callgrind::with_args(["--cache-sim=no"]);
    counter.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(counter);
    config
}

/// Prepared values outlive the count.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn terminal() -> &'static Status {
    kept(Status::succeeded(Tag(0)))
}

fn running() -> &'static (Completer, Status) {
    let (completer, status) = Status::pair(Origin::detached());
    completer.submit();
    kept((completer, status))
}

fn many() -> &'static [Status] {
    kept((0..MANY).map(|_| Status::succeeded(Tag(0))).collect::<Vec<_>>())
}

/// A whole life, the allocator's part included.
fn live() -> StatusCode {
    let (completer, status) = Status::pair(Origin::detached());
    completer.submit();
    completer.succeed();
    black_box(status).code()
}

/// The allocator's first block is dearer than the later ones.
fn warm() {
    black_box(live());
}

#[library_benchmark(config = at_most(17))]
#[bench::terminal(terminal())]
fn wait_terminal(status: &'static Status) -> StatusCode {
    status.wait(None)
}

#[library_benchmark(config = at_most(11))]
#[bench::terminal(terminal())]
#[bench::running(&running().1)]
fn code(status: &'static Status) -> StatusCode {
    status.code()
}

#[library_benchmark(config = at_most(50))]
#[bench::without_waiter(&running().0)]
fn succeed(completer: &'static Completer) {
    completer.succeed();
}

#[library_benchmark(config = at_most(390))]
#[bench::one(warm())]
fn create_succeed_drop((): ()) -> StatusCode {
    live()
}

#[library_benchmark(config = at_most(4400))]
#[bench::terminal_1024(many())]
fn scan_many(statuses: &'static [Status]) -> Outcome {
    scan(statuses)
}

#[library_benchmark(config = at_most(4400))]
#[bench::terminal_1024(many())]
fn wait_for_all(statuses: &'static [Status]) -> Outcome {
    wait_all(statuses, None)
}

library_benchmark_group!(
    name = hot,
    benchmarks = [wait_terminal, code, succeed, create_succeed_drop, scan_many, wait_for_all]
);
