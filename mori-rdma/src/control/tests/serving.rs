//! The server under peers that are many, slow, silent, greedy or hostile.

use super::golden::{REGION, REGISTER};
use super::*;
use crate::control::message::Answer;

fn quick() -> ControlConfig {
    ControlConfig { frame_timeout: Duration::from_secs(1), ..ControlConfig::default() }
}

fn is_closed(call: &Call) -> bool {
    matches!(call, Call::Closed(..))
}

#[test]
fn garbage_of_every_kind_ends_its_own_connection_only() {
    let far = Node::plain("far");
    let mut good = Raw::connect(far.address()).greet("good");
    let hello = handshake::hello(&[1; 32]);
    let mut other_magic = hello.clone();
    other_magic[HEAD + 2] = b'M';
    let garbage: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 100],
        &[0, 0xff, 0xff, 0xff, 0xff],
        &[NO_TYPE, 0, 0, 0, 0],
        &message::frame(0, &[0xc1]),
        &message::frame(1, &[0x94, 0xa1]),
        &other_magic,
    ];
    for (index, bytes) in garbage.into_iter().enumerate() {
        let mut bad = Raw::connect(far.address());
        bad.send(bytes);
        bad.ended();
        // After the handshake, too.
        let mut bad = Raw::connect(far.address()).greet("bad");
        bad.send(bytes);
        bad.ended();
        assert_eq!(good.ask(index as u64, &Request::Ping), Answer::Done);
    }
    assert_eq!(far.fake.calls(), [], "nothing reached the service");
}

/// Random bytes and random pieces of good conversations, over many connections, beside one that works.
#[test]
fn a_storm_of_nonsense_is_survived() {
    let far = Node::plain("far");
    let mut good = Raw::connect(far.address()).greet("good");
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..300 {
        let mut bad = Raw::connect(far.address());
        if round % 3 == 0 {
            bad = bad.greet("bad");
        }
        let mut bytes: Vec<u8> = match round % 5 {
            0 => REGISTER.to_vec(),
            1 => REGION.to_vec(),
            2 => message::request(random(), &Request::Register(register(1, 1))),
            3 => handshake::hello(&[round as u8; 32]),
            _ => (0..random() % 300).map(|_| random() as u8).collect(),
        };
        for _ in 0..random() % 4 {
            if !bytes.is_empty() {
                let at = random() as usize % bytes.len();
                bytes[at] = random() as u8;
            }
        }
        // The other side may have closed already.
        let _ = bad.0.write_all(&bytes);
        if round % 50 == 0 {
            assert_eq!(good.ask(round, &Request::Ping), Answer::Done);
        }
    }
    assert_eq!(good.ask(1, &Request::Region { device: 0, memory: 3 }), Answer::Keys(keys_of(3)));
}

#[test]
fn a_handshake_that_takes_too_long_is_ended() {
    let far = Node::new("far", quick());
    let mut silent = Raw::connect(far.address());
    silent.ended();
    let mut half = Raw::connect(far.address());
    half.send(&handshake::hello(&[1; 32]));
    half.frame();
    half.ended();
}

/// Each byte comes in time, and the frame does not.
#[test]
fn a_frame_that_trickles_in_is_ended() {
    let far = Node::new("far", quick());
    for mut slow in [Raw::connect(far.address()), Raw::connect(far.address()).greet("slow")] {
        let frame = message::frame(kind::PING, &[0; 8000]);
        let ended = frame.iter().position(|byte| {
            std::thread::park_timeout(Duration::from_millis(2));
            slow.0.write_all(&[*byte]).is_err()
        });
        assert!(ended.is_some(), "8000 bytes at 2 ms each were taken");
    }
}

#[test]
fn an_idle_connection_stays() {
    let far = Node::new("far", quick());
    let mut idle = Raw::connect(far.address()).greet("idle");
    // Longer than a frame or a handshake may take.
    let mut silent = Raw::connect(far.address());
    silent.ended();
    assert_eq!(idle.ask(1, &Request::Ping), Answer::Done);
}

