//! The encoding of descriptors, against its written form (the documentation of `EngineDesc` and `MemoryDesc`).

#![cfg(not(any(mori_loom, mori_shuttle)))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod encoded;
mod generated;
mod golden;
mod meaning;
mod refused;
mod values;
