//! Which transport serves under which name, and what happens where there is none. A further transport is one arm of
//! [`create`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mori_engine::{Error, ErrorKind};
use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::absent;
use crate::config::{FabricBackendConfig, RdmaBackendConfig, TcpBackendConfig, XgmiBackendConfig};
use crate::environment;
use crate::error::{OrRaise, raise};
use crate::members::BackendType;
use crate::owner::Owner;

/// The engine's name of the TCP transport.
const TCP: &str = "tcp";

/// A backend that was created.
#[derive(Debug)]
pub(crate) struct Provided {
    /// What was asked for.
    pub(crate) kind: BackendType,
    /// The engine's name of what serves it.
    pub(crate) backend: &'static str,
    /// Whether it carries anything on this machine.
    pub(crate) carries: bool,
    /// Whether transfers over it tell their targets.
    pub(crate) notifies: bool,
}

/// Creates a backend of this type.
pub(crate) fn create(
    py: Python<'_>,
    owner: &Arc<Owner>,
    kind: BackendType,
    config: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let config = config.filter(|config| !config.is_none());
    if owner.provided().iter().any(|provided| provided.kind == kind) {
        return Err(raise(&Error::new(
            ErrorKind::AlreadyExists,
            format!("the engine has a {} backend already; remove it first", kind.name()),
        )));
    }
    match kind {
        BackendType::Tcp => {
            let config = fitting::<TcpBackendConfig>(kind, config)?.unwrap_or_default();
            tcp(py, owner, kind, &config)
        }
        BackendType::Rdma => {
            let config = fitting::<RdmaBackendConfig>(kind, config)?.unwrap_or_default();
            rdma(py, owner, &environment::overlay(&config))
        }
        BackendType::Xgmi => {
            let config = fitting::<XgmiBackendConfig>(kind, config)?.unwrap_or_default();
            xgmi(py, owner, &config)
        }
        BackendType::Fabric => {
            fitting::<FabricBackendConfig>(kind, config)?;
            Err(raise(&Error::new(
                ErrorKind::Unavailable,
                "create_backend(FABRIC): this build of the package has no transport for a GPU fabric",
            )))
        }
    }
}

/// Removes what was created as this type.
pub(crate) fn remove(py: Python<'_>, owner: &Arc<Owner>, kind: BackendType) -> PyResult<()> {
    let engine = owner.engine()?;
    let backend = {
        let mut provided = owner.provided();
        let Some(place) = provided.iter().position(|provided| provided.kind == kind) else {
            return Err(raise(&Error::new(
                ErrorKind::NotFound,
                format!("the engine has no {} backend", kind.name()),
            )));
        };
        provided.remove(place).backend
    };
    py.detach(|| engine.remove_backend(backend)).or_raise()
}

/// The configuration, if it is of the type that the backend takes.
fn fitting<'a, T>(kind: BackendType, config: Option<&Bound<'a, PyAny>>) -> PyResult<Option<T>>
where
    T: PyClass + Clone,
{
    let Some(config) = config else { return Ok(None) };
    match config.cast::<T>() {
        Ok(config) => Ok(Some(config.try_borrow()?.clone())),
        Err(_) => Err(PyTypeError::new_err(format!(
            "a {} backend takes a {}, not {}",
            kind.name(),
            config.py().get_type::<T>().name()?,
            config.get_type().name()?
        ))),
    }
}

fn tcp(py: Python<'_>, owner: &Arc<Owner>, kind: BackendType, config: &TcpBackendConfig) -> PyResult<()> {
    let engine = owner.engine()?;
    let tcp = config.to_tcp(&owner.host, owner.port)?;
    py.detach(|| engine.add_tcp(tcp)).or_raise()?;
    owner.provided().push(Provided {
        kind,
        backend: TCP,
        carries: true,
        notifies: config.enable_notification,
    });
    Ok(())
}

/// The transport between the GPUs of this node; where there is none, what says so.
fn xgmi(py: Python<'_>, owner: &Arc<Owner>, config: &XgmiBackendConfig) -> PyResult<()> {
    let engine = owner.engine()?;
    let config = config.to_xgmi()?;
    let carries = py
        .detach(|| match engine.add_xgmi(config) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tracing::info!(engine = %engine.key(), %error, "no XGMI transport here");
                engine.add_backend(absent::xgmi(error)).map(|()| false)
            }
            Err(error) => Err(error),
        })
        .or_raise()?;
    owner.provided().push(Provided {
        kind: BackendType::Xgmi,
        backend: absent::XGMI,
        carries,
        notifies: false,
    });
    Ok(())
}

/// The RDMA transport; where there is none, and the environment says so, TCP under the same name.
fn rdma(py: Python<'_>, owner: &Arc<Owner>, config: &RdmaBackendConfig) -> PyResult<()> {
    if !environment::tcp_fallback() {
        return Err(raise(&Error::new(
            ErrorKind::Unavailable,
            format!(
                "create_backend(RDMA): no usable RDMA device: this build of the package has no RDMA transport ({}); \
                 set MORI_IO_TCP_FALLBACK=1 to have TCP under the same name, or create a TCP backend",
                devices()
            ),
        )));
    }
    tcp(py, owner, BackendType::Rdma, &stand_in(config))?;
    announce(py, owner)
}

/// TCP with as many connections and threads as the RDMA configuration asks for.
fn stand_in(config: &RdmaBackendConfig) -> TcpBackendConfig {
    let default = TcpBackendConfig::default();
    let several = |wanted: i32, least: usize| usize::try_from(wanted).unwrap_or(0).clamp(least, 64);
    TcpBackendConfig {
        connections: several(config.qp_per_transfer, default.connections),
        io_threads: several(config.num_worker_threads, default.io_threads),
        enable_notification: config.enable_notification,
        ..default
    }
}

/// Says once in a process that TCP stands in, where Python programs look for warnings.
fn announce(py: Python<'_>, owner: &Owner) -> PyResult<()> {
    static ANNOUNCED: AtomicBool = AtomicBool::new(false);
    if ANNOUNCED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let desc = owner.desc()?;
    let text = format!(
        "MORI_IO_TCP_FALLBACK: engine {} moves bytes over TCP at {}:{} instead of RDMA, which is slower",
        desc.key, desc.host, desc.port
    );
    py.import("logging")?.call_method1("getLogger", ("mori.io",))?.call_method1("warning", (text,))?;
    Ok(())
}

/// What the kernel knows of RDMA devices, for a message.
fn devices() -> String {
    let folder = "/sys/class/infiniband";
    let names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        })
        .unwrap_or_default();
    if names.is_empty() {
        format!("and {folder} names no device")
    } else {
        format!("{folder} names {}", names.join(", "))
    }
}
