//! Configurations: positional and keyword arguments, attributes that can be read and set, and equality.

use std::time::Duration;

use mori_engine::{Secret, TcpConfig, XgmiConfig};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::Port;
use crate::{convert, members};

/// Where an engine listens: `IOEngineConfig(host="", port=0)`.
///
/// `host` is a name or an address (IPv4 or IPv6); empty is loopback, `0.0.0.0` or `::` is every interface. `port` is 0 to
/// 65535; 0 picks a free one, which `get_engine_desc().port` tells once a backend is created.
///
/// ```python
/// config = IOEngineConfig(host="localhost", port=0)
/// ```
#[pyclass(module = "mori.io", eq)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IOEngineConfig {
    #[pyo3(get, set)]
    pub(crate) host: String,
    #[pyo3(get)]
    pub(crate) port: u16,
}

#[pymethods]
impl IOEngineConfig {
    #[new]
    #[pyo3(signature = (host = String::new(), port = Port(0)), text_signature = "(host='', port=0)")]
    fn new(host: String, port: Port) -> Self {
        Self { host, port: port.0 }
    }

    #[setter]
    fn set_port(&mut self, port: Port) {
        self.port = port.0;
    }

    fn __repr__(&self) -> String {
        format!("IOEngineConfig(host={:?}, port={})", self.host, self.port)
    }
}

/// What an RDMA transport is configured with. -1 leaves a choice to the transport.
///
/// The attributes `max_send_wr`, `max_cqe_num` and `max_msg_sge` (0: the transport's default) have no argument of the
/// constructor. Environment variables of the same meaning (`MORI_IO_QP_PER_TRANSFER` and its relatives) win over the
/// configuration when the backend is created.
///
/// ```python
/// config = RdmaBackendConfig(4, -1, 2)
/// ```
#[pyclass(module = "mori.io", eq)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RdmaBackendConfig {
    #[pyo3(get, set)]
    pub(crate) qp_per_transfer: i32,
    #[pyo3(get, set)]
    pub(crate) post_batch_size: i32,
    #[pyo3(get, set)]
    pub(crate) num_worker_threads: i32,
    pub(crate) poll_mode: u32,
    #[pyo3(get, set)]
    pub(crate) enable_notification: bool,
    #[pyo3(get, set)]
    pub(crate) notif_per_qp: i32,
    #[pyo3(get, set)]
    pub(crate) enable_transfer_chunking: bool,
    #[pyo3(get, set)]
    pub(crate) chunk_bytes: i64,
    #[pyo3(get, set)]
    pub(crate) max_chunks_per_transfer: i32,
    #[pyo3(get, set)]
    pub(crate) num_nics_per_transfer: i32,
    #[pyo3(get, set)]
    pub(crate) max_send_wr: i32,
    #[pyo3(get, set)]
    pub(crate) max_cqe_num: i32,
    #[pyo3(get, set)]
    pub(crate) max_msg_sge: i32,
}

impl Default for RdmaBackendConfig {
    fn default() -> Self {
        Self {
            qp_per_transfer: 1,
            post_batch_size: -1,
            num_worker_threads: -1,
            poll_mode: 0,
            enable_notification: true,
            notif_per_qp: 1024,
            enable_transfer_chunking: false,
            chunk_bytes: 65536,
            max_chunks_per_transfer: 64,
            num_nics_per_transfer: 1,
            max_send_wr: 0,
            max_cqe_num: 0,
            max_msg_sge: 0,
        }
    }
}

#[pymethods]
impl RdmaBackendConfig {
    #[new]
    #[pyo3(signature = (qp_per_transfer = 1, post_batch_size = -1, num_worker_threads = -1, poll_cq_mode = PollMode(0),
        enable_notification = true, notif_per_qp = 1024, enable_transfer_chunking = false, chunk_bytes = 65536,
        max_chunks_per_transfer = 64, num_nics_per_transfer = 1), text_signature = "(qp_per_transfer=1, post_batch_size=-1, \
        num_worker_threads=-1, poll_cq_mode=..., enable_notification=True, notif_per_qp=1024, \
        enable_transfer_chunking=False, chunk_bytes=65536, max_chunks_per_transfer=64, num_nics_per_transfer=1)")]
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn new(
        qp_per_transfer: i32,
        post_batch_size: i32,
        num_worker_threads: i32,
        poll_cq_mode: PollMode,
        enable_notification: bool,
        notif_per_qp: i32,
        enable_transfer_chunking: bool,
        chunk_bytes: i64,
        max_chunks_per_transfer: i32,
        num_nics_per_transfer: i32,
    ) -> Self {
        Self {
            qp_per_transfer,
            post_batch_size,
            num_worker_threads,
            poll_mode: poll_cq_mode.0,
            enable_notification,
            notif_per_qp,
            enable_transfer_chunking,
            chunk_bytes,
            max_chunks_per_transfer,
            num_nics_per_transfer,
            ..Self::default()
        }
    }

    #[getter]
    fn poll_cq_mode(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        members::poll_mode(py, self.poll_mode)
    }

    #[setter]
    fn set_poll_cq_mode(&mut self, mode: PollMode) {
        self.poll_mode = mode.0;
    }

    fn __repr__(&self) -> String {
        format!(
            "RdmaBackendConfig(qp_per_transfer={}, post_batch_size={}, num_worker_threads={}, poll_cq_mode={}, \
             enable_notification={}, notif_per_qp={}, enable_transfer_chunking={}, chunk_bytes={}, \
             max_chunks_per_transfer={}, num_nics_per_transfer={})",
            self.qp_per_transfer,
            self.post_batch_size,
            self.num_worker_threads,
            if self.poll_mode == 0 { "PollCqMode.POLLING" } else { "PollCqMode.EVENT" },
            spelled(self.enable_notification),
            self.notif_per_qp,
            spelled(self.enable_transfer_chunking),
            self.chunk_bytes,
            self.max_chunks_per_transfer,
            self.num_nics_per_transfer
        )
    }
}

