//! The control socket: packets over a Unix socket in the abstract namespace, which leaves no file behind.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use mori_core::{Error, ErrorKind};

use crate::wire::{MAX_PACKET, malformed};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;

fn fresh() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(name: &[u8]) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name)?)
}

/// Listens under a name.
pub(crate) fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = fresh()?;
    rustix::net::bind(&socket, &address(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a name; never waits. `WouldBlock`: too many connections wait there already.
pub(crate) fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = fresh()?;
    rustix::net::connect(&socket, &address(name)?)?;
    Ok(socket)
}

/// Takes a connection that waits; `None` if there is none.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a packet, with a descriptor if there is one; `false`: it does not fit now.
pub(crate) fn send(socket: &OwnedFd, packet: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed = descriptor.map(|descriptor| [descriptor.as_fd()]);
    if let Some(descriptors) = &borrowed
        && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What came in.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet of this many bytes in the buffer, and the descriptor that came with it.
    Packet(usize, Option<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The other end is closed.
    Closed,
}

/// Takes a packet. One that is longer than the buffer is an error.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8; MAX_PACKET]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => break message,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(Received::Closed),
            Err(error) => return Err(error.into()),
        }
    };
    // More than one descriptor does not fit; the kernel closes the rest.
    let mut descriptor = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            descriptor = descriptors.last();
        }
    }
    if message.bytes == 0 {
        // Nobody sends an empty packet.
        return Ok(Received::Closed);
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    Ok(Received::Packet(message.bytes, descriptor))
}

/// The error that ends a connection whose socket fails.
pub(crate) fn broke(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData => malformed("a message that is too long"),
        _ => Error::io(ErrorKind::PeerLost, "the connection broke", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &[u8]) -> (OwnedFd, OwnedFd) {
        let listener = listen(name).unwrap();
        assert!(accept(&listener).unwrap().is_none());
        let near = connect(name).unwrap();
        (near, accept(&listener).unwrap().unwrap())
    }

    #[test]
    fn packets_and_descriptors_go_through() {
        let (near, far) = pair(format!("mori-shm-test-{}", std::process::id()).as_bytes());
        let mut buffer = [0; MAX_PACKET];
        assert!(matches!(receive(&far, &mut buffer).unwrap(), Received::Nothing));
        assert!(send(&near, b"one", None).unwrap() && send(&near, b"and two", Some(&far)).unwrap());
        assert!(matches!(receive(&far, &mut buffer).unwrap(), Received::Packet(3, None)));
        assert!(matches!(receive(&far, &mut buffer).unwrap(), Received::Packet(7, Some(_))));
        assert_eq!(&buffer[..7], b"and two");
        assert!(send(&near, &[1; MAX_PACKET + 1], None).unwrap());
        assert!(receive(&far, &mut buffer).is_err(), "a packet that is too long");
        drop(near);
        assert!(matches!(receive(&far, &mut buffer).unwrap(), Received::Closed));
        assert!(connect(b"mori-shm-test-nobody").is_err());
    }

    #[test]
    fn a_full_socket_says_so() {
        let (near, far) = pair(format!("mori-shm-test-full-{}", std::process::id()).as_bytes());
        let mut sent = 0;
        while send(&near, &[0; 4000], None).unwrap() {
            sent += 1;
            assert!(sent < 100_000);
        }
        let mut buffer = [0; MAX_PACKET];
        while matches!(receive(&far, &mut buffer).unwrap(), Received::Packet(..)) {
            sent -= 1;
        }
        assert_eq!(sent, 0);
    }
}
