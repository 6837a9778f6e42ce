#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod backend;
#[cfg(target_os = "linux")]
mod bare;
#[cfg(target_os = "linux")]
mod blob;
mod config;
#[cfg(target_os = "linux")]
mod conn;
#[cfg(target_os = "linux")]
mod control;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod handshake;
mod obstacle;
#[cfg(target_os = "linux")]
mod outbox;
#[cfg(target_os = "linux")]
mod page;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
mod regions;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod sync;
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "the one module that talks to the system without Rust's guarantees")]
mod sys;
#[cfg(target_os = "linux")]
mod target;
#[cfg(target_os = "linux")]
mod transfer;
#[cfg(target_os = "linux")]
mod waiter;
#[cfg(target_os = "linux")]
mod wire;

#[cfg(target_os = "linux")]
pub use backend::ShmBackend;
#[cfg(target_os = "linux")]
pub use bare::BareProcess;
pub use config::{ShmConfig, Tracers};
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{BareProcess, ShmBackend};
pub use mori_core::Secret;
pub use obstacle::{HostFacts, Obstacle};

/// Runs what may call into the application (an observer, a waker): a panic there must not take a thread of ours with it, and
/// everything that thread carries. `None` after a panic.
#[cfg(target_os = "linux")]
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    if result.is_err() {
        tracing::error!("an observer or waker of the application panicked when it was told");
    }
    result.ok()
}

/// Sleeps until notified, or for no reason; `false` when the deadline has passed.
#[cfg(target_os = "linux")]
fn sleep<T>(
    condvar: &sync::Condvar,
    guard: &mut sync::MutexGuard<'_, T>,
    deadline: mori_core::Deadline,
) -> bool {
    match deadline {
        mori_core::Deadline::Never => condvar.wait(guard),
        mori_core::Deadline::At(point) => return !condvar.wait_until(guard, point).timed_out(),
    }
    true
}
