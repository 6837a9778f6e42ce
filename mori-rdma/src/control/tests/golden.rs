//! The bytes of both protocols, written out by hand from their description.

use super::*;
use crate::control::message::{Answer, ToTarget};

/// Type 0 of "prefill-0": GPU 0 on node 1 asks for host memory on an unknown node, device 3.
#[rustfmt::skip]
pub(super) const REGISTER: &[u8] = &[
    0x00, 0x00, 0x00, 0x00, 0x3e,
    0x96,
    0xa9, b'p', b'r', b'e', b'f', b'i', b'l', b'l', b'-', b'0',
    0x92, 0x93, 0x00, 0x02, 0x01, 0x93, 0xff, 0x01, 0xff,
    0x03,
    0x95, 0xce, 0x00, 0x12, 0x34, 0x56, 0xcd, 0x01, 0xab, 0x01,
    0x91, 0x00,
    0x92, 0xc4, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0x0a, 0x00, 0x00, 0x01,
    0xc4, 0x06, 0x02, 0x00, 0x00, 0x00, 0x00, 0x07,
    0x02,
    0xff,
];

/// Type 1 of "d": the keys of memory 300 on device 1, asked for.
#[rustfmt::skip]
pub(super) const REGION: &[u8] = &[
    0x01, 0x00, 0x00, 0x00, 0x0c,
    0x94, 0xa1, b'd', 0x01, 0xcd, 0x01, 0x2c, 0x94, 0x00, 0x00, 0x00, 0x00,
];

/// The same, answered.
#[rustfmt::skip]
pub(super) const REGION_ANSWER: &[u8] = &[
    0x01, 0x00, 0x00, 0x00, 0x1d,
    0x94, 0xa1, b'd', 0x01, 0xcd, 0x01, 0x2c,
    0x94,
    0xcf, 0x00, 0x00, 0x7f, 0x00, 0x00, 0x00, 0x10, 0x00,
    0xcc, 0x80,
    0xce, 0x00, 0x01, 0x23, 0x45,
    0xce, 0x00, 0x01, 0x00, 0x00,
];

const KEYS: RegionKeys = RegionKeys { address: 0x7f00_0000_1000, lkey: 0x80, rkey: 0x12345, length: 65536 };

pub(super) fn frame_of(bytes: &[u8]) -> Frame {
    let (kind, length) = message::head(bytes[..HEAD].try_into().unwrap()).unwrap();
    assert_eq!(bytes.len(), HEAD + length);
    Frame { kind, body: bytes[HEAD..].to_vec() }
}

/// What existing peers know of a request.
pub(super) fn as_legacy(request: EndpointRequest) -> EndpointRequest {
    let endpoint = Endpoint { mtu: 0, rd_atomic: 0, ..request.endpoint };
    EndpointRequest { endpoint, lane: 0, ..request }
}

#[test]
fn an_endpoint_message_of_existing_peers() {
    assert_eq!(message::legacy_register(&key("prefill-0"), &register(3, 7)), REGISTER);
    let (from, request) = message::legacy_request(&frame_of(REGISTER)).unwrap();
    assert_eq!(from, key("prefill-0"));
    assert_eq!(request, Request::Register(as_legacy(register(3, 0))));
    let answer = message::legacy_answer(0, &frame_of(REGISTER)).unwrap();
    assert_eq!(answer, Answer::Endpoint(as_legacy(register(3, 0)).endpoint));
}

#[test]
fn a_region_message_of_existing_peers() {
    assert_eq!(message::legacy_region(&key("d"), 1, 300, &RegionKeys::default()), REGION);
    assert_eq!(message::legacy_region(&key("d"), 1, 300, &KEYS), REGION_ANSWER);
    let (from, request) = message::legacy_request(&frame_of(REGION)).unwrap();
    assert_eq!((from, request), (key("d"), Request::Region { device: 1, memory: 300 }));
    assert_eq!(message::legacy_answer(1, &frame_of(REGION_ANSWER)).unwrap(), Answer::Keys(KEYS));
    assert!(message::legacy_answer(0, &frame_of(REGION_ANSWER)).is_err(), "an answer of the other type");
}

/// Every array of existing peers' messages with one more field at its end, of whatever type.
#[test]
fn further_fields_are_skipped() {
    #[rustfmt::skip]
    let body = vec![
        0x97,
        0xa1, b'p',
        0x93, 0x94, 0x00, 0x02, 0x01, 0xc3, 0x94, 0xff, 0x01, 0xff, 0xa1, b'x', 0x80,
        0x03,
        0x98, 0x05, 0x06, 0x01,
        0x92, 0x09, 0xc0,
        0x93, 0xc4, 0x10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0xc4, 0x06, 2, 2, 2, 2, 2, 2, 0x91, 0x90,
        0x04, 0x05, 0xa3, b'n', b'e', b'w',
        0x02, 0x01,
        0xca, 0, 0, 0, 0,
    ];
    let (_, request) = message::legacy_request(&Frame { kind: 0, body }).unwrap();
    let Request::Register(request) = request else { panic!("{request:?}") };
    let expected =
        Endpoint { psn: 5, qpn: 6, port: 1, lid: 9, gid: [1; 16], mac: [2; 6], mtu: 0, rd_atomic: 0 };
    assert_eq!(request.endpoint, expected);
    assert_eq!((request.nic_rank, request.rail), (2, 1));
}

