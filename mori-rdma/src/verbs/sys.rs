//! The library's binary interface: its numbers, its types, and one table of function pointers.
//!
//! # Protocol
//!
//! 1. A symbol that stands under `required` has the signature given here in every supported release (rdma-core 32 and later);
//!    a library without it is refused, by name. `dlsym` finds the default version of each symbol, which is `IBVERBS_1.1` or
//!    newer everywhere.
//! 2. A symbol under `optional` is newer; without it the crate does without, or does the same in another way.
//! 3. The table keeps the library: no function pointer is copied out of it, so none outlives the library.
//! 4. What the C header does inline goes through the context's own table of operations, as it does there.

mod numbers;
mod types;

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(super) use numbers::*;
pub(super) use types::*;

macro_rules! table {
    (
        required { $(fn $name:ident($($type:ty),*) $(-> $out:ty)?;)* }
        optional { $(fn $newer:ident($($newer_type:ty),*) -> $newer_out:ty;)* }
    ) => {
        /// The functions of a loaded library, and the library.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $out)?,)*
            $(pub(super) $newer: Option<unsafe extern "C" fn($($newer_type),*) -> $newer_out>,)*
            /// Last, so that it goes last.
            _library: super::loader::Library,
        }

        impl Api {
            /// Fills the table.
            ///
            /// # Errors
            ///
            /// The name of the first required symbol that the library does not have.
            pub(super) fn resolve(library: super::loader::Library) -> Result<Self, &'static str> {
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
                    _library: library,
                })
            }

            /// Which of the optional symbols are there.
            pub(super) fn optional(&self) -> Vec<(&'static str, bool)> {
                vec![$((stringify!($newer), self.$newer.is_some())),*]
            }
        }
    };
}

table! {
    required {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
        fn ibv_get_device_guid(*mut ibv_device) -> u64;
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event);
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn _ibv_query_gid_ex(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        fn ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    }
    optional {
        fn _ibv_query_gid_table(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        fn ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        fn ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}
