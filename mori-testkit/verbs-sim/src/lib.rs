#![doc = include_str!("../README.md")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a C interface for tests: each block is one step of one documented operation"
)]

mod call;
#[cfg(test)]
mod checks;
pub mod client;
mod completion;
mod config;
mod control;
mod device;
mod engine;
mod events;
mod faults;
mod memory;
mod queue;
mod types;
mod world;

pub use client::{Report, Simulation};
