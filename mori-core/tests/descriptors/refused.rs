//! Refusals one by one, the limits, and what is skipped.

use mori_core::{
    EngineDesc, EngineKey, ErrorKind, MAX_BLOB, MAX_DESCRIPTOR, MAX_DESCRIPTOR_TEXT, MAX_TRANSPORTS,
    MemoryDesc,
};
use rmp::encode::{write_bin, write_uint};

use crate::encoded::{join, members, says, with};
use crate::values::{blob, engine, memory};

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
