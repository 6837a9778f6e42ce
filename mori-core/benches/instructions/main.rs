//! How many instructions the hot paths of the waits take, counted by valgrind and held to limits: `cargo xtask instructions`.
//!
//! A count does not depend on what else the machine does, so a limit can stand close to it. The counting needs valgrind and
//! a runner; the configuration `mori_instructions` of the compiler, which the command sets, brings them in. Without it this
//! program has nothing to count and nothing to link.

#[cfg(mori_instructions)]
mod paths;

#[cfg(mori_instructions)]
use paths::hot;

#[cfg(mori_instructions)]
gungraun::main!(library_benchmark_groups = hot);

#[cfg(not(mori_instructions))]
#[allow(clippy::print_stderr, reason = "a benchmark talks to its terminal")]
fn main() {
    eprintln!("instructions are counted by `cargo xtask instructions`");
}
