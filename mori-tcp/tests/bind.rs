//! Where a backend listens, and what it tells its peers about that.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use mori_core::{Access, Backend, EngineDesc, ErrorKind, Op, Piece};
use mori_tcp::TcpConfig;
use support::{Node, bytes, pattern, submit, succeed};

fn at(bind: &str, advertise: Option<&str>) -> TcpConfig {
    TcpConfig { bind: bind.into(), advertise: advertise.map(Into::into), ..TcpConfig::default() }
}

/// Wants a transfer between a node and another that knows it only by its descriptor.
fn reachable(far: &Node) {
    let near = Node::new("near", TcpConfig::default());
    near.backend.add_peer(&EngineDesc::unpack(&far.desc().pack()).unwrap()).unwrap();
    let (local, _) = near.region(1000, Access::LOCAL);
    let (remote, desc) = far.region(1000, Access::READ_WRITE);
    let content = pattern(1000, 4);
    remote.write_at(0, &content).unwrap();
    succeed(&submit(&near.session(&local, &desc), Op::Read, &[Piece::new(0, 0, 1000)]));
    assert!(bytes(&local) == content);
}

#[test]
fn the_default_is_loopback_with_a_free_port() {
    let node = Node::new("far", TcpConfig::default());
    assert_eq!(node.attachment.host.as_deref(), Some("127.0.0.1"));
    assert_ne!(node.port(), 0);
    let other = Node::new("other", TcpConfig::default());
    assert_ne!(node.port(), other.port());
    reachable(&node);
}

#[test]
fn names_and_both_families_of_addresses() {
    for (bind, advertise, told) in [
        ("[::1]:0", None, "::1"),
        ("localhost:0", Some("localhost"), "localhost"),
        // A name with several addresses, only one of which is listened on.
        ("127.0.0.1:0", Some("localhost"), "localhost"),
        ("127.0.0.1:0", Some("127.0.0.1"), "127.0.0.1"),
        ("0.0.0.0:0", Some("127.0.0.1"), "127.0.0.1"),
        ("[::]:0", Some("::1"), "::1"),
        ("[::]:0", Some("[::1]"), "::1"),
    ] {
        let node = Node::new("far", at(bind, advertise));
        assert_eq!(node.attachment.host.as_deref(), Some(told), "{bind}");
        reachable(&node);
    }
}

/// Without being told, a node that listens everywhere advertises the machine's name.
#[test]
fn an_unspecified_address_is_advertised_as_the_machines_name() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for bind in ["0.0.0.0:0", "[::]:0"] {
        let node = Node::new("far", at(bind, None));
        assert_eq!(node.attachment.host.as_deref(), Some(name.trim()));
        // It is really listened on, also at addresses that are not advertised.
        let mut desc = node.desc();
        let loopback = Node::new("loopback", TcpConfig::default()).desc();
        desc.transports[0].bytes.truncate(18);
        desc.transports[0].bytes.extend_from_slice(&loopback.transports[0].bytes[18..]);
        let near = Node::new("near", TcpConfig::default());
        near.backend.add_peer(&desc).unwrap();
        let (local, _) = near.region(10, Access::LOCAL);
        let (_remote, desc) = node.region(10, Access::READ_WRITE);
        succeed(&submit(&near.session(&local, &desc), Op::Read, &[Piece::new(0, 0, 10)]));
    }
}

/// A port in use is an answer that names the port and says what to do, and harms neither side.
#[test]
fn a_port_in_use_is_unavailable() {
    let first = Node::new("far", TcpConfig::default());
    let bind = format!("127.0.0.1:{}", first.port());
    let error = Node::try_new("second", at(&bind, None)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains(&bind) && error.message().contains("another port"), "{error}");
    assert_eq!(error.cause().unwrap().domain, "errno");
    reachable(&first);
    // The port of a backend that has been shut down can be had again, at once.
    first.backend.shutdown();
    let again = Node::new("far", at(&bind, None));
    assert_eq!(again.port().to_string(), bind.rsplit(':').next().unwrap());
    reachable(&again);
}

/// A backend that could not listen can be tried again when the port is free.
#[test]
fn attaching_can_be_tried_again() {
    let first = Node::new("far", TcpConfig::default());
    let bind = format!("127.0.0.1:{}", first.port());
    let backend = mori_tcp::TcpBackend::new(at(&bind, None)).unwrap();
    let context = || mori_core::BackendContext {
        engine: "second".into(),
        instance: support::instance(),
        node_id: "test".into(),
        notifications: mori_core::NotificationQueue::new(1),
    };
    assert_eq!(backend.attach(context()).unwrap_err().kind(), ErrorKind::Unavailable);
    drop(first);
    backend.attach(context()).unwrap();
}

#[test]
fn what_cannot_be_listened_on_is_refused_with_its_name() {
    for (bind, kind) in [
        ("", ErrorKind::InvalidArgument),
        ("127.0.0.1", ErrorKind::InvalidArgument),
        ("127.0.0.1:port", ErrorKind::InvalidArgument),
        ("127.0.0.1:65536", ErrorKind::InvalidArgument),
        ("::1:0:0:zero", ErrorKind::InvalidArgument),
        // An address of nobody here, set aside for documentation.
        ("192.0.2.1:0", ErrorKind::Unavailable),
        ("[2001:db8::1]:0", ErrorKind::Unavailable),
    ] {
        let error = Node::try_new("far", at(bind, None)).map(drop).unwrap_err();
        assert_eq!(error.kind(), kind, "{bind}: {error}");
        assert!(error.message().contains(bind), "{error}");
    }
}
