//! The exported functions: the runtime's names, with its binary interface.
//!
//! They trust their callers' pointers as the real library does. What they do beyond that is to notice mistakes.

#![allow(
    non_snake_case,
    missing_docs,
    unreachable_pub,
    reason = "the names, and what they do, are the library's"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "as with the real library: pointers are valid for what the call does"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::config::Config;
use crate::memory::Block;
use crate::queue::{Event, HostFunction, Place, Step, Stream, StreamCallback};
use crate::world::{CURRENT, World, world};
use crate::{code, lock};

/// A handle, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle {
    bytes: [u8; 64],
}

/// Begins a call; a fault ends it at once.
macro_rules! enter {
    ($name:ident) => {
        if let Some(code) = world().enter(stringify!($name)) {
            return code;
        }
    };
}

/// The value, or the call ends with this number.
macro_rules! or {
    ($value:expr, $code:expr) => {
        match $value {
            Some(value) => value,
            None => return $code,
        }
    };
}

/// The value, or the call ends with the number in it.
macro_rules! tri {
    ($value:expr) => {
        match $value {
            Ok(value) => value,
            Err(code) => return code,
        }
    };
}

/// Writes a result through the caller's pointer.
fn put<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return code::INVALID_VALUE;
    }
    // SAFETY: the caller's pointer is valid for one value, as the real call asks.
    unsafe { to.write(value) };
    code::SUCCESS
}

fn misused(what: String, code: c_int) -> c_int {
    world().misuse(what);
    code
}

