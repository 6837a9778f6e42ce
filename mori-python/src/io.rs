//! `IOEngine`: the engine as existing programs call it, under the names of `mori.io` and, with an explicit status, of
//! `mori.cpp`.

use std::sync::Arc;

use mori_engine::{Access, Error, ErrorKind, Op, Piece, Status, Tag, Timeout, TransferId};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::config::IOEngineConfig;
use crate::convert::Millis;
use crate::desc::{EngineDesc, MemoryDesc};
use crate::error::{OrRaise, raise};
use crate::failures::PeerFailureEvent;
use crate::members::{BackendType, memory_kind, status_code};
use crate::memory::{deregister, located, register};
use crate::owner::{Owner, watched, with_uid};
use crate::session::IOEngineSession;
use crate::status::TransferStatus;
use crate::wait::{self, Until};
use crate::{convert, transports};

/// An engine: it registers memory, knows peers, and moves bytes over the backends that were created.
///
/// Every call releases the interpreter while it may block. What is wrong with a transfer is in its status; what is wrong with a
/// call is an exception. Dropping the engine ends its transfers with a failure and releases everybody who waits.
///
/// ```python
/// engine = IOEngine("decode-0", IOEngineConfig(host="127.0.0.1", port=0))
/// engine.create_backend(BackendType.TCP, TcpBackendConfig())
/// engine.register_remote_engine(EngineDesc.unpack(received))
/// ```
#[pyclass(frozen, weakref, module = "mori.io")]
#[derive(Debug)]
pub(crate) struct IOEngine(Arc<Owner>);

/// One transfer between two memories, before it is submitted.
struct Order<'a> {
    local: &'a MemoryDesc,
    remote: &'a MemoryDesc,
    pieces: Result<Vec<Piece>, Error>,
    uid: u64,
}

impl IOEngine {
    /// Submits each order; a bad one fails alone. Gives `own` statuses, one for each order if there are any, theirs.
    fn submit(
        &self,
        py: Python<'_>,
        op: Op,
        orders: Vec<Order<'_>>,
        own: &[&TransferStatus],
    ) -> PyResult<Vec<Status>> {
        let engine = self.0.engine()?;
        TransferStatus::claim_all(own)?;
        let notify = self.0.notifies(None);
        let one = |order: Order<'_>| {
            let tag = Tag(order.uid);
            let pieces = match order.pieces {
                Ok(pieces) => pieces,
                Err(error) => return Status::failed(tag, error),
            };
            let Some(local) = engine.memory(&order.local.desc) else {
                return Status::failed(tag, unregistered(&order.local.desc));
            };
            let remote = &*order.remote.remote();
            let moves = pieces.iter().any(|piece| piece.length > 0);
            let options = with_uid(order.uid, notify && moves);
            watched(&self.0.failures, &remote.engine_key, || {
                engine.submit(op, &local, remote, &pieces, options)
            })
        };
        let statuses: Vec<Status> = py.detach(|| orders.into_iter().map(one).collect());
        own.iter().zip(&statuses).for_each(|(own, status)| own.bind(status.clone()));
        Ok(statuses)
    }

    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn single(
        &self,
        py: Python<'_>,
        op: Op,
        local: &Bound<'_, MemoryDesc>,
        local_offset: &Bound<'_, PyAny>,
        remote: &Bound<'_, MemoryDesc>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        uid: &Bound<'_, PyAny>,
        own: Option<&TransferStatus>,
    ) -> PyResult<Status> {
        let piece = Piece::new(
            convert::unsigned(local_offset, "the local offset")?,
            convert::unsigned(remote_offset, "the remote offset")?,
            convert::unsigned(size, "the size")?,
        );
        let uid = convert::unsigned(uid, "the transfer's unique id")?;
        let order = Order { local: local.get(), remote: remote.get(), pieces: Ok(vec![piece]), uid };
        let mut submitted = self.submit(py, op, vec![order], own.as_slice())?;
        submitted.pop().ok_or_else(|| raise(&Error::new(ErrorKind::BadState, "nothing was submitted")))
    }

    /// The statuses of a batch, in the order of its elements.
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn batch(
        &self,
        py: Python<'_>,
        op: Op,
        local: &Bound<'_, PyAny>,
        local_offsets: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        uids: &Bound<'_, PyAny>,
        statuses: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<TransferStatus>> {
        let local = memories(local, "the local memories")?;
        let remote = memories(remote, "the remote memories")?;
        let local_offsets = convert::items(local_offsets, "the lists of local offsets")?;
        let remote_offsets = convert::items(remote_offsets, "the lists of remote offsets")?;
        let sizes = convert::items(sizes, "the lists of sizes")?;
        let uids = convert::numbers(uids, "each transfer's unique id")?;
        let own = statuses.map(own_statuses).transpose()?;
        let lengths = [remote.len(), local_offsets.len(), remote_offsets.len(), sizes.len(), uids.len()];
        if lengths.iter().chain(own.as_ref().map(Vec::len).iter()).any(|length| *length != local.len()) {
            return Err(PyValueError::new_err(format!(
                "the lists of a batch must be of one length; there are {} local memories, {} remote ones, {} lists of local \
                 offsets, {} of remote offsets, {} of sizes, and {} unique ids",
                local.len(),
                remote.len(),
                local_offsets.len(),
                remote_offsets.len(),
                sizes.len(),
                uids.len()
            )));
        }
        let mut orders = Vec::with_capacity(local.len());
        let offsets = local_offsets.iter().zip(&remote_offsets).zip(&sizes);
        for (((local, remote), ((from, to), sizes)), uid) in local.iter().zip(&remote).zip(offsets).zip(uids)
        {
            let pieces = convert::pieces(from, to, sizes)?;
            orders.push(Order { local: local.get(), remote: remote.get(), pieces, uid });
        }
        let own: Vec<&TransferStatus> = own.iter().flatten().map(|status| status.get()).collect();
        Ok(self.submit(py, op, orders, &own)?.into_iter().map(TransferStatus::of).collect())
    }
}

