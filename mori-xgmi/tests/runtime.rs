//! The loader and the runtime: over the simulation, and over the real library where it is installed.

#![allow(clippy::print_stdout, reason = "a test program says what it skips")]

use std::path::PathBuf;

use mori_core::{Access, ErrorKind, Location, Region};
use mori_hip_sim::client::Simulation;
use mori_xgmi::Runtime;

#[test]
fn the_simulation_loads_like_a_library() {
    let simulation = Simulation::open().unwrap();
    let runtime = Runtime::load(Some(simulation.library())).unwrap();
    assert_eq!(runtime.version().unwrap(), 900_000_000);
    assert!(runtime.is_simulated());
    assert!(runtime.optional_functions().iter().all(|(_, there)| *there));
    let devices = runtime.devices().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].bus_id, "51a0:02:00.0");
    assert_eq!(devices[0].peers, [0, 1]);

    let region = runtime.allocate(1, 1000, Access::READ_WRITE).unwrap();
    assert!(
        matches!(region.location(), Location::Device { device_id: 1, bus_id } if bus_id == "51a0:02:00.0")
    );
    let bytes: Vec<u8> = (0..100).collect();
    runtime.upload(&region, 900, &bytes).unwrap();
    let mut back = [0; 100];
    runtime.download(&region, 900, &mut back).unwrap();
    assert_eq!(back[..], bytes);
    let view = runtime.view(&region, 950, 50, Access::READ_ONLY).unwrap();
    drop(region);
    runtime.download(&view, 0, &mut back[..50]).unwrap();
    assert_eq!(back[..50], bytes[50..]);

    let refused = |result: mori_core::Result<()>| result.unwrap_err().kind();
    assert_eq!(refused(runtime.upload(&view, 1, &back[..50])), ErrorKind::InvalidArgument);
    assert_eq!(refused(runtime.download(&view, u64::MAX, &mut back)), ErrorKind::InvalidArgument);
    let host = Region::zeroed(10, Access::LOCAL).unwrap();
    assert_eq!(refused(runtime.upload(&host, 0, &[1])), ErrorKind::InvalidArgument);
    for (device, length) in [(2, 10), (0, 0), (u32::MAX, 1)] {
        let error = runtime.allocate(device, length, Access::LOCAL).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let error = runtime.allocate(0, 1 << 40, Access::LOCAL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert_eq!(error.cause().map(|cause| (cause.domain, cause.number)), Some(("hip", 2)));

    drop(view);
    let report = simulation.report().unwrap();
    assert_eq!((report.allocations, report.misuse.len()), (0, 0), "{report:?}");
}

/// Where Debian, or ROCm's own packages, put the library.
const REAL: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5",
    "/usr/lib/x86_64-linux-gnu/libamdhip64.so.6",
    "/usr/lib/x86_64-linux-gnu/libamdhip64.so.7",
    "/opt/rocm/lib/libamdhip64.so",
];

#[test]
fn the_real_library_resolves_and_says_what_it_finds() {
    // A library elsewhere is named as it is for the product.
    let named = std::env::var_os("MORI_HIP_LIBRARY").map(PathBuf::from);
    let library = named.into_iter().chain(REAL.iter().map(PathBuf::from)).find(|path| path.is_file());
    let Some(library) = library else {
        println!(
            "skipped: the_real_library_resolves_and_says_what_it_finds: libamdhip64 is not installed; `cargo xtask setup hip-library` installs Debian's"
        );
        return;
    };
    println!("loading {}", library.display());
    match Runtime::load(Some(&library)) {
        // A machine with a device.
        Ok(runtime) => assert!(!runtime.devices().unwrap().is_empty()),
        // The table is complete, so the one thing left to miss is a device.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.message().contains("finds no device"), "{error}");
        }
    }
}
