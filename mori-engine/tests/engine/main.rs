//! The engine over scripted backends: routes, registration, transfers, waits, lifetimes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake;

mod batches;
#[cfg(feature = "tcp")]
mod futures;
mod lifetimes;
#[cfg(feature = "tcp")]
mod notes;
mod peers;
mod registration;
mod routes;
#[cfg(all(feature = "tcp", feature = "shm", target_os = "linux"))]
mod shm;
mod stress;
#[cfg(feature = "tcp")]
mod tcp;
mod transfers;
mod waits;
