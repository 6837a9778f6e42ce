//! An initiator whose target the test plays, frame by frame.

use std::sync::Arc;
use std::time::Duration;

use mori_core::{Access, Backend, Region, Session};
use mori_tcp::TcpConfig;

use super::raw::{Raw, Stage};
use super::{Node, bytes, pattern};

/// One connection, so that the stage knows where requests come.
pub(crate) fn config() -> TcpConfig {
    TcpConfig { connections: 1, peer_timeout: Duration::from_secs(600), ..TcpConfig::default() }
}

/// An initiator with a session to a target that the test plays.
pub(crate) struct Play {
    pub(crate) stage: Stage,
    pub(crate) session: Arc<dyn Session>,
    pub(crate) local: Region,
    pub(crate) near: Node,
}

impl Play {
    /// Connects, and gives the connection as the target has it.
    pub(crate) fn start(config: TcpConfig, length: usize) -> (Self, Raw) {
        let stage = Stage::new("far");
        let near = Node::new("near", config);
        near.backend.add_peer(&stage.desc()).unwrap();
        let (local, _) = near.region(length, Access::LOCAL);
        local.write_at(0, &pattern(length, 1)).unwrap();
        let (session, raw) = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| stage.accept());
            let session = near.session(&local, &stage.memory(length));
            (session, accepting.join().unwrap())
        });
        (Self { stage, session, local, near }, raw)
    }

    /// The bytes outside of the piece are as they were.
    pub(crate) fn untouched_outside(&self, offset: usize, length: usize) {
        let (got, original) = (bytes(&self.local), pattern(self.local.len(), 1));
        assert!(got[..offset] == original[..offset], "bytes before the piece have changed");
        assert!(got[offset + length..] == original[offset + length..], "bytes after the piece have changed");
    }
}
