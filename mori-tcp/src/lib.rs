#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod driven;
mod handshake;
mod initiator;
mod lane;
mod messenger;
mod outgoing;
mod peer;
mod reader;
mod regions;
mod session;
mod shared;
mod sync;
mod sys;
mod target;
mod transfer;
mod wire;
mod worker;

pub use backend::TcpBackend;
pub use config::TcpConfig;
pub use mori_core::Secret;

use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};

use mio::net::TcpStream;
use mori_core::{Error, ErrorKind};

/// Fills `bytes` from the system's source of randomness.
fn random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes)
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("the system has no randomness: {error}")))
}

/// Settings of every connection: small frames leave at once, and a vanished host is noticed on an idle one, too.
fn tune(socket: &TcpStream) {
    let reference = socket2::SockRef::from(socket);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(std::time::Duration::from_secs(30))
        .with_interval(std::time::Duration::from_secs(10))
        .with_retries(3);
    let settings = socket.set_nodelay(true).and_then(|()| reference.set_tcp_keepalive(&keepalive));
    if let Err(error) = settings {
        tracing::debug!(%error, "a connection keeps the system's settings");
    }
}

/// Makes the closing of a broken connection reset it: what the system still holds for the peer is dropped, instead of reaching a
/// peer that comes back to life, or being kept for one that never does.
fn forget_unsent(socket: &TcpStream) {
    if let Err(error) = socket2::SockRef::from(socket).set_linger(Some(std::time::Duration::ZERO)) {
        tracing::debug!(%error, "a broken connection is closed in the ordinary way");
    }
}

/// Runs what may call into the application (an observer, a waker): a panic there must not take an I/O thread with it, and
/// everything that thread carries. `None` after a panic.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    if result.is_err() {
        tracing::error!("an observer or waker of the application panicked when it was told");
    }
    result.ok()
}

/// Sends as much of `bytes` as the socket takes, and removes that from the front.
fn send_all(socket: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match (&mut &*socket).write(bytes) {
            Ok(count) => {
                bytes.drain(..count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
