//! `cargo xtask instructions`: counts the instructions of the waits' hot paths under valgrind and holds them to the limits in
//! `mori-core/benches/instructions`.
//!
//! The benchmark has its own folder and its own configuration of the compiler, so that no other build needs what counts.
//! A second run forbids every instruction and has to fail in every row: a limit that nothing enforces would pass for good.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::tools;
use crate::workspace::{Workspace, cargo};

/// What counts, by the names in [`tools::TOOLS`].
pub(crate) const TOOLS: &[&str] = &["valgrind", "gungraun-runner"];

/// The status of a run in which a limit is exceeded.
const EXCEEDED: i32 = 3;

/// The count of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    name: String,
    instructions: u64,
    /// The limit, if the count is above it.
    over: Option<u64>,
}

/// How a run of the benchmark ended.
#[derive(Debug)]
struct Ran {
    rows: Vec<Row>,
    status: Option<i32>,
}

/// Counts, prints the rows, and tries whether limits are enforced. Returns whether every row keeps its limit, and a line
/// about it.
///
/// # Errors
///
/// When a tool is missing, the benchmark does not build or run, or limits are not enforced.
pub(crate) fn run(workspace: &Workspace) -> Result<(bool, String)> {
    if let Some(reason) = tools::missing(TOOLS) {
        bail!("{reason}");
    }
    let counted = count(&workspace.root, None)?;
    print!("{}", table(&counted.rows));
    let verdict = verdict(&counted)?;
    prove(&count(&workspace.root, Some("ir=0"))?, &counted.rows)?;
    Ok(verdict)
}

/// Runs the benchmark, with other limits than its own if some are given.
fn count(root: &Path, limits: Option<&str>) -> Result<Ran> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut command = Command::new(cargo());
    command.args(["bench", "--package", "mori-core", "--bench", "instructions", "--target-dir"]);
    command.arg(target.join("instructions"));
    command.args(["--", "--output-format=json"]);
    if let Some(limits) = limits {
        command.arg(format!("--callgrind-limits={limits}"));
    }
    // A setting of the caller's would count something else.
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("GUNGRAUN_") {
            command.env_remove(variable);
        }
    }
    let runner = tools::Tool::named("gungraun-runner").and_then(tools::Tool::path);
    let output = command
        .current_dir(root)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "--cfg mori_instructions")
        .envs(runner.map(|runner| ("GUNGRAUN_RUNNER", runner)))
        .stderr(if limits.is_some() { Stdio::piped() } else { Stdio::inherit() })
        .output()
        .context("cargo does not run")?;
    let rows = rows(&String::from_utf8_lossy(&output.stdout))?;
    let status = output.status.code();
    if rows.is_empty() || !matches!(status, Some(0 | EXCEEDED)) {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("the instructions were not counted ({}) {}", output.status, words.trim());
    }
    Ok(Ran { rows, status })
}

/// One row of the runner's report, as far as it matters here.
#[derive(Deserialize)]
struct Report {
    function_name: String,
    id: Option<String>,
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    total: Total,
}

#[derive(Deserialize)]
struct Total {
    metrics: Metrics,
    regressions: Vec<Regression>,
}

#[derive(Deserialize)]
struct Metrics {
    #[serde(rename = "Ir")]
    instructions: Metric,
}

#[derive(Deserialize)]
struct Metric {
    values: Values,
}

#[derive(Deserialize)]
struct Values {
    new: u64,
}

#[derive(Deserialize)]
enum Regression {
    /// Above a number.
    Hard { limit: u64 },
}

/// Reads the runner's report, one object a line.
fn rows(report: &str) -> Result<Vec<Row>> {
    report.lines().filter(|line| line.starts_with('{')).map(row).collect()
}

fn row(line: &str) -> Result<Row> {
    let report: Report = serde_json::from_str(line).context("the runner's report reads otherwise")?;
    let [profile] = report.profiles.as_slice() else { bail!("{} is not counted once", report.function_name) };
    let total = &profile.data.total;
    let over = total.regressions.first().map(|Regression::Hard { limit }| *limit);
    let id = report.id.map(|id| format!("/{id}")).unwrap_or_default();
    Ok(Row { name: report.function_name + &id, instructions: total.metrics.instructions.values.new, over })
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let over = row.over.map(|limit| format!("  OVER the limit of {limit}")).unwrap_or_default();
        let _ = writeln!(text, "{:<36} {:>8} instructions{over}", row.name, row.instructions);
    }
    text
}

