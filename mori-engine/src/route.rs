//! Routes: which backend carries a pair of regions, and why the others do not.

use std::fmt;
use std::sync::Arc;

use mori_core::{EngineKey, Error, ErrorKind, MemoryDesc, MemoryKind, Messenger, Result};

use crate::Memory;
use crate::attached::Attached;
use crate::backends::Carrier;
use crate::engine::Core;
use crate::memory::Standing;
use crate::peers::Peer;
use crate::session::unregistered;

/// Which backend carries a pair of regions, and what every backend said, in the order of preference.
///
/// Its text is for people, its fields are for programs.
///
/// ```
/// use mori_engine::{Access, Engine};
/// let engine = Engine::builder("alone").build()?;
/// let memory = engine.allocate(16, Access::READ_WRITE)?;
/// let report = engine.explain(&memory, &memory.desc());
/// assert_eq!(report.chosen, None);
/// assert!(report.to_string().contains("no backend"));
/// # Ok::<(), mori_engine::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteReport {
    /// The backend that carries the pair.
    pub chosen: Option<String>,
    /// Every backend of the engine, the preferred one first. Empty if there is an [`obstacle`](RouteReport::obstacle).
    pub considered: Vec<Considered>,
    /// What stands in the way whatever the backend: the engine is shut down, has no backend, does not know the memory or the
    /// peer.
    pub obstacle: Option<Error>,
    /// The pair in words.
    pair: String,
}

/// What one backend says about a pair of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Considered {
    /// The backend's name.
    pub backend: String,
    /// `Ok` if it can carry the pair, else why not.
    pub verdict: Result<()>,
    /// Whether it is the remote memory that does not exist (any more).
    stale: bool,
}

impl RouteReport {
    /// The error that a submission for this pair ends with; `None` if there is a route.
    ///
    /// Its kind is [`ErrorKind::BadState`], unless there is an [`obstacle`](RouteReport::obstacle) of another kind, or a backend
    /// knows the remote memory's descriptor as stale: [`ErrorKind::NotFound`].
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if self.chosen.is_some() {
            return None;
        }
        if let Some(obstacle) = &self.obstacle {
            return Some(obstacle.context(format_args!("no route {}", self.pair)));
        }
        let reasons: Vec<String> = self.considered.iter().map(ToString::to_string).collect();
        let stale = self.considered.iter().any(|considered| considered.stale);
        let kind = if stale { ErrorKind::NotFound } else { ErrorKind::BadState };
        Some(Error::new(kind, format!("no route {}: {}", self.pair, reasons.join("; "))))
    }
}

impl fmt::Display for RouteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.chosen, &self.obstacle) {
            (Some(chosen), _) => write!(f, "{} over {chosen}", self.pair)?,
            (None, Some(obstacle)) => write!(f, "no route {}: {}", self.pair, obstacle.message())?,
            (None, None) => write!(f, "no route {}", self.pair)?,
        }
        self.considered.iter().try_for_each(|considered| write!(f, "\n  {considered}"))
    }
}

impl fmt::Display for Considered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Ok(()) => write!(f, "{}: can carry it", self.backend),
            Err(error) => write!(f, "{}: {}", self.backend, error.message()),
        }
    }
}

impl Core {
    /// What every backend says about the pair.
    pub(crate) fn explain(&self, local: &Memory, remote: &MemoryDesc) -> RouteReport {
        let mut report = RouteReport {
            chosen: None,
            considered: Vec::new(),
            obstacle: None,
            pair: format!(
                "from region {} of engine {} to region {} of engine {}",
                local.id(),
                self.key,
                remote.id,
                remote.engine_key
            ),
        };
        let peer = match self.pair(local, remote) {
            Ok(peer) => peer,
            Err(obstacle) => {
                report.obstacle = Some(obstacle);
                return report;
            }
        };
        for attached in &*self.backends() {
            let considered = consider(attached, local, remote, &peer);
            if considered.verdict.is_ok() && report.chosen.is_none() {
                report.chosen = Some(considered.backend.clone());
            }
            report.considered.push(considered);
        }
        if report.considered.is_empty() {
            report.obstacle = Some(Error::new(
                ErrorKind::BadState,
                "the engine has no backend; add one when it is built, or with add_backend",
            ));
        }
        report
    }