/// The number of a `PollCqMode`.
#[derive(Clone, Copy)]
struct PollMode(u32);

impl<'py> FromPyObject<'_, 'py> for PollMode {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        members::poll_mode_number(&value).map(Self)
    }
}

fn spelled(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

macro_rules! streams {
    ($name:ident, $what:literal) => {
        #[doc = concat!("What ", $what, " is configured with: how many streams and events it keeps.")]
        #[pyclass(module = "mori.io", get_all, set_all, eq)]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            num_streams: i32,
            num_events: i32,
        }

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = (num_streams = 64, num_events = 64))]
            fn new(num_streams: i32, num_events: i32) -> Self {
                Self { num_streams, num_events }
            }

            fn __repr__(&self) -> String {
                format!(
                    concat!(stringify!($name), "(num_streams={}, num_events={})"),
                    self.num_streams, self.num_events
                )
            }
        }
    };
}

impl Default for XgmiBackendConfig {
    fn default() -> Self {
        Self::new(64, 64)
    }
}

impl XgmiBackendConfig {
    /// The transport's own configuration. It makes events when it needs them, so the number here only raises the limit.
    pub(crate) fn to_xgmi(&self) -> PyResult<XgmiConfig> {
        let default = XgmiConfig::default();
        let number = |value: i32, what: &str| {
            usize::try_from(value)
                .ok()
                .filter(|value| *value > 0)
                .ok_or_else(|| PyValueError::new_err(format!("{what} must be at least 1, not {value}")))
        };
        Ok(XgmiConfig {
            streams_per_device: number(self.num_streams, "num_streams")?,
            events_per_device: number(self.num_events, "num_events")?.max(default.events_per_device),
            ..default
        })
    }
}

streams!(XgmiBackendConfig, "the GPU-to-GPU transport of one node");
streams!(FabricBackendConfig, "the GPU-to-GPU transport of a fabric");

/// What the TCP transport is configured with. All arguments are keywords.
///
/// `bind` is `address:port` and replaces the engine's own host and port; `advertise` is the host that peers are told, if it
/// is another one. `connections` go to each peer, `io_threads` serve all peers together. `secret` is bytes that both sides
/// must know. Times are seconds: `connect_timeout` for connecting, `peer_timeout` for how long a peer may be silent while
/// something is under way, `busy_window` for how long a thread looks for more before it sleeps. Transfers of twice
/// `stripe_bytes` and more go over several connections; `chunk_bytes` is the most that is sent at once.
/// `enable_notification` tells the target of each transfer that carries a unique id, for `pop_inbound_transfer_status`.
///
/// ```python
/// engine.create_backend(BackendType.TCP, TcpBackendConfig(connections=4, peer_timeout=3.0))
/// ```
#[pyclass(module = "mori.io")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TcpBackendConfig {
    #[pyo3(get, set)]
    pub(crate) bind: Option<String>,
    #[pyo3(get, set)]
    pub(crate) advertise: Option<String>,
    #[pyo3(get, set)]
    pub(crate) connections: usize,
    #[pyo3(get, set)]
    pub(crate) io_threads: usize,
    pub(crate) secret_bytes: Option<Vec<u8>>,
    #[pyo3(get, set)]
    pub(crate) connect_timeout: f64,
    #[pyo3(get, set)]
    pub(crate) peer_timeout: f64,
    #[pyo3(get, set)]
    pub(crate) stripe_bytes: u64,
    #[pyo3(get, set)]
    pub(crate) chunk_bytes: u64,
    #[pyo3(get, set)]
    pub(crate) busy_window: f64,
    #[pyo3(get, set)]
    pub(crate) enable_notification: bool,
}