/// Whether every row keeps its limit, and a line about it.
fn verdict(ran: &Ran) -> Result<(bool, String)> {
    let over: Vec<&str> =
        ran.rows.iter().filter(|row| row.over.is_some()).map(|row| row.name.as_str()).collect();
    if over.is_empty() != (ran.status == Some(0)) {
        bail!("the runner ends with {:?} and reports {} rows over their limits", ran.status, over.len());
    }
    let note = if over.is_empty() {
        format!("{} rows", ran.rows.len())
    } else {
        format!("over the limit: {}", over.join(", "))
    };
    println!("{note}");
    Ok((over.is_empty(), note))
}

/// Fails unless the run without any allowance was refused in every row.
fn prove(forbidden: &Ran, rows: &[Row]) -> Result<()> {
    let refused = forbidden.rows.iter().filter(|row| row.over.is_some()).count();
    if forbidden.status != Some(EXCEEDED) || refused != rows.len() {
        bail!("limits are not enforced: with none allowed, {refused} of {} rows were refused", rows.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, count: u64, regressions: &str) -> String {
        format!(
            "{{\"function_name\":\"{name}\",\"id\":\"one\",\"profiles\":[{{\"tool\":\"Callgrind\",\"data\":{{\"parts\":[],\
             \"total\":{{\"metrics\":{{\"Ir\":{{\"values\":{{\"new\":{count},\"old\":7}}}}}},\"regressions\":[{regressions}]}}}}}}]}}\n"
        )
    }

    fn over(count: u64, limit: u64) -> String {
        format!(
            "{{\"Hard\":{{\"diff\":{},\"limit\":{limit},\"metric\":{{\"Callgrind\":\"Ir\"}},\"new\":{count}}}}}",
            count - limit
        )
    }

    fn ran(report: &str, status: i32) -> Ran {
        Ran { rows: rows(report).unwrap(), status: Some(status) }
    }

    #[test]
    fn rows_within_their_limits_pass() {
        let ran = ran(&(line("wait", 13, "") + "noise\n" + &line("code", 7, "")), 0);
        assert_eq!(ran.rows[0], Row { name: "wait/one".to_owned(), instructions: 13, over: None });
        assert_eq!(verdict(&ran).unwrap(), (true, "2 rows".to_owned()));
        assert!(!table(&ran.rows).contains("OVER"));
    }

    #[test]
    fn a_row_over_its_limit_fails_by_name() {
        let report = line("wait", 60, &over(60, 21)) + &line("code", 7, "");
        let ran = ran(&report, EXCEEDED);
        assert_eq!(verdict(&ran).unwrap(), (false, "over the limit: wait/one".to_owned()));
        assert!(table(&ran.rows).contains("60 instructions  OVER the limit of 21"), "{}", table(&ran.rows));
    }

    #[test]
    fn a_report_and_a_status_that_disagree_are_an_error() {
        assert!(verdict(&ran(&line("wait", 13, ""), EXCEEDED)).is_err());
        assert!(verdict(&ran(&line("wait", 60, &over(60, 21)), 0)).is_err());
    }

    #[test]
    fn limits_that_nothing_enforces_are_an_error() {
        let counted = ran(&(line("wait", 13, "") + &line("code", 7, "")), 0);
        let refused = line("wait", 13, &over(13, 0)) + &line("code", 7, &over(7, 0));
        assert!(prove(&ran(&refused, EXCEEDED), &counted.rows).is_ok());
        assert!(prove(&counted, &counted.rows).is_err());
        let one = line("wait", 13, &over(13, 0)) + &line("code", 7, "");
        assert!(prove(&ran(&one, EXCEEDED), &counted.rows).is_err());
    }

    #[test]
    fn another_report_is_an_error() {
        assert!(rows("{\"function_name\":\"wait\"}").is_err());
        assert!(rows("nothing counted\n").unwrap().is_empty());
    }
}
