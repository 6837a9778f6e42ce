//! Who is let in, and what those learn who are not: versions, the shared secret, identities.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::net::TcpStream;
use std::time::Duration;

use mori_core::{Access, Backend, ErrorKind, Op, Piece};
use mori_tcp::{Secret, TcpConfig};
use support::raw::{Frame, Raw, Stage, handshake_message, key_of};
use support::{Node, bytes, fail, pattern, submit, succeed, until};

const SECRET: &[u8] = b"a secret of some length";

fn config(secret: Option<&[u8]>) -> TcpConfig {
    TcpConfig {
        secret: secret.map(Secret::new),
        connections: 1,
        peer_timeout: Duration::from_secs(600),
        connect_timeout: Duration::from_secs(600),
        ..TcpConfig::default()
    }
}

/// Every pair of secrets, none included: only equal ones work, and a refusal says what to do.
#[test]
fn only_equal_secrets_work() {
    let secrets: [Option<&[u8]>; 6] = [
        None,
        Some(SECRET),
        Some(b"another"),
        Some(&[0; 16]),
        Some(&[0; 17]),
        Some(b"a secret of some length\0"),
    ];
    for near_secret in secrets {
        for far_secret in secrets {
            let (near, far) = (Node::new("near", config(near_secret)), Node::new("far", config(far_secret)));
            near.backend.add_peer(&far.desc()).unwrap();
            let (local, _) = near.region(100, Access::LOCAL);
            let (remote, desc) = far.region(100, Access::READ_WRITE);
            let content = pattern(100, 1);
            remote.write_at(0, &content).unwrap();
            let opened = near.backend.session(&local, &desc);
            if near_secret == far_secret {
                succeed(&submit(&opened.unwrap(), Op::Read, &[Piece::new(0, 0, 100)]));
                assert!(bytes(&local) == content);
                continue;
            }
            let error = opened.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{near_secret:?} {far_secret:?}: {error}");
            assert!(error.message().contains("secret"), "{error}");
            assert!(bytes(&local).iter().all(|&byte| byte == 0));
        }
    }
}

/// A target that pretends to know the secret learns nothing but random bytes: no name, and no proof that it could use
/// elsewhere.
#[test]
fn a_target_without_the_secret_learns_nothing() {
    for locked in [false, true] {
        let stage = Stage::new("far");
        let near = Node::new("near-engine-with-a-name", config(Some(SECRET)));
        near.backend.add_peer(&stage.desc()).unwrap();
        let (local, _) = near.region(100, Access::LOCAL);
        std::thread::scope(|scope| {
            let playing = scope.spawn(|| {
                let mut raw = stage.accept_silent();
                let hello = raw.message().unwrap();
                assert_eq!(hello.len(), 8 + 2 + 32);
                let mut challenge = b"mori-tcp".to_vec();
                challenge.extend_from_slice(&[1, 1, 1, u8::from(locked)]);
                challenge.extend_from_slice(&[5; 32]);
                raw.send(&handshake_message(&challenge));
                let mut heard = hello;
                if locked {
                    let proof = raw.message().unwrap();
                    assert_eq!(proof.len(), 32);
                    heard.extend(&proof);
                    // The initiator's own proof, echoed, with an identity.
                    let mut echo = proof;
                    echo.extend_from_slice(&[1; 16]);
                    echo.extend_from_slice(&[3, 0, b'f', b'a', b'r']);
                    raw.send(&handshake_message(&echo));
                }
                while let Some(byte) = raw.take(1) {
                    heard.extend(byte);
                }
                heard
            });
            let error = near.backend.session(&local, &stage.memory(100)).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
            let heard = playing.join().unwrap();
            assert!(!heard.windows(4).any(|part| part == b"near"), "the initiator said who it is");
        });
    }
}

