//! The steps. A further one is a row in [`ALL`] and, if it needs a program of its own, a row in the list of tools.
//!
//! All steps build with the dev profile and the same flags into the same folder, so that later steps find what earlier
//! ones have built. A step that needs other flags gives its commands a folder of their own (`--target-dir`).

use std::path::Path;

use super::{Job, Plan, Step, Work, features, guest, python};
use crate::workspace::Crate;
use crate::workspace::Workspace;
use crate::{arrows, instructions, models, tidy, tools};

/// Every step, in the order in which they run: quick answers first.
pub(super) const ALL: &[Step] = &[
    step("fmt", "the source is formatted", &["rustfmt"], |_| one(Job::cargo(&["fmt", "--all", "--check"]))),
    Step { name: "tidy", about: "the rules of the house hold", tools: &[], work: Work::Call(tidy::run) },
    Step {
        name: "arrows",
        about: "crates depend along the arrows",
        tools: &[],
        work: Work::Call(arrows::run),
    },
    step("shellcheck", "no fault in the shell scripts", &["shellcheck"], shellcheck),
    step("typos", "spelling", &["typos"], |_| one(Job::new("typos", &[]))),
    step("machete", "every dependency is used", &["machete"], |_| {
        one(Job::cargo(&["machete", "--skip-target-dir"]))
    }),
    step("deny", "licences, bans and sources of dependencies", &["deny"], |_| {
        one(Job::cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"]))
    }),
    step("clippy", "no warning in any crate, all targets and features", &["clippy"], clippy),
    step("test", "unit and integration tests", &[], test),
    step("doctest", "examples in the documentation", &[], |_| {
        one(Job::cargo(&["test", "--workspace", "--doc"]))
    }),
    step("docs", "each crate documents alone, without a warning", &[], docs),
    step("alone", "each crate and its tests build alone", &[], alone),
    step("features", "each crate builds with any feature set", &[], feature_sets),
    step("python", "the Python package installs alone, and its example and tests run", &[], python::plan),
    Step {
        name: "loom",
        about: "the models of the waits hold, and every mutant is rejected",
        tools: &[],
        work: Work::Call(|workspace| models::run(workspace, None)),
    },
    Step {
        name: "instructions",
        about: "the hot paths of the waits take no more instructions than their limits",
        tools: instructions::TOOLS,
        work: Work::Call(instructions::run),
    },
    step(
        "verbs-layout",
        "the types of the verbs library are laid out as its header says",
        &["verbs-headers"],
        |_| {
            let features = ["--features", "ibverbs", "--lib", "verbs::layout"];
            one(Job::cargo(&["test", "--package", "mori-rdma"]).and(&features))
        },
    ),
    Step {
        name: "rdma-guest",
        about: "the tests that need RDMA devices pass in a guest that has them",
        tools: &[],
        work: Work::Try(guest::run),
    },
];

const fn step(
    name: &'static str,
    about: &'static str,
    tools: &'static [&'static str],
    plan: fn(&Workspace) -> Plan,
) -> Step {
    Step { name, about, tools, work: Work::Commands(plan) }
}

fn one(job: Job) -> Plan {
    Plan { jobs: vec![job], left_out: Vec::new() }
}

/// The same for each crate, with what its features leave out.
fn each(workspace: &Workspace, jobs: impl Fn(&Crate) -> Vec<Job>) -> Plan {
    Plan {
        jobs: workspace.crates.iter().flat_map(jobs).collect(),
        left_out: workspace.crates.iter().flat_map(features::left_out).collect(),
    }
}

