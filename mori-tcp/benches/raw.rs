//! How close to raw blocking sockets the transport runs: `cargo bench -p mori-tcp`.
//!
//! The yardstick is measured in the same run, interleaved, over loopback and with the same number of connections: for
//! throughput, each connection has a blocking writer that sends 1 MiB blocks from memory and a blocking reader that
//! receives them into memory, without any request in between; for latency, a 64-byte request and a 4 KiB answer.
//! Throughput rows are in GB/s of payload (10⁹ bytes), latency rows in microseconds; CPU seconds count both sides.
//! Every row's ratio is the median of the ratios of its rounds. `--json` prints one JSON object per row,
//! `--quick` takes fewer rounds, `--row=TEXT` only the rows whose name contains the text, `--busy-us=N` sets the busy window.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may panic")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mori_core::{
    Access, Backend, BackendContext, EngineDesc, MemoryDesc, NotificationQueue, Op, Piece, Region, Session,
    TransferOptions,
};
use mori_tcp::{TcpBackend, TcpConfig};

const MIB: usize = 1 << 20;
const ROUNDS: usize = 9;

/// What one measurement gives: seconds on the clock and on the processors.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn measure(work: impl FnOnce()) -> Took {
    let (wall, before) = (Instant::now(), cpu());
    work();
    Took { wall: wall.elapsed().as_secs_f64(), cpu: cpu() - before }
}

/// Blocking sockets, one thread each side and connection.
struct Raw {
    near: Vec<TcpStream>,
    far: Vec<TcpStream>,
}

impl Raw {
    fn new(connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut raw = Self { near: Vec::new(), far: Vec::new() };
        for _ in 0..connections {
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            raw.near.push(near);
            raw.far.push(far);
        }
        raw
    }

    /// Moves `source` to `target` in blocks, split evenly over the connections.
    fn stream(&self, source: &[u8], target: &mut [u8], block: usize) -> Took {
        let share = source.len() / self.near.len();
        measure(|| {
            std::thread::scope(|scope| {
                for (mut socket, part) in self.far.iter().zip(source.chunks(share)) {
                    scope.spawn(move || part.chunks(block).for_each(|b| socket.write_all(b).unwrap()));
                }
                for (mut socket, part) in self.near.iter().zip(target.chunks_mut(share)) {
                    scope.spawn(move || part.chunks_mut(block).for_each(|b| socket.read_exact(b).unwrap()));
                }
            });
        })
    }

    fn ping(&self, count: usize, answer: usize) -> Took {
        let (mut near, mut far) = (&self.near[0], &self.far[0]);
        measure(|| {
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let (mut request, answer) = ([0; 64], vec![1; answer]);
                    for _ in 0..count {
                        far.read_exact(&mut request).unwrap();
                        far.write_all(&answer).unwrap();
                    }
                });
                let mut got = vec![0; answer];
                for _ in 0..count {
                    near.write_all(&[0; 64]).unwrap();
                    near.read_exact(&mut got).unwrap();
                    black_box(&got);
                }
            });
        })
    }
}

struct Ours {
    session: Arc<dyn Session>,
    _backends: [Arc<TcpBackend>; 2],
}

impl Ours {
    fn new(config: &TcpConfig, length: usize) -> Self {
        let node = |key: &str, byte| {
            let backend = TcpBackend::new(config.clone()).unwrap();
            let attachment = backend
                .attach(BackendContext {
                    engine: key.into(),
                    instance: [byte; 16],
                    node_id: "bench".into(),
                    notifications: NotificationQueue::new(1),
                })
                .unwrap();
            (backend, attachment)
        };
        let ((near, _), (far, attachment)) = (node("near", 1), node("far", 2));
        let desc = EngineDesc {
            key: "far".into(),
            transports: attachment.blob.into_iter().collect(),
            ..EngineDesc::default()
        };
        near.add_peer(&desc).unwrap();
        let region = || Region::from_vec(vec![1; length], Access::READ_WRITE).unwrap();
        let (local, remote) = (region(), region());
        let mut memory = MemoryDesc::for_region(&"far".into(), &remote);
        memory.transports.extend(far.register(&remote).unwrap());
        let session = near.session(&local, &memory).unwrap();
        Self { session, _backends: [near, far] }
    }

    fn run(&self, op: Op, batches: &[Vec<Piece>]) -> Took {
        measure(|| {
            for batch in batches {
                let status = self.session.submit(op, batch, &TransferOptions::default());
                assert!(status.wait(None).is_success(), "{status:?}");
            }
        })
    }
}

