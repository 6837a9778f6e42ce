//! Protection domains and registered memory.

use std::mem::ManuallyDrop;
use std::ops::{BitOr, BitOrAssign};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use mori_core::{Access, Region};

use super::super::error::{Failure, VerbsError, check};
use super::super::sys::{self, Api, ibv_mr, ibv_pd};
use super::{Context, Object, QueuePair, QueuePairOptions, Sge, not_destroyed};

/// What a device may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionAccess(u32);

impl RegionAccess {
    /// It may read it for work requests of this side.
    pub const LOCAL_READ: Self = Self(0);
    /// It may write it, too: receives and reads of a peer's memory need that.
    pub const LOCAL_WRITE: Self = Self(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may read it.
    pub const REMOTE_READ: Self = Self(sys::IBV_ACCESS_REMOTE_READ);
    /// Peers may write it, which verbs allow only where this side may.
    pub const REMOTE_WRITE: Self = Self(sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may read and write it.
    pub const REMOTE: Self = Self(Self::REMOTE_READ.0 | Self::REMOTE_WRITE.0);
    /// The device may write out of order, which is faster on some machines. Devices and libraries that know no such thing do
    /// without. A completion is still later than the bytes that it is for.
    pub const RELAXED_ORDERING: Self = Self(sys::IBV_ACCESS_RELAXED_ORDERING);

    /// What transfers need of a region: this side may read and write it, peers what it grants them.
    #[must_use]
    pub fn of(access: Access) -> Self {
        let mut of = Self::LOCAL_WRITE;
        if access.remote_read {
            of |= Self::REMOTE_READ;
        }
        if access.remote_write {
            of |= Self::REMOTE_WRITE;
        }
        of
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for RegionAccess {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RegionAccess {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Memory and queue pairs that may work together; a handle, clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    domain: Object<ibv_pd>,
    context: Context,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: the domain is this value's, no memory and no queue pair of it is left, and it is given back once.
        let code = unsafe { (self.context.api().ibv_dealloc_pd)(self.domain.pointer()) };
        not_destroyed("protection domain", check("ibv_dealloc_pd", code));
    }
}

impl ProtectionDomain {
    pub(super) fn allocate(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: the context lives.
        let domain = unsafe { (context.api().ibv_alloc_pd)(context.pointer()) };
        let Some(domain) = Object::new(domain) else {
            return Err(Failure::last("ibv_alloc_pd").into());
        };
        Ok(Self(Arc::new(Domain { domain, context: context.clone() })))
    }

    pub(super) fn api(&self) -> &Api {
        self.0.context.api()
    }

    pub(super) fn pointer(&self) -> *mut ibv_pd {
        self.0.domain.pointer()
    }

    /// The open device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers the whole of a region, which stays allocated while the registration lives. The same region may be registered
    /// as often as one likes, for other domains and other accesses.
    ///
    /// A region on a GPU can be registered so where the driver's peer memory module is loaded; else by
    /// [`register_dmabuf`](ProtectionDomain::register_dmabuf).
    ///
    /// # Errors
    ///
    /// What the library says; for `ENOMEM` with the limit of locked memory and how to raise it.
    pub fn register(&self, region: &Region, access: RegionAccess) -> Result<MemoryRegion, VerbsError> {
        self.register_part(region, 0, region.len() as u64, access)
    }

    /// Registers a part of a region.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Argument`] for a part that is empty or not wholly inside; else as [`register`](ProtectionDomain::register).
    pub fn register_part(
        &self,
        region: &Region,
        offset: u64,
        length: u64,
        access: RegionAccess,
    ) -> Result<MemoryRegion, VerbsError> {
        let (address, bytes) = part(region, offset, length)?;
        let pointer = ptr::with_exposed_provenance_mut(address);
        let (call, memory) = match self.api().ibv_reg_mr_iova2 {
            Some(register) if access.contains(RegionAccess::RELAXED_ORDERING) => (
                "ibv_reg_mr_iova2",
                // SAFETY: the domain lives; the range is the region's, which stays allocated, and is not borrowed, while the
                // returned value holds a handle of it.
                unsafe { register(self.pointer(), pointer, bytes, address as u64, access.bits()) },
            ),
            _ => {
                let access = access.bits() & !RegionAccess::RELAXED_ORDERING.bits();
                // SAFETY: as above.
                let memory =
                    unsafe { (self.api().ibv_reg_mr)(self.pointer(), pointer, bytes, access.cast_signed()) };
                ("ibv_reg_mr", memory)
            }
        };
        self.registered(call, memory, region, address, length)
    }

    /// Registers device memory by a dmabuf: the region's bytes are those at `offset` in the buffer. They keep the region's
    /// address in work requests. `offset` and the region's address must agree within a page. The descriptor can be closed
    /// afterwards.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] if the library is too old for it; else what the library says.
    pub fn register_dmabuf(
        &self,
        region: &Region,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        access: RegionAccess,
    ) -> Result<MemoryRegion, VerbsError> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let Some(register) = self.api().ibv_reg_dmabuf_mr else {
            return Err(VerbsError::Unsupported { call: CALL, why: "rdma-core 34 or later has it" });
        };
        let (address, length) = (region.address(), region.len());
        // SAFETY: the domain lives. The kernel holds the buffer behind the descriptor, and checks the range against it; the
        // address is a number that work requests use.
        let memory = unsafe {
            register(
                self.pointer(),
                offset,
                length,
                address as u64,
                dmabuf.as_raw_fd(),
                access.bits().cast_signed(),
            )
        };
        self.registered(CALL, memory, region, address, length as u64)
    }

    fn registered(
        &self,
        call: &'static str,
        memory: *mut ibv_mr,
        region: &Region,
        address: usize,
        length: u64,
    ) -> Result<MemoryRegion, VerbsError> {
        let Some(memory) = Object::new(memory) else { return Err(Failure::last(call).into()) };
        // SAFETY: the registration lives, and its keys do not change.
        let local_key = unsafe { (*memory.pointer()).lkey };
        // SAFETY: as above.
        let remote_key = unsafe { (*memory.pointer()).rkey };
        Ok(MemoryRegion {
            memory,
            address: address as u64,
            length,
            local_key,
            remote_key,
            region: ManuallyDrop::new(region.clone()),
            domain: self.clone(),
        })
    }

    /// A reliable connected queue pair, in the state [`Reset`](super::QueuePairState::Reset).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Argument`] for completion queues of another open device; else what the library says, for example that the
    /// device's limits are exceeded.
    pub fn queue_pair(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, VerbsError> {
        QueuePair::create(self, options)
    }

    /// Whether both are handles of the same domain.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The address and the length of a part of a region.
fn part(region: &Region, offset: u64, length: u64) -> Result<(usize, usize), VerbsError> {
    let wrong = |why: String| VerbsError::Argument(why);
    if length == 0 {
        return Err(wrong("a registration has at least one byte".to_owned()));
    }
    let address = region.piece(offset, length).map_err(|error| wrong(error.message().to_owned()))?;
    let length = usize::try_from(length).map_err(|error| wrong(error.to_string()))?;
    Ok((address, length))
}

/// Registered memory. Dropping it takes the registration back at once; requests that are still under way then fail.
#[derive(Debug)]
pub struct MemoryRegion {
    memory: Object<ibv_mr>,
    address: u64,
    length: u64,
    local_key: u32,
    remote_key: u32,
    /// Given back by hand, because the memory must stay if the registration does.
    region: ManuallyDrop<Region>,
    domain: ProtectionDomain,
}

impl MemoryRegion {
    /// The address of its first byte, as work requests of both sides name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes, never zero.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a registration is never empty")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The key that work requests of this side name it with.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key that peers name it with. Devices give different ones for the same memory.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The domain that it is registered in.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// A piece of it for a work request.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Argument`] if the piece is not wholly inside.
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge, VerbsError> {
        let inside = offset.checked_add(u64::from(length)).is_some_and(|end| end <= self.length);
        if !inside {
            return Err(VerbsError::Argument(format!(
                "{length} bytes at {offset} are not inside the registration of {} bytes",
                self.length
            )));
        }
        Ok(Sge { address: self.address + offset, length, key: self.local_key })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the registration is this value's, and is taken back once.
        let code = unsafe { (self.domain.api().ibv_dereg_mr)(self.memory.pointer()) };
        match check("ibv_dereg_mr", code) {
            // SAFETY: the field is not used any more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.region) },
            Err(failure) => {
                tracing::warn!(
                    %failure,
                    region = ?*self.region,
                    "a registration could not be taken back; its memory stays allocated until the process ends"
                );
            }
        }
    }
}
