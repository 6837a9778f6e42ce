//! Scattered memory and the two system calls that move it: the only module of this crate with `unsafe` code.
//!
//! A [`Scatter`] can only be made from a pinned region, and every piece of it is checked against the region's end, so that the
//! addresses it hands to the kernel are valid as long as it lives. Everything above is safe code.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use mori_core::{Error, ErrorKind, Pin};

/// The most pieces that one call takes (`IOV_MAX`, limits.h).
const MAX_PIECES: usize = 1024;

/// One contiguous range; laid out like the kernel's `struct iovec` (readv(2)).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Range {
    address: usize,
    length: usize,
}

const _: () = {
    assert!(size_of::<Range>() == size_of::<libc::iovec>());
    assert!(align_of::<Range>() == align_of::<libc::iovec>());
};

/// A list of ranges of one pinned region, with a position: how far bytes have been moved.
#[derive(Debug)]
pub(crate) struct Scatter {
    ranges: Vec<Range>,
    /// The range that the position is in.
    index: usize,
    /// Bytes still to move.
    left: u64,
    _pin: Arc<Pin>,
}

impl Scatter {
    /// The ranges (offset, length) of the pinned region, in this order; empty ones are left out, and neighbours
    /// that touch are merged.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a range past the region's end, [`ErrorKind::Unsupported`] for a device's memory.
    pub(crate) fn new(
        pin: Arc<Pin>,
        ranges: impl ExactSizeIterator<Item = (u64, u64)>,
    ) -> Result<Self, Error> {
        let region = pin.region();
        if !region.location().is_host() {
            return Err(Error::new(ErrorKind::Unsupported, "the region is not in host memory"));
        }
        let mut list: Vec<Range> = Vec::with_capacity(ranges.len());
        let mut left: u64 = 0;
        for (offset, length) in ranges {
            let address = region.piece(offset, length)?;
            let Some(total) = left.checked_add(length) else {
                return Err(Error::new(ErrorKind::InvalidArgument, "the pieces add up to more than 64 bits"));
            };
            left = total;
            // The check above bounds the length by the region's, which is a `usize`.
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            match list.last_mut() {
                _ if length == 0 => {}
                Some(last) if last.address + last.length == address => last.length += length,
                _ => list.push(Range { address, length }),
            }
        }
        Ok(Self { ranges: list, index: 0, left, _pin: pin })
    }

    /// Bytes still to move.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// How many ranges it has.
    pub(crate) fn pieces(&self) -> usize {
        self.ranges.len()
    }

    /// Copies bytes to the position and moves it; returns how many there was room for.
    pub(crate) fn copy_in(&mut self, mut bytes: &[u8]) -> usize {
        let mut copied = 0;
        while !bytes.is_empty() && self.left > 0 {
            let Some(range) = self.ranges.get(self.index) else { break };
            let count = range.length.min(bytes.len());
            // SAFETY: the range lies inside the pinned region's host memory; `bytes` is a Rust slice, which a region
            // never overlaps; `count` is within both.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    std::ptr::with_exposed_provenance_mut::<u8>(range.address),
                    count,
                );
            }
            self.advance(count as u64);
            bytes = &bytes[count..];
            copied += count;
        }
        copied
    }

    /// Moves the position forward, at most to the end.
    pub(crate) fn advance(&mut self, count: u64) {
        let mut count = count.min(self.left);
        self.left -= count;
        while count > 0 {
            let Some(range) = self.ranges.get_mut(self.index) else { break };
            if (range.length as u64) <= count {
                count -= range.length as u64;
                self.index += 1;
            } else {
                // Smaller than the range's length, so it is a `usize`.
                let step = usize::try_from(count).unwrap_or(0);
                range.address += step;
                range.length -= step;
                count = 0;
            }
        }
    }

    /// Appends the ranges from the position on, at most `bytes` bytes; returns how many bytes were appended.
    fn append(&self, into: &mut Vec<Range>, bytes: u64) -> u64 {
        let mut want = bytes.min(self.left);
        let mut taken = 0;
        for range in self.ranges.get(self.index..).unwrap_or_default() {
            if want == 0 || into.len() >= MAX_PIECES {
                break;
            }
            let length = usize::try_from(want).unwrap_or(usize::MAX).min(range.length);
            into.push(Range { address: range.address, length });
            want -= length as u64;
            taken += length as u64;
        }
        taken
    }
}

/// What one call sends: byte strings and pieces of regions, in order, borrowed until it is sent.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    ranges: Vec<Range>,
    bytes: u64,
    _borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    pub(crate) fn new() -> Self {
        Self { ranges: Vec::with_capacity(16), bytes: 0, _borrowed: PhantomData }
    }

    /// Bytes gathered so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends a byte string; `false` if there is no room for it.
    pub(crate) fn push_bytes(&mut self, bytes: &'a [u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        if self.ranges.len() >= MAX_PIECES {
            return false;
        }
        self.ranges.push(Range { address: bytes.as_ptr().expose_provenance(), length: bytes.len() });
        self.bytes += bytes.len() as u64;
        true
    }

    /// Appends up to `bytes` bytes from the scatter's position on; `false` if not all of them found room.
    pub(crate) fn push_scatter(&mut self, scatter: &'a Scatter, bytes: u64) -> bool {
        let taken = scatter.append(&mut self.ranges, bytes);
        self.bytes += taken;
        taken == bytes
    }
}

