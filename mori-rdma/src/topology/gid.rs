//! Which of a port's addresses to use.

use std::fmt;

use mori_core::{Error, ErrorKind};

use crate::verbs::{GidEntry, GidKind, LinkLayer};

/// How to choose among a port's GIDs. The default takes the best by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidRule {
    /// The GID with this index and no other, whatever it is.
    pub index: Option<u32>,
    /// Only GIDs of this kind, for networks that carry one only.
    pub kind: Option<GidKind>,
    /// Take a link-local address where there is no other. It is good between hosts on one link only.
    pub link_local: bool,
}

/// The chosen GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenGid {
    /// The line of the port's table.
    pub entry: GidEntry,
    /// Why it was chosen.
    pub reason: &'static str,
}

impl fmt::Display for ChosenGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GidEntry { gid, index, kind, .. } = self.entry;
        write!(f, "GID {index} {gid} ({kind}; {})", self.reason)
    }
}

/// Why a port has no GID that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}; {remedy}. The port has {has}")]
pub struct NoGid {
    why: String,
    remedy: &'static str,
    has: String,
}

impl From<NoGid> for Error {
    fn from(none: NoGid) -> Self {
        Self::new(ErrorKind::Unavailable, none.to_string())
    }
}

impl GidRule {
    /// Chooses among the lines of a port's table that are in use.
    ///
    /// On Ethernet RoCE v2 comes before RoCE v1, an IPv4 address before an IPv6 address, and the lower index before the higher.
    /// Addresses that are good on one link only are left out, if the rule does not ask for them. On InfiniBand the lowest
    /// index is the port's own.
    ///
    /// # Errors
    ///
    /// [`NoGid`], with what the port has and what to do.
    pub fn choose(&self, link: LinkLayer, entries: &[GidEntry]) -> Result<ChosenGid, NoGid> {
        let refused = |why: String, remedy| Err(NoGid { why, remedy, has: list(entries) });
        if let Some(index) = self.index {
            let found = entries.iter().find(|entry| entry.index == index && !entry.gid.is_zero());
            return match found {
                Some(entry) => Ok(ChosenGid { entry: *entry, reason: "its index was asked for" }),
                None => refused(
                    format!("there is no GID with the index {index} that was asked for"),
                    "ask for another index, or for none",
                ),
            };
        }
        let ranked = entries.iter().filter_map(|entry| Some((self.rank(link, entry)?, *entry)));
        match ranked.min_by_key(|((rank, _), entry)| (*rank, entry.index)) {
            Some(((_, reason), entry)) => Ok(ChosenGid { entry, reason }),
            None => refused(
                self.kind.map_or_else(
                    || "there is no GID that can be used".to_owned(),
                    |kind| format!("there is no GID of the kind {kind} that can be used"),
                ),
                "give the port's network interface an IPv4 address, or ask for a GID by its index",
            ),
        }
    }

    /// How good a GID is, 0 being the best, and why; `None` for one that is not to be used.
    fn rank(&self, link: LinkLayer, entry: &GidEntry) -> Option<(u8, &'static str)> {
        if entry.gid.is_zero() || self.kind.is_some_and(|kind| kind != entry.kind) {
            return None;
        }
        if link != LinkLayer::Ethernet {
            return Some((0, "the port's own on InfiniBand"));
        }
        let (ipv4, local) = (entry.gid.ipv4().is_some(), entry.gid.is_link_local());
        Some(match (entry.kind, ipv4, local) {
            (GidKind::RoceV2, true, _) => (0, "RoCE v2 with an IPv4 address"),
            (GidKind::RoceV2, false, false) => (1, "RoCE v2 with an IPv6 address, for want of IPv4"),
            (GidKind::RoceV1 | GidKind::InfiniBand, true, _) => (2, "RoCE v1, for want of v2"),
            (GidKind::RoceV1 | GidKind::InfiniBand, false, false) => {
                (3, "RoCE v1 with an IPv6 address, for want of others")
            }
            (GidKind::RoceV2, false, true) if self.link_local => (4, "link-local, for want of others"),
            (GidKind::RoceV1 | GidKind::InfiniBand, false, true) if self.link_local => {
                (5, "RoCE v1 and link-local, for want of others")
            }
            _ => return None,
        })
    }
}