fn with_secret(secret: &str) -> ControlConfig {
    ControlConfig { secret: Some(Secret::new(secret)), ..ControlConfig::default() }
}

#[test]
fn a_wrong_proof_is_refused_with_a_reason() {
    let far = Node::new("far", with_secret("swordfish"));
    for secret in [None, Some(Secret::new("sword"))] {
        let mut wrong = Raw::connect(far.address());
        wrong.send(&handshake::hello(&[1; 32]));
        let challenge = wrong.frame();
        // As a side without scruples would, that does not stop at the challenge saying that a secret is required.
        let target = challenge.body[challenge.body.len() - 32..].try_into().unwrap();
        let nonces = Nonces { initiator: [1; 32], target };
        let proof = proof(secret.as_ref(), &nonces);
        wrong.send(&message::frame(kind::PROOF, &[&[0x91, 0xc4, 32][..], &proof].concat()));
        let refusal = handshake::refused(&wrong.frame()).unwrap().unwrap();
        assert_eq!(refusal.kind(), ErrorKind::AccessDenied);
        wrong.ended();
    }
    // Nor does it help to skip the proof, or to speak as existing peers do.
    for bytes in
        [REGISTER, REGION, &message::request(1, &Request::Ping), &message::frame(kind::IDENTITY, &[0x90])]
    {
        let mut wrong = Raw::connect(far.address());
        wrong.send(bytes);
        wrong.ended();
        let mut wrong = Raw::connect(far.address());
        wrong.send(&handshake::hello(&[1; 32]));
        wrong.frame();
        wrong.send(bytes);
        // A refusal, if anything.
        while let Some(answer) = wrong.bytes() {
            assert_eq!(answer[0], kind::REFUSAL);
        }
    }
    assert_eq!(far.fake.calls(), []);
}

#[test]
fn too_many_connections_are_refused_with_a_reason() {
    let far = Node::new("far", ControlConfig { max_connections: (5, 3), ..ControlConfig::default() });
    let full = |host| {
        let mut more = Raw::connect_from(host, far.address());
        let refusal = handshake::refused(&more.frame()).unwrap().unwrap();
        assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
        more.ended();
    };
    let mut first: Vec<Raw> = (0..3).map(|_| Raw::connect_from(2, far.address()).greet("two")).collect();
    full(2);
    let _second: Vec<Raw> = (0..2).map(|_| Raw::connect_from(3, far.address()).greet("three")).collect();
    full(3);
    full(4);
    // Room comes back.
    drop(first.pop());
    until("there is room again", || {
        let mut more = Raw::connect_from(2, far.address());
        more.send(&handshake::hello(&[1; 32]));
        more.bytes().is_some_and(|bytes| bytes[0] == kind::CHALLENGE)
    });
}

#[test]
fn silent_connections_make_way_for_others() {
    let far = Node::new("far", ControlConfig { max_greeting: 2, ..ControlConfig::default() });
    let mut idle = Raw::connect(far.address()).greet("idle");
    // The server knows that the handshake is done.
    assert_eq!(idle.ask(1, &Request::Ping), Answer::Done);
    let mut silent: Vec<Raw> = (0..3).map(|_| Raw::connect(far.address())).collect();
    silent.remove(0).ended();
    // Nobody who is done with the handshake goes, and nobody younger.
    assert_eq!(idle.ask(2, &Request::Ping), Answer::Done);
    let mut young = silent.remove(1).greet("young");
    assert_eq!(young.ask(1, &Request::Ping), Answer::Done);
}

#[test]
fn calls_for_one_connection_come_in_order() {
    let far = Node::plain("far");
    let mut peer = Raw::connect(far.address()).greet("near");
    // More than may be under way at a time, which holds up reading.
    for lane in 0..100 {
        peer.send(&message::request(lane, &Request::Register(register(1, lane))));
    }
    for lane in 0..100 {
        let answer = message::to_initiator(&peer.frame()).unwrap();
        let expected = Answer::Endpoint(answer_to(&register(1, lane)));
        assert_eq!(answer, (lane, expected));
    }
    let asked = far.fake.calls().into_iter().filter_map(|call| match call {
        Call::Register(_, _, request) => Some(request.lane),
        _ => None,
    });
    assert!(asked.eq(0..100));
}

