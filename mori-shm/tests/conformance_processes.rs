//! The conformance suite between two processes: the submitter here, the targets in a child.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program and its report")]

mod support;

use mori_testkit::{Need, Verdict, run_some};
use support::proxy::TwoProcesses;

#[test]
fn child() {
    support::child::run_if_asked();
}

fn run(mode: &'static str) {
    // The suite takes messages at the target's queue, which is in the child here; `processes.rs` looks there.
    let report = run_some(TwoProcesses::new(mode).unwrap(), |case| !case.needs.contains(&Need::Notify));
    println!("{report}");
    report.assert_good();
    let ran = report.entries().iter().filter(|(_, verdict)| *verdict == Verdict::Passed).count();
    assert!(ran > 80, "only {ran} cases ran");
}

#[test]
fn by_the_threads() {
    run("threads");
}

#[test]
fn by_default() {
    run("default");
}