/// The entries in words.
fn list(entries: &[GidEntry]) -> String {
    let used: Vec<String> = entries
        .iter()
        .filter(|entry| !entry.gid.is_zero())
        .map(|entry| {
            let local = if entry.gid.is_link_local() { ", link-local" } else { "" };
            format!("{} {} ({}{local})", entry.index, entry.gid, entry.kind)
        })
        .collect();
    if used.is_empty() { "none".to_owned() } else { used.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Gid;
    use std::net::Ipv6Addr;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        let address: Ipv6Addr = address.parse().unwrap();
        GidEntry { gid: Gid(address.octets()), index, port: 1, kind, interface: 2 }
    }

    /// A port as mlx5 makes it: every address once for v1 and once for v2.
    fn table() -> Vec<GidEntry> {
        let addresses = ["fe80::1", "2001:db8::1", "::ffff:192.0.2.1", "::ffff:192.0.2.9", "::"];
        let kinds = [GidKind::RoceV1, GidKind::RoceV2];
        let lines = addresses.iter().flat_map(|address| kinds.map(|kind| (*address, kind)));
        (0_u32..).zip(lines).map(|(index, (address, kind))| entry(index, address, kind)).collect()
    }

    fn chosen(rule: GidRule, entries: &[GidEntry]) -> Option<u32> {
        rule.choose(LinkLayer::Ethernet, entries).ok().map(|chosen| chosen.entry.index)
    }

    #[test]
    fn the_best_is_taken_and_the_next_best_where_it_is_missing() {
        let mut entries = table();
        let mut order = Vec::new();
        let rule = GidRule { link_local: true, ..GidRule::default() };
        while let Some(index) = chosen(rule, &entries) {
            order.push(index);
            entries.retain(|entry| entry.index != index);
        }
        assert_eq!(order, [5, 7, 3, 4, 6, 2, 1, 0]);
        assert_eq!(entries.len(), 2, "an address of zeros is none");
    }

    #[test]
    fn link_local_is_taken_only_if_the_rule_says_so() {
        let entries = &table()[..2];
        let none = GidRule::default().choose(LinkLayer::Ethernet, entries).unwrap_err();
        let text = none.to_string();
        assert!(text.contains("give the port's network interface an IPv4 address"), "{text}");
        assert!(text.contains("1 fe80::1 (RoCE v2, link-local)"), "{text}");
        assert_eq!(Error::from(none).kind(), ErrorKind::Unavailable);
        assert_eq!(chosen(GidRule { link_local: true, ..GidRule::default() }, entries), Some(1));
    }

    #[test]
    fn an_index_is_obeyed_and_a_wrong_one_is_told() {
        let entries = table();
        let asked = |index| GidRule { index: Some(index), ..GidRule::default() };
        assert_eq!(chosen(asked(0), &entries), Some(0));
        for wrong in [8, 99] {
            let text = asked(wrong).choose(LinkLayer::Ethernet, &entries).unwrap_err().to_string();
            assert!(text.contains(&format!("index {wrong}")) && text.contains("192.0.2.9"), "{text}");
        }
    }

    #[test]
    fn a_kind_can_be_asked_for() {
        let rule = GidRule { kind: Some(GidKind::RoceV1), ..GidRule::default() };
        assert_eq!(chosen(rule, &table()), Some(4));
        let text = rule.choose(LinkLayer::Ethernet, &[]).unwrap_err().to_string();
        assert!(text.contains("of the kind RoCE v1") && text.ends_with("The port has none"), "{text}");
    }

    #[test]
    fn on_infiniband_the_ports_own_is_taken() {
        let entries =
            [entry(0, "fe80::e41d:2d03:0:1", GidKind::InfiniBand), entry(1, "fec0::1", GidKind::InfiniBand)];
        for link in [LinkLayer::InfiniBand, LinkLayer::Unspecified] {
            let chosen = GidRule::default().choose(link, &entries).unwrap();
            assert_eq!(chosen.entry.index, 0);
        }
    }
}
