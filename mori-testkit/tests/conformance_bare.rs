//! The fake that declares nothing but host memory, against the whole suite.

use mori_core::Capabilities;
use mori_testkit::{FakeConfig, FakeHarness};

mori_testkit::conformance_suite!(FakeHarness::new(FakeConfig {
    capabilities: Capabilities { host_memory: true, ..Capabilities::default() },
    ..FakeConfig::notified()
}));
