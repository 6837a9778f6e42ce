//! Descriptors with every field set, generated descriptors, and MessagePack values of any type.

use mori_core::{Access, CapabilitySet, EngineDesc, EngineKey, MemoryDesc, MemoryKind, TransportBlob};
use proptest::collection::vec;
use proptest::prelude::*;
use rmp::encode::{
    write_array_len, write_bin, write_bool, write_ext_meta, write_f32, write_f64, write_map_len, write_nil,
    write_sint, write_str, write_uint,
};

pub(crate) fn blob(transport: &str, version: u32, bytes: &[u8]) -> TransportBlob {
    TransportBlob { transport: transport.into(), version, bytes: bytes.into() }
}

pub(crate) fn engine() -> EngineDesc {
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

pub(crate) fn memory() -> MemoryDesc {
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

pub(crate) fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => vec(any::<char>(), 0..20).prop_map(String::from_iter),
        1 => (0_usize..600).prop_map(|length| "x".repeat(length)),
    ]
}

pub(crate) fn blobs() -> impl Strategy<Value = Vec<TransportBlob>> {
    let one = (texts(), any::<u32>(), vec(any::<u8>(), 0..300));
    vec(one.prop_map(|(transport, version, bytes)| TransportBlob { transport, version, bytes }), 0..5)
}

prop_compose! {
    pub(crate) fn engines()(
        key in texts(), node_id in texts(), hostname in texts(), host in texts(), port: u16, pid: u32, bits: u64,
        transports in blobs(),
    ) -> EngineDesc {
        let key = EngineKey::from(key);
        let capabilities = CapabilitySet::from_bits(bits);
        EngineDesc { key, node_id, hostname, host, port, pid, capabilities, transports }
    }
}

pub(crate) fn handles() -> impl Strategy<Value = [u8; 64]> {
    vec(any::<u8>(), 64).prop_map(|bytes| bytes.try_into().unwrap())
}

pub(crate) fn kinds() -> impl Strategy<Value = MemoryKind> {
    prop::sample::select(vec![MemoryKind::Unknown, MemoryKind::Host, MemoryKind::Device])
}

prop_compose! {
    pub(crate) fn memories()(
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
pub(crate) fn values() -> impl Strategy<Value = Vec<u8>> {
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
