//! The bytes themselves, hand-written.

use mori_core::{CapabilitySet, EngineDesc, MemoryDesc};
use rmp::encode::{write_i64, write_u64};

use crate::encoded::members;
use crate::values::{engine, memory};

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