fn unregistered(desc: &mori_engine::MemoryDesc) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "the local memory {} of engine {} is not registered with this engine (any more); register it first",
            desc.id, desc.engine_key
        ),
    )
}

fn memories<'py>(values: &Bound<'py, PyAny>, what: &str) -> PyResult<Vec<Bound<'py, MemoryDesc>>> {
    let memory = |value: Bound<'py, PyAny>| {
        value
            .cast_into::<MemoryDesc>()
            .map_err(|error| PyTypeError::new_err(format!("{what} must be MemoryDescs: {error}")))
    };
    convert::items(values, what)?.into_iter().map(memory).collect()
}

fn own_statuses<'py>(values: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, TransferStatus>>> {
    let status = |value: Bound<'py, PyAny>| {
        value
            .cast_into::<TransferStatus>()
            .map_err(|error| PyTypeError::new_err(format!("the statuses must be TransferStatuses: {error}")))
    };
    convert::items(values, "the statuses")?.into_iter().map(status).collect()
}

#[pymethods]
impl IOEngine {
    #[new]
    fn new(py: Python<'_>, key: String, config: &Bound<'_, IOEngineConfig>) -> PyResult<Self> {
        let config = config.try_borrow()?.clone();
        let builder = mori_engine::Engine::builder(key);
        Ok(Self(Owner::build(py, builder, config.host, config.port)?))
    }

    /// The descriptor, for peers: send its `pack()` to them. It has the real port once a backend is created.
    fn get_engine_desc(&self) -> PyResult<EngineDesc> {
        Ok(EngineDesc(self.0.desc()?))
    }

    /// Creates a backend; without a configuration, with the defaults. One that this machine lacks is a RuntimeError.
    #[pyo3(signature = (r#type, config = None))]
    fn create_backend(
        &self,
        py: Python<'_>,
        r#type: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        transports::create(py, &self.0, BackendType::extract(r#type)?, config)
    }

