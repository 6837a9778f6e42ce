//! The program `mori`; all of it is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    mori_cli::run::run(std::env::args_os()).into()
}
