//! The conformance suite over the guest's devices: one device, four queue pairs, polling. Elsewhere it is skipped by name.

#[path = "support/guest.rs"]
mod guest;

use std::process::ExitCode;

use guest::Devices;
use mori_rdma::Completion;

fn main() -> ExitCode {
    guest::main(Devices::One, 4, Completion::Polling)
}
