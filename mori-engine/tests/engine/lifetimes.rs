//! Building, adding and removing backends, shutting down, and what outlives an engine.

use std::time::Duration;

use mori_engine::{Access, Engine, ErrorKind, Op, Status, StatusCode, TransferOptions};

use crate::fake::{Net, error, introduce, with};

fn options() -> TransferOptions {
    TransferOptions::default()
}

fn kind(status: &Status) -> ErrorKind {
    status.error().unwrap().kind()
}

#[test]
fn everything_may_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Engine>();
    crosses::<mori_engine::EngineBuilder>();
    crosses::<mori_engine::Memory>();
    crosses::<mori_engine::Session>();
    crosses::<mori_engine::StatusFd>();
    crosses::<mori_engine::RouteReport>();
}

#[test]
fn the_descriptor_says_who_and_where() {
    let net = Net::default();
    let a = with("a", []).node_id("node").hostname("host").build().unwrap();
    let desc = a.desc();
    assert_eq!((desc.key.as_str(), desc.node_id.as_str(), desc.hostname.as_str()), ("a", "node", "host"));
    assert_eq!((desc.host.as_str(), desc.port, desc.pid), ("", 0, std::process::id()));
    assert!(desc.transports.is_empty());
    a.add_backend(net.fake("fake")).unwrap();
    let desc = a.desc();
    assert_eq!((desc.host.as_str(), desc.port), ("fakehost", 4242));
    assert!(desc.blob("fake").is_some());
    assert!(desc.capabilities.contains(mori_engine::CapabilitySet::NOTIFY));
    assert!(!desc.capabilities.contains(mori_engine::CapabilitySet::DEVICE_MEMORY));
    assert_eq!(mori_engine::EngineDesc::unpack(&desc.pack()).unwrap(), desc);
    assert_eq!(a.backends()[0].to_string(), "fake at fakehost port 4242");
    // Each incarnation has bits of its own.
    let (again, _) = net.engine("a", "fake");
    assert_ne!(again.desc().blob("fake"), desc.blob("fake"));
    let unnamed = Engine::builder("b").build().unwrap().desc();
    assert!(!unnamed.node_id.is_empty() && !unnamed.hostname.is_empty());
}

#[test]
fn a_builder_refuses_what_makes_no_engine() {
    let net = Net::default();
    let refused = |builder: mori_engine::EngineBuilder| builder.build().unwrap_err();
    assert_eq!(refused(Engine::builder("")).kind(), ErrorKind::InvalidArgument);
    assert_eq!(refused(Engine::builder("k".repeat(1 << 17))).kind(), ErrorKind::InvalidArgument);
    assert_eq!(refused(Engine::builder("a").node_id("n".repeat(1 << 17))).kind(), ErrorKind::InvalidArgument);
    let twice = refused(with("a", [&net.fake("fake"), &net.fake("fake")]));
    assert_eq!(twice.kind(), ErrorKind::AlreadyExists);

    let (good, bad, never) = (net.fake("good"), net.fake("bad"), net.fake("never"));
    bad.script(|script| script.attach = Some(error(ErrorKind::Unavailable, "port 7 is in use")));
    let failed = refused(with("a", [&good, &bad, &never]));
    assert_eq!(failed.kind(), ErrorKind::Unavailable);
    assert!(failed.message().contains("bad") && failed.message().contains("port 7 is in use"), "{failed}");
    assert!(good.is_down(), "what was attached is shut down again");
    assert!(never.calls().is_empty());
}

