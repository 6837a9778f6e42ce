//! Sessions: a pair of regions, and the submission of transfers between them.

use std::sync::Arc;

use mori_core::{
    Capabilities, EngineKey, Error, ErrorKind, MemoryDesc, Op, Origin, Piece, Pin, Region, Result, Session,
    Status, TransferOptions, check, merge,
};

use crate::blob::{MemoryBlob, NAME};
use crate::config::Completion;
use crate::device::{Device, Lent};
use crate::exports::{device_of, stale};
use crate::hip::{Current, Landings, Span, Stream};
use crate::peer::{Hold, Link, Peer, lost, no_handle};
use crate::shared::{Inner, Joined};
use crate::topology::same_hive;
use crate::transfer::{Looker, Probe, Running, Transfer};

/// A local region and a remote one.
pub(crate) struct XgmiSession {
    inner: Arc<Inner>,
    local: Region,
    peer: EngineKey,
    remote: MemoryBlob,
}

/// A way between two regions that was found.
pub(crate) struct Way {
    peer: Arc<Peer>,
    remote: MemoryBlob,
    device: Arc<Device>,
}

/// Finds the way, or says why there is none.
pub(crate) fn find_way(inner: &Inner, joined: &Joined, local: &Region, remote: &MemoryDesc) -> Result<Way> {
    let device = device_of(local, &joined.devices)?;
    let peer = known(inner, &remote.engine_key)?;
    if let Some(node) = &peer.elsewhere {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "engine {} is on node {node}, this one on {}; memory is shared within a node only (MORI_NODE_ID overrides what a node is)",
                peer.key, joined.context.node_id
            ),
        ));
    }
    let blob = remote.blob(NAME).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!("the remote memory is not registered with the {NAME} transport"),
        )
    })?;
    let blob = MemoryBlob::unpack(blob)?;
    same_incarnation(&peer, &blob)?;
    if !blob.access.remote_read && !blob.access.remote_write {
        return Err(Error::new(ErrorKind::AccessDenied, "the region grants peers no access"));
    }
    reachable(inner, joined, &peer, &blob, device)?;
    Ok(Way { device: Arc::clone(device), peer, remote: blob })
}

/// Whether the local device can address the remote one.
fn reachable(inner: &Inner, joined: &Joined, peer: &Peer, blob: &MemoryBlob, device: &Device) -> Result<()> {
    match &peer.link {
        Link::Here(_) if !peer.is_alive() => return Err(lost(&peer.key)),
        Link::Process(Err(error)) => return Err(error.clone()),
        Link::Process(Ok(_)) if blob.shared.is_none() => return Err(no_handle()),
        _ => {}
    }
    let bus_id = crate::hip::normalise_bus_id(&blob.bus_id);
    let there = joined.devices.iter().find(|device| device.bus_id == bus_id).map(|device| device.id);
    let cannot = |why: &str| {
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "device {} ({}) cannot address {} of engine {}: {why}",
                device.id, device.bus_id, blob.bus_id, peer.key
            ),
        ))
    };
    match there {
        Some(there) if device.hip.can_access(device.id, there)? => Ok(()),
        Some(_) => cannot("there is no peer access between them"),
        None if same_hive(&inner.config.sysfs, &device.bus_id, &blob.bus_id) => Ok(()),
        None => {
            cannot("it is hidden from this process, and the kernel does not say that both are in one hive")
        }
    }
}

fn known(inner: &Inner, key: &EngineKey) -> Result<Arc<Peer>> {
    inner.peer(key).filter(|peer| !peer.is_gone()).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!("engine {key} is not known to the {NAME} transport; add it as a peer"),
        )
    })
}

fn same_incarnation(peer: &Peer, blob: &MemoryBlob) -> Result<()> {
    if blob.incarnation == peer.instance.incarnation {
        return Ok(());
    }
    Err(stale().context(format_args!("the descriptor is not of the engine {} that is known here", peer.key)))
}

