//! The conformance suite between two processes: the submitter here, the targets in a child.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program and its report")]

mod support;

use mori_testkit::{Verdict, run_all};
use mori_xgmi::Completion;
use support::proxy::TwoProcesses;

#[test]
fn child() {
    support::child::run_if_asked();
}

fn run(completion: Completion) {
    let report = run_all(TwoProcesses::new(completion).unwrap());
    println!("{report}");
    report.assert_good();
    let ran = report.entries().iter().filter(|(_, verdict)| *verdict == Verdict::Passed).count();
    assert!(ran > 40, "only {ran} cases ran");
    let misuse = support::MACHINE.0.report().unwrap().misuse;
    assert!(misuse.is_empty(), "{misuse:?}");
}

#[test]
fn without_a_notifier() {
    run(Completion::EventQuery);
}

#[test]
fn with_callbacks() {
    run(Completion::HostCallback);
}
