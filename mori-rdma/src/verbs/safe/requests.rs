//! Lists of work requests, built in place and posted at once.
//!
//! A list keeps its room when it is cleared, so that posting allocates nothing once the lists have grown. Pointers between its
//! parts are set when it is posted, under an exclusive borrow, and mean nothing at any other time.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::ptr;

use super::super::error::VerbsError;
use super::super::sys::{self, Plain, ibv_recv_wr, ibv_send_wr, ibv_sge};

/// A piece of registered memory of this side.
///
/// It is numbers, which the device checks when it carries the request out;
/// [`MemoryRegion::sge`](super::MemoryRegion::sge) makes one that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sge {
    /// The address of its first byte.
    pub address: u64,
    /// Its length in bytes. Zero is best left out: some drivers take it for 2 GiB.
    pub length: u32,
    /// The local key of the registration.
    pub key: u32,
}

impl Sge {
    fn raw(self) -> ibv_sge {
        ibv_sge { addr: self.address, length: self.length, lkey: self.key }
    }
}

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// The address of its first byte, as the peer names it.
    pub address: u64,
    /// The remote key of the peer's registration.
    pub key: u32,
}

/// How a work request is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SendFlags(u32);

impl SendFlags {
    /// In the order of the queue, with a completion only if it fails.
    pub const NONE: Self = Self(0);
    /// With a completion.
    pub const SIGNALED: Self = Self(sys::IBV_SEND_SIGNALED);
    /// Not before all earlier reads of the queue are done.
    pub const FENCE: Self = Self(sys::IBV_SEND_FENCE);
    /// The peer's completion counts as solicited. For sends and writes with immediate data.
    pub const SOLICITED: Self = Self(sys::IBV_SEND_SOLICITED);

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for SendFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for SendFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Work requests for a send queue, in their order.
///
/// ```
/// use mori_rdma::verbs::{RemoteAddress, SendFlags, SendList, Sge};
/// let mut list = SendList::new();
/// let local = Sge { address: 0x1000, length: 64, key: 1 };
/// list.read(1, &[local], RemoteAddress { address: 0x2000, key: 2 }, SendFlags::NONE);
/// list.send_inline(2, b"done", None, SendFlags::SIGNALED | SendFlags::FENCE);
/// assert_eq!(list.len(), 2);
/// list.clear();
/// assert!(list.is_empty());
/// ```
#[derive(Default)]
pub struct SendList {
    requests: Vec<ibv_send_wr>,
    /// The pieces of the requests, one after the other.
    pieces: Vec<ibv_sge>,
    /// The inline data of the requests that have any, one after the other.
    inline: Vec<u8>,
}

// SAFETY: the pointers in the requests are used only between `link` and the end of the call that it is for, under one
// exclusive borrow of the list, and point into the list itself.
unsafe impl Send for SendList {}
// SAFETY: a shared borrow reads no pointer.
unsafe impl Sync for SendList {}

impl SendList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty list with room for so many requests and pieces.
    #[must_use]
    pub fn with_capacity(requests: usize, pieces: usize) -> Self {
        Self {
            requests: Vec::with_capacity(requests),
            pieces: Vec::with_capacity(pieces),
            inline: Vec::new(),
        }
    }