/// A cargo command for one crate with every feature that can be had.
fn with_all_features(command: &str, of: &Crate) -> Job {
    let features = features::all(of);
    Job::cargo(&[command, "--package", &of.name])
        .and(&features.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Every file that starts with the line of a shell.
fn shellcheck(workspace: &Workspace) -> Plan {
    let files = match workspace.files() {
        Ok(files) => files,
        Err(error) => return Plan { jobs: Vec::new(), left_out: vec![format!("{error:#}")] },
    };
    let scripts: Vec<&str> =
        files.iter().map(String::as_str).filter(|file| is_script(&workspace.root.join(file))).collect();
    one(Job::new("shellcheck", &scripts))
}

fn is_script(file: &Path) -> bool {
    let start = std::fs::read(file).unwrap_or_default();
    let first = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    first.starts_with(b"#!") && first.ends_with(b"sh")
}

fn clippy(workspace: &Workspace) -> Plan {
    each(workspace, |of| {
        vec![with_all_features("clippy", of).and(&["--all-targets", "--", "-D", "warnings"])]
    })
}

fn test(_: &Workspace) -> Plan {
    one(if tools::is_there("nextest") {
        Job::cargo(&["nextest", "run", "--workspace"])
    } else {
        Job::cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--examples"])
    })
}

fn docs(workspace: &Workspace) -> Plan {
    each(workspace, |of| {
        vec![with_all_features("doc", of).and(&["--no-deps"]).with("RUSTDOCFLAGS", "-D warnings")]
    })
}

fn alone(workspace: &Workspace) -> Plan {
    let check = |of: &Crate| Job::cargo(&["check", "--package", &of.name]);
    let jobs = workspace.crates.iter().flat_map(|of| [check(of), check(of).and(&["--all-targets"])]);
    Plan { jobs: jobs.collect(), left_out: Vec::new() }
}

/// Every set as a plain build, and the smallest and the largest with tests too.
fn feature_sets(workspace: &Workspace) -> Plan {
    let mut plan = each(workspace, |of| {
        let sets = features::sets(of);
        let longest = sets.iter().map(Vec::len).max().unwrap_or_default();
        let mut jobs = Vec::new();
        for set in &sets {
            let job = Job::cargo(&["check", "--package", &of.name, "--no-default-features"]);
            let job = if set.is_empty() { job } else { job.and(&["--features", &set.join(",")]) };
            if set.is_empty() || set.len() == longest {
                jobs.push(job.clone().and(&["--all-targets"]));
            }
            jobs.push(job);
        }
        jobs
    });
    if plan.jobs.is_empty() {
        plan.left_out.push("no crate has a feature set besides its default".to_owned());
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn workspace() -> Workspace {
        let features = BTreeMap::from([("a".to_owned(), Vec::new()), ("b".to_owned(), Vec::new())]);
        let crates = vec![
            Crate { name: "plain".to_owned(), ..Crate::default() },
            Crate { name: "rich".to_owned(), features, ..Crate::default() },
        ];
        Workspace { root: PathBuf::new(), crates }
    }

    fn lines(plan: &Plan) -> Vec<String> {
        plan.jobs.iter().map(Job::line).collect()
    }

    #[test]
    fn every_crate_is_linted_documented_and_built_alone() {
        let workspace = workspace();
        assert_eq!(
            lines(&clippy(&workspace)),
            ["plain", "rich"].map(|name| {
                format!("cargo clippy --package {name} --all-features --all-targets -- -D warnings")
            })
        );
        assert_eq!(
            lines(&docs(&workspace))[1],
            "RUSTDOCFLAGS='-D warnings' cargo doc --package rich --all-features --no-deps"
        );
        assert_eq!(lines(&alone(&workspace)).len(), 4);
    }

    #[test]
    fn feature_sets_are_built_plainly_and_the_extremes_with_tests() {
        let lines = lines(&feature_sets(&workspace()));
        assert_eq!(
            lines,
            [
                "cargo check --package rich --no-default-features --features a",
                "cargo check --package rich --no-default-features --features b",
                "cargo check --package rich --no-default-features --features a,b --all-targets",
                "cargo check --package rich --no-default-features --features a,b",
            ]
        );
    }
}
