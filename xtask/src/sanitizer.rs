//! `cargo xtask tsan`: the unit tests and models of `mori-core` on real threads under ThreadSanitizer.
//!
//! The standard library comes built without the sanitizer. What it does between threads by itself (its locks when they are
//! contended, its channels, scoped threads) looks like a race then, so the run takes the tests that stand on core's own locks
//! alone, and leaves out the reports on the reference counts of std and on the test harness's channel.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};

/// The only target whose sanitizer is known to work with the stable compiler.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// std counts references with fences, which the sanitizer does not see; the harness has a channel of std's.
const LEFT_OUT: &str = "race:<alloc::sync::Arc<*as core::ops::drop::Drop>::drop\n\
                        race:<alloc::sync::Weak<*as core::ops::drop::Drop>::drop\n\
                        race:std::sync::mpmc::*\n";

/// Builds and runs the tests; returns whether nothing was reported.
///
/// # Errors
///
/// On another target, or when cargo does not run.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        bail!("ThreadSanitizer is set up for {TARGET} only");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root.join("target"), PathBuf::from);
    let folder = target.join("tsan");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let left_out = folder.join("left-out");
    fs::write(&left_out, LEFT_OUT).with_context(|| format!("cannot write {}", left_out.display()))?;
    let status = Command::new(cargo())
        .args(["test", "--package", "mori-core", "--lib", "--target", TARGET, "--target-dir"])
        .arg(&folder)
        .current_dir(&workspace.root)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // The sanitizer is an unstable option of the stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer")
        .env("TSAN_OPTIONS", format!("suppressions={}", left_out.display()))
        .status()
        .context("cargo does not run")?;
    Ok(status.success())
}