/// Sends what was gathered, as far as the socket takes it (sendmsg(2)); never raises SIGPIPE.
pub(crate) fn send(socket: &impl AsRawFd, gather: &Gather<'_>) -> io::Result<usize> {
    // SAFETY: all-zero is a valid `msghdr`: null pointers and zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = gather.ranges.as_ptr().cast::<libc::iovec>().cast_mut();
    message.msg_iovlen = gather.ranges.len();
    retry(|| {
        // SAFETY: the message's ranges are borrowed byte strings or lie inside pinned regions, both alive as long as
        // `gather`; the kernel only reads from them.
        unsafe {
            libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        }
    })
}

/// Receives into the scatter, at most `bytes` bytes, and what comes after those into `tail` (readv(2)). Returns the
/// total; the scatter's position is moved.
pub(crate) fn receive(
    socket: &impl AsRawFd,
    scatter: &mut Scatter,
    bytes: u64,
    tail: &mut [u8],
    scratch: &mut Ranges,
) -> io::Result<(usize, usize)> {
    let ranges = &mut scratch.0;
    ranges.clear();
    let bytes = bytes.min(scatter.left());
    let direct = scatter.append(ranges, bytes);
    if direct == bytes && !tail.is_empty() && ranges.len() < MAX_PIECES {
        ranges.push(Range { address: tail.as_mut_ptr().expose_provenance(), length: tail.len() });
    }
    let fd: RawFd = socket.as_raw_fd();
    let count = libc::c_int::try_from(ranges.len()).unwrap_or(libc::c_int::MAX);
    let got = retry(|| {
        // SAFETY: the ranges lie inside a pinned region's host memory or are the exclusively borrowed `tail`.
        unsafe { libc::readv(fd, ranges.as_ptr().cast::<libc::iovec>(), count) }
    })?;
    let into_scatter = got.min(usize::try_from(direct).unwrap_or(usize::MAX));
    scatter.advance(into_scatter as u64);
    Ok((into_scatter, got - into_scatter))
}

/// Room for the ranges of a call, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    /// How many bytes the last call had room for.
    pub(crate) fn room(&self) -> usize {
        self.0.iter().map(|range| range.length).sum()
    }
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mori_core::{Access, Region};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn scatter(region: &Region, ranges: &[(u64, u64)]) -> Scatter {
        Scatter::new(Arc::new(region.pin().unwrap()), ranges.iter().copied()).unwrap()
    }

    #[test]
    fn ranges_past_the_end_are_refused() {
        let region = Region::zeroed(64, Access::LOCAL).unwrap();
        for range in [(0, 65), (64, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let pin = Arc::new(region.pin().unwrap());
            assert!(Scatter::new(pin, [range].into_iter()).is_err(), "{range:?}");
        }
        assert_eq!(region.pins(), 0);
    }

    #[test]
    fn bytes_land_in_order_whatever_the_steps() {
        let region = Region::zeroed(64, Access::LOCAL).unwrap();
        let mut target = scatter(&region, &[(40, 5), (0, 0), (10, 3), (13, 4)]);
        assert_eq!(target.left(), 12);
        assert_eq!(target.copy_in(b"abc"), 3);
        assert_eq!(target.copy_in(b"defghijklmnop"), 9);
        assert_eq!(target.left(), 0);
        let mut back = [0; 64];
        region.read_at(0, &mut back).unwrap();
        assert_eq!(&back[40..45], b"abcde");
        assert_eq!(&back[10..17], b"fghijkl");
        assert_eq!(back.iter().filter(|&&byte| byte != 0).count(), 12);
    }

    #[test]
    fn a_socket_carries_pieces_both_ways() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let region = Region::from_vec((0..100).collect(), Access::LOCAL).unwrap();
        let source = scatter(&region, &[(90, 4), (5, 3)]);
        let mut gather = Gather::new();
        assert!(gather.push_bytes(b"head"));
        assert!(gather.push_scatter(&source, 7));
        assert_eq!(gather.bytes(), 11);
        assert_eq!(send(&near, &gather).unwrap(), 11);
        let mut got = [0; 11];
        far.read_exact(&mut got).unwrap();
        assert_eq!(&got, &[b'h', b'e', b'a', b'd', 90, 91, 92, 93, 5, 6, 7]);

        far.write_all(&[200, 201, 202, 203, 204, 205]).unwrap();
        let mut target = scatter(&region, &[(0, 1), (50, 3)]);
        let mut tail = [0; 8];
        let got = receive(&near, &mut target, 4, &mut tail, &mut Ranges::default()).unwrap();
        assert_eq!(got, (4, 2));
        assert_eq!(&tail[..2], &[204, 205]);
        let mut back = [0; 100];
        region.read_at(0, &mut back).unwrap();
        assert_eq!((back[0], &back[50..53]), (200, &[201, 202, 203][..]));
    }
}
