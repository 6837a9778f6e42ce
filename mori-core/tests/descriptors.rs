//! The encoding of descriptors, against its written form: golden bytes, both ways for generated values, and bytes that are
//! cut, longer, shorter, of another version, or random.

use mori_core::{
    Access, CapabilitySet, EngineDesc, EngineKey, Error, ErrorKind, Location, MAX_BLOB, MAX_DESCRIPTOR,
    MAX_DESCRIPTOR_TEXT, MAX_TRANSPORTS, MemoryDesc, MemoryKind, Region, TransportBlob,
};
use proptest::collection::vec;
use proptest::prelude::*;
use rmp::encode::{
    write_array_len, write_bin, write_bool, write_ext_meta, write_f32, write_f64, write_i64, write_map_len,
    write_nil, write_sint, write_str, write_u64, write_uint,
};

// ---------------------------------------------------------------------------------------------------------------------
// Values

fn blob(transport: &str, version: u32, bytes: &[u8]) -> TransportBlob {
    TransportBlob { transport: transport.into(), version, bytes: bytes.into() }
}

fn engine() -> EngineDesc {
    EngineDesc {
        key: EngineKey::from("pre-0"),
        node_id: "n1".into(),
        hostname: "höst".into(),
        host: "::1".into(),
        port: 7000,
        pid: 70_000,
        capabilities: CapabilitySet::HOST_MEMORY.union(CapabilitySet::NOTIFY),
        transports: vec![blob("alpha", 3, &[1, 2, 3]), blob("beta", 300, &[])],
    }
}

fn memory() -> MemoryDesc {
    let mut ipc_handle = [0x11; 64];
    ipc_handle[63] = 0x12;
    let mut fabric_handle = [0x21; 64];
    fabric_handle[0] = 0x20;
    MemoryDesc {
        engine_key: EngineKey::from("pre-0"),
        id: 9,
        device_id: 3,
        device_bus_id: "0000:c1:00.0".into(),
        address: 0x7f00_0000_1000,
        size: 5 << 30,
        kind: MemoryKind::Device,
        ipc_handle,
        numa_node: 1,
        ipc_offset: 512,
        fabric_handle,
        vpod_id: 2,
        vpod_ppod_id: "pp".into(),
        fabric_offset: 7,
        fabric_alloc_size: 8,
        transports: vec![blob("alpha", 1, &[0xff])],
        access: Access::READ_ONLY,
    }
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => vec(any::<char>(), 0..20).prop_map(String::from_iter),
        1 => (0_usize..600).prop_map(|length| "x".repeat(length)),
    ]
}

fn blobs() -> impl Strategy<Value = Vec<TransportBlob>> {
    let one = (texts(), any::<u32>(), vec(any::<u8>(), 0..300));
    vec(one.prop_map(|(transport, version, bytes)| TransportBlob { transport, version, bytes }), 0..5)
}

prop_compose! {
    fn engines()(
        key in texts(), node_id in texts(), hostname in texts(), host in texts(), port: u16, pid: u32, bits: u64,
        transports in blobs(),
    ) -> EngineDesc {
        let key = EngineKey::from(key);
        let capabilities = CapabilitySet::from_bits(bits);
        EngineDesc { key, node_id, hostname, host, port, pid, capabilities, transports }
    }
}

fn handles() -> impl Strategy<Value = [u8; 64]> {
    vec(any::<u8>(), 64).prop_map(|bytes| bytes.try_into().unwrap())
}

fn kinds() -> impl Strategy<Value = MemoryKind> {
    prop::sample::select(vec![MemoryKind::Unknown, MemoryKind::Host, MemoryKind::Device])
}

prop_compose! {
    fn memories()(
        (engine_key, id, device_id, device_bus_id) in (texts(), any::<u64>(), any::<i32>(), texts()),
        (address, size, kind, ipc_handle) in (any::<u64>(), any::<u64>(), kinds(), handles()),
        (numa_node, ipc_offset, fabric_handle, vpod_id) in (any::<i32>(), any::<u64>(), handles(), any::<i32>()),
        (vpod_ppod_id, fabric_offset, fabric_alloc_size) in (texts(), any::<u64>(), any::<u64>()),
        transports in blobs(), remote_read: bool, remote_write: bool,
    ) -> MemoryDesc {
        MemoryDesc {
            engine_key: EngineKey::from(engine_key), id, device_id, device_bus_id, address, size, kind, ipc_handle,
            numa_node, ipc_offset, fabric_handle, vpod_id, vpod_ppod_id, fabric_offset, fabric_alloc_size, transports,
            access: Access { remote_read, remote_write },
        }
    }
}

