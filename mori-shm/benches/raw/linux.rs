//! The benchmark where there is something to measure.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mori_core::{
    Access, Backend, BackendContext, EngineDesc, MemoryDesc, NotificationQueue, Op, Piece, Region, Session,
    TransferOptions,
};
use mori_shm::{ShmBackend, ShmConfig};

const MIB: usize = 1 << 20;
const TOTAL: usize = 512 * MIB;
const ROUNDS: usize = 9;
const CHILD: &str = "--as-the-target";

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

fn join(key: &str, config: ShmConfig) -> (Arc<ShmBackend>, EngineDesc) {
    let backend = ShmBackend::new(config).unwrap();
    let context = BackendContext {
        engine: key.into(),
        instance: [key.len() as u8; 16],
        node_id: "bench".into(),
        notifications: NotificationQueue::new(1),
    };
    let transports = backend.attach(context).unwrap().blob.into_iter().collect();
    (backend, EngineDesc { key: key.into(), transports, ..EngineDesc::default() })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.trim().as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The other process: registers memory, says what a peer must know, and tells its processor time when asked.
fn target() {
    let (backend, desc) = join("target", ShmConfig::default());
    let region = Region::from_vec(vec![1; TOTAL], Access::READ_WRITE).unwrap();
    let mut memory = MemoryDesc::for_region(&"target".into(), &region);
    memory.transports.extend(backend.register(&region).unwrap());
    println!("{} {}", hex(&desc.pack()), hex(&memory.pack()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == "cpu" {
            println!("{}", cpu());
        }
    }
}

struct Target {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Target {
    fn ask(&mut self, command: &str) -> String {
        if !command.is_empty() {
            writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ways of moving bytes between this process and the other.
struct Bench {
    session: Arc<dyn Session>,
    backend: Arc<ShmBackend>,
    local: Region,
    remote: usize,
    target: Target,
}

impl Bench {
    fn new(config: ShmConfig) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child =
            Command::new(program).arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut target = Target { child, answers };
        let line = target.ask("");
        let (engine, memory) = line.split_once(' ').unwrap();
        let memory = MemoryDesc::unpack(&unhex(memory)).unwrap();
        let (backend, _) = join("near", config);
        backend.add_peer(&EngineDesc::unpack(&unhex(engine)).unwrap()).unwrap();
        let local = Region::from_vec(vec![2; TOTAL], Access::LOCAL).unwrap();
        let session = backend.session(&local, &memory).unwrap();
        Self { session, backend, local, remote: usize::try_from(memory.address).unwrap(), target }
    }

    fn measure(&mut self, work: impl FnOnce(&Self)) -> Took {
        let theirs: f64 = self.target.ask("cpu").parse().unwrap();
        let (wall, before) = (Instant::now(), cpu());
        work(self);
        let (wall, own) = (wall.elapsed().as_secs_f64(), cpu() - before);
        let theirs = self.target.ask("cpu").parse::<f64>().unwrap() - theirs;
        Took { wall, cpu: own + theirs }
    }

    fn ours(&mut self, op: Op, batches: &[Vec<Piece>]) -> Took {
        self.measure(|bench| {
            for batch in batches {
                let status = bench.session.submit(op, batch, &TransferOptions::default());
                assert!(status.wait(None).is_success(), "{status:?}");
            }
        })
    }

    /// Bare calls with `at_a_time` pieces each; the pieces are split evenly over the threads.
    fn raw(&mut self, op: Op, batches: &[Vec<Piece>], at_a_time: usize, threads: usize) -> Took {
        let pieces: Vec<Piece> = batches.iter().flatten().flat_map(|piece| blocks(*piece)).collect();
        let share = pieces.len().div_ceil(threads);
        self.measure(|bench| {
            let run = |part: &[Piece]| part.chunks(at_a_time).for_each(|pieces| bench.call(op, pieces));
            if threads == 1 {
                return run(&pieces);
            }
            std::thread::scope(|scope| {
                pieces.chunks(share).for_each(|part| {
                    scope.spawn(move || run(part));
                });
            });
        })
    }

    fn call(&self, op: Op, pieces: &[Piece]) {
        let vectors = |base: usize, offset: fn(&Piece) -> u64| -> Vec<libc::iovec> {
            let at = |piece: &Piece| base + usize::try_from(offset(piece)).unwrap();
            let vector = |piece: &Piece| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(at(piece)),
                iov_len: usize::try_from(piece.length).unwrap(),
            };
            pieces.iter().map(vector).collect()
        };
        let local = vectors(self.local.address(), |piece| piece.local);
        let remote = vectors(self.remote, |piece| piece.remote);
        let pid = i32::try_from(self.target.child.id()).unwrap();
        let count = pieces.len() as libc::c_ulong;
        let moved = match op {
            Op::Read => unsafe {
                libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0)
            },
            Op::Write => unsafe {
                libc::process_vm_writev(pid, local.as_ptr(), count, remote.as_ptr(), count, 0)
            },
        };
        let expected: u64 = pieces.iter().map(|piece| piece.length).sum();
        assert_eq!(u64::try_from(moved), Ok(expected));
    }
}

/// A very large piece as calls of 1 MiB.
fn blocks(piece: Piece) -> impl Iterator<Item = Piece> {
    (0..piece.length.div_ceil(MIB as u64)).map(move |index| {
        let offset = index * MIB as u64;
        Piece::new(piece.local + offset, piece.remote + offset, (piece.length - offset).min(MIB as u64))
    })
}

/// Pieces that touch on neither side: the slots are visited in an order that jumps.
fn scattered(piece: usize, batch: usize) -> Vec<Vec<Piece>> {
    let slots = TOTAL / piece;
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
    /// Transfers, for a row of latencies.
    count: Option<f64>,
    limit: f64,
}

impl Row {
    fn print(&self, json: bool) {
        let latency = self.count.is_some();
        let pairs = self.ours.iter().zip(&self.raw);
        let ratio =
            |(ours, raw): (&Took, &Took)| if latency { ours.wall / raw.wall } else { raw.wall / ours.wall };
        let ratio = median(pairs.map(ratio).collect());
        let wall = |took: &[Took]| median(took.iter().map(|took| took.wall).collect());
        let cpu = |took: &[Took]| median(took.iter().map(|took| took.cpu).collect());
        let figure = |wall: f64| self.count.map_or(self.bytes / wall / 1e9, |count| wall / count * 1e6);
        let unit = if latency { "µs" } else { "GB/s" };
        let (ours, raw) = (figure(wall(&self.ours)), figure(wall(&self.raw)));
        let per = self.count.map_or(self.bytes / 1e9, |count| count / 1e6);
        let (cpu, raw_cpu) = (cpu(&self.ours) / per, cpu(&self.raw) / per);
        let met = if latency { ratio <= self.limit } else { ratio >= self.limit };
        let (name, limit) = (&self.name, self.limit);
        if json {
            println!(
                "{{\"row\":\"{name}\",\"unit\":\"{unit}\",\"ours\":{ours:.3},\"raw\":{raw:.3},\"ratio\":{ratio:.3},\"limit\":{limit},\"met\":{met},\"cpu\":{cpu:.3},\"raw_cpu\":{raw_cpu:.3}}}"
            );
        } else {
            let met = if met { "yes" } else { "NO" };
            println!(
                "{name:<34} {ours:>8.2} {raw:>8.2} {unit:<5} {ratio:>6.2} {limit:>6.2} {met:<4} {cpu:>7.2} {raw_cpu:>7.2}"
            );
        }
    }
}

pub(crate) fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == CHILD) {
        return target();
    }
    let json = arguments.iter().any(|argument| argument == "--json");
    let rounds = if arguments.iter().any(|argument| argument == "--quick") { 3 } else { ROUNDS };
    let option =
        |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name).map(str::to_owned));
    let mut config = ShmConfig::default();
    if let Some(window) = option("--busy-us=") {
        config.busy_window = Duration::from_micros(window.parse().unwrap());
    }
    if let Some(threads) = option("--threads=") {
        config.threads = threads.parse().unwrap();
    }
    let threads = config.threads;
    let only = option("--row=");
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    let mut bench = Bench::new(config);
    if !json {
        println!("{threads} threads, {rounds} rounds");
        println!(
            "{:<34} {:>8} {:>8} {:<5} {:>6} {:>6} {:<4} {:>7} {:>7}",
            "row", "ours", "raw", "unit", "ratio", "limit", "met", "cpu", "raw cpu"
        );
    }
    let shapes = [
        ("one of 512 MiB", vec![vec![Piece::new(0, 0, TOTAL as u64)]], 1, 0.9),
        ("128 x 1 MiB scattered", scattered(MIB, 128), 1, 0.9),
        ("1000 x 64 KiB scattered", scattered(64 << 10, 1000), 1, 0.9),
        ("10000 x 4 KiB scattered", scattered(4096, 10_000), 1024, 0.8),
    ];
    for (op, verb) in [(Op::Read, "read"), (Op::Write, "write")] {
        for (name, batches, at_a_time, limit) in &shapes {
            let name = format!("{verb}, {name}");
            if !wanted(&name) {
                continue;
            }
            let bytes = TOTAL as f64;
            let mut row = Row { name, ours: Vec::new(), raw: Vec::new(), bytes, count: None, limit: *limit };
            bench.ours(op, batches);
            for _ in 0..rounds {
                row.raw.push(bench.raw(op, batches, *at_a_time, threads));
                row.ours.push(bench.ours(op, batches));
            }
            row.print(json);
        }
    }
    // Small transfers are copied by the submitting thread; one of 1 MiB is shared among threads.
    for (size, name, count, limit) in
        [(4096, "4 KiB", 20_000, 2.5), (64 << 10, "64 KiB", 4000, 1.25), (MIB, "1 MiB", 400, 2.0)]
    {
        for (op, verb) in [(Op::Read, "read"), (Op::Write, "write")] {
            let name = format!("{verb} of {name}");
            if !wanted(&name) {
                continue;
            }
            let place = |index: usize| (index * size % (64 * MIB)) as u64;
            let batches: Vec<_> = (0..count)
                .map(|index| vec![Piece::new(place(index), place(index + 1), size as u64)])
                .collect();
            let count = Some(count as f64);
            let mut row = Row { name, ours: Vec::new(), raw: Vec::new(), bytes: 0.0, count, limit };
            for _ in 0..rounds {
                row.raw.push(bench.raw(op, &batches, 1, 1));
                row.ours.push(bench.ours(op, &batches));
            }
            row.print(json);
        }
    }
    if wanted("idle") {
        idle(&mut bench, json);
    }
    bench.backend.shutdown();
}

/// What the idle threads of both sides cost, over three seconds after a moment to settle down.
fn idle(bench: &mut Bench, json: bool) {
    // tidy: allow(sleep): what an idle process costs can only be seen by letting time pass
    std::thread::sleep(Duration::from_secs(1));
    // tidy: allow(sleep): as above
    let used = bench.measure(|_| std::thread::sleep(Duration::from_secs(3))).cpu * 1e3;
    if json {
        println!("{{\"row\":\"idle for 3 s\",\"unit\":\"ms of CPU\",\"ours\":{used:.3}}}");
    } else {
        println!("idle for 3 s: {used:.3} ms of CPU");
    }
}
