//! How close to bare `process_vm_readv` and `process_vm_writev` the transport runs: `cargo bench -p mori-shm`.
//!
//! Two processes: this one submits, its child owns the memory. The yardstick is measured in the same run, interleaved, over the
//! same memory and with as many threads: for throughput, each thread loops over its share of the pieces, one call for each
//! piece, or for 1024 of them where they are small; for latency, one call for each transfer. All memory is touched
//! beforehand. Throughput rows are in GB/s (10⁹ bytes), latency rows in microseconds; CPU seconds count both processes, per GB
//! or per million transfers. Every row's ratio is the median of the ratios of its rounds. `--json` prints one JSON object
//! per row, `--quick` takes fewer rounds, `--row=TEXT` only the rows whose name contains the text, `--threads=N` and
//! `--busy-us=N` change the configuration.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::undocumented_unsafe_blocks,
    reason = "a benchmark prints, and may panic"
)]

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
#[path = "raw/linux.rs"]
mod linux;

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}