impl Way {
    /// Opens a session. Peer access is enabled and the allocation mapped already now, so that the first transfer is like
    /// the others.
    pub(crate) fn open(self, inner: &Arc<Inner>, local: &Region) -> Result<XgmiSession> {
        let current = self.device.hip.on(self.device.id)?;
        match self.peer.hold(&self.remote, &self.device, &current) {
            // A region that is gone by now is the transfers' to report, as one that goes later.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        drop(current);
        // The keeper looks after what is mapped.
        inner.landings.kick();
        Ok(XgmiSession {
            inner: Arc::clone(inner),
            local: local.clone(),
            peer: self.peer.key.clone(),
            remote: self.remote,
        })
    }
}

impl Session for XgmiSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        self.try_submit(op, pieces, options).unwrap_or_else(|error| Status::failed(options.tag, error))
    }

    fn alive(&self) -> bool {
        let known = self.inner.is_open().then(|| self.inner.peer(&self.peer)).flatten();
        known.is_some_and(|peer| peer.instance.incarnation == self.remote.incarnation && peer.is_alive())
    }
}

/// What is queued so far.
struct Queued {
    probe: Probe,
    failure: Option<Error>,
}

/// Why not every copy is queued.
struct Broken {
    /// Whether some of them are, or may be.
    queued: bool,
    error: Error,
}

/// Copies in one call of the runtime's.
const AT_ONCE: usize = 1024;

/// Queues copies: many at once from `threshold` on, if the library can, else one by one.
fn queue_copies(
    lane: &Stream,
    current: &Current<'_>,
    copies: &[(Span, Span)],
    threshold: usize,
) -> std::result::Result<(), Broken> {
    let mut done = 0;
    if copies.len() >= threshold {
        for chunk in copies.chunks(AT_ONCE) {
            match lane.copy_many(current, chunk) {
                Ok(true) => done += chunk.len(),
                Ok(false) => break,
                Err((which, failure)) => {
                    let what = match which {
                        Some(index) => format!("copy {} of {} was not queued", done + index, copies.len()),
                        None => format!(
                            "copies {done} to {} of {} were not queued",
                            done + chunk.len() - 1,
                            copies.len()
                        ),
                    };
                    return Err(Broken { queued: true, error: Error::from(failure).context(what) });
                }
            }
        }
    }
    for (index, (to, from)) in copies.iter().enumerate().skip(done) {
        lane.copy(current, *to, *from).map_err(|failure| {
            let what = format!("copy {index} of {} was not queued", copies.len());
            Broken { queued: index > 0, error: Error::from(failure).context(what) }
        })?;
    }
    Ok(())
}

impl XgmiSession {
    fn try_submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Result<Status> {
        // Until the transfer is in the table: see the protocol in `shared`.
        let gate = self.inner.enter()?;
        if options.notify.is_some() {
            return Err(Capabilities::unsupported(NAME, "messages for the target"));
        }
        if options.deadline.is_some() {
            return Err(Capabilities::unsupported(
                NAME,
                "deadlines: a copy that is queued on a device cannot be stopped",
            ));
        }
        let device = device_of(&self.local, &gate.joined.devices)?;
        let pin = self.local.pin()?;
        let peer = known(&self.inner, &self.peer)?;
        same_incarnation(&peer, &self.remote)?;
        self.allowed(op)?;
        let bytes = check(pieces, options, self.local.len() as u64, self.remote.size)?;
        let pieces = merge(pieces);
        if pieces.is_empty() {
            return Ok(Status::succeeded(options.tag));
        }
        let current = device.hip.on(device.id)?;
        let (span, hold) = peer.hold(&self.remote, device, &current)?;
        let copies = self.copies(op, &pieces, span)?;
        let lane = peer.lane(device, &current)?;
        let event = self.event(device, &current)?;
        let queued = self.queue(&copies, &current, lane, event)?;
        Ok(self.started(&current, &peer, (pin, hold), queued, bytes, options))
    }

