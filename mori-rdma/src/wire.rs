//! A queue pair of this side that starts transfers, as the flow drives it.

use std::sync::Arc;

use mori_core::{Access, Error, ErrorKind, Op, Region, Result};

use crate::flow::{Message, Posting, Refused, Wire};
use crate::nic::{Nic, Places, Size};
use crate::notes::{self, ANSWER, NOTE};
use crate::send_queue::WorkId;
use crate::sync::Mutex;
use crate::verbs::{
    MemoryRegion, PostError, QueuePair, RecvList, RegionAccess, RemoteAddress, SendFlags, SendList, Sge,
};

/// Memory for messages on their way and for the target's answers to them.
struct Ring {
    slots: u16,
    region: Region,
    memory: MemoryRegion,
}

/// The fields are dropped in this order: the queue pair before the memory that it may touch.
pub(crate) struct Active {
    pub(crate) number: u32,
    pub(crate) pair: QueuePair,
    ring: Option<Ring>,
    list: Mutex<(SendList, Vec<Sge>)>,
    _places: Places,
    pub(crate) nic: Arc<Nic>,
}

impl Active {
    /// A queue pair that is ready to be connected. With `slots`, it has receives posted for the target's answers.
    pub(crate) fn new(nic: &Arc<Nic>, number: u32, slots: u16) -> Result<Self> {
        let size = Size { sends: nic.limits.requests, receives: u32::from(slots) };
        let (pair, places) = nic.queue_pair(size)?;
        let ring = if slots > 0 { Some(Ring::new(nic, slots)?) } else { None };
        let active = Self {
            number,
            pair,
            ring,
            list: Mutex::new((SendList::new(), Vec::new())),
            _places: places,
            nic: Arc::clone(nic),
        };
        if slots > 0 {
            let mut list = RecvList::new();
            for slot in 0..slots {
                active.receive(&mut list, slot)?;
            }
            active.pair.post_receive(&mut list).map_err(|refused| Error::from(refused.error))?;
        }
        Ok(active)
    }

    fn receive(&self, list: &mut RecvList, slot: u16) -> Result<()> {
        if let Some(ring) = &self.ring {
            let sge = ring.memory.sge(ring.answer(slot), ANSWER as u32)?;
            list.receive(WorkId::receive(self.number, slot).to_number(), &[sge]);
        }
        Ok(())
    }

    /// Reads an answer that has arrived, and posts its receive anew.
    pub(crate) fn answered(&self, slot: u16) -> Result<notes::Answer> {
        let missing = || Error::new(ErrorKind::BadState, "an answer where none is expected");
        let ring = self.ring.as_ref().ok_or_else(missing)?;
        let mut bytes = [0; ANSWER];
        ring.region.read_at(ring.answer(slot), &mut bytes)?;
        let answer = notes::Answer::decode(&bytes);
        let mut list = RecvList::new();
        self.receive(&mut list, slot)?;
        self.pair.post_receive(&mut list).map_err(|refused| Error::from(refused.error))?;
        answer
    }
}

impl Ring {
    fn new(nic: &Nic, slots: u16) -> Result<Self> {
        let region = Region::zeroed(usize::from(slots) * (NOTE + ANSWER), Access::LOCAL)?;
        let memory = nic.domain.register(&region, RegionAccess::LOCAL_WRITE)?;
        Ok(Self { slots, region, memory })
    }

    fn note(slot: u16) -> u64 {
        u64::from(slot) * NOTE as u64
    }

    fn answer(&self, slot: u16) -> u64 {
        Self::note(self.slots) + u64::from(slot) * ANSWER as u64
    }
}

/// What the flow makes of a list that was taken only in part.
pub(crate) fn refused(error: &PostError) -> Refused {
    Refused { accepted: error.accepted, full: error.is_full(), error: Error::from(error.error.clone()) }
}

fn not_posted(error: Error) -> Refused {
    Refused { accepted: 0, full: false, error }
}

impl Wire for Active {
    fn post(&self, posting: &Posting<'_>) -> Result<(), Refused> {
        let mut guard = self.list.lock();
        let (list, pieces) = &mut *guard;
        list.clear();
        let keys = &posting.keys;
        for (index, (request, segments)) in (0_u64..).zip(posting.chain.iter()) {
            pieces.clear();
            pieces.extend(segments.iter().map(|segment| Sge {
                address: keys.local_address.wrapping_add(segment.local),
                length: segment.length,
                key: keys.local_key,
            }));
            let remote = RemoteAddress {
                address: keys.remote_address.wrapping_add(request.remote),
                key: keys.remote_key,
            };
            let id = posting.first_id + index;
            match posting.op {
                Op::Read => list.read(id, pieces, remote, SendFlags::NONE),
                Op::Write => list.write(id, pieces, remote, SendFlags::NONE),
            }
        }
        list.flag_last(SendFlags::SIGNALED);
        self.pair.post_send(list).map_err(|error| refused(&error))
    }

    fn post_message(&self, message: &Message<'_>) -> Result<(), Refused> {
        let missing = || Error::new(ErrorKind::Unsupported, "this queue pair carries no messages");
        let ring = self.ring.as_ref().ok_or_else(|| not_posted(missing()))?;
        let bytes = notes::encode(message);
        let offset = Ring::note(message.slot);
        ring.region.write_at(offset, &bytes).map_err(not_posted)?;
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let sge = ring.memory.sge(offset, length).map_err(|error| not_posted(error.into()))?;
        let mut guard = self.list.lock();
        let list = &mut guard.0;
        list.clear();
        list.send(message.id, &[sge], None, SendFlags::SIGNALED | SendFlags::FENCE);
        self.pair.post_send(list).map_err(|error| refused(&error))
    }

    fn post_nothing(&self, id: u64) -> Result<(), Refused> {
        let mut guard = self.list.lock();
        let list = &mut guard.0;
        list.clear();
        list.write(id, &[], RemoteAddress { address: 0, key: 0 }, SendFlags::SIGNALED);
        self.pair.post_send(list).map_err(|error| refused(&error))
    }

    fn fail(&self) {
        if let Err(error) = self.pair.to_error() {
            // Its requests do not come back then; it is destroyed instead.
            tracing::debug!(%error, device = %self.nic.name, "a queue pair could not be moved to its error state");
        }
    }

    fn message_slots(&self) -> u16 {
        self.ring.as_ref().map_or(0, |ring| ring.slots)
    }
}
