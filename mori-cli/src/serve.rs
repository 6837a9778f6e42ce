//! `mori serve`: a process that owns blocks and lets others read them.
//!
//! It fills a pool with the pattern, registers it, tells replays where it is, and takes no further part: reads are served by
//! the engine alone.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use mori_engine::{Access, Engine};
use serde_bytes::ByteBuf;

use crate::args::{ServeArgs, Transport};
use crate::bench::raw::RawServer;
use crate::child::Ready;
use crate::control::{Answers, ControlServer, Description, Scratch, Secret, Usage};
use crate::failure::Failure;
use crate::layout::Layout;
use crate::machine;
use crate::medium::{Medium, Node, Pool};
use crate::node;
use crate::pattern::Pattern;
use crate::stop::Stop;

/// Bytes of the pattern that are made at a time.
const FILL_BYTES: usize = 64 << 10;

/// Serves until somebody asks to stop. When it is ready it prints one line, a [`Ready`] as JSON, to `out`.
///
/// # Errors
///
/// [`Failure`] when it cannot start.
pub fn serve(args: &ServeArgs, stop: &Stop, out: &mut dyn Write) -> Result<(), Failure> {
    let secret = node::read_secret(args.link.secret_file.as_deref())?;
    let (model, scale) = (args.shape.model(), args.shape.scale());
    let shape = model.shape(scale, args.shape.pieces()).map_err(Failure::usage)?;
    let layout = Layout::new(shape, args.pool_blocks).map_err(Failure::usage)?;
    if args.exit_with_parent {
        stop_with_input(stop)?;
    }

    let unbound = |error: io::Error| Failure::server(format!("cannot listen on {}: {error}", args.listen));
    let listener = TcpListener::bind(&args.listen).map_err(unbound)?;
    let address = listener.local_addr().map_err(unbound)?;
    let seed = random_seed()?;
    let medium = medium(args, secret.as_ref(), address)?;
    let Node { engine, pool } =
        medium.node(&format!("mori-serve-{seed:016x}"), &layout, Access::READ_ONLY)?;
    fill(&pool, &layout, seed)?;
    tracing::info!(memory = medium.memory(), "filled a pool of {} blocks", layout.slots());

    let raw = listen_raw(args)?;
    let scratch = match args.scratch {
        Some(bytes) => Some(scratch(&medium, &engine, bytes, seed, raw.as_ref().map(RawServer::port))?),
        None => None,
    };

    let description = Description {
        pid: std::process::id(),
        seed,
        model: model.name.to_owned(),
        scale,
        layers: shape.layers(),
        tensors: shape.tensors(),
        pieces_per_layer: shape.pieces_per_layer(),
        piece_bytes: shape.piece_bytes(),
        slots: layout.slots(),
        engine: ByteBuf::from(engine.desc().pack()),
        memory: ByteBuf::from(pool.desc().pack()),
        scratch,
    };
    let control =
        ControlServer::start(listener, Arc::new(Served { description }), secret).map_err(unbound)?;
    tell_ready(&control, out)?;
    stop.wait_for_good();
    drop(control);
    drop(raw);
    engine.shutdown();
    Ok(())
}

