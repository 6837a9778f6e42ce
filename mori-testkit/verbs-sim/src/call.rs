//! How the exported functions enter the simulation and return from it.

use std::ffi::c_int;
use std::ptr;

use crate::world::{Handle, World, world, world_when_acknowledged};

/// A call that returns an errno, or 0.
pub(crate) fn code(name: &'static str, call: impl FnOnce(&mut World) -> Result<(), i32>) -> c_int {
    let mut world = world();
    match world.enter(name).and_then(|()| call(&mut world)) {
        Ok(()) => 0,
        Err(errno) => errno,
    }
}

/// A call that destroys an object: it waits until the object's events are acknowledged, as the real library does, but not for
/// ever.
pub(crate) fn destroy(
    name: &'static str,
    object: Handle,
    call: impl FnOnce(&mut World) -> Result<(), i32>,
) -> c_int {
    let mut world = world_when_acknowledged(object);
    let result = world.enter(name).and_then(|()| {
        if world.is_unacknowledged(object) {
            world.misuse(format!("{name}: an event is not acknowledged; the real library hangs here"));
            return Err(libc::EBUSY);
        }
        call(&mut world)
    });
    result.err().unwrap_or(0)
}

/// A call that returns a pointer, or null with the thread's errno.
pub(crate) fn pointer<T>(name: &'static str, call: impl FnOnce(&mut World) -> Result<*mut T, i32>) -> *mut T {
    let mut world = world();
    match world.enter(name).and_then(|()| call(&mut world)) {
        Ok(pointer) => pointer,
        Err(errno) => {
            set_errno(errno);
            ptr::null_mut()
        }
    }
}

/// Sets the thread's errno.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: the function returns the thread's own number.
    unsafe { libc::__errno_location().write(errno) };
}

/// Gives a structure to the caller. It is never freed, so that its address is used once only and late use is noticed.
pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// The number that stands for an object.
pub(crate) fn handle<T>(pointer: *mut T) -> Handle {
    pointer.expose_provenance()
}

/// A pipe whose ends do not survive `exec`, and whose writing end does not block.
pub(crate) fn pipe() -> Result<(c_int, c_int), i32> {
    let mut ends = [0; 2];
    // SAFETY: the call writes two numbers.
    let code = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    if code != 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    // SAFETY: the descriptor was just opened.
    unsafe { libc::fcntl(ends[1], libc::F_SETFL, libc::O_NONBLOCK) };
    Ok((ends[0], ends[1]))
}

/// Closes both ends.
pub(crate) fn close(pipe: (c_int, c_int)) {
    for end in [pipe.0, pipe.1] {
        // SAFETY: the descriptor is this library's, and nobody uses it any more.
        unsafe { libc::close(end) };
    }
}

/// Writes a handle into a pipe; says whether there was room.
pub(crate) fn put(end: c_int, value: Handle) -> bool {
    let bytes = value.to_ne_bytes();
    // SAFETY: the bytes are readable.
    let wrote = unsafe { libc::write(end, bytes.as_ptr().cast(), bytes.len()) };
    wrote == isize::try_from(bytes.len()).unwrap_or(-1)
}

/// Reads a handle from a pipe, waiting for it unless the descriptor does not block.
pub(crate) fn take(end: c_int) -> Result<Handle, i32> {
    let mut bytes = [0; size_of::<Handle>()];
    // SAFETY: the bytes are writable.
    let read = unsafe { libc::read(end, bytes.as_mut_ptr().cast(), bytes.len()) };
    if read == isize::try_from(bytes.len()).unwrap_or(-1) {
        Ok(Handle::from_ne_bytes(bytes))
    } else {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}