    /// Empties it, and keeps its room.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
        self.inline.clear();
    }

    /// How many requests there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The numbers of the requests, in their order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = u64> {
        self.requests.iter().map(|request| request.wr_id)
    }

    /// Adds to the flags of the last request, if there is one: a chain of requests is signalled at its end.
    pub fn flag_last(&mut self, flags: SendFlags) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= flags.0;
        }
    }

    /// Reads the peer's bytes from `from` on into the pieces.
    pub fn read(&mut self, id: u64, into: &[Sge], from: RemoteAddress, flags: SendFlags) {
        self.push(id, sys::IBV_WR_RDMA_READ, into, Some(from), None, flags);
    }

    /// Writes the pieces, one after the other, to the peer's bytes from `to` on.
    pub fn write(&mut self, id: u64, from: &[Sge], to: RemoteAddress, flags: SendFlags) {
        self.push(id, sys::IBV_WR_RDMA_WRITE, from, Some(to), None, flags);
    }

    /// Writes, and uses up a receive of the peer's, which gets the immediate data.
    pub fn write_with_immediate(
        &mut self,
        id: u64,
        from: &[Sge],
        to: RemoteAddress,
        immediate: u32,
        flags: SendFlags,
    ) {
        self.push(id, sys::IBV_WR_RDMA_WRITE_WITH_IMM, from, Some(to), Some(immediate), flags);
    }

    /// Sends the pieces, one after the other, into a receive of the peer's, with immediate data or without.
    pub fn send(&mut self, id: u64, from: &[Sge], immediate: Option<u32>, flags: SendFlags) {
        self.push(id, send_opcode(immediate), from, None, immediate, flags);
    }

    /// Like [`write`](SendList::write), with bytes that need no registration: they are copied now, and again when posted.
    pub fn write_inline(&mut self, id: u64, bytes: &[u8], to: RemoteAddress, flags: SendFlags) {
        self.push_inline(id, sys::IBV_WR_RDMA_WRITE, bytes, Some(to), None, flags);
    }

    /// Like [`write_with_immediate`](SendList::write_with_immediate), with bytes that need no registration.
    pub fn write_inline_with_immediate(
        &mut self,
        id: u64,
        bytes: &[u8],
        to: RemoteAddress,
        immediate: u32,
        flags: SendFlags,
    ) {
        self.push_inline(id, sys::IBV_WR_RDMA_WRITE_WITH_IMM, bytes, Some(to), Some(immediate), flags);
    }

    /// Like [`send`](SendList::send), with bytes that need no registration.
    pub fn send_inline(&mut self, id: u64, bytes: &[u8], immediate: Option<u32>, flags: SendFlags) {
        self.push_inline(id, send_opcode(immediate), bytes, None, immediate, flags);
    }

    fn push(
        &mut self,
        id: u64,
        opcode: u32,
        pieces: &[Sge],
        remote: Option<RemoteAddress>,
        immediate: Option<u32>,
        flags: SendFlags,
    ) {
        self.pieces.extend(pieces.iter().map(|piece| piece.raw()));
        let mut request = ibv_send_wr::zeroed();
        request.wr_id = id;
        request.opcode = opcode;
        // A list of pieces that does not fit the number is refused when it is posted.
        request.num_sge = i32::try_from(pieces.len()).unwrap_or(i32::MAX);
        request.send_flags = flags.0;
        if let Some(remote) = remote {
            request.wr.remote_addr = remote.address;
            request.wr.rkey = remote.key;
        }
        request.imm_data = immediate.unwrap_or(0).to_be();
        self.requests.push(request);
    }

    fn push_inline(
        &mut self,
        id: u64,
        opcode: u32,
        bytes: &[u8],
        remote: Option<RemoteAddress>,
        immediate: Option<u32>,
        flags: SendFlags,
    ) {
        self.inline.extend_from_slice(bytes);
        // Longer data than the number holds is longer than any device takes, and is refused when it is posted.
        let piece = Sge { address: 0, length: u32::try_from(bytes.len()).unwrap_or(u32::MAX), key: 0 };
        let flags = SendFlags(flags.0 | sys::IBV_SEND_INLINE);
        self.push(id, opcode, &[piece], remote, immediate, flags);
    }

    /// Sets the pointers between the parts, and returns the first request. They hold until the list is changed.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Argument`] for a request with more pieces or inline bytes than these limits.
    pub(super) fn link(&mut self, max_pieces: u32, max_inline: u32) -> Result<*mut ibv_send_wr, VerbsError> {
        self.check(max_pieces, max_inline)?;
        let requests = self.requests.as_mut_ptr();
        let mut pieces = self.pieces.as_mut_slice();
        let mut inline = self.inline.as_ptr();
        for (at, request) in self.requests.iter_mut().enumerate() {
            // Provenance is that of the whole vector, so that the library may go from one to the next.
            request.next = requests.wrapping_add(at + 1);
            let count = usize::try_from(request.num_sge).unwrap_or(0).min(pieces.len());
            let (own, rest) = pieces.split_at_mut(count);
            pieces = rest;
            if request.send_flags & sys::IBV_SEND_INLINE != 0 {
                for piece in own.iter_mut() {
                    piece.addr = inline.expose_provenance() as u64;
                    inline = inline.wrapping_add(piece.length as usize);
                }
            }
            request.sg_list = if own.is_empty() { ptr::null_mut() } else { own.as_mut_ptr() };
        }
        if let Some(last) = self.requests.last_mut() {
            last.next = ptr::null_mut();
        }
        Ok(requests)
    }

    fn check(&self, max_pieces: u32, max_inline: u32) -> Result<(), VerbsError> {
        let mut start = 0;
        for request in &self.requests {
            let count = request.num_sge.cast_unsigned();
            if count > max_pieces && !(request.send_flags & sys::IBV_SEND_INLINE != 0 && count == 1) {
                return Err(too_many_pieces(count, max_pieces));
            }
            if request.send_flags & sys::IBV_SEND_INLINE != 0 {
                let length = self.pieces.get(start).map_or(0, |piece| piece.length);
                if length > max_inline {
                    return Err(VerbsError::Argument(format!(
                        "a request has {length} inline bytes, and the queue pair takes {max_inline}"
                    )));
                }
            }
            start += count as usize;
        }
        Ok(())
    }
}

