//! Existing peers, played by the byte in both roles; and the step down to their protocol, which a secret forbids.

use super::golden::{REGION, REGION_ANSWER, REGISTER, as_legacy};
use super::*;

/// What our server answers to [`REGISTER`]: its own key and end.
fn registered() -> Vec<u8> {
    let request = as_legacy(register(3, 0));
    message::legacy_register(&key("far"), &EndpointRequest { endpoint: answer_to(&request), ..request })
}

#[test]
fn an_existing_peer_is_served() {
    let far = Node::plain("far");
    // Several exchanges on one connection, and one connection for each.
    let mut peer = Raw::connect(far.address());
    for _ in 0..2 {
        peer.send(REGISTER);
        assert_eq!(peer.bytes().unwrap(), registered());
        peer.send(REGION);
        let answer = message::legacy_region(&key("far"), 1, 300, &keys_of(300));
        assert_eq!(peer.bytes().unwrap(), answer);
        peer = Raw::connect(far.address());
    }
    let who = Peer { key: key("prefill-0"), instance: None, address: [127, 0, 0, 1].into() };
    assert_eq!(who.protocol(), Protocol::Legacy);
    let (peer, request) = far.fake.wait("the request", |call| match call {
        Call::Register(_, peer, request) => Some((peer.clone(), *request)),
        _ => None,
    });
    assert_eq!((peer, request), (who, as_legacy(register(3, 0))));
    until("both ends are told", || far.fake.count(|call| matches!(call, Call::Closed(..))) == 2);
}

/// They have no answer for a failure but the end.
#[test]
fn an_existing_peer_that_asks_for_what_is_not_there_is_closed() {
    let far = Node::plain("far");
    let mut peer = Raw::connect(far.address());
    peer.send(&message::legacy_region(&key("d"), 1, UNKNOWN, &RegionKeys::default()));
    peer.ended();
}

/// Plays an existing peer's server: reads what comes, refuses a hello by closing, and answers the rest from the golden bytes.
fn serve_one(listener: &TcpListener, hellos: &mut usize) -> Raw {
    loop {
        let mut socket = next(listener);
        let first = socket.frame();
        if first.kind == kind::HELLO {
            *hellos += 1;
            continue;
        }
        answer(&mut socket, &first);
        return socket;
    }
}

fn answer(socket: &mut Raw, asked: &Frame) {
    match asked.kind {
        0 => socket.send(REGISTER),
        1 => socket.send(REGION_ANSWER),
        other => panic!("an existing peer was asked with type {other:#04x}"),
    }
}

fn legacy_target(address: SocketAddr) -> Target {
    target("old", None, &[address])
}

#[test]
fn a_link_steps_down_and_the_address_is_remembered() {
    let near = Node::plain("prefill-0");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let link = near.server.connect(&legacy_target(address), soon()).unwrap();
            assert_eq!(link.peer().protocol(), Protocol::Legacy);
            assert_eq!((link.peer().key.clone(), link.peer().instance), (key("old"), None));
            let endpoint = link.register_endpoint(&register(3, 7), soon()).unwrap();
            assert_eq!(endpoint, as_legacy(register(3, 7)).endpoint);
            for refused in [
                link.retire_endpoint(7, soon()),
                link.ping(soon()),
                link.note_failure(&super::golden::note(Vec::new())),
            ] {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
            }
            assert_eq!(link.region(1, 300, soon()).unwrap().rkey, 0x12345);
        });
        let mut hello = next(&listener);
        assert_eq!(hello.frame().kind, kind::HELLO);
        drop(hello);
        let mut socket = next(&listener);
        assert_eq!(socket.bytes().unwrap(), REGISTER, "byte for byte what existing peers send");
        socket.send(REGISTER);
        let asked_region = socket.frame();
        answer(&mut socket, &asked_region);
        asked.join().unwrap();
        socket.ended();
        // The second time there is no hello.
        let again = scope.spawn(|| {
            let link = near.server.connect(&legacy_target(address), soon()).unwrap();
            link.region(1, 300, soon()).unwrap()
        });
        let mut hellos = 0;
        serve_one(&listener, &mut hellos);
        again.join().unwrap();
        assert_eq!(hellos, 0);
    });
}

#[test]
fn garbage_in_answer_to_a_hello_is_an_existing_peer_too() {
    let near = Node::plain("near");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let link = scope.spawn(|| near.server.connect(&legacy_target(address), soon()).unwrap());
        let mut hello = next(&listener);
        hello.frame();
        hello.send(REGION_ANSWER);
        let _second = next(&listener);
        assert_eq!(link.join().unwrap().peer().protocol(), Protocol::Legacy);
    });
}

/// A step down would get around the proof.
#[test]
fn with_a_secret_nothing_else_is_spoken() {
    let config = ControlConfig { secret: Some(Secret::new("swordfish")), ..ControlConfig::default() };
    let near = Node::new("near", config);
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        for garbage in [false, true] {
            let connect = scope.spawn(|| near.server.connect(&legacy_target(address), soon()));
            let mut hello = next(&listener);
            assert_eq!(hello.frame().kind, kind::HELLO);
            if garbage {
                hello.send(REGION_ANSWER);
            }
            drop(hello);
            let error = connect.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
            assert!(error.message().contains("secret"), "{error}");
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "no second connection was made");
    });
}

