//! `mori doctor`: which transports work on this machine, and with a peer, and why one does not.
//!
//! Everything is looked at side by side, each with a bound, so that a library that hangs costs the others nothing and the whole
//! takes less than two seconds. What is absent is an answer, not a failure: the exit status is 0 unless a peer was asked for and
//! cannot be used.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::Serialize;

pub mod args;
pub mod finding;
pub mod host;
pub mod peer;
pub mod rdma;
pub mod shm;
pub mod tcp;
pub mod xgmi;

use args::DoctorArgs;
use finding::{Finding, Findings};
use host::Root;
use peer::PeerReport;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::node;
use crate::run::print;

/// How long what is looked at on this machine may take together.
const BOUND: Duration = Duration::from_millis(1500);

/// What is looked at: a section's name, and who looks.
type Section = (&'static str, fn(&Root) -> Vec<Finding>);

const SECTIONS: [Section; 5] = [
    ("host", host::look),
    ("shm", shm::look),
    ("tcp", tcp::look),
    ("rdma", rdma::look),
    ("xgmi", xgmi::look),
];

/// All that is told.
#[derive(Debug, Serialize)]
struct Report<'a> {
    version: &'static str,
    findings: &'a [Finding],
    peer: Option<&'a PeerReport>,
}

/// Runs `mori doctor`.
///
/// # Errors
///
/// [`Failure`] for a secret that cannot be read.
pub fn doctor(args: &DoctorArgs) -> Result<Exit, Failure> {
    let secret = node::read_secret(args.secret_file.as_deref())?;
    let findings = look(&SECTIONS, &Root::default(), BOUND);
    let peer = args.peer.as_ref().map(|target| peer::try_all(target, secret.as_ref(), args.timeout));
    let text = if args.json {
        let report = Report { version: env!("CARGO_PKG_VERSION"), findings: &findings, peer: peer.as_ref() };
        serde_json::to_string(&report).map_err(Failure::internal)?
    } else {
        let mut text = finding::table(&findings);
        if let Some(peer) = &peer {
            text.push('\n');
            text.push_str(&peer.text());
        }
        text
    };
    let printed = print(&text);
    let exit = peer.map_or(Exit::Ok, |peer| peer.exit());
    Ok(if exit == Exit::Ok { printed } else { exit })
}

/// Looks at all sections at once, each on a thread of its own; one that is not done in time says so, and its thread ends with
/// the program.
fn look(sections: &[Section], root: &Root, bound: Duration) -> Vec<Finding> {
    let clock = mori_engine::Clock::system();
    let until = clock.now() + bound;
    let begun: Vec<_> = sections
        .iter()
        .map(|(name, look)| {
            let (sender, receiver) = mpsc::sync_channel(1);
            let (look, root) = (*look, root.clone());
            let work = move || {
                // The receiver is gone when the bound has passed.
                let _ = sender.send(look(&root));
            };
            let started = std::thread::Builder::new().name(format!("mori-{name}")).spawn(work);
            (*name, receiver, started.err())
        })
        .collect();
    let mut findings = Vec::new();
    for (name, receiver, error) in begun {
        let left = until.saturating_duration_since(clock.now());
        let mut section = Findings::of(name);
        match (error, receiver.recv_timeout(left)) {
            (None, Ok(found)) => {
                findings.extend(found);
                continue;
            }
            (Some(error), _) => {
                section.absent("answer", format!("no thread can be started to look: {error}"), "");
            }
            (None, Err(RecvTimeoutError::Timeout)) => section.absent(
                "answer",
                format!("looking has taken more than {bound:?}"),
                "a library or a device hangs: look at the processes in state D and into the kernel's log",
            ),
            (None, Err(RecvTimeoutError::Disconnected)) => {
                section.absent("answer", "looking has failed; this is a bug of mori", "");
            }
        }
        findings.extend(section.into_list());
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::finding::Verdict;
    use super::*;

    fn good(_: &Root) -> Vec<Finding> {
        let mut section = Findings::of("good");
        section.ok("thing", "there");
        section.into_list()
    }

    fn hanging(_: &Root) -> Vec<Finding> {
        static NEVER: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
        let mut held = NEVER.0.lock().expect("whole");
        loop {
            held = NEVER.1.wait(held).expect("whole");
        }
    }

    fn panicking(_: &Root) -> Vec<Finding> {
        std::panic::resume_unwind(Box::new("on purpose"))
    }

    #[test]
    fn what_hangs_or_breaks_costs_the_others_nothing() {
        let sections: [Section; 3] = [("hanging", hanging), ("good", good), ("panicking", panicking)];
        let findings = look(&sections, &Root::default(), Duration::from_millis(300));
        let told: Vec<_> = findings.iter().map(|finding| (finding.section, finding.verdict)).collect();
        let expected = [("hanging", Verdict::Absent), ("good", Verdict::Ok), ("panicking", Verdict::Absent)];
        assert_eq!(told, expected);
        assert!(findings.iter().any(|finding| finding.found.contains("more than 300ms")));
    }
}
