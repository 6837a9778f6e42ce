//! The conformance suite over the simulated library: two devices, four queue pairs, events.

mod support;

use mori_rdma::Completion;
use support::harness::{RdmaHarness, config};

mori_testkit::conformance_suite!(RdmaHarness(config(2, 4, Completion::Events)));
