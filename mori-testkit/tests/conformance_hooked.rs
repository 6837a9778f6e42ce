//! The fake that has to be polled and has a blocking hook, against the whole suite.

use mori_testkit::{FakeConfig, FakeHarness};

mori_testkit::conformance_suite!(FakeHarness::new(FakeConfig::polled(true)));
