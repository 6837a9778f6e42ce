//! The conformance suite over the simulated runtime, without a notifier.

mod support;

mori_testkit::conformance_suite!(support::SimHarness::new(mori_xgmi::Completion::EventQuery));
