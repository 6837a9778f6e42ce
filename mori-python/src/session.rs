//! Sessions: a local and a remote memory with a way between them.

use std::sync::Arc;

use mori_engine::{EngineKey, Error, Notify, Op, Piece, Status, TransferId, TransferOptions};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert;
use crate::failures::Failures;
use crate::fork::Generation;
use crate::owner::{Owner, watched, with_uid};
use crate::status::TransferStatus;

/// What both kinds of session are made of.
#[derive(Clone)]
struct Way {
    session: mori_engine::Session,
    failures: Arc<Failures>,
    peer: EngineKey,
    generation: Generation,
}

impl Way {
    fn new(owner: &Owner, session: mori_engine::Session) -> Self {
        let peer = session.remote().engine_key.clone();
        let failures = Arc::clone(&owner.failures);
        Self { session, failures, peer, generation: Generation::current() }
    }

    fn submit(
        &self,
        py: Python<'_>,
        op: Op,
        pieces: Result<Vec<Piece>, Error>,
        options: TransferOptions,
    ) -> PyResult<Status> {
        self.generation.check("session")?;
        Ok(match pieces {
            Ok(pieces) => py
                .detach(|| watched(&self.failures, &self.peer, || self.session.submit(op, &pieces, options))),
            Err(error) => Status::failed(options.tag, error),
        })
    }

    fn alive(&self) -> bool {
        self.generation.is_current() && self.session.alive()
    }
}

/// A pair of memories with a way between them, as `IOEngine.create_session` opens it.
///
/// Every call names a transfer's offsets and sizes and its unique id, and returns a status that has left INIT. Whatever is wrong
/// with the transfer is in the status.
///
/// ```python
/// session = engine.create_session(local, remote)
/// status = session.batch_read([0, 4096], [8192, 0], [4096, 4096], session.allocate_transfer_uid())
/// ```
#[pyclass(frozen, weakref, module = "mori.io")]
pub(crate) struct IOEngineSession {
    way: Way,
    notify: bool,
}

impl IOEngineSession {
    pub(crate) fn new(owner: &Owner, session: mori_engine::Session) -> Self {
        let notify = owner.notifies(Some(session.backend()));
        Self { way: Way::new(owner, session), notify }
    }

    fn submit(
        &self,
        py: Python<'_>,
        op: Op,
        pieces: Result<Vec<Piece>, Error>,
        uid: &Bound<'_, PyAny>,
    ) -> PyResult<Status> {
        let uid = convert::unsigned(uid, "the transfer's unique id")?;
        // Nothing to move needs nobody to be told.
        let moves = pieces.as_ref().is_ok_and(|pieces| pieces.iter().any(|piece| piece.length > 0));
        self.way.submit(py, op, pieces, with_uid(uid, self.notify && moves))
    }

    fn submit_into(
        &self,
        py: Python<'_>,
        op: Op,
        pieces: Result<Vec<Piece>, Error>,
        status: &Bound<'_, TransferStatus>,
        uid: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        convert::unsigned(uid, "the transfer's unique id")?;
        self.way.generation.check("session")?;
        status.get().claim()?;
        status.get().bind(self.submit(py, op, pieces, uid)?);
        Ok(())
    }
}

/// One piece of three Python integers.
fn piece(
    local: &Bound<'_, PyAny>,
    remote: &Bound<'_, PyAny>,
    size: &Bound<'_, PyAny>,
) -> PyResult<Result<Vec<Piece>, Error>> {
    Ok(Ok(vec![Piece::new(
        convert::unsigned(local, "the local offset")?,
        convert::unsigned(remote, "the remote offset")?,
        convert::unsigned(size, "the size")?,
    )]))
}

#[pymethods]
impl IOEngineSession {
    /// A number that no other transfer of this process has.
    #[pyo3(name = "allocate_transfer_uid")]
    fn allocate_transfer_uid(&self) -> u64 {
        TransferId::fresh().get()
    }

    /// As `allocate_transfer_uid`.
    #[pyo3(name = "AllocateTransferUniqueId")]
    fn allocate_transfer_unique_id(&self) -> u64 {
        self.allocate_transfer_uid()
    }

