//! Which backend carries a pair, and what is said about the others.

use mori_engine::{Access, Capabilities, ErrorKind, MemoryDesc, MemoryKind, Piece, Status, TransferOptions};

use crate::fake::{ABLE, Net, error, introduce, with};

fn why(status: &Status) -> (ErrorKind, String) {
    let error = status.error().unwrap();
    (error.kind(), error.message().to_owned())
}

#[test]
fn the_declared_preference_chooses() {
    let net = Net::default();
    for (prefer, expected) in [
        (vec![], ["slow", "fast"]),
        (vec!["fast", "slow"], ["fast", "slow"]),
        (vec!["fast"], ["fast", "slow"]),
        (vec!["absent", "slow"], ["slow", "fast"]),
    ] {
        let a = with("a", [&net.fake("slow"), &net.fake("fast")]).prefer(prefer.clone()).build().unwrap();
        let b = with("b", [&net.fake("fast"), &net.fake("slow")]).build().unwrap();
        introduce([&a, &b]);
        let local = a.allocate(16, Access::READ_WRITE).unwrap();
        let remote = b.allocate(16, Access::READ_WRITE).unwrap().desc();
        let report = a.explain(&local, &remote);
        let considered: Vec<&str> = report.considered.iter().map(|one| one.backend.as_str()).collect();
        assert_eq!(considered, expected, "{prefer:?}");
        assert_eq!(report.chosen.as_deref(), Some(expected[0]), "{prefer:?}");
        assert_eq!(report.error(), None);
        assert_eq!(a.session(&local, &remote).unwrap().backend(), expected[0], "{prefer:?}");
        let infos: Vec<&str> = a.backends().iter().map(|info| info.name).collect();
        assert_eq!(infos, expected, "{prefer:?}");
    }
}

#[test]
fn backends_for_devices_are_tried_before_the_others() {
    let net = Net::default();
    let device = || net.build("device", true, Capabilities { device_memory: true, ..ABLE });
    let a = with("a", [&net.fake("host"), &device()]).build().unwrap();
    let b = with("b", [&net.fake("host"), &device()]).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    assert_eq!(a.explain(&local, &remote).chosen.as_deref(), Some("device"));
}

#[test]
fn without_a_backend_submissions_and_sessions_say_so() {
    let a = mori_engine::Engine::builder("a").build().unwrap();
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let status = a.read(&local, 0, &local.desc(), 0, 16, TransferOptions::tagged(5));
    assert_eq!(status.tag(), mori_engine::Tag(5));
    let (kind, message) = why(&status);
    assert_eq!(kind, ErrorKind::BadState);
    assert!(message.contains("no backend"), "{message}");
    let refused = a.session(&local, &local.desc()).unwrap_err();
    assert_eq!((refused.kind(), refused.message()), (kind, message.as_str()));
    assert_eq!(a.explain(&local, &local.desc()).error(), Some(refused));
}

#[test]
fn an_unknown_engine_is_named_with_what_to_do() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    let (kind, message) = why(&a.read(&local, 0, &remote, 0, 16, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::BadState);
    assert!(message.contains("engine b is not known here") && message.contains("add_peer"), "{message}");
    assert!(a.explain(&local, &remote).considered.is_empty());
}