/// Listens for raw sockets, if it was asked to.
fn listen_raw(args: &ServeArgs) -> Result<Option<RawServer>, Failure> {
    let (Some(address), Some(bytes)) = (&args.raw_listen, args.scratch) else { return Ok(None) };
    let unbound = |error: io::Error| Failure::server(format!("cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(unbound)?;
    RawServer::start(listener, bytes).map(Some).map_err(unbound)
}

/// Two regions for measurements: one to read from, which holds the pattern, and one to write to.
fn scratch(
    medium: &Medium,
    engine: &Engine,
    bytes: u64,
    seed: u64,
    raw_port: Option<u16>,
) -> Result<Scratch, Failure> {
    let source = medium.buffer(engine, bytes, Access::READ_ONLY)?;
    let sink = medium.buffer(engine, bytes, Access::READ_WRITE)?;
    fill_run(&source, Pattern::of_scratch(seed), 0, bytes, &mut vec![0; FILL_BYTES])?;
    let [source, sink] = [source, sink].map(|region| ByteBuf::from(region.desc().pack()));
    Ok(Scratch { bytes, source, sink, raw_port })
}

/// What the data goes over. The memory of devices is shared within a node, so nobody connects to it.
fn medium(args: &ServeArgs, secret: Option<&Secret>, control: SocketAddr) -> Result<Medium, Failure> {
    if matches!(args.link.transport, Transport::Xgmi | Transport::Shm) {
        let given = [("--data-listen", &args.data_listen), ("--advertise", &args.advertise)];
        if let Some((option, _)) = given.into_iter().find(|(_, value)| value.is_some()) {
            return Err(Failure::usage(format!(
                "{option} is of no use with --transport {}, which has no data connections; leave it out",
                args.link.transport
            )));
        }
    }
    let data = match &args.data_listen {
        Some(data) => data.clone(),
        None => SocketAddr::new(control.ip(), 0).to_string(),
    };
    Medium::of(&args.link, secret, data, args.advertise.clone())
}

struct Served {
    description: Description,
}

impl Answers for Served {
    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn usage(&self) -> Usage {
        let cpu_micros = u64::try_from(machine::cpu_time().as_micros()).unwrap_or(u64::MAX);
        Usage { seed: self.description.seed, cpu_micros }
    }
}

fn random_seed() -> Result<u64, Failure> {
    getrandom::u64()
        .map_err(|error| Failure::internal(format!("the system gives no random numbers: {error}")))
}

/// Writes the pattern into every piece of every slot.
fn fill(pool: &Pool, layout: &Layout, seed: u64) -> Result<(), Failure> {
    let mut scratch = vec![0; FILL_BYTES];
    for slot in 0..layout.slots() {
        for (number, piece) in (0..).zip(layout.pieces(slot)) {
            let pattern = Pattern::new(seed, slot, number);
            fill_run(pool, pattern, piece.offset, piece.len, &mut scratch)?;
        }
    }
    Ok(())
}

/// Writes a pattern from its start into `len` bytes at `offset`.
fn fill_run(pool: &Pool, pattern: Pattern, offset: u64, len: u64, scratch: &mut [u8]) -> Result<(), Failure> {
    let mut position = 0;
    while position < len {
        let count = (len - position).min(scratch.len() as u64);
        let Some(bytes) = scratch.get_mut(..count as usize) else { break };
        pattern.fill(position, bytes);
        pool.write_at(offset + position, bytes).map_err(Failure::internal)?;
        position += count;
    }
    Ok(())
}

fn tell_ready(control: &ControlServer, out: &mut dyn Write) -> Result<(), Failure> {
    let address = control.address().to_string();
    let ready = Ready { event: "ready".to_owned(), address, pid: std::process::id() };
    let line = serde_json::to_string(&ready).map_err(Failure::internal)?;
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|error| Failure::internal(format!("cannot say that it is ready: {error}")))
}

/// Asks to stop when standard input ends: whoever started this process is gone or wants it to go.
fn stop_with_input(stop: &Stop) -> Result<(), Failure> {
    let stop = stop.clone();
    let watch = move || {
        let mut input = io::stdin().lock();
        let mut bytes = [0; 256];
        loop {
            match input.read(&mut bytes) {
                Ok(count) if count > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        stop.ask();
    };
    let started = std::thread::Builder::new().name("mori-parent".to_owned()).spawn(watch);
    started.map(|_| ()).map_err(Failure::internal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DEEPSEEK_V3, Pieces};

    #[test]
    fn every_byte_of_every_slot_has_its_pattern() {
        // Pieces of 147,456 bytes: more than one run each, the last one short.
        let shape = DEEPSEEK_V3.shape(4, Pieces::Layer).expect("fits");
        let layout = Layout::new(shape, 3).expect("fits");
        let medium = Medium::tcp(mori_engine::TcpConfig::default());
        let Node { engine: _engine, pool } = medium.node("t", &layout, Access::LOCAL).expect("a node");
        fill(&pool, &layout, 77).expect("filled");
        let mut bytes = vec![0; shape.piece_bytes() as usize];
        for slot in 0..3 {
            for (number, piece) in (0..).zip(layout.pieces(slot)) {
                pool.read_at(piece.offset, &mut bytes).expect("inside");
                assert_eq!(Pattern::new(77, slot, number).verify(0, &bytes), Ok(()));
            }
        }
    }
}
