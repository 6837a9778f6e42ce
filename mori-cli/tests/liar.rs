//! Servers that do not serve what they say: made of the same parts as the real one.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests tell by failing")]

mod common;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mori_cli::control::{Answers, ControlServer, Description, Scratch, Usage};
use mori_cli::layout::{Homes, Layout};
use mori_cli::model::{LLAMA_3_8B, Pieces};
use mori_cli::pattern::Pattern;
use mori_engine::{Access, Engine, Memory, TcpConfig};
use serde_bytes::ByteBuf;

struct Liar(Description);

impl Answers for Liar {
    fn describe(&self) -> Description {
        self.0.clone()
    }
    fn usage(&self) -> Usage {
        Usage { seed: self.0.seed, cpu_micros: 0 }
    }
}

const SLOTS: u32 = 16;
const SEED: u64 = 99;

/// A server whose pool is as `spoil` leaves it and whose description is as `lie` leaves it.
fn serve(
    access: Access,
    spoil: impl FnOnce(&mut [u8], &Layout),
    lie: impl FnOnce(&mut Description),
) -> (ControlServer, Engine) {
    serve_with(access, spoil, |_, description| lie(description))
}

/// The same with a lie that needs the engine.
fn serve_with(
    access: Access,
    spoil: impl FnOnce(&mut [u8], &Layout),
    lie: impl FnOnce(&Engine, &mut Description),
) -> (ControlServer, Engine) {
    let shape = LLAMA_3_8B.shape(8192, Pieces::Layer).expect("fits");
    let layout = Layout::new(shape, SLOTS).expect("fits");
    let mut pool = vec![0; layout.total_bytes() as usize];
    for slot in 0..SLOTS {
        for (number, piece) in (0..).zip(layout.pieces(slot)) {
            let range = piece.offset as usize..(piece.offset + piece.len) as usize;
            Pattern::new(SEED, slot, number).fill(0, &mut pool[range]);
        }
    }
    spoil(&mut pool, &layout);
    let engine = Engine::builder("liar").tcp(TcpConfig::default()).build().expect("engine");
    let memory = engine.register_vec(pool, access).expect("registered");
    let mut description = Description {
        pid: std::process::id(),
        seed: SEED,
        model: "llama-3-8b".to_owned(),
        scale: 8192,
        layers: shape.layers(),
        tensors: shape.tensors(),
        pieces_per_layer: shape.pieces_per_layer(),
        piece_bytes: shape.piece_bytes(),
        slots: SLOTS,
        engine: ByteBuf::from(engine.desc().pack()),
        memory: ByteBuf::from(memory.desc().pack()),
        scratch: None,
    };
    lie(&engine, &mut description);
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let control = ControlServer::start(listener, Arc::new(Liar(description)), None).expect("starts");
    (control, engine)
}

fn replay(control: &ControlServer) -> common::Ran {
    let trace = common::trace([0, 1, 2, 3, 0], 0);
    let path = trace.path().to_str().expect("text");
    common::run(&["replay", "--trace", path, "--target", &control.address().to_string(), "--json"])
}

#[test]
fn an_honest_one_passes() {
    let (control, _engine) = serve(Access::READ_ONLY, |_, _| (), |_| ());
    let ran = replay(&control);
    assert_eq!(ran.code(), 0, "{}", ran.err);
}

#[test]
fn one_wrong_bit_has_a_status_of_its_own_and_is_named() {
    let spoil = |pool: &mut [u8], layout: &Layout| {
        let home = Homes::new(layout).of(2);
        let piece = layout.piece(home, 7).expect("a piece");
        pool[piece.offset as usize + 200] ^= 1;
    };
    let (control, _engine) = serve(Access::READ_ONLY, spoil, |_| ());
    let ran = replay(&control);
    assert_eq!(ran.code(), 4, "{}", ran.err);
    let json = ran.json();
    assert_eq!((&json["requests"]["done"], &json["failures"]["wrong_bytes"]), (&4.into(), &1.into()));
    let failed = &json["failed_requests"][0];
    assert_eq!((&failed["line"], &failed["failures"][0]["blocks"][0]), (&3.into(), &2.into()));
    // Pieces are 256 bytes, half of them keys.
    let message = failed["failures"][0]["message"].as_str().expect("text");
    assert!(message.starts_with("layer 7, V, byte 72 is "), "{message}");
}

