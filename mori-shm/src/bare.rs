//! The bare system calls between two processes, for measurements: what a transfer cannot be faster than.

use std::path::Path;

use mori_core::{Cause, Error, ErrorKind, Op, Piece, Region, Result};

use crate::sys::{self, MAX_IOVECS, Span};

/// Copies pieces between `local` and the memory of another process, whose part begins at `address`: one system call for up
/// to 1024 pieces, on the calling thread. Nothing is asked of the other process, and nobody checks a key; what the
/// system grants is all that is needed. Meant to be measured, as the limit of this crate's transport.
///
/// # Errors
///
/// [`ErrorKind::InvalidArgument`] for a piece outside of `local`, or for this process itself, whose memory is not ours to
/// overwrite; [`ErrorKind::Transport`] when the system refuses, or the other process does not have the range.
pub fn bare_copy(process: u32, op: Op, local: &Region, address: u64, pieces: &[Piece]) -> Result<()> {
    // Threads of this process can be named as well.
    let own = process == std::process::id() || Path::new(&format!("/proc/self/task/{process}")).exists();
    let pid = i32::try_from(process).ok().filter(|pid| *pid > 0 && !own);
    let Some(pid) = pid else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{process} is no other process; name the one whose memory is to be copied"),
        ));
    };
    let pin = local.pin()?;
    for chunk in pieces.chunks(MAX_IOVECS) {
        let spans = chunk.iter().map(|piece| Span {
            local: piece.local,
            remote: address.saturating_add(piece.remote),
            length: piece.length,
        });
        if let Some(failure) = sys::copy(pid, op, &pin, spans)?.failure {
            let number = i64::from(failure.raw_os_error().unwrap_or(0));
            let what = format!("cannot copy between this process and {process}: {failure}");
            return Err(Error::with_cause(ErrorKind::Transport, what, Cause { domain: "errno", number }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mori_core::Access;

    use super::*;

    #[test]
    fn this_process_and_what_is_none_are_refused() {
        let local = Region::from_vec(vec![0; 64], Access::LOCAL).unwrap();
        for process in [std::process::id(), 0, u32::MAX] {
            let error = bare_copy(process, Op::Read, &local, 0, &[Piece::new(0, 0, 8)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{process}");
        }
    }

    #[test]
    fn what_the_system_refuses_is_told() {
        let local = Region::from_vec(vec![0; 64], Access::LOCAL).unwrap();
        // A child that waits for its input has nothing at address 0.
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let error = bare_copy(child.id(), Op::Read, &local, 0, &[Piece::new(0, 0, 8)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transport);
        let outside = bare_copy(child.id(), Op::Read, &local, 0, &[Piece::new(60, 0, 8)]).unwrap_err();
        assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
