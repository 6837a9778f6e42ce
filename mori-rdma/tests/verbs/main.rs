//! The verbs seam over the simulated library: owners, errors, posting, completions, events.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

mod completions;
mod data;
mod errors;
mod events;
mod owners;
mod posts;
mod support;
mod threads;
