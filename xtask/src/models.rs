//! `cargo xtask loom`: runs the models of `mori-core` under loom and under shuttle, and each mutant against the model that
//! has to reject it.
//!
//! The two checkers are two builds of the crate's unit tests, each in a folder of its own, so that ordinary builds stay
//! as they are. A mutant is a name in the variable `MORI_MUTANT`; the build for loom knows all of them, and the test
//! `models::mutants::list` tells which model each is for. A mutant that ends a process with an error or an abort is rejected;
//! one that passes, or that is still running at the limit, survives.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};

const LIST: &str = "models::mutants::list";
/// How long one process may take; the slowest model takes a few seconds.
const LIMIT: Duration = Duration::from_secs(240);

/// What a process of the models runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    checker: &'static str,
    model: String,
    mutant: Option<String>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// The test passed.
    Passed,
    /// The test failed or the process was aborted; its last words.
    Failed(String),
    /// It was stopped at the limit.
    TimedOut,
    /// No test of that name ran.
    NotThere,
}

/// A finished run.
#[derive(Debug)]
struct Ran {
    run: Run,
    verdict: Verdict,
    took: Duration,
}

impl Ran {
    /// Models pass, mutants fail.
    fn is_good(&self) -> bool {
        match self.verdict {
            Verdict::Passed => self.run.mutant.is_none(),
            Verdict::Failed(_) => self.run.mutant.is_some(),
            Verdict::TimedOut | Verdict::NotThere => false,
        }
    }

    fn word(&self) -> &'static str {
        match (&self.verdict, self.run.mutant.is_some()) {
            (Verdict::Passed, false) => "holds",
            (Verdict::Failed(_), false) => "FAILED",
            (Verdict::Failed(_), true) => "rejected",
            (Verdict::Passed, true) => "SURVIVED",
            (Verdict::TimedOut, _) => "TIMED OUT",
            (Verdict::NotThere, _) => "NO SUCH TEST",
        }
    }
}

/// Builds and runs everything whose model or mutant contains `filter`, and prints the table. Returns whether all models hold
/// and all mutants are rejected, and a line about it.
///
/// # Errors
///
/// When a build fails or the list of mutants cannot be read.
pub(crate) fn run(workspace: &Workspace, filter: Option<&str>) -> Result<(bool, String)> {
    let every = build(&workspace.root, "loom")?;
    let random = build(&workspace.root, "shuttle")?;
    let listed = words_of(&every, &[LIST, "--exact", "--nocapture"])?;
    let mutants = mutants(&listed);
    if mutants.is_empty() {
        bail!("`{LIST}` names no mutant");
    }
    let mut runs = models(&words_of(&every, &["--list"])?, "loom");
    runs.extend(mutants);
    runs.extend(models(&words_of(&random, &["--list"])?, "shuttle"));
    if let Some(filter) = filter {
        runs.retain(|run| {
            run.model.contains(filter) || run.mutant.as_ref().is_some_and(|name| name.contains(filter))
        });
    }
    if runs.is_empty() {
        bail!("no model and no mutant has `{}` in its name", filter.unwrap_or_default());
    }
    let program = |run: &Run| if run.checker == "loom" { &every } else { &random };
    let rows = all(&runs, |run| attempt(program(run), run, LIMIT))?;
    print!("{}", table(&rows));
    let bad = rows.iter().filter(|row| !row.is_good()).count();
    let mutants = rows.iter().filter(|row| row.run.mutant.is_some()).count();
    let note = format!("{} models, {mutants} mutants, {bad} not as they should be", rows.len() - mutants);
    println!("{note}");
    Ok((bad == 0, note))
}

