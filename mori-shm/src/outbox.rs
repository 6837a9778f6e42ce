//! Packets that wait until the socket takes them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use crate::socket;
use crate::wire::Message;

#[derive(Debug, Default)]
pub(crate) struct Outbox(VecDeque<(Vec<u8>, Option<OwnedFd>)>);

impl Outbox {
    /// Sends a message now, or when there is room again.
    pub(crate) fn send(&mut self, socket: &OwnedFd, message: &Message) -> io::Result<()> {
        self.send_with(socket, message, None)
    }

    /// The same with a descriptor.
    pub(crate) fn send_with(
        &mut self,
        socket: &OwnedFd,
        message: &Message,
        descriptor: Option<OwnedFd>,
    ) -> io::Result<()> {
        let packet = message.encode();
        if !self.0.is_empty() || !socket::send(socket, &packet, descriptor.as_ref())? {
            self.0.push_back((packet, descriptor));
        }
        Ok(())
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn flush(&mut self, socket: &OwnedFd) -> io::Result<()> {
        while let Some((packet, descriptor)) = self.0.front() {
            if !socket::send(socket, packet, descriptor.as_ref())? {
                break;
            }
            self.0.pop_front();
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
