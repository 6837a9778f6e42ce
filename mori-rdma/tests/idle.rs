//! A backend with nothing in progress uses no processor time: its thread is not even woken.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where something is not as it should be")]

use std::time::Duration;

use mori_core::{
    Access, Backend, BackendContext, EngineDesc, MemoryDesc, NotificationQueue, Op, Piece, Region,
    TransferOptions,
};
use mori_rdma::{Completion, RdmaBackend, RdmaConfig};
use mori_verbs_sim::Simulation;

/// How often the threads of that name have gone to sleep, as the kernel counts.
fn sleeps(name: &str) -> u64 {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let folder = task.unwrap().path();
        // A thread may end while the list is read.
        let Ok(comm) = std::fs::read_to_string(folder.join("comm")) else { continue };
        if comm.trim() != name {
            continue;
        }
        let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        for line in status.lines().filter(|line| line.contains("ctxt_switches")) {
            total += line.split_whitespace().last().unwrap().parse::<u64>().unwrap();
        }
    }
    total
}

#[test]
fn an_idle_backend_sleeps() {
    let simulation = Simulation::open().unwrap();
    for completion in [Completion::Events, Completion::Polling] {
        let config = RdmaConfig {
            library: Some(simulation.library().to_owned()),
            completion,
            ..RdmaConfig::default()
        };
        let node = |name: &str, instance: u8| {
            let backend = RdmaBackend::new(config.clone()).unwrap();
            let attached = backend
                .attach(BackendContext {
                    engine: name.into(),
                    instance: [instance; 16],
                    node_id: "idle".into(),
                    notifications: NotificationQueue::new(1),
                })
                .unwrap();
            let transports = attached.blob.into_iter().collect();
            let desc = EngineDesc { key: name.into(), transports, ..EngineDesc::default() };
            (backend, desc)
        };
        let ((a, _), (b, there)) = (node("a", 1), node("b", 2));
        a.add_peer(&there).unwrap();
        let local = Region::zeroed(1 << 20, Access::LOCAL).unwrap();
        let remote = Region::zeroed(1 << 20, Access::READ_WRITE).unwrap();
        a.register(&local).unwrap();
        let mut desc = MemoryDesc::for_region(&there.key, &remote);
        desc.transports.extend(b.register(&remote).unwrap());
        let session = a.session(&local, &desc).unwrap();
        let options =
            TransferOptions { deadline: Some(Duration::from_secs(60)), ..TransferOptions::default() };
        for _ in 0..10 {
            let status = session.submit(Op::Read, &[Piece::new(0, 0, 1 << 20)], &options);
            assert!(status.wait(Duration::from_secs(20)).is_success(), "{}", status.message());
        }
        // What the last transfer has set in motion comes to rest, and then nothing moves for a while.
        let mut before = sleeps("mori-rdma-notif");
        let mut quiet = 0;
        for _ in 0..100 {
            std::thread::park_timeout(Duration::from_millis(50));
            let now = sleeps("mori-rdma-notif");
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
            if quiet == 6 {
                break;
            }
        }
        assert_eq!(quiet, 6, "with {completion:?} the thread goes on being woken");
        drop(session);
        a.shutdown();
        b.shutdown();
    }
}
