//! What a replay says at its end: a table for people, or one JSON object for programs.

use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::exit::Exit;
use crate::fetch::FailureKind;
use crate::tally::Tally;

/// What was replayed, over what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// The trace's file, or `generated`.
    pub trace: String,
    /// The seed of the generator and of the order of slots.
    pub seed: u64,
    /// The model.
    pub model: String,
    /// The scale.
    pub scale: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Pieces of a block.
    pub block_pieces: u32,
    /// Blocks that the cache holds.
    pub cache_blocks: u32,
    /// Blocks that the serving process holds.
    pub pool_blocks: u32,
    /// The transport.
    pub transport: String,
    /// Why it is not the shortest one, if that was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detour: Option<String>,
    /// Where the cache is: `host`, or a device by number and bus id. A simulated device is called that.
    pub memory: String,
    /// The serving process: address and process id.
    pub peer: String,
    /// Whether bytes were verified.
    pub verified: bool,
}

/// The end of a replay.
#[derive(Debug)]
pub struct Report<'a> {
    /// What was replayed.
    pub setup: &'a Setup,
    /// What was counted.
    pub tally: &'a Tally,
    /// How the program ends.
    pub exit: Exit,
    /// Why, in words; empty when all is well.
    pub reason: &'a str,
    /// Processor time of this process while it replayed.
    pub cpu_replay: Duration,
    /// Processor time of the serving process in that time, if it could be asked.
    pub cpu_serve: Option<Duration>,
}

/// The JSON report. Its field names are an interface; fields are added, not changed.
#[derive(Debug, Serialize)]
struct Json<'a> {
    outcome: &'static str,
    exit_status: u8,
    reason: &'a str,
    setup: &'a Setup,
    requests: Requests,
    blocks: Blocks,
    bytes: u64,
    gigabytes_per_second: f64,
    seconds: Seconds,
    request_seconds: Quantiles,
    failures: serde_json::Map<String, serde_json::Value>,
    failed_requests: Vec<Failed<'a>>,
    failed_requests_left_out: u64,
    peers_lost: u64,
    reconnects: u64,
    cpu_seconds: Cpu,
}

#[derive(Debug, Serialize)]
struct Requests {
    done: u64,
    failed: u64,
    interrupted: u64,
}

#[derive(Debug, Serialize)]
struct Blocks {
    referenced: u64,
    reused: u64,
    fetched: u64,
    failed: u64,
    evicted: u64,
}

#[derive(Debug, Serialize)]
struct Seconds {
    wall: f64,
    fetching: f64,
    verifying: f64,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct Failed<'a> {
    request: u64,
    line: u64,
    failures: Vec<FailedBlocks<'a>>,
}

#[derive(Debug, Serialize)]
struct FailedBlocks<'a> {
    kind: &'static str,
    message: &'a str,
    blocks: &'a [u64],
}

#[derive(Debug, Serialize)]
struct Cpu {
    replay: f64,
    serve: Option<f64>,
}

