//! A device is deleted under an engine.
//!
//! The driver of these devices waits for those who have a device open and takes nothing away from them: it raises no event, and
//! transfers go on. What can be noticed is that the device cannot be opened any more. Drivers of cards that are pulled out raise
//! the event of a failed device instead; that is tested over the simulated library.

use std::time::Duration;

use mori_core::ErrorKind;

use super::play::{Play, given_back, held};
use super::{Node, config, until, within};
use crate::guest::{DEVICES, net, net_begun};

/// A shutdown waits for nothing here.
const ENDED: Duration = Duration::from_secs(15);

fn delete(at: usize) {
    let mut play = Play::new();
    let mut deletion = net_begun(&["delete-device", DEVICES[at]]);
    until("a device that cannot be opened", || match Node::start("late", 9, config(&DEVICES[at..=at])) {
        Ok(late) => {
            late.end();
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.message().contains("no RDMA device"), "{error:?}");
            true
        }
    });
    play.moves().unwrap();
    assert!(play.session.alive() && deletion.try_wait().unwrap().is_none());
    within(ENDED, "the end and the deletion", || {
        play.rests();
        // A session that is kept does not keep the device.
        let Play { node, peer, session, .. } = play;
        node.end();
        peer.end();
        assert!(deletion.wait().unwrap().success());
        assert!(!session.alive());
    });
    net(&["heal"]);
}

pub(crate) fn a_deleted_device_is_used_until_its_engine_ends() {
    let before = held();
    delete(0);
    given_back(&before);
}

pub(crate) fn a_device_deleted_at_the_peer_is_used_until_the_peer_ends() {
    let before = held();
    delete(1);
    given_back(&before);
}
