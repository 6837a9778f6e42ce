//! The library's numbers, taken from its header. `WC` are work completions, `QPS` states of a queue pair, `WR` work requests.

use std::ffi::{c_int, c_uint};

// What a GID is for.
pub(crate) const IBV_GID_TYPE_IB: u32 = 0;
pub(crate) const IBV_GID_TYPE_ROCE_V1: u32 = 1;
pub(crate) const IBV_GID_TYPE_ROCE_V2: u32 = 2;

// What a device is.
pub(crate) const IBV_NODE_CA: c_int = 1;
pub(crate) const IBV_NODE_SWITCH: c_int = 2;
pub(crate) const IBV_NODE_ROUTER: c_int = 3;
pub(crate) const IBV_NODE_RNIC: c_int = 4;
pub(crate) const IBV_NODE_USNIC: c_int = 5;
pub(crate) const IBV_NODE_USNIC_UDP: c_int = 6;
pub(crate) const IBV_NODE_UNSPECIFIED: c_int = 7;

// What a device speaks.
pub(crate) const IBV_TRANSPORT_IB: c_int = 0;
pub(crate) const IBV_TRANSPORT_IWARP: c_int = 1;
pub(crate) const IBV_TRANSPORT_USNIC: c_int = 2;
pub(crate) const IBV_TRANSPORT_USNIC_UDP: c_int = 3;
pub(crate) const IBV_TRANSPORT_UNSPECIFIED: c_int = 4;

// The largest packet.
pub(crate) const IBV_MTU_256: c_uint = 1;
pub(crate) const IBV_MTU_512: c_uint = 2;
pub(crate) const IBV_MTU_1024: c_uint = 3;
pub(crate) const IBV_MTU_2048: c_uint = 4;
pub(crate) const IBV_MTU_4096: c_uint = 5;

// How far a link is up.
pub(crate) const IBV_PORT_NOP: c_uint = 0;
pub(crate) const IBV_PORT_DOWN: c_uint = 1;
pub(crate) const IBV_PORT_INIT: c_uint = 2;
pub(crate) const IBV_PORT_ARMED: c_uint = 3;
pub(crate) const IBV_PORT_ACTIVE: c_uint = 4;
pub(crate) const IBV_PORT_ACTIVE_DEFER: c_uint = 5;

// What a wire is.
pub(crate) const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
pub(crate) const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;

// What happened by itself.
pub(crate) const IBV_EVENT_CQ_ERR: c_uint = 0;
pub(crate) const IBV_EVENT_QP_FATAL: c_uint = 1;
pub(crate) const IBV_EVENT_QP_REQ_ERR: c_uint = 2;
pub(crate) const IBV_EVENT_QP_ACCESS_ERR: c_uint = 3;
pub(crate) const IBV_EVENT_COMM_EST: c_uint = 4;
pub(crate) const IBV_EVENT_SQ_DRAINED: c_uint = 5;
pub(crate) const IBV_EVENT_PATH_MIG: c_uint = 6;
pub(crate) const IBV_EVENT_PATH_MIG_ERR: c_uint = 7;
pub(crate) const IBV_EVENT_DEVICE_FATAL: c_uint = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: c_uint = 9;
pub(crate) const IBV_EVENT_PORT_ERR: c_uint = 10;
pub(crate) const IBV_EVENT_LID_CHANGE: c_uint = 11;
pub(crate) const IBV_EVENT_PKEY_CHANGE: c_uint = 12;
pub(crate) const IBV_EVENT_SM_CHANGE: c_uint = 13;
pub(crate) const IBV_EVENT_SRQ_ERR: c_uint = 14;
pub(crate) const IBV_EVENT_SRQ_LIMIT_REACHED: c_uint = 15;
pub(crate) const IBV_EVENT_QP_LAST_WQE_REACHED: c_uint = 16;
pub(crate) const IBV_EVENT_CLIENT_REREGISTER: c_uint = 17;
pub(crate) const IBV_EVENT_GID_CHANGE: c_uint = 18;
pub(crate) const IBV_EVENT_WQ_FATAL: c_uint = 19;

