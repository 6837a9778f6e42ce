//! The seam between the replay and the transport: reading blocks of a remote pool into a local one.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::layout::{Homes, Layout};
use crate::pattern::Pattern;

/// One run of bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPiece {
    /// First byte in the remote pool.
    pub remote: u64,
    /// First byte in the local pool.
    pub local: u64,
    /// Number of bytes.
    pub len: u64,
}

/// One block to read: all its pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRead {
    /// The block.
    pub block: u64,
    /// The local slot that it goes to.
    pub slot: u32,
    /// The remote slot where it is at home.
    pub home: u32,
    /// Its pieces, in order.
    pub pieces: Vec<ReadPiece>,
}

/// What became of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All its bytes are in local memory.
    Arrived,
    /// It did not arrive, and no more byte of it will.
    Failed {
        /// In which way.
        kind: FailureKind,
        /// In words.
        message: String,
    },
    /// It had not arrived at the bound, and was cancelled.
    Late {
        /// What the transfer was waiting for, in words.
        message: String,
        /// Whether it is certain that no more byte of it arrives. If not, the slot must not be used until
        /// [`Fetcher::take_quiet`] gives it back.
        quiet: bool,
    },
    /// Somebody asked to stop before it arrived.
    Interrupted {
        /// As for [`Outcome::Late`].
        quiet: bool,
    },
}

/// The ways in which a block can fail to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The peer died, was cut off or stopped answering.
    PeerLost,
    /// It had not arrived at the bound of its request.
    Late,
    /// The target refused: out of range, a key that it does not know, no right.
    Refused,
    /// The transfer failed in another way.
    Transport,
    /// It arrived with wrong bytes.
    WrongBytes,
    /// No slot was free for it: late transfers may still write to all of them.
    NoRoom,
}

impl FailureKind {
    /// All kinds, in the order of the report.
    pub const ALL: [Self; 6] =
        [Self::PeerLost, Self::Late, Self::Refused, Self::Transport, Self::WrongBytes, Self::NoRoom];

    /// The name that the JSON report uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::PeerLost => "peer_lost",
            Self::Late => "late",
            Self::Refused => "refused",
            Self::Transport => "transport",
            Self::WrongBytes => "wrong_bytes",
            Self::NoRoom => "no_room",
        }
    }
}

impl std::fmt::Display for FailureKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::PeerLost => "peer lost",
            Self::Late => "late",
            Self::Refused => "refused",
            Self::Transport => "transport failed",
            Self::WrongBytes => "wrong bytes",
            Self::NoRoom => "no room",
        })
    }
}

/// The serving process as the replay knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Who it is, for people: address and process.
    pub peer: String,
    /// How its pool is laid out.
    pub layout: Layout,
    /// The seed of its pattern, new with each start.
    pub seed: u64,
    /// The transport that carries its blocks.
    pub transport: String,
    /// Why it is not copied from directly, if that was tried.
    pub detour: Option<String>,
}

impl Remote {
    /// Where blocks are at home.
    pub fn homes(&self) -> Homes {
        Homes::new(&self.layout)
    }

    /// The bytes that piece `piece` of the home slot `home` must have.
    pub fn pattern(&self, home: u32, piece: u32) -> Pattern {
        Pattern::new(self.seed, home, piece)
    }
}

/// Why a lost peer could not be reached again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReconnectError {
    /// Not yet; it is worth another try.
    #[error("{0}")]
    NotYet(String),
    /// Another try will not help: the peer that answers is not one that fits.
    #[error("{0}")]
    Never(String),
}

/// Reads blocks from one serving process. The replay drives it from one thread.
pub trait Fetcher {
    /// The serving process.
    fn remote(&self) -> &Remote;

    /// Reads blocks, all as one batch, and waits for all of them with one bound. Gives one outcome for each, in the order
    /// of `reads`. Returns soon after somebody asks to stop.
    fn read_blocks(&mut self, reads: &[BlockRead], bound: Duration) -> Vec<Outcome>;

    /// Slots of late or interrupted blocks that no transfer writes to any more. Each is given once.
    fn take_quiet(&mut self) -> Vec<u32>;

    /// Shows the bytes of the local pool from `offset` on, `len` of them, in one or more runs and in order; with each run
    /// comes its position relative to `offset`. The look ends it by breaking.
    ///
    /// # Errors
    ///
    /// In words, when the range is not in the pool; a mistake of the replay.
    fn inspect(
        &mut self,
        offset: u64,
        len: u64,
        look: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), String>;

    /// Overwrites a few bytes at both ends of a range of the local pool, so that a transfer which says it is done but
    /// wrote nothing does not pass for one that did.
    ///
    /// # Errors
    ///
    /// As for [`Fetcher::inspect`].
    fn spoil(&mut self, offset: u64, len: u64) -> Result<(), String>;

    /// Tries once to reach the serving process, or the one that took its place.
    ///
    /// # Errors
    ///
    /// [`ReconnectError`]; the caller may try again after [`ReconnectError::NotYet`].
    fn reconnect(&mut self) -> Result<(), ReconnectError>;
}
