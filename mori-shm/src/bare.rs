//! The bare system calls between two processes, for measurements: what a transfer cannot be faster than.

use std::path::Path;

use mori_core::{Cause, Error, ErrorKind, Op, Piece, Region, Result};

use crate::sys::{self, MAX_IOVECS, Span};

/// Another process, by its number, whose memory is copied without asking it.
///
/// Nobody checks a key; what the system grants is all that is needed. Meant to be measured, as the limit of this crate's
/// transport. The number has to stay that process's while this is in use.
#[derive(Clone, Copy, Debug)]
pub struct BareProcess(i32);

impl BareProcess {
    /// The process of this number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for what is no number of a process, and for this process itself, whose memory is not
    /// to be overwritten in this way.
    pub fn new(process: u32) -> Result<Self> {
        // Threads of this process can be named as well.
        let own = process == std::process::id() || Path::new(&format!("/proc/self/task/{process}")).exists();
        let pid = i32::try_from(process).ok().filter(|pid| *pid > 0 && !own);
        pid.map(Self).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("{process} is no other process; name the one whose memory is to be copied"),
            )
        })
    }

    /// Copies pieces between `local` and the part of the process's memory that begins at `address`: one system call for up to
    /// 1024 pieces, on the calling thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a piece outside of `local`, [`ErrorKind::Transport`] when the system refuses or the
    /// process does not have the range.
    pub fn copy(&self, op: Op, local: &Region, address: u64, pieces: &[Piece]) -> Result<()> {
        let pin = local.pin()?;
        for chunk in pieces.chunks(MAX_IOVECS) {
            let spans = chunk.iter().map(|piece| Span {
                local: piece.local,
                remote: address.saturating_add(piece.remote),
                length: piece.length,
            });
            if let Some(failure) = sys::copy(self.0, op, &pin, spans)?.failure {
                let number = i64::from(failure.raw_os_error().unwrap_or(0));
                let what = format!("cannot copy between this process and {}: {failure}", self.0);
                return Err(Error::with_cause(ErrorKind::Transport, what, Cause { domain: "errno", number }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mori_core::Access;

    use super::*;

    #[test]
    fn this_process_and_what_is_none_are_refused() {
        for process in [std::process::id(), 0, u32::MAX] {
            let error = BareProcess::new(process).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{process}");
        }
    }

    #[test]
    fn what_the_system_refuses_is_told() {
        let local = Region::from_vec(vec![0; 64], Access::LOCAL).unwrap();
        // A child that waits for its input has nothing at address 0.
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = BareProcess::new(child.id()).unwrap();
        let error = process.copy(Op::Read, &local, 0, &[Piece::new(0, 0, 8)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transport);
        let outside = process.copy(Op::Read, &local, 0, &[Piece::new(60, 0, 8)]).unwrap_err();
        assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
