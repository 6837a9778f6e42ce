//! A result to test with.

use super::plan::{Layout, Op, Row};
use super::report::{CpuSeconds, Latency, RawReport, Repetition, Report, RowReport, Setup, Throughput};

/// Rows of both directions, some with a baseline.
pub(crate) fn report() -> Report {
    let setup = Setup {
        version: "0.0.0".to_owned(),
        transport: "tcp".to_owned(),
        memory: "host".to_owned(),
        peer: "127.0.0.1:5 (process 6)".to_owned(),
        connections: 2,
        threads: 2,
        workers: 1,
        depth: 1,
        sessions: true,
        total: 1 << 28,
        seconds: 0.3,
        iterations: None,
        repeat: 1,
        verified: false,
        baseline: Some("sockets".to_owned()),
        processors: 2,
    };
    let mut rows = Vec::new();
    for op in [Op::Read, Op::Write] {
        for batch in [1, 32, 1024] {
            for size in [8_u64, 512, 32 << 10, 2 << 20].into_iter().filter(|size| size * batch <= 1 << 28) {
                rows.push(row(Row { op, size, batch, layout: Layout::Scattered }));
            }
        }
    }
    Report {
        outcome: "ok".to_owned(),
        exit_status: 0,
        reason: String::new(),
        setup,
        rows,
        rows_left_out: 2,
        faults: Vec::new(),
    }
}

/// 20 µs for each transfer, 0.5 µs for each piece, 2 GB/s, and half of the raw throughput.
fn row(row: Row) -> RowReport {
    let micros = 20.0 + row.batch as f64 / 2.0 + row.bytes() as f64 / 2000.0;
    let rate = row.bytes() as f64 / micros / 1e3;
    let latency = Latency { min: micros * 0.8, avg: micros, p50: micros * 0.95, p99: micros * 3.0 };
    let cpu_seconds = CpuSeconds { near: 0.25, far: Some(0.25), per_gb: Some(0.5 / rate) };
    RowReport {
        row,
        total_bytes: row.bytes(),
        transfers: 1000,
        gb_per_s: Throughput { max: rate * 1.2, avg: rate },
        latency_us: latency,
        cpu_seconds,
        repetitions: vec![Repetition { gb_per_s: rate, p50_us: latency.p50, raw_gb_per_s: Some(2.0 * rate) }],
        raw: (row.op == Op::Read).then(|| RawReport {
            shape: "stream".to_owned(),
            gb_per_s: Throughput { max: 2.0 * rate, avg: 2.0 * rate },
            latency_us: (row.batch == 1).then_some(latency),
            cpu_seconds,
            ratio: 0.5,
        }),
    }
}
