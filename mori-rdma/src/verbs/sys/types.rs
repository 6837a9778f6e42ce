//! The library's types, as its C header lays them out on 64-bit Linux. Fields that nobody here uses have their place and an
//! underscore before their name. The assertions at the end hold the layout to the sizes that the header gives on x86-64 with
//! rdma-core 44; a test over the crate `ibverbs-sys` compares them with a header (feature `ibverbs`).
//!
//! Only [`ibv_port_attr`] has grown between releases: it is handed out with room to spare.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A slot of a table that nobody here calls.
type Slot = *mut c_void;

/// A device in the list.
#[repr(C)]
pub(crate) struct ibv_device {
    _ops: [Slot; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    _dev_name: [c_char; 64],
    _dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// The operations that the header calls inline.
#[repr(C)]
pub(crate) struct ibv_context_ops {
    _query_device: Slot,
    _query_port: Slot,
    _compat_a: [Slot; 5],
    _alloc_mw: Slot,
    _bind_mw: Slot,
    _dealloc_mw: Slot,
    _create_cq: Slot,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _compat_b: [Slot; 7],
    _post_srq_recv: Slot,
    _compat_c: [Slot; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _compat_d: [Slot; 5],
}

/// An open device.
#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    _cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    _mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// What lies around a context whose `abi_compat` says so. Newer releases put further fields before the first.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    _others: [Slot; 37],
    _placeholder: u64,
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}

/// A protection domain.
#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    _handle: u32,
}

/// A registration of memory.
#[repr(C)]
pub(crate) struct ibv_mr {
    _context: *mut ibv_context,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// A completion channel.
#[repr(C)]
pub(crate) struct ibv_comp_channel {
    _context: *mut ibv_context,
    pub(crate) fd: c_int,
    _refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    _channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    _handle: u32,
    pub(crate) cqe: c_int,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _comp_events_completed: u32,
    _async_events_completed: u32,
}

/// A queue pair.
#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    _pd: *mut ibv_pd,
    _send_cq: *mut ibv_cq,
    _recv_cq: *mut ibv_cq,
    _srq: *mut c_void,
    _handle: u32,
    pub(crate) qp_num: u32,
    _state: c_uint,
    _qp_type: c_uint,
    _mutex: libc::pthread_mutex_t,
    _cond: libc::pthread_cond_t,
    _events_completed: u32,
}

/// What a device can.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) _sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) _page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    _device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    _max_ee_rd_atom: c_int,
    _max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    _max_ee_init_rd_atom: c_int,
    _atomic_cap: c_uint,
    _unused: [c_int; 13],
    _max_srq_sge: c_int,
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// What a port is and can.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_uint,
    pub(crate) max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_tbl_len: c_int,
    _port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    _bad_pkey_cntr: u32,
    _qkey_viol_cntr: u32,
    _pkey_tbl_len: u16,
    pub(crate) lid: u16,
    _sm_lid: u16,
    pub(crate) lmc: u8,
    _max_vl_num: u8,
    _sm_sl: u8,
    _subnet_timeout: u8,
    _init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    _flags: u8,
    _port_cap_flags2: u16,
}

/// One line of a table of GIDs.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// A GID: 16 bytes, aligned as the two numbers that C sees in them.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

/// Something that happened by itself.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_async_event {
    pub(crate) element: ibv_async_element,
    pub(crate) event_type: c_uint,
}

/// Whom it happened to; which one it is, the event's type says.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_async_element {
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) port_num: c_int,
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In network order.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) _src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) _pkey_index: u16,
    pub(crate) _slid: u16,
    pub(crate) _sl: u8,
    pub(crate) _dlid_path_bits: u8,
}

/// A piece of local memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// A work request of the send queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    /// In network order.
    pub(crate) imm_data: u32,
    pub(crate) wr: ibv_rdma,
    pub(crate) _qp_type: [u32; 2],
    pub(crate) _bind_mw: [u64; 6],
}

/// Where a read or a write goes: one arm of a union of 32 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) _rest: [u64; 2],
}

/// A work request of the receive queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

/// How much a queue pair takes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// What a queue pair is made from.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

/// The part of an address that crosses subnets.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// An address.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// The attributes of a queue pair that can be changed.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_uint,
    _cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    _path_mig_state: c_uint,
    _qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    _cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    _alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    _alt_pkey_index: u16,
    _en_sqd_async_notify: u8,
    _sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    _alt_port_num: u8,
    _alt_timeout: u8,
    _rate_limit: u32,
}

