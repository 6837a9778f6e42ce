//! The library's enumerations. A number that this crate does not know is kept as it is.

use std::fmt;

use super::super::sys;

macro_rules! numbered {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $number:path, $text:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// A number that this crate does not know.
            Other(u32),
        }

        impl $name {
            /// Every known value.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The value with this number.
            #[must_use]
            #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "the constants differ in their types")]
            pub const fn from_number(number: u32) -> Self {
                $(if number == $number as u32 {
                    return Self::$variant;
                })*
                Self::Other(number)
            }

            /// The number, as the library has it.
            #[must_use]
            #[allow(clippy::unnecessary_cast, reason = "the constants differ in their types")]
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number as u32,)*
                    Self::Other(number) => number,
                }
            }

            /// It in a few words.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(_) => "unknown",
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Other(number) => write!(f, "unknown ({number})"),
                    known => f.write_str(known.as_str()),
                }
            }
        }
    };
}

numbered! {
    /// What a device is.
    NodeType {
        /// A channel adapter: InfiniBand or RoCE.
        ChannelAdapter = sys::IBV_NODE_CA, "channel adapter";
        /// A switch.
        Switch = sys::IBV_NODE_SWITCH, "switch";
        /// A router.
        Router = sys::IBV_NODE_ROUTER, "router";
        /// An iWARP adapter.
        Rnic = sys::IBV_NODE_RNIC, "iWARP adapter";
        /// usNIC, an adapter of its own kind.
        Usnic = sys::IBV_NODE_USNIC, "usNIC";
        /// usNIC over UDP.
        UsnicUdp = sys::IBV_NODE_USNIC_UDP, "usNIC over UDP";
        /// Of its driver's own kind.
        Unspecified = sys::IBV_NODE_UNSPECIFIED, "unspecified";
    }
}

numbered! {
    /// What a device speaks.
    Transport {
        /// InfiniBand's transport, which RoCE speaks, too.
        InfiniBand = sys::IBV_TRANSPORT_IB, "InfiniBand or RoCE";
        /// iWARP, over TCP.
        Iwarp = sys::IBV_TRANSPORT_IWARP, "iWARP";
        /// usNIC.
        Usnic = sys::IBV_TRANSPORT_USNIC, "usNIC";
        /// usNIC over UDP.
        UsnicUdp = sys::IBV_TRANSPORT_USNIC_UDP, "usNIC over UDP";
        /// Of its driver's own kind.
        Unspecified = sys::IBV_TRANSPORT_UNSPECIFIED, "unspecified";
    }
}

numbered! {
    /// How far a port's link is up.
    PortState {
        /// Nothing new.
        Nop = sys::IBV_PORT_NOP, "no change";
        /// Down.
        Down = sys::IBV_PORT_DOWN, "down";
        /// The link is up, and the subnet manager has not configured it yet.
        Init = sys::IBV_PORT_INIT, "initialising";
        /// Configured, and not yet let go.
        Armed = sys::IBV_PORT_ARMED, "armed";
        /// Up.
        Active = sys::IBV_PORT_ACTIVE, "active";
        /// Up, and held back by an error.
        ActiveDefer = sys::IBV_PORT_ACTIVE_DEFER, "active, deferred";
    }
}

numbered! {
    /// What a port's wire is.
    LinkLayer {
        /// The driver does not say, which old ones mean by InfiniBand.
        Unspecified = sys::IBV_LINK_LAYER_UNSPECIFIED, "unspecified";
        /// InfiniBand: addressed by LID.
        InfiniBand = sys::IBV_LINK_LAYER_INFINIBAND, "InfiniBand";
        /// Ethernet (RoCE): addressed by GID.
        Ethernet = sys::IBV_LINK_LAYER_ETHERNET, "Ethernet";
    }
}

numbered! {
    /// What a GID is for.
    GidKind {
        /// InfiniBand.
        InfiniBand = sys::IBV_GID_TYPE_IB, "InfiniBand";
        /// RoCE v1: within one Ethernet.
        RoceV1 = sys::IBV_GID_TYPE_ROCE_V1, "RoCE v1";
        /// RoCE v2: over UDP, routable.
        RoceV2 = sys::IBV_GID_TYPE_ROCE_V2, "RoCE v2";
    }
}

