//! The example backend against the whole suite.

#[path = "../examples/local/backend.rs"]
mod backend;
#[path = "../examples/local/harness.rs"]
mod harness;

mori_testkit::conformance_suite!(harness::LocalHarness);
