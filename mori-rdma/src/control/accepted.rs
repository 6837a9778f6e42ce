//! A connection that a peer has made: the handshake, or at once the protocol of existing peers; requests, notes.

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use mio::Registry;
use mio::net::TcpStream;
use mori_core::{Error, ErrorKind, Result, Secret};

use super::handshake::{self, Nonces};
use super::message::{
    Answer, Frame, Request, ToTarget, answer, kind, legacy_region, legacy_register, legacy_request, to_target,
};
use super::pool::Job;
use super::stream::{Look, MAX_UNSENT, Stream, TURN_FRAMES, ended, stalled};
use super::watch::{Command, Shared, Turn};
use super::{ConnectionId, EndpointRequest, FailureNote, Peer, Service};

/// A connection with this many requests under way is not read until some are answered.
const MAX_ASKED: usize = 16;

enum Phase {
    /// Nothing has come yet.
    First,
    Proof(Nonces),
    Identity,
    Own(Arc<Peer>),
    Legacy,
}

pub(super) struct Accepted {
    token: usize,
    stream: Stream,
    address: IpAddr,
    phase: Phase,
    /// Until when the handshake has to be done.
    give_up: Instant,
    /// Jobs that are not done.
    asked: usize,
    /// Who has asked for something, if anybody has.
    peer: Option<Arc<Peer>>,
    /// A request has failed that can only be answered by the end of the connection.
    failed: bool,
}

