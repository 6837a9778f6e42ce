//! Python's values as the engine's: numbers, lists of numbers, pieces, bounds. Whatever does not fit is a `TypeError` that
//! names the argument; nothing is rounded or wrapped.

use std::time::Duration;

use mori_engine::{Error, ErrorKind, Piece, Timeout};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence, PyString, PyTuple};

use crate::status::TransferStatus;

/// An integer from 0 to 2**64-1, numpy's included.
pub(crate) fn unsigned(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    value.extract::<u64>().map_err(|error| unfit(error, value, what))
}

/// Keeps what somebody's `__index__` has raised, and says of the rest which argument it was.
#[cold]
fn unfit(error: PyErr, value: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let py = value.py();
    if !error.is_instance_of::<PyTypeError>(py) && !error.is_instance_of::<PyOverflowError>(py) {
        return error;
    }
    let shown = value.repr().map_or_else(|_| "a value".to_owned(), |text| short(&text.to_string_lossy()));
    PyTypeError::new_err(format!("{what} must be an integer from 0 to 2**64-1, not {shown}"))
}

/// At most the first 60 characters.
fn short(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// A sequence of such integers: a list, a tuple, another sequence, or an array that makes a list of itself.
pub(crate) fn numbers(values: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u64>> {
    if let Ok(list) = values.cast::<PyList>() {
        // The list may shrink meanwhile, through an `__index__`; the iterator sees that.
        let mut numbers = Vec::with_capacity(list.len());
        for value in list.iter() {
            numbers.push(unsigned(&value, what)?);
        }
        return Ok(numbers);
    }
    if let Ok(tuple) = values.cast::<PyTuple>() {
        return tuple.iter_borrowed().map(|value| unsigned(&value, what)).collect();
    }
    if let Some(numbers) = array(values, what)? {
        return Ok(numbers);
    }
    if let Ok(listed) = values.call_method0(pyo3::intern!(values.py(), "tolist")) {
        if let Ok(list) = listed.cast::<PyList>() {
            return list.iter().map(|value| unsigned(&value, what)).collect();
        }
    }
    let sequence = sequence(values, what)?;
    sequence.try_iter()?.map(|value| unsigned(&value?, what)).collect()
}

/// The numbers of a one-dimensional array of 64-bit integers in this machine's byte order, without an object for each; `None`
/// for everything else.
fn array(values: &Bound<'_, PyAny>, what: &str) -> PyResult<Option<Vec<u64>>> {
    let py = values.py();
    let Ok(dtype) = values.getattr(pyo3::intern!(py, "dtype")) else { return Ok(None) };
    let text = |name: &Bound<'_, PyString>| dtype.getattr(name).and_then(|text| text.extract::<String>());
    let (Ok(kind), Ok(order)) = (text(pyo3::intern!(py, "kind")), text(pyo3::intern!(py, "byteorder")))
    else {
        return Ok(None);
    };
    let size = |of: &Bound<'_, PyAny>, name: &Bound<'_, PyString>| {
        of.getattr(name).and_then(|size| size.extract::<usize>()).unwrap_or(0)
    };
    let eight = size(&dtype, pyo3::intern!(py, "itemsize")) == 8;
    let flat = size(values, pyo3::intern!(py, "ndim")) == 1;
    let signed = kind == "i";
    if !(signed || kind == "u") || order != "=" || !eight || !flat {
        return Ok(None);
    }
    let Ok(bytes) = values.call_method0(pyo3::intern!(py, "tobytes")) else { return Ok(None) };
    let Ok(bytes) = bytes.cast::<PyBytes>() else { return Ok(None) };
    let (words, _) = bytes.as_bytes().as_chunks::<8>();
    let numbers: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    if signed && numbers.iter().any(|number| i64::from_ne_bytes(number.to_ne_bytes()) < 0) {
        return Err(PyTypeError::new_err(format!(
            "{what} must be an integer from 0 to 2**64-1, not negative"
        )));
    }
    Ok(Some(numbers))
}

/// Refuses what is no sequence: `None`, a number, an iterator.
pub(crate) fn sequence<'a, 'py>(
    values: &'a Bound<'py, PyAny>,
    what: &str,
) -> PyResult<&'a Bound<'py, PySequence>> {
    values.cast::<PySequence>().map_err(|_| {
        let name =
            values.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("{what} must be a list, not {name}"))
    })
}

/// The members of a list or another sequence.
pub(crate) fn items<'py>(values: &Bound<'py, PyAny>, what: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = values.cast::<PyList>() {
        return Ok(list.iter().collect());
    }
    sequence(values, what)?.try_iter()?.collect()
}

