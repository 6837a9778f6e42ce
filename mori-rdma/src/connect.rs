//! Making lanes: a queue pair here, its other end at the peer, and the way between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mori_core::{Error, ErrorKind, MemoryKind, Result};

use crate::control::{EndpointRequest, Link, Protocol, Topo};
use crate::core::{Core, Owner};
use crate::flow::Lane;
use crate::nic::{Nic, fresh_psn};
use crate::peer::Peer;
use crate::sync::{Condvar, Mutex};
use crate::verbs::QueuePair;
use crate::wire::Active;

/// How long to wait before an address is resolved again that did not resolve.
const PAUSE: Duration = Duration::from_millis(50);

/// Where memory lies as far as a lane is concerned, which serves all.
const ANYWHERE: Topo = Topo { device: -1, location: MemoryKind::Host, numa: -1 };

impl Peer {
    /// Makes the lanes that a path lacks. Blocks; runs as an errand.
    pub(crate) fn connect(self: &Arc<Self>, core: &Arc<Core>, path: usize) {
        let (missing, remote) = self.look(|flow| (flow.missing(path), flow.remote_of(path).unwrap_or(0)));
        let until = core.clock.now() + core.config.connect_timeout;
        let mut lanes = Vec::new();
        let mut failure = None;
        let link = match self.link(core, core.config.connect_timeout) {
            Ok(link) => Some(link),
            Err(error) => {
                failure = Some(error);
                None
            }
        };
        if let (Some(link), Some(nic)) = (&link, core.nics.get(path)) {
            for _ in 0..missing {
                match self.lane(core, nic, remote, link, until) {
                    Ok(lane) => lanes.push(lane),
                    Err(error) => {
                        failure = Some(
                            error.context(format!("connecting device {} with engine {}", nic.name, self.key)),
                        );
                        break;
                    }
                }
            }
        }
        if let Some(error) = &failure {
            tracing::warn!(peer = %self.key, path, %error, "a path could not be made");
        }
        // For a transfer, a peer that cannot be reached in time is lost.
        let failure = failure.map(|error| match error.kind() {
            ErrorKind::TimedOut => Error::new(ErrorKind::PeerLost, error.message()),
            _ => error,
        });
        self.drive(core, |flow, now, out| flow.connected(path, lanes, failure, now, out));
        if let Some(link) = link {
            self.check_link(core, &link);
        }
    }

    fn lane(
        self: &Arc<Self>,
        core: &Arc<Core>,
        nic: &Arc<Nic>,
        remote: usize,
        link: &Arc<Link>,
        until: Instant,
    ) -> Result<Lane> {
        let own = link.peer().protocol() == Protocol::Own;
        let number = core.fresh_number();
        let slots = if own { core.slots() } else { 0 };
        let active = Arc::new(Active::new(nic, number, slots)?);
        let psn = fresh_psn();
        let request = EndpointRequest {
            local: ANYWHERE,
            remote: ANYWHERE,
            device: u32::try_from(remote).unwrap_or(u32::MAX),
            endpoint: nic.endpoint(&active.pair, psn),
            nic_rank: i32::try_from(nic.index).unwrap_or(-1),
            rail: i32::try_from(nic.index).unwrap_or(-1),
            lane: if own { u64::from(number) } else { 0 },
        };
        let deadline = mori_core::Deadline::At(until);
        let other = link.register_endpoint(&request, deadline)?;
        core.owners.write().insert(number, Owner::Active(Arc::clone(self), Arc::clone(&active)));
        let made = patiently(core, until, || nic.connect(&active.pair, psn, &other), &active.pair);
        if let Err(error) = made {
            core.forget_queue(number);
            if own {
                self.forget_lane(core, link, number);
            }
            return Err(error);
        }
        let depth = active.pair.capacities().send_requests.min(nic.limits.requests);
        Ok(Lane::new(
            number,
            nic.index,
            remote,
            usize::try_from(depth).unwrap_or(1),
            core.config.window_bytes,
            active,
        ))
    }
}

/// Connects, trying again while the peer's address does not resolve, as right after a link has come back.
fn patiently(core: &Core, until: Instant, connect: impl Fn() -> Result<()>, pair: &QueuePair) -> Result<()> {
    loop {
        let error = match connect() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let again =
            error.kind() == ErrorKind::TimedOut && core.clock.now() + PAUSE < until && !core.is_shut();
        if !again {
            return Err(error.context(format!("queue pair {}", pair.number())));
        }
        rest(core.clock.now() + PAUSE);
    }
}

/// Waits for a time to come.
fn rest(until: Instant) {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let mut guard = mutex.lock();
    while !condvar.wait_until(&mut guard, until).timed_out() {}
}
