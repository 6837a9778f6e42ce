//! The conformance suite over loopback: several connections and threads, small stripes and chunks, a secret.

mod support;

mori_testkit::conformance_suite!(support::harness::TcpHarness(support::harness::config()));
