//! The Python package: the wheel is built and installed in a fresh virtual environment, where its example runs before
//! anything else is installed, and its tests afterwards.

use std::path::Path;
use std::process::Command;

use super::{Job, Plan};
use crate::workspace::Workspace;

/// Where the environments and the wheel are, relative to the root.
const FOLDER: &str = "target/python";

/// What the tests use besides the package itself; torch is used where somebody has installed it.
const FOR_TESTS: [&str; 3] = ["pytest", "numpy", "msgpack"];

/// The commands, or why there are none on this machine.
pub(super) fn plan(workspace: &Workspace) -> Plan {
    match obstacle() {
        None => Plan { jobs: jobs(&workspace.root), left_out: Vec::new() },
        Some(reason) => Plan { jobs: Vec::new(), left_out: vec![reason] },
    }
}

/// What this machine lacks, if it lacks something.
fn obstacle() -> Option<String> {
    let script = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))";
    match Command::new("python3").args(["-c", script]).output() {
        Err(error) => Some(format!("python3 does not run: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or("it is older than 3.9");
            Some(format!("python3 makes no virtual environments with pip: {said}"))
        }
    }
}

fn jobs(root: &Path) -> Vec<Job> {
    let folder = root.join(FOLDER);
    let path = |name: &str| folder.join(name).display().to_string();
    let tools = path("tools");
    let fresh = path("fresh");
    let wheels = path("wheels");
    let builder = folder.join("tools/bin/python");
    let python = folder.join("fresh/bin/python");
    let pip = |python: &Path, arguments: &[&str]| {
        Job::new(python, &["-m", "pip", "--quiet", "--disable-pip-version-check", "install"]).and(arguments)
    };
    vec![
        Job::new("python3", &["-m", "venv", &tools]),
        pip(&builder, &["maturin>=1.9,<2"]),
        // The profile of every other step, so that what they have built is used.
        Job::new(&builder, &["-m", "maturin", "build", "--profile", "dev", "--out", &wheels])
            .and(&["--manifest-path", "mori-python/Cargo.toml"]),
        Job::new("python3", &["-m", "venv", "--clear", &fresh]),
        // Without an index: the wheel needs nothing else.
        pip(&python, &["--no-index", "--find-links", &wheels, "mori-rs"]),
        Job::new(&python, &["mori-python/examples/two_processes.py"]),
        pip(&python, &FOR_TESTS),
        Job::new(&python, &["-m", "pytest", "-p", "no:cacheprovider", "mori-python/tests"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_runs_before_anything_but_the_wheel_is_installed() {
        let lines: Vec<String> = jobs(Path::new("/root-of-it")).iter().map(Job::line).collect();
        let place = |what: &str| lines.iter().position(|line| line.contains(what)).unwrap();
        assert!(place("maturin build") < place("--no-index"));
        assert!(place("venv --clear") < place("--no-index"));
        assert!(place("--no-index") < place("two_processes.py"));
        assert!(place("two_processes.py") < place("install pytest"));
        assert!(place("install pytest") < place("-m pytest"));
    }
}