impl Accepted {
    pub(super) fn new(
        token: usize,
        socket: TcpStream,
        address: IpAddr,
        registry: &Registry,
        shared: &Shared,
        now: Instant,
    ) -> io::Result<Self> {
        let stream = Stream::new(socket, registry, token)?;
        stream.tune(shared.config.peer_timeout);
        Ok(Self {
            token,
            stream,
            address,
            phase: Phase::First,
            give_up: now + shared.config.frame_timeout,
            asked: 0,
            peer: None,
            failed: false,
        })
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether it is in the handshake.
    pub(super) fn greeting(&self) -> bool {
        matches!(self.phase, Phase::First | Phase::Proof(_) | Phase::Identity)
    }

    pub(super) fn readable(&mut self) {
        self.stream.readable();
    }

    /// Whether it is not read for now.
    fn paused(&self) -> bool {
        self.asked >= MAX_ASKED || self.stream.unsent() > MAX_UNSENT
    }

    pub(super) fn turn(&mut self, turn: &mut Turn<'_>) -> Result<bool> {
        let mut more = true;
        for _ in 0..TURN_FRAMES {
            if self.failed {
                self.stream.flush()?;
                return Err(Error::new(ErrorKind::BadState, "a request was refused"));
            }
            if self.paused() {
                more = false;
                break;
            }
            match self.stream.look(turn.scratch, turn.now)? {
                Look::Frame(frame) => self.frame(turn, &frame)?,
                Look::Empty => {
                    more = false;
                    break;
                }
                Look::End => return Err(ended()),
            }
        }
        self.stream.flush()?;
        Ok(more)
    }

    pub(super) fn deadline(&self, shared: &Shared) -> Option<Instant> {
        let frame = self.stream.begun().and_then(|begun| begun.checked_add(shared.config.frame_timeout));
        if self.greeting() {
            return Some(frame.map_or(self.give_up, |frame| frame.min(self.give_up)));
        }
        // What waits because this side does not read is not late.
        if self.paused() { None } else { frame }
    }

    pub(super) fn expired(&mut self, turn: &mut Turn<'_>) -> Result<()> {
        // What has arrived in time may not have been looked at.
        self.turn(turn)?;
        match self.deadline(turn.shared) {
            Some(at) if at <= turn.now => {
                Err(stalled(if self.greeting() { "the handshake" } else { "the rest of a frame" }))
            }
            _ => Ok(()),
        }
    }

    fn frame(&mut self, turn: &mut Turn<'_>, frame: &Frame) -> Result<()> {
        let shared = turn.shared;
        let secret = shared.config.secret.as_ref();
        match &self.phase {
            Phase::First if matches!(frame.kind, kind::LEGACY_REGISTER | kind::LEGACY_REGION) => {
                if secret.is_some() {
                    return Err(Error::new(
                        ErrorKind::AccessDenied,
                        format!(
                            "{} speaks a protocol without the shared secret that is configured here; update it, or take the \
                             secret out of the configuration",
                            self.address
                        ),
                    ));
                }
                self.phase = Phase::Legacy;
                self.legacy(shared, frame)
            }
            Phase::First => {
                let (nonces, answer, agreed) = handshake::challenge(frame, Secret::nonce()?, secret)?;
                self.stream.push(&answer);
                if !agreed {
                    self.stream.flush()?;
                    return Err(Error::new(ErrorKind::Unsupported, "no version in common"));
                }
                self.phase = Phase::Proof(nonces);
                Ok(())
            }
            Phase::Proof(nonces) => match handshake::accept(frame, nonces, secret, &shared.identity) {
                Ok(answer) => {
                    self.stream.push(&answer);
                    self.phase = Phase::Identity;
                    Ok(())
                }
                Err(why) => {
                    self.stream.push(&handshake::refusal(&why));
                    self.stream.flush()?;
                    Err(why)
                }
            },
            Phase::Identity => {
                let who = handshake::identified(frame)?;
                let peer = Peer { key: who.key, instance: Some(who.instance), address: self.address };
                tracing::debug!(peer = %peer.key, address = %self.address, "a peer's control connection stands");
                self.phase = Phase::Own(Arc::new(peer));
                Ok(())
            }
            Phase::Own(peer) => {
                let peer = Arc::clone(peer);
                self.own(shared, &peer, frame)
            }
            Phase::Legacy => self.legacy(shared, frame),
        }
    }

    fn own(&mut self, shared: &Arc<Shared>, peer: &Arc<Peer>, frame: &Frame) -> Result<()> {
        match to_target(frame)? {
            // That the process is there; how busy it is does not matter.
            ToTarget::Request { id, request: Request::Ping } => self.stream.push(&answer(id, &Answer::Done)),
            ToTarget::Request { id, request } => {
                self.serve(shared, peer, request, move |_, _, outcome| Some(answer(id, &outcome)));
            }
            ToTarget::Note(note) => self.note(shared, peer, note),
        }
        Ok(())
    }

    fn legacy(&mut self, shared: &Arc<Shared>, frame: &Frame) -> Result<()> {
        let (key, request) = legacy_request(frame)?;
        let peer = match &self.peer {
            Some(peer) if peer.key == key => Arc::clone(peer),
            _ => Arc::new(Peer { key, instance: None, address: self.address }),
        };
        self.serve(shared, &peer, request, legacy_answer);
        Ok(())
    }

    /// Has the service answer a request.
    fn serve(
        &mut self,
        shared: &Arc<Shared>,
        peer: &Arc<Peer>,
        request: Request,
        encode: impl FnOnce(&Shared, &Request, Answer) -> Option<Vec<u8>> + Send + 'static,
    ) {
        let (connection, token) = (self.id(), self.token);
        let (shared_of_job, peer_of_job) = (Arc::clone(shared), Arc::clone(peer));
        let run = move || {
            let shared = shared_of_job;
            let outcome = guarded(&shared, |service| call(service, connection, &peer_of_job, &request));
            if let Answer::Failed(error) = &outcome {
                tracing::info!(peer = %peer_of_job.key, %error, "refused a peer's request");
            }
            let bytes = encode(&shared, &request, outcome);
            shared.handle.send(Command::Answer { token, bytes });
        };
        self.submit(shared, peer, Job { urgent: false, droppable: true, run: Box::new(run) });
    }

    fn note(&mut self, shared: &Arc<Shared>, peer: &Arc<Peer>, note: FailureNote) {
        let (connection, token) = (self.id(), self.token);
        let (shared_of_job, peer_of_job) = (Arc::clone(shared), Arc::clone(peer));
        let run = move || {
            let shared = shared_of_job;
            guarded(&shared, |service| {
                service.note_failure(connection, &peer_of_job, note);
                Answer::Done
            });
            shared.handle.send(Command::Answer { token, bytes: Some(Vec::new()) });
        };
        self.submit(shared, peer, Job { urgent: true, droppable: false, run: Box::new(run) });
    }

    fn submit(&mut self, shared: &Shared, peer: &Arc<Peer>, job: Job) {
        self.asked += 1;
        self.peer = Some(Arc::clone(peer));
        shared.pool.submit(self.id().0, self.address, job);
    }

    fn id(&self) -> ConnectionId {
        ConnectionId(self.token as u64)
    }

    /// A job is done.
    pub(super) fn answer(&mut self, bytes: Option<Vec<u8>>) {
        self.asked = self.asked.saturating_sub(1);
        match bytes {
            Some(bytes) => self.stream.push(&bytes),
            None => self.failed = true,
        }
    }

    pub(super) fn close(self, shared: &Arc<Shared>, why: &Error) {
        match why.kind() {
            ErrorKind::PeerLost | ErrorKind::BadState => {
                tracing::debug!(address = %self.address, %why, "a control connection has ended");
            }
            ErrorKind::AccessDenied => {
                tracing::warn!(address = %self.address, %why, "refused a control connection");
            }
            _ => tracing::info!(address = %self.address, %why, "ended a control connection"),
        }
        let connection = self.id();
        let Some(peer) = self.peer else { return };
        let shared_of_job = Arc::clone(shared);
        let run = move || {
            guarded(&shared_of_job, |service| {
                service.closed(connection, &peer);
                Answer::Done
            });
        };
        let last = Job { urgent: true, droppable: false, run: Box::new(run) };
        shared.pool.end(connection.0, self.address, last);
    }
}

/// Calls the service, if it is still there; a panic is a failure.
fn guarded(shared: &Shared, act: impl FnOnce(&dyn Service) -> Answer) -> Answer {
    let call = || shared.service.upgrade().map(|service| act(&*service));
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Some(answer)) => answer,
        Ok(None) => Answer::Failed(Error::new(ErrorKind::BadState, "the engine's rdma backend is shut down")),
        Err(_) => {
            tracing::error!("a call of the control plane's service panicked");
            Answer::Failed(Error::new(ErrorKind::BadState, "the engine failed to answer; see its log"))
        }
    }
}

fn call(service: &dyn Service, connection: ConnectionId, peer: &Peer, request: &Request) -> Answer {
    let outcome = match request {
        Request::Register(request) => {
            service.register_endpoint(connection, peer, request).map(Answer::Endpoint)
        }
        Request::Region { device, memory } => service.region(peer, *device, *memory).map(Answer::Keys),
        Request::Retire { lane } => service.retire_endpoint(connection, *lane).map(|()| Answer::Done),
        Request::Ping => Ok(Answer::Done),
    };
    outcome.unwrap_or_else(Answer::Failed)
}

/// The answer as existing peers read it: the request's fields with the answer in them. They have none for a failure.
fn legacy_answer(shared: &Shared, request: &Request, outcome: Answer) -> Option<Vec<u8>> {
    let key = &shared.identity.key;
    match (request, outcome) {
        (Request::Register(request), Answer::Endpoint(endpoint)) => {
            Some(legacy_register(key, &EndpointRequest { endpoint, ..*request }))
        }
        (Request::Region { device, memory }, Answer::Keys(keys)) => {
            Some(legacy_region(key, *device, *memory, &keys))
        }
        _ => None,
    }
}
