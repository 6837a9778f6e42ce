//! How many bytes a second go between two devices of this machine: lines of `operation,bytes,mib_per_s`, as perftest's yardstick in
//! the guest prints them.
//!
//! ```text
//! throughput FIRST SECOND [events|polling] [QUEUE PAIRS] [MIB IN ALL]
//! ```
#![allow(clippy::print_stdout, reason = "this is what the program is for")]

use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, Clock, EngineDesc, Error, ErrorKind, MemoryDesc, NotificationQueue, Op,
    Piece, Region, Result, Status, TransferOptions, wait_all,
};
use mori_rdma::{Completion, RdmaBackend, RdmaConfig};

/// How many transfers are in progress at a time.
const BATCH: usize = 16;

const SIZES: [usize; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];

fn wrong(words: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, words)
}

fn node(name: &str, instance: u8, config: &RdmaConfig) -> Result<(std::sync::Arc<RdmaBackend>, EngineDesc)> {
    let backend = RdmaBackend::new(config.clone())?;
    let attached = backend.attach(BackendContext {
        engine: name.into(),
        instance: [instance; 16],
        node_id: "here".into(),
        notifications: NotificationQueue::new(1),
    })?;
    let transports = attached.blob.into_iter().collect();
    Ok((backend, EngineDesc { key: name.into(), transports, ..EngineDesc::default() }))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, or: &str| arguments.get(at).cloned().unwrap_or_else(|| or.to_owned());
    let number =
        |at: usize, or: &str| argument(at, or).parse::<usize>().map_err(|error| wrong(error.to_string()));
    let (qps_per_path, all) = (number(3, "1")?, number(4, "32")? << 20);
    let completion = match argument(2, "events").as_str() {
        "events" => Completion::Events,
        "polling" => Completion::Polling,
        other => return Err(wrong(format!("events or polling, not {other}"))),
    };
    let config = |device: String| -> Result<RdmaConfig> {
        Ok(RdmaConfig { devices: device.parse()?, completion, qps_per_path, ..RdmaConfig::default() })
    };
    let (a, _) = node("a", 1, &config(argument(0, "rxea"))?)?;
    let (b, there) = node("b", 2, &config(argument(1, "rxeb"))?)?;
    a.add_peer(&there)?;
    let length = SIZES.iter().max().copied().unwrap_or(1) * BATCH;
    let local = Region::zeroed(length, Access::LOCAL)?;
    let remote = Region::zeroed(length, Access::READ_WRITE)?;
    a.register(&local)?;
    let mut desc = MemoryDesc::for_region(&there.key, &remote);
    desc.transports.extend(b.register(&remote)?);
    let session = a.session(&local, &desc)?;
    let clock = Clock::system();
    for (name, op) in [("read", Op::Read), ("write", Op::Write)] {
        for size in SIZES {
            let bytes = size as u64;
            let batch = || -> Vec<Status> {
                (0..BATCH as u64)
                    .map(|n| {
                        let piece = Piece::new(n * bytes, n * bytes, bytes);
                        session.submit(op, &[piece], &TransferOptions::default())
                    })
                    .collect()
            };
            let rounds = (all / (size * BATCH)).clamp(1, 100);
            let carry = |rounds: usize| -> Result<()> {
                for _ in 0..rounds {
                    let outcome = wait_all(&batch(), Duration::from_secs(60));
                    if !outcome.is_success() {
                        return Err(wrong(format!("{outcome:?}")));
                    }
                }
                Ok(())
            };
            carry(1)?;
            let start = clock.now();
            carry(rounds)?;
            let seconds = (clock.now() - start).as_secs_f64();
            let mib = (rounds * BATCH * size) as f64 / f64::from(1 << 20);
            println!("{name},{size},{:.1}", mib / seconds);
        }
    }
    drop(session);
    a.shutdown();
    b.shutdown();
    Ok(())
}
