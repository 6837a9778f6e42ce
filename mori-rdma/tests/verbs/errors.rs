//! Every call failing once: a typed error with the call's name and number, nothing left behind, and the next try works.

use mori_core::{Access, Error, ErrorKind, Region};
use mori_rdma::verbs::{RegionAccess, VerbsError};

use crate::support::{End, LENGTH, Sim};

/// What making a connection calls, and polling and arming.
const CALLS: [&str; 16] = [
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_open_device",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_query_gid_table",
    "ibv_alloc_pd",
    "ibv_reg_mr",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_query_qp",
    "ibv_req_notify_cq",
    "ibv_resize_cq",
    "ibv_get_async_event",
];

fn everything(sim: &Sim) -> Result<(), VerbsError> {
    let devices = sim.verbs().devices()?;
    let context = devices[0].open()?;
    context.attributes()?;
    context.gids(1)?;
    let domain = context.protection_domain()?;
    let region = Region::zeroed(LENGTH, Access::READ_WRITE).unwrap();
    let _memory = domain.register(&region, RegionAccess::REMOTE)?;
    let channel = context.completion_channel()?;
    let queue = context.completion_queue(10, Some(&channel), 0)?;
    let pair = domain.queue_pair(&crate::support::options(&queue))?;
    pair.to_init(&crate::support::init())?;
    pair.state()?;
    queue.arm(false)?;
    queue.resize(20)?;
    assert_eq!(queue.capacity(), 20);
    assert_eq!(context.next_event()?, None);
    assert_eq!(channel.next_event()?, None);
    Ok(())
}

#[test]
fn every_call_can_fail_once() {
    let sim = Sim::new();
    for call in CALLS {
        for errno in [libc::ENOMEM, libc::EINVAL, libc::EIO] {
            sim.fault(call, 1, errno).unwrap();
            let error = everything(&sim).unwrap_err();
            let VerbsError::Call(failure) = &error else { panic!("{call}: {error:?}") };
            assert_eq!((failure.call, failure.errno), (call, errno));
            assert!(error.to_string().starts_with(call), "{error}");
            assert_eq!(sim.report().all_live(), 0, "{call} left something");
            everything(&sim).unwrap_or_else(|error| panic!("after {call}: {error}"));
        }
    }
}

#[test]
fn a_full_memory_limit_is_named_once_and_passes() {
    let sim = Sim::new();
    let domain = sim.open(0).protection_domain().unwrap();
    let region = Region::zeroed(LENGTH, Access::READ_WRITE).unwrap();
    sim.fault("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
    let error = domain.register(&region, RegionAccess::REMOTE).unwrap_err();
    let text = error.to_string();
    for part in ["ibv_reg_mr", "ENOMEM", "may lock", "ulimit -l", "LimitMEMLOCK"] {
        assert!(text.contains(part), "{text}");
    }
    let error = Error::from(error);
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert_eq!(error.cause().map(|cause| (cause.domain, cause.number)), Some(("errno", 12)));
    assert!(domain.register(&region, RegionAccess::REMOTE).is_ok());
}

#[test]
fn a_real_limit_leaves_what_is_registered_alone() {
    let sim = Sim::new();
    sim.set("memory", "10000").unwrap();
    let domain = sim.open(0).protection_domain().unwrap();
    let region = Region::zeroed(LENGTH, Access::READ_WRITE).unwrap();
    let (first, second) = (
        domain.register(&region, RegionAccess::REMOTE).unwrap(),
        domain.register(&region, RegionAccess::REMOTE).unwrap(),
    );
    assert_eq!(domain.register(&region, RegionAccess::REMOTE).unwrap_err().errno(), Some(libc::ENOMEM));
    drop(first);
    assert!(domain.register(&region, RegionAccess::REMOTE).is_ok());
    assert_eq!(second.len(), LENGTH as u64);
}

#[test]
fn a_device_beyond_its_limits_says_so() {
    let sim = Sim::new();
    sim.set("max_completions", "100").unwrap();
    sim.set("max_requests", "8").unwrap();
    let context = sim.open(0);
    let error = context.completion_queue(101, None, 0).unwrap_err();
    assert!(error.to_string().contains("longer than the device takes"), "{error}");
    assert!(context.completion_queue(u32::MAX, None, 0).is_err());
    assert!(context.completion_queue(10, None, 4).is_err());
    let queue = context.completion_queue(100, None, 3).unwrap();
    let domain = context.protection_domain().unwrap();
    let error = domain.queue_pair(&crate::support::options(&queue)).unwrap_err();
    assert!(error.to_string().contains("larger than the device takes"), "{error}");
}

#[test]
fn a_device_that_is_gone_answers_and_can_be_let_go() {
    let sim = Sim::new();
    let (a, b) = End::couple(&sim);
    sim.kill_device("mori_sim0").unwrap();
    assert_eq!(sim.devices().len(), 1);
    for result in [
        a.context.attributes().map(drop),
        a.context.protection_domain().map(drop),
        a.pair.state().map(drop),
        a.queue.arm(false),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
        assert!(error.to_string().contains("device is gone"), "{error}");
    }
    assert_eq!(a.context.device().open().unwrap_err().kind(), ErrorKind::Unavailable);
    drop(b);
}
