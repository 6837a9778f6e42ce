//! What several tests of the whole transport share: backends over the simulated library.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod harness;
#[path = "../../../mori-tcp/tests/support/relay.rs"]
pub(crate) mod relay;