/// A peer that is known to speak the own protocol has only gone away for a moment.
#[test]
fn a_peer_that_is_known_to_be_new_is_not_taken_for_an_existing_one() {
    let near = Node::plain("near");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let connect = scope.spawn(|| near.server.connect(&target("far", Some([1; 16]), &[address]), soon()));
        drop(next(&listener));
        assert_eq!(connect.join().unwrap().unwrap_err().kind(), ErrorKind::PeerLost);
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "no second connection was made");
    });
}

#[test]
fn a_new_peer_of_which_nothing_is_known_is_spoken_to_in_the_own_protocol() {
    let (near, far) = (Node::plain("near"), Node::plain("far"));
    let link = near.server.connect(&target("far", None, &[far.address()]), soon()).unwrap();
    assert_eq!(link.peer().instance, Some(identity("far").instance));
}

#[test]
fn a_peer_that_closes_after_each_exchange_is_connected_to_anew() {
    let near = Node::plain("near");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let link = near.server.connect(&legacy_target(address), soon()).unwrap();
            for _ in 0..3 {
                link.register_endpoint(&register(3, 7), soon()).unwrap();
                link.region(1, 300, soon()).unwrap();
            }
            assert!(link.is_open());
            link
        });
        let mut hellos = 0;
        for _ in 0..6 {
            drop(serve_one(&listener, &mut hellos));
        }
        assert_eq!(hellos, 1);
        let link = asked.join().unwrap();
        assert_eq!(near.fake.calls(), [], "no loss");
        // Then the process ends: the connection that stands closes, and there is none to be had.
        drop(listener);
        let id = link.id();
        near.fake.wait("the loss", |call| matches!(call, Call::Lost(of, _) if *of == id).then_some(()));
        assert!(!link.is_open());
    });
}

#[test]
fn an_existing_peer_that_closes_instead_of_answering_is_lost() {
    let near = Node::plain("near");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let link = near.server.connect(&legacy_target(address), soon()).unwrap();
            link.region(1, 300, soon()).unwrap_err()
        });
        drop(next(&listener));
        let mut socket = next(&listener);
        socket.frame();
        drop(socket);
        let error = asked.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        assert!(error.message().contains("instead of answering"), "{error}");
    });
}

/// Answers have no numbers there: a late one must not be taken for the next request's.
#[test]
fn a_late_answer_of_an_existing_peer_is_nobodys() {
    let near = Node::plain("near");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let link = near.server.connect(&legacy_target(address), soon()).unwrap();
            let error = link.region(1, 1, within(50)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert!(link.is_open());
            link.region(1, 300, soon()).unwrap()
        });
        drop(next(&listener));
        let mut late = next(&listener);
        late.frame();
        late.ended();
        let mut socket = next(&listener);
        let frame = socket.frame();
        answer(&mut socket, &frame);
        assert_eq!(asked.join().unwrap().rkey, 0x12345);
    });
}

/// One exchange at a time, however many threads ask.
#[test]
fn requests_to_an_existing_peer_take_turns() {
    let near = Node::plain("near");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let connect = scope.spawn(|| near.server.connect(&legacy_target(address), soon()).unwrap());
        drop(next(&listener));
        let mut socket = next(&listener);
        let link = connect.join().unwrap();
        let asks: Vec<_> = (0..8)
            .map(|number| {
                let link = Arc::clone(&link);
                scope.spawn(move || match number % 2 {
                    0 => link.region(1, 300, soon()).map(drop),
                    _ => link.register_endpoint(&register(3, 7), soon()).map(drop),
                })
            })
            .collect();
        for _ in 0..8 {
            let frame = socket.frame();
            // Nothing more comes before the answer.
            socket.0.set_nonblocking(true).unwrap();
            assert!(socket.0.peek(&mut [0]).is_err());
            socket.0.set_nonblocking(false).unwrap();
            answer(&mut socket, &frame);
        }
        asks.into_iter().for_each(|ask| ask.join().unwrap().unwrap());
    });
}

/// Zeros are how an existing peer says that there is nothing.
#[test]
fn empty_answers_of_existing_peers_are_failures() {
    let near = Node::plain("near");
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let link = near.server.connect(&legacy_target(address), soon()).unwrap();
            let region = link.region(1, 300, soon()).unwrap_err();
            (region, link.register_endpoint(&register(3, 7), soon()).unwrap_err())
        });
        drop(next(&listener));
        let mut socket = next(&listener);
        socket.frame();
        socket.send(REGION);
        socket.frame();
        let nothing = EndpointRequest { endpoint: Endpoint::default(), ..register(3, 0) };
        socket.send(&message::legacy_register(&key("old"), &nothing));
        let (region, endpoint) = asked.join().unwrap();
        assert_eq!((region.kind(), endpoint.kind()), (ErrorKind::NotFound, ErrorKind::Transport));
    });
}