/// Pieces that touch on neither side: the slots are visited in an order that jumps.
fn scattered(total: usize, piece: usize, batch: usize) -> Vec<Vec<Piece>> {
    let slots = total / piece;
    let step = (slots / 2 + 1) | 1;
    let order = |index: usize| (index * step % slots * piece) as u64;
    let pieces: Vec<_> =
        (0..slots).map(|index| Piece::new(order(index), order(slots - 1 - index), piece as u64)).collect();
    pieces.chunks(batch).map(<[Piece]>::to_vec).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Row {
    name: String,
    ours: Vec<Took>,
    raw: Vec<Took>,
    bytes: f64,
    count: f64,
}

impl Row {
    fn print(&self, json: bool, latency: bool, limit: f64) {
        let ratio = median(
            self.ours
                .iter()
                .zip(&self.raw)
                .map(|(ours, raw)| if latency { ours.wall / raw.wall } else { raw.wall / ours.wall })
                .collect(),
        );
        let wall = |took: &[Took]| median(took.iter().map(|took| took.wall).collect());
        let cpu = |took: &[Took]| median(took.iter().map(|took| took.cpu).collect());
        let figure = |wall: f64| if latency { wall / self.count * 1e6 } else { self.bytes / wall / 1e9 };
        let unit = if latency { "µs" } else { "GB/s" };
        let (ours, raw) = (figure(wall(&self.ours)), figure(wall(&self.raw)));
        let per = if latency { self.count / 1e6 } else { self.bytes / 1e9 };
        let (cpu, raw_cpu) = (cpu(&self.ours) / per, cpu(&self.raw) / per);
        let met = if latency { ratio <= limit } else { ratio >= limit };
        if json {
            println!(
                "{{\"row\":\"{}\",\"unit\":\"{unit}\",\"ours\":{ours:.3},\"raw\":{raw:.3},\"ratio\":{ratio:.3},\"limit\":{limit},\"met\":{met},\"cpu\":{cpu:.3},\"raw_cpu\":{raw_cpu:.3}}}",
                self.name
            );
        } else {
            println!(
                "{:<34} {ours:>8.2} {raw:>8.2} {unit:<5} {ratio:>6.2} {limit:>6.2} {:<4} {cpu:>7.2} {raw_cpu:>7.2}",
                self.name,
                if met { "yes" } else { "NO" },
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let rounds = if quick { 3 } else { ROUNDS };
    let total = 256 * MIB;
    let mut config = TcpConfig::default();
    if let Some(window) = arguments.iter().find_map(|a| a.strip_prefix("--busy-us=")) {
        config.busy_window = Duration::from_micros(window.parse().unwrap());
    }
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("--row="));
    let ours = Ours::new(&config, total);
    let raw = Raw::new(config.connections);
    let source = vec![1_u8; total];
    let mut target = vec![0_u8; total];
    if !json {
        println!("{} connections, {} I/O threads, {rounds} rounds", config.connections, config.io_threads);
        println!(
            "{:<34} {:>8} {:>8} {:<5} {:>6} {:>6} {:<4} {:>7} {:>7}",
            "row", "ours", "raw", "unit", "ratio", "limit", "met", "cpu", "raw cpu"
        );
    }
    let whole = |piece: usize| -> Vec<Vec<Piece>> {
        (0..total / piece)
            .map(|i| vec![Piece::new((i * piece) as u64, (i * piece) as u64, piece as u64)])
            .collect()
    };
    let rows: Vec<(&str, Op, Vec<Vec<Piece>>, f64)> = vec![
        ("read, one of 256 MiB", Op::Read, whole(total), 0.9),
        ("read, 128 x 1 MiB scattered", Op::Read, scattered(total, MIB, 128), 0.9),
        ("read, 1000 x 64 KiB scattered", Op::Read, scattered(total, 64 << 10, 1000), 0.8),
        ("read, 10000 x 4 KiB scattered", Op::Read, scattered(total, 4096, 10_000), 0.5),
        ("write, one of 256 MiB", Op::Write, whole(total), 0.9),
        ("write, 128 x 1 MiB scattered", Op::Write, scattered(total, MIB, 128), 0.9),
        ("write, 1000 x 64 KiB scattered", Op::Write, scattered(total, 64 << 10, 1000), 0.8),
        ("write, 10000 x 4 KiB scattered", Op::Write, scattered(total, 4096, 10_000), 0.5),
    ];
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    for (name, op, batches, limit) in rows {
        if !wanted(name) {
            continue;
        }
        let mut row =
            Row { name: name.into(), ours: Vec::new(), raw: Vec::new(), bytes: total as f64, count: 1.0 };
        ours.run(op, &batches);
        for _ in 0..rounds {
            row.raw.push(raw.stream(&source, &mut target, MIB));
            row.ours.push(ours.run(op, &batches));
        }
        row.print(json, false, limit);
    }
    for (name, op, piece, limit) in
        [("read of 4 KiB", Op::Read, 4096, 1.6), ("write of 4 KiB", Op::Write, 4096, 1.6)]
    {
        if !wanted(name) {
            continue;
        }
        let count = 2000;
        let batches: Vec<_> =
            (0..count).map(|i| vec![Piece::new(0, (i % 1000 * 4096) as u64, piece)]).collect();
        let mut row =
            Row { name: name.into(), ours: Vec::new(), raw: Vec::new(), bytes: 0.0, count: f64::from(count) };
        for _ in 0..rounds {
            row.raw.push(raw.ping(count as usize, 4096));
            row.ours.push(ours.run(op, &batches));
        }
        row.print(json, true, limit);
    }
    if wanted("idle") {
        idle(json);
    }
}

/// What the idle threads cost, over three seconds after a moment to settle down.
fn idle(json: bool) {
    // tidy: allow(sleep): what an idle process costs can only be seen by letting time pass
    std::thread::sleep(Duration::from_secs(3));
    let before = cpu();
    // tidy: allow(sleep): as above
    std::thread::sleep(Duration::from_secs(3));
    let used = (cpu() - before) * 1e3;
    if json {
        println!("{{\"row\":\"idle for 3 s\",\"unit\":\"ms of CPU\",\"ours\":{used:.3}}}");
    } else {
        println!("idle for 3 s: {used:.3} ms of CPU");
    }
}
