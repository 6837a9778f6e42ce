//! What peers ask of this engine over their control connections.

use std::sync::Arc;

use mori_core::{EngineKey, Error, ErrorKind, Notification, Result, Tag};

use crate::control::{
    ConnectionId, Endpoint, EndpointRequest, FailureNote, LinkId, Peer, Protocol, RegionKeys, Service,
};
use crate::core::{Core, Owner, Passives, shut};
use crate::passive::{self, Passive};

/// The most lanes that one connection may have made.
const MAX_LANES: usize = 4096;

impl Core {
    /// Takes passive ends out of the tables and destroys them: nothing lands through them any more when this returns.
    fn end_passives(&self, ends: Vec<Arc<Passive>>) {
        for passive in ends {
            self.forget_queue(passive.number);
            if let Err(error) = passive.end() {
                tracing::debug!(%error, "a passive end could not be moved to its error state");
            }
        }
    }

    /// Ends what existing peers of this name have made.
    pub(crate) fn end_existing(&self, key: &EngineKey) {
        let ends = self.passives.lock().of_existing.remove(key).unwrap_or_default();
        self.end_passives(ends);
    }

    /// Ends those for which `which` holds.
    pub(crate) fn end_passives_where(&self, which: impl Fn(&Passive) -> bool) {
        let ended: Vec<Arc<Passive>> = {
            let mut passives = self.passives.lock();
            let Passives { by_connection, of_existing } = &mut *passives;
            let all = by_connection.values_mut().chain(of_existing.values_mut());
            all.flat_map(|ends| ends.extract_if(.., |passive| which(passive)).collect::<Vec<_>>()).collect()
        };
        self.end_passives(ended);
    }

    pub(crate) fn end_all_passives(&self) {
        let all = std::mem::take(&mut *self.passives.lock());
        let ends = all.by_connection.into_values().chain(all.of_existing.into_values()).flatten();
        self.end_passives(ends.collect());
    }

    /// How many passive ends there are.
    pub(crate) fn passive_ends(&self) -> Vec<Arc<Passive>> {
        let passives = self.passives.lock();
        passives.by_connection.values().chain(passives.of_existing.values()).flatten().cloned().collect()
    }
}

impl Service for Core {
    fn register_endpoint(
        &self,
        connection: ConnectionId,
        peer: &Peer,
        request: &EndpointRequest,
    ) -> Result<Endpoint> {
        if self.is_shut() {
            return Err(shut());
        }
        let index = usize::try_from(request.device).unwrap_or(usize::MAX);
        let nic = self.nics.get(index).ok_or_else(|| {
            let words = format!("there is no device {index} here; there are {}", self.nics.len());
            Error::new(ErrorKind::InvalidArgument, words)
        })?;
        let own = peer.protocol() == Protocol::Own;
        let slots = if own { self.slots() } else { 0 };
        let owner = passive::Owner { peer: peer.key.clone(), lane: request.lane };
        let number = self.fresh_number();
        let (passive, endpoint) = Passive::new(nic, number, slots, owner, &request.endpoint)?;
        let passive = Arc::new(passive);
        // Its first message may come as soon as the peer knows of it, so it is known here before.
        self.owners.write().insert(number, Owner::Passive(Arc::clone(&passive)));
        let kept = {
            let mut passives = self.passives.lock();
            let ends = if own {
                passives.by_connection.entry(connection).or_default()
            } else {
                passives.of_existing.entry(peer.key.clone()).or_default()
            };
            let room = ends.len() < MAX_LANES && !self.is_shut();
            if room {
                ends.push(Arc::clone(&passive));
            }
            room
        };
        if !kept {
            self.end_passives(vec![passive]);
            let words = format!("engine {} has {MAX_LANES} queue pairs here already", peer.key);
            return Err(Error::new(ErrorKind::ResourceExhausted, words));
        }
        Ok(endpoint)
    }

    fn region(&self, _peer: &Peer, device: u32, memory: u64) -> Result<RegionKeys> {
        let unknown = || {
            let words = format!("region {memory} is not registered here (any more) with device {device}");
            Error::new(ErrorKind::NotFound, words)
        };
        let registered = self.regions.by_number(memory).ok_or_else(unknown)?;
        let index = usize::try_from(device).unwrap_or(usize::MAX);
        let keys = registered.keys.get(index).copied().flatten().ok_or_else(unknown)?;
        let access = registered.region.access();
        if !access.remote_read && !access.remote_write {
            return Err(unknown());
        }
        Ok(RegionKeys {
            address: registered.region.address() as u64,
            // Of no use to anybody else.
            lkey: 0,
            rkey: keys.remote,
            length: registered.region.len() as u64,
        })
    }

    fn retire_endpoint(&self, connection: ConnectionId, lane: u64) -> Result<()> {
        let ended: Vec<Arc<Passive>> = {
            let mut passives = self.passives.lock();
            match passives.by_connection.get_mut(&connection) {
                Some(ends) => ends.extract_if(.., |passive| passive.owner.lane == lane).collect(),
                None => Vec::new(),
            }
        };
        self.end_passives(ended);
        Ok(())
    }

    fn note_failure(&self, _connection: ConnectionId, peer: &Peer, note: FailureNote) {
        let notification = Notification {
            peer: peer.key.clone(),
            transfer: note.transfer,
            tag: Tag(note.tag),
            message: note.message,
            error: Some(note.error),
        };
        let pushed = crate::guarded(|| self.context.notifications.push(notification)).unwrap_or(Ok(()));
        if let Err(error) = pushed {
            tracing::warn!(peer = %peer.key, %error, "a failure could not be reported");
        }
    }

    fn closed(&self, connection: ConnectionId, _peer: &Peer) {
        let ends = self.passives.lock().by_connection.remove(&connection).unwrap_or_default();
        self.end_passives(ends);
    }

    fn link_lost(&self, link: LinkId, cause: &Error) {
        let peer = self.links.lock().get(&link).and_then(std::sync::Weak::upgrade);
        if let (Some(peer), Some(core)) = (peer, self.own.upgrade()) {
            peer.link_lost(&core, link, cause);
        }
    }
}
