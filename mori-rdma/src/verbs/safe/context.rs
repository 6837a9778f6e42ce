//! Open devices: what they and their ports are and can, and what happens to them by itself.

use std::ffi::c_char;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::super::error::{Failure, VerbsError, check};
use super::super::sys::{self, Api, Plain, ibv_context, ibv_port_attr, verbs_context};
use super::{
    AsyncEventKind, CompletionChannel, CompletionQueue, Device, GidKind, LinkLayer, Mtu, Object, PortState,
    ProtectionDomain, count, not_destroyed,
};

/// An open device; a handle, clones are handles to the same one. The last handle, those of everything made from it
/// included, closes it.
#[derive(Clone, Debug)]
pub struct Context(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    context: Object<ibv_context>,
    device: Device,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the context is this value's, nothing that was made from it is left, and it is closed once.
        let code = unsafe { (self.device.api().ibv_close_device)(self.context.pointer()) };
        not_destroyed("device context", check("ibv_close_device", code));
    }
}

impl Context {
    pub(super) fn open(device: &Device) -> Result<Self, VerbsError> {
        // SAFETY: the device is of a list that lives.
        let context = unsafe { (device.api().ibv_open_device)(device.pointer()) };
        let Some(context) = Object::new(context) else {
            return Err(Failure::last("ibv_open_device").into());
        };
        let opened = Self(Arc::new(Opened { context, device: device.clone() }));
        super::unblock(opened.as_fd())?;
        Ok(opened)
    }

    pub(super) fn api(&self) -> &Api {
        self.0.device.api()
    }

    pub(super) fn pointer(&self) -> *mut ibv_context {
        self.0.context.pointer()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// How many completion vectors it has, over which completion queues can be spread; at least one.
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context lives, and the field does not change.
        let vectors = unsafe { (*self.pointer()).num_comp_vectors };
        count(vectors).max(1)
    }

