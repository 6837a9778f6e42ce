//! A scripted backend that moves bytes between engines of this process, as and when a test says.

use std::collections::HashMap;
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use mori_engine::{
    Attachment, Backend, BackendContext, Capabilities, Completer, Engine, EngineBuilder, EngineDesc,
    EngineKey, Error, ErrorKind, MemoryDesc, Notification, Op, Origin, Piece, Region, RegionId, Result,
    Status, TransferId, TransferOptions, TransportBlob,
};

/// What a fake backend does otherwise than well and at once.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Attaching fails.
    pub(crate) attach: Option<Error>,
    /// Registering fails.
    pub(crate) register: Option<Error>,
    /// It cannot carry the memory of this process.
    pub(crate) other_kind: bool,
    /// Peers are refused.
    pub(crate) add_peer: Option<Error>,
    /// No route.
    pub(crate) route: Option<Error>,
    /// No session.
    pub(crate) session: Option<Error>,
    /// Transfers stay in progress until [`Fake::release`].
    pub(crate) hold: bool,
    /// Opening a session meets a test here twice: when it begins and before it ends.
    pub(crate) meeting: Option<Arc<Barrier>>,
    /// With this peer only.
    pub(crate) meeting_for: Option<EngineKey>,
}

/// Everything that a fake backend can do.
pub(crate) const ABLE: Capabilities =
    Capabilities { host_memory: true, device_memory: false, cancel: true, notify: true, peer_loss: true };

