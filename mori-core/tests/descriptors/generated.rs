//! Both ways for generated values; longer, shorter, cut and damaged arrays.

use mori_core::{Access, CapabilitySet, EngineDesc, ErrorKind, MemoryDesc};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::encoded::{join, members, says};
use crate::values::{engines, memories, values};

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
