#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod config;
mod control;
mod flow;
mod plan;
mod send_queue;
mod sync;

#[allow(unsafe_code, reason = "the one module that calls the foreign library")]
pub mod verbs;

pub use config::{Completion, Dmabuf, DmabufExporter, RdmaConfig};
