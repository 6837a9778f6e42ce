//! The answering side of the control exchange.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hmac::Mac;
use mori_engine::Clock;
use serde_bytes::ByteBuf;

use super::{
    Answer, Ask, ControlError, Description, FrameError, Framed, Hello, MAGIC, Question, Reply, Secret, Usage,
    VERSION, encode, nonce,
};
use crate::stop::Stop;

/// How long one exchange may take.
const EXCHANGE: Duration = Duration::from_secs(5);
/// Exchanges at once; a further client is turned away by closing its connection.
const MAX_AT_ONCE: usize = 64;
/// The pause after the system refused to accept, for example since too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a server answers with. It is called from several threads.
pub trait Answers: Send + Sync {
    /// What it serves.
    fn describe(&self) -> Description;
    /// What it has used.
    fn usage(&self) -> Usage;
}

/// Answers control exchanges until it is dropped.
#[derive(Debug)]
pub struct ControlServer {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    answers: Arc<dyn Answers>,
    secret: Option<Secret>,
    at_once: AtomicUsize,
}

impl ControlServer {
    /// Starts to answer on a listening socket.
    ///
    /// # Errors
    ///
    /// When the socket has no address or the thread cannot be started.
    pub fn start(
        listener: TcpListener,
        answers: Arc<dyn Answers>,
        secret: Option<Secret>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = Stop::new();
        let shared = Arc::new(Shared { answers, secret, at_once: AtomicUsize::new(0) });
        let thread = std::thread::Builder::new().name("mori-control".to_owned()).spawn({
            let stop = stop.clone();
            move || accept(&listener, &stop, &shared)
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ControlServer {
    /// Stops to accept. Exchanges that have begun end by themselves within their bound.
    fn drop(&mut self) {
        self.stop.ask();
        // The thread waits in accept; one connection of ours wakes it. If that fails, the thread is left to the end of
        // the process rather than waited for.
        let woken = knock(self.address);
        if let Some(thread) = self.thread.take()
            && woken
        {
            let _ = thread.join();
        }
    }
}

/// Connects once to a listener of this process and goes away again, so that it looks up; says whether that worked.
pub(crate) fn knock(mut own: SocketAddr) -> bool {
    match own.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    TcpStream::connect_timeout(&own, Duration::from_secs(1)).is_ok()
}

fn accept(listener: &TcpListener, stop: &Stop, shared: &Arc<Shared>) {
    while !stop.asked() {
        match listener.accept() {
            Ok(_) if stop.asked() => return,
            Ok((stream, from)) => begin(stream, from, shared),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                stop.wait(ACCEPT_PAUSE);
            }
        }
    }
}

/// Holds one of the places for exchanges.
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.at_once.fetch_sub(1, Ordering::Relaxed);
    }
}

fn begin(stream: TcpStream, from: SocketAddr, shared: &Arc<Shared>) {
    let before = shared.at_once.fetch_add(1, Ordering::Relaxed);
    let place = Place(Arc::clone(shared));
    if before >= MAX_AT_ONCE {
        tracing::warn!(%from, "turned a control connection away: {MAX_AT_ONCE} are open already");
        return;
    }
    let exchange = move || {
        if let Err(what) = answer(stream, &place.0) {
            tracing::warn!(%from, "dropped a control connection: {what}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("mori-control".to_owned()).spawn(exchange) {
        tracing::warn!(%from, %error, "cannot start a thread for a control connection");
    }
}

fn answer(stream: TcpStream, shared: &Shared) -> Result<(), String> {
    let clock = Clock::system();
    let deadline = clock.now() + EXCHANGE;
    let mut framed = Framed::new(stream, clock, deadline);
    let own = nonce().map_err(|error: ControlError| error.to_string())?;
    let hello = Hello {
        magic: MAGIC.to_owned(),
        version: VERSION,
        nonce: ByteBuf::from(own),
        secret: shared.secret.is_some(),
    };
    framed.write(&hello).map_err(words)?;
    let ask: Ask = framed.read().map_err(words)?;

    let known = shared.secret.as_ref().is_none_or(|secret| {
        let hash =
            encode(&ask.question).ok().and_then(|said| secret.hash(b"client", &own, &ask.nonce, &said));
        ask.proof.as_ref().zip(hash).is_some_and(|(proof, hash)| hash.verify_slice(proof).is_ok())
    });
    let answer = match (known, ask.question) {
        (false, _) => Answer::Refused,
        (true, Question::Describe) => Answer::Description(shared.answers.describe()),
        (true, Question::Usage) => Answer::Usage(shared.answers.usage()),
    };
    let answer = encode(&answer)?;
    let secret = shared.secret.as_ref().filter(|_| known);
    let proof = secret
        .and_then(|secret| secret.hash(b"server", &own, &ask.nonce, &answer))
        .map(|hash| ByteBuf::from(hash.finalize().into_bytes().to_vec()));
    framed.write(&Reply { answer: ByteBuf::from(answer), proof }).map_err(words)?;
    if known { Ok(()) } else { Err("its secret is not ours".to_owned()) }
}

fn words(error: FrameError) -> String {
    match error {
        FrameError::TimedOut => format!("it was silent for {EXCHANGE:?}"),
        FrameError::Io(error) => error.to_string(),
        FrameError::Bad(what) => what,
    }
}
