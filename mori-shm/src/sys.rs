//! The one module that talks to the system without Rust's guarantees: copies between processes, shared pages, credentials.
//!
//! Above it everything is safe. What it copies into or out of this process's memory is always a part of a pinned
//! [`Region`](mori_core::Region), whose bounds are checked here once more.

use std::cell::RefCell;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use libc::iovec;
use mori_core::{Op, Pin, Result};
use rustix::fs::SealFlags;

/// The most pieces of one system call on either side.
pub(crate) const MAX_IOVECS: usize = 1024;

/// One step of a transfer: where the bytes are on both sides. Kept by each thread and filled anew for each step.
#[derive(Default)]
struct Vectors {
    local: Vec<iovec>,
    remote: Vec<iovec>,
}

thread_local! {
    static VECTORS: RefCell<Vectors> = const { RefCell::new(Vectors { local: Vec::new(), remote: Vec::new() }) };
}

/// A piece of a step: an offset in the local region, an address in the peer, a length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) length: u64,
}

/// How far a copy came.
#[derive(Debug)]
pub(crate) struct Copied {
    /// Bytes from the beginning that are in place.
    pub(crate) bytes: u64,
    /// Why it stopped before the end.
    pub(crate) failure: Option<io::Error>,
}

impl Vectors {
    fn fill(&mut self, pin: &Pin, spans: impl Iterator<Item = Span>) -> Result<u64> {
        self.local.clear();
        self.remote.clear();
        let mut bytes = 0;
        for span in spans {
            let address = pin.region().piece(span.local, span.length)?;
            let length = usize::try_from(span.length).unwrap_or(usize::MAX);
            let remote = usize::try_from(span.remote).unwrap_or(usize::MAX);
            append(&mut self.local, address, length);
            append(&mut self.remote, remote, length);
            bytes += span.length;
        }
        Ok(bytes)
    }

    /// Takes bytes that are in place off the front.
    fn skip(vectors: &mut [iovec], mut bytes: usize) -> &mut [iovec] {
        let mut first = 0;
        while let Some(vector) = vectors.get_mut(first) {
            if vector.iov_len > bytes {
                vector.iov_len -= bytes;
                vector.iov_base = vector.iov_base.wrapping_byte_add(bytes);
                break;
            }
            bytes -= vector.iov_len;
            first += 1;
        }
        vectors.get_mut(first..).unwrap_or_default()
    }
}

/// Appends a range; one that begins where the last one ends makes that longer.
fn append(vectors: &mut Vec<iovec>, address: usize, length: usize) {
    if let Some(last) = vectors.last_mut()
        && (last.iov_base as usize).checked_add(last.iov_len) == Some(address)
    {
        last.iov_len += length;
        return;
    }
    vectors.push(iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: length });
}

/// Copies `spans` between the pinned region and the process `pid`: for a read from there to here, for a write from here to
/// there. At most [`MAX_IOVECS`] spans. Returns when no byte moves any more.
///
/// # Errors
///
/// For a span outside of the region; nothing has moved then. What the system refuses is in [`Copied`].
pub(crate) fn copy(pid: i32, op: Op, pin: &Pin, spans: impl Iterator<Item = Span>) -> Result<Copied> {
    VECTORS.with_borrow_mut(|vectors| {
        let total = vectors.fill(pin, spans)?;
        let (mut local, mut remote) = (&mut vectors.local[..], &mut vectors.remote[..]);
        let mut copied = Copied { bytes: 0, failure: None };
        while copied.bytes < total {
            match transfer(pid, op, local, remote) {
                Ok(0) => {
                    copied.failure = Some(io::Error::from_raw_os_error(libc::EFAULT));
                    break;
                }
                Ok(moved) => {
                    copied.bytes += moved as u64;
                    if copied.bytes < total {
                        local = Vectors::skip(local, moved);
                        remote = Vectors::skip(remote, moved);
                    }
                }
                Err(error) => {
                    copied.failure = Some(error);
                    break;
                }
            }
        }
        Ok(copied)
    })
}

/// One call. `local` is made of parts of a region that the caller keeps pinned.
fn transfer(pid: i32, op: Op, local: &[iovec], remote: &[iovec]) -> io::Result<usize> {
    let (mine, count) = (local.as_ptr(), local.len() as libc::c_ulong);
    let (theirs, their_count) = (remote.as_ptr(), remote.len() as libc::c_ulong);
    let moved = match op {
        // SAFETY: both lists are slices of valid entries. The kernel writes only to the ranges of `local`, which lie in a
        // pinned region: allocated, writable, and not borrowed as a Rust reference.
        Op::Read => unsafe { libc::process_vm_readv(pid, mine, count, theirs, their_count, 0) },
        // SAFETY: as above, and this process's memory is only read. What the peer's memory is for is the peer's affair: it
        // has granted the range.
        Op::Write => unsafe { libc::process_vm_writev(pid, mine, count, theirs, their_count, 0) },
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Reads `N` bytes at `address` of the process `pid`.
///
/// # Errors
///
/// What the system says, `EFAULT` for a range that is only partly there.
pub(crate) fn peek<const N: usize>(pid: i32, address: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let remote = usize::try_from(address).unwrap_or(usize::MAX);
    let local = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: N }];
    let remote = [iovec { iov_base: std::ptr::without_provenance_mut(remote), iov_len: N }];
    // SAFETY: both lists have one valid entry, and the kernel writes only to `bytes`, which is borrowed for the call.
    let moved = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0) };
    match usize::try_from(moved) {
        Ok(moved) if moved == N => Ok(bytes),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Words that two processes share.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is shared memory of atomic words, which any thread may use; it belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; all access is atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words of a file in memory that cannot shrink any more.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a file that is shorter, or that its owner could cut off below the mapping; else what the system says.
    pub(crate) fn new(file: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let length = words * size_of::<AtomicU64>();
        let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        let long = u64::try_from(rustix::fs::fstat(file)?.st_size).is_ok_and(|size| size >= length as u64);
        if !sealed || !long || length == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place of the system's choice, of a file that has these bytes and keeps them.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match NonNull::new(start.cast::<AtomicU64>()) {
            Some(found) if start != libc::MAP_FAILED => Ok(Self { start: found, words }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, page-aligned, for as long as `self` lives; the other process may change
        // them at any time, which is what atomics are for, and every value is a valid word.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once; no reference to it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
    }
}

/// Who is at the other end of a Unix socket, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// The process, by the number that it has in this process's PID namespace; zero if it has none there.
    pub(crate) pid: i32,
    /// The user.
    pub(crate) uid: u32,
}