fn send_opcode(immediate: Option<u32>) -> u32 {
    if immediate.is_some() { sys::IBV_WR_SEND_WITH_IMM } else { sys::IBV_WR_SEND }
}

fn too_many_pieces(count: u32, most: u32) -> VerbsError {
    VerbsError::Argument(format!("a request has {count} pieces, and the queue pair takes {most}"))
}

impl fmt::Debug for SendList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendList")
            .field("requests", &self.requests.len())
            .field("pieces", &self.pieces.len())
            .field("inline", &self.inline.len())
            .finish()
    }
}

/// Work requests for a receive queue, in their order.
#[derive(Default)]
pub struct RecvList {
    requests: Vec<ibv_recv_wr>,
    pieces: Vec<ibv_sge>,
}

// SAFETY: as of `SendList`.
unsafe impl Send for RecvList {}
// SAFETY: as of `SendList`.
unsafe impl Sync for RecvList {}

impl RecvList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties it, and keeps its room.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }

    /// How many requests there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The numbers of the requests, in their order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = u64> {
        self.requests.iter().map(|request| request.wr_id)
    }

    /// A receive that the peer's next message fills, piece by piece; without pieces, for immediate data only.
    pub fn receive(&mut self, id: u64, into: &[Sge]) {
        self.pieces.extend(into.iter().map(|piece| piece.raw()));
        let mut request = ibv_recv_wr::zeroed();
        request.wr_id = id;
        request.num_sge = i32::try_from(into.len()).unwrap_or(i32::MAX);
        self.requests.push(request);
    }

    /// As [`SendList::link`].
    pub(super) fn link(&mut self, max_pieces: u32) -> Result<*mut ibv_recv_wr, VerbsError> {
        let requests = self.requests.as_mut_ptr();
        let mut pieces = self.pieces.as_mut_slice();
        for (at, request) in self.requests.iter_mut().enumerate() {
            let count = request.num_sge.cast_unsigned();
            if count > max_pieces {
                return Err(too_many_pieces(count, max_pieces));
            }
            request.next = requests.wrapping_add(at + 1);
            let count = (count as usize).min(pieces.len());
            let (own, rest) = pieces.split_at_mut(count);
            pieces = rest;
            request.sg_list = if own.is_empty() { ptr::null_mut() } else { own.as_mut_ptr() };
        }
        if let Some(last) = self.requests.last_mut() {
            last.next = ptr::null_mut();
        }
        Ok(requests)
    }
}

