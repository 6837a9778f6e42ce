//! The runtime's binary interface, written by hand: numbers, types, and one table of function pointers.
//!
//! # Protocol
//!
//! 1. A symbol that stands under `required` has the signature given here in every supported release (5.2 to 7.x); a library
//!    without it is refused, by name.
//! 2. A symbol under `optional` is newer; without it the backend does the same in another way.
//! 3. The table keeps the library: no function pointer is copied out of it, so none outlives the library.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// What every call returns; 0 is success.
pub(crate) type Code = c_int;

/// It worked.
pub(crate) const SUCCESS: Code = 0;
/// No memory is left on the device.
pub(crate) const OUT_OF_MEMORY: Code = 2;
/// There is no device.
pub(crate) const NO_DEVICE: Code = 100;
/// The device's number is none.
pub(crate) const INVALID_DEVICE: Code = 101;
/// The event or stream has not got there yet.
pub(crate) const NOT_READY: Code = 600;
/// Peer access is enabled already, which is what was wanted.
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
/// The runtime does not support the call.
pub(crate) const NOT_SUPPORTED: Code = 801;

/// Copies between device addresses, on one device or between peers.
pub(crate) const DEVICE_TO_DEVICE: c_int = 3;
/// Copies from host to device.
pub(crate) const HOST_TO_DEVICE: c_int = 1;
/// Copies from device to host.
pub(crate) const DEVICE_TO_HOST: c_int = 2;
/// The stream does not wait for the default stream.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// A thread that synchronises on the event sleeps, and the event keeps no time.
pub(crate) const EVENT_BLOCKING_SYNC_NO_TIMING: c_uint = 1 | 2;
/// The only flag that opening a handle takes.
pub(crate) const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// The handle of an allocation for other processes: passed by value, as C does with a struct of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle {
    /// Opaque.
    pub(crate) bytes: [c_char; 64],
}

/// A stream, as the runtime hands it out.
pub(crate) type Stream = *mut c_void;
/// An event, as the runtime hands it out.
pub(crate) type Event = *mut c_void;
/// A function that the runtime calls when a stream gets there.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);
/// The older form of the same.
pub(crate) type StreamCallback = unsafe extern "C" fn(Stream, Code, *mut c_void);

macro_rules! table {
    (
        required { $(fn $name:ident($($type:ty),*) -> $out:ty;)* }
        optional { $(fn $newer:ident($($newer_type:ty),*) -> $newer_out:ty;)* }
    ) => {
        /// The functions of a loaded library, and the library.
        #[allow(non_snake_case, reason = "the names are the library's")]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> $out,)*
            $(pub(crate) $newer: Option<unsafe extern "C" fn($($newer_type),*) -> $newer_out>,)*
            /// Whether its devices are simulated.
            pub(crate) simulated: bool,
            /// Last, so that it goes last.
            _library: super::loader::Library,
        }

        impl Api {
            /// Fills the table.
            ///
            /// # Errors
            ///
            /// The name of the first required symbol that the library does not have.
            pub(crate) fn resolve(library: super::loader::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: the symbol of this name has this signature in every release that is supported (rule 1),
                        // and the pointer stays in the table beside the library (rule 3).
                        $name: unsafe { library.function(stringify!($name)) }.ok_or(stringify!($name))?,
                    )*
                    $(
                        // SAFETY: as above.
                        $newer: unsafe { library.function(stringify!($newer)) },
                    )*
                    simulated: library.is_simulation(),
                    _library: library,
                })
            }

            /// Which of the optional symbols are there.
            pub(crate) fn optional(&self) -> Vec<(&'static str, bool)> {
                vec![$((stringify!($newer), self.$newer.is_some())),*]
            }
        }
    };
}

table! {
    required {
        fn hipGetDeviceCount(*mut c_int) -> Code;
        fn hipGetDevice(*mut c_int) -> Code;
        fn hipSetDevice(c_int) -> Code;
        fn hipGetErrorName(Code) -> *const c_char;
        fn hipGetErrorString(Code) -> *const c_char;
        fn hipRuntimeGetVersion(*mut c_int) -> Code;
        fn hipDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> Code;
        fn hipDeviceCanAccessPeer(*mut c_int, c_int, c_int) -> Code;
        fn hipDeviceEnablePeerAccess(c_int, c_uint) -> Code;
        fn hipMalloc(*mut *mut c_void, usize) -> Code;
        fn hipFree(*mut c_void) -> Code;
        fn hipMemcpy(*mut c_void, *const c_void, usize, c_int) -> Code;
        fn hipMemcpyAsync(*mut c_void, *const c_void, usize, c_int, Stream) -> Code;
        fn hipMemGetAddressRange(*mut *mut c_void, *mut usize, *mut c_void) -> Code;
        fn hipIpcGetMemHandle(*mut IpcHandle, *mut c_void) -> Code;
        fn hipIpcOpenMemHandle(*mut *mut c_void, IpcHandle, c_uint) -> Code;
        fn hipIpcCloseMemHandle(*mut c_void) -> Code;
        fn hipStreamCreateWithFlags(*mut Stream, c_uint) -> Code;
        fn hipStreamDestroy(Stream) -> Code;
        fn hipStreamQuery(Stream) -> Code;
        fn hipEventCreateWithFlags(*mut Event, c_uint) -> Code;
        fn hipEventDestroy(Event) -> Code;
        fn hipEventRecord(Event, Stream) -> Code;
        fn hipEventQuery(Event) -> Code;
        fn hipEventSynchronize(Event) -> Code;
        fn hipStreamAddCallback(Stream, StreamCallback, *mut c_void, c_uint) -> Code;
    }
    optional {
        fn hipLaunchHostFunc(Stream, HostFunction, *mut c_void) -> Code;
        // Targets, sources, lengths and their number; attributes, where they begin and how many there are (none here, which
        // stands for copies in the stream's order); the index of the copy that failed.
        fn hipMemcpyBatchAsync(
            *mut *mut c_void, *mut *mut c_void, *mut usize, usize,
            *mut c_void, *mut usize, usize, *mut usize, Stream
        ) -> Code;
    }
}