/// Reads a socket option of plain data.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<T>() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: zeroed and then filled by the kernel; the callers' types are integers and structures of them.
    Ok(unsafe { value.assume_init() })
}

/// The credentials of the other end: of a connected process as it was when it connected, of a listening one as it was when
/// it began to listen.
///
/// # Errors
///
/// What the system says.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let found: libc::ucred = option(socket, libc::SO_PEERCRED)?;
    Ok(Credentials { pid: found.pid, uid: found.uid })
}

/// `SO_PEERPIDFD`, which newer kernels have.
const PEER_PIDFD: libc::c_int = 77;

/// A descriptor of the process at the other end, which becomes readable when that ends. It never means another process, also
/// if the number is used again.
///
/// # Errors
///
/// What the system says; `ESRCH` for a process that has ended.
pub(crate) fn process(socket: BorrowedFd<'_>, pid: i32) -> io::Result<OwnedFd> {
    if let Ok(number) = option::<libc::c_int>(socket, PEER_PIDFD)
        && number >= 0
    {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        return Ok(unsafe { OwnedFd::from_raw_fd(number) });
    }
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

/// Lets another process trace this one where Yama would not: one process by its number, or all of the same user. Returns
/// whether the system knows of such a thing.
pub(crate) fn allow_tracer(tracer: Option<i32>) -> bool {
    let whom = tracer.map_or(libc::c_ulong::MAX, |pid| libc::c_ulong::try_from(pid).unwrap_or(0));
    // SAFETY: a call with numbers only, which changes a permission and no memory.
    (unsafe { libc::prctl(libc::PR_SET_PTRACER, whom, 0, 0, 0) }) == 0
}

/// Whether the process behind the descriptor has ended, or the other end of the socket is closed. One system call, never
/// waits.
pub(crate) fn gone(process: &OwnedFd, socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut watched = [
        PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP),
    ];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut watched, Some(&now)) {
            Ok(count) => return count > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// Whether the process behind the descriptor has ended.
pub(crate) fn ended(process: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut watched = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut watched, Some(&now)), Ok(count) if count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mori_core::{Access, Region};

    fn own() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    fn span(local: u64, remote: usize, length: u64) -> Span {
        Span { local, remote: remote as u64, length }
    }

    #[test]
    fn bytes_go_both_ways_in_scattered_spans() {
        let (here, there) = (
            Region::zeroed(64, Access::LOCAL).unwrap(),
            Region::from_vec((0..64).collect(), Access::LOCAL).unwrap(),
        );
        let pin = here.pin().unwrap();
        let spans =
            [span(0, there.address() + 8, 8), span(8, there.address() + 40, 4), span(60, there.address(), 4)];
        let copied = copy(own(), Op::Read, &pin, spans.into_iter()).unwrap();
        assert!(copied.failure.is_none() && copied.bytes == 16, "{copied:?}");
        let mut bytes = [0; 64];
        here.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes[..13], [8, 9, 10, 11, 12, 13, 14, 15, 40, 41, 42, 43, 0]);
        assert_eq!(&bytes[60..], [0, 1, 2, 3]);
        copy(own(), Op::Write, &pin, [span(0, there.address() + 60, 4)].into_iter()).unwrap();
        there.read_at(60, &mut bytes[..4]).unwrap();
        assert_eq!(&bytes[..4], [8, 9, 10, 11]);
    }

    #[test]
    fn a_hole_ends_the_copy_where_it_is() {
        let here = Region::zeroed(64, Access::LOCAL).unwrap();
        let pin = here.pin().unwrap();
        let there = Region::zeroed(64, Access::LOCAL).unwrap();
        let spans = [span(0, there.address(), 32), span(32, 8, 8)];
        let copied = copy(own(), Op::Read, &pin, spans.into_iter()).unwrap();
        assert_eq!(copied.bytes, 32);
        assert_eq!(copied.failure.unwrap().raw_os_error(), Some(libc::EFAULT));
        assert!(copy(own(), Op::Read, &pin, [span(60, there.address(), 8)].into_iter()).is_err());
        assert_eq!(peek::<8>(own(), 8).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn skipping_stops_inside_a_vector() {
        let vector = |length| iovec { iov_base: std::ptr::without_provenance_mut(1000), iov_len: length };
        let mut vectors = [vector(4), vector(8), vector(2)];
        let rest = Vectors::skip(&mut vectors, 7);
        assert_eq!(rest.len(), 2);
        assert_eq!((rest[0].iov_base as usize, rest[0].iov_len), (1003, 5));
        assert!(Vectors::skip(&mut vectors, 100).is_empty());
    }

    #[test]
    fn a_file_that_may_shrink_is_not_mapped() {
        use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(Mapping::new(file.as_fd(), 8).is_err());
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert_eq!(Mapping::new(file.as_fd(), 8).unwrap().words().len(), 8);
        assert!(Mapping::new(file.as_fd(), 513).is_err());
    }
}
