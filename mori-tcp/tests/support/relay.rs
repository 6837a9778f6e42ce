//! Something between two nodes: forwards connections to a target, and can hold them, let a number of bytes through, cut them
//! or fall silent.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the target: requests, and the bytes of writes.
    Up,
    /// From the target: answers, and the bytes of reads.
    Down,
}

/// What may pass one way.
struct Gate {
    /// Bytes that may still pass; `None`: any number.
    left: Option<u64>,
    /// Forwarding threads that have bytes and may not pass them.
    waiting: usize,
}

struct State {
    mode: Mode,
    gates: [Gate; 2],
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
        let gate = || Gate { left: None, waiting: 0 };
        let inner = Arc::new(Inner {
            target: ([127, 0, 0, 1], port).into(),
            state: Mutex::new(State { mode: Mode::Flow, gates: [gate(), gate()], sockets: Vec::new() }),
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

    /// Ends holding, cutting and every limit.
    pub(crate) fn flow(&self) {
        {
            let mut state = self.inner.lock();
            state.gates.iter_mut().for_each(|gate| gate.left = None);
        }
        self.inner.set(Mode::Flow);
    }

    /// Closes every connection, and new ones at once.
    pub(crate) fn cut(&self) {
        self.inner.set(Mode::Cut);
    }

    /// Like [`Relay::cut`], with a reset instead of a close.
    pub(crate) fn reset(&self) {
        for socket in &self.inner.lock().sockets {
            let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
        self.inner.set(Mode::Cut);
    }

    /// Closes one of the connections; the others, and new ones, go on.
    pub(crate) fn cut_one(&self) {
        let mut state = self.inner.lock();
        // Two of each connection.
        for socket in state.sockets.drain(..2) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// From now on lets `bytes` bytes through that way, over all connections together, and holds what comes after them.
    pub(crate) fn allow(&self, way: Way, bytes: u64) {
        self.inner.lock().gates[way as usize].left = Some(bytes);
        self.inner.changed.notify_all();
    }

    /// Waits until something has arrived that may not pass that way.
    pub(crate) fn wait_held(&self, way: Way) {
        let state = self.inner.lock();
        let waiting = |state: &mut State| state.gates[way as usize].waiting == 0;
        let (state, timeout) = self
            .inner
            .changed
            .wait_timeout_while(state, Duration::from_secs(60), waiting)
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!timeout.timed_out(), "nothing is held on its way {way:?}");
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, mode: Mode) {
        let mut state = self.lock();
        state.mode = mode;
        if matches!(mode, Mode::Cut | Mode::End) {
            for socket in state.sockets.drain(..) {
                // With a linger time of zero, only the last close resets the connection; a shutdown would say goodbye.
                let linger = socket2::SockRef::from(&socket).linger();
                if !matches!(linger, Ok(Some(Duration::ZERO))) {
                    let _ = socket.shutdown(Shutdown::Both);
                } else {
                    let _ = socket.shutdown(Shutdown::Read);
                }
            }
        }
        self.changed.notify_all();
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((near, _)) = listener.accept() {
            let mut state = self.lock();
            match state.mode {
                Mode::End => return,
                Mode::Cut => continue,
                Mode::Flow | Mode::Hold => {}
            }
            let Ok(far) = TcpStream::connect(self.target) else { continue };
            let _ = near.set_nodelay(true);
            let _ = far.set_nodelay(true);
            for (way, from, to) in [(Way::Up, &near, &far), (Way::Down, &far, &near)] {
                if let (Ok(from), Ok(to), Ok(kept)) = (from.try_clone(), to.try_clone(), from.try_clone()) {
                    state.sockets.push(kept);
                    let inner = Arc::clone(self);
                    std::thread::spawn(move || inner.forward(way, &from, &to));
                }
            }
        }
    }

    fn forward(&self, way: Way, mut from: &TcpStream, mut to: &TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        'connection: while let Ok(count) = from.read(&mut bytes) {
            if count == 0 {
                // The end is held, too.
                let _ = self.pass(way, 1);
                break;
            }
            let mut rest = &bytes[..count];
            while !rest.is_empty() {
                let Some(now) = self.pass(way, rest.len()) else { break 'connection };
                let (first, tail) = rest.split_at(now);
                if to.write_all(first).is_err() {
                    break 'connection;
                }
                rest = tail;
            }
        }
        let reset = [from, to].map(|socket| socket2::SockRef::from(socket).linger());
        if !reset.iter().any(|linger| matches!(linger, Ok(Some(Duration::ZERO)))) {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        }
    }

    /// How many of `count` bytes may pass now, waiting until it is at least one; `None` when the connection is cut.
    fn pass(&self, way: Way, count: usize) -> Option<usize> {
        let mut state = self.lock();
        let mut waiting = false;
        loop {
            let held = state.mode == Mode::Hold || state.gates[way as usize].left == Some(0);
            let cut = matches!(state.mode, Mode::Cut | Mode::End);
            if (!held || cut) && waiting {
                state.gates[way as usize].waiting -= 1;
            }
            if cut {
                return None;
            }
            if !held {
                break;
            }
            if !std::mem::replace(&mut waiting, true) {
                state.gates[way as usize].waiting += 1;
                self.changed.notify_all();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &mut state.gates[way as usize].left {
            None => Some(count),
            Some(left) => {
                let now = count.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= now as u64;
                Some(now)
            }
        }
    }
}
