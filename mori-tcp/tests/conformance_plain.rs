//! The conformance suite over loopback: one connection, one thread, no busy window.

mod support;

use std::time::Duration;

use mori_tcp::TcpConfig;
use support::harness::{TcpHarness, config};

mori_testkit::conformance_suite!(TcpHarness(TcpConfig {
    connections: 1,
    io_threads: 1,
    busy_window: Duration::ZERO,
    secret: None,
    ..config()
}));