// What became of a work request.
pub(crate) const IBV_WC_SUCCESS: c_uint = 0;
pub(crate) const IBV_WC_LOC_LEN_ERR: c_uint = 1;
pub(crate) const IBV_WC_LOC_QP_OP_ERR: c_uint = 2;
pub(crate) const IBV_WC_LOC_EEC_OP_ERR: c_uint = 3;
pub(crate) const IBV_WC_LOC_PROT_ERR: c_uint = 4;
pub(crate) const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
pub(crate) const IBV_WC_MW_BIND_ERR: c_uint = 6;
pub(crate) const IBV_WC_BAD_RESP_ERR: c_uint = 7;
pub(crate) const IBV_WC_LOC_ACCESS_ERR: c_uint = 8;
pub(crate) const IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
pub(crate) const IBV_WC_REM_ACCESS_ERR: c_uint = 10;
pub(crate) const IBV_WC_REM_OP_ERR: c_uint = 11;
pub(crate) const IBV_WC_RETRY_EXC_ERR: c_uint = 12;
pub(crate) const IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
pub(crate) const IBV_WC_LOC_RDD_VIOL_ERR: c_uint = 14;
pub(crate) const IBV_WC_REM_INV_RD_REQ_ERR: c_uint = 15;
pub(crate) const IBV_WC_REM_ABORT_ERR: c_uint = 16;
pub(crate) const IBV_WC_INV_EECN_ERR: c_uint = 17;
pub(crate) const IBV_WC_INV_EEC_STATE_ERR: c_uint = 18;
pub(crate) const IBV_WC_FATAL_ERR: c_uint = 19;
pub(crate) const IBV_WC_RESP_TIMEOUT_ERR: c_uint = 20;
pub(crate) const IBV_WC_GENERAL_ERR: c_uint = 21;
pub(crate) const IBV_WC_TM_ERR: c_uint = 22;
pub(crate) const IBV_WC_TM_RNDV_INCOMPLETE: c_uint = 23;

// What a completion is of.
pub(crate) const IBV_WC_SEND: c_uint = 0;
pub(crate) const IBV_WC_RDMA_WRITE: c_uint = 1;
pub(crate) const IBV_WC_RDMA_READ: c_uint = 2;
pub(crate) const IBV_WC_COMP_SWAP: c_uint = 3;
pub(crate) const IBV_WC_FETCH_ADD: c_uint = 4;
pub(crate) const IBV_WC_RECV: c_uint = 128;
pub(crate) const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;

// What else a completion says.
pub(crate) const IBV_WC_WITH_IMM: c_uint = 2;

// What may be done with memory.
pub(crate) const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: c_uint = 2;
pub(crate) const IBV_ACCESS_REMOTE_READ: c_uint = 4;
pub(crate) const IBV_ACCESS_RELAXED_ORDERING: c_uint = 1048576;

// What a queue pair is.
pub(crate) const IBV_QPT_RC: c_uint = 2;

// Which attributes of a queue pair are meant.
pub(crate) const IBV_QP_STATE: c_uint = 1;
pub(crate) const IBV_QP_ACCESS_FLAGS: c_uint = 8;
pub(crate) const IBV_QP_PKEY_INDEX: c_uint = 16;
pub(crate) const IBV_QP_PORT: c_uint = 32;
pub(crate) const IBV_QP_AV: c_uint = 128;
pub(crate) const IBV_QP_PATH_MTU: c_uint = 256;
pub(crate) const IBV_QP_TIMEOUT: c_uint = 512;
pub(crate) const IBV_QP_RETRY_CNT: c_uint = 1024;
pub(crate) const IBV_QP_RNR_RETRY: c_uint = 2048;
pub(crate) const IBV_QP_RQ_PSN: c_uint = 4096;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: c_uint = 8192;
pub(crate) const IBV_QP_MIN_RNR_TIMER: c_uint = 32768;
pub(crate) const IBV_QP_SQ_PSN: c_uint = 65536;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: c_uint = 131072;
pub(crate) const IBV_QP_DEST_QPN: c_uint = 1048576;

// How far a queue pair has come.
pub(crate) const IBV_QPS_RESET: c_uint = 0;
pub(crate) const IBV_QPS_INIT: c_uint = 1;
pub(crate) const IBV_QPS_RTR: c_uint = 2;
pub(crate) const IBV_QPS_RTS: c_uint = 3;
pub(crate) const IBV_QPS_SQD: c_uint = 4;
pub(crate) const IBV_QPS_SQE: c_uint = 5;
pub(crate) const IBV_QPS_ERR: c_uint = 6;
pub(crate) const IBV_QPS_UNKNOWN: c_uint = 7;

// What a work request is.
pub(crate) const IBV_WR_RDMA_WRITE: c_uint = 0;
pub(crate) const IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(crate) const IBV_WR_SEND: c_uint = 2;
pub(crate) const IBV_WR_SEND_WITH_IMM: c_uint = 3;
pub(crate) const IBV_WR_RDMA_READ: c_uint = 4;

// How it is to be carried out.
pub(crate) const IBV_SEND_FENCE: c_uint = 1;
pub(crate) const IBV_SEND_SIGNALED: c_uint = 2;
pub(crate) const IBV_SEND_SOLICITED: c_uint = 4;
pub(crate) const IBV_SEND_INLINE: c_uint = 8;
