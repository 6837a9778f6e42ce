//! `mori bench compare`: the ratios of two results, row by row, and what got worse.

use std::collections::HashMap;
use std::path::Path;

use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::args::CompareArgs;
use super::plan::Row;
use super::report::{Report, RowReport};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::run::print;

/// Two results side by side.
#[derive(Debug, Serialize)]
struct Comparison {
    threshold_percent: f64,
    /// What differs between the two runs themselves; empty when they are alike.
    setup_differs: Vec<String>,
    rows: Vec<Compared>,
    rows_only_before: usize,
    rows_only_after: usize,
    worse: usize,
}

/// A row of both, each ratio being the later value over the earlier one.
#[derive(Debug, PartialEq, Serialize)]
struct Compared {
    #[serde(flatten)]
    row: Row,
    avg_bw_ratio: f64,
    best_bw_ratio: f64,
    p50_ratio: f64,
    cpu_ratio: Option<f64>,
    /// What got worse by more than the threshold.
    worse: Vec<&'static str>,
}

/// Compares two files.
///
/// # Errors
///
/// When a file cannot be read, is no result, or they have no row in common.
pub fn run(args: &CompareArgs) -> Result<Exit, Failure> {
    let comparison = compare(&read(&args.before)?, &read(&args.after)?, args.threshold);
    if comparison.rows.is_empty() {
        return Err(Failure::usage(format!(
            "{} and {} have no row in common; measure both with the same options",
            args.before.display(),
            args.after.display()
        )));
    }
    let text = if args.json {
        serde_json::to_string(&comparison).map_err(Failure::internal)?
    } else {
        comparison.table()
    };
    let printed = print(&text);
    Ok(if comparison.worse > 0 { Exit::Worse } else { printed })
}

fn read(path: &Path) -> Result<Report, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("{name} is no result of mori bench --json: {error}")))
}

fn compare(before: &Report, after: &Report, threshold: f64) -> Comparison {
    let earlier: HashMap<Row, &RowReport> = before.rows.iter().map(|row| (row.row, row)).collect();
    let pairs = after.rows.iter().filter_map(|row| Some((*earlier.get(&row.row)?, row)));
    let rows: Vec<Compared> = pairs.map(|(before, after)| compare_row(before, after, threshold)).collect();
    Comparison {
        threshold_percent: threshold,
        setup_differs: differences(before, after),
        rows_only_before: before.rows.len().saturating_sub(rows.len()),
        rows_only_after: after.rows.len().saturating_sub(rows.len()),
        worse: rows.iter().filter(|row| !row.worse.is_empty()).count(),
        rows,
    }
}

fn compare_row(before: &RowReport, after: &RowReport, threshold: f64) -> Compared {
    let best = |row: &RowReport| row.repetitions.iter().map(|rep| rep.gb_per_s).fold(0.0, f64::max);
    let avg_bw_ratio = ratio(after.gb_per_s.avg, before.gb_per_s.avg);
    let p50_ratio = ratio(after.latency_us.p50, before.latency_us.p50);
    let cpu = before.cpu_seconds.per_gb.zip(after.cpu_seconds.per_gb);
    let cpu_ratio = cpu.map(|(before, after)| ratio(after, before));
    let more = 1.0 + threshold / 100.0;
    let mut worse = Vec::new();
    // A throughput is worse by 10 % when the same bytes take 10 % longer, as a latency is.
    if avg_bw_ratio * more < 1.0 {
        worse.push("bandwidth");
    }
    if p50_ratio > more {
        worse.push("latency");
    }
    if cpu_ratio.is_some_and(|ratio| ratio > more) {
        worse.push("cpu");
    }
    let best_bw_ratio = ratio(best(after), best(before));
    Compared { row: after.row, avg_bw_ratio, best_bw_ratio, p50_ratio, cpu_ratio, worse }
}

/// A ratio that is one when there is nothing to compare with.
fn ratio(after: f64, before: f64) -> f64 {
    if before > 0.0 && after.is_finite() { after / before } else { 1.0 }
}

