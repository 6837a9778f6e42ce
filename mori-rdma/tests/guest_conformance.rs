//! The conformance suite over the guest's devices: one device each, one queue pair, events. Elsewhere it is skipped by name.

#[path = "support/guest.rs"]
mod guest;

use std::process::ExitCode;

use guest::Devices;
use mori_rdma::Completion;

fn main() -> ExitCode {
    guest::main(Devices::InTurns, 1, Completion::Events)
}
