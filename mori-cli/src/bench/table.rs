//! Results for people, as a table, and for spreadsheets, as CSV.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table};

use super::report::{Report, RowReport};

/// The rows as a table. The first columns are those that benchmarks of this kind have had for long.
pub fn table(report: &Report) -> String {
    let rows = &report.rows;
    let layouts = rows.iter().any(|row| Some(row.row.layout) != rows.first().map(|first| first.row.layout));
    let raw = rows.iter().any(|row| row.raw.is_some());
    let mut header = vec!["Op"];
    if layouts {
        header.push("Layout");
    }
    header.extend([
        "MsgSize\n(B)",
        "BatchSize",
        "TotalSize\n(MB)",
        "Max BW\n(GB/s)",
        "Avg BW\n(GB/s)",
        "Min Lat\n(us)",
        "Avg Lat\n(us)",
        "p50\n(us)",
        "p99\n(us)",
        "CPU here\n(s)",
        "CPU there\n(s)",
        "CPU both\n(s/GB)",
    ]);
    if raw {
        header.extend(["Raw BW\n(GB/s)", "Raw Lat\n(us)", "Of raw"]);
    }
    let names = if layouts { 2 } else { 1 };
    let columns = header.len();
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for row in rows {
        table.add_row(cells(row, layouts, raw));
    }
    for index in names..columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn cells(report: &RowReport, layouts: bool, raw: bool) -> Vec<String> {
    let unknown = || "-".to_owned();
    let mut cells = vec![report.row.op.to_string()];
    if layouts {
        cells.push(report.row.layout.to_string());
    }
    cells.extend([report.row.size.to_string(), report.row.batch.to_string()]);
    cells.push(short(report.total_bytes as f64 / 1e6));
    cells.extend([report.gb_per_s.max, report.gb_per_s.avg].map(short));
    let latency = report.latency_us;
    cells.extend([latency.min, latency.avg, latency.p50, latency.p99].map(short));
    let cpu = report.cpu_seconds;
    cells.push(short(cpu.near));
    cells.push(cpu.far.map_or_else(unknown, short));
    cells.push(cpu.per_gb.map_or_else(unknown, short));
    if raw {
        let raw = report.raw.as_ref();
        cells.push(raw.map_or_else(unknown, |raw| short(raw.gb_per_s.avg)));
        cells.push(raw.and_then(|raw| raw.latency_us).map_or_else(unknown, |latency| short(latency.avg)));
        cells.push(raw.map_or_else(unknown, |raw| format!("{:.2}", raw.ratio)));
    }
    cells
}

/// A number with about three digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{value:.1e}"),
        size if size < 1.0 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The names of the CSV's columns; they are an interface as the fields of the JSON are.
const CSV_HEADER: &str = "op,layout,msg_size,batch_size,total_size,transfers,max_gb_per_s,avg_gb_per_s,min_us,avg_us,p50_us,p99_us,\
                          cpu_near_s,cpu_far_s,cpu_s_per_gb,raw_gb_per_s,raw_avg_us,ratio";

/// The rows as CSV with a header. What is not known is empty.
pub fn csv(report: &Report) -> String {
    let optional = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let mut text = format!("{CSV_HEADER}\n");
    for row in &report.rows {
        let (latency, cpu, raw) = (row.latency_us, row.cpu_seconds, row.raw.as_ref());
        let (op, layout) = (row.row.op, row.row.layout);
        let mut fields = vec![op.to_string(), layout.to_string()];
        fields.extend([row.row.size, row.row.batch, row.total_bytes, row.transfers].map(|n| n.to_string()));
        fields.extend([row.gb_per_s.max, row.gb_per_s.avg].map(|n| n.to_string()));
        fields.extend([latency.min, latency.avg, latency.p50, latency.p99, cpu.near].map(|n| n.to_string()));
        fields.extend([cpu.far, cpu.per_gb].map(optional));
        fields.push(optional(raw.map(|raw| raw.gb_per_s.avg)));
        fields.push(optional(raw.and_then(|raw| raw.latency_us).map(|latency| latency.avg)));
        fields.push(optional(raw.map(|raw| raw.ratio)));
        // Writing to a text does not fail.
        let _ = writeln!(text, "{}", fields.join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::report;

    #[test]
    fn the_table_has_the_known_columns_and_ours() {
        let text = table(&report());
        for name in [
            "MsgSize",
            "BatchSize",
            "TotalSize",
            "Max BW",
            "Avg BW",
            "Min Lat",
            "Avg Lat",
            "p99",
            "CPU both",
            "Of raw",
        ] {
            assert!(text.contains(name), "no {name} in\n{text}");
        }
        assert!(!text.contains("Layout"), "one layout needs no column\n{text}");
        assert!(text.contains("0.50"), "{text}");
    }

    #[test]
    fn a_csv_line_has_a_field_for_each_name() {
        let text = csv(&report());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + report().rows.len());
        let fields = CSV_HEADER.split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == fields), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.00012, "1.2e-4"),
            (0.1234, "0.123"),
            (1.234, "1.23"),
            (56.78, "56.8"),
            (12345.6, "12346"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