    /// Reads `size` bytes of the remote memory into the local one.
    fn read(
        &self,
        py: Python<'_>,
        local_offset: &Bound<'_, PyAny>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<TransferStatus> {
        let pieces = piece(local_offset, remote_offset, size)?;
        self.submit(py, Op::Read, pieces, transfer_uid).map(TransferStatus::of)
    }

    /// Writes `size` bytes of the local memory into the remote one.
    fn write(
        &self,
        py: Python<'_>,
        local_offset: &Bound<'_, PyAny>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<TransferStatus> {
        let pieces = piece(local_offset, remote_offset, size)?;
        self.submit(py, Op::Write, pieces, transfer_uid).map(TransferStatus::of)
    }

    /// Reads many pieces as one transfer with one status.
    fn batch_read(
        &self,
        py: Python<'_>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<TransferStatus> {
        let pieces = convert::pieces(local_offsets, remote_offsets, sizes)?;
        self.submit(py, Op::Read, pieces, transfer_uid).map(TransferStatus::of)
    }

    /// Writes many pieces as one transfer with one status.
    fn batch_write(
        &self,
        py: Python<'_>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<TransferStatus> {
        let pieces = convert::pieces(local_offsets, remote_offsets, sizes)?;
        self.submit(py, Op::Write, pieces, transfer_uid).map(TransferStatus::of)
    }

    /// As `read`, with a status of the caller's own.
    #[pyo3(name = "Read")]
    fn read_into(
        &self,
        py: Python<'_>,
        local_offset: &Bound<'_, PyAny>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        status: &Bound<'_, TransferStatus>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.submit_into(py, Op::Read, piece(local_offset, remote_offset, size)?, status, transfer_uid)
    }

    /// As `write`, with a status of the caller's own.
    #[pyo3(name = "Write")]
    fn write_into(
        &self,
        py: Python<'_>,
        local_offset: &Bound<'_, PyAny>,
        remote_offset: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        status: &Bound<'_, TransferStatus>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.submit_into(py, Op::Write, piece(local_offset, remote_offset, size)?, status, transfer_uid)
    }

    /// As `batch_read`, with a status of the caller's own.
    #[pyo3(name = "BatchRead")]
    fn batch_read_into(
        &self,
        py: Python<'_>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        status: &Bound<'_, TransferStatus>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let pieces = convert::pieces(local_offsets, remote_offsets, sizes)?;
        self.submit_into(py, Op::Read, pieces, status, transfer_uid)
    }

    /// As `batch_write`, with a status of the caller's own.
    #[pyo3(name = "BatchWrite")]
    fn batch_write_into(
        &self,
        py: Python<'_>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        status: &Bound<'_, TransferStatus>,
        transfer_uid: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let pieces = convert::pieces(local_offsets, remote_offsets, sizes)?;
        self.submit_into(py, Op::Write, pieces, status, transfer_uid)
    }

    /// Whether a transfer submitted now can be expected to work.
    fn alive(&self) -> bool {
        self.way.alive()
    }

    /// As `alive`.
    #[pyo3(name = "Alive")]
    fn alive_too(&self) -> bool {
        self.way.alive()
    }

    fn __repr__(&self) -> String {
        format!("<IOEngineSession with {} over {}>", self.way.peer, self.way.session.backend())
    }
}

/// A pair of memories with a way between them, as `Engine.session` opens it. It stays usable when the peer is lost and comes
/// back: transfers fail meanwhile, later ones work.
///
/// `read` and `write` take one piece as three integers, or many pieces as lists (`lengths` may be one integer for all). Each is
/// one transfer with one status. Keywords: `tag` is the caller's own number for outcomes and notifications; `deadline`, in
/// seconds, cancels the transfer when it passes; `notify` is a message (bytes) that the target gets once, after every byte is
/// in place; `notify_failure` tells it of a failure too.
///
/// ```python
/// session = engine.session(memory, remote)
/// transfer = session.read(0, 0, 4096, tag=7, deadline=2.0, notify=b"done")
/// ```
#[pyclass(frozen, weakref, module = "mori.engine")]
pub(crate) struct Session(Way);

