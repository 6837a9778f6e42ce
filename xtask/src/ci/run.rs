//! Running commands, and the closing table.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Job, Plan};
use crate::workspace::without_own_package;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All is well; a remark for the table.
    Passed(String),
    /// What failed.
    Failed(String),
    /// Did not run; why.
    Skipped(String),
}

/// A step that is over.
#[derive(Debug)]
pub(super) struct Ran {
    name: &'static str,
    pub(super) outcome: Outcome,
    took: Duration,
}

impl Ran {
    /// A step that did nothing.
    pub(super) fn at_once(name: &'static str, outcome: Outcome) -> Self {
        Self { name, outcome, took: Duration::ZERO }
    }
}

/// Runs a step and takes its time.
pub(super) fn timed(name: &'static str, step: impl FnOnce() -> Outcome) -> Ran {
    let start = Instant::now();
    let outcome = step();
    Ran { name, outcome, took: start.elapsed() }
}

impl Job {
    /// A command.
    pub(super) fn new(program: impl Into<std::path::PathBuf>, arguments: &[&str]) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            environment: Vec::new(),
        }
    }

    /// A cargo command.
    pub(super) fn cargo(arguments: &[&str]) -> Self {
        Self::new(crate::workspace::cargo(), arguments)
    }

    /// The same with a variable set.
    pub(super) fn with(mut self, variable: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((variable, value.into()));
        self
    }

    /// The same with further arguments.
    pub(super) fn and(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// The command as a person would type it.
    pub(super) fn line(&self) -> String {
        let mut line = String::new();
        for (variable, value) in &self.environment {
            line.push_str(&format!("{variable}='{value}' "));
        }
        let program =
            self.program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        line.push_str(&program);
        for argument in &self.arguments {
            line.push(' ');
            line.push_str(argument);
        }
        line
    }

    /// Runs it in `folder`; says what went wrong.
    fn run(&self, folder: &Path) -> Result<(), String> {
        println!("---- {}", self.line());
        let variables = self.environment.iter().map(|(variable, value)| (variable, value));
        let mut command = Command::new(&self.program);
        without_own_package(&mut command);
        command.args(&self.arguments).envs(variables).current_dir(folder);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`{}` failed ({status})", self.line())),
            Err(error) => Err(format!("`{}` does not run: {error}", self.line())),
        }
    }
}

/// Runs the jobs of a plan, all of them or up to the first that fails.
pub(super) fn jobs(plan: &Plan, folder: &Path, keep_going: bool) -> Outcome {
    if plan.jobs.is_empty() {
        let why =
            if plan.left_out.is_empty() { "nothing to run".to_owned() } else { plan.left_out.join("; ") };
        return Outcome::Skipped(why);
    }
    let mut failures = Vec::new();
    for job in &plan.jobs {
        if let Err(failure) = job.run(folder) {
            println!("{failure}");
            failures.push(failure);
            if !keep_going {
                break;
            }
        }
    }
    if !failures.is_empty() {
        return Outcome::Failed(failures.join("; "));
    }
    let mut note = match plan.jobs.len() {
        1 => "1 command".to_owned(),
        many => format!("{many} commands"),
    };
    for left_out in &plan.left_out {
        let _ = write!(note, "; without {left_out}");
    }
    Outcome::Passed(note)
}

/// The closing table with its count.
pub(super) fn table(rows: &[Ran]) -> String {
    let mut text = "\n==== summary\n".to_owned();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for row in rows {
        let (word, note) = match &row.outcome {
            Outcome::Passed(note) => {
                passed += 1;
                ("passed", note)
            }
            Outcome::Failed(note) => {
                failed += 1;
                ("FAILED", note)
            }
            Outcome::Skipped(note) => {
                skipped += 1;
                ("skipped", note)
            }
        };
        let _ = writeln!(text, "{:<12} {word:<8} {:>7.1} s  {note}", row.name, row.took.as_secs_f64());
    }
    let total: Duration = rows.iter().map(|row| row.took).sum();
    let _ = writeln!(
        text,
        "steps: {passed} passed, {failed} failed, {skipped} skipped, {:.1} s",
        total.as_secs_f64()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scripts: &[&str]) -> Plan {
        let jobs = scripts.iter().map(|script| Job::new("sh", &["-c", script])).collect();
        Plan { jobs, left_out: Vec::new() }
    }

    fn run(plan: &Plan, keep_going: bool) -> Outcome {
        jobs(plan, &std::env::temp_dir(), keep_going)
    }

    #[test]
    fn all_commands_must_succeed() {
        assert_eq!(run(&plan(&["exit 0", "exit 0"]), false), Outcome::Passed("2 commands".to_owned()));
        let first = "`sh -c exit 2` failed (exit status: 2)".to_owned();
        assert_eq!(run(&plan(&["exit 2", "exit 3"]), false), Outcome::Failed(first.clone()));
        let both = format!("{first}; `sh -c exit 3` failed (exit status: 3)");
        assert_eq!(run(&plan(&["exit 2", "exit 3"]), true), Outcome::Failed(both));
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure() {
        let plan = Plan { jobs: vec![Job::new("no-program-has-this-name", &[])], ..Plan::default() };
        assert!(matches!(run(&plan, false), Outcome::Failed(why) if why.contains("does not run")));
    }

    #[test]
    fn an_empty_plan_is_skipped_with_its_reason() {
        let plan = Plan { jobs: Vec::new(), left_out: vec!["no model yet".to_owned()] };
        assert_eq!(run(&plan, false), Outcome::Skipped("no model yet".to_owned()));
    }

    #[test]
    fn commands_get_their_environment() {
        let job = Job::new("sh", &["-c", "test \"$WANTED\" = here"]);
        assert!(job.clone().run(&std::env::temp_dir()).is_err());
        let job = job.with("WANTED", "here");
        assert_eq!(job.run(&std::env::temp_dir()), Ok(()));
        assert!(job.line().starts_with("WANTED='here' sh -c"));
    }

    #[test]
    fn commands_do_not_take_our_package_for_theirs() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
        let job = Job::new("sh", &["-c", "test -z \"$CARGO_PKG_NAME$CARGO_MANIFEST_DIR\""]);
        assert_eq!(job.run(&std::env::temp_dir()), Ok(()));
    }

    #[test]
    fn the_table_counts_every_outcome() {
        let rows = [
            Ran::at_once("fmt", Outcome::Passed("1 command".to_owned())),
            Ran::at_once("clippy", Outcome::Failed("boom".to_owned())),
            Ran::at_once("typos", Outcome::Skipped("typos is missing".to_owned())),
        ];
        let table = table(&rows);
        assert!(table.contains("clippy       FAILED       0.0 s  boom"), "{table}");
        assert!(table.ends_with("steps: 1 passed, 1 failed, 1 skipped, 0.0 s\n"), "{table}");
    }
}
