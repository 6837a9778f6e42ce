//! Statuses and batches as futures on other people's executors (contract F1): pollster, and tokio's two runtimes.

use std::future::IntoFuture;

use mori_engine::{
    Access, Completer, Engine, ErrorKind, Gathering, Memory, MemoryDesc, Origin, Piece, Status, StatusCode,
    Tag, TcpConfig, TransferOptions,
};

/// Two engines over TCP, with a memory at each.
struct Link {
    near: Engine,
    _far: Engine,
    local: Memory,
    remote: MemoryDesc,
}

const SLOT: u64 = 1000;
const SLOTS: u64 = 64;

fn link() -> Link {
    let engine = |key: &str| Engine::builder(key).tcp(TcpConfig::default()).build().unwrap();
    let (near, far) = (engine("near"), engine("far"));
    near.add_peer(&far.desc()).unwrap();
    let content = (0..SLOT * SLOTS).map(|at| u8::try_from(at / SLOT).unwrap() + 1).collect();
    let remote = far.register_vec(content, Access::READ_ONLY).unwrap().desc();
    let local = near.allocate(usize::try_from(SLOT * SLOTS).unwrap(), Access::LOCAL).unwrap();
    Link { near, _far: far, local, remote }
}

impl Link {
    fn read(&self, slot: u64) -> Status {
        let at = slot * SLOT;
        self.near.read(&self.local, at, &self.remote, at, SLOT, TransferOptions::tagged(slot))
    }

    fn holds(&self, slot: u64) {
        let mut bytes = vec![0; usize::try_from(SLOT).unwrap()];
        self.local.read_at(slot * SLOT, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| u64::from(byte) == slot + 1), "slot {slot}");
    }
}

fn in_progress() -> (Completer, Status) {
    let (completer, status) = Status::pair(Origin::detached());
    completer.submit();
    (completer, status)
}

#[test]
fn pollster_awaits_a_status_and_a_batch() {
    let link = link();
    pollster::block_on(async {
        assert_eq!((&link.read(0)).await, StatusCode::Success);
        link.holds(0);
        let outcome = Gathering::all((1..SLOTS).map(|slot| link.read(slot)).collect::<Vec<_>>()).await;
        assert!(outcome.is_success(), "{outcome:?}");
        (1..SLOTS).for_each(|slot| link.holds(slot));
    });
}

#[test]
fn tokio_awaits_on_one_thread_and_on_several() {
    let link = link();
    let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for runtime in [one, several] {
        let tasks: Vec<_> = (0..SLOTS).map(|slot| runtime.spawn(link.read(slot).into_future())).collect();
        for (slot, task) in (0..).zip(tasks) {
            assert_eq!(runtime.block_on(task).unwrap(), StatusCode::Success, "slot {slot}");
            link.holds(slot);
        }
    }
}

#[test]
fn tokio_is_woken_from_another_thread_and_a_lost_race_cancels_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (completer, status) = in_progress();
    let (other, quick) = in_progress();
    runtime.block_on(async {
        // The future of `status` loses and is dropped.
        let racing = tokio::spawn(quick.into_future());
        let ending = std::thread::spawn(move || other.succeed());
        tokio::select! {
            biased;
            code = (&status).into_future() => panic!("{code:?} too early"),
            code = racing => assert_eq!(code.unwrap(), StatusCode::Success),
        }
        assert!(ending.join().unwrap().applied());
        assert_eq!(status.code(), StatusCode::InProgress);
        let ending = std::thread::spawn(move || completer.succeed());
        assert_eq!((&status).await, StatusCode::Success);
        assert!(ending.join().unwrap().applied());
    });
}

#[test]
fn a_failure_is_an_outcome_not_a_hang() {
    let link = link();
    pollster::block_on(async {
        let beyond = Piece::new(0, SLOT * SLOTS, 1);
        let wrong = link.near.read(
            &link.local,
            beyond.local,
            &link.remote,
            beyond.remote,
            1,
            TransferOptions::tagged(9),
        );
        let outcome = Gathering::first_failure([link.read(3), wrong]).await;
        assert_eq!(outcome.code(), StatusCode::Failure(ErrorKind::InvalidArgument));
        assert_eq!((outcome.failed()[0].index, outcome.failed()[0].tag), (1, Tag(9)));
    });
}
