//! Links in the own protocol: requests, deadlines, ends, and what shows that a peer is gone.

use super::golden::note;
use super::*;

fn lost(fake: &Fake, link: &Link) -> Error {
    let id = link.id();
    fake.wait("the loss", |call| match call {
        Call::Lost(of, cause) if *of == id => Some(cause.clone()),
        _ => None,
    })
}

fn losses(fake: &Fake) -> usize {
    fake.count(|call| matches!(call, Call::Lost(..)))
}

#[test]
fn everything_can_be_asked() {
    for secret in [None, Some(Secret::new("swordfish"))] {
        let config = ControlConfig { secret, ..ControlConfig::default() };
        let (near, far) = (Node::new("near", config.clone()), Node::new("far", config));
        let link = near.link(&far);
        assert!(link.is_open());
        assert_eq!(link.peer().key, key("far"));
        assert_eq!(link.peer().instance, Some(identity("far").instance));
        assert_eq!(link.peer().protocol(), Protocol::Own);
        let request = register(3, 77);
        assert_eq!(link.register_endpoint(&request, soon()).unwrap(), answer_to(&request));
        assert_eq!(link.region(1, 9, soon()).unwrap(), keys_of(9));
        let error = link.region(1, UNKNOWN, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("far says: memory 404"), "{error}");
        link.retire_endpoint(77, soon()).unwrap();
        link.ping(soon()).unwrap();
        link.note_failure(&note(b"sorry".to_vec())).unwrap();
        let (id, peer, told) = far.fake.wait("the note", |call| match call {
            Call::Note(id, peer, note) => Some((*id, peer.clone(), note.clone())),
            _ => None,
        });
        assert_eq!(told, note(b"sorry".to_vec()));
        assert_eq!((peer.key, peer.instance), (key("near"), Some(identity("near").instance)));
        assert!(far.fake.calls().contains(&Call::Retire(id, 77)));
    }
}

#[test]
fn many_threads_ask_at_once_and_each_gets_its_answer() {
    let (near, far) = (Node::plain("near"), Node::plain("far"));
    let link = near.link(&far);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let link = &link;
            scope.spawn(move || {
                for round in 0..50 {
                    let memory = 1000 + thread * 100 + round;
                    assert_eq!(link.region(0, memory, soon()).unwrap(), keys_of(memory));
                }
            });
        }
    });
}