/// The pieces of a transfer; an error of the transfer, not an exception, if the three lists are not of one length.
pub(crate) fn pieces(
    local: &Bound<'_, PyAny>,
    remote: &Bound<'_, PyAny>,
    sizes: &Bound<'_, PyAny>,
) -> PyResult<Result<Vec<Piece>, Error>> {
    let local = numbers(local, "each local offset")?;
    let remote = numbers(remote, "each remote offset")?;
    let sizes = numbers(sizes, "each size")?;
    if local.len() != remote.len() || local.len() != sizes.len() {
        return Ok(Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{} local offsets, {} remote offsets and {} sizes are not of one length",
                local.len(),
                remote.len(),
                sizes.len()
            ),
        )));
    }
    let pieces = local.into_iter().zip(remote).zip(sizes);
    Ok(Ok(pieces.map(|((local, remote), length)| Piece::new(local, remote, length)).collect()))
}

/// A bound in milliseconds: negative is none, zero polls.
#[derive(Clone, Copy)]
pub(crate) struct Millis(pub(crate) Timeout);

impl Millis {
    /// -1, the default.
    pub(crate) const NONE: Self = Self(Timeout::Unbounded);
}

impl<'py> FromPyObject<'_, 'py> for Millis {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let millis = value.extract::<i64>().map_err(|error| {
            if error.is_instance_of::<PyOverflowError>(value.py()) {
                PyTypeError::new_err("it does not fit 64 bits; -1 is no bound")
            } else {
                error
            }
        })?;
        Ok(Self(Timeout::from_millis(millis)))
    }
}

/// A port: an integer that is one.
#[derive(Clone, Copy)]
pub(crate) struct Port(pub(crate) u16);

impl<'py> FromPyObject<'_, 'py> for Port {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match value.extract::<u16>() {
            Ok(port) => Ok(Self(port)),
            Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => Err(error),
            Err(_) => Err(PyValueError::new_err("the port must be 0 to 65535; 0 picks a free one")),
        }
    }
}

/// A bound in seconds: `None` is none, zero polls.
pub(crate) fn seconds(value: Option<f64>, what: &str) -> PyResult<Timeout> {
    Ok(match duration(value, what)? {
        None => Timeout::Unbounded,
        Some(bound) => Timeout::from(bound),
    })
}

/// A time in seconds; infinity, or more than a duration can hold, is none.
pub(crate) fn duration(value: Option<f64>, what: &str) -> PyResult<Option<Duration>> {
    match value {
        None => Ok(None),
        Some(seconds) if seconds >= 0.0 => {
            let bound = Duration::try_from_secs_f64(seconds).ok();
            // A bound is never shortened to zero by rounding.
            Ok(bound.map(|bound| if seconds > 0.0 { bound.max(Duration::from_nanos(1)) } else { bound }))
        }
        Some(seconds) => {
            Err(PyValueError::new_err(format!("{what} must be seconds from 0 on or None, not {seconds}")))
        }
    }
}

/// The statuses of a list; `None` members are left out if `skip_none`.
pub(crate) fn statuses(values: &Bound<'_, PyAny>, skip_none: bool) -> PyResult<Vec<mori_engine::Status>> {
    let mut statuses = Vec::new();
    let mut take = |value: &Bound<'_, PyAny>| -> PyResult<()> {
        match value.cast::<TransferStatus>() {
            Ok(status) => statuses.push(status.get().checked()?.clone()),
            Err(_) if skip_none && value.is_none() => {}
            Err(_) => {
                return Err(PyTypeError::new_err(format!(
                    "each status must be a TransferStatus, not {}",
                    value.get_type().name()?
                )));
            }
        }
        Ok(())
    };
    match values.cast::<PyList>() {
        Ok(list) => list.iter().try_for_each(|value| take(&value))?,
        Err(_) => sequence(values, "the statuses")?.try_iter()?.try_for_each(|value| take(&value?))?,
    }
    Ok(statuses)
}
