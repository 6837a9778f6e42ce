//! Lending the open connection to a thread that waits for an answer; see [`crate::driven`].

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Interest, Token};
use mori_core::{Error, ErrorKind, Result};

use super::{Initiator, Phase};
use crate::shared::Shared;
use crate::worker::Command;

impl Initiator {
    /// From now on the system tells of bytes to read by one descriptor, and of room to write by another. With descriptors used
    /// up it goes on telling both by one, and nobody but the I/O thread reads.
    pub(super) fn split(&mut self, socket: &TcpStream) -> io::Result<()> {
        let Ok(twin) = socket.as_fd().try_clone_to_owned() else { return Ok(()) };
        let mut room = TcpStream::from_std(twin.into());
        let (registry, token) = (&self.lane.worker.registry, Token(self.lane.token));
        registry.reregister(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)?;
        registry.register(&mut room, token, Interest::WRITABLE)?;
        self.room = Some(room);
        Ok(())
    }

    /// Takes the socket off the list of what its I/O thread is told about, so that the calling thread can read it; `false` if
    /// that cannot be now.
    pub(crate) fn take(&mut self) -> bool {
        self.room.is_some()
            && !self.broken
            && self.lane.socket().is_some_and(|socket| {
                self.lane.worker.registry.deregister(&mut SourceFd(&socket.as_raw_fd())).is_ok()
            })
    }

    /// Reads what has come since the last look; `true` if that was anything. For the thread that took the socket.
    ///
    /// # Errors
    ///
    /// Why the connection has to be closed; it is not read again.
    pub(crate) fn look(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        let before = (self.reader.read, self.reader.ahead());
        let mut stepped = self.step(shared);
        if let Ok(false) = stepped
            && (self.reader.read, self.reader.ahead()) == before
        {
            // Nothing is left of what was read ahead; the system does not tell this thread that there is more.
            self.reader.readable(false);
            stepped = self.step(shared);
        }
        self.broken |= stepped.is_err();
        stepped?;
        if self.reader.read > before.0 {
            self.alive(shared.clock.now());
        }
        Ok((self.reader.read, self.reader.ahead()) != before)
    }

    /// Whether the calling thread may read on.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open) && !self.broken
    }

    /// Gives the socket back to its I/O thread, which hears of what can be read by then.
    ///
    /// # Errors
    ///
    /// Why the connection has to be closed.
    pub(crate) fn give_back(&mut self) -> Result<()> {
        let Some(socket) = self.lane.socket().filter(|_| matches!(self.phase, Phase::Open)) else {
            return Ok(());
        };
        let registry = &self.lane.worker.registry;
        let given =
            registry.register(&mut SourceFd(&socket.as_raw_fd()), Token(self.lane.token), Interest::READABLE);
        given.map_err(|error| {
            self.broken = true;
            Error::io(ErrorKind::ResourceExhausted, "cannot watch a socket", &error)
        })?;
        // Bytes that were read ahead are no event.
        if !self.reader.is_drained() {
            self.lane.worker.send(Command::Read(self.lane.token));
        }
        Ok(())
    }
}
