//! The conformance suite in one process with the default configuration: one step for most transfers, small ones by the
//! submitting thread.

mod support;

mori_testkit::conformance_suite!(support::harness::ShmHarness(mori_shm::ShmConfig::default()));