    /// The backend that carries the pair, and the peer as it is known now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadState`] with every backend's reason if there is none.
    pub(crate) fn route(&self, local: &Memory, remote: &MemoryDesc) -> Result<(Arc<Attached>, Arc<Peer>)> {
        if let Ok(peer) = self.pair(local, remote) {
            let backends = self.backends();
            let carries = |backend: &&Arc<Attached>| {
                meet(backend, local, remote, &peer).is_ok()
                    && backend.slot.route(local.region(), remote).is_ok()
            };
            if let Some(found) = backends.iter().find(carries) {
                return Ok((Arc::clone(found), peer));
            }
        }
        // Only a pair without a route pays for the explanation.
        let report = self.explain(local, remote);
        Err(report.error().unwrap_or_else(|| {
            Error::new(ErrorKind::BadState, "the route appeared while it was looked for; try again")
        }))
    }

    /// Who tells an engine about transfers that the backend `carrier` cannot send messages about.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] with every other backend's reason if nobody does.
    pub(crate) fn messenger(&self, carrier: &str, to: &EngineKey) -> Result<Arc<dyn Messenger>> {
        let mut reasons = Vec::new();
        let peer = self.peers.get(to);
        for attached in self.backends().iter().filter(|attached| attached.name != carrier) {
            let asked = match &peer {
                Some(peer) => peer.reachable_over(attached.name),
                None => Err(Error::new(ErrorKind::NotFound, format!("engine {to} is not known here"))),
            };
            match asked.and_then(|()| attached.slot.messenger(to)) {
                Ok(messenger) => return Ok(messenger),
                Err(error) => reasons.push(format!("{}: {}", attached.name, error.message())),
            }
        }
        if reasons.is_empty() {
            reasons.push("there is no other; add the TCP transport to both engines".to_owned());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the {carrier} backend carries no notifications, and no other backend of this engine delivers them to engine {to}: {}",
                reasons.join("; ")
            ),
        ))
    }

    /// The peer, if nothing stands in the way of the pair whatever the backend.
    fn pair(&self, local: &Memory, remote: &MemoryDesc) -> Result<Arc<Peer>> {
        self.check_open()?;
        if !self.is_registered(local) {
            return Err(unregistered(local));
        }
        if remote.kind == MemoryKind::Unknown {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the remote memory is of a kind that this version does not know",
            ));
        }
        self.peers.get(&remote.engine_key).ok_or_else(|| {
            Error::new(
                ErrorKind::BadState,
                format!(
                    "engine {} is not known here; add it with add_peer and its descriptor",
                    remote.engine_key
                ),
            )
        })
    }
}

/// Whether one backend can carry the pair.
fn consider(attached: &Attached, local: &Memory, remote: &MemoryDesc, peer: &Peer) -> Considered {
    let met = meet(attached, local, remote, peer);
    let asked = met.is_ok();
    let verdict = met.and_then(|()| attached.slot.route(local.region(), remote));
    let stale = asked && verdict.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    Considered { backend: attached.name.to_owned(), verdict, stale }
}

/// Whether both sides have what the backend needs to be asked at all.
fn meet(attached: &Attached, local: &Memory, remote: &MemoryDesc, peer: &Peer) -> Result<()> {
    match local.standing(attached.name) {
        Standing::Carried => {}
        Standing::OtherKind => {
            return Err(Error::new(ErrorKind::Unsupported, "it cannot carry the local memory's kind"));
        }
        Standing::Failed(error) => return Err(error.context("it could not register the local memory")),
    }
    peer.reachable_over(attached.name)?;
    if remote.blob(attached.name).is_none() {
        return Err(Error::new(
            ErrorKind::NotFound,
            "the remote memory is not registered with this transport; describe it again after the peer has added the transport",
        ));
    }
    Ok(())
}