/// Types that are numbers and pointers throughout, for which all bytes zero is a value.
///
/// # Safety
///
/// All bytes zero is a value of the type.
pub(crate) unsafe trait Plain: Sized {
    /// The value whose bytes are all zero.
    fn zeroed() -> Self {
        // SAFETY: the trait's promise.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($name:ident),*) => {$(
        // SAFETY: the type consists of numbers, arrays of numbers and pointers.
        unsafe impl Plain for $name {}
    )*};
}

plain!(
    ibv_device_attr,
    ibv_port_attr,
    ibv_gid_entry,
    ibv_async_event,
    ibv_wc,
    ibv_send_wr,
    ibv_recv_wr,
    ibv_qp_init_attr,
    ibv_qp_attr,
    ibv_ah_attr
);

#[cfg(target_arch = "x86_64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<ibv_device>() == 664 && offset_of!(ibv_device, ibdev_path) == 408);
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 88 && offset_of!(ibv_context_ops, req_notify_cq) == 96);
    assert!(offset_of!(ibv_context_ops, post_send) == 200 && offset_of!(ibv_context_ops, post_recv) == 208);
    assert!(size_of::<ibv_context>() == 328 && offset_of!(ibv_context, async_fd) == 268);
    assert!(offset_of!(ibv_context, num_comp_vectors) == 272 && offset_of!(ibv_context, abi_compat) == 320);
    assert!(size_of::<verbs_context>() == 648 && offset_of!(verbs_context, query_port) == 0);
    assert!(offset_of!(verbs_context, sz) == 312 && offset_of!(verbs_context, context) == 320);
    assert!(size_of::<ibv_pd>() == 16);
    assert!(size_of::<ibv_mr>() == 48 && offset_of!(ibv_mr, lkey) == 36 && offset_of!(ibv_mr, rkey) == 40);
    assert!(size_of::<ibv_comp_channel>() == 16 && offset_of!(ibv_comp_channel, fd) == 8);
    assert!(size_of::<ibv_cq>() == 128 && offset_of!(ibv_cq, cq_context) == 16);
    assert!(offset_of!(ibv_cq, cqe) == 28 && offset_of!(ibv_cq, _async_events_completed) == 124);
    assert!(size_of::<ibv_qp>() == 160 && offset_of!(ibv_qp, qp_context) == 8);
    assert!(offset_of!(ibv_qp, qp_num) == 52 && offset_of!(ibv_qp, _events_completed) == 152);
    assert!(size_of::<ibv_device_attr>() == 232 && offset_of!(ibv_device_attr, phys_port_cnt) == 227);
    assert!(offset_of!(ibv_device_attr, max_qp_init_rd_atom) == 156);
    assert!(size_of::<ibv_port_attr>() == 52 && offset_of!(ibv_port_attr, link_layer) == 46);
    assert!(size_of::<ibv_gid_entry>() == 32 && offset_of!(ibv_gid_entry, gid_type) == 24);
    assert!(size_of::<ibv_async_event>() == 16 && offset_of!(ibv_async_event, event_type) == 8);
    assert!(size_of::<ibv_wc>() == 48 && offset_of!(ibv_wc, imm_data) == 24);
    assert!(offset_of!(ibv_wc, qp_num) == 28 && offset_of!(ibv_wc, wc_flags) == 36);
    assert!(size_of::<ibv_sge>() == 16 && size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, opcode) == 28);
    assert!(offset_of!(ibv_send_wr, imm_data) == 36 && offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<ibv_qp_init_attr>() == 64 && offset_of!(ibv_qp_init_attr, cap) == 32);
    assert!(offset_of!(ibv_qp_init_attr, qp_type) == 52);
    assert!(size_of::<ibv_ah_attr>() == 32 && offset_of!(ibv_ah_attr, dlid) == 24);
    assert!(offset_of!(ibv_ah_attr, port_num) == 30 && size_of::<ibv_global_route>() == 24);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(offset_of!(ibv_qp_attr, pkey_index) == 120 && offset_of!(ibv_qp_attr, port_num) == 129);
    assert!(offset_of!(ibv_qp_attr, _rate_limit) == 136);
};
