//! An open device of this side: its domain, its completion queues, its address, and what it can take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mori_core::{Error, ErrorKind, Result};

use crate::config::RdmaConfig;
use crate::control::Endpoint;
use crate::sync::Mutex;
use crate::topology::GidRule;
use crate::verbs::{
    CompletionChannel, CompletionQueue, Context, Device, Gid, GidEntry, InitAttributes, LinkLayer, Mtu, Path,
    PortState, ProtectionDomain, QueuePair, QueuePairCapacities, QueuePairOptions, RegionAccess, Route,
    RtrAttributes, RtsAttributes,
};

/// How many entries a completion queue has, if the device takes that many. More queues are made as they are needed.
const ENTRIES: u32 = 16 << 10;

/// How long a peer is asked to wait when there is no receive for its message, as verbs number it: 0.64 ms.
const RNR_TIMER: u8 = 12;

/// How many hops a packet may take.
const HOPS: u8 = 64;

/// What the device can take, after the configuration's own limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) sge: u32,
    pub(crate) requests: u32,
    pub(crate) message: u32,
    pub(crate) reads_as_initiator: u8,
    pub(crate) reads_as_target: u8,
}

/// A completion queue with the places that its queue pairs have taken.
struct Completions {
    queue: CompletionQueue,
    taken: u32,
}

pub(crate) struct Nic {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) port: u8,
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) channel: CompletionChannel,
    pub(crate) limits: Limits,
    link_layer: LinkLayer,
    lid: u16,
    mtu: Mtu,
    gid: Mutex<GidEntry>,
    completions: Mutex<Vec<Completions>>,
    traffic_class: u8,
    service_level: u8,
    ack_timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    gid_rule: GidRule,
    /// The device has failed for good.
    dead: AtomicBool,
}

/// Places in a completion queue; given back when it is dropped.
pub(crate) struct Places {
    nic: Arc<Nic>,
    queue: CompletionQueue,
    count: u32,
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut all = self.nic.completions.lock();
        if let Some(found) = all.iter_mut().find(|completions| completions.queue.id() == self.queue.id()) {
            found.taken = found.taken.saturating_sub(self.count);
        }
    }
}

/// How a queue pair is sized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
}

