//! Streams, events, and what is queued on them.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::result::Failure;
use super::{Current, Hip, Span, sys};

/// A stream of a device. Dropping it lets what is queued on it run to its end.
pub(crate) struct Stream {
    hip: Arc<Hip>,
    device: u32,
    /// The library's pointer as a number: only the library looks behind it.
    raw: usize,
}

impl Stream {
    fn raw(&self) -> sys::Stream {
        ptr::with_exposed_provenance_mut(self.raw)
    }

    /// Queues a copy of as many bytes as the shorter of the two spans has.
    ///
    /// Whoever calls keeps the bytes of both allocated until the stream has done the copy (rule 4 of the module).
    pub(crate) fn copy(&self, _current: &Current<'_>, to: Span, from: Span) -> Result<(), Failure> {
        let length = to.length().min(from.length());
        // SAFETY: both ranges are allocated device memory that this process can address (rule 4 of the module), and the
        // stream is alive.
        let code = unsafe {
            (self.hip.api.hipMemcpyAsync)(
                to.pointer(),
                from.pointer(),
                length,
                sys::DEVICE_TO_DEVICE,
                self.raw(),
            )
        };
        self.hip.api.check("hipMemcpyAsync", code)
    }

    /// Queues many copies in one call, each as [`Stream::copy`] does, in no order among each other. `false` if the library cannot,
    /// and nothing is queued then.
    ///
    /// # Errors
    ///
    /// The failure, and which copy it is about if the library says so. Some of the others may be queued.
    pub(crate) fn copy_many(
        &self,
        _current: &Current<'_>,
        copies: &[(Span, Span)],
    ) -> Result<bool, (Option<usize>, Failure)> {
        let Some(batch) = self.hip.api.hipMemcpyBatchAsync else { return Ok(false) };
        let mut to: Vec<*mut c_void> = copies.iter().map(|(to, _)| to.pointer()).collect();
        let mut from: Vec<*mut c_void> = copies.iter().map(|(_, from)| from.pointer()).collect();
        let mut lengths: Vec<usize> =
            copies.iter().map(|(to, from)| to.length().min(from.length())).collect();
        let mut failed = usize::MAX;
        // SAFETY: the three lists have as many entries as the call is told, and it reads them before it returns; no
        // attributes are given; the call writes one number. Ranges and stream are as in `copy`.
        let code = unsafe {
            batch(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                lengths.as_mut_ptr(),
                copies.len(),
                ptr::null_mut(),
                ptr::null_mut(),
                0,
                &raw mut failed,
                self.raw(),
            )
        };
        if code == sys::NOT_SUPPORTED {
            return Ok(false);
        }
        let which = Some(failed).filter(|&failed| failed < copies.len());
        self.hip.api.check("hipMemcpyBatchAsync", code).map_err(|failure| (which, failure))?;
        Ok(true)
    }

    /// Whether everything that was queued is done.
    pub(crate) fn query(&self) -> Result<bool, Failure> {
        // SAFETY: the stream is alive.
        let code = unsafe { (self.hip.api.hipStreamQuery)(self.raw()) };
        if code == sys::NOT_READY {
            return Ok(false);
        }
        self.hip.api.check("hipStreamQuery", code).map(|()| true)
    }

    /// Has `token` handed to [`Landings`](super::Landings) when everything that was queued before is done.
    pub(crate) fn call_back(&self, _current: &Current<'_>, token: usize) -> Result<(), Failure> {
        let token = ptr::without_provenance_mut::<c_void>(token);
        if let Some(launch) = self.hip.api.hipLaunchHostFunc {
            // SAFETY: the function takes the token as a number and dereferences nothing; it makes no call of the library.
            let code = unsafe { launch(self.raw(), super::callback::landed, token) };
            if code != sys::NOT_SUPPORTED {
                return self.hip.api.check("hipLaunchHostFunc", code);
            }
        }
        // SAFETY: as above.
        let code = unsafe {
            (self.hip.api.hipStreamAddCallback)(self.raw(), super::callback::landed_on_stream, token, 0)
        };
        self.hip.api.check("hipStreamAddCallback", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_current) = self.hip.on(self.device).or_else(|_| self.hip.on(self.device)) else { return };
        // SAFETY: the stream is alive and used no more.
        self.hip.give_back("hipStreamDestroy", || unsafe { (self.hip.api.hipStreamDestroy)(self.raw()) });
    }
}

/// An event of a device.
pub(crate) struct Event {
    hip: Arc<Hip>,
    device: u32,
    raw: usize,
}

impl Event {
    fn raw(&self) -> sys::Event {
        ptr::with_exposed_provenance_mut(self.raw)
    }

    /// The event stands for everything that has been queued on the stream so far.
    pub(crate) fn record(&self, _current: &Current<'_>, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: both are alive.
        let code = unsafe { (self.hip.api.hipEventRecord)(self.raw(), stream.raw()) };
        self.hip.api.check("hipEventRecord", code)
    }

    /// Whether the stream has got there. Never blocks.
    pub(crate) fn query(&self) -> Result<bool, Failure> {
        // SAFETY: the event is alive.
        let code = unsafe { (self.hip.api.hipEventQuery)(self.raw()) };
        if code == sys::NOT_READY {
            return Ok(false);
        }
        self.hip.api.check("hipEventQuery", code).map(|()| true)
    }

    /// Blocks until the stream has got there.
    pub(crate) fn synchronise(&self) -> Result<(), Failure> {
        // SAFETY: the event is alive.
        let code = unsafe { (self.hip.api.hipEventSynchronize)(self.raw()) };
        self.hip.api.check("hipEventSynchronize", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.hip.on(self.device).or_else(|_| self.hip.on(self.device)) else { return };
        // SAFETY: the event is alive and used no more.
        self.hip.give_back("hipEventDestroy", || unsafe { (self.hip.api.hipEventDestroy)(self.raw()) });
    }
}

impl Hip {
    /// A stream of the current device that does not wait for the default stream.
    pub(crate) fn stream(self: &Arc<Self>, current: &Current<'_>) -> Result<Stream, Failure> {
        let mut raw: sys::Stream = ptr::null_mut();
        // SAFETY: the call writes one pointer through the pointer.
        let code = unsafe { (self.api.hipStreamCreateWithFlags)(&raw mut raw, sys::STREAM_NON_BLOCKING) };
        self.api.check("hipStreamCreateWithFlags", code)?;
        Ok(Stream { hip: Arc::clone(self), device: current.device(), raw: raw.expose_provenance() })
    }

    /// An event of the current device that keeps no time, and on which threads sleep.
    pub(crate) fn event(self: &Arc<Self>, current: &Current<'_>) -> Result<Event, Failure> {
        let mut raw: sys::Event = ptr::null_mut();
        // SAFETY: the call writes one pointer through the pointer.
        let code =
            unsafe { (self.api.hipEventCreateWithFlags)(&raw mut raw, sys::EVENT_BLOCKING_SYNC_NO_TIMING) };
        self.api.check("hipEventCreateWithFlags", code)?;
        Ok(Event { hip: Arc::clone(self), device: current.device(), raw: raw.expose_provenance() })
    }
}
