//! The library's binary interface, written down a second time: whatever is wrong in the product's own types does not
//! agree with these, and its tests over this library fail.

#![allow(non_camel_case_types, clippy::pub_underscore_fields, reason = "the names are the library's")]
#![allow(missing_docs, unreachable_pub, reason = "what they are, the library's own header says")]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub type Slot = *mut c_void;

#[repr(C)]
pub struct ibv_device {
    pub ops: [Slot; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

pub type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut c_void, usize) -> c_int;

/// 32 slots, of which four are filled.
#[repr(C)]
pub struct ibv_context_ops {
    pub before_poll: [Slot; 11],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<ReqNotifyCq>,
    pub between: [Slot; 12],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    pub after: [Slot; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

#[repr(C)]
pub struct verbs_context {
    pub query_port: Option<QueryPort>,
    pub others: [Slot; 38],
    pub sz: usize,
    pub context: ibv_context,
}

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub never_used: [c_int; 14],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_port_attr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

/// The element is a pointer or a port's number in the lower half.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    pub element: usize,
    pub event_type: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub rest_of_union: [u64; 2],
    pub qp_type: [u32; 2],
    pub bind_mw: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_attr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[cfg(target_arch = "x86_64")]
const _: () = {
    use std::mem::size_of;
    assert!(size_of::<ibv_device>() == 664 && size_of::<ibv_context_ops>() == 256);
    assert!(size_of::<ibv_context>() == 328 && size_of::<verbs_context>() == 648);
    assert!(size_of::<ibv_cq>() == 128 && size_of::<ibv_qp>() == 160);
    assert!(size_of::<ibv_device_attr>() == 232 && size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_wc>() == 48 && size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_qp_init_attr>() == 64 && size_of::<ibv_qp_attr>() == 144);
};

/// The numbers of the library that the simulation looks at or gives out.
pub mod number {
    use std::ffi::c_uint;

    pub const WC_SUCCESS: c_uint = 0;
    pub const WC_LOC_LEN: c_uint = 1;
    pub const WC_LOC_QP_OP: c_uint = 2;
    pub const WC_LOC_PROT: c_uint = 4;
    pub const WC_FLUSH: c_uint = 5;
    pub const WC_REM_INV_REQ: c_uint = 9;
    pub const WC_REM_ACCESS: c_uint = 10;
    pub const WC_RETRY_EXC: c_uint = 12;
    pub const WC_RNR_EXC: c_uint = 13;

    pub const OP_SEND: c_uint = 0;
    pub const OP_WRITE: c_uint = 1;
    pub const OP_READ: c_uint = 2;
    pub const OP_RECV: c_uint = 128;
    pub const OP_RECV_IMM: c_uint = 129;
    pub const FLAG_IMM: c_uint = 2;

    pub const WR_WRITE: c_uint = 0;
    pub const WR_WRITE_IMM: c_uint = 1;
    pub const WR_SEND: c_uint = 2;
    pub const WR_SEND_IMM: c_uint = 3;
    pub const WR_READ: c_uint = 4;

    pub const SIGNALED: c_uint = 2;
    pub const SOLICITED: c_uint = 4;
    pub const INLINE: c_uint = 8;

    pub const LOCAL_WRITE: c_uint = 1;
    pub const REMOTE_WRITE: c_uint = 2;
    pub const REMOTE_READ: c_uint = 4;

    pub const RESET: c_uint = 0;
    pub const INIT: c_uint = 1;
    pub const RTR: c_uint = 2;
    pub const RTS: c_uint = 3;
    pub const ERR: c_uint = 6;

    pub const MASK_STATE: c_uint = 1;
    pub const MASK_INIT: c_uint = 1 | 8 | 16 | 32;
    pub const MASK_RTR: c_uint = 1 | 128 | 256 | (1 << 12) | (1 << 15) | (1 << 17) | (1 << 20);
    pub const MASK_RTS: c_uint = 1 | 512 | 1024 | 2048 | (1 << 13) | (1 << 16);

    pub const EVENT_CQ_ERR: c_uint = 0;
    pub const EVENT_QP_FATAL: c_uint = 1;
    pub const EVENT_QP_REQ_ERR: c_uint = 2;
    pub const EVENT_QP_ACCESS_ERR: c_uint = 3;
    pub const EVENT_DEVICE_FATAL: c_uint = 8;
    pub const EVENT_PORT_ACTIVE: c_uint = 9;
    pub const EVENT_PORT_ERR: c_uint = 10;
    pub const EVENT_GID_CHANGE: c_uint = 18;

    pub const PORT_DOWN: c_uint = 1;
    pub const PORT_ACTIVE: c_uint = 4;
}
