//! What a backend holds right now, for tests and for people.

use crate::core::Core;

/// A queue pair of this side that starts transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// The engine at the other end.
    pub peer: String,
    /// The device.
    pub device: String,
    /// Work requests that are posted and have not completed.
    pub credits_in_use: usize,
    /// Chains of requests that are posted.
    pub records: usize,
}

/// A queue pair of this side that serves a peer's transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassiveStats {
    /// The engine at the other end.
    pub peer: String,
    /// The device.
    pub device: String,
    /// Its number on the device.
    pub queue_pair: u32,
}

/// What a backend holds right now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaStats {
    /// Transfers in progress.
    pub transfers: usize,
    /// Work requests that are posted and have not completed.
    pub credits_in_use: usize,
    /// Chains of requests that are posted.
    pub records: usize,
    /// Messages that are on their way.
    pub messages: usize,
    /// Queue pairs that are ending.
    pub draining: usize,
    /// Registrations of memory, counted per device.
    pub registrations: usize,
    /// Each queue pair that starts transfers.
    pub lanes: Vec<LaneStats>,
    /// Each queue pair that serves peers.
    pub passive: Vec<PassiveStats>,
}

impl RdmaStats {
    pub(crate) fn of(core: &Core) -> Self {
        let mut stats = Self { registrations: core.regions.count(), ..Self::default() };
        for peer in core.all_peers() {
            let device = |path: usize| core.nics.get(path).map_or_else(String::new, |nic| nic.name.clone());
            peer.look(|flow| {
                let held = flow.held();
                stats.transfers += held.transfers;
                stats.credits_in_use += held.credits;
                stats.records += held.records;
                stats.messages += held.messages;
                stats.draining += held.draining;
                stats.lanes.extend(flow.lanes().map(|(_, path, used, records)| LaneStats {
                    peer: peer.key.as_str().to_owned(),
                    device: device(path),
                    credits_in_use: used,
                    records,
                }));
            });
        }
        stats.passive = core
            .passive_ends()
            .iter()
            .map(|passive| PassiveStats {
                peer: passive.owner.peer.as_str().to_owned(),
                device: passive.nic.name.clone(),
                queue_pair: passive.pair.number(),
            })
            .collect();
        stats
    }
}