impl Default for TcpBackendConfig {
    fn default() -> Self {
        let tcp = TcpConfig::default();
        Self {
            bind: None,
            advertise: None,
            connections: tcp.connections,
            io_threads: tcp.io_threads,
            secret_bytes: None,
            connect_timeout: tcp.connect_timeout.as_secs_f64(),
            peer_timeout: tcp.peer_timeout.as_secs_f64(),
            stripe_bytes: tcp.stripe_bytes,
            chunk_bytes: tcp.chunk_bytes,
            busy_window: tcp.busy_window.as_secs_f64(),
            enable_notification: true,
        }
    }
}

#[pymethods]
impl TcpBackendConfig {
    #[new]
    #[pyo3(signature = (*, bind = None, advertise = None, connections = None, io_threads = None, secret = None,
        connect_timeout = None, peer_timeout = None, stripe_bytes = None, chunk_bytes = None, busy_window = None,
        enable_notification = true))]
    #[allow(clippy::too_many_arguments, reason = "all are keywords")]
    fn new(
        bind: Option<String>,
        advertise: Option<String>,
        connections: Option<usize>,
        io_threads: Option<usize>,
        secret: Option<&Bound<'_, PyBytes>>,
        connect_timeout: Option<f64>,
        peer_timeout: Option<f64>,
        stripe_bytes: Option<u64>,
        chunk_bytes: Option<u64>,
        busy_window: Option<f64>,
        enable_notification: bool,
    ) -> Self {
        let default = Self::default();
        Self {
            bind,
            advertise,
            connections: connections.unwrap_or(default.connections),
            io_threads: io_threads.unwrap_or(default.io_threads),
            secret_bytes: secret.map(|secret| secret.as_bytes().to_vec()),
            connect_timeout: connect_timeout.unwrap_or(default.connect_timeout),
            peer_timeout: peer_timeout.unwrap_or(default.peer_timeout),
            stripe_bytes: stripe_bytes.unwrap_or(default.stripe_bytes),
            chunk_bytes: chunk_bytes.unwrap_or(default.chunk_bytes),
            busy_window: busy_window.unwrap_or(default.busy_window),
            enable_notification,
        }
    }

    #[getter]
    fn secret<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.secret_bytes.as_deref().map(|secret| PyBytes::new(py, secret))
    }

    #[setter]
    fn set_secret(&mut self, secret: Option<&Bound<'_, PyBytes>>) {
        self.secret_bytes = secret.map(|secret| secret.as_bytes().to_vec());
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.try_borrow().is_ok_and(|other| *self == *other))
    }

    /// The secret is never printed.
    fn __repr__(&self) -> String {
        format!(
            "TcpBackendConfig(bind={}, advertise={}, connections={}, io_threads={}, secret={}, connect_timeout={}, \
             peer_timeout={}, stripe_bytes={}, chunk_bytes={}, busy_window={}, enable_notification={})",
            quoted(self.bind.as_deref()),
            quoted(self.advertise.as_deref()),
            self.connections,
            self.io_threads,
            if self.secret_bytes.is_some() { "..." } else { "None" },
            self.connect_timeout,
            self.peer_timeout,
            self.stripe_bytes,
            self.chunk_bytes,
            self.busy_window,
            spelled(self.enable_notification)
        )
    }
}

fn quoted(text: Option<&str>) -> String {
    text.map_or_else(|| "None".to_owned(), |text| format!("{text:?}"))
}

impl TcpBackendConfig {
    /// The transport's own configuration, listening at `host` and `port` unless this says something else.
    pub(crate) fn to_tcp(&self, host: &str, port: u16) -> PyResult<TcpConfig> {
        Ok(TcpConfig {
            bind: self.bind.clone().unwrap_or_else(|| bind_address(host, port)),
            advertise: self.advertise.clone(),
            connections: self.connections,
            io_threads: self.io_threads,
            secret: self.secret_bytes.clone().map(Secret::new),
            connect_timeout: time(self.connect_timeout, "connect_timeout")?,
            peer_timeout: time(self.peer_timeout, "peer_timeout")?,
            stripe_bytes: self.stripe_bytes,
            chunk_bytes: self.chunk_bytes,
            busy_window: time(self.busy_window, "busy_window")?,
        })
    }
}

fn time(seconds: f64, what: &str) -> PyResult<Duration> {
    Ok(convert::duration(Some(seconds), what)?.unwrap_or(Duration::from_secs(u64::from(u32::MAX))))
}

/// `host` and `port` as the transport takes them: empty is loopback, an IPv6 address gets its brackets.
pub(crate) fn bind_address(host: &str, port: u16) -> String {
    match host.trim() {
        "" => format!("127.0.0.1:{port}"),
        host if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    }
}
