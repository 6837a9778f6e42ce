//! Frames and their bodies, in both protocols.
//!
//! A frame is one byte type, the length of the body in 32 bits (big-endian), and the body: one MessagePack array, positional.
//! Further fields are skipped, missing ones at the end have defaults where that makes sense. Existing peers speak two types,
//! a request and an answer of the same type:
//!
//! | type | body |
//! |---|---|
//! | 0 | `[engine key, [[device, location, numa] local, [device, location, numa] remote], device index, endpoint, nic rank, rail]` |
//! | 1 | `[engine key, device index, memory id, [address, lkey, rkey, length]]` |
//!
//! where an endpoint is `[psn, qpn, port, [lid], [gid, mac]]` and a location 1 for the host, 2 for a GPU. The own protocol
//! appends `mtu, rd_atomic` to an endpoint, and has types of its own:
//!
//! | type | from | body |
//! |---|---|---|
//! | 0x40–0x45 | both | the handshake, see [`handshake`](super::handshake) |
//! | 0x50 register | initiator | `[id, [local, remote], device index, endpoint, nic rank, rail, lane]` |
//! | 0x51 region | initiator | `[id, device index, memory id]` |
//! | 0x52 retire | initiator | `[id, lane]` |
//! | 0x53 ping | initiator | `[id]` |
//! | 0x54 note | initiator | `[lane, transfer, tag, error's number, error's text, message]` |
//! | 0x60 endpoint | target | `[id, endpoint]` |
//! | 0x61 keys | target | `[id, [address, lkey, rkey, length]]` |
//! | 0x62 done | target | `[id]` |
//! | 0x63 failed | target | `[id, error's number, error's text]` |

use mori_core::pack::{Reader, Writer};
use mori_core::{EngineKey, Error, ErrorKind, MAX_NOTIFICATION, MemoryKind, Result};

use super::{Endpoint, EndpointRequest, FailureNote, RegionKeys, Topo};

/// The length of a frame's head.
pub(crate) const HEAD: usize = 5;
/// The longest body. The longest that is sent, a failure note, takes half of it.
pub(crate) const MAX_BODY: usize = 8 << 10;
/// The longest engine key, in bytes.
pub(crate) const MAX_KEY: usize = 512;
/// The longest text of an error, in bytes; longer ones are cut.
const MAX_TEXT: usize = 2 << 10;

/// The types of frames.
pub(crate) mod kind {
    pub(crate) const LEGACY_REGISTER: u8 = 0;
    pub(crate) const LEGACY_REGION: u8 = 1;
    pub(crate) const HELLO: u8 = 0x40;
    pub(crate) const CHALLENGE: u8 = 0x41;
    pub(crate) const PROOF: u8 = 0x42;
    pub(crate) const ACCEPT: u8 = 0x43;
    pub(crate) const IDENTITY: u8 = 0x44;
    pub(crate) const REFUSAL: u8 = 0x45;
    pub(crate) const REGISTER: u8 = 0x50;
    pub(crate) const REGION: u8 = 0x51;
    pub(crate) const RETIRE: u8 = 0x52;
    pub(crate) const PING: u8 = 0x53;
    pub(crate) const NOTE: u8 = 0x54;
    pub(crate) const ENDPOINT: u8 = 0x60;
    pub(crate) const KEYS: u8 = 0x61;
    pub(crate) const DONE: u8 = 0x62;
    pub(crate) const FAILED: u8 = 0x63;
}

/// A frame that has wholly arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

/// What an initiator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Register(EndpointRequest),
    Region { device: u32, memory: u64 },
    Retire { lane: u64 },
    Ping,
}

/// What a target answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Endpoint(Endpoint),
    Keys(RegionKeys),
    Done,
    Failed(Error),
}

/// What an initiator sends in the own protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToTarget {
    Request { id: u64, request: Request },
    Note(FailureNote),
}

/// The error for bytes that do not make sense.
pub(crate) fn malformed(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Malformed, format!("{what}; the peer speaks another protocol or is broken"))
}