numbered! {
    /// The largest packet.
    Mtu {
        /// 256 bytes.
        Bytes256 = sys::IBV_MTU_256, "256 bytes";
        /// 512 bytes.
        Bytes512 = sys::IBV_MTU_512, "512 bytes";
        /// 1024 bytes.
        Bytes1024 = sys::IBV_MTU_1024, "1024 bytes";
        /// 2048 bytes.
        Bytes2048 = sys::IBV_MTU_2048, "2048 bytes";
        /// 4096 bytes.
        Bytes4096 = sys::IBV_MTU_4096, "4096 bytes";
    }
}

impl Mtu {
    /// How many bytes it is; 0 for an unknown number.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Other(_) => 0,
            known => 128 << known.number(),
        }
    }

    /// The smaller of two, which both ends can take. An unknown number counts as the smallest.
    #[must_use]
    pub const fn smaller(self, other: Self) -> Self {
        if self.bytes() <= other.bytes() { self } else { other }
    }
}

numbered! {
    /// How far a queue pair's life has come.
    QueuePairState {
        /// New, or set back.
        Reset = sys::IBV_QPS_RESET, "reset";
        /// Takes receives.
        Init = sys::IBV_QPS_INIT, "initialised";
        /// Ready to receive.
        ReadyToReceive = sys::IBV_QPS_RTR, "ready to receive";
        /// Ready to send.
        ReadyToSend = sys::IBV_QPS_RTS, "ready to send";
        /// The send queue is being drained.
        SendQueueDrained = sys::IBV_QPS_SQD, "send queue drained";
        /// The send queue has failed.
        SendQueueError = sys::IBV_QPS_SQE, "send queue error";
        /// Failed: everything that is posted comes back flushed.
        Error = sys::IBV_QPS_ERR, "error";
        /// The library does not know.
        Unknown = sys::IBV_QPS_UNKNOWN, "unknown";
    }
}

numbered! {
    /// What a completion is of. Of a failed one it means nothing.
    Opcode {
        /// A send.
        Send = sys::IBV_WC_SEND, "send";
        /// A write, with immediate data or without.
        Write = sys::IBV_WC_RDMA_WRITE, "write";
        /// A read.
        Read = sys::IBV_WC_RDMA_READ, "read";
        /// A compare-and-swap.
        CompareSwap = sys::IBV_WC_COMP_SWAP, "compare and swap";
        /// A fetch-and-add.
        FetchAdd = sys::IBV_WC_FETCH_ADD, "fetch and add";
        /// A receive that a send has filled.
        Receive = sys::IBV_WC_RECV, "receive";
        /// A receive that a write with immediate data has used up; the data went to the write's own address.
        ReceiveWriteImmediate = sys::IBV_WC_RECV_RDMA_WITH_IMM, "receive of a write with immediate data";
    }
}

