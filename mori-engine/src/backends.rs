//! The slot for backends, and the only file that names concrete ones.
//!
//! `enum_dispatch` does not reach across crates, so the enum dispatches a private mirror of the [`Backend`] trait, which
//! every backend has by a blanket implementation. Built-in backends are called without a virtual table; whatever else
//! implements [`Backend`] sits boxed in the last variant. There are no downcasts: nobody outside of this file can
//! ask which variant it is.

use std::sync::Arc;

use enum_dispatch::enum_dispatch;
use mori_core::{
    Attachment, Backend, BackendContext, Capabilities, EngineDesc, EngineKey, MemoryDesc, Messenger, Region,
    RegionId, Result, Session, TransportBlob,
};

/// The part of [`Backend`] that the engine calls. The rest (polling, cancelling) is called by statuses.
#[enum_dispatch]
pub(crate) trait Carrier {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    fn has_notifier(&self) -> bool;
    fn attach(&self, context: BackendContext) -> Result<Attachment>;
    fn register(&self, region: &Region) -> Result<Option<TransportBlob>>;
    fn deregister(&self, region: RegionId);
    fn add_peer(&self, peer: &EngineDesc) -> Result<()>;
    fn remove_peer(&self, peer: &EngineKey);
    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()>;
    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>>;
    fn messenger(&self, peer: &EngineKey) -> Result<Arc<dyn Messenger>>;
    fn shutdown(&self);
}

impl<B: Backend + ?Sized> Carrier for Arc<B> {
    fn name(&self) -> &'static str {
        Backend::name(&**self)
    }

    fn capabilities(&self) -> Capabilities {
        Backend::capabilities(&**self)
    }

    fn has_notifier(&self) -> bool {
        Backend::has_notifier(&**self)
    }

    fn attach(&self, context: BackendContext) -> Result<Attachment> {
        Backend::attach(&**self, context)
    }

    fn register(&self, region: &Region) -> Result<Option<TransportBlob>> {
        Backend::register(&**self, region)
    }

    fn deregister(&self, region: RegionId) {
        Backend::deregister(&**self, region);
    }

    fn add_peer(&self, peer: &EngineDesc) -> Result<()> {
        Backend::add_peer(&**self, peer)
    }

    fn remove_peer(&self, peer: &EngineKey) {
        Backend::remove_peer(&**self, peer);
    }

    fn route(&self, local: &Region, remote: &MemoryDesc) -> Result<()> {
        Backend::route(&**self, local, remote)
    }

    fn session(&self, local: &Region, remote: &MemoryDesc) -> Result<Arc<dyn Session>> {
        Backend::session(&**self, local, remote)
    }

    fn messenger(&self, peer: &EngineKey) -> Result<Arc<dyn Messenger>> {
        Backend::messenger(&**self, peer)
    }

    fn shutdown(&self) {
        Backend::shutdown(&**self);
    }
}

/// One backend of an engine.
#[enum_dispatch(Carrier)]
pub(crate) enum Slot {
    #[cfg(feature = "tcp")]
    Tcp(Arc<mori_tcp::TcpBackend>),
    #[cfg(feature = "shm")]
    Shm(Arc<mori_shm::ShmBackend>),
    #[cfg(feature = "xgmi")]
    Xgmi(Arc<mori_xgmi::XgmiBackend>),
    #[cfg(feature = "rdma")]
    Rdma(Arc<mori_rdma::RdmaBackend>),
    Foreign(Arc<dyn Backend>),
}

/// What the built-in backends bring for applications: their types and their configurations.
pub(crate) mod exports {
    #[cfg(any(feature = "tcp", feature = "shm", feature = "rdma"))]
    pub use mori_core::Secret;
    #[cfg(feature = "rdma")]
    pub use mori_rdma::topology as rdma_topology;
    #[cfg(feature = "rdma")]
    pub use mori_rdma::verbs::{Context as RdmaContext, Device as RdmaDevice, Verbs as RdmaVerbs};
    #[cfg(feature = "rdma")]
    pub use mori_rdma::{
        Completion as RdmaCompletion, Dmabuf, DmabufExporter, RdmaBackend, RdmaConfig, RdmaStats,
    };
    #[cfg(feature = "shm")]
    pub use mori_shm::{
        BareProcess, HostFacts as ShmHostFacts, Obstacle as ShmObstacle, ShmBackend, ShmConfig,
        Tracers as ShmTracers,
    };
    #[cfg(feature = "tcp")]
    pub use mori_tcp::{TcpBackend, TcpConfig};
    #[cfg(feature = "xgmi")]
    pub use mori_xgmi::{
        Completion as XgmiCompletion, Device as XgmiDevice, Runtime as XgmiRuntime, XgmiBackend, XgmiConfig,
    };
}