#[test]
fn pieces_at_exchanged_places_are_found() {
    let exchange = |pool: &mut [u8], layout: &Layout| {
        let home = Homes::new(layout).of(2);
        let (a, b) = (layout.piece(home, 4).expect("a piece"), layout.piece(home, 5).expect("a piece"));
        for at in 0..a.len {
            pool.swap((a.offset + at) as usize, (b.offset + at) as usize);
        }
    };
    let (control, _engine) = serve(Access::READ_ONLY, exchange, |_| ());
    let ran = replay(&control);
    assert_eq!(ran.code(), 4, "{}", ran.err);
    assert_eq!(ran.json()["failures"]["wrong_bytes"], 1);
}

#[test]
fn bytes_of_another_run_of_the_server_are_found() {
    let (control, _engine) = serve(Access::READ_ONLY, |_, _| (), |description| description.seed += 1);
    let ran = replay(&control);
    assert_eq!(ran.code(), 4, "{}", ran.err);
    assert_eq!(ran.json()["failures"]["wrong_bytes"], 5);
}

#[test]
fn a_pool_that_may_not_be_read_is_refused_block_by_block() {
    let (control, _engine) = serve(Access::WRITE_ONLY, |_, _| (), |_| ());
    let ran = replay(&control);
    assert_eq!(ran.code(), 6, "{}", ran.err);
    assert_eq!(ran.json()["failures"]["refused"], 5);
}

#[test]
fn memory_that_is_gone_is_refused_block_by_block() {
    let (control, engine) = serve(Access::READ_ONLY, |_, _| (), |_| ());
    for memory in engine.memories() {
        engine.deregister(&memory, None).expect("deregistered");
    }
    let ran = replay(&control);
    assert!(matches!(ran.code(), 6 | 7), "{}", ran.err);
    assert!(!ran.err.is_empty());
}

#[test]
fn descriptions_that_do_not_fit_are_refused() {
    for lie in [
        (|d: &mut Description| d.slots = 0) as fn(&mut Description),
        |d| d.slots *= 2,
        |d| d.layers = 0,
        |d| d.engine = ByteBuf::from(vec![1, 2, 3]),
        |d| d.memory = ByteBuf::new(),
        |d| {
            d.memory.pop();
        },
    ] {
        let (control, _engine) = serve(Access::READ_ONLY, |_, _| (), lie);
        let ran = replay(&control);
        assert_eq!(ran.code(), 7, "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
}

/// A measurement of one kind of transfers with scratch memory whose source is as `spoil` leaves it. While it runs, `meddle`
/// gets the sink's memory again and again.
fn measure(op: &str, spoil: impl FnOnce(&mut [u8]), meddle: impl Fn(&Memory) + Sync) -> common::Ran {
    const BYTES: usize = 1 << 20;
    let mut source = vec![0; BYTES];
    Pattern::of_scratch(SEED).fill(0, &mut source);
    spoil(&mut source);
    let mut sink = None;
    let scratch = |engine: &Engine, description: &mut Description| {
        let source = engine.register_vec(source, Access::READ_ONLY).expect("registered");
        let memory = engine.allocate(BYTES, Access::READ_WRITE).expect("allocated");
        let pack = |memory: &Memory| ByteBuf::from(memory.desc().pack());
        let (bytes, raw_port) = (BYTES as u64, None);
        description.scratch = Some(Scratch { bytes, source: pack(&source), sink: pack(&memory), raw_port });
        sink = Some(memory);
    };
    let (control, _engine) = serve_with(Access::READ_ONLY, |_, _| (), scratch);
    let target = control.address().to_string();
    let args =
        ["bench", "--op", op, "--sizes", "4KiB", "--batches", "8", "--total", "1MiB", "--iterations", "64"];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                sink.iter().for_each(&meddle);
                std::thread::yield_now();
            }
        });
        let ran =
            common::run(&[args.as_slice(), &["--repeat", "1", "--verify", "--target", &target]].concat());
        over.store(true, Ordering::Relaxed);
        ran
    })
}

#[test]
fn a_measurement_that_verifies_finds_one_wrong_bit_and_lost_writes() {
    let zero = |sink: &Memory| sink.write_at(40_000, &[0; 5000]).expect("inside");
    let none = |_: &Memory| ();
    let ran = measure("both", |_| (), none);
    assert_eq!(ran.code(), 0, "{}", ran.err);
    let ran = measure("read", |source| source[500_000] ^= 1, none);
    assert_eq!(ran.code(), 4, "{}", ran.err);
    assert!(ran.err.contains("byte 288 of the piece at 499712 of the target"), "{}", ran.err);
    assert_eq!(measure("read", |_| (), zero).code(), 0, "nothing is read from there");
    let ran = measure("write", |_| (), zero);
    assert_eq!(ran.code(), 4, "{}", ran.err);
}
