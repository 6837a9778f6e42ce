//! Something between two nodes: forwards connections to a target, and can hold them, cut them or fall silent.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Flow,
    /// What arrives is kept until it flows again.
    Hold,
    /// Connections are closed, and new ones at once.
    Cut,
    /// For good; the accepting thread ends.
    End,
}

struct State {
    mode: Mode,
    sockets: Vec<TcpStream>,
}

struct Inner {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

/// A relay on loopback. Dropping it cuts everything.
pub(crate) struct Relay {
    inner: Arc<Inner>,
    address: SocketAddr,
}

impl Relay {
    /// A relay in front of a port on loopback.
    pub(crate) fn new(port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            target: ([127, 0, 0, 1], port).into(),
            state: Mutex::new(State { mode: Mode::Flow, sockets: Vec::new() }),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&inner);
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { inner, address })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn hold(&self) {
        self.inner.set(Mode::Hold);
    }

    pub(crate) fn flow(&self) {
        self.inner.set(Mode::Flow);
    }

    pub(crate) fn cut(&self) {
        self.inner.set(Mode::Cut);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.inner.set(Mode::End);
        // Wakes the accepting thread.
        drop(TcpStream::connect(self.address));
    }
}

impl Inner {
    fn set(&self, mode: Mode) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.mode = mode;
        if matches!(mode, Mode::Cut | Mode::End) {
            for socket in state.sockets.drain(..) {
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
        self.changed.notify_all();
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((near, _)) = listener.accept() {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match state.mode {
                Mode::End => return,
                Mode::Cut => continue,
                Mode::Flow | Mode::Hold => {}
            }
            let Ok(far) = TcpStream::connect(self.target) else { continue };
            let _ = near.set_nodelay(true);
            let _ = far.set_nodelay(true);
            for (from, to) in [(&near, &far), (&far, &near)] {
                if let (Ok(from), Ok(to), Ok(kept)) = (from.try_clone(), to.try_clone(), from.try_clone()) {
                    state.sockets.push(kept);
                    let inner = Arc::clone(self);
                    std::thread::spawn(move || inner.forward(from, to));
                }
            }
        }
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count) = from.read(&mut bytes) {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let held = self.changed.wait_while(state, |state| state.mode == Mode::Hold);
            drop(held);
            if count == 0 || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