/// Builds the unit tests of the core for a checker; returns the program.
fn build(root: &Path, checker: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    println!("---- building the models for {checker}");
    let output = Command::new(cargo())
        .args([
            "test",
            "--package",
            "mori-core",
            "--lib",
            "--no-run",
            "--message-format",
            "json-render-diagnostics",
        ])
        .arg("--target-dir")
        .arg(target.join(checker))
        .current_dir(root)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", format!("--cfg mori_{checker}"))
        // The checkers run a model some hundred thousand times.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "2")
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .stderr(Stdio::inherit())
        .output()
        .context("cargo does not run")?;
    if !output.status.success() {
        bail!("the models do not build for {checker}");
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cargo names no test program for {checker}"))
}

/// The test program among cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message.get("profile")?.get("test")?.as_bool()?;
        let program = message.get("executable")?.as_str()?;
        is_test.then(|| PathBuf::from(program))
    })
}

fn words_of(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().context("the models do not run")?;
    if !output.status.success() {
        bail!("`{}` failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The models in the output of `--list`.
fn models(listed: &str, checker: &'static str) -> Vec<Run> {
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    names
        .filter(|name| name.starts_with("models::") && *name != LIST)
        .map(|name| Run { checker, model: name.to_owned(), mutant: None })
        .collect()
}

/// The mutants in the output of the test that lists them.
fn mutants(listed: &str) -> Vec<Run> {
    let rows = listed.lines().filter_map(|line| line.split_once("mutant ").map(|(_, row)| row));
    rows.filter_map(|row| row.split_once(' '))
        .filter(|(_, model)| model.starts_with("models::"))
        .map(|(mutant, model)| Run {
            checker: "loom",
            model: model.trim().to_owned(),
            mutant: Some(mutant.to_owned()),
        })
        .collect()
}

/// Runs them all, as many at a time as there are processors, and returns them in order.
fn all(runs: &[Run], attempt: impl Fn(&Run) -> Result<Ran> + Sync) -> Result<Vec<Ran>> {
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::channel();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (done, next, attempt) = (done.clone(), &next, &attempt);
            scope.spawn(move || {
                while let Some((at, run)) = take(runs, next) {
                    if done.send((at, attempt(run))).is_err() {
                        break;
                    }
                }
            });
        }
    });
    drop(done);
    let mut rows: Vec<(usize, Result<Ran>)> = results.into_iter().collect();
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, ran)| ran).collect()
}

fn take<'a>(runs: &'a [Run], next: &AtomicUsize) -> Option<(usize, &'a Run)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    runs.get(at).map(|run| (at, run))
}

fn attempt(program: &Path, run: &Run, limit: Duration) -> Result<Ran> {
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args([run.model.as_str(), "--exact", "--nocapture"]);
    command.env_remove("MORI_MUTANT").env("RUST_BACKTRACE", "0");
    if let Some(mutant) = &run.mutant {
        command.env("MORI_MUTANT", mutant);
    }
    let verdict = watched(command, limit)?;
    Ok(Ran { run: run.clone(), verdict, took: start.elapsed() })
}

/// Runs a test program to its end or to the limit.
fn watched(mut command: Command, limit: Duration) -> Result<Verdict> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("the models do not run")?;
    let words = drain(&mut child);
    let mut said = String::new();
    // Both pipes close when the process ends, however it does.
    let deadline = Instant::now() + limit;
    for _ in 0..2 {
        match words.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(text) => said.push_str(&text),
            Err(_) => {
                child.kill().context("a model cannot be stopped")?;
                child.wait()?;
                return Ok(Verdict::TimedOut);
            }
        }
    }
    let status = child.wait()?;
    Ok(if !said.contains("running 1 test\n") {
        Verdict::NotThere
    } else if status.success() {
        Verdict::Passed
    } else {
        Verdict::Failed(last_words(&said).unwrap_or_else(|| status.to_string()))
    })
}

/// Reads both outputs of the process, each on a thread of its own, and sends them when they are closed.
fn drain(child: &mut Child) -> mpsc::Receiver<String> {
    fn spawn(pipe: Option<impl Read + Send + 'static>, send: mpsc::Sender<String>) {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                // What could be read is enough for a remark in a table.
                let _ = pipe.read_to_end(&mut bytes);
            }
            let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    let (send, receive) = mpsc::channel();
    spawn(child.stdout.take(), send.clone());
    spawn(child.stderr.take(), send);
    receive
}