    /// Removes a backend; its transfers in progress end as failures.
    fn remove_backend(&self, py: Python<'_>, r#type: &Bound<'_, PyAny>) -> PyResult<()> {
        transports::remove(py, &self.0, BackendType::extract(r#type)?)
    }

    /// Makes a peer known. Nothing is connected yet.
    fn register_remote_engine(&self, py: Python<'_>, desc: &Bound<'_, EngineDesc>) -> PyResult<()> {
        let engine = self.0.engine()?;
        let desc = &desc.get().0;
        py.detach(|| engine.add_peer(desc)).or_raise()
    }

    /// Forgets a peer; transfers in progress with it end as failures. One that is not known is fine.
    fn deregister_remote_engine(&self, py: Python<'_>, desc: &Bound<'_, EngineDesc>) -> PyResult<()> {
        let engine = self.0.engine()?;
        let key = &desc.get().0.key;
        match py.detach(|| engine.remove_peer(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            answer => answer.or_raise(),
        }
    }

    /// Registers `size` bytes at address `ptr`. They must stay allocated until they are deregistered or the engine is gone.
    fn register_memory(
        &self,
        py: Python<'_>,
        ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        device_id: i64,
        mem_loc: &Bound<'_, PyAny>,
    ) -> PyResult<MemoryDesc> {
        let location = located(memory_kind(mem_loc)?, device_id)?;
        let (ptr, size) = (convert::unsigned(ptr, "the address")?, convert::unsigned(size, "the size")?);
        let memory = register(py, &self.0, ptr, size, location, Access::READ_WRITE, None)?;
        Ok(MemoryDesc::new(memory.desc(), Arc::downgrade(&self.0)))
    }

    /// Registers a tensor's memory, and keeps the tensor alive as long as it is registered or a transfer uses it.
    fn register_torch_tensor(&self, py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<MemoryDesc> {
        let found = py.import("mori._buffer")?.call_method1("tensor", (tensor,))?;
        let (address, size, device_id, location): (u64, u64, i64, Bound<'_, PyAny>) = found.extract()?;
        let location = located(memory_kind(&location)?, device_id)?;
        let keeper = Some(tensor.clone().unbind());
        let memory = register(py, &self.0, address, size, location, Access::READ_WRITE, keeper)?;
        Ok(MemoryDesc::new(memory.desc(), Arc::downgrade(&self.0)))
    }

    /// Ends a registration, after the transfers that use the memory. Memory that is not registered any more is fine.
    fn deregister_memory(&self, py: Python<'_>, desc: &Bound<'_, MemoryDesc>) -> PyResult<()> {
        let engine = self.0.engine()?;
        let desc = &desc.get().desc;
        if desc.engine_key != *engine.key() {
            return Err(raise(&Error::new(
                ErrorKind::InvalidArgument,
                format!("the memory is engine {}'s; deregister it there", desc.engine_key),
            )));
        }
        match engine.memory(desc) {
            Some(memory) => deregister(py, &self.0, memory, Timeout::Unbounded),
            None => Ok(()),
        }
    }

    /// A number that no other transfer of this process has.
    fn allocate_transfer_uid(&self) -> u64 {
        TransferId::fresh().get()
    }

    /// Reads `size` bytes of the remote memory into the local one.
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn read(
        &self,
        py: Python<'_>,
        local: &Bound<'_, MemoryDesc>,
        local_offset: &Bound<'_, PyAny>,
        remote: &Bound<'_, MemoryDesc>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<TransferStatus> {
        self.single(py, Op::Read, local, local_offset, remote, remote_offset, size, transfer_uid, None)
            .map(TransferStatus::of)
    }

    /// Writes `size` bytes of the local memory into the remote one.
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn write(
        &self,
        py: Python<'_>,
        local: &Bound<'_, MemoryDesc>,
        local_offset: &Bound<'_, PyAny>,
        remote: &Bound<'_, MemoryDesc>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<TransferStatus> {
        self.single(py, Op::Write, local, local_offset, remote, remote_offset, size, transfer_uid, None)
            .map(TransferStatus::of)
    }

    /// Submits one transfer for each element, each of many pieces, and returns their statuses in the same order.
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn batch_read(
        &self,
        py: Python<'_>,
        local: &Bound<'_, PyAny>,
        local_offsets: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        transfer_uids: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<TransferStatus>> {
        self.batch(py, Op::Read, local, local_offsets, remote, remote_offsets, sizes, transfer_uids, None)
    }

    /// As `batch_read`, in the other direction.
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn batch_write(
        &self,
        py: Python<'_>,
        local: &Bound<'_, PyAny>,
        local_offsets: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        transfer_uids: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<TransferStatus>> {
        self.batch(py, Op::Write, local, local_offsets, remote, remote_offsets, sizes, transfer_uids, None)
    }

    /// Opens a session between two memories; None if there is no way between them (the log says why, and `engine.explain`).
    fn create_session(
        &self,
        py: Python<'_>,
        local: &Bound<'_, MemoryDesc>,
        remote: &Bound<'_, MemoryDesc>,
    ) -> PyResult<Option<IOEngineSession>> {
        let engine = self.0.engine()?.clone();
        let local = local.get().desc.clone();
        let remote = remote.get().remote().into_owned();
        let opened = wait::blocking(py, move || match engine.memory(&local) {
            Some(memory) => engine.session(&memory, &remote),
            None => Err(unregistered(&local)),
        })?;
        match opened {
            Ok(session) => Ok(Some(IOEngineSession::new(&self.0, session))),
            Err(error) => {
                tracing::error!(engine = %self.0.engine()?.key(), %error, "no session");
                Ok(None)
            }
        }
    }

    /// The status of a transfer that engine `remote_key` made with this engine's memory, once it is over; None until then. Each
    /// is told once.
    fn pop_inbound_transfer_status(
        &self,
        remote_key: String,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<Option<TransferStatus>> {
        let tag = Tag(convert::unsigned(transfer_uid, "the transfer's unique id")?);
        self.0.engine()?;
        let notification = self.0.inbox.take_matching(remote_key.into(), tag);
        Ok(notification.map(|notification| {
            TransferStatus::of(match notification.error {
                None => Status::succeeded(tag),
                Some(error) => Status::failed(tag, error),
            })
        }))
    }

    /// Waits until every transfer is terminal, for at most `timeout_ms` milliseconds (negative: without a bound; 0: asks each
    /// backend once), and returns the code of the whole: a failure if one has failed, wherever it stands in the list. `None`
    /// members are skipped.
    #[pyo3(signature = (statuses, timeout_ms = Millis::NONE), text_signature = "($self, statuses, timeout_ms=-1)")]
    fn wait_all(
        &self,
        py: Python<'_>,
        statuses: &Bound<'_, PyAny>,
        timeout_ms: Millis,
    ) -> PyResult<Py<PyAny>> {
        let statuses = convert::statuses(statuses, true)?;
        wait::many(py, &statuses, Until::All, timeout_ms.0)?;
        status_code(py, mori_engine::scan(&statuses).code())
    }

    /// The oldest event of a lost peer that was not told yet; None if there is none.
    fn pop_peer_failure(&self) -> PyResult<Option<PeerFailureEvent>> {
        self.0.engine()?;
        Ok(self.0.failures.take())
    }

    /// As `read`, with a status of the caller's own.
    #[pyo3(name = "Read")]
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn read_into(
        &self,
        py: Python<'_>,
        local: &Bound<'_, MemoryDesc>,
        local_offset: &Bound<'_, PyAny>,
        remote: &Bound<'_, MemoryDesc>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        status: &Bound<'_, TransferStatus>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let own = Some(status.get());
        self.single(py, Op::Read, local, local_offset, remote, remote_offset, size, transfer_uid, own)
            .map(drop)
    }

    /// As `write`, with a status of the caller's own.
    #[pyo3(name = "Write")]
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn write_into(
        &self,
        py: Python<'_>,
        local: &Bound<'_, MemoryDesc>,
        local_offset: &Bound<'_, PyAny>,
        remote: &Bound<'_, MemoryDesc>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        status: &Bound<'_, TransferStatus>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let own = Some(status.get());
        self.single(py, Op::Write, local, local_offset, remote, remote_offset, size, transfer_uid, own)
            .map(drop)
    }

    /// As `batch_read`, with statuses of the caller's own.
    #[pyo3(name = "BatchRead")]
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn batch_read_into(
        &self,
        py: Python<'_>,
        local: &Bound<'_, PyAny>,
        local_offsets: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        statuses: &Bound<'_, PyAny>,
        transfer_uids: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let own = Some(statuses);
        self.batch(py, Op::Read, local, local_offsets, remote, remote_offsets, sizes, transfer_uids, own)
            .map(drop)
    }

    /// As `batch_write`, with statuses of the caller's own.
    #[pyo3(name = "BatchWrite")]
    #[allow(clippy::too_many_arguments, reason = "the list is an interface")]
    fn batch_write_into(
        &self,
        py: Python<'_>,
        local: &Bound<'_, PyAny>,
        local_offsets: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        statuses: &Bound<'_, PyAny>,
        transfer_uids: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let own = Some(statuses);
        self.batch(py, Op::Write, local, local_offsets, remote, remote_offsets, sizes, transfer_uids, own)
            .map(drop)
    }

    #[pyo3(name = "GetEngineDesc")]
    fn get_engine_desc_too(&self) -> PyResult<EngineDesc> {
        self.get_engine_desc()
    }

    #[pyo3(name = "CreateBackend", signature = (r#type, config = None))]
    fn create_backend_too(
        &self,
        py: Python<'_>,
        r#type: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.create_backend(py, r#type, config)
    }

    #[pyo3(name = "RemoveBackend")]
    fn remove_backend_too(&self, py: Python<'_>, r#type: &Bound<'_, PyAny>) -> PyResult<()> {
        self.remove_backend(py, r#type)
    }

    #[pyo3(name = "RegisterRemoteEngine")]
    fn register_remote_engine_too(&self, py: Python<'_>, desc: &Bound<'_, EngineDesc>) -> PyResult<()> {
        self.register_remote_engine(py, desc)
    }

    #[pyo3(name = "DeregisterRemoteEngine")]
    fn deregister_remote_engine_too(&self, py: Python<'_>, desc: &Bound<'_, EngineDesc>) -> PyResult<()> {
        self.deregister_remote_engine(py, desc)
    }

    #[pyo3(name = "RegisterMemory")]
    fn register_memory_too(
        &self,
        py: Python<'_>,
        ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        device_id: i64,
        mem_loc: &Bound<'_, PyAny>,
    ) -> PyResult<MemoryDesc> {
        self.register_memory(py, ptr, size, device_id, mem_loc)
    }

    #[pyo3(name = "DeregisterMemory")]
    fn deregister_memory_too(&self, py: Python<'_>, desc: &Bound<'_, MemoryDesc>) -> PyResult<()> {
        self.deregister_memory(py, desc)
    }

    #[pyo3(name = "AllocateTransferUniqueId")]
    fn allocate_transfer_unique_id(&self) -> u64 {
        self.allocate_transfer_uid()
    }

    #[pyo3(name = "CreateSession")]
    fn create_session_too(
        &self,
        py: Python<'_>,
        local: &Bound<'_, MemoryDesc>,
        remote: &Bound<'_, MemoryDesc>,
    ) -> PyResult<Option<IOEngineSession>> {
        self.create_session(py, local, remote)
    }

    #[pyo3(name = "PopInboundTransferStatus")]
    fn pop_inbound_transfer_status_too(
        &self,
        remote_key: String,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<Option<TransferStatus>> {
        self.pop_inbound_transfer_status(remote_key, transfer_uid)
    }

    #[pyo3(name = "WaitAll", signature = (statuses, timeout_ms = Millis::NONE), text_signature = "($self, statuses, timeout_ms=-1)")]
    fn wait_all_too(
        &self,
        py: Python<'_>,
        statuses: &Bound<'_, PyAny>,
        timeout_ms: Millis,
    ) -> PyResult<Py<PyAny>> {
        self.wait_all(py, statuses, timeout_ms)
    }

    #[pyo3(name = "PopPeerFailure")]
    fn pop_peer_failure_too(&self) -> PyResult<Option<PeerFailureEvent>> {
        self.pop_peer_failure()
    }

    /// The same engine with the package's own API.
    #[getter]
    fn engine(&self) -> crate::engine::Engine {
        crate::engine::Engine::of(&self.0)
    }

    fn __repr__(&self) -> PyResult<String> {
        let desc = self.0.desc()?;
        Ok(format!("<IOEngine {:?} at {}:{}>", desc.key.as_str(), desc.host, desc.port))
    }
}
