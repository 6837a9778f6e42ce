//! The target's end of a peer's lane: it serves reads and writes by itself, takes messages, and answers them.

use std::sync::Arc;

use mori_core::{Access, EngineKey, Error, Notification, NotificationQueue, Region, Result, Tag};

use crate::control::Endpoint;
use crate::nic::{Nic, Places, Size, fresh_psn};
use crate::notes::{ANSWER, Answer, NOTE, Note};
use crate::send_queue::{Kind, WorkId};
use crate::verbs::{MemoryRegion, QueuePair, RecvList, RegionAccess, SendFlags, SendList};

/// Whose lane it is.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) peer: EngineKey,
    /// The initiator's number of the lane.
    pub(crate) lane: u64,
}

struct Ring {
    slots: u16,
    region: Region,
    memory: MemoryRegion,
}

/// The fields are dropped in this order: the queue pair before the memory that it may touch.
pub(crate) struct Passive {
    pub(crate) number: u32,
    pub(crate) owner: Owner,
    pub(crate) pair: QueuePair,
    ring: Option<Ring>,
    _places: Places,
    pub(crate) nic: Arc<Nic>,
}

impl Passive {
    /// Makes the end and connects it; it serves from here on. Without `slots`, it takes no messages. Also gives what the peer must know.
    pub(crate) fn new(
        nic: &Arc<Nic>,
        number: u32,
        slots: u16,
        owner: Owner,
        other: &Endpoint,
    ) -> Result<(Self, Endpoint)> {
        let size = Size { sends: (2 * u32::from(slots)).max(1), receives: u32::from(slots) };
        let (pair, places) = nic.queue_pair(size)?;
        let ring = match slots {
            0 => None,
            slots => {
                let region = Region::zeroed(usize::from(slots) * (NOTE + ANSWER), Access::LOCAL)?;
                let memory = nic.domain.register(&region, RegionAccess::LOCAL_WRITE)?;
                Some(Ring { slots, region, memory })
            }
        };
        let passive = Self { number, owner, pair, ring, _places: places, nic: Arc::clone(nic) };
        passive.post_receives(0..slots)?;
        let psn = fresh_psn();
        nic.connect(&passive.pair, psn, other)?;
        let mut endpoint = nic.endpoint(&passive.pair, psn);
        endpoint.mtu = u8::try_from(nic.mtu_with(other).number()).unwrap_or(endpoint.mtu);
        Ok((passive, endpoint))
    }

    fn post_receives(&self, slots: std::ops::Range<u16>) -> Result<()> {
        let Some(ring) = &self.ring else { return Ok(()) };
        let mut list = RecvList::new();
        for slot in slots {
            let sge = ring.memory.sge(u64::from(slot) * NOTE as u64, NOTE as u32)?;
            list.receive(WorkId::receive(self.number, slot).to_number(), &[sge]);
        }
        self.pair.post_receive(&mut list).map_err(|refused| refused.error.into())
    }

    /// A message has arrived in a receive: hands it to the application, and answers.
    ///
    /// # Errors
    ///
    /// The peer has sent something that is no message, or cannot be answered; the end is of no use any more.
    pub(crate) fn received(&self, slot: u16, length: u32, inbox: &NotificationQueue) -> Result<()> {
        let Some(ring) = &self.ring else { return Ok(()) };
        let mut bytes = vec![0; NOTE.min(length as usize)];
        ring.region.read_at(u64::from(slot) * NOTE as u64, &mut bytes)?;
        let note = Note::decode(&bytes)?;
        // The receive is there again before the peer learns that it may send once more.
        self.post_receives(slot..slot.saturating_add(1))?;
        let notification = Notification {
            peer: self.owner.peer.clone(),
            transfer: note.transfer,
            tag: Tag(note.tag),
            message: note.message,
            error: note.error,
        };
        // Readers are woken when the message is in the queue already, and what they do is not ours to fail at.
        let result = crate::guarded(|| inbox.push(notification)).unwrap_or(Ok(()));
        self.answer(ring, &Answer { slot: note.slot, transfer: note.transfer, result })
    }

    fn answer(&self, ring: &Ring, answer: &Answer) -> Result<()> {
        // The initiator has at most as many messages on their way as there are slots, and has each one's answer before it
        // uses that slot again, so that nobody else uses these bytes.
        let place = answer.slot % ring.slots;
        let offset = u64::from(ring.slots) * NOTE as u64 + u64::from(place) * ANSWER as u64;
        ring.region.write_at(offset, &answer.encode())?;
        let sge = ring.memory.sge(offset, ANSWER as u32)?;
        let mut list = SendList::new();
        let id = WorkId { kind: Kind::Send, queue: self.number, slot: place, generation: 0, index: 0 };
        list.send(id.to_number(), &[sge], None, SendFlags::SIGNALED);
        self.pair.post_send(&mut list).map_err(|refused| refused.error.into())
    }

    /// Ends it: nothing that the peer sends lands any more.
    pub(crate) fn end(&self) -> Result<()> {
        self.pair.to_error().map_err(Error::from)
    }
}
