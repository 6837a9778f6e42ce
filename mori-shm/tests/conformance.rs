//! The conformance suite in one process: several threads, small steps, a secret, nothing copied by the submitter.

mod support;

mori_testkit::conformance_suite!(support::harness::ShmHarness(support::harness::config()));
