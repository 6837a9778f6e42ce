#![doc = include_str!("../README.md")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for maintainers talks to its terminal"
)]

mod arrows;
mod ci;
mod guest;
mod instructions;
mod models;
mod sanitizer;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use workspace::Workspace;

/// Maintainers' commands of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run what CI runs, and close with a table of what passed, failed and was skipped.
    Ci {
        /// Go on after a step has failed.
        #[arg(long)]
        keep_going: bool,
        /// Count a missing tool as a failure instead of skipping its step.
        #[arg(long)]
        require_tools: bool,
        /// Print the steps and run none.
        #[arg(long)]
        list: bool,
        /// Run only these steps (repeat, or separate by commas).
        #[arg(long, value_name = "STEP", value_delimiter = ',')]
        only: Vec<String>,
        /// Leave these steps out (repeat, or separate by commas).
        #[arg(long, value_name = "STEP", value_delimiter = ',')]
        skip: Vec<String>,
    },
    /// Install the tools that the steps need.
    Setup {
        /// Only print what is missing; status 1 if something that is needed is.
        #[arg(long)]
        check: bool,
        /// Tools to install; without names, all that are not optional.
        tools: Vec<String>,
    },
    /// Check the rules over the source that the compiler does not know.
    Tidy {
        /// Print the rules and check none.
        #[arg(long)]
        list: bool,
    },
    /// Check which crate depends on which.
    Arrows,
    /// Run the tests of the core and of the TCP transport on real threads under ThreadSanitizer.
    Tsan,
    /// Count the instructions of the waits' hot paths under valgrind, and hold them to their limits.
    Instructions,
    /// Run the tests that need RDMA devices in a guest that has them.
    RdmaGuest(RdmaGuest),
    /// Run the models of the waits, and every mutant against the model that has to reject it.
    Loom {
        /// Only models and mutants with this in their names.
        filter: Option<String>,
    },
}

/// What the guest is to do, and its size.
#[derive(Args)]
struct RdmaGuest {
    /// Open a shell in the guest instead.
    #[arg(long, group = "instead")]
    shell: bool,
    /// Run a line of bash in the guest instead.
    #[arg(long, value_name = "LINE", group = "instead")]
    command: Option<String>,
    /// Measure what perftest moves between the guest's devices instead, as lines of `operation,bytes,mib_per_s`.
    #[arg(long, group = "instead")]
    yardstick: bool,
    /// Run only the integration tests of this name (repeat, or separate by commas).
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "instead")]
    test: Vec<String>,
    /// Virtual processors.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Memory in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,
    /// Seconds after which the guest is ended, whatever it does; a shell has all the time.
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Arguments for each test program, for example a part of a test's name.
    #[arg(last = true, conflicts_with = "instead")]
    arguments: Vec<String>,
}

impl RdmaGuest {
    fn size(&self) -> guest::Size {
        guest::Size { cpus: self.cpus, memory: self.memory, timeout: self.timeout }
    }

    fn work(self) -> guest::Work {
        match self.command {
            Some(line) => guest::Work::Command(line),
            None if self.shell => guest::Work::Shell,
            None if self.yardstick => guest::Work::Yardstick,
            None => guest::Work::Tests { only: self.test, arguments: self.arguments },
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether what was checked is as it should be.
fn run(task: Task) -> Result<bool> {
    match task {
        Task::Ci { list: true, .. } => {
            ci::list();
            Ok(true)
        }
        Task::Ci { keep_going, require_tools, only, skip, list: false } => {
            ci::run(&Workspace::load()?, &ci::Options { keep_going, require_tools, only, skip })
        }
        Task::Setup { check, tools } => tools::setup(&tools, check),
        Task::Tidy { list: true } => {
            tidy::list();
            Ok(true)
        }
        Task::Tidy { list: false } => Ok(tidy::run(&Workspace::load()?)?.0),
        Task::Arrows => Ok(arrows::run(&Workspace::load()?)?.0),
        Task::Tsan => sanitizer::run(&Workspace::load()?),
        Task::Instructions => Ok(instructions::run(&Workspace::load()?)?.0),
        Task::RdmaGuest(asked) => {
            let size = asked.size();
            Ok(guest::run(&Workspace::load()?, &size, &asked.work())?.0)
        }
        Task::Loom { filter } => Ok(models::run(&Workspace::load()?, filter.as_deref())?.0),
    }
}