type Place = (&'static str, EngineKey);

/// The backends of one test by their names and engines.
#[derive(Clone, Default)]
pub(crate) struct Net(Arc<Mutex<HashMap<Place, Weak<Fake>>>>);

impl Net {
    /// A backend that completes transfers by itself.
    pub(crate) fn fake(&self, name: &'static str) -> Arc<Fake> {
        self.build(name, true, ABLE)
    }

    /// A backend that completes a transfer when it is polled.
    pub(crate) fn polled(&self, name: &'static str) -> Arc<Fake> {
        self.build(name, false, ABLE)
    }

    pub(crate) fn build(&self, name: &'static str, notifier: bool, capabilities: Capabilities) -> Arc<Fake> {
        Arc::new_cyclic(|me| Fake {
            name,
            notifier,
            capabilities,
            net: self.clone(),
            me: me.clone(),
            state: Mutex::default(),
            waited: Condvar::new(),
        })
    }

    /// An engine with one backend, which it gives back as well.
    pub(crate) fn engine(&self, key: &str, name: &'static str) -> (Engine, Arc<Fake>) {
        let fake = self.fake(name);
        (with(key, [&fake]).build().unwrap(), fake)
    }

    fn at(&self, name: &'static str, engine: &EngineKey) -> Option<Arc<Fake>> {
        locked(&self.0).get(&(name, engine.clone())).and_then(Weak::upgrade)
    }
}

/// A builder with these backends.
pub(crate) fn with<const N: usize>(key: &str, backends: [&Arc<Fake>; N]) -> EngineBuilder {
    backends.into_iter().fold(Engine::builder(key), |builder, fake| builder.backend(Arc::<Fake>::clone(fake)))
}

/// Each engine gets to know the others.
pub(crate) fn introduce<const N: usize>(engines: [&Engine; N]) {
    for one in engines {
        for other in engines {
            if one.key() != other.key() {
                one.add_peer(&other.desc()).unwrap();
            }
        }
    }
}

/// Runs `submit` on a thread of its own, and `meanwhile` when the submission is about to open a session; gives back the
/// status of the submission.
pub(crate) fn while_opening(
    fake: &Fake,
    submit: impl FnOnce() -> Status + Send,
    meanwhile: impl FnOnce(),
) -> Status {
    let meeting = Arc::new(Barrier::new(2));
    fake.script(|script| script.meeting = Some(Arc::clone(&meeting)));
    std::thread::scope(|scope| {
        let submission = scope.spawn(submit);
        meeting.wait();
        fake.script(|script| script.meeting = None);
        meanwhile();
        meeting.wait();
        submission.join().unwrap()
    })
}

pub(crate) fn error(kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, message)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Fake {
    name: &'static str,
    notifier: bool,
    capabilities: Capabilities,
    net: Net,
    me: Weak<Fake>,
    state: Mutex<State>,
    waited: Condvar,
}

#[derive(Default)]
struct State {
    script: Script,
    context: Option<BackendContext>,
    down: bool,
    regions: HashMap<RegionId, Region>,
    peers: HashMap<EngineKey, EngineDesc>,
    jobs: HashMap<TransferId, Job>,
    calls: Vec<String>,
    polls: usize,
    options: Vec<TransferOptions>,
}

struct Job {
    completer: Completer,
    work: Work,
}

struct Work {
    op: Op,
    local: Region,
    remote: MemoryDesc,
    pieces: Vec<Piece>,
    options: TransferOptions,
    _pin: mori_core::Pin,
}

impl Fake {
    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut locked(&self.state).script);
    }

    /// What was asked of it, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        locked(&self.state).calls.clone()
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|made| made.starts_with(call)).count()
    }

    pub(crate) fn polls(&self) -> usize {
        locked(&self.state).polls
    }

    /// The options of every submission.
    pub(crate) fn options(&self) -> Vec<TransferOptions> {
        locked(&self.state).options.clone()
    }

    pub(crate) fn in_progress(&self) -> usize {
        locked(&self.state).jobs.len()
    }

    pub(crate) fn regions(&self) -> usize {
        locked(&self.state).regions.len()
    }

    pub(crate) fn is_down(&self) -> bool {
        locked(&self.state).down
    }

    /// Blocks until somebody has polled at least `count` times.
    pub(crate) fn await_polls(&self, count: usize) {
        let mut state = locked(&self.state);
        while state.polls < count {
            state = self.waited.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets transfers pass from now on. With a notifier, those that were held end at once, else when they are polled.
    pub(crate) fn release(&self) {
        let jobs: Vec<Job> = {
            let mut state = locked(&self.state);
            state.script.hold = false;
            if self.notifier { state.jobs.drain().map(|(_, job)| job).collect() } else { Vec::new() }
        };
        jobs.into_iter().for_each(|job| self.finish(job));
    }

    /// Moves the bytes and ends the transfer.
    fn finish(&self, job: Job) {
        let Job { completer, work } = job;
        let result = self.carry(&work, &completer);
        // The memory is free before the status says so.
        drop(work);
        match result {
            Ok(()) => completer.succeed(),
            Err(error) => completer.fail(error),
        };
    }

    fn carry(&self, work: &Work, completer: &Completer) -> Result<()> {
        let from = locked(&self.state).context.clone().ok_or_else(|| self.down())?;
        let target = self.net.at(self.name, &work.remote.engine_key);
        let target = target.ok_or_else(|| error(ErrorKind::PeerLost, "the peer is gone"))?;
        let (region, notifications) = target.grant(&work.remote)?;
        for piece in &work.pieces {
            let mut bytes = vec![0; usize::try_from(piece.length).unwrap()];
            match work.op {
                Op::Read => {
                    region.read_at(piece.remote, &mut bytes)?;
                    work.local.write_at(piece.local, &bytes)?;
                }
                Op::Write => {
                    work.local.read_at(piece.local, &mut bytes)?;
                    region.write_at(piece.remote, &bytes)?;
                }
            }
        }
        match &work.options.notify {
            None => Ok(()),
            Some(notify) => notifications.push(Notification {
                peer: from.engine,
                transfer: completer.id().get(),
                tag: work.options.tag,
                message: notify.message.clone(),
                error: None,
            }),
        }
    }

    /// The target's side: the region, if the key in the blob is right.
    fn grant(&self, desc: &MemoryDesc) -> Result<(Region, mori_engine::NotificationQueue)> {
        let state = locked(&self.state);
        let context = state.context.as_ref().filter(|_| !state.down).ok_or_else(|| self.down())?;
        let stale = || error(ErrorKind::NotFound, "the key is stale; describe the memory again");
        let blob = desc.blob(self.name).ok_or_else(stale)?;
        let found =
            state.regions.values().find(|region| self.blob(context, region) == *blob).ok_or_else(stale)?;
        Ok((found.clone(), context.notifications.clone()))
    }

    fn blob(&self, context: &BackendContext, region: &Region) -> TransportBlob {
        let mut bytes = context.instance.to_vec();
        bytes.extend(region.id().get().to_be_bytes());
        TransportBlob { transport: self.name.to_owned(), version: 1, bytes }
    }

    fn down(&self) -> Error {
        error(ErrorKind::BadState, &format!("the {} backend is shut down", self.name))
    }

    fn call(&self, what: String) -> MutexGuard<'_, State> {
        let mut state = locked(&self.state);
        state.calls.push(what);
        state
    }

    fn end_jobs(&self, why: &Error, which: impl Fn(&Job) -> bool) {
        let mut state = locked(&self.state);
        let ids: Vec<TransferId> =
            state.jobs.iter().filter(|(_, job)| which(job)).map(|(id, _)| *id).collect();
        let jobs: Vec<Job> = ids.iter().filter_map(|id| state.jobs.remove(id)).collect();
        drop(state);
        for Job { completer, work } in jobs {
            drop(work);
            completer.fail(why.clone());
        }
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn has_notifier(&self) -> bool {
        self.notifier
    }

    fn poll_progress(&self, transfer: TransferId) {
        let job = {
            let mut state = locked(&self.state);
            state.polls += 1;
            self.waited.notify_all();
            if self.notifier || state.script.hold { None } else { state.jobs.remove(&transfer) }
        };
        if let Some(job) = job {
            self.finish(job);
        }
    }

    fn cancel(&self, transfer: TransferId) -> Result<()> {
        if !self.capabilities.cancel {
            return Err(Capabilities::unsupported(self.name, "cancelling transfers"));
        }
        self.end_jobs(&error(ErrorKind::Cancelled, "cancelled on request"), |job| {
            job.completer.id() == transfer
        });
        Ok(())
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        let mut state = self.call("attach".to_owned());
        if let Some(error) = state.script.attach.clone() {
            return Err(error);
        }
        if state.context.is_some() {
            return Err(error(ErrorKind::BadState, "attached already"));
        }
        locked(&self.net.0).insert((self.name, context.engine.clone()), self.me.clone());
        let blob =
            TransportBlob { transport: self.name.to_owned(), version: 1, bytes: context.instance.to_vec() };
        state.context = Some(context);
        Ok(Attachment { host: Some("fakehost".to_owned()), port: Some(4242), blob: Some(blob) })
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        let mut state = self.call(format!("register {}", region.id()));
        if let Some(error) = state.script.register.clone() {
            return Err(error);
        }
        if state.script.other_kind {
            return Ok(None);
        }
        state.regions.insert(region.id(), region.clone());
        let context = state.context.as_ref().ok_or_else(|| self.down())?;
        Ok(Some(self.blob(context, region)))
    }

    fn deregister(&self, region: RegionId) {
        self.call(format!("deregister {region}")).regions.remove(&region);
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        let mut state = self.call(format!("add_peer {}", peer.key));
        if let Some(error) = state.script.add_peer.clone() {
            return Err(error);
        }
        if peer.blob(self.name).is_none() {
            return Err(error(ErrorKind::NotFound, "the peer has no such transport"));
        }
        let earlier = state.peers.insert(peer.key.clone(), peer.clone());
        drop(state);
        if earlier.is_some_and(|earlier| earlier.blob(self.name) != peer.blob(self.name)) {
            let lost = error(ErrorKind::PeerLost, "the peer was restarted");
            self.end_jobs(&lost, |job| job.work.remote.engine_key == peer.key);
        }
        Ok(())
    }

    fn remove_peer(&self, peer: &EngineKey) {
        self.call(format!("remove_peer {peer}")).peers.remove(peer);
        let lost = error(ErrorKind::PeerLost, "the peer was removed");
        self.end_jobs(&lost, |job| job.work.remote.engine_key == *peer);
    }

    fn route(&self, _local: &Region, _remote: &MemoryDesc) -> Result<()> {
        match self.call("route".to_owned()).script.route.clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn mori_core::Session>> {
        let state = self.call(format!("session {} {}/{}", local.id(), remote.engine_key, remote.id));
        if let Some(error) = state.script.session.clone() {
            return Err(error);
        }
        let met = state.script.meeting_for.as_ref().is_none_or(|peer| *peer == remote.engine_key);
        let meeting = state.script.meeting.clone().filter(|_| met);
        drop(state);
        if let Some(meeting) = meeting {
            meeting.wait();
            meeting.wait();
        }
        let backend = self.me.upgrade().ok_or_else(|| self.down())?;
        Ok(Arc::new(FakeSession { backend, local: local.clone(), remote: remote.clone() }))
    }

    fn shutdown(&self) {
        self.call("shutdown".to_owned()).down = true;
        self.end_jobs(&self.down(), |_| true);
    }
}

struct FakeSession {
    backend: Arc<Fake>,
    local: Region,
    remote: MemoryDesc,
}

impl mori_core::Session for FakeSession {
    fn submit(&self, op: Op, pieces: &[Piece], options: &TransferOptions) -> Status {
        let fake = &*self.backend;
        let weak: Weak<dyn Backend> = fake.me.clone();
        let (completer, status) = Status::pair(Origin::backend(&weak, fake.notifier, options.tag));
        completer.submit();
        let pin = match self.local.pin() {
            Ok(pin) => pin,
            Err(error) => {
                completer.fail(error);
                return status;
            }
        };
        let work = Work {
            op,
            local: self.local.clone(),
            remote: self.remote.clone(),
            pieces: pieces.to_vec(),
            options: options.clone(),
            _pin: pin,
        };
        let job = Job { completer, work };
        let mut state = fake.call("submit".to_owned());
        state.options.push(options.clone());
        if state.down {
            drop(state);
            job.completer.fail(fake.down());
        } else if state.script.hold || !fake.notifier {
            state.jobs.insert(job.completer.id(), job);
        } else {
            drop(state);
            fake.finish(job);
        }
        status
    }

    fn alive(&self) -> bool {
        true
    }
}
