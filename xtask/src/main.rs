#![doc = include_str!("../README.md")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for maintainers talks to its terminal"
)]

mod arrows;
mod ci;
mod instructions;
mod models;
mod sanitizer;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

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
    /// Run the models of the waits, and every mutant against the model that has to reject it.
    Loom {
        /// Only models and mutants with this in their names.
        filter: Option<String>,
    },
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
        Task::Loom { filter } => Ok(models::run(&Workspace::load()?, filter.as_deref())?.0),
    }
}