/// A frame's bytes.
pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.push(kind);
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The type and the length of the body, from a frame's head.
///
/// # Errors
///
/// [`ErrorKind::Malformed`] for a body longer than [`MAX_BODY`].
pub(crate) fn head(bytes: [u8; HEAD]) -> Result<(u8, usize)> {
    let [kind, a, b, c, d] = bytes;
    let length = u32::from_be_bytes([a, b, c, d]);
    match usize::try_from(length) {
        Ok(length) if length <= MAX_BODY => Ok((kind, length)),
        _ => Err(malformed(format!("a frame of type {kind:#04x} with a body of {length} bytes"))),
    }
}

/// The longest beginning of an error's text that is carried.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

fn open<'a>(what: &'static str, body: &'a [u8], required: u32) -> Result<Reader<'a>> {
    Reader::open(what, body, required, MAX_BODY)
}

fn write_topo(writer: &mut Writer, topo: &Topo) {
    writer.list(3);
    writer.sint(topo.device);
    writer.uint(topo.location.number());
    writer.sint(topo.numa);
}

fn read_topo(reader: &mut Reader<'_>, field: &'static str) -> Result<Topo> {
    reader.group(field, 2, |reader| {
        Ok(Topo {
            device: reader.int("device of a place")?,
            location: MemoryKind::from_number(reader.int("location of a place")?),
            numa: reader.or(-1, |reader| reader.int("numa node of a place"))?,
        })
    })
}

fn write_places(writer: &mut Writer, request: &EndpointRequest) {
    writer.list(2);
    write_topo(writer, &request.local);
    write_topo(writer, &request.remote);
}

fn read_places(reader: &mut Reader<'_>) -> Result<(Topo, Topo)> {
    reader.group("the places", 2, |reader| {
        Ok((read_topo(reader, "the local place")?, read_topo(reader, "the remote place")?))
    })
}

fn write_endpoint(writer: &mut Writer, endpoint: &Endpoint, own: bool) {
    writer.list(if own { 7 } else { 5 });
    writer.uint(endpoint.psn);
    writer.uint(endpoint.qpn);
    writer.uint(endpoint.port);
    writer.list(1);
    writer.uint(endpoint.lid);
    writer.list(2);
    writer.bytes(&endpoint.gid);
    writer.bytes(&endpoint.mac);
    if own {
        writer.uint(endpoint.mtu);
        writer.uint(endpoint.rd_atomic);
    }
}

fn read_endpoint(reader: &mut Reader<'_>) -> Result<Endpoint> {
    reader.group("the endpoint", 3, |reader| {
        let mut endpoint = Endpoint {
            psn: reader.int("psn")?,
            qpn: reader.int("qpn")?,
            port: reader.int("port")?,
            ..Endpoint::default()
        };
        endpoint.lid =
            reader.or(0, |reader| reader.group("infiniband address", 1, |reader| reader.int("lid")))?;
        let none = ([0; 16], [0; 6]);
        (endpoint.gid, endpoint.mac) = reader.or(none, |reader| {
            reader.group("ethernet address", 1, |reader| {
                Ok((reader.array("gid")?, reader.or([0; 6], |reader| reader.array("mac"))?))
            })
        })?;
        endpoint.mtu = reader.or(0, |reader| reader.int("mtu"))?;
        endpoint.rd_atomic = reader.or(0, |reader| reader.int("rd_atomic"))?;
        Ok(endpoint)
    })
}

fn write_keys(writer: &mut Writer, keys: &RegionKeys) {
    writer.list(4);
    writer.uint(keys.address);
    writer.uint(keys.lkey);
    writer.uint(keys.rkey);
    writer.uint(keys.length);
}

fn read_keys(reader: &mut Reader<'_>) -> Result<RegionKeys> {
    reader.group("the region", 4, |reader| {
        Ok(RegionKeys {
            address: reader.int("address")?,
            lkey: reader.int("lkey")?,
            rkey: reader.int("rkey")?,
            length: reader.int("length")?,
        })
    })
}

/// Type 0, in both directions: an answer repeats the request with the answering side's key and endpoint.
pub(crate) fn legacy_register(key: &EngineKey, request: &EndpointRequest) -> Vec<u8> {
    let mut writer = Writer::array(6);
    writer.text(key.as_str());
    write_places(&mut writer, request);
    writer.uint(request.device);
    write_endpoint(&mut writer, &request.endpoint, false);
    writer.sint(request.nic_rank);
    writer.sint(request.rail);
    frame(kind::LEGACY_REGISTER, &writer.into_vec())
}

