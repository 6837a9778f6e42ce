//! The conformance suite over the simulated library: one device, one queue pair, events.

mod support;

use mori_rdma::Completion;
use support::harness::{RdmaHarness, config};

mori_testkit::conformance_suite!(RdmaHarness(config(1, 1, Completion::Events)));
