//! The conformance suite over the simulated library: two devices, one queue pair, polling.

mod support;

use mori_rdma::Completion;
use support::harness::{RdmaHarness, config};

mori_testkit::conformance_suite!(RdmaHarness(config(2, 1, Completion::Polling)));
