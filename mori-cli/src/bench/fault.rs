//! `mori bench --fault`: transfers are broken in the middle, and bytes that change after their end are counted.
//!
//! One large transfer is submitted; when its first bytes are seen to have arrived, the target is stopped or killed, the
//! connections are cut, or the transfer is cancelled. When its status is terminal, the buffer is marked anew, the target
//! goes on and proves with another transfer that it does, and after a while every byte of the buffer must still have its
//! mark. For reads the buffer is ours. For writes it is the target's: it is marked by a later write and read back by a
//! second engine. The marks are the complement of what the transfer moves, so that every late byte shows.

mod proxy;
mod scene;

use std::fmt;

use comfy_table::{CellAlignment, Table};
use serde::{Deserialize, Serialize};

use super::args::BenchArgs;
use super::measure::Trouble;
use super::pair::Site;
use super::plan::Op;
use super::report::Report;
use super::table::short;
use super::{finish, setup};
use crate::args::Transport;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::stop::Stop;
use scene::Scene;

/// How often a transfer is tried that is over before it is broken.
const ATTEMPTS: usize = 12;

/// What breaks a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// The target is stopped, and goes on after the transfer's end.
    Stop,
    /// The target is killed.
    Kill,
    /// The connections are cut; new ones are let through.
    Cut,
    /// Nothing but the transfer's cancellation.
    Cancel,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Kill, Self::Cut, Self::Cancel];

    /// What is to end the transfer under this fault.
    fn enders(self) -> &'static [Ender] {
        match self {
            Self::Stop => &[Ender::Deadline, Ender::Cancel],
            Self::Kill | Self::Cut => &[Ender::Loss],
            Self::Cancel => &[Ender::Cancel],
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Cut => "cut",
            Self::Cancel => "cancel",
        })
    }
}

/// What is to end a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ender {
    /// Its own deadline.
    Deadline,
    /// Its cancellation.
    Cancel,
    /// The loss of the peer.
    Loss,
}

impl fmt::Display for Ender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "deadline",
            Self::Cancel => "cancel",
            Self::Loss => "loss",
        })
    }
}

/// A broken transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// What broke it.
    pub fault: FaultKind,
    /// Its direction.
    pub op: Op,
    /// What was to end it.
    pub ended_by: Ender,
    /// Its bytes.
    pub total_bytes: u64,
    /// Bytes that had arrived when it ended; for writes, when the target could be asked again.
    pub arrived_bytes: Option<u64>,
    /// How it ended: `success`, or the kind of its failure.
    pub status: String,
    /// The message of its status.
    pub message: String,
    /// Seconds from the fault to the end.
    pub seconds_to_end: Option<f64>,
    /// Bytes that changed after the buffer was marked anew; null where there is no buffer any more.
    pub late_bytes: Option<u64>,
    /// Whether a later transfer with the target, or with its successor, worked.
    pub works_after: bool,
    /// What else there is to say, as why the fault does not apply; mostly empty.
    pub note: String,
}

impl FaultReport {
    /// A fault that a transport does not have.
    fn without(fault: FaultKind, op: Op, ended_by: Ender, total_bytes: u64, note: String) -> Self {
        Self {
            fault,
            op,
            ended_by,
            total_bytes,
            arrived_bytes: None,
            status: "does not apply".to_owned(),
            message: String::new(),
            seconds_to_end: None,
            late_bytes: None,
            works_after: true,
            note,
        }
    }
}

/// Runs the faults and prints what became of the transfers.
///
/// # Errors
///
/// [`Failure`] when it cannot begin, or its output cannot be written.
pub fn run(args: &BenchArgs, site: &Site, stop: &Stop) -> Result<Exit, Failure> {
    let mut cases = Vec::new();
    for fault in args.faults() {
        for &op in args.op.ops() {
            cases.extend(fault.enders().iter().map(|&ender| (fault, op, ender)));
        }
    }
    let screen = Screen::counting(Some(cases.len() as u64), "faults");
    let mut reports = Vec::new();
    let end = cases.into_iter().try_for_each(|(fault, op, ender)| {
        screen.now(format!("{fault}, {op}, ended by {ender}"));
        reports.push(one(args, site, stop, fault, op, ender)?);
        screen.step();
        Ok(())
    });
    screen.clear();
    if let (true, Err(Trouble::Failed(failure))) = (reports.is_empty(), &end) {
        // It could not begin.
        return Err(failure.clone());
    }
    let (exit, reason) = verdict(&reports, end);
    if exit != Exit::Ok {
        screen.line(&reason);
    }
    let report = Report {
        outcome: exit.name().to_owned(),
        exit_status: exit.number(),
        reason,
        setup: setup(args, site, String::new()),
        rows: Vec::new(),
        rows_left_out: 0,
        faults: reports,
    };
    let text = if args.json {
        serde_json::to_string(&report).map_err(Failure::internal)?
    } else {
        table(&report.faults)
    };
    finish(&report, &text)
}