/// The message of the first panic.
fn last_words(said: &str) -> Option<String> {
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at "));
    let place = lines.next()?;
    let message = lines.next().unwrap_or_default();
    let message = message.split("; threads").next().unwrap_or(message);
    let file = place.split("panicked at ").nth(1).unwrap_or_default().rsplit('/').next().unwrap_or_default();
    Some(format!("{message} ({})", file.trim_end_matches(':')))
}

fn table(rows: &[Ran]) -> String {
    let name = |row: &Ran| {
        let model = row.run.model.trim_start_matches("models::");
        row.run.mutant.as_ref().map_or_else(|| model.to_owned(), |mutant| format!("{mutant} / {model}"))
    };
    let width = rows.iter().map(|row| name(row).len()).max().unwrap_or_default();
    let mut text = String::new();
    for row in rows {
        let words = match &row.verdict {
            Verdict::Failed(words) => words.as_str(),
            _ => "",
        };
        let line = format!(
            "{:<7} {:<width$}  {:<9} {:>6.1} s  {words}",
            row.run.checker,
            name(row),
            row.word(),
            row.took.as_secs_f64()
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Verdict {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        watched(command, Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn a_verdict_needs_a_test_that_ran() {
        assert_eq!(shell("echo running 0 tests"), Verdict::NotThere);
        assert_eq!(shell("echo running 1 test; exit 0"), Verdict::Passed);
        assert!(matches!(shell("echo running 1 test; exit 101"), Verdict::Failed(_)));
        assert!(matches!(shell("echo running 1 test; kill -ABRT $$"), Verdict::Failed(_)));
        assert_eq!(shell("exit 1"), Verdict::NotThere);
    }

    #[test]
    fn a_process_is_stopped_at_the_limit() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec tail -f /dev/null"]);
        assert_eq!(watched(command, Duration::ZERO).unwrap(), Verdict::TimedOut);
    }

    #[test]
    fn only_a_failing_mutant_and_a_passing_model_are_good() {
        let ran = |mutant: Option<&str>, verdict| {
            let run =
                Run { checker: "loom", model: "models::m".to_owned(), mutant: mutant.map(str::to_owned) };
            Ran { run, verdict, took: Duration::ZERO }
        };
        assert!(ran(None, Verdict::Passed).is_good());
        assert!(!ran(None, Verdict::Failed(String::new())).is_good());
        assert!(ran(Some("x"), Verdict::Failed(String::new())).is_good());
        for verdict in [Verdict::Passed, Verdict::TimedOut, Verdict::NotThere] {
            assert!(!ran(Some("x"), verdict).is_good());
        }
        assert!(table(&[ran(Some("x"), Verdict::Passed)]).contains("x / m  SURVIVED"));
    }

    #[test]
    fn lists_are_read() {
        let listed =
            "models::single::a: test\nmodels::mutants::list: test\nother::b: test\n3 tests, 0 benchmarks\n";
        let found = models(listed, "shuttle");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].model, "models::single::a");
        let found =
            mutants("running 1 test\ntest x ... mutant lost models::single::a\nmutant b models::c\nok\n");
        let names: Vec<_> =
            found.iter().map(|run| (run.mutant.as_deref().unwrap(), run.model.as_str())).collect();
        assert_eq!(names, [("lost", "models::single::a"), ("b", "models::c")]);
    }

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"profile\":{\"test\":false},\"executable\":null}\nnoise\n\
                        {\"reason\":\"compiler-artifact\",\"profile\":{\"test\":true},\"executable\":\"t/mori_core-1\"}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("t/mori_core-1")));
        assert_eq!(executable("{}"), None);
    }

    #[test]
    fn the_first_panic_is_quoted() {
        let said =
            "running 1 test\nthread 'x' panicked at /a/b/models/single.rs:3:9:\ndeadlock; threads = [1]\n";
        assert_eq!(last_words(said).unwrap(), "deadlock (single.rs:3:9)");
        assert_eq!(last_words("fine"), None);
    }
}
