//! The conformance suite over the guest's devices: two devices, one queue pair, polling. Elsewhere it is skipped by name.

#[path = "support/guest.rs"]
mod guest;

use std::process::ExitCode;

use guest::Devices;
use mori_rdma::Completion;

fn main() -> ExitCode {
    guest::main(Devices::Both, 1, Completion::Polling)
}
