#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod backend;
mod blob;
mod config;
mod connect;
mod control;
mod core;
mod devices;
mod flow;
mod memory;
mod nic;
mod notes;
mod notifier;
mod passive;
mod peer;
mod plan;
mod send_queue;
mod service;
mod session;
mod stats;
mod sync;
pub mod topology;
mod wire;

#[allow(unsafe_code, reason = "the one module that calls the foreign library")]
pub mod verbs;

pub use backend::RdmaBackend;
pub use config::{Completion, Dmabuf, DmabufExporter, RdmaConfig};
pub use stats::{LaneStats, PassiveStats, RdmaStats};

use std::panic::{self, AssertUnwindSafe};

/// Runs what may call into the application (an observer, a waker): a panic there must not take a thread of ours with it, and
/// everything that thread carries. `None` after a panic.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    if result.is_err() {
        tracing::error!("an observer or waker of the application panicked when it was told");
    }
    result.ok()
}
