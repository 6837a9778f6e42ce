#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod backend;
mod blob;
mod config;
mod device;
mod exports;
#[allow(unsafe_code, reason = "the one module that calls the foreign library")]
mod hip;
mod keeper;
mod lease;
mod peer;
mod runtime;
mod session;
mod shared;
mod sync;
mod topology;
mod transfer;

pub use backend::XgmiBackend;
pub use config::{Completion, XgmiConfig};
pub use runtime::{Device, Runtime};
