//! Our types and numbers against those that the crate `ibverbs-sys` makes from a header of its own, of another release than ours.
//!
//! Beside that, what the library lists when it is linked is what it lists when it is loaded. Only with the feature `ibverbs`.

use std::mem::offset_of;
use std::mem::size_of;

use ibverbs_sys as ffi;

use super::sys;

/// A type has the same size in both, and each field the same place. A field with another name there follows an arrow.
macro_rules! same_layout {
    ($($name:ident { $($field:ident $(=> $($theirs:ident).+)?),* $(,)? })*) => {$(
        assert_eq!(size_of::<sys::$name>(), size_of::<ffi::$name>(), stringify!($name));
        $(assert_eq!(
            offset_of!(sys::$name, $field),
            same_layout!(@offset $name, $field $(=> $($theirs).+)?),
            concat!(stringify!($name), ".", stringify!($field))
        );)*
    )*};
    (@offset $name:ident, $field:ident) => { offset_of!(ffi::$name, $field) };
    (@offset $name:ident, $field:ident => $($theirs:ident).+) => { offset_of!(ffi::$name, $($theirs).+) };
}

#[test]
fn types_are_laid_out_alike() {
    same_layout! {
        ibv_device { node_type, transport_type, name, ibdev_path }
        ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
        ibv_context { device, ops, async_fd, num_comp_vectors, abi_compat }
        ibv_pd { context }
        ibv_mr { lkey, rkey }
        ibv_comp_channel { fd }
        ibv_cq { context, cq_context, cqe }
        ibv_qp { context, qp_context, qp_num }
        ibv_device_attr {
            fw_ver, node_guid, max_mr_size, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_qp_init_rd_atom, phys_port_cnt,
        }
        ibv_gid { raw }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_async_event { element, event_type }
        ibv_wc { imm_data, qp_num, wc_flags }
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data => __bindgen_anon_1.imm_data, wr => wr.rdma,
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr {
            qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, pkey_index, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        }
    }
}

/// The one type that has grown: what we know of it has its place, and there is room for the rest.
#[test]
fn a_port_has_its_attributes_where_they_were() {
    macro_rules! same_place {
        ($($field:ident),*) => {$(
            assert_eq!(offset_of!(sys::ibv_port_attr, $field), offset_of!(ffi::ibv_port_attr, $field));
        )*};
    }
    same_place!(state, max_mtu, active_mtu, gid_tbl_len, max_msg_sz, lid, lmc, active_width, active_speed);
    same_place!(phys_state, link_layer);
    assert!(size_of::<ffi::ibv_port_attr>() <= size_of::<sys::ibv_port_attr>() + 128);
}

/// Numbers are the same in both, whatever types the header gives them.
macro_rules! same_numbers {
    ($($form:ident $path:tt { $($name:ident),* })*) => {$($(
        assert_eq!(
            i64::from(sys::$name),
            i64::from(same_numbers!(@$form $path $name)),
            stringify!($name)
        );
    )*)*};
    (@plain ($($path:ident)::+) $name:ident) => { $($path)::+::$name };
    (@bits ($($path:ident)::+) $name:ident) => { $($path)::+::$name.0 };
}

#[test]
fn numbers_are_the_same() {
    same_numbers! {
        plain (ffi) {
            IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_NODE_CA, IBV_NODE_SWITCH,
            IBV_NODE_ROUTER, IBV_NODE_RNIC, IBV_NODE_USNIC, IBV_NODE_USNIC_UDP, IBV_NODE_UNSPECIFIED,
            IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, IBV_TRANSPORT_USNIC, IBV_TRANSPORT_USNIC_UDP,
            IBV_TRANSPORT_UNSPECIFIED, IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096,
            IBV_LINK_LAYER_UNSPECIFIED, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET, IBV_EVENT_CQ_ERR,
            IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_COMM_EST,
            IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_DEVICE_FATAL,
            IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE,
            IBV_EVENT_SM_CHANGE, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
            IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE,
            IBV_EVENT_WQ_FATAL
        }
        plain (ffi::ibv_port_state) {
            IBV_PORT_NOP, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE, IBV_PORT_ACTIVE_DEFER
        }
        plain (ffi::ibv_wc_status) {
            IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_EEC_OP_ERR,
            IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR,
            IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
            IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_LOC_RDD_VIOL_ERR,
            IBV_WC_REM_INV_RD_REQ_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_INV_EECN_ERR, IBV_WC_INV_EEC_STATE_ERR,
            IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR, IBV_WC_TM_ERR,
            IBV_WC_TM_RNDV_INCOMPLETE
        }
        plain (ffi::ibv_wc_opcode) {
            IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RECV,
            IBV_WC_RECV_RDMA_WITH_IMM
        }
        bits (ffi::ibv_wc_flags) { IBV_WC_WITH_IMM }
        bits (ffi::ibv_access_flags) {
            IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
            IBV_ACCESS_RELAXED_ORDERING
        }
        plain (ffi::ibv_qp_type) { IBV_QPT_RC }
        bits (ffi::ibv_qp_attr_mask) {
            IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU,
            IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC,
            IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN
        }
        plain (ffi::ibv_qp_state) {
            IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR,
            IBV_QPS_UNKNOWN
        }
        plain (ffi::ibv_wr_opcode) {
            IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ
        }
        bits (ffi::ibv_send_flags) { IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_INLINE }
    }
}

#[test]
fn the_linked_library_lists_what_the_loaded_one_does() {
    let Ok(loaded) = super::Verbs::load(None) else { return };
    let mut names = Vec::new();
    let mut count = 0;
    // SAFETY: the call writes one number and returns an array of that many devices, or null.
    let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
    if !list.is_null() {
        for at in 0..usize::try_from(count).unwrap() {
            // SAFETY: the array has that many entries.
            let device = unsafe { list.add(at).read() };
            // SAFETY: the device is of the list.
            let name = unsafe { ffi::ibv_get_device_name(device) };
            // SAFETY: the name ends in a zero byte and lives as long as the list.
            names.push(unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned());
        }
        // SAFETY: the list is given back once, and no device of it is open.
        unsafe { ffi::ibv_free_device_list(list) };
    }
    let devices = loaded.devices().unwrap();
    assert_eq!(devices.iter().map(super::Device::name).collect::<Vec<_>>(), names);
}
