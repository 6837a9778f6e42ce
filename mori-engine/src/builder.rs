//! Building an engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mori_core::{
    Backend, EngineKey, Error, ErrorKind, MAX_DESCRIPTOR_TEXT, NotificationQueue, Result, WaitPolicy,
};

use crate::Engine;
use crate::backends::{Carrier, Slot};

/// What an engine is made of; [`Engine::builder`] starts one.
///
/// ```
/// use mori_engine::{Engine, Repoll, WaitPolicy};
/// use std::time::Duration;
/// let engine = Engine::builder("decode-0")
///     .node_id("rack-7")
///     .wait_policy(WaitPolicy { repoll: Repoll::BACKOFF, ..WaitPolicy::DEFAULT })
///     .default_deadline(Duration::from_secs(30))
///     .prefer(["rdma", "tcp"])
///     .build()?;
/// assert_eq!(engine.desc().node_id, "rack-7");
/// # Ok::<(), mori_engine::Error>(())
/// ```
#[must_use = "a builder does nothing until build is called"]
pub struct EngineBuilder {
    pub(crate) key: EngineKey,
    pub(crate) node_id: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) policy: WaitPolicy,
    pub(crate) default_deadline: Option<Duration>,
    pub(crate) notification_capacity: usize,
    pub(crate) notifications: Option<NotificationQueue>,
    pub(crate) session_cache: usize,
    pub(crate) prefer: Vec<String>,
    backends: Vec<Result<Slot>>,
}

impl EngineBuilder {
    pub(crate) fn new(key: EngineKey) -> Self {
        Self {
            key,
            node_id: None,
            hostname: None,
            policy: WaitPolicy::DEFAULT,
            default_deadline: None,
            notification_capacity: 4096,
            notifications: None,
            session_cache: 8192,
            prefer: Vec::new(),
            backends: Vec::new(),
        }
    }

    /// Adds a backend. The order of adding is the last word in the order of preference.
    pub fn backend(self, backend: Arc<dyn Backend>) -> Self {
        self.slot(Ok(Slot::from(backend)))
    }

    pub(crate) fn slot(mut self, slot: Result<Slot>) -> Self {
        self.backends.push(slot);
        self
    }

    /// How the engine's waits behave; [`WaitPolicy::DEFAULT`] unless told otherwise. The engine takes its time from the
    /// policy's clock.
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The deadline of transfers that bring none of their own, counted from their submission. None unless told otherwise.
    /// Backends that cannot stop a transfer ignore it.
    pub fn default_deadline(mut self, deadline: Duration) -> Self {
        self.default_deadline = Some(deadline);
        self
    }

    /// How many notifications of peers the engine keeps for its application; 4096 unless told otherwise. Transfers that
    /// find the queue full fail at their submitter.
    pub fn notification_capacity(mut self, notifications: usize) -> Self {
        self.notification_capacity = notifications;
        self
    }

    /// The queue that notifications of peers go to, in place of one that the engine makes. Its own capacity counts, and it is closed
    /// when the engine is shut down.
    pub fn notifications(mut self, queue: NotificationQueue) -> Self {
        self.notifications = Some(queue);
        self
    }

    /// How many sessions [`Engine::read`] and its relatives keep for the next call; 8192 unless told otherwise.
    pub fn session_cache(mut self, sessions: usize) -> Self {
        self.session_cache = sessions;
        self
    }

    /// The node's name, which engines on one host share. Unless told otherwise: the environment's `MORI_NODE_ID`,
    /// else the kernel's boot id, else the host's name.
    pub fn node_id(mut self, node_id: impl Into<String>) -> Self {
        self.node_id = Some(node_id.into());
        self
    }

    /// The host's name in the descriptor; the kernel's unless told otherwise.
    pub fn hostname(mut self, hostname: impl Into<String>) -> Self {
        self.hostname = Some(hostname.into());
        self
    }

    /// The names of the backends in the order in which they are tried for a pair of regions. Those that are not named
    /// follow: first the ones that carry device memory only, then the one between the processes of one host, then the ones that
    /// carry device memory as well, then the others, each in the order of adding. Names of backends that the
    /// engine does not have are harmless.
    pub fn prefer<I>(mut self, names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.prefer = names.into_iter().map(Into::into).collect();
        self
    }

    /// Builds the engine and attaches its backends, in the order of adding.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for an empty key or an endless name, [`ErrorKind::AlreadyExists`] for two backends of one name, and what a
    ///
    /// backend says that cannot be attached (a port in use, a device that is not there). Backends attached before that are
    /// shut down again.
    pub fn build(mut self) -> Result<Engine> {
        if self.key.as_str().is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the engine's key is empty; give it a name that is unique among the engines that talk to each other",
            ));
        }
        for (what, text) in [
            ("key", Some(self.key.as_str())),
            ("node's name", self.node_id.as_deref()),
            ("host's name", self.hostname.as_deref()),
        ] {
            if text.is_some_and(|text| text.len() > MAX_DESCRIPTOR_TEXT) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "the {what} is longer than the {MAX_DESCRIPTOR_TEXT} bytes that a descriptor holds"
                    ),
                ));
            }
        }
        let backends = std::mem::take(&mut self.backends);
        let engine = Engine::assemble(self)?;
        backends.into_iter().try_for_each(|slot| engine.add_slot(slot?))?;
        Ok(engine)
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backends: Vec<&str> = self.backends.iter().flatten().map(Carrier::name).collect();
        f.debug_struct("EngineBuilder")
            .field("key", &self.key)
            .field("backends", &backends)
            .finish_non_exhaustive()
    }
}
