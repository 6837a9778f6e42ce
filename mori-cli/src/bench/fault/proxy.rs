//! Connections that can be cut: a listener of ours that hands everything on to the target until it is told to stop.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::stop::Stop;

/// Listens on one address and connects to another for each connection.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    stop: Stop,
    /// Both ends of every connection that was let through since the last cut.
    open: Mutex<Vec<TcpStream>>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self) {
        for stream in self.open().drain(..) {
            // One that is closed already needs no cut.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// Starts to let connections through; each is made to `target` when it comes.
    ///
    /// # Errors
    ///
    /// When the socket has no address or the thread cannot be started.
    pub(super) fn start(listener: TcpListener, target: SocketAddr) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { target, stop: Stop::new(), open: Mutex::default() });
        let thread = std::thread::Builder::new().name("mori-proxy".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                while let Ok((stream, _)) = listener.accept() {
                    if shared.stop.asked() {
                        return;
                    }
                    if let Err(error) = let_through(&shared, stream) {
                        tracing::debug!(%error, "a connection does not get through");
                    }
                }
            }
        })?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Cuts every connection; later ones get through.
    pub(super) fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.ask();
        let woken = crate::control::knock(self.address);
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
        self.shared.cut();
    }
}

/// Connects to the target and hands bytes on in both directions, each in a thread of its own.
fn let_through(shared: &Shared, near: TcpStream) -> io::Result<()> {
    let far = TcpStream::connect(shared.target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    shared.open().extend([near.try_clone()?, far.try_clone()?]);
    for (mut from, mut to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        let hand_on = move || {
            // An end and a break are handed on alike.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        };
        std::thread::Builder::new().name("mori-proxy".to_owned()).spawn(hand_on)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_cut_ends_both_sides_and_later_connections_get_through() {
        let behind = TcpListener::bind("127.0.0.1:0").expect("bind");
        let front = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = front.local_addr().expect("address");
        let proxy = Proxy::start(front, behind.local_addr().expect("address")).expect("start");
        for _ in 0..2 {
            let mut near = TcpStream::connect(address).expect("connects");
            let mut far = behind.accept().expect("let through").0;
            let mut byte = [0];
            near.write_all(&[7]).expect("sent");
            far.read_exact(&mut byte).expect("arrived");
            far.write_all(&byte).expect("sent");
            near.read_exact(&mut byte).expect("arrived");
            assert_eq!(byte, [7]);
            proxy.cut();
            assert!(!matches!(near.read(&mut byte), Ok(1)));
            assert!(!matches!(far.read(&mut byte), Ok(1)));
        }
        drop(proxy);
        assert!(TcpStream::connect(address).is_err());
    }
}