/// An initiator without the secret learns that one is required, and changes nothing.
#[test]
fn an_initiator_without_the_secret_learns_and_changes_nothing() {
    let far = Node::new("far-engine-with-a-name", config(Some(SECRET)));
    let (region, desc) = far.region(100, Access::READ_WRITE);
    let write = Frame::write(1, key_of(&desc), 0, 100, &[1; 100]).bytes();
    let own = [7; 32];
    // A proof of something else, an empty one, a long one, none at all; each followed by requests.
    let mut proofs: Vec<Vec<u8>> = vec![
        Raw::proof(Some(b"guessed"), &own, &[0; 32]),
        handshake_message(&[]),
        handshake_message(&[1; 31]),
        handshake_message(&[1; 33]),
        handshake_message(&[1; 1000]),
        vec![],
    ];
    for guess in [None, Some(&b"guessed"[..]), Some(&SECRET[..5]), Some(&[0; 16])] {
        let mut raw = Raw::silent(far.port());
        raw.send(&Raw::hello(1, 1, &own));
        let challenge = raw.message().unwrap();
        assert_eq!(challenge.len(), 8 + 4 + 32);
        assert_eq!(challenge[8..12], [1, 1, 1, 1], "version, range, and that a secret is required");
        raw.send(&Raw::proof(guess, &own, &challenge[12..]));
        let answer = raw.message();
        assert!(answer.is_none_or(|answer| answer.is_empty()), "refused without a word");
        assert!(raw.take(1).is_none());
    }
    for proof in proofs.drain(..) {
        let mut raw = Raw::silent(far.port());
        raw.send(&Raw::hello(1, 1, &own));
        assert_eq!(raw.message().unwrap().len(), 44);
        let mut rest = proof;
        rest.extend_from_slice(&write);
        raw.send(&rest);
        let mut heard = Vec::new();
        while let Some(byte) = raw.take(1) {
            heard.extend(byte);
        }
        assert!(heard.is_empty() || heard == [0, 0], "{heard:?}");
    }
    assert!(bytes(&region).iter().all(|&byte| byte == 0));
    assert!(far.notifications.is_empty());
}

/// A proof is good for one connection only.
#[test]
fn a_replayed_proof_is_refused() {
    let far = Node::new("far", config(Some(SECRET)));
    let own = [7; 32];
    let mut first = Raw::silent(far.port());
    first.send(&Raw::hello(1, 1, &own));
    let challenge = first.message().unwrap();
    let proof = Raw::proof(Some(SECRET), &own, &challenge[12..]);
    first.send(&proof);
    assert!(first.message().unwrap().len() > 32, "the proof is right");
    let mut second = Raw::silent(far.port());
    second.send(&Raw::hello(1, 1, &own));
    let other = second.message().unwrap();
    assert_ne!(challenge, other, "each connection has its own challenge");
    second.send(&proof);
    assert!(second.message().is_none_or(|answer| answer.is_empty()));
    assert!(second.take(1).is_none());
}