/// What the two runs did not have in common, in words.
fn differences(before: &Report, after: &Report) -> Vec<String> {
    let (before, after) = (&before.setup, &after.setup);
    let mut found = Vec::new();
    let mut look = |what: &str, before: String, after: String| {
        if before != after {
            found.push(format!("{what}: {before}, then {after}"));
        }
    };
    look("version", before.version.clone(), after.version.clone());
    look("transport", before.transport.clone(), after.transport.clone());
    look("memory", before.memory.clone(), after.memory.clone());
    look("connections", before.connections.to_string(), after.connections.to_string());
    look("threads", before.threads.to_string(), after.threads.to_string());
    look("workers", before.workers.to_string(), after.workers.to_string());
    look("depth", before.depth.to_string(), after.depth.to_string());
    look("sessions", before.sessions.to_string(), after.sessions.to_string());
    look("total", before.total.to_string(), after.total.to_string());
    look("processors", before.processors.to_string(), after.processors.to_string());
    found
}

impl Comparison {
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "Op",
            "Layout",
            "MsgSize\n(B)",
            "BatchSize",
            "Avg BW\nratio",
            "Best BW\nratio",
            "p50\nratio",
            "CPU s/GB\nratio",
            "Worse",
        ]);
        for row in &self.rows {
            let mut cells = vec![row.row.op.to_string(), row.row.layout.to_string()];
            cells.extend([row.row.size, row.row.batch].map(|number| number.to_string()));
            cells.extend(
                [row.avg_bw_ratio, row.best_bw_ratio, row.p50_ratio].map(|ratio| format!("{ratio:.2}")),
            );
            cells.push(row.cpu_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")));
            cells.push(row.worse.join(", "));
            table.add_row(cells);
        }
        for index in 2..8 {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = table.to_string();
        for difference in &self.setup_differs {
            text.push_str(&format!("\nthe runs differ in {difference}"));
        }
        if self.rows_only_before + self.rows_only_after > 0 {
            let (before, after) = (self.rows_only_before, self.rows_only_after);
            text.push_str(&format!("\nnot compared: {before} rows only before, {after} only after"));
        }
        let (worse, rows, threshold) = (self.worse, self.rows.len(), self.threshold_percent);
        text.push_str(&format!("\n{worse} of {rows} rows got worse by more than {threshold} %"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::report;

    #[test]
    fn a_result_is_no_worse_than_itself() {
        let comparison = compare(&report(), &report(), 0.0);
        assert_eq!((comparison.worse, comparison.rows.len()), (0, report().rows.len()));
        assert!(comparison.setup_differs.is_empty());
        assert!(comparison.table().contains("0 of "));
    }

    #[test]
    fn each_kind_of_worse_is_marked_beyond_the_threshold_only() {
        let worse = |change: fn(&mut RowReport)| {
            let mut after = report();
            after.rows.iter_mut().take(1).for_each(change);
            let found = |threshold| compare(&report(), &after, threshold).rows[0].worse.clone();
            assert_eq!(found(25.0), [""; 0], "20 % is less than 25 %");
            found(10.0)
        };
        assert_eq!(worse(|row| row.gb_per_s.avg /= 1.2), ["bandwidth"]);
        assert_eq!(worse(|row| row.latency_us.p50 *= 1.2), ["latency"]);
        assert_eq!(
            worse(|row| row.cpu_seconds.per_gb = row.cpu_seconds.per_gb.map(|cpu| cpu * 1.2)),
            ["cpu"]
        );
        assert_eq!(worse(|row| row.gb_per_s.avg *= 1.2), [""; 0], "faster is not worse");
    }

    #[test]
    fn rows_and_setups_that_differ_are_told() {
        let mut after = report();
        after.rows.truncate(3);
        after.setup.connections = 7;
        let comparison = compare(&report(), &after, 10.0);
        assert_eq!((comparison.rows.len(), comparison.rows_only_before), (3, report().rows.len() - 3));
        let table = comparison.table();
        assert!(table.contains("connections: 2, then 7") && table.contains("only before"), "{table}");
    }
}