/// The connection ends while a call runs: what has not begun is dropped, a note is not, and the end comes last.
#[test]
fn the_end_of_a_connection_is_the_last_call() {
    let far = Node::new("far", ControlConfig { max_connections: (1, 1), ..ControlConfig::default() });
    far.fake.hold(0);
    let mut peer = Raw::connect(far.address()).greet("near");
    for lane in 0..4 {
        peer.send(&message::request(lane, &Request::Register(register(0, lane))));
    }
    peer.send(&message::note(&super::golden::note(b"bye".to_vec())).unwrap());
    let id = far.fake.wait("the first", |call| match call {
        Call::Register(id, ..) => Some(*id),
        _ => None,
    });
    drop(peer);
    until("the end is noticed, which makes room", || {
        let mut next = Raw::connect(far.address());
        next.send(&handshake::hello(&[1; 32]));
        next.bytes().is_some_and(|bytes| bytes[0] == kind::CHALLENGE)
    });
    assert_eq!(far.fake.calls().len(), 1, "nothing more while the first runs");
    far.fake.release(0);
    far.fake.wait("the end", |call| is_closed(call).then_some(()));
    let who =
        Peer { key: key("near"), instance: Some(identity("near").instance), address: [127, 0, 0, 1].into() };
    let expected = [
        Call::Register(id, who.clone(), register(0, 0)),
        Call::Registered(id),
        Call::Note(id, who.clone(), super::golden::note(b"bye".to_vec())),
        Call::Closed(id, who),
    ];
    assert_eq!(far.fake.calls(), expected);
}

/// A host that is cut off acknowledges nothing any more; played by a filter that drops what arrives.
#[test]
fn a_connection_of_a_host_that_is_gone_ends() {
    let config = ControlConfig { peer_timeout: Duration::from_millis(400), ..ControlConfig::default() };
    let far = Node::new("far", config);
    let mut peer = Raw::connect(far.address()).greet("near");
    peer.ask(1, &Request::Retire { lane: 1 });
    // Returns zero for every packet: none of it is for the socket.
    let drop_all = socket2::SockFilter::new(0x06, 0, 0, 0);
    socket2::SockRef::from(&peer.0).attach_filter(&[drop_all]).unwrap();
    far.fake.wait("the end", |call| is_closed(call).then_some(()));
}

#[test]
fn slow_calls_of_one_address_delay_nobody_else() {
    let far = Node::new("far", ControlConfig { workers: 4, ..ControlConfig::default() });
    far.fake.hold(0);
    let greedy: Vec<Raw> = (0..20)
        .map(|number| {
            let mut peer = Raw::connect_from(2, far.address()).greet("greedy");
            for lane in 0..10 {
                peer.send(&message::request(lane, &Request::Register(register(0, number * 10 + lane))));
            }
            peer
        })
        .collect();
    let running = |call: &Call| matches!(call, Call::Register(..));
    until("they have what they get", || far.fake.count(running) == 2);
    // Another address is served, and notes and ends need none of these threads.
    let mut other = Raw::connect_from(3, far.address()).greet("other");
    assert_eq!(
        other.ask(1, &Request::Register(register(1, 1))),
        Answer::Endpoint(answer_to(&register(1, 1)))
    );
    other.send(&message::note(&super::golden::note(Vec::new())).unwrap());
    far.fake.wait("the note", |call| matches!(call, Call::Note(..)).then_some(()));
    drop(other);
    far.fake.wait("the end", |call| is_closed(call).then_some(()));
    assert_eq!(far.fake.count(running), 3, "no more than half of the threads");
    far.fake.release(0);
    drop(greedy);
    until("all have ended", || far.fake.count(is_closed) >= 3);
}

