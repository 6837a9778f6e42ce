//! The yardstick of `overhead.py`: the same batch and the same wait from Rust.
//!
//! `batch_read PIECES SIZE` reads an engine's and a memory's descriptor as two hexadecimal lines, then answers every further
//! line with the nanoseconds that one batch of so many pieces and the wait for it took.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use mori_engine::{Access, Engine, EngineDesc, MemoryDesc, Op, Piece, TcpConfig, TransferOptions};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = || -> Result<u64> { Ok(arguments.next().ok_or("PIECES SIZE")?.parse()?) };
    let (pieces, size) = (number()?, number()?);
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().ok_or("two lines of descriptors are missing");
    let peer = EngineDesc::unpack(&from_hex(&line()??)?)?;
    let remote = MemoryDesc::unpack(&from_hex(&line()??)?)?;

    let engine = Engine::builder("rust").tcp(TcpConfig::default()).build()?;
    engine.add_peer(&peer)?;
    let local = engine.allocate(usize::try_from(pieces * size)?, Access::READ_WRITE)?;
    let session = engine.session(&local, &remote)?;
    // Scattered like the pieces of Python's side, so that no two of them become one.
    let pieces: Vec<Piece> =
        (0..pieces).map(|piece| Piece::new(piece * size, 2 * (pieces - 1 - piece) * size, size)).collect();
    let mut out = std::io::stdout().lock();
    for line in lines {
        line?;
        let begin = Instant::now();
        let status = session.submit(Op::Read, &pieces, TransferOptions::default());
        let outcome = engine.wait_all(&[&status], Duration::from_secs(60));
        let took = begin.elapsed();
        if !outcome.is_success() {
            return Err(status.message().into());
        }
        writeln!(out, "{}", took.as_nanos())?;
        out.flush()?;
    }
    Ok(())
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digits = text.trim();
    let byte =
        |at: usize| digits.get(at..at + 2).ok_or("a digit is missing").map(|two| u8::from_str_radix(two, 16));
    (0..digits.len()).step_by(2).map(|at| Ok(byte(at)??)).collect()
}