numbered! {
    /// What became of a work request.
    WcStatus {
        /// It is done.
        Success = sys::IBV_WC_SUCCESS, "success";
        /// A local piece is longer than the message may be, or a receive too short for what came.
        LocalLength = sys::IBV_WC_LOC_LEN_ERR, "local length error: a message does not fit its buffers or the device's limit";
        /// The queue pair itself is inconsistent, or its link went down.
        LocalQueuePair = sys::IBV_WC_LOC_QP_OP_ERR, "local queue pair operation error: the queue pair or its port failed";
        /// An end-to-end context is inconsistent.
        LocalEec = sys::IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error";
        /// A local piece is not inside a region registered for this.
        LocalProtection = sys::IBV_WC_LOC_PROT_ERR, "local protection error: the memory is not registered for this, or no longer";
        /// It was still queued when the queue pair failed: a consequence, not a cause.
        Flushed = sys::IBV_WC_WR_FLUSH_ERR, "flushed: the queue pair had failed or was closed before";
        /// A memory window could not be bound.
        WindowBind = sys::IBV_WC_MW_BIND_ERR, "memory window bind error";
        /// The peer's answer is none.
        BadResponse = sys::IBV_WC_BAD_RESP_ERR, "bad response: the peer answered something unexpected";
        /// A local piece may not be written.
        LocalAccess = sys::IBV_WC_LOC_ACCESS_ERR, "local access error: the memory's registration does not allow it";
        /// The peer cannot make sense of the message.
        RemoteInvalidRequest = sys::IBV_WC_REM_INV_REQ_ERR, "remote invalid request: the peer's queue pair does not take it";
        /// The peer does not allow the access.
        RemoteAccess = sys::IBV_WC_REM_ACCESS_ERR, "remote access error: the peer's memory is not registered for this, or no longer";
        /// The peer failed at it.
        RemoteOperation = sys::IBV_WC_REM_OP_ERR, "remote operation error: the peer could not complete it";
        /// The peer does not answer.
        RetryExceeded = sys::IBV_WC_RETRY_EXC_ERR, "transport retries exceeded: the peer does not answer";
        /// The peer has no receive for it.
        ReceiverNotReady = sys::IBV_WC_RNR_RETRY_EXC_ERR, "receiver-not-ready retries exceeded: the peer has posted no receive";
        /// A reliable datagram went to a foreign domain.
        LocalRdd = sys::IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation error";
        /// A reliable datagram asked for an invalid read.
        RemoteInvalidRead = sys::IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request";
        /// The peer gave up.
        RemoteAborted = sys::IBV_WC_REM_ABORT_ERR, "remote aborted: the peer gave the operation up";
        /// An end-to-end context has a bad number.
        InvalidEecNumber = sys::IBV_WC_INV_EECN_ERR, "invalid EE context number";
        /// An end-to-end context is in a bad state.
        InvalidEecState = sys::IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state";
        /// The device failed.
        Fatal = sys::IBV_WC_FATAL_ERR, "fatal error: the device failed";
        /// The peer's answer came too late.
        ResponseTimeout = sys::IBV_WC_RESP_TIMEOUT_ERR, "response timeout";
        /// Anything else.
        General = sys::IBV_WC_GENERAL_ERR, "general error";
        /// Tag matching failed.
        TagMatching = sys::IBV_WC_TM_ERR, "tag matching error";
        /// A rendezvous of tag matching is left to software.
        TagRendezvous = sys::IBV_WC_TM_RNDV_INCOMPLETE, "tag matching rendezvous incomplete";
    }
}

impl WcStatus {
    /// Whether it is done.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }

    /// Whether it is a consequence of an earlier failure of the same queue pair, so that the cause is to be looked for there.
    #[must_use]
    pub const fn is_flush(self) -> bool {
        matches!(self, Self::Flushed)
    }

    /// The name that the specification of the interface gives it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "IBV_WC_SUCCESS",
            Self::LocalLength => "IBV_WC_LOC_LEN_ERR",
            Self::LocalQueuePair => "IBV_WC_LOC_QP_OP_ERR",
            Self::LocalEec => "IBV_WC_LOC_EEC_OP_ERR",
            Self::LocalProtection => "IBV_WC_LOC_PROT_ERR",
            Self::Flushed => "IBV_WC_WR_FLUSH_ERR",
            Self::WindowBind => "IBV_WC_MW_BIND_ERR",
            Self::BadResponse => "IBV_WC_BAD_RESP_ERR",
            Self::LocalAccess => "IBV_WC_LOC_ACCESS_ERR",
            Self::RemoteInvalidRequest => "IBV_WC_REM_INV_REQ_ERR",
            Self::RemoteAccess => "IBV_WC_REM_ACCESS_ERR",
            Self::RemoteOperation => "IBV_WC_REM_OP_ERR",
            Self::RetryExceeded => "IBV_WC_RETRY_EXC_ERR",
            Self::ReceiverNotReady => "IBV_WC_RNR_RETRY_EXC_ERR",
            Self::LocalRdd => "IBV_WC_LOC_RDD_VIOL_ERR",
            Self::RemoteInvalidRead => "IBV_WC_REM_INV_RD_REQ_ERR",
            Self::RemoteAborted => "IBV_WC_REM_ABORT_ERR",
            Self::InvalidEecNumber => "IBV_WC_INV_EECN_ERR",
            Self::InvalidEecState => "IBV_WC_INV_EEC_STATE_ERR",
            Self::Fatal => "IBV_WC_FATAL_ERR",
            Self::ResponseTimeout => "IBV_WC_RESP_TIMEOUT_ERR",
            Self::General => "IBV_WC_GENERAL_ERR",
            Self::TagMatching => "IBV_WC_TM_ERR",
            Self::TagRendezvous => "IBV_WC_TM_RNDV_INCOMPLETE",
            Self::Other(_) => "unknown status",
        }
    }
}