/// One MessagePack value of any type, encoded.
fn values() -> impl Strategy<Value = Vec<u8>> {
    let write = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        out
    };
    let leaf = prop_oneof![
        Just(write(&|out| write_nil(out).unwrap())),
        any::<bool>().prop_map(move |v| write(&|out| write_bool(out, v).unwrap())),
        any::<f32>().prop_map(move |v| write(&|out| write_f32(out, v).unwrap())),
        any::<f64>().prop_map(move |v| write(&|out| write_f64(out, v).unwrap())),
        any::<u64>().prop_map(move |v| write(&|out| {
            write_uint(out, v).unwrap();
        })),
        any::<i64>().prop_map(move |v| write(&|out| {
            write_sint(out, v).unwrap();
        })),
        texts().prop_map(move |v| write(&|out| write_str(out, &v).unwrap())),
        vec(any::<u8>(), 0..300).prop_map(move |v| write(&|out| write_bin(out, &v).unwrap())),
        (any::<i8>(), vec(any::<u8>(), 0..300)).prop_map(move |(kind, v)| write(&|out| {
            write_ext_meta(out, v.len() as u32, kind).unwrap();
            out.extend_from_slice(&v);
        })),
    ];
    leaf.prop_recursive(3, 16, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(|members| {
                let mut out = Vec::new();
                write_array_len(&mut out, members.len() as u32).unwrap();
                out.extend(members.into_iter().flatten());
                out
            }),
            vec((inner.clone(), inner), 0..6).prop_map(|members| {
                let mut out = Vec::new();
                write_map_len(&mut out, members.len() as u32).unwrap();
                out.extend(members.into_iter().flat_map(|(key, value)| [key, value]).flatten());
                out
            }),
        ]
    })
}

// ---------------------------------------------------------------------------------------------------------------------
// Surgery on encoded arrays, independent of the code under test

/// Splits an encoded array into the encodings of its members. Knows only what the descriptors use.
fn members(packed: &[u8]) -> Vec<Vec<u8>> {
    fn end(bytes: &[u8], at: usize) -> usize {
        let be =
            |from: usize, count: usize| bytes[from..from + count].iter().fold(0, |n, &b| n << 8 | b as usize);
        let after = |at: usize, count: usize| (0..count).fold(at, |at, _| end(bytes, at));
        match bytes[at] {
            0x00..=0x7f | 0xe0..=0xff => at + 1,
            first @ 0x90..=0x9f => after(at + 1, (first & 0x0f) as usize),
            first @ 0xa0..=0xbf => at + 1 + (first & 0x1f) as usize,
            0xc4 | 0xd9 => at + 2 + be(at + 1, 1),
            0xc5 | 0xda => at + 3 + be(at + 1, 2),
            0xcc | 0xd0 => at + 2,
            0xcd | 0xd1 => at + 3,
            0xce | 0xd2 => at + 5,
            0xcf | 0xd3 => at + 9,
            0xdc => after(at + 3, be(at + 1, 2)),
            other => panic!("{other:#x} at {at}"),
        }
    }
    let (count, mut at) = match packed[0] {
        first @ 0x90..=0x9f => ((first & 0x0f) as usize, 1),
        0xdc => (usize::from(u16::from_be_bytes([packed[1], packed[2]])), 3),
        other => panic!("{other:#x}"),
    };
    let mut members = Vec::new();
    for _ in 0..count {
        let end = end(packed, at);
        members.push(packed[at..end].to_vec());
        at = end;
    }
    assert_eq!(at, packed.len());
    members
}

fn join(members: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, members.len() as u32).unwrap();
    members.iter().for_each(|member| out.extend_from_slice(member));
    out
}

fn with(packed: &[u8], index: usize, member: &[u8]) -> Vec<u8> {
    let mut members = members(packed);
    members[index] = member.to_vec();
    join(&members)
}

