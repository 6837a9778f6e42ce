//! Registering memory before and after backends, twice, overlapping, and ending it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mori_engine::{
    Access, Engine, EngineKey, ErrorKind, Location, ManualClock, Memory, MemoryDesc, Region, TransferOptions,
    WaitPolicy,
};

use crate::fake::{Net, error, introduce, while_opening, with};

const SECOND: Duration = Duration::from_secs(1);

fn options() -> TransferOptions {
    TransferOptions::default()
}

#[test]
fn memory_reaches_backends_added_before_and_after_it() {
    let net = Net::default();
    let (early, late) = (net.fake("early"), net.fake("late"));
    let a = with("a", [&early]).build().unwrap();
    let memory = a.allocate(64, Access::READ_WRITE).unwrap();
    let names = |memory: &Memory| -> Vec<String> {
        memory.desc().transports.iter().map(|blob| blob.transport.clone()).collect()
    };
    assert_eq!(names(&memory), ["early"]);
    a.add_backend(Arc::<crate::fake::Fake>::clone(&late)).unwrap();
    assert_eq!(names(&memory), ["early", "late"]);
    let register = format!("register {}", memory.id());
    assert_eq!((early.count(&register), late.count(&register)), (1, 1));

    // The later backend carries it as well as the earlier one.
    let b = with("b", [&net.fake("late")]).build().unwrap();
    introduce([&a, &b]);
    let theirs = b.register_vec(vec![7; 64], Access::READ_ONLY).unwrap();
    let status = a.read(&memory, 0, &theirs.desc(), 0, 64, options());
    assert!(status.is_success(), "{status:?}");
    let mut bytes = [0; 64];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64]);
}

#[test]
fn a_registration_that_nobody_carries_fails_if_somebody_should_have() {
    let net = Net::default();
    let fake = net.fake("fake");
    fake.script(|script| script.register = Some(error(ErrorKind::ResourceExhausted, "limit of 3 regions")));
    let a = with("a", [&fake]).build().unwrap();
    let refused = a.allocate(16, Access::READ_WRITE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    assert!(
        refused.message().contains("fake") && refused.message().contains("limit of 3 regions"),
        "{refused}"
    );
    assert!(a.memories().is_empty());
    assert_eq!(fake.count("deregister"), 1);
}

#[test]
fn a_registration_that_one_carries_succeeds_and_the_other_is_explained() {
    let net = Net::default();
    let (bad, good) = (net.fake("bad"), net.fake("good"));
    bad.script(|script| script.register = Some(error(ErrorKind::ResourceExhausted, "limit of 3 regions")));
    let a = with("a", [&bad, &good]).build().unwrap();
    let memory = a.allocate(16, Access::READ_WRITE).unwrap();
    assert!(memory.desc().blob("bad").is_none() && memory.desc().blob("good").is_some());
    let report = a.explain(&memory, &memory.desc());
    assert_eq!(report.chosen.as_deref(), Some("good"));
    assert!(
        report.to_string().contains("bad: it could not register the local memory: limit of 3 regions"),
        "{report}"
    );
}

#[test]
fn memory_of_a_kind_that_nobody_carries_is_registered_all_the_same() {
    let net = Net::default();
    let fake = net.fake("fake");
    fake.script(|script| script.other_kind = true);
    let a = with("a", [&fake]).build().unwrap();
    let memory = a.allocate(16, Access::READ_WRITE).unwrap();
    assert!(memory.desc().transports.is_empty());
    assert_eq!(a.memories().len(), 1);
}

#[test]
fn a_backend_added_later_that_fails_to_register_is_added_and_explained() {
    let net = Net::default();
    let late = net.fake("late");
    late.script(|script| script.register = Some(error(ErrorKind::Device, "no context")));
    let a = with("a", []).build().unwrap();
    let memory = a.allocate(16, Access::READ_WRITE).unwrap();
    a.add_backend(late).unwrap();
    let report = a.explain(&memory, &memory.desc());
    assert!(
        report.to_string().contains("late: it could not register the local memory: no context"),
        "{report}"
    );
}

#[test]
fn zero_bytes_null_and_wrapping_ranges_are_refused() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let kind = |made: mori_engine::Result<Memory>| made.unwrap_err().kind();
    assert_eq!(kind(a.allocate(0, Access::LOCAL)), ErrorKind::InvalidArgument);
    assert_eq!(kind(a.register_vec(Vec::new(), Access::LOCAL)), ErrorKind::InvalidArgument);
    assert_eq!(kind(a.register_static(&mut [], Access::LOCAL)), ErrorKind::InvalidArgument);
    for (address, length) in [(0_usize, 1_usize), (4096, 0), (usize::MAX, 2), (4096, usize::MAX)] {
        let pointer = std::ptr::without_provenance_mut(address);
        // SAFETY: each of these is refused before anything is touched.
        let made = unsafe { a.register_raw(pointer, length, Location::HOST, Access::LOCAL) };
        assert_eq!(kind(made), ErrorKind::InvalidArgument, "{address:#x} {length}");
    }
    assert_eq!(fake.count("register"), 0);
}

