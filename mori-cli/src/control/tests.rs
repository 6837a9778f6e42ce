//! The control exchange between two threads, and what it does with peers that misbehave.

use std::net::{Shutdown, TcpListener};
use std::sync::Arc;

use super::*;

const BOUND: Duration = Duration::from_secs(20);

struct Fixed;

fn description() -> Description {
    Description {
        pid: 17,
        seed: u64::MAX,
        model: "llama-3-8b".to_owned(),
        scale: 512,
        layers: 32,
        tensors: 2,
        pieces_per_layer: 1,
        piece_bytes: 4096,
        slots: 10,
        engine: ByteBuf::from(vec![1, 2, 3]),
        memory: ByteBuf::from(vec![9; 5000]),
        scratch: None,
    }
}

#[test]
fn what_was_added_later_is_left_out_when_it_is_not_there_and_taken_when_it_is() {
    let without = encode(&description()).expect("encodes");
    assert!(!without.windows(7).any(|word| word == b"scratch"));
    assert_eq!(decode::<Description>(&without), Ok(description()));
    let part = ByteBuf::from(vec![1]);
    let scratch = Scratch { bytes: 7, source: part.clone(), sink: part, raw_port: None };
    let with = Description { scratch: Some(scratch), ..description() };
    assert_eq!(decode::<Description>(&encode(&with).expect("encodes")), Ok(with));
}

impl Answers for Fixed {
    fn describe(&self) -> Description {
        description()
    }
    fn usage(&self) -> Usage {
        Usage { seed: 5, cpu_micros: 1234 }
    }
}

fn server(secret: Option<&str>) -> (ControlServer, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let secret = secret.map(|text| Secret::new(text.into()));
    let server = ControlServer::start(listener, Arc::new(Fixed), secret).expect("start");
    let target = server.address().to_string();
    (server, target)
}

fn secret(text: &str) -> Secret {
    Secret::new(text.into())
}

/// A server that sends these bytes, then reads until the client goes away.
fn sends(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let target = listener.local_addr().expect("address").to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let _ = stream.write_all(&bytes);
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    target
}

fn frame(value: &impl Serialize) -> Vec<u8> {
    let bytes = encode(value).expect("encodes");
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend(bytes);
    frame
}

fn hello(version: u32, secret: bool) -> Hello {
    Hello { magic: MAGIC.to_owned(), version, nonce: ByteBuf::from(vec![0; 32]), secret }
}

#[test]
fn both_questions_are_answered_with_and_without_a_secret() {
    for text in [None, Some("open sesame")] {
        let (_server, target) = server(text);
        let secret = text.map(secret);
        let answer = ask(&target, Question::Describe, secret.as_ref(), BOUND).expect("described");
        assert_eq!(answer, Answer::Description(description()));
        let answer = ask(&target, Question::Usage, secret.as_ref(), BOUND).expect("answered");
        assert_eq!(answer, Answer::Usage(Usage { seed: 5, cpu_micros: 1234 }));
    }
}

#[test]
fn a_host_name_is_looked_up() {
    let (server, _) = server(None);
    let target = format!("localhost:{}", server.address().port());
    assert!(ask(&target, Question::Usage, None, BOUND).is_ok());
}

#[test]
fn secrets_that_differ_or_are_missing_are_named() {
    let (_with, with) = server(Some("right"));
    let (_without, without) = server(None);
    let ask = |target: &str, secret: Option<&Secret>| ask(target, Question::Describe, secret, BOUND);
    assert!(matches!(ask(&with, Some(&secret("wrong"))), Err(ControlError::WrongSecret { .. })));
    assert!(matches!(ask(&with, None), Err(ControlError::SecretNeeded { .. })));
    assert!(matches!(ask(&without, Some(&secret("right"))), Err(ControlError::NoSecretThere { .. })));
    assert!(ask(&with, Some(&secret("right"))).is_ok());
}

#[test]
fn a_client_that_claims_to_know_the_secret_learns_nothing() {
    let (_server, target) = server(Some("right"));
    for proof in [None, Some(ByteBuf::from(vec![0; 32])), Some(ByteBuf::new())] {
        let clock = Clock::system();
        let deadline = clock.now() + BOUND;
        let mut framed = Framed::new(TcpStream::connect(&target).expect("connects"), clock, deadline);
        let Ok(hello) = framed.read::<Hello>() else { panic!("no greeting") };
        assert!(hello.secret);
        let ask = Ask { nonce: hello.nonce.clone(), question: Question::Describe, proof };
        assert!(framed.write(&ask).is_ok());
        let Ok(reply) = framed.read::<Reply>() else { panic!("no reply") };
        assert_eq!(decode::<Answer>(&reply.answer), Ok(Answer::Refused));
        assert!(reply.proof.is_none());
    }
}

