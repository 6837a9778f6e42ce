//! The conformance suite over the simulated runtime, without a notifier. What needs held transfers is in `conformance_hold.rs`.

mod support;

mori_testkit::conformance_suite!(support::SimHarness::new(mori_xgmi::Completion::EventQuery, false));