fn handle(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> c_int {
    enter!(hipGetDeviceCount);
    let found = lock(&world().config).count();
    let wrote = put(count, c_int::try_from(found).unwrap_or(c_int::MAX));
    if found == 0 { code::NO_DEVICE } else { wrote }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> c_int {
    enter!(hipGetDevice);
    put(device, CURRENT.get())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipSetDevice(device: c_int) -> c_int {
    enter!(hipSetDevice);
    or!(lock(&world().config).physical(device), code::INVALID_DEVICE);
    CURRENT.set(device);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetErrorName(code: c_int) -> *const c_char {
    let name = match code {
        code::SUCCESS => c"hipSuccess",
        code::INVALID_VALUE => c"hipErrorInvalidValue",
        code::OUT_OF_MEMORY => c"hipErrorOutOfMemory",
        code::INVALID_DEVICE_POINTER => c"hipErrorInvalidDevicePointer",
        code::NO_DEVICE => c"hipErrorNoDevice",
        code::INVALID_DEVICE => c"hipErrorInvalidDevice",
        code::INVALID_CONTEXT => c"hipErrorInvalidContext",
        code::PEER_ACCESS_UNSUPPORTED => c"hipErrorPeerAccessUnsupported",
        code::INVALID_HANDLE => c"hipErrorInvalidHandle",
        code::NOT_READY => c"hipErrorNotReady",
        code::ILLEGAL_ADDRESS => c"hipErrorIllegalAddress",
        code::PEER_ACCESS_ALREADY_ENABLED => c"hipErrorPeerAccessAlreadyEnabled",
        code::PEER_ACCESS_NOT_ENABLED => c"hipErrorPeerAccessNotEnabled",
        _ => c"hipErrorUnknown",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetErrorString(code: c_int) -> *const c_char {
    let text = if code == code::SUCCESS { c"no error" } else { c"an error of the simulated runtime" };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> c_int {
    put(version, 900_000_000)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int) -> c_int {
    enter!(hipDeviceGetPCIBusId);
    let physical = or!(lock(&world().config).physical(device), code::INVALID_DEVICE);
    // In capitals, as some releases write it.
    let id = Config::bus_id(physical).to_uppercase();
    if text.is_null() || usize::try_from(length).is_ok_and(|length| length <= id.len()) || length < 0 {
        return code::INVALID_VALUE;
    }
    // SAFETY: the caller's buffer has `length` bytes, which are more than the text and its zero.
    unsafe {
        std::ptr::copy_nonoverlapping(id.as_ptr().cast(), text, id.len());
        text.add(id.len()).write(0);
    }
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> c_int {
    enter!(hipDeviceCanAccessPeer);
    let config = lock(&world().config);
    let (from, to) = (config.physical(device), config.physical(peer));
    let (from, to) = (or!(from, code::INVALID_DEVICE), or!(to, code::INVALID_DEVICE));
    put(can, c_int::from(from != to && config.reaches(from, to)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> c_int {
    enter!(hipDeviceEnablePeerAccess);
    let current = or!(world().current(), code::INVALID_DEVICE);
    let (peer, reaches) = {
        let config = lock(&world().config);
        let peer = or!(config.physical(peer), code::INVALID_DEVICE);
        (peer, config.reaches(current, peer))
    };
    if flags != 0 || peer == current {
        return code::INVALID_VALUE;
    }
    if !reaches {
        return code::PEER_ACCESS_UNSUPPORTED;
    }
    if lock(&world().objects).enabled.insert((current, peer)) {
        code::SUCCESS
    } else {
        code::PEER_ACCESS_ALREADY_ENABLED
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(address: *mut *mut c_void, length: usize) -> c_int {
    enter!(hipMalloc);
    let current = or!(world().current(), code::INVALID_DEVICE);
    let limit = lock(&world().config).memory;
    let mut blocks = lock(&world().blocks);
    if length == 0 {
        return put(address, std::ptr::null_mut());
    }
    if blocks.used(current).saturating_add(length as u64) > limit {
        return code::OUT_OF_MEMORY;
    }
    let block = tri!(Block::allocate(length, current));
    let base = blocks.insert(block);
    put(address, std::ptr::with_exposed_provenance_mut(base))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipFree(address: *mut c_void) -> c_int {
    enter!(hipFree);
    if address.is_null() {
        return code::SUCCESS;
    }
    match lock(&world().blocks).remove(address.addr(), false) {
        Some(_) => code::SUCCESS,
        None => misused("hipFree of what is not allocated".to_owned(), code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpy(
    to: *mut c_void,
    from: *const c_void,
    length: usize,
    kind: c_int,
) -> c_int {
    enter!(hipMemcpy);
    let find = |address: usize| lock(&world().blocks).find(address, length);
    match kind {
        1 => {
            let (block, offset) = or!(find(to.addr()), code::INVALID_VALUE);
            // SAFETY: the caller's memory has `length` bytes, and so has the block from there on.
            unsafe { std::ptr::copy(from.cast(), block.pointer(offset), length) };
        }
        2 => {
            let (block, offset) = or!(find(from.addr()), code::INVALID_VALUE);
            // SAFETY: as above.
            unsafe { std::ptr::copy(block.pointer(offset).cast_const(), to.cast(), length) };
        }
        _ => return code::INVALID_VALUE,
    }
    code::SUCCESS
}

/// The stream of a handle, whose device must be current.
fn stream(name: &str, raw: *mut c_void) -> Result<Arc<Stream>, c_int> {
    let Some(stream) = lock(&world().objects).streams.get(&raw.addr()).cloned() else {
        return Err(misused(format!("{name} with a stream that is not there"), code::INVALID_HANDLE));
    };
    if world().current() != Some(stream.physical) {
        return Err(misused(
            format!("{name} with another device current than the stream's"),
            code::INVALID_HANDLE,
        ));
    }
    Ok(stream)
}

/// Where an address of a queued copy lies, if the device may address it.
fn place(world: &World, physical: usize, address: usize, length: usize) -> Result<Place, c_int> {
    let found = lock(&world.blocks).find(address, length);
    let Some((block, offset)) = found else {
        return Err(misused(
            "a copy of addresses that are not wholly allocated".to_owned(),
            code::INVALID_VALUE,
        ));
    };
    let allowed = match block.opened_for {
        Some(device) => device == physical,
        None => {
            block.physical == physical || lock(&world.objects).enabled.contains(&(physical, block.physical))
        }
    };
    if !allowed {
        return Err(misused(
            "a copy to or from a peer that was not enabled".to_owned(),
            code::PEER_ACCESS_NOT_ENABLED,
        ));
    }
    Ok(Place { block, offset })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    length: usize,
    kind: c_int,
    on: *mut c_void,
) -> c_int {
    enter!(hipMemcpyAsync);
    let stream = tri!(stream("hipMemcpyAsync", on));
    if kind != 3 {
        return code::INVALID_VALUE;
    }
    let to = tri!(place(world(), stream.physical, to.addr(), length));
    let from = tri!(place(world(), stream.physical, from.addr(), length));
    stream.push(Step::Copy { to, from, length });
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyBatchAsync(
    to: *mut *mut c_void,
    from: *mut *mut c_void,
    lengths: *mut usize,
    count: usize,
    attributes: *mut c_void,
    _attribute_starts: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    on: *mut c_void,
) -> c_int {
    let fault = world().enter("hipMemcpyBatchAsync");
    if fault == Some(code::NOT_SUPPORTED) {
        return code::NOT_SUPPORTED;
    }
    let stream = tri!(stream("hipMemcpyBatchAsync", on));
    let lists = [to.is_null(), from.is_null(), lengths.is_null()];
    if count == 0 || lists.contains(&true) || !attributes.is_null() || attribute_count != 0 {
        return code::INVALID_VALUE;
    }
    // A real one may have queued some copies when it fails. So this one queues the first half.
    let whole = if fault.is_some() { count / 2 } else { count };
    for index in 0..whole {
        // SAFETY: each of the caller's lists has `count` entries, as the real call asks.
        let (to, from, length) = unsafe { (*to.add(index), *from.add(index), *lengths.add(index)) };
        let places = place(world(), stream.physical, to.addr(), length)
            .and_then(|to| Ok((to, place(world(), stream.physical, from.addr(), length)?)));
        match places {
            Ok((to, from)) => stream.push(Step::Copy { to, from, length }),
            Err(code) => {
                put(failed, index);
                return code;
            }
        }
    }
    if let Some(code) = fault {
        put(failed, whole);
        return code;
    }
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetAddressRange(
    base: *mut *mut c_void,
    length: *mut usize,
    address: *mut c_void,
) -> c_int {
    enter!(hipMemGetAddressRange);
    let found = lock(&world().blocks).find(address.addr(), 1);
    let (block, _) = or!(found, code::INVALID_DEVICE_POINTER);
    put(base, std::ptr::with_exposed_provenance_mut(block.base()));
    put(length, block.length())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipIpcGetMemHandle(out: *mut IpcHandle, address: *mut c_void) -> c_int {
    enter!(hipIpcGetMemHandle);
    let found = lock(&world().blocks).find(address.addr(), 1);
    let (block, _) = or!(found, code::INVALID_VALUE);
    if block.opened_for.is_some() {
        return code::INVALID_VALUE;
    }
    put(out, IpcHandle { bytes: tri!(block.handle()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipIpcOpenMemHandle(
    address: *mut *mut c_void,
    handle: IpcHandle,
    flags: c_uint,
) -> c_int {
    enter!(hipIpcOpenMemHandle);
    let current = or!(world().current(), code::INVALID_DEVICE);
    if flags != 1 {
        return code::INVALID_VALUE;
    }
    let config = lock(&world().config).clone();
    let block = tri!(Block::open(&handle.bytes, current, |physical| config.reaches(current, physical)));
    let base = lock(&world().blocks).insert(block);
    put(address, std::ptr::with_exposed_provenance_mut(base))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipIpcCloseMemHandle(address: *mut c_void) -> c_int {
    enter!(hipIpcCloseMemHandle);
    match lock(&world().blocks).remove(address.addr(), true) {
        Some(_) => code::SUCCESS,
        None => misused("hipIpcCloseMemHandle of what is not open".to_owned(), code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamCreateWithFlags(out: *mut *mut c_void, flags: c_uint) -> c_int {
    enter!(hipStreamCreateWithFlags);
    if flags > 1 {
        return code::INVALID_VALUE;
    }
    let current = or!(world().current(), code::INVALID_DEVICE);
    let stream = tri!(Stream::start(world(), current));
    let mut objects = lock(&world().objects);
    let raw = objects.fresh();
    objects.streams.insert(raw, stream);
    put(out, handle(raw))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamDestroy(raw: *mut c_void) -> c_int {
    enter!(hipStreamDestroy);
    match lock(&world().objects).streams.remove(&raw.addr()) {
        Some(stream) => {
            stream.close();
            code::SUCCESS
        }
        None => misused("hipStreamDestroy of what is not there".to_owned(), code::INVALID_HANDLE),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamQuery(raw: *mut c_void) -> c_int {
    enter!(hipStreamQuery);
    let found = lock(&world().objects).streams.get(&raw.addr()).cloned();
    match found {
        Some(stream) => stream.query(),
        None => misused("hipStreamQuery of what is not there".to_owned(), code::INVALID_HANDLE),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventCreateWithFlags(out: *mut *mut c_void, flags: c_uint) -> c_int {
    enter!(hipEventCreateWithFlags);
    if flags > 3 {
        return code::INVALID_VALUE;
    }
    let current = or!(world().current(), code::INVALID_DEVICE);
    let mut objects = lock(&world().objects);
    let raw = objects.fresh();
    objects.events.insert(raw, Event::new(current));
    put(out, handle(raw))
}

/// The event of a handle.
fn event(name: &str, raw: *mut c_void) -> Result<Arc<Event>, c_int> {
    let found = lock(&world().objects).events.get(&raw.addr()).cloned();
    found.ok_or_else(|| misused(format!("{name} with an event that is not there"), code::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventDestroy(raw: *mut c_void) -> c_int {
    enter!(hipEventDestroy);
    match lock(&world().objects).events.remove(&raw.addr()) {
        Some(_) => code::SUCCESS,
        None => misused("hipEventDestroy of what is not there".to_owned(), code::INVALID_HANDLE),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventRecord(raw: *mut c_void, on: *mut c_void) -> c_int {
    enter!(hipEventRecord);
    let event = tri!(event("hipEventRecord", raw));
    let stream = tri!(stream("hipEventRecord", on));
    if event.physical != stream.physical {
        return misused(
            "hipEventRecord of one device's event on another's stream".to_owned(),
            code::INVALID_HANDLE,
        );
    }
    event.record(&stream);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventQuery(raw: *mut c_void) -> c_int {
    enter!(hipEventQuery);
    tri!(event("hipEventQuery", raw)).query()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventSynchronize(raw: *mut c_void) -> c_int {
    enter!(hipEventSynchronize);
    tri!(event("hipEventSynchronize", raw)).synchronise()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamAddCallback(
    on: *mut c_void,
    function: StreamCallback,
    data: *mut c_void,
    flags: c_uint,
) -> c_int {
    enter!(hipStreamAddCallback);
    let stream = tri!(stream("hipStreamAddCallback", on));
    if flags != 0 {
        return code::INVALID_VALUE;
    }
    stream.push(Step::CallBack { function, stream: on.addr(), data: data.addr() });
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipLaunchHostFunc(
    on: *mut c_void,
    function: HostFunction,
    data: *mut c_void,
) -> c_int {
    enter!(hipLaunchHostFunc);
    let stream = tri!(stream("hipLaunchHostFunc", on));
    stream.push(Step::Call { function, data: data.addr() });
    code::SUCCESS
}
