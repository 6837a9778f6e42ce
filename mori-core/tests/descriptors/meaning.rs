//! What a descriptor says about a region and an engine.

use mori_core::{Access, EngineKey, Location, MemoryDesc, MemoryKind, Region};

use crate::encoded::with;
use crate::values::{blob, engine, memory};

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
