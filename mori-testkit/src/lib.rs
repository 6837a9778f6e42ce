#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod check;
mod fake;
mod fake_harness;
mod faulty;
mod harness;
mod mutants;
mod suite;

pub use check::{CaseResult, Problem};
pub use fake::{FakeBackend, FakeConfig, FakeFabric};
pub use fake_harness::FakeHarness;
pub use faulty::{Fault, Faulty};
pub use harness::{Abilities, Bounds, Harness, Node};
pub use mutants::{Flaw, Mutant, mutants};
pub use suite::{
    Bench, CASES, Case, Declared, Need, Report, Verdict, conformance_main, declared, run_all, run_some,
};
