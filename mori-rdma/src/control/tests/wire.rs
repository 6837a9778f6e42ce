//! Decoders and the cutting of frames under any bytes: never a panic, never more than the limits.

use proptest::collection::vec;
use proptest::prelude::*;

use super::golden::{REGION, REGION_ANSWER, REGISTER, note};
use super::*;
use crate::control::message::{Answer, MAX_BODY};
use crate::control::stream::Frames;

/// Everything that reads a body.
fn read_all(frame: &Frame) {
    let _ = message::legacy_request(frame);
    let _ = message::legacy_answer(frame.kind, frame);
    let _ = message::to_target(frame);
    let _ = message::to_initiator(frame);
    let _ = handshake::challenge(frame, [0; 32], None);
    let _ = handshake::prove(frame, [0; 32], None);
    let nonces = Nonces { initiator: [0; 32], target: [0; 32] };
    let _ = handshake::accept(frame, &nonces, None, &identity("x"));
    let _ = handshake::identify(frame, &nonces, None, &identity("x"));
    let _ = handshake::identified(frame);
    let _ = handshake::refused(frame);
}

const KINDS: [u8; 18] =
    [0, 1, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x50, 0x51, 0x52, 0x53, 0x54, 0x60, 0x61, 0x62, 0x63, 0x64];

/// One good message of every kind.
fn good() -> Vec<Vec<u8>> {
    let (nonces, challenge, _) =
        handshake::challenge(&super::golden::frame_of(&handshake::hello(&[1; 32])), [2; 32], None).unwrap();
    let proof_frame = handshake::prove(&super::golden::frame_of(&challenge), [1; 32], None).unwrap().1;
    let accept =
        handshake::accept(&super::golden::frame_of(&proof_frame), &nonces, None, &identity("x")).unwrap();
    let who =
        handshake::identify(&super::golden::frame_of(&accept), &nonces, None, &identity("y")).unwrap().1;
    let why = Error::new(ErrorKind::Busy, "no");
    vec![
        REGISTER.to_vec(),
        REGION.to_vec(),
        REGION_ANSWER.to_vec(),
        handshake::hello(&[1; 32]),
        challenge,
        proof_frame,
        accept,
        who,
        handshake::refusal(&why),
        message::request(1, &Request::Register(register(1, 2))),
        message::request(1, &Request::Region { device: 1, memory: 2 }),
        message::request(1, &Request::Retire { lane: 3 }),
        message::note(&note(vec![1, 2, 3])).unwrap(),
        message::answer(1, &Answer::Endpoint(endpoint())),
        message::answer(1, &Answer::Keys(keys_of(3))),
        message::answer(1, &Answer::Failed(why)),
    ]
}

#[test]
fn a_good_message_cut_anywhere_is_malformed() {
    for bytes in good() {
        let whole = super::golden::frame_of(&bytes);
        for length in 0..whole.body.len() {
            let cut = Frame { kind: whole.kind, body: whole.body[..length].to_vec() };
            read_all(&cut);
            let read = match cut.kind {
                0 | 1 => message::legacy_request(&cut).map(drop),
                0x50..=0x5f => message::to_target(&cut).map(drop),
                0x60.. => message::to_initiator(&cut).map(drop),
                _ => continue,
            };
            assert_eq!(read.map_err(|error| error.kind()), Err(ErrorKind::Malformed), "{cut:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_without_a_panic(which in 0..KINDS.len(), body in vec(any::<u8>(), 0..200)) {
        read_all(&Frame { kind: KINDS[which], body });
    }

    #[test]
    fn good_messages_with_bytes_changed_are_read_without_a_panic(
        which in 0..good().len(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let all = good();
        let mut frame = super::golden::frame_of(&all[which]);
        for (at, byte) in changes {
            let at = at.index(frame.body.len());
            frame.body[at] = byte;
        }
        if cuts {
            frame.body.truncate(cut.index(frame.body.len()));
        }
        read_all(&frame);
    }

    /// However the bytes arrive, the same frames come out.
    #[test]
    fn frames_are_cut_the_same_however_they_arrive(
        frames in vec((any::<u8>(), vec(any::<u8>(), 0..60)), 0..12),
        parts in vec(1..40_usize, 1..60),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(kind, body)| message::frame(*kind, body)).collect();
        let now = Clock::system().now();
        let mut reader = Frames::default();
        let mut read = Vec::new();
        let mut rest = bytes.as_slice();
        let mut parts = parts.iter().cycle();
        while !rest.is_empty() {
            let (part, after) = rest.split_at((*parts.next().unwrap()).min(rest.len()));
            rest = after;
            reader.push(part, now);
            while let Some(frame) = reader.next(now).unwrap() {
                read.push((frame.kind, frame.body));
            }
            prop_assert_eq!(reader.begun().is_some(), bytes.len() - rest.len() > total(&read));
        }
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_at_once(kind in any::<u8>(), length in (MAX_BODY as u32 + 1)..) {
        let now = Clock::system().now();
        let mut reader = Frames::default();
        let [a, b, c, d] = length.to_be_bytes();
        reader.push(&[kind, a, b, c, d], now);
        prop_assert_eq!(reader.next(now).unwrap_err().kind(), ErrorKind::Malformed);
    }
}

fn total(frames: &[(u8, Vec<u8>)]) -> usize {
    frames.iter().map(|(_, body)| HEAD + body.len()).sum()
}
