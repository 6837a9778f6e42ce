//! The conformance suite over the guest's devices: one device, one queue pair, events. Elsewhere it is skipped by name.

#[path = "support/guest.rs"]
mod guest;

use std::process::ExitCode;

use mori_rdma::Completion;

fn main() -> ExitCode {
    guest::main(false, 1, Completion::Events)
}