/// Type 1, in both directions: a request carries empty keys.
pub(crate) fn legacy_region(key: &EngineKey, device: u32, memory: u64, keys: &RegionKeys) -> Vec<u8> {
    let mut writer = Writer::array(4);
    writer.text(key.as_str());
    writer.uint(device);
    writer.uint(memory);
    write_keys(&mut writer, keys);
    frame(kind::LEGACY_REGION, &writer.into_vec())
}

fn read_legacy_register(body: &[u8]) -> Result<(EngineKey, EndpointRequest)> {
    let mut reader = open("endpoint message", body, 4)?;
    let key = EngineKey::from(reader.text("engine key", MAX_KEY)?);
    let (local, remote) = read_places(&mut reader)?;
    let request = EndpointRequest {
        local,
        remote,
        device: reader.int("device index")?,
        // The own fields at the end of an endpoint mean nothing here.
        endpoint: Endpoint { mtu: 0, rd_atomic: 0, ..read_endpoint(&mut reader)? },
        nic_rank: reader.or(-1, |reader| reader.int("nic rank"))?,
        rail: reader.or(-1, |reader| reader.int("rail"))?,
        lane: 0,
    };
    reader.finish()?;
    Ok((key, request))
}

/// The request of an existing peer, and who it says it is.
///
/// # Errors
///
/// [`ErrorKind::Malformed`], also for a frame of another type.
pub(crate) fn legacy_request(frame: &Frame) -> Result<(EngineKey, Request)> {
    match frame.kind {
        kind::LEGACY_REGISTER => {
            let (key, request) = read_legacy_register(&frame.body)?;
            Ok((key, Request::Register(request)))
        }
        kind::LEGACY_REGION => {
            let mut reader = open("region request", &frame.body, 3)?;
            let key = EngineKey::from(reader.text("engine key", MAX_KEY)?);
            let request =
                Request::Region { device: reader.int("device index")?, memory: reader.int("memory id")? };
            // What a request says about keys means nothing.
            reader.finish()?;
            Ok((key, request))
        }
        other => Err(malformed(format!("a frame of type {other:#04x} where a request comes"))),
    }
}

/// The answer of an existing peer to a request of type `asked`.
///
/// # Errors
///
/// [`ErrorKind::Malformed`], also for a frame of another type.
pub(crate) fn legacy_answer(asked: u8, frame: &Frame) -> Result<Answer> {
    if frame.kind != asked {
        return Err(malformed(format!("an answer of type {:#04x} to a request of {asked:#04x}", frame.kind)));
    }
    if asked == kind::LEGACY_REGISTER {
        return Ok(Answer::Endpoint(read_legacy_register(&frame.body)?.1.endpoint));
    }
    let mut reader = open("region answer", &frame.body, 4)?;
    reader.text("engine key", MAX_KEY)?;
    reader.int::<i64>("device index")?;
    reader.int::<u64>("memory id")?;
    let keys = read_keys(&mut reader)?;
    reader.finish()?;
    Ok(Answer::Keys(keys))
}

/// A request in the own protocol.
pub(crate) fn request(id: u64, request: &Request) -> Vec<u8> {
    let (kind, fields) = match request {
        Request::Register(_) => (kind::REGISTER, 7),
        Request::Region { .. } => (kind::REGION, 3),
        Request::Retire { .. } => (kind::RETIRE, 2),
        Request::Ping => (kind::PING, 1),
    };
    let mut writer = Writer::array(fields);
    writer.uint(id);
    match request {
        Request::Register(request) => {
            write_places(&mut writer, request);
            writer.uint(request.device);
            write_endpoint(&mut writer, &request.endpoint, true);
            writer.sint(request.nic_rank);
            writer.sint(request.rail);
            writer.uint(request.lane);
        }
        Request::Region { device, memory } => {
            writer.uint(*device);
            writer.uint(*memory);
        }
        Request::Retire { lane } => writer.uint(*lane),
        Request::Ping => {}
    }
    frame(kind, &writer.into_vec())
}

