//! Two engines of one process, and a read from one to the other over the `local` backend.
//!
//! The backend is in `backend.rs`; `docs/adding-a-backend.md` walks through it.

mod backend;
mod harness;

use std::io::Write;

use mori_core::{
    Access, Backend, BackendContext, EngineDesc, EngineKey, MemoryDesc, NotificationQueue, Op, Piece, Region,
    Result, TransferOptions,
};

/// What an engine does with a backend that joins it.
fn join(backend: &dyn Backend, name: &str, instance: u8) -> Result<EngineDesc> {
    let key = EngineKey::from(name);
    let attachment = backend.attach(BackendContext {
        engine: key.clone(),
        instance: [instance; 16],
        node_id: "this process".to_owned(),
        notifications: NotificationQueue::new(16),
    })?;
    Ok(EngineDesc { key, transports: attachment.blob.into_iter().collect(), ..EngineDesc::default() })
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (decode, prefill) = (backend::Local::new(), backend::Local::new());
    join(&*decode, "decode", 1)?;
    let desc = join(&*prefill, "prefill", 2)?;

    let block = Region::from_vec(b"a block of the cache".to_vec(), Access::READ_ONLY)?;
    let mut remote = MemoryDesc::for_region(&desc.key, &block);
    remote.transports.extend(prefill.register(&block)?);

    let buffer = Region::zeroed(block.len(), Access::LOCAL)?;
    decode.register(&buffer)?;
    decode.add_peer(&desc)?;
    let session = decode.session(&buffer, &remote)?;
    let status =
        session.submit(Op::Read, &[Piece::new(0, 0, block.len() as u64)], &TransferOptions::default());
    let code = status.wait(None);

    let mut bytes = vec![0; buffer.len()];
    buffer.read_at(0, &mut bytes)?;
    writeln!(std::io::stdout(), "{code}: {}", String::from_utf8_lossy(&bytes))?;

    // The suite that `cargo test` runs, here as a function.
    let report = mori_testkit::run_some(harness::LocalHarness, |case| case.name.starts_with("read_"));
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}