    /// What the device is and can.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn attributes(&self) -> Result<DeviceAttributes, VerbsError> {
        let mut raw = sys::ibv_device_attr::zeroed();
        // SAFETY: the context lives, and the call fills the structure.
        let code = unsafe { (self.api().ibv_query_device)(self.pointer(), &raw mut raw) };
        check("ibv_query_device", code)?;
        Ok(DeviceAttributes::from_raw(&raw))
    }

    /// What a port is and can. Ports count from 1.
    ///
    /// # Errors
    ///
    /// What the library says, for example that there is no such port.
    pub fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        /// The structure has grown once, and a library of tomorrow may think that it has again.
        #[repr(C)]
        struct Roomy {
            known: ibv_port_attr,
            _room: [u64; 16],
        }
        let mut raw = Roomy { known: ibv_port_attr::zeroed(), _room: [0; 16] };
        let into = &raw mut raw;
        let context = self.pointer();
        // SAFETY: the context lives.
        let asked = unsafe { extended(context) };
        let code = match asked {
            // SAFETY: the call fills as much of the structure as it is told to.
            Some(query) => unsafe { query(context, port, into.cast(), size_of::<ibv_port_attr>()) },
            // SAFETY: the call fills the structure of its own release, for which there is room.
            None => unsafe { (self.api().ibv_query_port)(context, port, into.cast()) },
        };
        check("ibv_query_port", code)?;
        Ok(PortAttributes::from_raw(port, &raw.known))
    }

    /// The line of a port's table of GIDs with this index, if it is in use.
    ///
    /// # Errors
    ///
    /// What the library says, for example that the table is not that long.
    pub fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, VerbsError> {
        let mut raw = sys::ibv_gid_entry::zeroed();
        let size = size_of::<sys::ibv_gid_entry>();
        // SAFETY: the context lives, and the call fills as much of the structure as it is told to.
        let code = unsafe {
            (self.api()._ibv_query_gid_ex)(self.pointer(), u32::from(port), index, &raw mut raw, 0, size)
        };
        match check("ibv_query_gid_ex", code) {
            Ok(()) => Ok(Some(GidEntry::from_raw(&raw)).filter(|entry| !entry.gid.is_zero())),
            Err(failure) if failure.errno == libc::ENODATA => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Every line of a port's table of GIDs that is in use, in the order of their indexes.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        if let Some(entries) = self.whole_table()? {
            let mut entries: Vec<GidEntry> =
                entries.into_iter().filter(|entry| entry.port == port && !entry.gid.is_zero()).collect();
            entries.sort_by_key(|entry| entry.index);
            return Ok(entries);
        }
        let mut entries = Vec::new();
        for index in 0..self.port(port)?.gid_table_length {
            entries.extend(self.gid(port, index)?);
        }
        Ok(entries)
    }

    /// The tables of all ports in one call, if the library has it.
    fn whole_table(&self) -> Result<Option<Vec<GidEntry>>, VerbsError> {
        const CALL: &str = "ibv_query_gid_table";
        let Some(query) = self.api()._ibv_query_gid_table else { return Ok(None) };
        let mut lines = 0;
        for port in 1..=self.attributes()?.ports {
            lines += self.port(port)?.gid_table_length as usize;
        }
        let mut raw = vec![sys::ibv_gid_entry::zeroed(); lines];
        // SAFETY: the context lives, and the call fills at most as many lines as it is told, each of that size.
        let found =
            unsafe { query(self.pointer(), raw.as_mut_ptr(), raw.len(), 0, size_of::<sys::ibv_gid_entry>()) };
        match usize::try_from(found) {
            Ok(found) => Ok(Some(raw.iter().take(found).map(GidEntry::from_raw).collect())),
            Err(_) => {
                let code = i32::try_from(found).unwrap_or(i32::MIN);
                let failure = Failure::new(CALL, code.saturating_neg());
                // The table may be asked line by line where the driver or the kernel does not know the call.
                match failure.errno {
                    libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT => Ok(None),
                    _ => Err(failure.into()),
                }
            }
        }
    }

    /// Takes the next event, if there is one, and acknowledges it. Wait for the context's descriptor ([`AsFd`]) to become
    /// readable, then take events until there is none.
    ///
    /// # Errors
    ///
    /// What the library says; `EIO` when the device is gone, and then for ever.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let mut raw = sys::ibv_async_event::zeroed();
        // SAFETY: the context lives, and the call fills the structure; the descriptor does not block.
        let code = unsafe { (self.api().ibv_get_async_event)(self.pointer(), &raw mut raw) };
        if let Err(failure) = check("ibv_get_async_event", code) {
            let none = matches!(failure.errno, libc::EAGAIN | libc::EINTR);
            return if none { Ok(None) } else { Err(failure.into()) };
        }
        // SAFETY: the event is not acknowledged yet, so that its queue, if it has one, is not destroyed.
        let event = unsafe { AsyncEvent::from_raw(&raw) };
        // SAFETY: the event comes from the library and is acknowledged once.
        unsafe { (self.api().ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }

    /// A protection domain, which memory and queue pairs that work together share.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::allocate(self)
    }

    /// A channel on which completion queues announce completions.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn completion_channel(&self) -> Result<CompletionChannel, VerbsError> {
        CompletionChannel::create(self)
    }

    /// A completion queue for at least `entries` completions. With a channel of the same context, it can be armed. `vector`
    /// counts from 0 to [`completion_vectors`](Context::completion_vectors), exclusively.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Argument`] for no entry or another context's channel; else what the library says, for example that the
    /// device's limit is exceeded.
    pub fn completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::create(self, entries, channel, vector)
    }

    /// Whether both are handles of the same open device.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AsFd for Context {
    /// The descriptor that is readable while there are events. It does not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context lives, and the field does not change.
        let fd = unsafe { (*self.pointer()).async_fd };
        // SAFETY: the descriptor is the context's and is open as long as it.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// The way to ask for a port's attributes that knows how large they are, if the context has it.
///
/// # Safety
///
/// The context is open.
unsafe fn extended(
    context: *mut ibv_context,
) -> Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> i32> {
    // SAFETY: the caller's promise; the field does not change.
    let mark = unsafe { (*context).abi_compat };
    if mark.addr() != usize::MAX {
        return None;
    }
    let outer =
        context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: a context with that mark lies at the end of this structure, of which the size stands right before it.
    let size = unsafe { (*outer).sz };
    if size < size_of::<verbs_context>() {
        return None;
    }
    // SAFETY: the structure is as large as ours, so the field is there.
    unsafe { (*outer).query_port }
}

