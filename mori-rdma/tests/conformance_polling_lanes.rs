//! The conformance suite over the simulated library: one device, four queue pairs, polling.

mod support;

use mori_rdma::Completion;
use support::harness::{RdmaHarness, config};

mori_testkit::conformance_suite!(RdmaHarness(config(1, 4, Completion::Polling)));
