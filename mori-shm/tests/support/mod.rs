//! Two or more backends on one host, without an engine.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses its own part; a test may panic"
)]

pub(crate) mod harness;
pub(crate) mod relay;
