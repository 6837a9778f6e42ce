//! Getting to know other engines, again and no more.

use mori_engine::{
    Access, EngineDesc, EngineKey, ErrorKind, Notify, StatusCode, TransferOptions, TransportBlob,
};

use crate::fake::{Net, error, introduce, with};

fn options() -> TransferOptions {
    TransferOptions::default()
}

#[test]
fn peers_can_be_listed_and_added_twice() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    assert!(a.peers().is_empty());
    a.add_peer(&b.desc()).unwrap();
    a.add_peer(&EngineDesc::unpack(&b.desc().pack()).unwrap()).unwrap();
    assert_eq!(a.peers(), [b.desc()]);
    assert_eq!(a.peer(b.key()), Some(b.desc()));
    assert_eq!(a.peer(a.key()), None);
}

#[test]
fn backends_added_later_are_told_of_the_peers() {
    let net = Net::default();
    let a = with("a", []).build().unwrap();
    let (b, _) = net.engine("b", "fake");
    a.add_peer(&b.desc()).unwrap();
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap();
    let fake = net.fake("fake");
    a.add_backend(fake.clone()).unwrap();
    assert_eq!(fake.count("add_peer b"), 1);
    assert!(a.read(&local, 0, &remote.desc(), 0, 16, options()).is_success());
}

/// A peer restarted under its key: running transfers are lost, stale descriptors fail clearly, new ones work.
#[test]
fn a_restarted_peer_is_a_new_one() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    a.add_peer(&b.desc()).unwrap();
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let stale = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    fake.script(|script| script.hold = true);
    let running = a.read(&local, 0, &stale, 0, 16, options());
    assert_eq!(running.code(), StatusCode::InProgress);
    drop(b);

    let (b, _) = net.engine("b", "fake");
    a.add_peer(&b.desc()).unwrap();
    assert_eq!(running.error().unwrap().kind(), ErrorKind::PeerLost);
    fake.release();
    let routes = fake.count("route");
    let refused = a.read(&local, 0, &stale, 0, 16, options());
    assert_eq!(refused.error().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(fake.count("route"), routes + 1, "the session of the earlier one is not used any more");
    let fresh = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    assert!(a.read(&local, 0, &fresh, 0, 16, options()).is_success());
}

#[test]
fn a_removed_peer_ends_its_transfers_and_is_known_no_more() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    let (c, _) = net.engine("c", "fake");
    introduce([&a, &b, &c]);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let of_b = b.allocate(16, Access::READ_WRITE).unwrap().desc();
    let of_c = c.allocate(16, Access::READ_WRITE).unwrap().desc();
    fake.script(|script| script.hold = true);
    let lost = a.read(&local, 0, &of_b, 0, 16, options());
    let kept = a.read(&local, 0, &of_c, 0, 16, options());
    a.remove_peer(b.key()).unwrap();
    assert_eq!(lost.error().unwrap().kind(), ErrorKind::PeerLost);
    fake.release();
    assert!(kept.is_success());
    // The cached session is gone with the peer.
    let refused = a.read(&local, 0, &of_b, 0, 16, options()).error().unwrap();
    assert!(refused.message().contains("engine b is not known here"), "{refused}");
    assert_eq!(a.remove_peer(b.key()).unwrap_err().kind(), ErrorKind::NotFound);
    a.add_peer(&b.desc()).unwrap();
    assert!(a.read(&local, 0, &of_b, 0, 16, options()).is_success());
}

#[test]
fn an_engine_is_its_own_peer_and_stays_it() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    a.add_peer(&a.desc()).unwrap();
    let one = a.register_vec(vec![1; 8], Access::READ_WRITE).unwrap();
    let two = a.register_vec(vec![2; 8], Access::READ_WRITE).unwrap();
    let notify = Some(Notify { message: b"to myself".to_vec(), on_failure: false });
    let status = a.read(&one, 0, &two.desc(), 0, 8, TransferOptions { notify, ..options() });
    assert!(status.is_success(), "{status:?}");
    let mut bytes = [0; 8];
    one.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 8]);
    assert_eq!(a.notifications().poll().unwrap().message, b"to myself");
    assert_eq!(a.remove_peer(a.key()).unwrap_err().kind(), ErrorKind::InvalidArgument);

    let (impostor, _) = Net::default().engine("a", "fake");
    assert_eq!(a.add_peer(&impostor.desc()).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn a_descriptor_that_no_backend_takes_changes_nothing() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    a.add_peer(&b.desc()).unwrap();
    fake.script(|script| script.add_peer = Some(error(ErrorKind::Malformed, "7 bytes instead of 16")));
    let mut cut = b.desc();
    cut.transports = vec![TransportBlob { transport: "fake".to_owned(), version: 1, bytes: vec![0; 7] }];
    let refused = a.add_peer(&cut).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Malformed);
    assert!(refused.message().contains("engine b") && refused.message().contains("7 bytes"), "{refused}");
    assert_eq!(a.peers(), [b.desc()]);
    let unknown = EngineDesc { key: EngineKey::from("c"), ..cut };
    assert_eq!(a.add_peer(&unknown).unwrap_err().kind(), ErrorKind::Malformed);
    assert_eq!(a.peers().len(), 1);
}

#[test]
fn a_peer_without_a_common_transport_is_known_and_unreachable() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "other");
    a.add_peer(&b.desc()).unwrap();
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap();
    let refused = a.read(&local, 0, &remote.desc(), 0, 16, options()).error().unwrap();
    assert_eq!(refused.kind(), ErrorKind::BadState);
    assert!(refused.message().contains("fake: the peer has no such transport"), "{refused}");
}

/// A peer that speaks one transport well is known, whatever is wrong with the other one.
#[test]
fn one_good_transport_is_enough() {
    let net = Net::default();
    let (bad, good) = (net.fake("bad"), net.fake("good"));
    bad.script(|script| script.add_peer = Some(error(ErrorKind::Malformed, "another version")));
    let a = with("a", [&bad, &good]).build().unwrap();
    let b = with("b", [&net.fake("bad"), &net.fake("good")]).build().unwrap();
    a.add_peer(&b.desc()).unwrap();
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.allocate(16, Access::READ_WRITE).unwrap();
    let report = a.explain(&local, &remote.desc());
    assert_eq!(report.chosen.as_deref(), Some("good"));
    assert!(report.to_string().contains("bad: another version"), "{report}");
}