/// A failure note.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for a message that is longer than notifications are.
pub(crate) fn note(note: &FailureNote) -> Result<Vec<u8>> {
    if note.message.len() > MAX_NOTIFICATION {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the message has {} bytes; at most {MAX_NOTIFICATION} are carried", note.message.len()),
        ));
    }
    let mut writer = Writer::array(6);
    writer.uint(note.lane);
    writer.uint(note.transfer);
    writer.uint(note.tag);
    write_error(&mut writer, &note.error);
    writer.bytes(&note.message);
    Ok(frame(kind::NOTE, &writer.into_vec()))
}

/// An answer in the own protocol.
pub(crate) fn answer(id: u64, answer: &Answer) -> Vec<u8> {
    let (kind, fields) = match answer {
        Answer::Endpoint(_) => (kind::ENDPOINT, 2),
        Answer::Keys(_) => (kind::KEYS, 2),
        Answer::Done => (kind::DONE, 1),
        Answer::Failed(_) => (kind::FAILED, 3),
    };
    let mut writer = Writer::array(fields);
    writer.uint(id);
    match answer {
        Answer::Endpoint(endpoint) => write_endpoint(&mut writer, endpoint, true),
        Answer::Keys(keys) => write_keys(&mut writer, keys),
        Answer::Done => {}
        Answer::Failed(error) => write_error(&mut writer, error),
    }
    frame(kind, &writer.into_vec())
}

/// What an initiator has sent, in the own protocol.
///
/// # Errors
///
/// [`ErrorKind::Malformed`], also for a type that no initiator sends.
pub(crate) fn to_target(frame: &Frame) -> Result<ToTarget> {
    let mut reader = open("request", &frame.body, 1)?;
    if frame.kind == kind::NOTE {
        return read_note(reader).map(ToTarget::Note);
    }
    let id = reader.int("id")?;
    let request = match frame.kind {
        kind::REGISTER => {
            let (local, remote) = read_places(&mut reader)?;
            Request::Register(EndpointRequest {
                local,
                remote,
                device: reader.int("device index")?,
                endpoint: read_endpoint(&mut reader)?,
                nic_rank: reader.int("nic rank")?,
                rail: reader.int("rail")?,
                lane: reader.int("lane")?,
            })
        }
        kind::REGION => {
            Request::Region { device: reader.int("device index")?, memory: reader.int("memory id")? }
        }
        kind::RETIRE => Request::Retire { lane: reader.int("lane")? },
        kind::PING => Request::Ping,
        other => return Err(malformed(format!("a frame of type {other:#04x} where a request comes"))),
    };
    reader.finish()?;
    Ok(ToTarget::Request { id, request })
}

fn read_note(mut reader: Reader<'_>) -> Result<FailureNote> {
    let (lane, transfer, tag) = (reader.int("lane")?, reader.int("transfer")?, reader.int("tag")?);
    let error = read_error(&mut reader)?;
    let message = reader.bytes("message", MAX_NOTIFICATION)?.to_vec();
    reader.finish()?;
    Ok(FailureNote { lane, transfer, tag, message, error })
}

/// An error's number and text. A number of a later version is a failure of the transport.
pub(super) fn read_error(reader: &mut Reader<'_>) -> Result<Error> {
    let kind = ErrorKind::from_number(reader.int("error's number")?).unwrap_or(ErrorKind::Transport);
    Ok(Error::new(kind, reader.text("error's text", MAX_TEXT)?))
}

/// An error's number and text.
pub(super) fn write_error(writer: &mut Writer, error: &Error) {
    writer.uint(error.kind().number());
    writer.text(cut(error.message()));
}

/// What a target has sent, in the own protocol: the request's number, and the answer.
///
/// # Errors
///
/// [`ErrorKind::Malformed`], also for a type that no target sends.
pub(crate) fn to_initiator(frame: &Frame) -> Result<(u64, Answer)> {
    let mut reader = open("answer", &frame.body, 1)?;
    let id = reader.int("id")?;
    let answer = match frame.kind {
        kind::ENDPOINT => Answer::Endpoint(read_endpoint(&mut reader)?),
        kind::KEYS => Answer::Keys(read_keys(&mut reader)?),
        kind::DONE => Answer::Done,
        kind::FAILED => Answer::Failed(read_error(&mut reader)?),
        other => return Err(malformed(format!("a frame of type {other:#04x} where an answer comes"))),
    };
    reader.finish()?;
    Ok((id, answer))
}