#[test]
fn a_deadline_ends_the_wait_and_the_late_answer_is_nobodys() {
    let (near, far) = (Node::plain("near"), Node::plain("far"));
    let link = near.link(&far);
    far.fake.hold(0);
    let error = link.register_endpoint(&register(0, 1), within(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.message().contains("far did not answer in time"), "{error}");
    assert!(link.is_open());
    // What is asked next waits its turn at the peer, and a ping does not.
    link.ping(soon()).unwrap();
    far.fake.release(0);
    assert_eq!(link.register_endpoint(&register(1, 2), soon()).unwrap(), answer_to(&register(1, 2)));
}

#[test]
fn the_end_of_the_peer_ends_requests_at_once_and_is_told_once() {
    let (near, far) = (Node::plain("near"), Node::plain("far"));
    let link = near.link(&far);
    far.fake.hold(0);
    std::thread::scope(|scope| {
        let asks: Vec<_> = (0..4)
            .map(|lane| {
                scope.spawn({
                    let link = &link;
                    move || link.register_endpoint(&register(0, lane), Deadline::Never)
                })
            })
            .collect();
        far.fake.wait("the first", |call| matches!(call, Call::Register(..)).then_some(()));
        let fake = &far.fake;
        let server = &far.server;
        let end = scope.spawn(move || server.shutdown());
        for ask in asks {
            assert_eq!(ask.join().unwrap().unwrap_err().kind(), ErrorKind::PeerLost);
        }
        assert_eq!(lost(&near.fake, &link).kind(), ErrorKind::PeerLost);
        // Only the call that runs keeps the other side's end waiting.
        fake.release(0);
        end.join().unwrap();
    });
    assert!(!link.is_open());
    assert_eq!(link.ping(soon()).unwrap_err().kind(), ErrorKind::PeerLost);
    drop(link);
    near.server.shutdown();
    assert_eq!(losses(&near.fake), 1);
}

#[test]
fn closing_a_link_ends_its_requests_and_tells_only_the_peer() {
    let (near, far) = (Node::plain("near"), Node::plain("far"));
    for drops in [false, true] {
        far.fake.hold(0);
        let link = near.link(&far);
        link.retire_endpoint(1, soon()).unwrap();
        if drops {
            drop(link);
        } else {
            std::thread::scope(|scope| {
                let before = far.fake.count(|call| matches!(call, Call::Register(..)));
                let ask = scope.spawn(|| link.register_endpoint(&register(0, 1), Deadline::Never));
                until("it is asked", || far.fake.count(|call| matches!(call, Call::Register(..))) > before);
                link.close();
                assert_eq!(ask.join().unwrap().unwrap_err().kind(), ErrorKind::BadState);
            });
            assert!(!link.is_open());
        }
        far.fake.release(0);
        let wanted = 1 + usize::from(drops);
        until("the peer is told", || far.fake.count(|call| matches!(call, Call::Closed(..))) == wanted);
    }
    assert_eq!(losses(&near.fake), 0);
}

#[test]
fn another_engine_or_another_incarnation_is_not_the_peer() {
    let (near, far) = (Node::plain("near"), Node::plain("far"));
    let other = target("fax", Some([1; 16]), &[far.address()]);
    let error = near.server.connect(&other, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert!(error.message().contains("is far, not fax"), "{error}");
    let stale = target("far", Some([1; 16]), &[far.address()]);
    let error = near.server.connect(&stale, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert!(error.message().contains("restarted"), "{error}");
    assert_eq!(near.fake.calls(), []);
}

#[test]
fn addresses_are_tried_in_order_and_names_are_looked_up() {
    let (near, far, wrong) = (Node::plain("near"), Node::plain("far"), Node::plain("wrong"));
    let (closed, address) = listener();
    drop(closed);
    let mut target = target("far", Some(identity("far").instance), &[address, wrong.address()]);
    let error = near.server.connect(&target, soon()).unwrap_err();
    assert!(error.message().contains("is wrong, not far"), "the failure that says most: {error}");
    target.addresses.push(("localhost".into(), far.address().port()));
    assert_eq!(near.server.connect(&target, soon()).unwrap().peer().key, key("far"));
    target.addresses.clear();
    assert_eq!(near.server.connect(&target, soon()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    target.addresses.push((address.ip().to_string(), address.port()));
    let error = near.server.connect(&target, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert_eq!(error.cause().map(|cause| cause.domain), Some("errno"), "{error:?}");
}

#[test]
fn connecting_is_bounded_and_shutting_down_ends_it() {
    let near = Node::plain("near");
    let (silent, address) = listener();
    let target = target("far", Some([1; 16]), &[address]);
    let error = near.server.connect(&target, within(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    std::thread::scope(|scope| {
        let connect = scope.spawn(|| near.server.connect(&target, Deadline::Never).map(drop));
        // The first was given up.
        let mut first = next(&silent);
        first.frame();
        first.ended();
        let mut second = next(&silent);
        second.frame();
        near.server.shutdown();
        assert_eq!(connect.join().unwrap().unwrap_err().kind(), ErrorKind::BadState);
    });
    assert_eq!(near.server.connect(&target, soon()).unwrap_err().kind(), ErrorKind::BadState);
}

#[test]
fn different_secrets_are_denied() {
    let node = |key, secret: Option<&str>| {
        Node::new(key, ControlConfig { secret: secret.map(Secret::new), ..ControlConfig::default() })
    };
    for (one, other) in [(Some("a"), Some("b")), (None, Some("b")), (Some("a"), None)] {
        let (near, far) = (node("near", one), node("far", other));
        for instance in [None, Some(identity("far").instance)] {
            let target = target("far", instance, &[far.address()]);
            let error = near.server.connect(&target, soon()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{one:?} {other:?} {error}");
        }
        assert_eq!(far.fake.calls(), []);
    }
}

/// A peer whose process is stopped keeps the link: its system goes on to acknowledge. Requests end at their deadlines.
#[test]
fn a_peer_that_is_silent_but_acknowledges_keeps_the_link() {
    let config = ControlConfig { peer_timeout: Duration::from_millis(200), ..ControlConfig::default() };
    let near = Node::new("near", config);
    let (listener, address) = listener();
    let target = target("far", Some(identity("far").instance), &[address]);
    std::thread::scope(|scope| {
        let connect = scope.spawn(|| near.server.connect(&target, soon()).unwrap());
        let mut far = next(&listener);
        assert_eq!(far.welcome("far"), identity("near"));
        let link = connect.join().unwrap();
        let since = link.heard();
        // The link's own ping, which stays without an answer, and two timeouts.
        assert_eq!(far.frame().kind, kind::PING);
        let error = link.ping(within(400)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(link.is_open());
        assert_eq!(link.heard(), since);
        assert_eq!(losses(&near.fake), 0);
        // It goes on where it stopped.
        assert_eq!(far.frame().kind, kind::PING);
        far.send(&message::answer(0, &message::Answer::Done));
        assert_eq!(far.frame().kind, kind::PING, "and is asked again");
        assert!(link.heard() > since);
    });
}

/// A host that is cut off acknowledges nothing any more; played by a filter that drops what arrives.
#[test]
fn a_peer_whose_host_is_gone_is_lost() {
    let config = ControlConfig { peer_timeout: Duration::from_millis(400), ..ControlConfig::default() };
    let near = Node::new("near", config);
    let (listener, address) = listener();
    let target = target("far", Some(identity("far").instance), &[address]);
    std::thread::scope(|scope| {
        let connect = scope.spawn(|| near.server.connect(&target, soon()).unwrap());
        let mut far = next(&listener);
        far.welcome("far");
        let link = connect.join().unwrap();
        // Returns zero for every packet: none of it is for the socket.
        let drop_all = socket2::SockFilter::new(0x06, 0, 0, 0);
        socket2::SockRef::from(&far.0).attach_filter(&[drop_all]).unwrap();
        let cause = lost(&near.fake, &link);
        assert_eq!(cause.kind(), ErrorKind::PeerLost);
        assert_eq!(cause.cause().map(|cause| cause.number), Some(i64::from(libc::ETIMEDOUT)), "{cause:?}");
    });
}

#[test]
fn a_peer_that_answers_nonsense_is_lost() {
    let near = Node::plain("near");
    for nonsense in [vec![0xff; 20], message::frame(kind::DONE, &[]), message::request(1, &Request::Ping)] {
        let (listener, address) = listener();
        let target = target("far", Some(identity("far").instance), &[address]);
        std::thread::scope(|scope| {
            let connect = scope.spawn(|| near.server.connect(&target, soon()).unwrap());
            let mut far = next(&listener);
            far.welcome("far");
            let link = connect.join().unwrap();
            far.send(&nonsense);
            assert_eq!(lost(&near.fake, &link).kind(), ErrorKind::Malformed);
            far.ended();
        });
    }
}

/// The service may be dropped by one of the control plane's own threads, and the server with it.
#[test]
fn the_server_may_be_dropped_by_its_own_threads() {
    struct Owner {
        server: Mutex<Option<Server>>,
        gone: Arc<(Mutex<bool>, Condvar)>,
    }
    impl Service for Owner {
        fn register_endpoint(
            &self,
            _: ConnectionId,
            _: &Peer,
            request: &EndpointRequest,
        ) -> Result<Endpoint> {
            drop(self.server.lock().take());
            *self.gone.0.lock() = true;
            self.gone.1.notify_all();
            Ok(request.endpoint)
        }
        fn region(&self, _: &Peer, _: u32, _: u64) -> Result<RegionKeys> {
            Ok(RegionKeys::default())
        }
        fn retire_endpoint(&self, _: ConnectionId, _: u64) -> Result<()> {
            Ok(())
        }
        fn note_failure(&self, _: ConnectionId, _: &Peer, _: FailureNote) {}
        fn closed(&self, _: ConnectionId, _: &Peer) {}
        fn link_lost(&self, _: LinkId, _: &Error) {}
    }
    let gone = Arc::new((Mutex::new(false), Condvar::new()));
    let owner = Arc::new(Owner { server: Mutex::new(None), gone: Arc::clone(&gone) });
    let weak: Weak<Owner> = Arc::downgrade(&owner);
    let server = Server::bind(ControlConfig::default(), identity("far"), weak).unwrap();
    let address = server.local_addr();
    *owner.server.lock() = Some(server);
    let mut peer = Raw::connect(address).greet("near");
    peer.send(&message::request(1, &Request::Register(register(0, 1))));
    peer.ended();
    let mut done = gone.0.lock();
    while !*done {
        gone.1.wait(&mut done);
    }
}
