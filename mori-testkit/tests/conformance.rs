//! The fake with a notifier against the whole suite.

use mori_testkit::{FakeConfig, FakeHarness};

mori_testkit::conformance_suite!(FakeHarness::new(FakeConfig::notified()));