/// The rank, the rail, the Ethernet address and the node are what an older peer may not have.
#[test]
fn missing_fields_at_the_end_have_defaults() {
    let body = vec![0x94, 0xa1, b'p', 0x92, 0x92, 0, 2, 0x92, 0, 1, 0x03, 0x94, 5, 6, 1, 0x91, 9];
    let (_, request) = message::legacy_request(&Frame { kind: 0, body }).unwrap();
    let Request::Register(request) = request else { panic!("{request:?}") };
    assert_eq!((request.local.numa, request.nic_rank, request.rail), (-1, -1, -1));
    assert_eq!((request.endpoint.lid, request.endpoint.gid), (9, [0; 16]));
    let body = vec![0x93, 0xa1, b'd', 1, 7];
    let (_, request) = message::legacy_request(&Frame { kind: 1, body }).unwrap();
    assert_eq!(request, Request::Region { device: 1, memory: 7 });
}

#[test]
fn what_cannot_be_is_refused_and_named() {
    #[rustfmt::skip]
    let cases: [(u8, &[u8], &str); 6] = [
        (0, &[0x93, 0xa1, b'p', 0x92, 0x92, 0, 2, 0x92, 0, 1, 3], "too short"),
        (0, &[0x94, 0xa1, b'p', 0x92, 0x92, 0, 2, 0x92, 0, 1, 0xff, 0x93, 5, 6, 1], "device index"),
        (0, &[0x94, 0xa1, b'p', 0x92, 0x92, 0, 2, 0x92, 0, 1, 3, 0x93, 5, 6, 0xcd, 1, 0], "port"),
        (0, &[0x94, 0xa1, b'p', 0x92, 0x92, 0, 2, 0x92, 0, 1, 3, 0x95, 5, 6, 1, 0x91, 9, 0x92, 0xc4, 1, 0, 0], "gid"),
        (1, &[0x93, 0xda, 0x02, 0x01, b'k'], "engine key"),
        (2, &[0x90], "type 0x02"),
    ];
    for (kind, body, names) in cases {
        let error = message::legacy_request(&Frame { kind, body: body.to_vec() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert!(error.message().contains(names), "{error} does not name {names}");
    }
}

#[test]
fn messages_of_the_own_protocol() {
    #[rustfmt::skip]
    let hello = [
        &[0x40, 0, 0, 0, 0x2f, 0x94, 0xa9][..], b"mori-rdma", &[1, 1, 0xc4, 0x20], &[7; 32],
    ].concat();
    assert_eq!(handshake::hello(&[7; 32]), hello);
    assert_eq!(message::request(5, &Request::Ping), [0x53, 0, 0, 0, 2, 0x91, 5]);
    assert_eq!(message::request(5, &Request::Retire { lane: 9 }), [0x52, 0, 0, 0, 3, 0x92, 5, 9]);
    assert_eq!(message::answer(5, &Answer::Done), [0x62, 0, 0, 0, 2, 0x91, 5]);
    let failed = Answer::Failed(Error::new(ErrorKind::NotFound, "no"));
    assert_eq!(message::answer(5, &failed), [0x63, 0, 0, 0, 6, 0x93, 5, 12, 0xa2, b'n', b'o']);
    let register = message::request(8, &Request::Register(register(3, 7)));
    // The id, the same fields as those of existing peers, two more in the endpoint, the lane.
    let mut body = [&[0x97, 8][..], &REGISTER[HEAD + 11..], &[7]].concat();
    body[12] = 0x97;
    let at = body.len() - 3;
    body.splice(at..at, [5, 16]);
    assert_eq!(register[0], 0x50);
    assert_eq!(&register[HEAD..], body);
}

#[test]
fn everything_of_the_own_protocol_goes_both_ways() {
    let requests = [
        Request::Register(register(u32::MAX, u64::MAX)),
        Request::Region { device: 0, memory: u64::MAX },
        Request::Retire { lane: 1 << 40 },
        Request::Ping,
    ];
    for request in requests {
        let read = message::to_target(&frame_of(&message::request(u64::MAX, &request))).unwrap();
        assert_eq!(read, ToTarget::Request { id: u64::MAX, request });
    }
    let answers = [
        Answer::Endpoint(endpoint()),
        Answer::Keys(KEYS),
        Answer::Done,
        Answer::Failed(Error::new(ErrorKind::Busy, "später")),
    ];
    for answer in answers {
        let read = message::to_initiator(&frame_of(&message::answer(3, &answer))).unwrap();
        assert_eq!(read, (3, answer));
    }
    let note = note(vec![5; mori_core::MAX_NOTIFICATION]);
    let read = message::to_target(&frame_of(&message::note(&note).unwrap())).unwrap();
    assert_eq!(read, ToTarget::Note(note.clone()));
    let long = FailureNote { message: vec![5; mori_core::MAX_NOTIFICATION + 1], ..note };
    assert_eq!(message::note(&long).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

pub(super) fn note(message: Vec<u8>) -> FailureNote {
    let error = Error::new(ErrorKind::PeerLost, "the cable was cut");
    FailureNote { lane: 3, transfer: 17, tag: u64::MAX, message, error }
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let error = Error::new(ErrorKind::Busy, format!("x{}", "é".repeat(5000)));
    let (_, Answer::Failed(read)) =
        message::to_initiator(&frame_of(&message::answer(1, &Answer::Failed(error)))).unwrap()
    else {
        panic!("another answer")
    };
    assert_eq!(read.message().len(), 2047);
}