#[cfg(feature = "tcp")]
impl crate::EngineBuilder {
    /// Adds the TCP transport, which runs everywhere. Feature `tcp`. A configuration that is refused fails the
    /// [`build`](crate::EngineBuilder::build).
    ///
    /// ```
    /// use mori_engine::{Engine, TcpConfig};
    /// let engine = Engine::builder("prefill-0").tcp(TcpConfig::default()).build()?;
    /// assert!(engine.desc().port > 0);
    /// # Ok::<(), mori_engine::Error>(())
    /// ```
    pub fn tcp(self, config: exports::TcpConfig) -> Self {
        self.slot(mori_tcp::TcpBackend::new(config).map(Slot::from))
    }
}

#[cfg(feature = "tcp")]
impl crate::Engine {
    /// Adds the TCP transport at run time. Feature `tcp`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a configuration that is refused; else as
    /// [`Engine::add_backend`](crate::Engine::add_backend).
    pub fn add_tcp(&self, config: exports::TcpConfig) -> Result<()> {
        self.add_slot(mori_tcp::TcpBackend::new(config)?.into())
    }
}

/// The transport that only ever has a route within one host, and is the shortest there. Only a name: which backend it is,
/// nobody asks.
pub(crate) const SAME_HOST: &str = "shm";

#[cfg(feature = "shm")]
impl crate::EngineBuilder {
    /// Adds the transport between the processes of one host, which is preferred where both sides have it. Feature `shm`. Where
    /// the system cannot copy between processes the [`build`](crate::EngineBuilder::build) fails as
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable); to go on without it, build first and use
    /// [`Engine::add_shm`](crate::Engine::add_shm).
    ///
    /// ```
    /// use mori_engine::{Engine, ErrorKind, ShmConfig};
    /// match Engine::builder("decode-0").shm(ShmConfig::default()).build() {
    ///     Ok(engine) => assert_eq!(engine.backends()[0].name, "shm"),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
    /// }
    /// ```
    pub fn shm(self, config: exports::ShmConfig) -> Self {
        self.slot(mori_shm::ShmBackend::new(config).map(Slot::from))
    }
}

#[cfg(feature = "shm")]
impl crate::Engine {
    /// Adds the transport between the processes of one host at run time. Feature `shm`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the system cannot copy between processes,
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a configuration that is refused; else as
    /// [`Engine::add_backend`](crate::Engine::add_backend).
    pub fn add_shm(&self, config: exports::ShmConfig) -> Result<()> {
        self.add_slot(mori_shm::ShmBackend::new(config)?.into())
    }
}

#[cfg(feature = "xgmi")]
impl crate::EngineBuilder {
    /// Adds the transport between the GPUs of this node. Feature `xgmi`. Without a HIP runtime or a GPU the
    /// [`build`](crate::EngineBuilder::build) fails as [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), with what was
    /// looked for; to go on without it, build first and use [`Engine::add_xgmi`](crate::Engine::add_xgmi).
    ///
    /// ```
    /// use mori_engine::{Engine, ErrorKind, XgmiConfig};
    /// match Engine::builder("decode-0").xgmi(XgmiConfig::default()).build() {
    ///     Ok(engine) => assert_eq!(engine.backends()[0].name, "xgmi"),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
    /// }
    /// ```
    pub fn xgmi(self, config: exports::XgmiConfig) -> Self {
        self.slot(mori_xgmi::XgmiBackend::new(config).map(Slot::from))
    }
}

#[cfg(feature = "xgmi")]
impl crate::Engine {
    /// Adds the transport between the GPUs of this node at run time. Feature `xgmi`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) without a HIP runtime or a GPU, with what was looked for; else
    /// as [`Engine::add_backend`](crate::Engine::add_backend).
    pub fn add_xgmi(&self, config: exports::XgmiConfig) -> Result<()> {
        self.add_slot(mori_xgmi::XgmiBackend::new(config)?.into())
    }
}

#[cfg(feature = "rdma")]
impl crate::EngineBuilder {
    /// Adds the transport over InfiniBand and RoCE. Feature `rdma`. Without a verbs library or a device the
    /// [`build`](crate::EngineBuilder::build) fails as [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), with what was
    /// looked for; to go on without it, build first and use [`Engine::add_rdma`](crate::Engine::add_rdma).
    ///
    /// ```
    /// use mori_engine::{Engine, ErrorKind, RdmaConfig};
    /// match Engine::builder("decode-0").rdma(RdmaConfig::default()).build() {
    ///     Ok(engine) => assert_eq!(engine.backends()[0].name, "rdma"),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
    /// }
    /// ```
    pub fn rdma(self, config: exports::RdmaConfig) -> Self {
        self.slot(mori_rdma::RdmaBackend::new(config).map(Slot::from))
    }
}

#[cfg(feature = "rdma")]
impl crate::Engine {
    /// Adds the transport over InfiniBand and RoCE at run time. Feature `rdma`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) without a verbs library or a device, with what was looked for;
    /// else as [`Engine::add_backend`](crate::Engine::add_backend).
    pub fn add_rdma(&self, config: exports::RdmaConfig) -> Result<()> {
        self.add_slot(mori_rdma::RdmaBackend::new(config)?.into())
    }
}
