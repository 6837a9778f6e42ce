//! `cargo xtask ci`: runs the steps of [`steps::ALL`] in order and closes with a table of what passed, failed and was
//! skipped.

mod features;
mod guest;
mod python;
mod run;
mod steps;

use anyhow::{Result, bail};

use crate::tools;
use crate::workspace::Workspace;
use run::{Outcome, Ran};

/// One thing that CI checks.
struct Step {
    /// Name, as in `--only NAME`.
    name: &'static str,
    /// What it checks, in one line.
    about: &'static str,
    /// The tools without which it is skipped, by their names in [`crate::tools::TOOLS`].
    tools: &'static [&'static str],
    /// What it does.
    work: Work,
}

/// How a step checks.
enum Work {
    /// Runs these commands; all must succeed.
    Commands(fn(&Workspace) -> Plan),
    /// Calls this; it returns whether all is well, and a line for the table.
    Call(fn(&Workspace) -> Result<(bool, String)>),
    /// Calls this, which may also find that it cannot run here.
    Try(fn(&Workspace) -> Result<Outcome>),
}

/// The commands of a step, and what it leaves out.
#[derive(Debug, Default)]
struct Plan {
    /// The commands, in order.
    jobs: Vec<Job>,
    /// What is left out, each with the reason. A plan of no jobs is a skipped step.
    left_out: Vec<String>,
}

/// One command of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Job {
    program: std::path::PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// What the command line asks of `ci`.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Go on after a step has failed.
    pub(crate) keep_going: bool,
    /// Treat a missing tool as a failure.
    pub(crate) require_tools: bool,
    /// Run these steps and no other.
    pub(crate) only: Vec<String>,
    /// Leave these steps out.
    pub(crate) skip: Vec<String>,
}

/// Prints the steps in the order in which they run.
pub(crate) fn list() {
    for step in steps::ALL {
        let needs = step.tools.join(" and ");
        let needs = if needs.is_empty() { needs } else { format!(" (needs {needs})") };
        println!("{:<12} {}{needs}", step.name, step.about);
    }
}

/// Runs the steps and prints the table. Returns whether none has failed.
///
/// # Errors
///
/// When `options` names an unknown step or leaves no step to run.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    run_steps(steps::ALL, workspace, options)
}

fn run_steps(all: &[Step], workspace: &Workspace, options: &Options) -> Result<bool> {
    let names: Vec<&str> = all.iter().map(|step| step.name).collect();
    if let Some(unknown) =
        options.only.iter().chain(&options.skip).find(|name| !names.contains(&name.as_str()))
    {
        bail!("no step is called `{unknown}`; there are {}", names.join(", "));
    }
    let asked = |step: &Step| options.only.is_empty() || options.only.iter().any(|name| name == step.name);
    let left_out = |step: &Step| options.skip.iter().any(|name| name == step.name);
    if !all.iter().any(|step| asked(step) && !left_out(step)) {
        bail!("--only and --skip leave no step to run");
    }
    let mut rows: Vec<Ran> = Vec::new();
    let mut stopped = false;
    for step in all.iter().filter(|step| asked(step)) {
        let ran = if left_out(step) {
            Ran::at_once(step.name, Outcome::Skipped("--skip".to_owned()))
        } else if stopped {
            Ran::at_once(
                step.name,
                Outcome::Skipped("an earlier step failed (--keep-going runs it)".to_owned()),
            )
        } else {
            println!("\n==== {}: {}", step.name, step.about);
            run::timed(step.name, || attempt(step, workspace, options))
        };
        stopped |= matches!(ran.outcome, Outcome::Failed(_)) && !options.keep_going;
        rows.push(ran);
    }
    print!("{}", run::table(&rows));
    Ok(!rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_))))
}

fn attempt(step: &Step, workspace: &Workspace, options: &Options) -> Outcome {
    if let Some(reason) = tools::missing(step.tools) {
        return if options.require_tools { Outcome::Failed(reason) } else { Outcome::Skipped(reason) };
    }
    match step.work {
        Work::Commands(plan) => run::jobs(&plan(workspace), &workspace.root, options.keep_going),
        Work::Call(call) => match call(workspace) {
            Ok((true, note)) => Outcome::Passed(note),
            Ok((false, note)) => Outcome::Failed(note),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        },
        Work::Try(call) => match call(workspace) {
            Ok(Outcome::Skipped(reason)) if options.require_tools => Outcome::Failed(reason),
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(format!("{error:#}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Tool;

    fn shell(script: &str) -> Plan {
        Plan { jobs: vec![Job::new("sh", &["-c", script])], ..Plan::default() }
    }

    const STEPS: &[Step] = &[
        Step { name: "good", about: "", tools: &[], work: Work::Commands(|_| shell("exit 0")) },
        Step { name: "bad", about: "", tools: &[], work: Work::Commands(|_| shell("exit 3")) },
        Step { name: "call", about: "", tools: &[], work: Work::Call(|_| Ok((true, String::new()))) },
        Step { name: "try", about: "", tools: &[], work: Work::Try(|_| Ok(Outcome::Skipped("no".into()))) },
    ];

    fn here() -> Workspace {
        Workspace { root: std::env::temp_dir(), crates: Vec::new() }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn one_failed_step_fails_the_whole() {
        assert!(!run_steps(STEPS, &here(), &Options { keep_going: true, ..Options::default() }).unwrap());
        assert!(run_steps(STEPS, &here(), &Options { skip: names(&["bad"]), ..Options::default() }).unwrap());
        assert!(
            run_steps(STEPS, &here(), &Options { only: names(&["good"]), ..Options::default() }).unwrap()
        );
    }

    #[test]
    fn what_cannot_run_here_fails_only_if_everything_is_required() {
        let only = names(&["try"]);
        assert!(run_steps(STEPS, &here(), &Options { only: only.clone(), ..Options::default() }).unwrap());
        let strict = Options { only, require_tools: true, ..Options::default() };
        assert!(!run_steps(STEPS, &here(), &strict).unwrap());
    }

    #[test]
    fn an_unknown_step_or_none_at_all_is_an_error() {
        let error =
            run_steps(STEPS, &here(), &Options { only: names(&["god"]), ..Options::default() }).unwrap_err();
        assert_eq!(error.to_string(), "no step is called `god`; there are good, bad, call, try");
        let none = Options { only: names(&["bad"]), skip: names(&["bad"]), ..Options::default() };
        assert!(run_steps(STEPS, &here(), &none).is_err());
    }

    #[test]
    fn every_step_has_its_own_name_and_knows_its_tool() {
        let mut seen = std::collections::BTreeSet::new();
        for step in steps::ALL {
            assert!(seen.insert(step.name), "{} is there twice", step.name);
            assert!(
                step.tools.iter().all(|tool| Tool::named(tool).is_some()),
                "{} needs an unknown tool",
                step.name
            );
        }
    }
}