numbered! {
    /// Something that happened by itself.
    AsyncEventKind {
        /// A completion queue failed: it overran. It delivers nothing any more.
        CompletionQueueError = sys::IBV_EVENT_CQ_ERR, "completion queue error (overrun)";
        /// A queue pair failed.
        QueuePairFatal = sys::IBV_EVENT_QP_FATAL, "queue pair fatal error";
        /// A queue pair got a request that it does not take, and failed.
        QueuePairRequest = sys::IBV_EVENT_QP_REQ_ERR, "queue pair invalid request";
        /// A queue pair got a request for memory that it may not touch, and failed.
        QueuePairAccess = sys::IBV_EVENT_QP_ACCESS_ERR, "queue pair access violation";
        /// The first message arrived on a queue pair that is ready to receive.
        Established = sys::IBV_EVENT_COMM_EST, "communication established";
        /// A send queue is drained.
        SendQueueDrained = sys::IBV_EVENT_SQ_DRAINED, "send queue drained";
        /// A queue pair took its other path.
        PathMigrated = sys::IBV_EVENT_PATH_MIG, "path migrated";
        /// A queue pair could not take its other path.
        PathMigrationError = sys::IBV_EVENT_PATH_MIG_ERR, "path migration error";
        /// The device failed. Nothing of it works any more.
        DeviceFatal = sys::IBV_EVENT_DEVICE_FATAL, "device fatal error";
        /// A port came up.
        PortActive = sys::IBV_EVENT_PORT_ACTIVE, "port active";
        /// A port went down.
        PortError = sys::IBV_EVENT_PORT_ERR, "port down";
        /// A port's LID changed.
        LidChange = sys::IBV_EVENT_LID_CHANGE, "LID changed";
        /// A port's table of partition keys changed.
        PartitionKeyChange = sys::IBV_EVENT_PKEY_CHANGE, "partition keys changed";
        /// Another subnet manager took over.
        SubnetManagerChange = sys::IBV_EVENT_SM_CHANGE, "subnet manager changed";
        /// A shared receive queue failed.
        SharedReceiveError = sys::IBV_EVENT_SRQ_ERR, "shared receive queue error";
        /// A shared receive queue runs low.
        SharedReceiveLimit = sys::IBV_EVENT_SRQ_LIMIT_REACHED, "shared receive queue limit reached";
        /// A queue pair with a shared receive queue has taken its last receive.
        LastReceive = sys::IBV_EVENT_QP_LAST_WQE_REACHED, "last receive reached";
        /// The subnet manager asks everybody to register again.
        ClientReregister = sys::IBV_EVENT_CLIENT_REREGISTER, "client reregistration";
        /// A port's table of GIDs changed.
        GidChange = sys::IBV_EVENT_GID_CHANGE, "GIDs changed";
        /// A work queue failed.
        WorkQueueFatal = sys::IBV_EVENT_WQ_FATAL, "work queue fatal error";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways() {
        for &status in WcStatus::ALL {
            assert_eq!(WcStatus::from_number(status.number()), status);
            assert!(status.name().starts_with("IBV_WC_"), "{status:?}");
            assert!(!status.as_str().is_empty());
        }
        assert_eq!(WcStatus::ALL.len(), 24);
        assert_eq!(WcStatus::from_number(999), WcStatus::Other(999));
        assert_eq!(WcStatus::Other(999).to_string(), "unknown (999)");
        assert!(AsyncEventKind::ALL.iter().all(|&kind| AsyncEventKind::from_number(kind.number()) == kind));
        assert_eq!(NodeType::from_number(u32::MAX), NodeType::Other(u32::MAX));
    }

    #[test]
    fn only_a_flush_is_a_consequence() {
        let flushes: Vec<_> = WcStatus::ALL.iter().filter(|status| status.is_flush()).collect();
        assert_eq!(flushes, [&WcStatus::Flushed]);
        let good: Vec<_> = WcStatus::ALL.iter().filter(|status| status.is_success()).collect();
        assert_eq!(good, [&WcStatus::Success]);
    }

    #[test]
    fn packets_have_their_sizes() {
        let sizes: Vec<u32> = Mtu::ALL.iter().map(|mtu| mtu.bytes()).collect();
        assert_eq!(sizes, [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::Bytes4096.smaller(Mtu::Bytes1024), Mtu::Bytes1024);
        assert_eq!(Mtu::Bytes256.smaller(Mtu::Other(9)), Mtu::Other(9));
    }
}
