//! Device memory: one memfd for each allocation, and mappings of other processes' ones.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::code;

/// What a handle begins with.
const MAGIC: u64 = 0x6d6f_7269_2d73_696d;

/// A range of shared memory that is mapped here.
pub(crate) struct Block {
    base: usize,
    length: usize,
    /// The physical device whose memory it is.
    pub(crate) physical: usize,
    /// For a mapping of another process's allocation: the physical device that it was opened for.
    pub(crate) opened_for: Option<usize>,
    file: OwnedFd,
    /// Freed or closed: nobody may use it any more.
    pub(crate) gone: AtomicBool,
    /// Copies that touch it wait.
    pub(crate) held: AtomicBool,
}

impl Block {
    fn map(
        file: OwnedFd,
        length: usize,
        physical: usize,
        opened_for: Option<usize>,
    ) -> Result<Arc<Self>, i32> {
        // SAFETY: a new shared mapping of a file that is as long, at an address of the system's choice.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(code::OUT_OF_MEMORY);
        }
        Ok(Arc::new(Self {
            base: base.expose_provenance(),
            length,
            physical,
            opened_for,
            file,
            gone: AtomicBool::new(false),
            held: AtomicBool::new(false),
        }))
    }

    /// A new allocation.
    pub(crate) fn allocate(length: usize, physical: usize) -> Result<Arc<Self>, i32> {
        let name = CString::default();
        // SAFETY: the name is a string that ends in zero.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(code::OUT_OF_MEMORY);
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        file.set_len(length as u64).map_err(|_| code::OUT_OF_MEMORY)?;
        Self::map(file.into(), length, physical, None)
    }

    /// The first address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// The number of bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The handle for other processes.
    pub(crate) fn handle(&self) -> Result<[u8; 64], i32> {
        let file = self.file.try_clone().map(File::from).map_err(|_| code::INVALID_VALUE)?;
        let inode = file.metadata().map_err(|_| code::INVALID_VALUE)?.ino();
        let numbers = [
            MAGIC,
            u64::from(std::process::id()),
            u64::try_from(self.file.as_raw_fd()).map_err(|_| code::INVALID_VALUE)?,
            inode,
            self.length as u64,
            self.physical as u64,
        ];
        let mut bytes = [0; 64];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        Ok(bytes)
    }

    /// Maps the allocation of another process's handle. `reaches` says whether the current device reaches a physical one.
    pub(crate) fn open(
        handle: &[u8; 64],
        current: usize,
        reaches: impl Fn(usize) -> bool,
    ) -> Result<Arc<Self>, i32> {
        let mut numbers = [0_u64; 8];
        for (number, bytes) in numbers.iter_mut().zip(handle.chunks_exact(8)) {
            *number = u64::from_le_bytes(bytes.try_into().map_err(|_| code::INVALID_VALUE)?);
        }
        let [magic, process, descriptor, inode, length, physical, ..] = numbers;
        if magic != MAGIC {
            return Err(code::INVALID_VALUE);
        }
        if process == u64::from(std::process::id()) {
            return Err(code::INVALID_CONTEXT);
        }
        let physical = usize::try_from(physical).map_err(|_| code::INVALID_VALUE)?;
        if !reaches(physical) {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file =
            File::options().read(true).write(true).open(path).map_err(|_| code::INVALID_DEVICE_POINTER)?;
        let found = file.metadata().map_err(|_| code::INVALID_DEVICE_POINTER)?;
        // The process is another one by now, or its allocation is freed and the descriptor is another file's.
        if found.ino() != inode || found.len() != length {
            return Err(code::INVALID_DEVICE_POINTER);
        }
        let length = usize::try_from(length).map_err(|_| code::INVALID_VALUE)?;
        Self::map(file.into(), length, physical, Some(current))
    }

    /// Copies between two blocks. The ranges have been checked.
    pub(crate) fn copy(to: (&Self, usize), from: (&Self, usize), length: usize) {
        let (to, from) = (to.0.base + to.1, from.0.base + from.1);
        // SAFETY: both ranges lie in mappings that the two blocks keep. They may overlap.
        unsafe {
            ptr::copy(
                ptr::with_exposed_provenance::<u8>(from),
                ptr::with_exposed_provenance_mut::<u8>(to),
                length,
            );
        }
    }

    /// The address of an offset, for copies from and to the host.
    pub(crate) fn pointer(&self, offset: usize) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.base + offset)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the mapping is this block's, and nobody copies from or to it any more.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.base), self.length) };
    }
}

/// The blocks of this process by their first addresses.
#[derive(Default)]
pub(crate) struct Blocks(BTreeMap<usize, Arc<Block>>);

impl Blocks {
    pub(crate) fn insert(&mut self, block: Arc<Block>) -> usize {
        let base = block.base;
        self.0.insert(base, block);
        base
    }

    /// Takes out the block that starts at `base`, if it is of this sort.
    pub(crate) fn remove(&mut self, base: usize, imported: bool) -> Option<Arc<Block>> {
        let block = self.0.get(&base)?;
        if block.opened_for.is_some() != imported {
            return None;
        }
        // Relaxed: the lock around the blocks orders it; a stream's thread that looks late only reports less.
        block.gone.store(true, Ordering::Relaxed);
        self.0.remove(&base)
    }

    /// The block that a range of addresses lies in, and where.
    pub(crate) fn find(&self, address: usize, length: usize) -> Option<(Arc<Block>, usize)> {
        let (base, block) = self.0.range(..=address).next_back()?;
        let offset = address - base;
        let inside = offset < block.length && offset.checked_add(length)? <= block.length;
        inside.then(|| (Arc::clone(block), offset))
    }

    /// How many allocations and mappings there are.
    pub(crate) fn count(&self) -> (usize, usize) {
        let imported = self.0.values().filter(|block| block.opened_for.is_some()).count();
        (self.0.len() - imported, imported)
    }

    /// How many bytes of a physical device are allocated.
    pub(crate) fn used(&self, physical: usize) -> u64 {
        let own = self.0.values().filter(|block| block.opened_for.is_none() && block.physical == physical);
        own.map(|block| block.length as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_in_their_block_only() {
        let mut blocks = Blocks::default();
        let base = blocks.insert(Block::allocate(4096, 0).unwrap());
        assert_eq!(blocks.find(base + 100, 3996).map(|(_, offset)| offset), Some(100));
        assert!(blocks.find(base + 100, 3997).is_none());
        assert!(blocks.find(base - 1, 1).is_none());
        assert!(blocks.find(base + 4096, 0).is_none());
        assert!(blocks.remove(base, true).is_none());
        let block = blocks.remove(base, false).unwrap();
        assert!(block.gone.load(Ordering::Relaxed) && blocks.find(base, 1).is_none());
    }

    #[test]
    fn a_process_cannot_open_its_own_handle_nor_garbage() {
        let block = Block::allocate(64, 1).unwrap();
        let handle = block.handle().unwrap();
        assert_eq!(Block::open(&handle, 0, |_| true).err(), Some(code::INVALID_CONTEXT));
        assert_eq!(Block::open(&[7; 64], 0, |_| true).err(), Some(code::INVALID_VALUE));
    }
}
