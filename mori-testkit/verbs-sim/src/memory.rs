//! Protection domains and memory regions.

#![allow(missing_docs, unreachable_pub, reason = "the names, and what they do, are the library's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "as with the real library: pointers are valid for what the call does"
)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr;

use crate::call::{code, give, handle, pointer};
use crate::types::{ibv_context, ibv_mr, ibv_pd, number};
use crate::world::{Domain, Handle, Region, World};

/// What lies between the local and the remote key of a region, so that mixing them up does not work.
const REMOTE: u32 = 0x4000_0000;
const PAGE: u64 = 4096;

impl Region {
    /// The bytes of a part, if it is wholly inside.
    pub(crate) fn range(&self, address: u64, length: u64) -> Option<(*mut u8, usize)> {
        let offset = address.checked_sub(self.address)?;
        if offset.checked_add(length)? > self.length {
            return None;
        }
        let at = self.base.checked_add(usize::try_from(offset).ok()?)?;
        Some((ptr::with_exposed_provenance_mut(at), usize::try_from(length).ok()?))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer("ibv_alloc_pd", |world| {
        let device = world.context_device("ibv_alloc_pd", handle(context))?;
        world.alive(device)?;
        let domain = give(ibv_pd { context, handle: 0 });
        world.domains.insert(handle(domain), Domain { context: handle(context) });
        Ok(domain)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    code("ibv_dealloc_pd", |world| {
        let wanted = handle(domain);
        if !world.domains.contains_key(&wanted) {
            return Err(world.stranger("ibv_dealloc_pd", wanted));
        }
        let in_use = world.regions.values().any(|region| region.domain == wanted)
            || world.pairs.values().any(|pair| pair.domain == wanted);
        if in_use {
            world.misuse("ibv_dealloc_pd: a region or a queue pair of the domain is left".to_owned());
            return Err(libc::EBUSY);
        }
        world.domains.remove(&wanted);
        world.gone.insert(wanted, "protection domain");
        Ok(())
    })
}

/// What a region is made from, besides its domain.
struct Wanted {
    address: u64,
    length: usize,
    base: usize,
    access: u32,
    mapping: Option<(usize, usize)>,
}

impl World {
    fn register(&mut self, call: &str, domain: *mut ibv_pd, wanted: &Wanted) -> Result<*mut ibv_mr, i32> {
        let Some(context) = self.domains.get(&handle(domain)).map(|domain| domain.context) else {
            return Err(self.stranger(call, handle(domain)));
        };
        let device = self.context_device(call, context)?;
        self.alive(device)?;
        let length = wanted.length as u64;
        let write = number::REMOTE_WRITE;
        if length == 0 || (wanted.access & write != 0 && wanted.access & number::LOCAL_WRITE == 0) {
            return Err(libc::EINVAL);
        }
        let used: u64 = self.regions.values().map(|region| region.length).sum();
        if used.saturating_add(length) > self.config.memory {
            return Err(libc::ENOMEM);
        }
        let device_keys = &mut self.devices[device].next_key;
        let local_key = *device_keys;
        *device_keys += 1;
        // SAFETY: the structure consists of numbers and pointers.
        let mut raw: ibv_mr = unsafe { zeroed() };
        raw.context = ptr::with_exposed_provenance_mut(context);
        raw.pd = domain;
        raw.addr = ptr::with_exposed_provenance_mut(wanted.base);
        raw.length = wanted.length;
        raw.lkey = local_key;
        raw.rkey = local_key | REMOTE;
        let raw = give(raw);
        let region = Region {
            domain: handle(domain),
            device,
            address: wanted.address,
            length,
            base: wanted.base,
            access: wanted.access,
            local_key,
            remote_key: local_key | REMOTE,
            mapping: wanted.mapping,
        };
        self.regions.insert(handle(raw), region);
        Ok(raw)
    }

    /// Whether a request that is not flushed yet names the region.
    fn is_in_use(&self, region: Handle) -> bool {
        let Some(region) = self.regions.get(&region) else { return false };
        self.pairs.values().filter(|pair| pair.domain == region.domain).any(|pair| {
            let mut pieces = pair
                .sends
                .iter()
                .filter(|request| request.inline.is_none())
                .flat_map(|request| &request.pieces)
                .chain(pair.receives.iter().flat_map(|receive| &receive.pieces));
            pieces.any(|piece| piece.lkey == region.local_key)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr", |world| {
        let base = address.expose_provenance();
        let wanted =
            Wanted { address: base as u64, length, base, access: access.cast_unsigned(), mapping: None };
        world.register("ibv_reg_mr", domain, &wanted)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer("ibv_reg_mr_iova2", |world| {
        let base = address.expose_provenance();
        let wanted = Wanted { address: iova, length, base, access, mapping: None };
        world.register("ibv_reg_mr_iova2", domain, &wanted)
    })
}

/// The descriptor is any that can be mapped, for example a `memfd`: the simulation's stand-in for device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    domain: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    pointer("ibv_reg_dmabuf_mr", |world| {
        let within = offset % PAGE;
        if within != iova % PAGE {
            return Err(libc::EINVAL);
        }
        let size = length + usize::try_from(within).unwrap_or(0);
        let start = libc::off_t::try_from(offset - within).map_err(|_| libc::EINVAL)?;
        // SAFETY: a fresh mapping of the descriptor, wherever the kernel puts it.
        let mapping = unsafe {
            libc::mmap(ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, start)
        };
        if mapping == libc::MAP_FAILED {
            return Err(libc::EBADF);
        }
        let mapping = mapping.expose_provenance();
        let base = mapping + usize::try_from(within).unwrap_or(0);
        let access = access.cast_unsigned();
        let wanted = Wanted { address: iova, length, base, access, mapping: Some((mapping, size)) };
        world.register("ibv_reg_dmabuf_mr", domain, &wanted).inspect_err(|_| unmap((mapping, size)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    code("ibv_dereg_mr", |world| {
        let wanted = handle(region);
        if world.is_in_use(wanted) {
            world.misuse("ibv_dereg_mr: a posted request names the region".to_owned());
        }
        let Some(region) = world.regions.remove(&wanted) else {
            return Err(world.stranger("ibv_dereg_mr", wanted));
        };
        if let Some(mapping) = region.mapping {
            unmap(mapping);
        }
        world.gone.insert(wanted, "memory region");
        Ok(())
    })
}

fn unmap((start, length): (usize, usize)) {
    // SAFETY: the mapping is this library's, and no region of it is left.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), length) };
}
