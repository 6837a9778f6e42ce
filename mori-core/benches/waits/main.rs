//! What the waits cost: `cargo bench -p mori-core`.
//!
//! Prints a table, or with `--json` one JSON object per figure and line. `--quick` takes fewer samples and leaves out what
//! needs seconds; a word chooses the figures with it in their names. Every figure is the median of its samples, because
//! the machine has other things to do; the yardsticks in the same run are raw loops over the same statuses.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and stops at what it does not expect"
)]

mod fake;
mod figures;
mod idle;
mod in_flight;
mod late;
mod machine;
mod single;
mod terminal;

use figures::Figures;

fn main() {
    let mut figures = Figures::from_arguments(std::env::args().skip(1));
    single::sizes(&mut figures);
    single::terminal_wait(&mut figures);
    single::life(&mut figures);
    single::updates(&mut figures);
    single::wake(&mut figures);
    terminal::many(&mut figures);
    in_flight::many(&mut figures);
    in_flight::polled(&mut figures);
    late::bounded(&mut figures);
    idle::blocked(&mut figures);
}