fn one(
    args: &BenchArgs,
    site: &Site,
    stop: &Stop,
    fault: FaultKind,
    op: Op,
    ender: Ender,
) -> Result<FaultReport, Trouble> {
    if fault == FaultKind::Cut && args.link.transport != Transport::Tcp {
        let note = format!("{} has no connection that carries data", args.link.transport);
        return Ok(FaultReport::without(fault, op, ender, args.total(), note));
    }
    for _ in 0..ATTEMPTS {
        let scene = Scene::set(args, site, stop, fault, op, ender)?;
        if let Some(report) = scene.play()? {
            return Ok(report);
        }
    }
    let message = format!(
        "a {op} of {} bytes was over before it could be broken, {ATTEMPTS} times; raise --total",
        args.total()
    );
    Err(Trouble::Failed(Failure { exit: Exit::Failed, message }))
}

/// The status of the program, and why.
fn verdict(reports: &[FaultReport], end: Result<(), Trouble>) -> (Exit, String) {
    let late: u64 = reports.iter().filter_map(|report| report.late_bytes).sum();
    if late > 0 {
        return (Exit::LateBytes, format!("{late} bytes changed after their transfer had ended"));
    }
    match end {
        Err(Trouble::Stopped) => (Exit::Interrupted, "interrupted before the last fault".to_owned()),
        Err(Trouble::Failed(failure)) => (failure.exit, failure.message),
        Ok(()) if reports.iter().all(|report| report.works_after) => (Exit::Ok, String::new()),
        Ok(()) => (Exit::Failed, "after a fault, no further transfer worked".to_owned()),
    }
}

fn table(reports: &[FaultReport]) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "Fault",
        "Op",
        "Ended by",
        "TotalSize\n(MB)",
        "Arrived\n(MB)",
        "Status",
        "Time to end\n(s)",
        "Late bytes",
        "Works\nafter",
        "Note",
    ]);
    let unknown = || "-".to_owned();
    for report in reports {
        table.add_row([
            report.fault.to_string(),
            report.op.to_string(),
            report.ended_by.to_string(),
            short(report.total_bytes as f64 / 1e6),
            report.arrived_bytes.map_or_else(unknown, |bytes| short(bytes as f64 / 1e6)),
            report.status.clone(),
            report.seconds_to_end.map_or_else(unknown, short),
            report.late_bytes.map_or_else(unknown, |bytes| bytes.to_string()),
            if report.works_after { "yes" } else { "no" }.to_owned(),
            report.note.clone(),
        ]);
    }
    for index in [3, 4, 6, 7] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_bytes_come_before_every_other_verdict() {
        let good = FaultReport::without(FaultKind::Cut, Op::Read, Ender::Loss, 1, "none".to_owned());
        let late = FaultReport { late_bytes: Some(3), ..good.clone() };
        let dead = FaultReport { works_after: false, ..good.clone() };
        let exit = |reports: &[FaultReport], end| verdict(reports, end).0;
        assert_eq!(exit(&[good.clone(), late.clone()], Err(Trouble::Stopped)), Exit::LateBytes);
        assert_eq!(exit(std::slice::from_ref(&good), Err(Trouble::Stopped)), Exit::Interrupted);
        assert_eq!(exit(&[good.clone(), dead], Ok(())), Exit::Failed);
        assert_eq!(exit(std::slice::from_ref(&good), Ok(())), Exit::Ok);
        let text = table(&[good, late]);
        assert!(text.contains("does not apply") && text.contains("Late bytes"), "{text}");
    }
}