impl Session {
    pub(crate) fn new(owner: &Owner, session: mori_engine::Session) -> Self {
        Self(Way::new(owner, session))
    }
}

#[pymethods]
impl Session {
    /// Reads from the remote memory into the local one.
    #[pyo3(signature = (local_offsets, remote_offsets, lengths, *, tag = None, deadline = None, notify = None,
        notify_failure = false))]
    #[allow(clippy::too_many_arguments, reason = "most are keywords")]
    fn read(
        &self,
        py: Python<'_>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        notify_failure: bool,
    ) -> PyResult<TransferStatus> {
        let options = options(tag, deadline, notify, notify_failure)?;
        let pieces = flexible(local_offsets, remote_offsets, lengths)?;
        self.0.submit(py, Op::Read, pieces, options).map(TransferStatus::of)
    }

    /// Writes from the local memory into the remote one.
    #[pyo3(signature = (local_offsets, remote_offsets, lengths, *, tag = None, deadline = None, notify = None,
        notify_failure = false))]
    #[allow(clippy::too_many_arguments, reason = "most are keywords")]
    fn write(
        &self,
        py: Python<'_>,
        local_offsets: &Bound<'_, PyAny>,
        remote_offsets: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        tag: Option<&Bound<'_, PyAny>>,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        notify_failure: bool,
    ) -> PyResult<TransferStatus> {
        let options = options(tag, deadline, notify, notify_failure)?;
        let pieces = flexible(local_offsets, remote_offsets, lengths)?;
        self.0.submit(py, Op::Write, pieces, options).map(TransferStatus::of)
    }

    /// Whether a transfer submitted now can be expected to work.
    #[getter]
    fn alive(&self) -> bool {
        self.0.alive()
    }

    /// The name of the transport that carries it.
    #[getter]
    fn backend(&self) -> &'static str {
        self.0.session.backend()
    }

    fn __repr__(&self) -> String {
        format!("<Session with {} over {}>", self.0.peer, self.0.session.backend())
    }
}

/// The options that keywords ask for.
pub(crate) fn options(
    tag: Option<&Bound<'_, PyAny>>,
    deadline: Option<f64>,
    notify: Option<&Bound<'_, PyBytes>>,
    notify_failure: bool,
) -> PyResult<TransferOptions> {
    let tag = tag.map_or(Ok(0), |tag| convert::unsigned(tag, "the tag"))?;
    let mut options = TransferOptions::tagged(tag);
    options.deadline = convert::duration(deadline, "deadline")?;
    if notify.is_some() || notify_failure {
        let message = notify.map_or_else(Vec::new, |message| message.as_bytes().to_vec());
        options.notify = Some(Notify { message, on_failure: notify_failure });
    }
    Ok(options)
}

/// Pieces from three integers, from three lists, or from two lists and one length for all.
pub(crate) fn flexible(
    local: &Bound<'_, PyAny>,
    remote: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
) -> PyResult<Result<Vec<Piece>, Error>> {
    let single = |value: &Bound<'_, PyAny>| value.extract::<u64>().ok();
    match (single(local), single(remote), single(lengths)) {
        (Some(local), Some(remote), Some(length)) => Ok(Ok(vec![Piece::new(local, remote, length)])),
        (None, None, Some(length)) => {
            let local = convert::numbers(local, "each local offset")?;
            let remote = convert::numbers(remote, "each remote offset")?;
            if local.len() != remote.len() {
                return Ok(Err(Error::new(
                    mori_engine::ErrorKind::InvalidArgument,
                    format!(
                        "{} local offsets and {} remote ones are not of one length",
                        local.len(),
                        remote.len()
                    ),
                )));
            }
            let pieces = local.into_iter().zip(remote);
            Ok(Ok(pieces.map(|(local, remote)| Piece::new(local, remote, length)).collect()))
        }
        _ => convert::pieces(local, remote, lengths),
    }
}