#[test]
fn two_backends_of_one_name_are_refused() {
    let net = Net::default();
    let (a, first) = net.engine("a", "fake");
    let second = net.fake("fake");
    let refused = a.add_backend(second.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert!(second.calls().is_empty() && !first.is_down());
}

#[test]
fn a_backend_that_cannot_be_attached_is_not_added() {
    let net = Net::default();
    let a = with("a", []).build().unwrap();
    let fake = net.fake("fake");
    fake.script(|script| script.attach = Some(error(ErrorKind::Unavailable, "no device")));
    assert_eq!(a.add_backend(fake.clone()).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(a.backends().is_empty());
    fake.script(|script| script.attach = None);
    a.add_backend(fake).unwrap();
    assert_eq!(a.backends().len(), 1);
}

#[test]
fn a_removed_backend_ends_its_transfers_and_gives_way_to_the_next() {
    let net = Net::default();
    let (first, second) = (net.fake("first"), net.fake("second"));
    let a = with("a", [&first, &second]).build().unwrap();
    let b = with("b", [&net.fake("first"), &net.fake("second")]).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(8, Access::READ_WRITE).unwrap();
    let remote = b.allocate(8, Access::READ_WRITE).unwrap().desc();
    let session = a.session(&local, &remote).unwrap();
    assert_eq!(session.backend(), "first");
    first.script(|script| script.hold = true);
    let running = [session.read(0, 0, 8, options()), a.read(&local, 0, &remote, 0, 8, options())];
    a.remove_backend("first").unwrap();
    assert!(running.iter().all(|status| kind(status) == ErrorKind::BadState), "{running:?}");
    assert!(!session.alive());
    let refused = session.read(0, 0, 8, options());
    assert_eq!(kind(&refused), ErrorKind::BadState);
    assert!(refused.message().contains("first backend of this session was removed"), "{refused:?}");
    assert!(a.desc().blob("first").is_none() && local.desc().blob("first").is_none());
    assert!(a.read(&local, 0, &remote, 0, 8, options()).is_success());
    assert_eq!(second.count("submit"), 1);
    assert_eq!(a.remove_backend("first").unwrap_err().kind(), ErrorKind::NotFound);
    // Another one of the name takes the place.
    let again = net.fake("first");
    a.add_backend(again.clone()).unwrap();
    assert!(local.desc().blob("first").is_some());
    assert_eq!(again.count("add_peer b"), 1);
}

/// S7, S6: dropping the last handle ends what runs and releases who waits; what is left answers clearly.
#[test]
fn dropping_the_engine_ends_transfers_and_releases_waiters() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let polled = net.polled("polled");
    a.add_backend(polled.clone()).unwrap();
    let b = with("b", [&net.fake("fake"), &net.polled("polled")]).build().unwrap();
    let c = with("c", [&net.polled("polled")]).build().unwrap();
    a.add_peer(&b.desc()).unwrap();
    a.add_peer(&c.desc()).unwrap();
    let local = a.register_vec(vec![5; 8], Access::READ_WRITE).unwrap();
    let of_b = b.allocate(8, Access::READ_WRITE).unwrap().desc();
    let of_c = c.allocate(8, Access::READ_WRITE).unwrap().desc();
    fake.script(|script| script.hold = true);
    polled.script(|script| script.hold = true);
    let statuses = [a.read(&local, 0, &of_b, 0, 8, options()), a.read(&local, 0, &of_c, 0, 8, options())];
    assert_eq!((fake.in_progress(), polled.in_progress()), (1, 1));
    let session = a.session(&local, &of_b).unwrap();
    let notifications = a.notifications();
    let clone = a.clone();
    drop(a);
    assert!(
        statuses.iter().all(|status| status.code() == StatusCode::InProgress),
        "a clone keeps the engine"
    );

    std::thread::scope(|scope| {
        let one = scope.spawn(|| statuses[0].wait(None));
        let other = scope.spawn(|| statuses[1].wait(None));
        let all = scope.spawn(|| mori_engine::wait_all(&statuses, None));
        let reader = scope.spawn(|| notifications.wait(None));
        polled.await_polls(1);
        drop(clone);
        let down = StatusCode::Failure(ErrorKind::BadState);
        assert_eq!((one.join().unwrap(), other.join().unwrap()), (down, down));
        assert_eq!(all.join().unwrap().failed().len(), 2);
        assert_eq!(reader.join().unwrap(), None);
    });
    assert!(statuses[0].message().contains("shut down"), "{statuses:?}");
    assert!(fake.is_down() && polled.is_down());
    assert!(!session.alive());
    assert_eq!(kind(&session.read(0, 0, 8, options())), ErrorKind::BadState);
    let mut bytes = [0; 8];
    local.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 8]);
    assert_eq!(local.region().pins(), 0);
    assert!(statuses[0].cancel().is_ok());
}

#[test]
fn after_a_shutdown_every_call_says_so() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let local = a.allocate(8, Access::READ_WRITE).unwrap();
    let remote = b.allocate(8, Access::READ_WRITE).unwrap().desc();
    assert!(!a.is_shut_down());
    a.shutdown();
    a.shutdown();
    assert!(a.is_shut_down());
    assert_eq!(fake.count("shutdown"), 1);
    let refused = [
        a.allocate(8, Access::LOCAL).map(drop),
        a.register(local.region()).map(drop),
        a.deregister(&local, Duration::ZERO),
        a.add_backend(net.fake("other")),
        a.add_peer(&b.desc()),
        a.remove_peer(b.key()),
        a.session(&local, &remote).map(drop),
    ];
    for (index, refused) in refused.into_iter().enumerate() {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState, "{index}");
        assert!(refused.message().contains("engine a is shut down"), "{index}: {refused}");
    }
    for status in [
        a.read(&local, 0, &remote, 0, 8, options()),
        a.write(&local, 0, &remote, 0, 0, options()),
        a.submit(Op::Read, &local, &remote, &[], options()),
    ] {
        assert_eq!(kind(&status), ErrorKind::BadState);
    }
    assert_eq!(a.remove_backend("fake").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(a.memory(&local.desc()).is_none() && a.peers().is_empty() && a.backends().is_empty());
    assert!(a.explain(&local, &remote).to_string().contains("shut down"));
}

/// E1 goes through the status, and the other transfers run on.
#[test]
fn one_transfer_can_be_cancelled() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let local = a.allocate(8, Access::READ_WRITE).unwrap();
    let remote = a.allocate(8, Access::READ_WRITE).unwrap().desc();
    fake.script(|script| script.hold = true);
    let statuses = [(); 2].map(|()| a.read(&local, 0, &remote, 0, 8, options()));
    statuses[0].cancel().unwrap();
    assert_eq!(kind(&statuses[0]), ErrorKind::Cancelled);
    fake.release();
    assert!(statuses[1].is_success());
}
