//! `cargo xtask tsan`: tests on real threads under ThreadSanitizer.
//!
//! The standard library comes built without the sanitizer. What it does between threads by itself (its locks when they are
//! contended, its channels, scoped threads) looks like a race then, on both sides of it in our code, so that no list of names
//! can tell it from a real one. The run takes the tests that stand on parking_lot and on atomics alone, and says which it
//! does not take and why. `xtask/tsan-left-out.txt` leaves reports out that have std itself on one side.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};

/// The only target whose sanitizer is known to work with the stable compiler.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Reports that are left out, relative to the root.
const LEFT_OUT: &str = "xtask/tsan-left-out.txt";

/// The tests that run, as arguments of `cargo test`.
const TAKEN: &[&[&str]] =
    &[&["--package", "mori-core", "--lib"], &["--package", "mori-tcp", "--lib", "--test", "data"]];

/// Tests with threads that do not run, and what of std's they use between them.
const NOT_TAKEN: &[(&str, &str)] = &[
    ("mori-engine", "the engine and its scripted backends use std's Mutex and RwLock"),
    (
        "the other integration tests of mori-tcp",
        "their relays and scripted peers use std's locks and channels, and some look at a region while bytes arrive",
    ),
    ("mori-testkit", "the fake backend and the suite use std's locks and channels"),
];

/// Builds and runs the tests, and says which it does not run; returns whether nothing was reported.
///
/// # Errors
///
/// On another target, without the list of what is left out, or when cargo does not run.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
        bail!("ThreadSanitizer is set up for {TARGET} only");
    }
    let left_out = workspace.root.join(LEFT_OUT);
    fs::metadata(&left_out).with_context(|| format!("{} is not there", left_out.display()))?;
    let mut clean = true;
    for tests in TAKEN {
        println!("---- {}", tests.join(" "));
        clean &= attempt(&workspace.root, tests, &left_out)?;
    }
    println!("left out, because std is built without the sanitizer:");
    for (tests, reason) in NOT_TAKEN {
        println!("- {tests}: {reason}");
    }
    Ok(clean)
}

fn attempt(root: &Path, tests: &[&str], left_out: &Path) -> Result<bool> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let status = Command::new(cargo())
        .arg("test")
        .args(tests)
        .args(["--target", TARGET, "--target-dir"])
        .arg(target.join("tsan"))
        .current_dir(root)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // The sanitizer is an unstable option of the stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer")
        .env("TSAN_OPTIONS", format!("suppressions={}", left_out.display()))
        .status()
        .context("cargo does not run")?;
    Ok(status.success())
}
