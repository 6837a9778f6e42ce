//! The suite as a program: what it reports, skips, and does not let pass.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use mori_core::{Backend, Capabilities, Error, ErrorKind, Result};
use mori_testkit::{
    Abilities, Bounds, CASES, FakeConfig, FakeFabric, FakeHarness, Flaw, Harness, Node, Verdict, run_all,
    run_some,
};

/// Nodes with no hands on them, of a backend that can do next to nothing.
struct Least(FakeFabric);

struct LeastNode(Arc<dyn Backend>);

impl Node for LeastNode {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.0)
    }
}

impl Harness for Least {
    fn name(&self) -> String {
        "the least that there is".to_owned()
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        let capabilities = Capabilities { host_memory: true, ..Capabilities::default() };
        Ok(Box::new(LeastNode(self.0.backend(FakeConfig { capabilities, ..FakeConfig::polled(false) }))))
    }
}

/// A harness that cannot make a node.
struct Nothing;

impl Harness for Nothing {
    fn name(&self) -> String {
        "nothing".to_owned()
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        Err(Error::new(ErrorKind::Unavailable, "no such device"))
    }

    fn abilities(&self) -> Abilities {
        Abilities::ALL
    }
}

#[test]
fn cases_have_names_and_rules_of_their_own() {
    let names: HashSet<_> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), CASES.len());
    assert!(CASES.iter().all(|case| !case.rules.is_empty()));
}

/// Every rule of the contract that a backend has a part in has a case. S1 to S3, W4, W5 and A1 to A12 are the core's as well.
#[test]
fn every_rule_of_the_contract_has_a_case() {
    let has = |rule: &str| CASES.iter().any(|case| case.rules.split([',', ' ']).any(|part| part == rule));
    let rules = (1..=7).map(|n| format!("S{n}"));
    let rules = rules.chain((1..=10).filter(|n| *n != 4).map(|n| format!("W{n}")));
    let rules = rules.chain((1..=12).map(|n| format!("A{n}"))).chain((1..=4).map(|n| format!("E{n}")));
    for rule in rules.chain(["F1".to_owned()]) {
        assert!(has(&rule), "no case for {rule}");
    }
}

#[test]
fn a_skip_names_what_is_declared_absent() {
    let report = run_all(Least(FakeFabric::new()));
    report.assert_good();
    assert_eq!(report.passed() + report.skipped(), CASES.len());
    for (name, verdict) in report.entries() {
        let case = CASES.iter().find(|case| case.name == *name).unwrap();
        match verdict {
            Verdict::Skipped(why) => {
                assert!(!case.needs.is_empty(), "{name} needs nothing and is skipped");
                assert!(why.contains("declares no") || why.contains("has no notifier"), "{name}: {why}");
            }
            Verdict::Passed => assert!(case.needs.is_empty(), "{name} needs {:?} and ran", case.needs),
            Verdict::Failed(problem) => panic!("{name}: {problem}"),
        }
    }
    let text = report.to_string();
    assert!(
        text.contains("skipped  no_byte_of_a_cancelled_read_lands: the backend declares no `cancel`"),
        "{text}"
    );
}

#[test]
fn a_run_without_a_case_is_not_good() {
    let none = run_some(Least(FakeFabric::new()), |_| false);
    assert_eq!(none.entries().len(), 0);
    assert!(!none.is_good());
    let skipped = run_some(Least(FakeFabric::new()), |case| case.name.contains("cancelled_read"));
    assert_eq!(skipped.skipped(), 1);
    assert!(!skipped.is_good(), "a run with skips only passes");
    let broken = run_all(Nothing);
    assert!(!broken.is_good());
    assert!(broken.to_string().contains("no such device"), "{broken}");
}

#[test]
fn a_case_that_hangs_fails_by_its_name() {
    let bounds = Bounds { case: Duration::from_millis(300), ..Bounds::default() };
    let harness = FakeHarness::new(FakeConfig::notified().flawed(Flaw::SubmitBlocks)).with_bounds(bounds);
    let report = run_some(harness, |case| {
        ["submit_does_not_wait_for_the_peer", "an_empty_batch_succeeds"].contains(&case.name)
    });
    assert_eq!((report.passed(), report.failed()), (1, 1), "{report}");
    let text = report.to_string();
    assert!(text.contains("submit_does_not_wait_for_the_peer: the case hangs"), "{text}");
}

#[test]
fn a_case_that_panics_fails_with_the_panic_s_words() {
    let harness = FakeHarness::new(FakeConfig::notified().flawed(Flaw::PanicsOnGarbage));
    let report = run_some(harness, |case| case.name == "malformed_engine_blobs_are_refused");
    assert!(report.to_string().contains("panicked: index out of bounds"), "{report}");
}