    /// Where each piece goes, and where it comes from. They were checked; a region that is shorter than its descriptor says is the
    /// owner's mistake.
    fn copies(&self, op: Op, pieces: &[Piece], remote: Span) -> Result<Vec<(Span, Span)>> {
        let local = Span::of(&self.local);
        let ends = |piece: &Piece| {
            let here = local.part(piece.local, piece.length)?;
            let there = remote.part(piece.remote, piece.length)?;
            Some(if op == Op::Read { (here, there) } else { (there, here) })
        };
        let beyond = || Error::new(ErrorKind::InvalidArgument, "a piece reaches past the end of the memory");
        pieces.iter().map(|piece| ends(piece).ok_or_else(beyond)).collect()
    }

    fn allowed(&self, op: Op) -> Result<()> {
        let access = self.remote.access;
        let (granted, what) = match op {
            Op::Read => (access.remote_read, "read"),
            Op::Write => (access.remote_write, "write"),
        };
        if granted {
            return Ok(());
        }
        Err(Error::new(ErrorKind::AccessDenied, format!("the region's owner does not let peers {what} it")))
    }

    /// An event; at the limit, after looking whether some are free that nobody has noticed.
    fn event(&self, device: &Arc<Device>, current: &Current<'_>) -> Result<Arc<Lent>> {
        match device.event(current) {
            Err(error) if error.kind() == ErrorKind::ResourceExhausted && error.cause().is_none() => {
                self.inner.sweep(Looker::Keeper(mori_core::Clock::system().now()));
                device.event(current)
            }
            other => other,
        }
    }

    /// Queues the copies and, behind them, the event.
    ///
    /// # Errors
    ///
    /// If nothing was queued. Later failures are for the transfer, which ends when the queued copies are over.
    fn queue(
        &self,
        copies: &[(Span, Span)],
        current: &Current<'_>,
        lane: Arc<Stream>,
        event: Arc<Lent>,
    ) -> Result<Queued> {
        let failure = match queue_copies(&lane, current, copies, self.inner.config.batch_threshold) {
            Ok(()) => None,
            Err(Broken { queued: false, error }) => return Err(error),
            Err(Broken { error, .. }) => Some(error),
        };
        let recorded = event.event().map_or(Ok(()), |event| event.record(current, &lane));
        let probe = match recorded {
            Ok(()) => Probe::Event(event, lane),
            Err(error) => {
                return Ok(Queued { probe: Probe::Stream(lane), failure: failure.or(Some(error.into())) });
            }
        };
        Ok(Queued { probe, failure })
    }

    /// Makes a transfer of what is queued.
    fn started(
        &self,
        current: &Current<'_>,
        peer: &Arc<Peer>,
        (pin, hold): (Pin, Hold),
        Queued { probe, failure }: Queued,
        bytes: u64,
        options: &TransferOptions,
    ) -> Status {
        let calls_back = self.inner.config.completion == Completion::HostCallback;
        let origin = match self.inner.outer.get() {
            Some(outer) => Origin::backend(outer, calls_back, options.tag),
            None => Origin { tag: options.tag, ..Origin::detached() },
        };
        let (completer, status) = Status::pair(origin);
        // A fresh status takes every first step.
        let _ = completer.submit();
        let lane = match &probe {
            Probe::Event(_, lane) => Some(Arc::clone(lane)),
            Probe::Stream(_) => None,
        };
        let running = Running { probe, pin, hold, token: None };
        let transfer = Arc::new(Transfer::new(completer, Arc::clone(peer), bytes, running, failure));
        self.inner.insert(&transfer);
        // A removal of the peer that came before the insertion has not seen the transfer.
        if peer.is_gone() {
            transfer.doom(lost(&peer.key));
        }
        if let Some(lane) = lane.filter(|_| calls_back) {
            let token = self.inner.landings.expect(transfer.id());
            if !transfer.set_token(token) {
                Landings::forget(token);
            } else if let Err(failure) = lane.call_back(current, token) {
                // The keeper finds the end of the copies by itself, only later.
                tracing::warn!(%failure, transfer = %transfer.id(), "no callback");
                Landings::forget(token);
            }
        }
        status
    }
}