/// What a device is and can.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// The firmware's version, as the driver writes it.
    pub firmware: String,
    /// The node's GUID.
    pub node_guid: u64,
    /// The vendor's number.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// The hardware's version.
    pub hardware_version: u32,
    /// How many ports it has; they count from 1.
    pub ports: u8,
    /// The longest memory region, in bytes.
    pub max_region_size: u64,
    /// The most queue pairs.
    pub max_queue_pairs: u32,
    /// The most work requests of one queue.
    pub max_work_requests: u32,
    /// The most pieces of one work request.
    pub max_sge: u32,
    /// The most pieces of one read; 0 if the driver does not say, which means as many as of any other.
    pub max_sge_read: u32,
    /// The most completion queues.
    pub max_completion_queues: u32,
    /// The most entries of one completion queue.
    pub max_completion_entries: u32,
    /// The most memory regions.
    pub max_regions: u32,
    /// The most protection domains.
    pub max_protection_domains: u32,
    /// The most reads that a queue pair may have under way as their target.
    pub max_reads_as_target: u32,
    /// The most reads that a queue pair may have under way as their initiator.
    pub max_reads_as_initiator: u32,
}

impl DeviceAttributes {
    fn from_raw(raw: &sys::ibv_device_attr) -> Self {
        Self {
            firmware: text(&raw.fw_ver),
            node_guid: u64::from_be(raw.node_guid),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            hardware_version: raw.hw_ver,
            ports: raw.phys_port_cnt,
            max_region_size: raw.max_mr_size,
            max_queue_pairs: count(raw.max_qp),
            max_work_requests: count(raw.max_qp_wr),
            max_sge: count(raw.max_sge),
            max_sge_read: count(raw.max_sge_rd),
            max_completion_queues: count(raw.max_cq),
            max_completion_entries: count(raw.max_cqe),
            max_regions: count(raw.max_mr),
            max_protection_domains: count(raw.max_pd),
            max_reads_as_target: count(raw.max_qp_rd_atom),
            max_reads_as_initiator: count(raw.max_qp_init_rd_atom),
        }
    }
}

fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> =
        characters.iter().take_while(|&&byte| byte != 0).map(|&byte| byte.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a port is and can.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Its number, from 1.
    pub number: u8,
    /// How far its link is up.
    pub state: PortState,
    /// The state of the link's lower half, as the driver numbers it; 5 is up.
    pub physical_state: u8,
    /// What the wire is.
    pub link_layer: LinkLayer,
    /// The largest packet that the port can take.
    pub max_mtu: Mtu,
    /// The largest packet as the port is configured.
    pub active_mtu: Mtu,
    /// The longest message, in bytes.
    pub max_message: u32,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// How many low bits of the LID are the port's own.
    pub lid_mask_bits: u8,
    /// How many lines its table of GIDs has.
    pub gid_table_length: u32,
    /// The link's width, as the driver numbers it.
    pub active_width: u8,
    /// The link's speed, as the driver numbers it.
    pub active_speed: u8,
}

impl PortAttributes {
    fn from_raw(number: u8, raw: &ibv_port_attr) -> Self {
        Self {
            number,
            state: PortState::from_number(raw.state),
            physical_state: raw.phys_state,
            link_layer: LinkLayer::from_number(u32::from(raw.link_layer)),
            max_mtu: Mtu::from_number(raw.max_mtu),
            active_mtu: Mtu::from_number(raw.active_mtu),
            max_message: raw.max_msg_sz,
            lid: raw.lid,
            lid_mask_bits: raw.lmc,
            gid_table_length: count(raw.gid_tbl_len),
            active_width: raw.active_width,
            active_speed: raw.active_speed,
        }
    }

    /// The link's nominal rate in Gbit/s, from its width and its speed; `None` for numbers that this crate does not know.
    #[must_use]
    pub fn gigabits(&self) -> Option<f64> {
        let lanes = match self.active_width {
            1 => 1.0,
            2 => 4.0,
            4 => 8.0,
            8 => 12.0,
            16 => 2.0,
            _ => return None,
        };
        let lane = match self.active_speed {
            1 => 2.5,
            2 => 5.0,
            4 | 8 => 10.0,
            16 => 14.0,
            32 => 25.0,
            64 => 50.0,
            128 => 100.0,
            _ => return None,
        };
        Some(lanes * lane)
    }
}