/// Answers that nobody takes do not pile up.
#[test]
fn a_peer_that_reads_nothing_is_not_read_either() {
    let far = Node::plain("far");
    let mut greedy = Raw::connect(far.address()).greet("greedy");
    greedy.0.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let pings: Vec<u8> = (0..1000).flat_map(|id| message::request(id, &Request::Ping)).collect();
    let mut sent = 0_u64;
    while greedy.0.write_all(&pings).is_ok() {
        sent += pings.len() as u64;
        // The system's own buffers hold less.
        assert!(sent < 32 << 20, "{sent} bytes were read although no answer is");
    }
    let mut other = Raw::connect(far.address()).greet("other");
    assert_eq!(other.ask(1, &Request::Ping), Answer::Done);
}

#[test]
fn a_call_that_panics_is_a_failure_and_the_next_works() {
    let far = Node::plain("far");
    let mut peer = Raw::connect(far.address()).greet("near");
    let Answer::Failed(error) = peer.ask(1, &Request::Region { device: 0, memory: PANIC }) else {
        panic!("no failure")
    };
    assert_eq!(error.kind(), ErrorKind::BadState);
    assert_eq!(peer.ask(2, &Request::Region { device: 0, memory: 8 }), Answer::Keys(keys_of(8)));
}

#[test]
fn an_end_is_told_only_of_connections_that_asked() {
    let far = Node::plain("far");
    drop(Raw::connect(far.address()).greet("curious"));
    let mut asked = Raw::connect(far.address()).greet("near");
    asked.ask(1, &Request::Retire { lane: 1 });
    drop(asked);
    let who = far.fake.wait("the end", |call| match call {
        Call::Closed(_, peer) => Some(peer.key.clone()),
        _ => None,
    });
    assert_eq!(who, key("near"));
}

#[test]
fn shutting_down_tells_of_every_end_and_calls_nobody_afterwards() {
    let far = Node::plain("far");
    let mut peers: Vec<Raw> = (0..10)
        .map(|_| {
            let mut peer = Raw::connect(far.address()).greet("near");
            peer.ask(1, &Request::Retire { lane: 1 });
            peer
        })
        .collect();
    far.server.shutdown();
    assert_eq!(far.fake.count(is_closed), 10);
    peers.iter_mut().for_each(Raw::ended);
    // Again, and with nobody there.
    far.server.shutdown();
    let service: Weak<Fake> = Weak::new();
    let server = Server::bind(ControlConfig::default(), identity("gone"), service).unwrap();
    let mut peer = Raw::connect(server.local_addr()).greet("near");
    assert!(matches!(peer.ask(1, &Request::Retire { lane: 1 }), Answer::Failed(_)));
}

#[test]
fn other_versions_are_told_which_are_spoken() {
    let far = Node::plain("far");
    let mut hello = handshake::hello(&[0; 32]);
    let versions = HEAD + 11;
    assert_eq!(hello[versions..versions + 2], [1, 1]);
    hello[versions..versions + 2].copy_from_slice(&[9, 12]);
    let mut later = Raw::connect(far.address());
    later.send(&hello);
    let error = handshake::prove(&later.frame(), [0; 32], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("versions 1 to 1"), "{error}");
    later.ended();
}

#[test]
fn what_cannot_be_bound_is_refused() {
    let bind = |bind: &str, key: &str, secret: Option<&str>| {
        let config =
            ControlConfig { bind: bind.into(), secret: secret.map(Secret::new), ..ControlConfig::default() };
        let service: Weak<Fake> = Weak::new();
        Server::bind(config, identity(key), service).map(drop).unwrap_err().kind()
    };
    assert_eq!(bind("nonsense", "x", None), ErrorKind::InvalidArgument);
    assert_eq!(bind("127.0.0.1:0", &"x".repeat(513), None), ErrorKind::InvalidArgument);
    assert_eq!(bind("127.0.0.1:0", "x", Some("")), ErrorKind::InvalidArgument);
    let (_taken, address) = listener();
    assert_eq!(bind(&address.to_string(), "x", None), ErrorKind::Unavailable);
}