/// Five backends, each unfit in its own way: every one is in the message with its own reason.
#[test]
fn every_backend_that_was_tried_is_listed_with_its_reason() {
    let net = Net::default();
    let names = ["kind", "failed", "absent", "unregistered", "routeless"];
    let ours = names.map(|name| net.fake(name));
    ours[0].script(|script| script.other_kind = true);
    ours[1].script(|script| {
        script.register = Some(error(ErrorKind::ResourceExhausted, "locked memory is used up"));
    });
    ours[4].script(|script| script.route = Some(error(ErrorKind::Unsupported, "the device is elsewhere")));
    let a = with("a", [&ours[0], &ours[1], &ours[2], &ours[3], &ours[4]]).build().unwrap();
    let theirs = names.map(|name| net.fake(name));
    theirs[3].script(|script| script.other_kind = true);
    let b = with("b", [&theirs[0], &theirs[1], &theirs[3], &theirs[4]]).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap().desc();

    let expected = [
        ("kind", ErrorKind::Unsupported, "cannot carry the local memory's kind"),
        (
            "failed",
            ErrorKind::ResourceExhausted,
            "could not register the local memory: locked memory is used up",
        ),
        ("absent", ErrorKind::NotFound, "the peer has no such transport"),
        ("unregistered", ErrorKind::NotFound, "the remote memory is not registered with this transport"),
        ("routeless", ErrorKind::Unsupported, "the device is elsewhere"),
    ];
    let report = a.explain(&local, &remote);
    assert_eq!(report.chosen, None);
    let (kind, message) = why(&a.read(&local, 0, &remote, 0, 16, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::BadState);
    for ((backend, kind, reason), considered) in expected.iter().zip(&report.considered) {
        assert_eq!(considered.backend, *backend);
        let verdict = considered.verdict.clone().unwrap_err();
        assert_eq!(verdict.kind(), *kind, "{backend}");
        assert!(verdict.message().contains(reason), "{backend}: {verdict}");
        assert!(message.contains(&format!("{backend}: {reason}")) || message.contains(reason), "{message}");
        assert!(report.to_string().contains(&format!("\n  {backend}: ")), "{report}");
    }
    assert_eq!(report.considered.len(), expected.len());
    assert_eq!(a.session(&local, &remote).unwrap_err().message(), message);
}

#[test]
fn the_next_backend_in_the_order_carries_what_the_first_cannot() {
    let net = Net::default();
    let (first, second) = (net.fake("first"), net.fake("second"));
    first.script(|script| script.route = Some(error(ErrorKind::Unsupported, "not this pair")));
    let a = with("a", [&first, &second]).build().unwrap();
    let b = with("b", [&net.fake("first"), &net.fake("second")]).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    let report = a.explain(&local, &remote);
    assert_eq!(report.chosen.as_deref(), Some("second"));
    let text = report.to_string();
    assert!(text.contains("over second") && text.contains("first: not this pair"), "{text}");
    assert!(a.read(&local, 0, &remote, 0, 16, TransferOptions::default()).is_success());
    assert_eq!((first.count("submit"), second.count("submit")), (0, 1));
}

/// A chosen backend that cannot connect is an answer, not a reason to go slower in silence.
#[test]
fn a_session_that_cannot_connect_does_not_fall_back() {
    let net = Net::default();
    let (first, second) = (net.fake("first"), net.fake("second"));
    first.script(|script| script.session = Some(error(ErrorKind::AccessDenied, "wrong secret")));
    let a = with("a", [&first, &second]).build().unwrap();
    let b = with("b", [&net.fake("first"), &net.fake("second")]).build().unwrap();
    introduce([&a, &b]);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    let (kind, message) = why(&a.read(&local, 0, &remote, 0, 16, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::AccessDenied);
    assert!(message.contains("engine b over first") && message.contains("wrong secret"), "{message}");
    assert_eq!(second.count("session"), 0);
    // It is asked again for the next transfer, and works then.
    first.script(|script| script.session = None);
    assert!(a.read(&local, 0, &remote, 0, 16, TransferOptions::default()).is_success());
}

#[test]
fn memory_of_another_engine_or_of_none_has_no_route() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let foreign = b.allocate(16, Access::READ_WRITE).unwrap();
    let (kind, message) = why(&a.read(&foreign, 0, &foreign.desc(), 0, 16, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(message.contains("not registered with this engine"), "{message}");
    let gone = a.allocate(16, Access::READ_WRITE).unwrap();
    a.deregister(&gone, None).unwrap();
    let (kind, _) = why(&a.read(&gone, 0, &foreign.desc(), 0, 16, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::NotFound);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let unknown = MemoryDesc { kind: MemoryKind::Unknown, ..foreign.desc() };
    let (kind, _) = why(&a.read(&local, 0, &unknown, 0, 16, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::Unsupported);
}

#[test]
fn what_needs_no_route_succeeds_without_one_and_what_is_wrong_is_wrong_without_one() {
    let a = mori_engine::Engine::builder("a").build().unwrap();
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let desc = local.desc();
    assert!(a.read(&local, 16, &desc, 0, 0, TransferOptions::default()).is_success());
    assert!(a.submit(mori_engine::Op::Write, &local, &desc, &[], TransferOptions::default()).is_success());
    let beyond = [Piece::new(0, 0, 17)];
    let (kind, _) =
        why(&a.submit(mori_engine::Op::Write, &local, &desc, &beyond, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::InvalidArgument);
}

/// A backend that knows the remote memory as gone makes the answer one that programs can act on.
#[test]
fn stale_remote_memory_is_not_found() {
    let net = Net::default();
    let (first, second) = (net.fake("first"), net.fake("second"));
    first.script(|script| script.route = Some(error(ErrorKind::NotFound, "the descriptor is stale")));
    second.script(|script| script.route = Some(error(ErrorKind::Unsupported, "not this pair")));
    let a = with("a", [&first, &second]).build().unwrap();
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let (kind, message) = why(&a.read(&local, 0, &local.desc(), 0, 16, TransferOptions::default()));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(message.contains("first: the descriptor is stale; second: not this pair"), "{message}");
}
