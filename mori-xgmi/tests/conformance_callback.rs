//! The conformance suite over the simulated runtime, with callbacks of its streams as notifier.

mod support;

mori_testkit::conformance_suite!(support::SimHarness::new(mori_xgmi::Completion::HostCallback));
