//! Engines of one host: the shortest way is taken, and its absence is explained.

use mori_engine::{Access, Engine, EngineDesc, Memory, ShmConfig, TcpConfig, TransferOptions};

fn engine(key: &str) -> Engine {
    Engine::builder(key).tcp(TcpConfig::default()).shm(ShmConfig::default()).build().unwrap()
}

/// A region at each engine, and what the first one makes of a read.
fn read(near: &Engine, far: &Engine) -> (Memory, Memory) {
    let (local, remote) = (
        near.allocate(4096, Access::LOCAL).unwrap(),
        far.register_vec((0..=255).cycle().take(4096).collect(), Access::READ_WRITE).unwrap(),
    );
    let status = near.read(&local, 0, &remote.desc(), 0, 4096, TransferOptions::default());
    assert!(near.wait(&status, None).is_success(), "{}", status.message());
    let mut bytes = vec![0; 4096];
    local.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().zip((0..=255).cycle()).all(|(found, expected)| *found == expected));
    (local, remote)
}

#[test]
fn the_same_host_is_preferred() {
    let (near, far) = (engine("near"), engine("far"));
    near.add_peer(&far.desc()).unwrap();
    assert_eq!(near.backends().iter().map(|backend| backend.name).collect::<Vec<_>>(), ["shm", "tcp"]);
    let (local, remote) = read(&near, &far);
    let report = near.explain(&local, &remote.desc());
    assert_eq!(report.chosen.as_deref(), Some("shm"), "{report}");
    // Between two regions of one engine, too.
    let (local, remote) = read(&near, &near);
    assert_eq!(near.explain(&local, &remote.desc()).chosen.as_deref(), Some("shm"));
    near.deregister(&remote, None).unwrap();
    let late = near.read(&local, 0, &remote.desc(), 0, 16, TransferOptions::default());
    assert!(near.wait(&late, None).is_failure());
}

#[test]
fn another_host_falls_back_and_says_why() {
    let (near, far) = (engine("near"), engine("far"));
    let mut desc: EngineDesc = far.desc();
    let blob = desc.transports.iter_mut().find(|blob| blob.transport == "shm").unwrap();
    // The boot id stands behind the instance.
    blob.bytes[16] ^= 1;
    near.add_peer(&desc).unwrap();
    let (local, remote) = read(&near, &far);
    let report = near.explain(&local, &remote.desc());
    assert_eq!(report.chosen.as_deref(), Some("tcp"), "{report}");
    assert!(report.to_string().contains("shm: the peer runs on another host"), "{report}");
}

#[test]
fn an_engine_without_it_is_reached_otherwise() {
    let (near, far) = (engine("near"), Engine::builder("far").tcp(TcpConfig::default()).build().unwrap());
    near.add_peer(&far.desc()).unwrap();
    let (local, remote) = read(&near, &far);
    let report = near.explain(&local, &remote.desc());
    assert_eq!(report.chosen.as_deref(), Some("tcp"), "{report}");
    assert!(report.to_string().contains("shm: "), "{report}");
}
