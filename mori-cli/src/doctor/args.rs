//! The command line of `mori doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::parse_seconds;

/// Options of `mori doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// Also try each transport with the `mori serve` at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub peer: Option<String>,
    /// Bound on all that is tried with the peer, in seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_seconds, requires = "peer")]
    pub timeout: Duration,
    /// File with the secret that both sides share
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub secret_file: Option<PathBuf>,
    /// Print the findings as one JSON object
    #[arg(long)]
    pub json: bool,
}
