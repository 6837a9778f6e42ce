//! Registering memory that somebody else owns: the only `unsafe` code of this crate.

use std::any::Any;

use mori_core::{Access, Location, Region, Result};

use crate::{Engine, Memory};

impl Engine {
    /// Registers `length` bytes at `address` that stay the caller's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a length of zero, a null address, or a range
    /// that wraps past the end of the address space; else as [`Engine::register`].
    ///
    /// # Safety
    ///
    /// From this call until [`Engine::deregister`] has succeeded or the engine is shut down, and every handle of the memory
    /// is dropped, the range
    ///
    /// - is allocated at `location` and may be read and written;
    /// - is not borrowed as a Rust reference while a transfer, a peer, or [`Memory::read_at`] and [`Memory::write_at`] may touch
    ///   it. A peer may do so at any time, within the limits of `access`.
    ///
    /// ```
    /// use mori_engine::{Access, Engine, Location};
    /// let engine = Engine::builder("prefill-0").build()?;
    /// let layout = std::alloc::Layout::from_size_align(4096, 4096).unwrap();
    /// // SAFETY: the layout's size is not zero.
    /// let address = unsafe { std::alloc::alloc_zeroed(layout) };
    /// // SAFETY: 4096 bytes are allocated there, used by nobody else, and freed after deregistering.
    /// let memory = unsafe { engine.register_raw(address, 4096, Location::HOST, Access::READ_WRITE) }?;
    /// memory.write_at(0, b"lent")?;
    /// engine.deregister(&memory, None)?;
    /// drop(memory);
    /// // SAFETY: allocated above with this layout, and nobody uses it any more.
    /// unsafe { std::alloc::dealloc(address, layout) };
    /// # Ok::<(), mori_engine::Error>(())
    /// ```
    pub unsafe fn register_raw(
        &self,
        address: *mut u8,
        length: usize,
        location: Location,
        access: Access,
    ) -> Result<Memory> {
        // SAFETY: the caller's promise is at least what the region asks for: the engine and the backends drop their handles
        // when they deregister.
        let region = unsafe { Region::from_raw(address, length, location, access) }?;
        self.register(&region)
    }

    /// Like [`Engine::register_raw`], with a value that is kept as long as the memory is in use, for example the owner of
    /// the bytes. It is dropped with the last handle, on whatever thread that is.
    ///
    /// # Errors
    ///
    /// As [`Engine::register_raw`].
    ///
    /// # Safety
    ///
    /// As [`Engine::register_raw`].
    pub unsafe fn register_raw_with_keeper(
        &self,
        address: *mut u8,
        length: usize,
        location: Location,
        access: Access,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<Memory> {
        // SAFETY: as in `register_raw`.
        let region =
            unsafe { Region::from_raw_with_keeper(address, length, location, access, Some(keeper)) }?;
        self.register(&region)
    }
}
