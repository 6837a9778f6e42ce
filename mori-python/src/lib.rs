#![doc = include_str!("../README.md")]

mod absent;
mod config;
mod convert;
mod desc;
mod engine;
mod environment;
mod error;
mod failures;
mod fork;
mod inbox;
mod io;
mod log;
mod members;
mod memory;
mod notification;
mod outcome;
mod owner;
mod raw;
mod route;
mod session;
mod status;
mod statusfd;
mod transports;
mod wait;
mod waits;

/// The native half of the package. What stands here is documented where it is exported: `mori.io`, `mori.cpp`,
/// `mori.engine`.
#[pyo3::pymodule]
mod _mori {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::config::{
        FabricBackendConfig, IOEngineConfig, RdmaBackendConfig, TcpBackendConfig, XgmiBackendConfig,
    };
    #[pymodule_export]
    use crate::desc::{EngineDesc, MemoryDesc};
    #[pymodule_export]
    use crate::engine::{Engine, Memory};
    #[pymodule_export]
    use crate::failures::PeerFailureEvent;
    #[pymodule_export]
    use crate::fork::after_fork_in_child;
    #[pymodule_export]
    use crate::io::IOEngine;
    #[pymodule_export]
    use crate::log::set_log_level;
    #[pymodule_export]
    use crate::notification::Notification;
    #[pymodule_export]
    use crate::outcome::{Member, Outcome};
    #[pymodule_export]
    use crate::route::RouteReport;
    #[pymodule_export]
    use crate::session::{IOEngineSession, Session};
    #[pymodule_export]
    use crate::status::TransferStatus;
    #[pymodule_export]
    use crate::statusfd::StatusFd;
    #[pymodule_export]
    use crate::waits::{scan, wait_all, wait_any, wait_first_failure, wait_some};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name is Python's")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::log::install();
        Ok(())
    }
}