/// Checks that an error is of the right kind and that its message holds every one of `words`.
fn says(error: &Error, words: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
    for word in words {
        assert!(error.message().contains(word), "{error} does not say {word:?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Golden bytes

/// Hand-written: the array's order and the shortest form of every field.
#[test]
fn engine_golden_bytes() {
    let mut golden = vec![0x99];
    golden.extend_from_slice(b"\xa5pre-0\xa2n1\xa5h\xc3\xb6st\xa3::1");
    golden.extend_from_slice(&[0xcd, 0x1b, 0x58]); // port 7000
    golden.extend_from_slice(&[0xce, 0x00, 0x01, 0x11, 0x70]); // pid 70000
    golden.push(1); // format version
    golden.push(0b1001); // host memory, notify
    golden.extend_from_slice(b"\x92\x93\xa5alpha\x03\xc4\x03\x01\x02\x03\x93\xa4beta\xcd\x01\x2c\xc4\x00");
    assert_eq!(engine().pack(), golden);
    assert_eq!(EngineDesc::unpack(&golden).unwrap(), engine());
}

#[test]
fn memory_golden_bytes() {
    let mut golden = vec![0xdc, 0x00, 18];
    golden.extend_from_slice(b"\xa5pre-0\x09\x03\xac0000:c1:00.0");
    golden.extend_from_slice(&[0xcf, 0, 0, 0x7f, 0, 0, 0, 0x10, 0]); // address
    golden.extend_from_slice(&[0xcf, 0, 0, 0, 1, 0x40, 0, 0, 0]); // size, 5 GiB
    golden.push(2); // location: device
    golden.extend_from_slice(&[0xc4, 64]);
    golden.extend_from_slice(&[0x11; 63]);
    golden.push(0x12);
    golden.push(1); // numa_node
    golden.extend_from_slice(&[0xcd, 2, 0]); // ipc_offset 512
    golden.extend_from_slice(&[0xc4, 64, 0x20]);
    golden.extend_from_slice(&[0x21; 63]);
    golden.extend_from_slice(b"\x02\xa2pp\x07\x08"); // vpod_id, vpod_ppod_id, fabric_offset, fabric_alloc_size
    golden.push(1); // format version
    golden.extend_from_slice(b"\x91\x93\xa5alpha\x01\xc4\x01\xff");
    golden.push(0b01); // peers may read
    assert_eq!(memory().pack(), golden);
    assert_eq!(MemoryDesc::unpack(&golden).unwrap(), memory());
}

/// Unknown device and node travel as -1, as existing peers write them.
#[test]
fn negative_numbers_are_one_byte() {
    let fields = members(&MemoryDesc::default().pack());
    for index in [2, 8, 11] {
        assert_eq!(fields[index], [0xff], "field {index}");
    }
}

/// What a peer sends that knows only the first fields, with its numbers in long forms.
#[test]
fn a_peer_of_the_common_fields_only_is_understood() {
    let mut bytes = b"\x96\xa1k\xa1n\xa1h\xa9127.0.0.1".to_vec();
    write_i64(&mut bytes, 7000).unwrap();
    write_u64(&mut bytes, 12).unwrap();
    let desc = EngineDesc::unpack(&bytes).unwrap();
    assert_eq!((desc.port, desc.pid, desc.host.as_str()), (7000, 12, "127.0.0.1"));
    assert_eq!((desc.capabilities, desc.transports), (CapabilitySet::NONE, Vec::new()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Both ways

proptest! {
    #[test]
    fn engines_come_back_equal(desc in engines()) {
        prop_assert_eq!(EngineDesc::unpack(&desc.pack()).unwrap(), desc);
    }

    #[test]
    fn memories_come_back_equal(desc in memories()) {
        prop_assert_eq!(MemoryDesc::unpack(&desc.pack()).unwrap(), desc);
    }

    /// A later writer appends fields, to the array and to each transport's entry; they are skipped, whatever they are.
    #[test]
    fn further_fields_of_any_type_are_skipped(engine in engines(), memory in memories(), more in vec(values(), 1..4)) {
        for (packed, transports) in [(engine.pack(), 8), (memory.pack(), 16)] {
            let mut fields = members(&packed);
            let mut entries = members(&fields[transports]);
            for entry in &mut entries {
                let mut longer = members(entry);
                longer.extend(more.iter().cloned());
                *entry = join(&longer);
            }
            fields[transports] = join(&entries);
            fields.extend(more.iter().cloned());
            let longer = join(&fields);
            if transports == 8 {
                prop_assert_eq!(EngineDesc::unpack(&longer).unwrap(), engine.clone());
            } else {
                prop_assert_eq!(MemoryDesc::unpack(&longer).unwrap(), memory.clone());
            }
        }
    }

    /// An earlier writer has fewer fields; defaults stand for them, and what is there is kept.
    #[test]
    fn missing_fields_are_filled_with_defaults(engine in engines(), memory in memories(), left in 0_usize..20) {
        let fields = members(&engine.pack());
        let fields = &fields[..left.min(fields.len())];
        match EngineDesc::unpack(&join(fields)) {
            Err(error) => {
                prop_assert!(fields.len() < 6, "{}", error);
                says(&error, &["too short"]);
            }
            Ok(desc) => {
                prop_assert!(fields.len() >= 6);
                let mut expected = engine;
                if fields.len() < 8 { expected.capabilities = CapabilitySet::NONE; }
                if fields.len() < 9 { expected.transports.clear(); }
                prop_assert_eq!(desc, expected);
            }
        }
        let fields = members(&memory.pack());
        let fields = &fields[..left.min(fields.len())];
        match MemoryDesc::unpack(&join(fields)) {
            Err(error) => {
                prop_assert!(fields.len() < 8, "{}", error);
                says(&error, &["too short"]);
            }
            Ok(desc) => {
                prop_assert!(fields.len() >= 8);
                let mut expected = memory;
                let missing = |place: usize| fields.len() <= place;
                if missing(8) { expected.numa_node = -1; }
                if missing(9) { expected.ipc_offset = 0; }
                if missing(10) { expected.fabric_handle = [0; 64]; }
                if missing(11) { expected.vpod_id = -1; }
                if missing(12) { expected.vpod_ppod_id.clear(); }
                if missing(13) { expected.fabric_offset = 0; }
                if missing(14) { expected.fabric_alloc_size = 0; }
                if missing(16) { expected.transports.clear(); }
                if missing(17) { expected.access = Access::READ_WRITE; }
                prop_assert_eq!(desc, expected);
            }
        }
    }

    /// Cut at any length: an error that says so, never a wrong descriptor.
    #[test]
    fn cut_descriptors_are_refused(engine in engines(), memory in memories()) {
        let packed = engine.pack();
        for length in 0..packed.len() {
            says(&EngineDesc::unpack(&packed[..length]).unwrap_err(), &["cut off", "engine descriptor"]);
        }
        let packed = memory.pack();
        for length in 0..packed.len() {
            says(&MemoryDesc::unpack(&packed[..length]).unwrap_err(), &["cut off", "memory descriptor"]);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        for result in [EngineDesc::unpack(&bytes).err(), MemoryDesc::unpack(&bytes).err()].into_iter().flatten() {
            prop_assert_eq!(result.kind(), ErrorKind::Malformed);
        }
    }

    /// Random damage to good bytes reaches deeper than random bytes do. What still decodes can be encoded again.
    #[test]
    fn damaged_descriptors_never_panic(
        engine in engines(), memory in memories(), hits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let damage = |mut bytes: Vec<u8>| {
            hits.iter().for_each(|(place, byte)| *place.get_mut(&mut bytes) = *byte);
            bytes
        };
        match EngineDesc::unpack(&damage(engine.pack())) {
            Ok(desc) => prop_assert_eq!(EngineDesc::unpack(&desc.pack()).unwrap(), desc),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Malformed),
        }
        match MemoryDesc::unpack(&damage(memory.pack())) {
            Ok(desc) => prop_assert_eq!(MemoryDesc::unpack(&desc.pack()).unwrap(), desc),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Malformed),
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Refusals, one by one

#[test]
fn another_version_or_byte_order_is_refused() {
    for (version, shown) in [(0_u64, "version 0"), (2, "version 2"), (1 << 24, "version 16777216")] {
        let mut field = Vec::new();
        write_uint(&mut field, version).unwrap();
        let error = EngineDesc::unpack(&with(&engine().pack(), 6, &field)).unwrap_err();
        says(&error, &[shown, "only version 1", "format version of the engine descriptor"]);
        let error = MemoryDesc::unpack(&with(&memory().pack(), 15, &field)).unwrap_err();
        says(&error, &[shown, "only version 1", "format version of the memory descriptor"]);
    }
    // A later version may have put anything behind its number.
    let mut fields = members(&engine().pack());
    fields[6] = vec![2];
    fields[8] = b"\xa1?".to_vec();
    says(&EngineDesc::unpack(&join(&fields)).unwrap_err(), &["version 2"]);

    let mut swapped = memory().pack();
    swapped.swap(1, 2);
    says(&MemoryDesc::unpack(&swapped).unwrap_err(), &["4608 members", "byte order"]);
}

#[test]
fn wrong_types_and_ranges_name_the_field() {
    let engine = engine().pack();
    let names =
        ["key", "node_id", "hostname", "host", "port", "pid", "format version", "capabilities", "transports"];
    for (index, name) in names.into_iter().enumerate() {
        for (value, found) in [
            (&b"\xc0"[..], "nothing"),
            (b"\xc3", "a truth value"),
            (b"\x80", "a map"),
            (b"\xca\0\0\0\0", "a fraction"),
        ] {
            let error = EngineDesc::unpack(&with(&engine, index, value)).unwrap_err();
            says(&error, &[&format!("{name} of the engine descriptor"), "is expected", found]);
        }
        says(&EngineDesc::unpack(&with(&engine, index, b"\xc1")).unwrap_err(), &[name, "0xc1"]);
    }
    says(
        &EngineDesc::unpack(&with(&engine, 4, &[0xce, 0, 1, 0, 0])).unwrap_err(),
        &["port", "65536 is out of range"],
    );
    says(&EngineDesc::unpack(&with(&engine, 5, &[0xff])).unwrap_err(), &["pid", "-1 is out of range"]);
    says(&EngineDesc::unpack(&with(&engine, 0, b"\xa2\xff\xfe")).unwrap_err(), &["key", "utf-8"]);
    for short in
        [&b"\x91\x93\xa1a\x01\xa1b"[..], b"\x91\x92\xa1a\x01", b"\x91\x01", b"\x91\x93\x01\x01\xc4\x00"]
    {
        says(&EngineDesc::unpack(&with(&engine, 8, short)).unwrap_err(), &["transports"]);
    }
    for (bytes, found) in [(&b"\x01"[..], "a whole number"), (b"\x86", "a map"), (b"\xa1x", "text")] {
        says(&EngineDesc::unpack(bytes).unwrap_err(), &["an array is expected", found]);
    }

    let memory = memory().pack();
    for (index, name) in [(7, "ipc_handle"), (10, "fabric_handle")] {
        for length in [0, 1, 63, 65] {
            let mut handle = Vec::new();
            write_bin(&mut handle, &vec![7; length]).unwrap();
            says(&MemoryDesc::unpack(&with(&memory, index, &handle)).unwrap_err(), &[name, "64"]);
        }
    }
    says(
        &MemoryDesc::unpack(&with(&memory, 1, &[0xff])).unwrap_err(),
        &["id of the memory descriptor", "-1"],
    );
    let beyond = [0xd3, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]; // -2^31 - 1
    says(&MemoryDesc::unpack(&with(&memory, 8, &beyond)).unwrap_err(), &["numa_node", "out of range"]);
}

#[test]
fn bytes_after_the_array_are_refused() {
    let mut packed = engine().pack();
    packed.push(0xc0);
    says(&EngineDesc::unpack(&packed).unwrap_err(), &["1 more byte"]);
    let mut packed = memory().pack();
    packed.extend_from_slice(b"\x01\x02");
    says(&MemoryDesc::unpack(&packed).unwrap_err(), &["2 more bytes"]);
}

#[test]
fn every_limit_holds_and_its_last_value_is_read() {
    let mut desc = EngineDesc { key: EngineKey::from("k".repeat(MAX_DESCRIPTOR_TEXT)), ..Default::default() };
    desc.transports = vec![blob("a", 1, &vec![7; MAX_BLOB])];
    assert_eq!(EngineDesc::unpack(&desc.pack()).unwrap(), desc);
    desc.hostname = "h".repeat(MAX_DESCRIPTOR_TEXT + 1);
    says(&EngineDesc::unpack(&desc.pack()).unwrap_err(), &["hostname", "65537", "at most 65536"]);
    desc.hostname.clear();
    desc.transports[0].bytes.push(7);
    says(&EngineDesc::unpack(&desc.pack()).unwrap_err(), &["transports: bytes", "65537", "at most 65536"]);

    let many = |count: u32| MemoryDesc {
        transports: (0..count).map(|n| blob(&n.to_string(), n, &[])).collect(),
        ..MemoryDesc::default()
    };
    assert_eq!(MemoryDesc::unpack(&many(MAX_TRANSPORTS).pack()).unwrap(), many(MAX_TRANSPORTS));
    let error = MemoryDesc::unpack(&many(MAX_TRANSPORTS + 1).pack()).unwrap_err();
    says(&error, &["transports", "65 entries", "at most 64"]);

    // A further field fills the frame to its limit, and then goes over it.
    for (over, fits) in [(0, true), (1, false)] {
        let mut fields = members(&EngineDesc::default().pack());
        let used: usize = 1 + fields.iter().map(Vec::len).sum::<usize>();
        let mut filler = Vec::new();
        write_bin(&mut filler, &vec![0; MAX_DESCRIPTOR - used - 5 + over]).unwrap();
        fields.push(filler);
        let packed = join(&fields);
        assert_eq!(packed.len(), MAX_DESCRIPTOR + over);
        match EngineDesc::unpack(&packed) {
            Ok(desc) => assert!(fits && desc == EngineDesc::default()),
            Err(error) => {
                assert!(!fits);
                says(&error, &["1048577 bytes", "at most 1048576"]);
            }
        }
    }
}

/// Each kind of value in its longest form, and every first byte that begins one.
#[test]
fn every_form_of_value_is_skipped() {
    for first in (0..=0xff_u8).filter(|first| *first != 0xc1) {
        let mut value = vec![first];
        match first {
            0x80..=0x8f => value.extend(vec![0xc0; 2 * usize::from(first & 0x0f)]),
            0x90..=0x9f => value.extend(vec![0xc0; usize::from(first & 0x0f)]),
            0xa0..=0xbf => value.extend(vec![0xff; usize::from(first & 0x1f)]),
            0xc4 | 0xd9 => value.extend([vec![200], vec![1; 200]].concat()),
            0xc5 | 0xda => value.extend([vec![1, 0], vec![1; 256]].concat()),
            0xc6 | 0xdb => value.extend([vec![0, 1, 0, 0], vec![1; 1 << 16]].concat()),
            0xc7 => value.extend([vec![3, 9], vec![1; 3]].concat()),
            0xc8 => value.extend([vec![1, 0, 9], vec![1; 256]].concat()),
            0xc9 => value.extend([vec![0, 1, 0, 0, 9], vec![1; 1 << 16]].concat()),
            0xca | 0xce | 0xd2 => value.extend([1; 4]),
            0xcb | 0xcf | 0xd3 => value.extend([1; 8]),
            0xcc | 0xd0 => value.extend([1; 1]),
            0xcd | 0xd1 => value.extend([1; 2]),
            0xd4..=0xd8 => value.extend(vec![1; 1 + (1 << (first - 0xd4))]),
            0xdc => value.extend([vec![1, 0], vec![0xc3; 256]].concat()),
            0xdd => value.extend([vec![0, 1, 0, 0], vec![0xc3; 1 << 16]].concat()),
            0xde => value.extend([vec![1, 0], vec![0xc2; 512]].concat()),
            0xdf => value.extend([vec![0, 1, 0, 0], vec![0xc2; 1 << 17]].concat()),
            _ => {}
        }
        let mut fields = members(&memory().pack());
        fields.push(value.clone());
        assert_eq!(MemoryDesc::unpack(&join(&fields)).unwrap(), memory(), "{first:#x}");
        value.pop();
        *fields.last_mut().unwrap() = value;
        says(&MemoryDesc::unpack(&join(&fields)).unwrap_err(), &["cut off"]);
    }
}

/// A length that claims more than is there costs nothing: no allocation follows it, and no stack follows nesting.
#[test]
fn lengths_and_nesting_are_not_taken_at_their_word() {
    let huge = [0xff; 4];
    for marker in [0xc6_u8, 0xdb, 0xdd, 0xdf, 0xc9] {
        let claim = [&[marker][..], &huge].concat();
        for index in 0..9 {
            let mut fields = members(&engine().pack());
            fields.truncate(index);
            fields.push(claim.clone());
            let mut bytes = join(&fields);
            bytes[0] = 0x99;
            assert_eq!(
                EngineDesc::unpack(&bytes).unwrap_err().kind(),
                ErrorKind::Malformed,
                "{index} {marker:#x}"
            );
        }
        let mut fields = members(&engine().pack());
        fields.push(claim);
        assert_eq!(
            EngineDesc::unpack(&join(&fields)).unwrap_err().kind(),
            ErrorKind::Malformed,
            "{marker:#x}"
        );
    }
    let mut fields = members(&engine().pack());
    let mut deep = vec![0x91; 900_000];
    deep.push(0xc0);
    fields.push(deep);
    assert_eq!(EngineDesc::unpack(&join(&fields)).unwrap(), engine());
    // Maps of which each claims all that is left.
    let mut fields = members(&engine().pack());
    fields.push([0xdf, 0xff, 0xff, 0xff, 0xff].repeat(100_000));
    says(&EngineDesc::unpack(&join(&fields)).unwrap_err(), &["cut off"]);
}

// ---------------------------------------------------------------------------------------------------------------------
// What a descriptor says

#[test]
fn a_region_describes_itself() {
    let key = EngineKey::from("decode");
    let region = Region::zeroed(4096, Access::WRITE_ONLY).unwrap();
    let desc = MemoryDesc::for_region(&key, &region);
    assert_eq!(
        (desc.engine_key.clone(), desc.id, desc.address, desc.size),
        (key.clone(), region.id().get(), region.address() as u64, 4096)
    );
    assert_eq!(
        (desc.kind, desc.access, desc.numa_node, desc.device_id),
        (MemoryKind::Host, region.access(), -1, -1)
    );
    assert_eq!(desc.location().as_ref(), Some(region.location()));

    let places = [
        Location::Host { numa_node: Some(3) },
        Location::Device { device_id: 5, bus_id: "0000:c1:00.0".into() },
    ];
    for place in places {
        let keeper = Region::zeroed(64, Access::LOCAL).unwrap();
        let address = std::ptr::with_exposed_provenance_mut(keeper.address());
        // SAFETY: the range belongs to `keeper`, which the region keeps; nothing touches it.
        let region = unsafe {
            Region::from_raw_with_keeper(address, 64, place.clone(), Access::LOCAL, Some(Box::new(keeper)))
        };
        let desc = MemoryDesc::for_region(&key, &region.unwrap());
        assert_eq!(desc.location(), Some(place.clone()));
        assert_eq!(MemoryDesc::unpack(&desc.pack()).unwrap().location(), Some(place));
    }
}

#[test]
fn a_kind_of_memory_of_a_later_version_is_unknown() {
    let desc = MemoryDesc::unpack(&with(&memory().pack(), 6, &[9])).unwrap();
    assert_eq!((desc.kind, desc.location()), (MemoryKind::Unknown, None));
    let desc = MemoryDesc { device_id: -1, ..memory() };
    assert_eq!(desc.location(), None);
}

#[test]
fn blobs_are_found_by_name() {
    assert_eq!(engine().blob("beta").map(|blob| blob.version), Some(300));
    assert_eq!(memory().blob("beta"), None);
}

/// Keys and handles give access to memory, so they stay out of logs.
#[test]
fn debug_output_holds_no_bytes_of_blobs_and_handles() {
    let secret =
        MemoryDesc { transports: vec![blob("alpha", 1, &[213; 16])], ipc_handle: [214; 64], ..memory() };
    let shown = format!("{secret:?}");
    assert!(shown.contains("alpha") && shown.contains("16"), "{shown}");
    assert!(!shown.contains("213") && !shown.contains("214"), "{shown}");
}
