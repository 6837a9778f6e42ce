//! The serving process that a replay starts by itself, as a second process.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long the process may take to fill its pool and listen.
const READY: Duration = Duration::from_secs(120);
/// How long it may take to end after its standard input did.
const GOODBYE: Duration = Duration::from_secs(2);
/// The longest line that it may print before it is ready.
const MAX_READY_LINE: u64 = 4096;

/// The one line that `mori serve` prints on standard output when it is ready, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Always `ready`.
    pub event: String,
    /// The address that replays connect to.
    pub address: String,
    /// The process id.
    pub pid: u32,
}

/// Why the process is not there.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It cannot be started.
    #[error("cannot start the serving process {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended before it was ready; it has said why on standard error.
    #[error("the serving process ended before it was ready ({0})")]
    Ended(String),
    /// It did not get ready in time.
    #[error("the serving process was not ready within {READY:?}")]
    NotReady,
    /// What it printed is not the ready line.
    #[error("the serving process printed {0:?} where its ready line should be")]
    Foreign(String),
}

enum Said {
    Line(String),
    Closed,
}

/// A serving process that ends with this value.
#[derive(Debug)]
pub struct ServeChild {
    child: Child,
    /// Closing it tells the process to end; so does our own death.
    stdin: Option<ChildStdin>,
    said: Receiver<Said>,
    ready: Ready,
}

impl ServeChild {
    /// Starts `program` with `args` and waits until it is ready.
    ///
    /// It gets a process group of its own, so that an interrupt from the keyboard reaches only this process, which then
    /// ends the other in good order.
    ///
    /// # Errors
    ///
    /// [`ChildError`]; the process is gone then.
    pub fn start(program: &std::path::Path, args: &[OsString]) -> Result<Self, ChildError> {
        let failed = |source| ChildError::Spawn { program: program.display().to_string(), source };
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let (sender, said) = mpsc::channel();
        let ready = Ready { event: String::new(), address: String::new(), pid: child.id() };
        let stdout = child.stdout.take();
        let mut this = Self { child, stdin, said, ready };
        let Some(stdout) = stdout else { return Err(failed(io::ErrorKind::BrokenPipe.into())) };
        let listen = move || {
            let mut lines = BufReader::new(stdout);
            let mut line = String::new();
            if lines.by_ref().take(MAX_READY_LINE).read_line(&mut line).is_ok() && !line.is_empty() {
                let _ = sender.send(Said::Line(line));
            }
            // Reads on to the end, which comes with the end of the process.
            let _ = io::copy(&mut lines, &mut io::sink());
            let _ = sender.send(Said::Closed);
        };
        std::thread::Builder::new().name("mori-child".to_owned()).spawn(listen).map_err(failed)?;
        this.ready = this.wait_ready()?;
        Ok(this)
    }

    fn wait_ready(&mut self) -> Result<Ready, ChildError> {
        match self.said.recv_timeout(READY) {
            Ok(Said::Line(line)) => serde_json::from_str::<Ready>(&line)
                .ok()
                .filter(|ready| ready.event == "ready")
                .ok_or_else(|| ChildError::Foreign(line.trim().to_owned())),
            Ok(Said::Closed) | Err(RecvTimeoutError::Disconnected) => {
                let status =
                    self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(ChildError::Ended(status))
            }
            Err(RecvTimeoutError::Timeout) => Err(ChildError::NotReady),
        }
    }

    /// The address that it listens on.
    pub fn address(&self) -> &str {
        &self.ready.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServeChild {
    /// Asks the process to end, and kills it if it does not; then it is waited for, so that nothing is left of it.
    fn drop(&mut self) {
        self.stdin = None;
        while let Ok(Said::Line(_)) = self.said.recv_timeout(GOODBYE) {}
        // It has closed its output and is all but gone, or it does not listen; either way this ends it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn shell(script: &str) -> Result<ServeChild, ChildError> {
        ServeChild::start(Path::new("/bin/sh"), &["-c".into(), script.into()])
    }

    #[test]
    fn a_process_that_gets_ready_is_known_and_ends_with_its_input() {
        let child = shell(r#"echo '{"event":"ready","address":"127.0.0.1:5","pid":7}'; cat"#).expect("ready");
        assert_eq!(child.address(), "127.0.0.1:5");
        drop(child);
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let child =
            shell(r#"echo '{"event":"ready","address":"a:1","pid":7}'; kill -STOP $$"#).expect("ready");
        let pid = child.pid();
        drop(child);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn processes_that_fail_are_named() {
        let error = shell("exit 3").expect_err("ended");
        assert!(matches!(&error, ChildError::Ended(status) if status.contains('3')), "{error}");
        let error = shell("echo hello; cat").expect_err("foreign");
        assert!(matches!(&error, ChildError::Foreign(line) if line == "hello"), "{error}");
        let error = shell(r#"echo '{"event":"other","address":"a:1","pid":7}'; cat"#).expect_err("foreign");
        assert!(matches!(error, ChildError::Foreign(_)), "{error}");
        let error = ServeChild::start(Path::new("/no/such/program"), &[]).expect_err("absent");
        assert!(matches!(error, ChildError::Spawn { .. }), "{error}");
    }
}
