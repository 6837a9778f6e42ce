//! The asking side of the control exchange.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hmac::Mac;
use mori_engine::Clock;
use serde_bytes::ByteBuf;

use super::{
    Answer, Ask, ControlError, FrameError, Framed, Hello, MAGIC, Question, Reply, Secret, VERSION, decode,
    encode, nonce,
};

/// Asks the serving process at `target` (host and port) one question, all within `bound`.
///
/// # Errors
///
/// [`ControlError`], each kind with what the caller can do.
pub fn ask(
    target: &str,
    question: Question,
    secret: Option<&Secret>,
    bound: Duration,
) -> Result<Answer, ControlError> {
    let clock = Clock::system();
    let now = clock.now();
    // A bound beyond the clock is cut to a day: an exchange takes milliseconds.
    let deadline = now.checked_add(bound).unwrap_or(now + Duration::from_secs(86_400));
    let stream = connect(target, &clock, deadline, bound)?;
    let mut framed = Framed::new(stream, clock, deadline);
    let named = |error| name(error, target, bound);

    let hello: Hello = framed.read().map_err(named)?;
    check_hello(&hello, secret, target)?;
    let own = nonce()?;
    let said = encode(&question).map_err(|what| foreign(target, what))?;
    let proof = secret
        .and_then(|secret| secret.hash(b"client", &hello.nonce, &own, &said))
        .map(|hash| ByteBuf::from(hash.finalize().into_bytes().to_vec()));
    framed.write(&Ask { nonce: ByteBuf::from(own), question, proof }).map_err(named)?;

    let reply: Reply = framed.read().map_err(named)?;
    let answer = decode(&reply.answer).map_err(|what| foreign(target, what));
    if let Some(secret) = secret {
        let proven = reply.proof.as_ref().is_some_and(|proof| {
            secret
                .hash(b"server", &hello.nonce, &own, &reply.answer)
                .is_some_and(|hash| hash.verify_slice(proof).is_ok())
        });
        if !proven {
            return Err(ControlError::WrongSecret { target: target.to_owned() });
        }
    }
    match answer? {
        Answer::Refused => Err(ControlError::WrongSecret { target: target.to_owned() }),
        answer => Ok(answer),
    }
}

fn check_hello(hello: &Hello, secret: Option<&Secret>, target: &str) -> Result<(), ControlError> {
    let target = target.to_owned();
    if hello.magic != MAGIC {
        return Err(ControlError::Foreign { target, what: "its greeting is not ours".to_owned() });
    }
    if hello.version != VERSION {
        return Err(ControlError::Version { target, theirs: hello.version });
    }
    match (hello.secret, secret) {
        (true, None) => Err(ControlError::SecretNeeded { target }),
        (false, Some(_)) => Err(ControlError::NoSecretThere { target }),
        _ => Ok(()),
    }
}

fn connect(
    target: &str,
    clock: &Clock,
    deadline: Instant,
    bound: Duration,
) -> Result<TcpStream, ControlError> {
    let timed_out = || ControlError::TimedOut { target: target.to_owned(), bound };
    let left = || deadline.saturating_duration_since(clock.now());
    let addresses = resolve(target, left()).ok_or_else(timed_out)?;
    let addresses =
        addresses.map_err(|source| ControlError::Resolve { target: target.to_owned(), source })?;
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses {
        let left = left();
        if left.is_zero() {
            return Err(timed_out());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(timed_out()),
            Err(error) => last = error,
        }
    }
    Err(ControlError::Connect { target: target.to_owned(), source: last })
}

/// Looks a name up in a thread of its own, since the system's resolver takes no bound; none when it takes too long.
fn resolve(target: &str, bound: Duration) -> Option<io::Result<Vec<SocketAddr>>> {
    if let Ok(address) = target.parse::<SocketAddr>() {
        return Some(Ok(vec![address]));
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = target.to_owned();
    let lookup = move || {
        // The receiver is gone when the bound has passed; then nobody wants the answer.
        let _ = sender.send(name.to_socket_addrs().map(Iterator::collect));
    };
    if let Err(error) = std::thread::Builder::new().name("mori-resolve".to_owned()).spawn(lookup) {
        return Some(Err(error));
    }
    receiver.recv_timeout(bound).ok()
}

fn foreign(target: &str, what: String) -> ControlError {
    ControlError::Foreign { target: target.to_owned(), what }
}

fn name(error: FrameError, target: &str, bound: Duration) -> ControlError {
    match error {
        FrameError::TimedOut => ControlError::TimedOut { target: target.to_owned(), bound },
        FrameError::Io(source) => ControlError::Broken { target: target.to_owned(), source },
        FrameError::Bad(what) => foreign(target, what),
    }
}