/// The challenge of one side, reflected at its own listening port, makes no proof.
#[test]
fn a_reflected_challenge_makes_no_proof() {
    let stage = Stage::new("far");
    let near = Node::new("near", config(Some(SECRET)));
    near.backend.add_peer(&stage.desc()).unwrap();
    let (local, _) = near.region(100, Access::LOCAL);
    std::thread::scope(|scope| {
        let playing = scope.spawn(|| {
            let mut victim = stage.accept_silent();
            let hello = victim.message().unwrap();
            // The victim's own listener is asked to answer the victim.
            let mut mirror = Raw::silent(near.port());
            mirror.send(&handshake_message(&hello));
            let challenge = mirror.message().unwrap();
            victim.send(&handshake_message(&challenge));
            let proof = victim.message().unwrap();
            mirror.send(&handshake_message(&proof));
            // The mirror is satisfied: it talks to somebody who knows the secret. What it answers says who it is, and that is
            // not who the victim wants to talk to.
            let accept = mirror.message().unwrap();
            victim.send(&handshake_message(&accept));
            assert!(victim.message().is_none(), "the victim takes its own mirror for its peer");
        });
        let error = near.backend.session(&local, &stage.memory(100)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        playing.join().unwrap();
    });
}

/// Other versions are refused by name, on both sides; ranges that overlap meet.
#[test]
fn versions_are_negotiated_or_refused_by_name() {
    let far = Node::new("far", config(None));
    for (lowest, highest, agreed) in
        [(1, 1, 1), (0, 1, 1), (1, 9, 1), (0, 255, 1), (2, 9, 0), (0, 0, 0), (9, 2, 0)]
    {
        let mut raw = Raw::silent(far.port());
        raw.send(&Raw::hello(lowest, highest, &[7; 32]));
        let challenge = raw.message().unwrap();
        assert_eq!(challenge[8..11], [agreed, 1, 1], "{lowest} to {highest}");
        if agreed == 0 {
            assert!(raw.take(1).is_none());
        }
    }
    // What an initiator says about a target of another version stands in `hostile_target`.
}

/// Names of every length and script go through; the engines know each other by them.
#[test]
fn names_of_every_length() {
    let long = "ü".repeat(256);
    for name in ["x", "prefill-0", "knoten – drei", &long] {
        let (near, far) = (Node::new(name, config(Some(SECRET))), Node::new("far", config(Some(SECRET))));
        near.backend.add_peer(&far.desc()).unwrap();
        let (local, _) = near.region(10, Access::LOCAL);
        let (_remote, desc) = far.region(10, Access::READ_WRITE);
        let session = near.session(&local, &desc);
        succeed(&session.submit(Op::Read, &[Piece::new(0, 0, 10)], &support::notify(1, b"who?", false)));
        assert_eq!(far.notifications.wait(support::PATIENCE).unwrap().peer, name.into());
    }
    let error = Node::try_new(&"x".repeat(513), config(None)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// Connections that come and go before, in and after the handshake leave nothing behind that keeps others out.
#[test]
fn strangers_that_come_and_go_keep_nobody_out() {
    let far = Node::new("far", config(Some(SECRET)));
    for round in 0..300 {
        match round % 3 {
            0 => drop(TcpStream::connect(("127.0.0.1", far.port())).unwrap()),
            1 => {
                let mut raw = Raw::silent(far.port());
                raw.send(&Raw::hello(1, 1, &[7; 32]));
            }
            _ => drop(Raw::connect_with(far.port(), "friend", Some(SECRET)).ok().unwrap()),
        }
    }
    let near = Node::new("near", config(Some(SECRET)));
    near.backend.add_peer(&far.desc()).unwrap();
    let (local, _) = near.region(10, Access::LOCAL);
    let (_remote, desc) = far.region(10, Access::READ_WRITE);
    succeed(&submit(&near.session(&local, &desc), Op::Read, &[Piece::new(0, 0, 10)]));
}

/// A secret that is changed at one side keeps transfers from going on; changed back, they go on.
#[test]
fn a_peer_that_comes_back_with_another_secret_is_refused() {
    let near = Node::new("near", config(Some(SECRET)));
    let far = Node::new("far", config(Some(SECRET)));
    let relay = support::relay::Relay::new(far.port()).unwrap();
    near.backend.add_peer(&far.behind(&relay)).unwrap();
    let (local, _) = near.region(10, Access::LOCAL);
    let (_remote, desc) = far.region(10, Access::READ_WRITE);
    let session = near.session(&local, &desc);
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 10)]));
    let stranger = Node::new("far", config(Some(b"another")));
    let detour = support::relay::Relay::new(stranger.port()).unwrap();
    near.backend.add_peer(&far.behind(&detour)).unwrap();
    relay.cut();
    until("the loss is noticed", || !session.alive());
    for op in [Op::Read, Op::Write] {
        fail(&submit(&session, op, &[Piece::new(0, 0, 10)]), ErrorKind::AccessDenied);
    }
    relay.flow();
    near.backend.add_peer(&far.behind(&relay)).unwrap();
    succeed(&submit(&session, Op::Read, &[Piece::new(0, 0, 10)]));
}
