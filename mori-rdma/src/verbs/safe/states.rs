//! What a queue pair needs to get from one state to the next.

use super::super::sys::{self, Plain};
use super::{Gid, Mtu, RegionAccess};

/// For the move to [`Init`](super::QueuePairState::Init).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttributes {
    /// The port, from 1.
    pub port: u8,
    /// The index of the partition's key in the port's table, usually 0.
    pub partition_key_index: u16,
    /// What peers may do with memory through this queue pair, if the memory's registration allows it, too.
    pub access: RegionAccess,
}

/// For the move to [`ReadyToReceive`](super::QueuePairState::ReadyToReceive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttributes {
    /// The way to the peer.
    pub path: Path,
    /// The largest packet, which both ports take.
    pub mtu: Mtu,
    /// The peer's queue pair, by its number.
    pub peer_number: u32,
    /// The sequence number that the peer starts with, 24 bits.
    pub receive_sequence: u32,
    /// How many reads of the peer's this side serves at once.
    pub max_reads_as_target: u8,
    /// How long the peer is asked to wait when there is no receive for its message, as verbs number it: 12 is 0.64 ms.
    pub min_rnr_timer: u8,
}

/// For the move to [`ReadyToSend`](super::QueuePairState::ReadyToSend).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttributes {
    /// The sequence number that this side starts with, 24 bits.
    pub send_sequence: u32,
    /// How long to wait for an answer: 4.096 µs times two to this power; 0 for ever.
    pub timeout: u8,
    /// How often to try again without an answer, 0 to 7. Some drivers take 7 as *for ever*.
    pub retries: u8,
    /// How often to try again when the peer has no receive, 0 to 6; 7 is *for ever*.
    pub rnr_retries: u8,
    /// How many reads this side has under way at once. The peer has to serve as many.
    pub max_reads_as_initiator: u8,
}

/// The way to a peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The own port, from 1.
    pub port: u8,
    /// The peer's LID; 0 on Ethernet.
    pub lid: u16,
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// Which of the own port's LIDs to send from, relative to the first.
    pub source_path_bits: u8,
    /// The highest rate, as verbs number it; 0 for the port's.
    pub static_rate: u8,
    /// How to get there by GID: always on Ethernet, between subnets on InfiniBand.
    pub route: Option<Route>,
}

/// The part of a way that crosses subnets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer's address.
    pub gid: Gid,
    /// The index of the own address in the port's table.
    pub source_gid_index: u8,
    /// How many routers may be passed.
    pub hop_limit: u8,
    /// The traffic class; with RoCE v2, the IP header's.
    pub traffic_class: u8,
    /// The flow's label, 20 bits.
    pub flow_label: u32,
}

/// The library's form of the attributes, with the mask that says which count.
pub(super) type Change = (sys::ibv_qp_attr, u32);

/// A move that needs nothing but its target.
pub(super) fn bare(state: u32) -> Change {
    let mut raw = sys::ibv_qp_attr::zeroed();
    raw.qp_state = state;
    (raw, sys::IBV_QP_STATE)
}

impl InitAttributes {
    pub(super) fn change(&self) -> Change {
        let (mut raw, mask) = bare(sys::IBV_QPS_INIT);
        raw.port_num = self.port;
        raw.pkey_index = self.partition_key_index;
        raw.qp_access_flags = self.access.bits() & !RegionAccess::RELAXED_ORDERING.bits();
        (raw, mask | sys::IBV_QP_PORT | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_ACCESS_FLAGS)
    }
}

impl RtrAttributes {
    pub(super) fn change(&self) -> Change {
        let (mut raw, mask) = bare(sys::IBV_QPS_RTR);
        raw.ah_attr = self.path.raw();
        raw.path_mtu = self.mtu.number();
        raw.dest_qp_num = self.peer_number;
        raw.rq_psn = self.receive_sequence & SEQUENCE;
        raw.max_dest_rd_atomic = self.max_reads_as_target;
        raw.min_rnr_timer = self.min_rnr_timer;
        let mask = mask
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        (raw, mask)
    }
}

impl RtsAttributes {
    pub(super) fn change(&self) -> Change {
        let (mut raw, mask) = bare(sys::IBV_QPS_RTS);
        raw.sq_psn = self.send_sequence & SEQUENCE;
        raw.timeout = self.timeout;
        raw.retry_cnt = self.retries;
        raw.rnr_retry = self.rnr_retries;
        raw.max_rd_atomic = self.max_reads_as_initiator;
        let mask = mask
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        (raw, mask)
    }
}

/// Sequence numbers have 24 bits.
const SEQUENCE: u32 = 0x00ff_ffff;

impl Path {
    fn raw(&self) -> sys::ibv_ah_attr {
        let mut raw = sys::ibv_ah_attr::zeroed();
        raw.port_num = self.port;
        raw.dlid = self.lid;
        raw.sl = self.service_level;
        raw.src_path_bits = self.source_path_bits;
        raw.static_rate = self.static_rate;
        if let Some(route) = &self.route {
            raw.is_global = 1;
            raw.grh.dgid.raw = route.gid.0;
            raw.grh.sgid_index = route.source_gid_index;
            raw.grh.hop_limit = route.hop_limit;
            raw.grh.traffic_class = route.traffic_class;
            raw.grh.flow_label = route.flow_label & 0x000f_ffff;
        }
        raw
    }
}