/// An address of a port: 16 bytes, which look like an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether all its bytes are zero, which is no address.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it is good on one link only (`fe80::/10`).
    #[must_use]
    pub fn is_link_local(self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }

    /// The IPv4 address that it stands for, if it stands for one (`::ffff:a.b.c.d`).
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

/// One line of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its index in the table.
    pub index: u32,
    /// The port.
    pub port: u8,
    /// What it is for.
    pub kind: GidKind,
    /// The number of the network interface that it belongs to; 0 if none.
    pub interface: u32,
}

impl GidEntry {
    fn from_raw(raw: &sys::ibv_gid_entry) -> Self {
        Self {
            gid: Gid(raw.gid.raw),
            index: raw.gid_index,
            port: u8::try_from(raw.port_num).unwrap_or(0),
            kind: GidKind::from_number(raw.gid_type),
            interface: raw.ndev_ifindex,
        }
    }
}

/// Something that happened to an open device by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// What it happened to.
    pub source: AsyncEventSource,
}

/// What an event happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventSource {
    /// The whole device.
    Device,
    /// A port, by its number.
    Port(u8),
    /// A queue pair, by its [`id`](super::QueuePair::id).
    QueuePair(u64),
    /// A completion queue, by its [`id`](CompletionQueue::id).
    CompletionQueue(u64),
    /// Something that this crate does not make.
    Other,
}

impl AsyncEvent {
    /// # Safety
    ///
    /// The event comes from the library and is not acknowledged yet.
    unsafe fn from_raw(raw: &sys::ibv_async_event) -> Self {
        use AsyncEventKind as Kind;
        let kind = Kind::from_number(raw.event_type);
        let source = match kind {
            Kind::CompletionQueueError => {
                // SAFETY: an event of this type names a completion queue.
                let queue = unsafe { raw.element.cq };
                // SAFETY: the queue is not destroyed before the event is acknowledged; the field does not change.
                let id = unsafe { (*queue).cq_context };
                AsyncEventSource::CompletionQueue(id.addr() as u64)
            }
            Kind::QueuePairFatal
            | Kind::QueuePairRequest
            | Kind::QueuePairAccess
            | Kind::Established
            | Kind::SendQueueDrained
            | Kind::PathMigrated
            | Kind::PathMigrationError
            | Kind::LastReceive => {
                // SAFETY: an event of these types names a queue pair.
                let queue = unsafe { raw.element.qp };
                // SAFETY: as above.
                let id = unsafe { (*queue).qp_context };
                AsyncEventSource::QueuePair(id.addr() as u64)
            }
            Kind::PortActive
            | Kind::PortError
            | Kind::LidChange
            | Kind::PartitionKeyChange
            | Kind::SubnetManagerChange
            | Kind::ClientReregister
            | Kind::GidChange => {
                // SAFETY: an event of these types names a port.
                let port = unsafe { raw.element.port_num };
                AsyncEventSource::Port(u8::try_from(port).unwrap_or(0))
            }
            Kind::DeviceFatal => AsyncEventSource::Device,
            Kind::SharedReceiveError | Kind::SharedReceiveLimit | Kind::WorkQueueFatal | Kind::Other(_) => {
                AsyncEventSource::Other
            }
        };
        Self { kind, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_by_its_kind() {
        let mapped = Gid(Ipv4Addr::new(10, 8, 0, 1).to_ipv6_mapped().octets());
        assert_eq!(mapped.ipv4(), Some(Ipv4Addr::new(10, 8, 0, 1)));
        assert_eq!(mapped.to_string(), "::ffff:10.8.0.1");
        assert!(!mapped.is_link_local() && !mapped.is_zero());
        let local = Gid(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
        assert!(local.is_link_local() && local.ipv4().is_none());
        assert!(Gid([0; 16]).is_zero());
    }

    #[test]
    fn a_rate_comes_from_width_and_speed() {
        let mut port = PortAttributes::from_raw(1, &ibv_port_attr::zeroed());
        assert_eq!(port.gigabits(), None);
        (port.active_width, port.active_speed) = (2, 128);
        assert_eq!(port.gigabits(), Some(400.0));
    }
}
