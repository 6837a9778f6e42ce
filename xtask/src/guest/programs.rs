//! The programs that the guest runs: the tests that need real devices. A program that they start is built with them, as for any
//! integration test.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::workspace::{Crate, TargetKind, Workspace, cargo_command};

/// How the names of integration tests begin that run in the guest. On the host they skip what needs a device.
const START: &str = "guest_";

/// The feature with which crates that have it are built.
const FEATURE: &str = "rdma";

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// Crate and test, for people.
    pub(super) name: String,
    /// The crate's folder, in which cargo would run it.
    pub(super) folder: PathBuf,
    /// The program.
    pub(super) path: PathBuf,
}

/// The names of the tests of a crate that run in the guest.
fn names(of: &Crate) -> Vec<String> {
    let tests = of.targets.iter().filter(|target| target.kind == TargetKind::Test);
    let tests = tests.map(|target| target.name.clone());
    tests.filter(|name| name.starts_with(START)).collect()
}

/// Builds every test that runs in the guest, or those of the given names.
///
/// # Errors
///
/// When one of them does not build, or there is none of a given name.
pub(super) fn build(workspace: &Workspace, only: &[String]) -> Result<Vec<Program>> {
    let all: Vec<String> = workspace.crates.iter().flat_map(names).collect();
    if let Some(unknown) = only.iter().find(|name| !all.contains(name)) {
        bail!("no test of the guest is called `{unknown}`; there are {}", all.join(", "));
    }
    let mut programs = Vec::new();
    for of in &workspace.crates {
        let wanted: Vec<String> =
            names(of).into_iter().filter(|name| only.is_empty() || only.contains(name)).collect();
        if wanted.is_empty() {
            continue;
        }
        let mut arguments = vec!["test".to_owned(), "--no-run".to_owned()];
        arguments.extend(wanted.iter().flat_map(|name| ["--test".to_owned(), name.clone()]));
        for (name, path) in compile(workspace, of, &arguments)? {
            if wanted.contains(&name) {
                let folder = workspace.root.join(&of.dir);
                programs.push(Program { name: format!("{}/{name}", of.name), folder, path });
            }
        }
    }
    Ok(programs)
}

/// Runs cargo for one crate; returns the programs with the names of their targets.
fn compile(workspace: &Workspace, of: &Crate, arguments: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo_command();
    command.args(arguments).args(["--package", &of.name, "--message-format=json-render-diagnostics"]);
    if of.features.contains_key(FEATURE) {
        command.args(["--features", FEATURE]);
    }
    run(command.current_dir(&workspace.root))
}

fn run(command: &mut Command) -> Result<Vec<(String, PathBuf)>> {
    let output = command.stderr(Stdio::inherit()).output().context("cargo does not run")?;
    if !output.status.success() {
        bail!("the tests of the guest do not build ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect())
}

/// The program that one of cargo's messages tells of.
fn program(message: &str) -> Option<(String, PathBuf)> {
    let message: Message = serde_json::from_str(message).ok()?;
    Some((message.target?.name, message.executable?))
}

/// The part of cargo's messages that is read.
#[derive(Deserialize)]
struct Message {
    target: Option<Named>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// How many tests have passed and failed, from what the test programs print when they end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Tests that have passed.
    pub(super) passed: u64,
    /// Tests that have failed.
    pub(super) failed: u64,
}

impl Count {
    /// Takes a line into account that a test program has printed.
    pub(super) fn line(&mut self, line: &str) {
        let Some(rest) = line.split_once("test result: ").map(|(_, rest)| rest) else { return };
        let number = |word: &str| {
            let before = rest.split(word).next()?;
            before.split_whitespace().next_back()?.parse::<u64>().ok()
        };
        self.passed += number(" passed").unwrap_or(0);
        self.failed += number(" failed").unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Target;

    #[test]
    fn only_integration_tests_of_the_name_run_in_the_guest() {
        let target = |kind, name: &str| Target { kind, name: name.to_owned(), path: String::new() };
        let of = Crate {
            targets: vec![
                target(TargetKind::Lib, "guest_lib"),
                target(TargetKind::Test, "guest_verbs"),
                target(TargetKind::Test, "conformance"),
            ],
            ..Crate::default()
        };
        assert_eq!(names(&of), ["guest_verbs"]);
    }

    #[test]
    fn a_message_with_a_program_names_it() {
        let message = r#"{"reason":"compiler-artifact","target":{"name":"guest_verbs"},"executable":"/t/guest_verbs-1"}"#;
        assert_eq!(program(message), Some(("guest_verbs".to_owned(), PathBuf::from("/t/guest_verbs-1"))));
        assert_eq!(
            program(r#"{"reason":"compiler-artifact","target":{"name":"libc"},"executable":null}"#),
            None
        );
        assert_eq!(program("   Compiling"), None);
    }

    #[test]
    fn the_closing_lines_are_added_up() {
        let mut count = Count::default();
        count.line("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured");
        count.line("test result: FAILED. 3 passed; 2 failed; 0 ignored");
        count.line("running 3 tests");
        assert_eq!(count, Count { passed: 15, failed: 2 });
    }
}