#[test]
fn a_server_that_only_claims_to_know_the_secret_is_not_believed() {
    let lie = Reply {
        answer: ByteBuf::from(encode(&Answer::Description(description())).expect("encodes")),
        proof: Some(ByteBuf::from(vec![0; 32])),
    };
    let target = sends([frame(&hello(VERSION, true)), frame(&lie)].concat());
    let answer = ask(&target, Question::Describe, Some(&secret("right")), BOUND);
    assert!(matches!(answer, Err(ControlError::WrongSecret { .. })), "{answer:?}");
}

#[test]
fn another_version_and_other_programs_are_named() {
    let target = sends(frame(&hello(VERSION + 1, false)));
    let answer = ask(&target, Question::Usage, None, BOUND);
    assert!(matches!(answer, Err(ControlError::Version { theirs: 2, .. })), "{answer:?}");
    let huge = "HTTP/1.1 400 Bad Request\r\n".as_bytes().to_vec();
    let nonsense = [5_u32.to_le_bytes().as_slice(), b"hello"].concat();
    let other = frame(&Hello { magic: "other".to_owned(), ..hello(VERSION, false) });
    for bytes in [huge, nonsense, other] {
        let answer = ask(&sends(bytes), Question::Usage, None, BOUND);
        assert!(matches!(answer, Err(ControlError::Foreign { .. })), "{answer:?}");
    }
}

#[test]
fn a_server_that_says_nothing_or_drips_is_left_at_the_bound() {
    let half = frame(&hello(VERSION, false));
    for bytes in [Vec::new(), half[..3].to_vec(), half[..half.len() - 1].to_vec()] {
        let bound = Duration::from_millis(50);
        let answer = ask(&sends(bytes), Question::Usage, None, bound);
        assert!(matches!(answer, Err(ControlError::TimedOut { .. })), "{answer:?}");
    }
}

#[test]
fn a_server_that_hangs_up_and_one_that_is_not_there_are_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let target = listener.local_addr().expect("address").to_string();
    let closer = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("accept");
        stream.shutdown(Shutdown::Both).expect("closes");
    });
    let answer = ask(&target, Question::Usage, None, BOUND);
    assert!(matches!(answer, Err(ControlError::Broken { .. })), "{answer:?}");
    closer.join().expect("closed");
    let answer = ask(&target, Question::Usage, None, BOUND);
    assert!(matches!(answer, Err(ControlError::Connect { .. })), "{answer:?}");
    let answer = ask("no-such-host.invalid:1", Question::Usage, None, BOUND);
    assert!(matches!(answer, Err(ControlError::Resolve { .. })), "{answer:?}");
    let answer = ask("no port", Question::Usage, None, BOUND);
    assert!(matches!(answer, Err(ControlError::Resolve { .. })), "{answer:?}");
}

#[test]
fn garbage_half_frames_and_oversized_frames_drop_only_their_connection() {
    let (_server, target) = server(None);
    let oversized = (MAX_FRAME + 1).to_le_bytes().to_vec();
    let mut open = Vec::new();
    for bytes in
        [vec![0; 3], vec![0xff; 100], oversized, b"GET / HTTP/1.1\r\n\r\n".to_vec(), frame(&"not a question")]
    {
        let mut stream = TcpStream::connect(&target).expect("connects");
        stream.write_all(&bytes).expect("sends");
        // They stay open while the others are answered.
        open.push(stream);
    }
    for _ in 0..10 {
        assert!(ask(&target, Question::Usage, None, BOUND).is_ok());
    }
}

#[test]
fn clients_beyond_the_limit_are_turned_away_and_places_come_back() {
    let (_server, target) = server(None);
    let read_hello = |stream: &TcpStream| {
        let clock = Clock::system();
        let deadline = clock.now() + BOUND;
        Framed::new(stream.try_clone().expect("clones"), clock, deadline).read::<Hello>()
    };
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..64 {
        let stream = TcpStream::connect(&target).expect("connects");
        assert!(read_hello(&stream).is_ok());
        open.push(stream);
    }
    let answer = ask(&target, Question::Usage, None, BOUND);
    assert!(matches!(answer, Err(ControlError::Broken { .. })), "{answer:?}");
    open.clear();
    // The places come back when the server's threads have seen the ends of their connections.
    while ask(&target, Question::Usage, None, BOUND).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn dropping_the_server_closes_its_port() {
    let (server, target) = server(None);
    drop(server);
    assert!(matches!(ask(&target, Question::Usage, None, BOUND), Err(ControlError::Connect { .. })));
}

#[test]
fn a_description_of_no_pool_is_refused() {
    assert!(description().layout().is_ok());
    for broken in [
        Description { slots: 0, ..description() },
        Description { layers: 0, ..description() },
        Description { piece_bytes: 3, ..description() },
        Description { piece_bytes: u64::MAX - 127, ..description() },
    ] {
        assert!(broken.layout().is_err(), "{broken:?}");
    }
}

#[test]
fn a_secret_does_not_show_in_debug_output() {
    assert_eq!(format!("{:?}", secret("hidden")), "Secret(..)");
}