/// The same bytes twice, and two ranges that overlap: each registration has its own descriptor and its own end.
#[test]
fn one_range_may_be_registered_many_times() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let bytes = Box::leak(vec![0_u8; 100].into_boxed_slice());
    let pointer = bytes.as_mut_ptr();
    let register = |offset: usize, length: usize| {
        // SAFETY: the bytes are leaked, so they stay, and nothing borrows them while the test runs.
        unsafe { a.register_raw(pointer.wrapping_add(offset), length, Location::HOST, Access::READ_WRITE) }
            .unwrap()
    };
    let (whole, again, tail) = (register(0, 100), register(0, 100), register(60, 40));
    assert_ne!(whole.desc(), again.desc());
    assert_ne!(whole.desc().blob("fake"), again.desc().blob("fake"));
    assert_eq!(whole.desc().address, again.desc().address);

    let source = a.register_vec(vec![9; 40], Access::READ_ONLY).unwrap();
    assert!(a.write(&source, 0, &tail.desc(), 0, 40, options()).is_success());
    let mut seen = [0; 40];
    again.read_at(60, &mut seen).unwrap();
    assert_eq!(seen, [9; 40]);

    a.deregister(&whole, None).unwrap();
    let stale = a.read(&source, 0, &whole.desc(), 0, 40, options());
    assert_eq!(stale.error().unwrap().kind(), ErrorKind::NotFound);
    assert!(a.read(&source, 0, &again.desc(), 0, 40, options()).is_success());
    assert!(a.read(&source, 0, &tail.desc(), 0, 40, options()).is_success());
}

#[test]
fn one_region_is_registered_once_with_an_engine_and_may_be_with_two() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (b, _) = net.engine("b", "fake");
    let region = Region::zeroed(16, Access::READ_WRITE).unwrap();
    let memory = a.register(&region).unwrap();
    assert_eq!(a.register(&region).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fake.count("register"), 1);
    b.register(&region).unwrap();
    a.deregister(&memory, None).unwrap();
    assert_eq!(a.register(&region).unwrap_err().kind(), ErrorKind::NotFound, "a closed region stays closed");
}

/// E3: closing waits for transfers, or is refused as busy and leaves everything as it was.
#[test]
fn deregistering_waits_for_transfers_or_is_refused_as_busy() {
    let net = Net::default();
    let manual = ManualClock::new();
    let fake = net.fake("fake");
    let policy = WaitPolicy { clock: manual.clock(), ..WaitPolicy::DEFAULT };
    let a = with("a", [&fake]).wait_policy(policy).build().unwrap();
    let (b, _) = net.engine("b", "fake");
    introduce([&a, &b]);
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = b.register_vec(vec![3; 16], Access::READ_ONLY).unwrap();
    fake.script(|script| script.hold = true);
    let running = a.read(&local, 0, &remote.desc(), 0, 16, options());

    assert_eq!(a.deregister(&local, Duration::ZERO).unwrap_err().kind(), ErrorKind::Busy);
    std::thread::scope(|scope| {
        let bounded = scope.spawn(|| a.deregister(&local, SECOND));
        while manual.sleeps() == 0 && !bounded.is_finished() {
            std::thread::yield_now();
        }
        manual.advance(SECOND);
        assert_eq!(bounded.join().unwrap().unwrap_err().kind(), ErrorKind::Busy);
    });
    assert!(a.memory(&local.desc()).is_some(), "a refusal changes nothing");
    assert_eq!(fake.count("deregister"), 0);

    let before = manual.sleeps();
    std::thread::scope(|scope| {
        let unbounded = scope.spawn(|| a.deregister(&local, None));
        while manual.sleeps() == before && !unbounded.is_finished() {
            std::thread::yield_now();
        }
        fake.release();
        unbounded.join().unwrap().unwrap();
    });
    assert!(running.is_success());
    let mut bytes = [0; 16];
    local.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 16], "the transfer was not disturbed");
    assert_eq!(fake.count("deregister"), 1);
    assert_eq!(a.deregister(&local, None).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn sessions_of_memory_that_is_gone_refuse_clearly() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let local = a.allocate(16, Access::READ_WRITE).unwrap();
    let remote = a.allocate(16, Access::READ_WRITE).unwrap();
    let session = a.session(&local, &remote.desc()).unwrap();
    assert!(session.read(0, 0, 16, options()).is_success());
    a.deregister(&local, None).unwrap();
    let error = session.read(0, 0, 16, options()).error().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("deregistered"), "{error}");
}