impl Report<'_> {
    /// The report as one JSON object on one line.
    ///
    /// # Errors
    ///
    /// What the encoder says; it has no reason to.
    pub fn json(&self) -> serde_json::Result<String> {
        let tally = self.tally;
        let at = |quantile| tally.time_at(quantile).as_secs_f64();
        let failures = FailureKind::ALL.map(|kind| (kind.name().to_owned(), tally.failures(kind).into()));
        serde_json::to_string(&Json {
            outcome: self.exit.name(),
            exit_status: self.exit.number(),
            reason: self.reason,
            setup: self.setup,
            requests: Requests {
                done: tally.requests_done,
                failed: tally.requests_failed,
                interrupted: tally.requests_interrupted,
            },
            blocks: Blocks {
                referenced: tally.blocks_referenced,
                reused: tally.blocks_reused,
                fetched: tally.blocks_fetched,
                failed: tally.blocks_failed(),
                evicted: tally.evictions,
            },
            bytes: tally.bytes,
            gigabytes_per_second: tally.gigabytes_per_second(),
            seconds: Seconds {
                wall: tally.wall.as_secs_f64(),
                fetching: tally.fetching.as_secs_f64(),
                verifying: tally.verifying.as_secs_f64(),
            },
            request_seconds: Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) },
            failures: failures.into_iter().collect(),
            failed_requests: self.failed_requests(),
            failed_requests_left_out: tally.requests_failed - tally.failed_requests().len() as u64,
            peers_lost: tally.peers_lost,
            reconnects: tally.reconnects,
            cpu_seconds: Cpu {
                replay: self.cpu_replay.as_secs_f64(),
                serve: self.cpu_serve.map(|time| time.as_secs_f64()),
            },
        })
    }

    fn failed_requests(&self) -> Vec<Failed<'_>> {
        let groups = |request: &'_ crate::tally::FailedRequest| (request.number, request.line);
        self.tally
            .failed_requests()
            .iter()
            .map(|failed| {
                let (request, line) = groups(failed);
                let failures = failed.groups.iter().map(|group| FailedBlocks {
                    kind: group.kind.name(),
                    message: &group.message,
                    blocks: &group.blocks,
                });
                Failed { request, line, failures: failures.collect() }
            })
            .collect()
    }

    /// The report as a table.
    pub fn table(&self) -> String {
        let (tally, setup) = (self.tally, self.setup);
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
        row("trace", setup.trace.clone());
        row("model", format!("{}, scale {}", setup.model, setup.scale));
        row("block", format!("{} in {} pieces", bytes(setup.block_bytes), setup.block_pieces));
        row("cache, pool", format!("{}, {} blocks", setup.cache_blocks, setup.pool_blocks));
        row("peer", format!("{} over {}", setup.peer, setup.transport));
        if let Some(why) = &setup.detour {
            row("not over shm", why.clone());
        }
        row("memory", setup.memory.clone());
        row("requests done", tally.requests_done.to_string());
        row("requests failed", tally.requests_failed.to_string());
        if tally.requests_interrupted > 0 {
            row("requests interrupted", tally.requests_interrupted.to_string());
        }
        row("blocks fetched", tally.blocks_fetched.to_string());
        row("blocks reused", tally.blocks_reused.to_string());
        row("bytes fetched", format!("{} ({})", tally.bytes, bytes(tally.bytes)));
        row("bytes verified", if setup.verified { "all" } else { "none" }.to_owned());
        row("throughput", format!("{:.2} GB/s", tally.gigabytes_per_second()));
        row("time", format!("{}, fetching {}", seconds(tally.wall), seconds(tally.fetching)));
        for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)] {
            row(&format!("time per request, {name}"), seconds(tally.time_at(quantile)));
        }
        row("blocks failed", tally.blocks_failed().to_string());
        for kind in FailureKind::ALL.into_iter().filter(|kind| tally.failures(*kind) > 0) {
            row(&format!("  {kind}"), tally.failures(kind).to_string());
        }
        if tally.peers_lost > 0 {
            row("peer lost, came back", format!("{}, {}", tally.peers_lost, tally.reconnects));
        }
        row("CPU, replay", seconds(self.cpu_replay));
        row("CPU, serve", self.cpu_serve.map_or_else(|| "not known".to_owned(), seconds));
        row("outcome", self.outcome());

        let mut table = Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        for (name, value) in rows {
            table.add_row([name, value]);
        }
        if let Some(names) = table.column_mut(0) {
            names.set_cell_alignment(CellAlignment::Left);
        }
        table.to_string()
    }

    fn outcome(&self) -> String {
        match self.exit {
            Exit::Ok if self.setup.verified => "everything arrived and was right".to_owned(),
            Exit::Ok => "everything arrived".to_owned(),
            exit => format!("{} (status {})", exit.name().replace('_', " "), exit.number()),
        }
    }
}

/// Seconds in the unit that reads best.
fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        0.0 => "0 s".to_owned(),
        _ if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// Bytes in the unit that reads best.
fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{value:.2} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.2} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::FailedRequest;

    fn setup() -> Setup {
        Setup {
            trace: "generated".to_owned(),
            seed: 1,
            model: "llama-3-8b".to_owned(),
            scale: 512,
            block_bytes: 131_072,
            block_pieces: 32,
            cache_blocks: 100,
            pool_blocks: 200,
            transport: "tcp".to_owned(),
            detour: None,
            memory: "host".to_owned(),
            peer: "127.0.0.1:5 (process 6)".to_owned(),
            verified: true,
        }
    }

    fn tally() -> Tally {
        let mut tally = Tally::new();
        tally.blocks_referenced = 10;
        tally.blocks_reused = 4;
        tally.blocks_fetched = 5;
        tally.bytes = 5 * 131_072;
        tally.fetching = Duration::from_millis(10);
        tally.wall = Duration::from_secs(1);
        tally.request_done(Duration::from_millis(10));
        tally
    }

    fn report<'a>(setup: &'a Setup, tally: &'a Tally, exit: Exit, reason: &'a str) -> Report<'a> {
        Report { setup, tally, exit, reason, cpu_replay: Duration::from_millis(1500), cpu_serve: None }
    }

    #[test]
    fn the_json_report_has_its_documented_fields() {
        let (setup, mut tally) = (setup(), tally());
        let mut failed = FailedRequest { number: 2, line: 7, groups: Vec::new() };
        failed.add(9, FailureKind::Late, "slow");
        tally.request_failed(failed);
        let json = report(&setup, &tally, Exit::Failed, "1 block failed").json().expect("encodes");
        assert!(!json.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&json).expect("is JSON");
        let at = |pointer: &str| {
            value.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {json}")).clone()
        };
        assert_eq!(at("/outcome"), "failed");
        assert_eq!(at("/exit_status"), 6);
        assert_eq!(at("/reason"), "1 block failed");
        assert_eq!(at("/requests/done"), 1);
        assert_eq!(at("/requests/failed"), 1);
        assert_eq!(at("/requests/interrupted"), 0);
        assert_eq!(at("/blocks/referenced"), 10);
        assert_eq!(at("/blocks/reused"), 4);
        assert_eq!(at("/blocks/fetched"), 5);
        assert_eq!(at("/blocks/failed"), 1);
        assert_eq!(at("/blocks/evicted"), 0);
        assert_eq!(at("/bytes"), 655_360);
        assert!((at("/gigabytes_per_second").as_f64().expect("number") - 0.065_536).abs() < 1e-9);
        assert_eq!(at("/seconds/wall"), 1.0);
        assert_eq!(at("/seconds/fetching"), 0.01);
        assert_eq!(at("/seconds/verifying"), 0.0);
        for quantile in ["p50", "p90", "p99", "max"] {
            let seconds = at(&format!("/request_seconds/{quantile}")).as_f64().expect("number");
            assert!((seconds - 0.01).abs() < 1e-4, "{quantile}: {seconds}");
        }
        assert_eq!(at("/failures/late"), 1);
        for kind in FailureKind::ALL {
            at(&format!("/failures/{}", kind.name()));
        }
        assert_eq!(at("/failed_requests/0/request"), 2);
        assert_eq!(at("/failed_requests/0/line"), 7);
        assert_eq!(at("/failed_requests/0/failures/0/kind"), "late");
        assert_eq!(at("/failed_requests/0/failures/0/message"), "slow");
        assert_eq!(at("/failed_requests/0/failures/0/blocks/0"), 9);
        assert_eq!(at("/failed_requests_left_out"), 0);
        assert_eq!(at("/peers_lost"), 0);
        assert_eq!(at("/reconnects"), 0);
        assert_eq!(at("/cpu_seconds/replay"), 1.5);
        assert_eq!(at("/cpu_seconds/serve"), serde_json::Value::Null);
        assert_eq!(at("/setup/model"), "llama-3-8b");
        assert_eq!(at("/setup/memory"), "host");
        assert_eq!(at("/setup/verified"), true);
    }

    #[test]
    fn the_table_says_what_was_done() {
        let (setup, tally) = (setup(), tally());
        let table = report(&setup, &tally, Exit::Ok, "").table();
        for text in [
            "generated",
            "128.00 KiB in 32 pieces",
            "0.07 GB/s",
            "10.0",
            "1.50 s",
            "not known",
            "everything arrived and was right",
        ] {
            assert!(table.contains(text), "no {text:?} in\n{table}");
        }
        assert!(!table.contains("peer lost"), "{table}");
        let table = report(&setup, &tally, Exit::PeerLost, "the peer died").table();
        assert!(table.contains("peer lost (status 5)"), "{table}");
    }

    #[test]
    fn units_read_well() {
        assert_eq!(seconds(Duration::from_micros(15)), "15 µs");
        assert_eq!(seconds(Duration::from_micros(1500)), "1.50 ms");
        assert_eq!(seconds(Duration::from_millis(61_500)), "61.50 s");
        assert_eq!(bytes(5), "5 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.00 TiB");
    }
}
