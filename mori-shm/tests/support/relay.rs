//! Something between two nodes: forwards packets and descriptors of a control socket, and can cut the connections.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

pub(crate) struct Relay {
    pub(crate) name: [u8; 16],
    shared: Arc<Shared>,
}

struct Shared {
    listener: OwnedFd,
    to: Vec<u8>,
    cut: AtomicBool,
    ended: AtomicBool,
    sockets: Mutex<Vec<Arc<OwnedFd>>>,
}

/// The socket name that belongs to the random part in a descriptor.
pub(crate) fn socket_name(random: &[u8]) -> Vec<u8> {
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("mori-shm-{hex}").into_bytes()
}

fn socket() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A blocking socket that is connected to a name.
pub(crate) fn connect(name: &[u8]) -> std::io::Result<OwnedFd> {
    let made = socket()?;
    rustix::net::connect(&made, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(made)
}

/// A blocking socket that listens under a name.
pub(crate) fn listen(name: &[u8]) -> std::io::Result<OwnedFd> {
    let made = socket()?;
    rustix::net::bind(&made, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&made, 64)?;
    Ok(made)
}

/// A random part that no other socket has.
pub(crate) fn fresh_name() -> [u8; 16] {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let mut name = [0xaa; 16];
    name[..8].copy_from_slice(&SERIAL.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    name[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    name
}

/// Takes one packet, and the descriptor that came with it; `None` at the end.
pub(crate) fn receive(from: &OwnedFd, buffer: &mut [u8]) -> Option<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(from, &mut [IoSliceMut::new(buffer)], &mut control, flags).ok()?;
    let mut descriptor = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = part {
            descriptor = found.last();
        }
    }
    (message.bytes > 0).then_some((message.bytes, descriptor))
}

/// Sends one packet with a descriptor; `false` at the end.
pub(crate) fn send(to: &OwnedFd, packet: &[u8], descriptor: Option<&OwnedFd>) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed = descriptor.map(|descriptor| [descriptor.as_fd()]);
    if let Some(descriptors) = &borrowed {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).is_ok()
}

impl Relay {
    /// A relay in front of the socket of this name.
    pub(crate) fn new(to: Vec<u8>) -> std::io::Result<Self> {
        let name = fresh_name();
        let shared = Arc::new(Shared {
            listener: listen(&socket_name(&name))?,
            to,
            cut: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            sockets: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept());
        Ok(Self { name, shared })
    }

    pub(crate) fn cut(&self) {
        self.shared.cut.store(true, Ordering::SeqCst);
        self.shared.close();
    }

    pub(crate) fn heal(&self) {
        self.shared.cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.close();
        // Wakes the accepting thread.
        let _ = connect(&socket_name(&self.name));
    }
}

impl Shared {
    fn close(&self) {
        for socket in self.sockets.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }

    fn accept(self: Arc<Self>) {
        while let Ok(near) = rustix::net::accept(&self.listener) {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let Ok(far) = connect(&self.to) else { continue };
            let (near, far) = (Arc::new(near), Arc::new(far));
            {
                let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
                if self.cut.load(Ordering::SeqCst) {
                    continue;
                }
                sockets.extend([Arc::clone(&near), Arc::clone(&far)]);
            }
            for (from, to) in [(Arc::clone(&near), Arc::clone(&far)), (far, near)] {
                std::thread::spawn(move || {
                    let mut buffer = [0; 8192];
                    while let Some((length, descriptor)) = receive(&from, &mut buffer) {
                        if !send(&to, &buffer[..length], descriptor.as_ref()) {
                            break;
                        }
                    }
                    for socket in [from, to] {
                        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
                    }
                });
            }
        }
    }
}