/// Says when the memory that it stands for is let go.
struct Keeper(Arc<AtomicBool>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn kept(engine: &Engine) -> (Memory, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let bytes = Box::leak(vec![0_u8; 16].into_boxed_slice());
    let keeper = Box::new(Keeper(Arc::clone(&dropped)));
    // SAFETY: the bytes are leaked, so they stay, and nothing borrows them while the test runs.
    let memory = unsafe {
        engine.register_raw_with_keeper(bytes.as_mut_ptr(), 16, Location::HOST, Access::READ_WRITE, keeper)
    };
    (memory.unwrap(), dropped)
}

#[test]
fn a_cached_session_keeps_no_memory() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (local, dropped) = kept(&a);
    let remote = a.allocate(16, Access::READ_WRITE).unwrap();
    assert!(a.read(&local, 0, &remote.desc(), 0, 16, options()).is_success());
    assert_eq!(fake.count("session"), 1);
    a.deregister(&local, None).unwrap();
    assert!(!dropped.load(Ordering::Relaxed), "a handle keeps it");
    drop(local);
    assert!(dropped.load(Ordering::Relaxed));
}

/// A session that is being opened while its memory is deregistered is not kept for the next transfer.
#[test]
fn a_session_opened_too_late_keeps_no_memory() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (local, dropped) = kept(&a);
    let remote = a.allocate(16, Access::READ_WRITE).unwrap().desc();
    while_opening(
        &fake,
        || a.read(&local, 0, &remote, 0, 16, options()),
        || a.deregister(&local, None).unwrap(),
    );
    drop(local);
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn an_engine_that_ends_lets_its_memory_go() {
    let net = Net::default();
    let (a, fake) = net.engine("a", "fake");
    let (local, dropped) = kept(&a);
    assert!(a.read(&local, 0, &local.desc(), 0, 16, options()).is_success());
    drop(local);
    assert!(!dropped.load(Ordering::Relaxed), "the registration keeps it");
    drop(a);
    drop(fake);
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn a_descriptor_that_was_sent_around_names_the_local_memory() {
    let net = Net::default();
    let (a, _) = net.engine("a", "fake");
    let memory = a.allocate(16, Access::READ_WRITE).unwrap();
    let early = with("early", []).build().unwrap();
    let before = early.allocate(16, Access::READ_WRITE).unwrap().desc();
    early.add_backend(net.fake("fake")).unwrap();
    assert!(early.memory(&before).is_some(), "a descriptor from before a backend was added is still one");

    let received = MemoryDesc::unpack(&memory.desc().pack()).unwrap();
    let found = a.memory(&received).unwrap();
    assert_eq!(found.id(), memory.id());
    assert!(a.write(&found, 0, &received, 8, 8, options()).is_success());

    let mut other_key = received.clone();
    if let Some(blob) = other_key.transports.first_mut() {
        blob.bytes.reverse();
    }
    for wrong in [
        other_key,
        MemoryDesc { id: u64::MAX, ..received.clone() },
        MemoryDesc { size: 17, ..received.clone() },
        MemoryDesc { address: received.address + 1, ..received.clone() },
        MemoryDesc { engine_key: EngineKey::from("b"), ..received.clone() },
    ] {
        assert!(a.memory(&wrong).is_none(), "{wrong:?}");
    }
    a.deregister(&memory, None).unwrap();
    assert!(a.memory(&received).is_none());
}