impl Nic {
    /// Opens a port of a device.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub(crate) fn open(index: usize, device: &Device, port: u8, config: &RdmaConfig) -> Result<Self> {
        let context = device.open()?;
        let attributes = context.attributes()?;
        let port = context.port(port)?;
        if port.state != PortState::Active {
            let words = format!("port {} of device {} is {}", port.number, device.name(), port.state);
            return Err(Error::new(ErrorKind::Unavailable, words));
        }
        let gid = config.gid.choose(port.link_layer, &context.gids(port.number)?)?.entry;
        let domain = context.protection_domain()?;
        let channel = context.completion_channel()?;
        let small = |value: u32, most: u8| u8::try_from(value.min(u32::from(most))).unwrap_or(most).max(1);
        let sge = match attributes.max_sge_read {
            0 => attributes.max_sge,
            read => attributes.max_sge.min(read),
        };
        let limits = Limits {
            sge: sge.min(config.max_sge).max(1),
            requests: attributes.max_work_requests.min(config.send_queue).max(1),
            message: match port.max_message {
                0 => config.chunk_bytes,
                most => most.min(config.chunk_bytes),
            },
            reads_as_initiator: small(attributes.max_reads_as_initiator, config.max_reads),
            reads_as_target: small(attributes.max_reads_as_target, u8::MAX),
        };
        Ok(Self {
            index,
            name: device.name().to_owned(),
            port: port.number,
            context,
            domain,
            channel,
            limits,
            link_layer: port.link_layer,
            lid: port.lid,
            mtu: port.active_mtu,
            gid: Mutex::new(gid),
            completions: Mutex::new(Vec::new()),
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            ack_timeout: config.ack_timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            gid_rule: config.gid,
            dead: AtomicBool::new(false),
        })
    }

    pub(crate) fn gid(&self) -> GidEntry {
        *self.gid.lock()
    }

    /// Looks at the addresses again, because they have changed.
    pub(crate) fn refresh_gid(&self) {
        let Ok(entries) = self.context.gids(self.port) else { return };
        if let Ok(chosen) = self.gid_rule.choose(self.link_layer, &entries) {
            *self.gid.lock() = chosen.entry;
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Every completion queue that there is.
    pub(crate) fn queues(&self) -> Vec<CompletionQueue> {
        self.completions.lock().iter().map(|completions| completions.queue.clone()).collect()
    }

    /// Puts a completion queue that has failed aside: nothing new uses it, and it goes with its last queue pair.
    pub(crate) fn discard_queue(&self, id: u64) {
        self.completions.lock().retain(|completions| completions.queue.id() != id);
    }

    /// Places for `count` completions, in a queue that is armed.
    fn places(self: &Arc<Self>, count: u32) -> Result<Places> {
        let mut all = self.completions.lock();
        let room = |completions: &Completions| {
            completions.queue.capacity().saturating_sub(completions.taken) >= count
        };
        let at = match all.iter().position(room) {
            Some(at) => at,
            None => {
                let most = self.context.attributes()?.max_completion_entries;
                let entries = most.min(ENTRIES.max(count)).max(1);
                if entries < count {
                    let words = format!(
                        "device {} has completion queues of {most} entries, and a queue pair needs {count}; make send_queue smaller",
                        self.name
                    );
                    return Err(Error::new(ErrorKind::ResourceExhausted, words));
                }
                let queue = self.context.completion_queue(entries, Some(&self.channel), 0)?;
                queue.arm(false)?;
                all.push(Completions { queue, taken: 0 });
                all.len() - 1
            }
        };
        let Some(found) = all.get_mut(at) else {
            return Err(Error::new(ErrorKind::BadState, "a completion queue is gone"));
        };
        found.taken += count;
        Ok(Places { nic: Arc::clone(self), queue: found.queue.clone(), count })
    }

    /// A queue pair that takes receives, with places for all its completions.
    pub(crate) fn queue_pair(self: &Arc<Self>, size: Size) -> Result<(QueuePair, Places)> {
        if self.is_dead() {
            let words = format!("device {} has failed", self.name);
            return Err(Error::new(ErrorKind::Device, words));
        }
        let places = self.places(size.sends.saturating_add(size.receives))?;
        let capacities = QueuePairCapacities {
            send_requests: size.sends,
            receive_requests: size.receives.max(1),
            send_pieces: self.limits.sge,
            receive_pieces: 1,
            inline_bytes: 0,
        };
        let pair = self.domain.queue_pair(&QueuePairOptions {
            send_completions: &places.queue,
            receive_completions: &places.queue,
            capacities,
            signal_all: false,
        })?;
        pair.to_init(&InitAttributes {
            port: self.port,
            partition_key_index: 0,
            access: RegionAccess::REMOTE,
        })?;
        Ok((pair, places))
    }

    /// What the other end must know of a queue pair.
    pub(crate) fn endpoint(&self, pair: &QueuePair, psn: u32) -> Endpoint {
        Endpoint {
            psn,
            qpn: pair.number(),
            port: self.port,
            lid: self.lid,
            gid: self.gid().gid.0,
            mac: [0; 6],
            mtu: u8::try_from(self.mtu.number()).unwrap_or(0),
            rd_atomic: self.limits.reads_as_target,
        }
    }

    /// The packet size for both ends. Existing peers do not say theirs.
    pub(crate) fn mtu_with(&self, other: &Endpoint) -> Mtu {
        match other.mtu {
            0 => self.mtu,
            number => self.mtu.smaller(Mtu::from_number(u32::from(number))),
        }
    }

    /// Makes a queue pair ready to receive from and to send to its other end.
    pub(crate) fn connect(&self, pair: &QueuePair, psn: u32, other: &Endpoint) -> Result<()> {
        let route = Route {
            gid: Gid(other.gid),
            source_gid_index: u8::try_from(self.gid().index).unwrap_or(0),
            hop_limit: HOPS,
            traffic_class: self.traffic_class,
            flow_label: 0,
        };
        let path = Path {
            port: self.port,
            lid: other.lid,
            service_level: self.service_level,
            source_path_bits: 0,
            static_rate: 0,
            route: (self.link_layer == LinkLayer::Ethernet || other.lid == 0).then_some(route),
        };
        pair.to_ready_to_receive(&RtrAttributes {
            path,
            mtu: self.mtu_with(other),
            peer_number: other.qpn,
            receive_sequence: other.psn,
            max_reads_as_target: self.limits.reads_as_target,
            min_rnr_timer: RNR_TIMER,
        })?;
        let reads = match other.rd_atomic {
            // Existing peers serve as many as this one asks for.
            0 => self.limits.reads_as_initiator.min(16),
            most => self.limits.reads_as_initiator.min(most),
        };
        pair.to_ready_to_send(&RtsAttributes {
            send_sequence: psn,
            timeout: self.ack_timeout,
            retries: self.retry_count,
            rnr_retries: self.rnr_retry,
            max_reads_as_initiator: reads.max(1),
        })?;
        Ok(())
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").field("name", &self.name).field("port", &self.port).finish_non_exhaustive()
    }
}

/// A random sequence number to start with.
pub(crate) fn fresh_psn() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    // The hasher's keys are the system's randomness; the number only has to differ from that of before.
    let random = RandomState::new().hash_one(0_u8);
    u32::try_from(random & 0x00ff_ffff).unwrap_or(0)
}