impl fmt::Debug for RecvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvList")
            .field("requests", &self.requests.len())
            .field("pieces", &self.pieces.len())
            .finish()
    }
}

/// How many of a list's requests come before the one that the library names as the first that it did not take; all of
/// them, if it names none of the list's.
pub(super) fn position<T>(first: *const T, count: usize, refused: *const T) -> usize {
    let distance = refused.addr().wrapping_sub(first.addr());
    let at = distance / size_of::<T>();
    if distance.is_multiple_of(size_of::<T>()) && at < count { at } else { count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: u64) -> Sge {
        Sge { address, length: 10, key: 7 }
    }

    #[test]
    fn a_list_is_linked_in_its_order() {
        let mut list = SendList::new();
        let remote = RemoteAddress { address: 100, key: 9 };
        list.write(1, &[piece(1), piece(2)], remote, SendFlags::NONE);
        list.send_inline(2, b"abc", Some(5), SendFlags::SIGNALED);
        list.send_inline(3, b"defg", None, SendFlags::NONE);
        list.read(4, &[piece(3)], remote, SendFlags::NONE);
        // Linking twice is the same as once.
        list.link(2, 4).unwrap();
        let mut at = list.link(2, 4).unwrap();
        let mut seen = Vec::new();
        while !at.is_null() {
            // SAFETY: the list is linked and not changed since.
            let request = unsafe { *at };
            let count = usize::try_from(request.num_sge).unwrap();
            // SAFETY: as above.
            let pieces = unsafe { std::slice::from_raw_parts(request.sg_list, count) };
            let first = pieces[0];
            let text = if request.send_flags & sys::IBV_SEND_INLINE != 0 {
                let bytes = ptr::with_exposed_provenance::<u8>(usize::try_from(first.addr).unwrap());
                // SAFETY: inline data lies in the list.
                unsafe { std::slice::from_raw_parts(bytes, first.length as usize) }.to_vec()
            } else {
                vec![u8::try_from(first.addr).unwrap()]
            };
            seen.push((request.wr_id, request.opcode, count, text));
            at = request.next;
        }
        let expected = [
            (1, sys::IBV_WR_RDMA_WRITE, 2, vec![1]),
            (2, sys::IBV_WR_SEND_WITH_IMM, 1, b"abc".to_vec()),
            (3, sys::IBV_WR_SEND, 1, b"defg".to_vec()),
            (4, sys::IBV_WR_RDMA_READ, 1, vec![3]),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_the_queue_pair_cannot_take_is_refused_before_it_is_posted() {
        let mut list = SendList::new();
        list.write(1, &[piece(1), piece(2)], RemoteAddress { address: 0, key: 0 }, SendFlags::NONE);
        assert!(list.link(1, 0).unwrap_err().to_string().contains("2 pieces, and the queue pair takes 1"));
        list.clear();
        list.send_inline(1, b"abc", None, SendFlags::NONE);
        assert!(list.link(1, 2).unwrap_err().to_string().contains("3 inline bytes"));
        let mut list = RecvList::new();
        list.receive(1, &[piece(1), piece(2)]);
        assert!(list.link(1).is_err());
        assert!(list.link(2).is_ok());
    }

    #[test]
    fn the_refused_request_is_found_by_its_place() {
        let array = [0_u64; 4];
        for (at, of) in array.iter().enumerate() {
            assert_eq!(position(array.as_ptr(), 4, of), at);
        }
        assert_eq!(position(array.as_ptr(), 4, ptr::null()), 4);
        assert_eq!(position(array.as_ptr(), 4, array.as_ptr().wrapping_add(4)), 4);
        assert_eq!(position(array.as_ptr(), 4, array.as_ptr().wrapping_byte_add(3)), 4);
        assert_eq!(position(array.as_ptr(), 4, array.as_ptr().wrapping_sub(1)), 4);
    }
}
