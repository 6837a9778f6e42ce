#![doc = include_str!("../README.md")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a C interface for tests: each block is one step of one documented operation"
)]

mod abi;
pub mod client;
mod config;
mod control;
mod memory;
mod queue;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks without poisoning: a stream's thread that dies must not take the rest of the test with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers of the runtime that the simulation returns.
mod code {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const INVALID_DEVICE_POINTER: i32 = 17;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const INVALID_CONTEXT: i32 = 201;
    pub(crate) const PEER_ACCESS_UNSUPPORTED: i32 = 217;
    pub(crate) const INVALID_HANDLE: i32 = 400;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub(crate) const PEER_ACCESS_NOT_ENABLED: i32 = 705;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
}
