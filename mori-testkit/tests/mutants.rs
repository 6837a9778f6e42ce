//! The suite's own test: each broken backend is caught by the case that is named for its flaw.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mori_testkit::{CASES, FakeConfig, FakeHarness, Flaw, mutants, run_some};

#[test]
fn every_mutant_is_caught_by_its_case() {
    let mutants = mutants();
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    // Several at a time: most of them wait for a bound to pass.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::SeqCst)) {
                    match mutant.catch() {
                        Ok(problem) => {
                            println!("{:?} is caught by {}: {problem}", mutant.flaw, mutant.caught_by);
                        }
                        Err(why) => missed.lock().unwrap().push(format!("{:?}: {why}", mutant.flaw)),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}

#[test]
fn every_mutant_has_a_flaw_of_its_own_and_a_case_that_exists() {
    let mutants = mutants();
    let flaws: HashSet<_> = mutants.iter().map(|mutant| mutant.flaw).collect();
    assert_eq!(flaws.len(), mutants.len());
    for mutant in &mutants {
        assert!(CASES.iter().any(|case| case.name == mutant.caught_by), "{mutant:?}");
        assert_eq!(mutant.healthy().flaw, None);
    }
    assert!(!flaws.contains(&Flaw::CompletesAgain));
}

/// S2: a second, other result of a transfer that has ended changes nothing that a case could see.
#[test]
fn a_second_result_is_harmless() {
    let harness = FakeHarness::new(FakeConfig::notified().flawed(Flaw::CompletesAgain));
    let report = run_some(harness, |case| case.rules.contains('S') || case.rules.contains('A'));
    assert!(report.passed() > 20, "{report}");
    report.assert_good();
}
