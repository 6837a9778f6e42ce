//! What an engine is called: its incarnation, its node, its host.

use mori_core::{Error, ErrorKind, Result};

/// 128 random bits that tell this incarnation of an engine from every other one.
pub(crate) fn instance() -> Result<[u8; 16]> {
    let mut bits = [0; 16];
    match getrandom::fill(&mut bits) {
        Ok(()) => Ok(bits),
        Err(error) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("the system gives no random numbers, which an engine needs to be told apart: {error}"),
        )),
    }
}

/// The host's name as the kernel knows it.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The node's name: the caller's choice, else the environment's `MORI_NODE_ID`, else the kernel's boot id, else
/// the host's name.
pub(crate) fn node_id(chosen: Option<String>, hostname: &str) -> String {
    let environment = std::env::var_os("MORI_NODE_ID").map(|name| name.to_string_lossy().into_owned());
    // Read only when it is needed; a machine without the file goes on to its name.
    let boot_id = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    first_named([chosen, environment])
        .or_else(|| first_named([boot_id()]))
        .unwrap_or_else(|| hostname.to_owned())
}

/// The first candidate that is more than white space, without the white space around it.
fn first_named<const N: usize>(candidates: [Option<String>; N]) -> Option<String> {
    candidates.into_iter().flatten().map(|name| name.trim().to_owned()).find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_candidate_with_a_name_wins() {
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(first_named([named("a"), named("b")]), named("a"));
        assert_eq!(first_named([None, named(" b\n")]), named("b"));
        assert_eq!(first_named([named(" "), named("b")]), named("b"));
        assert_eq!(first_named([None, named("")]), None);
    }

    #[test]
    fn a_choice_beats_everything_and_something_is_always_found() {
        assert_eq!(node_id(Some("rack-7".to_owned()), "host"), "rack-7");
        assert!(!node_id(None, "host").is_empty());
    }

    #[test]
    fn incarnations_differ() {
        assert_ne!(instance().unwrap(), instance().unwrap());
    }
}
