//! `--verify`: bytes are marked before a row and compared after it, outside of its time.

use std::time::Duration;

use mori_engine::{Piece, TransferOptions};

use super::measure::{Trouble, wait};
use super::pair::Pair;
use super::plan::{Op, Row, Walk};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::medium::Pool;
use crate::pattern::Pattern;
use crate::stop::Stop;

/// Bytes that are made or looked at together.
const RUN_BYTES: u64 = 64 << 10;
/// Pieces that are read back in one transfer.
const BACK_PIECES: usize = 4096;

/// What must stand in our memory after a row.
#[derive(Debug)]
pub struct Marked {
    row: Row,
    /// Of the bytes that move.
    pattern: Pattern,
}

impl Marked {
    /// Where the pattern of a piece begins: it is counted from the start of the region that has it.
    fn position(&self, piece: &Piece) -> u64 {
        match self.row.op {
            Op::Read => piece.remote,
            Op::Write => piece.local,
        }
    }

    /// Marks our memory before a row: what is read there later was not there before, or what is written from there is new.
    ///
    /// # Errors
    ///
    /// When the memory fails.
    pub fn before(pair: &Pair, row: Row, walk: &Walk) -> Result<Self, Failure> {
        let pattern = match row.op {
            Op::Read => Pattern::of_scratch(pair.seed),
            Op::Write => Pattern::new(getrandom::u64().unwrap_or(pair.seed), 0, 0),
        };
        let this = Self { row, pattern };
        for piece in walk.pieces() {
            this.put(&pair.near.local, piece, row.op == Op::Read)?;
        }
        Ok(this)
    }

    /// Writes the pattern of a piece into our memory, or its complement.
    fn put(&self, pool: &Pool, piece: &Piece, spoil: bool) -> Result<(), Failure> {
        runs(piece, |at, run| {
            self.pattern.fill(self.position(piece) + at, run);
            if spoil {
                run.iter_mut().for_each(|byte| *byte = !*byte);
            }
            pool.write_at(piece.local + at, run).map_err(Failure::internal)
        })
    }

    /// Compares the pieces of the first so many transfers; what was written is read back for that.
    ///
    /// # Errors
    ///
    /// [`Exit::WrongBytes`] when they differ, and what reading back can say.
    pub fn after(
        &self,
        pair: &Pair,
        walk: &Walk,
        transfers: u64,
        bound: Duration,
        stop: &Stop,
    ) -> Result<(), Trouble> {
        let count = usize::try_from(transfers.min(walk.transfers()).saturating_mul(self.row.batch));
        let pieces = walk.pieces().get(..count.unwrap_or(usize::MAX)).unwrap_or(walk.pieces());
        if self.row.op == Op::Write {
            for chunk in pieces.chunks(BACK_PIECES) {
                for piece in chunk {
                    self.put(&pair.near.local, piece, true).map_err(Trouble::Failed)?;
                }
                let status = pair.near.read_back(chunk, TransferOptions::default());
                wait(&pair.near, &status, bound, stop)?;
            }
        }
        pieces.iter().try_for_each(|piece| self.compare(&pair.near.local, piece)).map_err(Trouble::Failed)
    }

    fn compare(&self, pool: &Pool, piece: &Piece) -> Result<(), Failure> {
        runs(piece, |at, run| {
            pool.read_at(piece.local + at, run).map_err(Failure::internal)?;
            self.pattern.verify(self.position(piece) + at, run).map_err(|wrong| {
                let message = format!(
                    "wrong bytes in the row {}: byte {} of the piece at {} of the target is {:#04x} instead of {:#04x}",
                    self.row,
                    wrong.position - self.position(piece),
                    piece.remote,
                    wrong.found,
                    wrong.expected
                );
                Failure { exit: Exit::WrongBytes, message }
            })
        })
    }
}

/// Goes through a piece in runs: each with its place in the piece.
pub(super) fn runs(
    piece: &Piece,
    mut each: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut bytes = vec![0; piece.length.min(RUN_BYTES) as usize];
    let mut at = 0;
    while at < piece.length {
        let count = (piece.length - at).min(RUN_BYTES);
        each(at, bytes.get_mut(..count as usize).unwrap_or_default())?;
        at += count;
    }
    Ok(())
}
