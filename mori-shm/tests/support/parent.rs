//! This side of the other process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mori_core::{Access, EngineDesc, Error, ErrorKind, MemoryDesc, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::child::{VARIABLE, access_number, from_hex, to_hex};

/// A running child.
pub(crate) struct Process {
    child: Mutex<(Child, ChildStdin, BufReader<ChildStdout>)>,
    pid: Pid,
    /// Bytes go through files in here, one for each call.
    bulk: tempfile::TempDir,
    calls: AtomicU64,
}

fn broken(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::BadState, format!("the other process: {what}"))
}

impl Process {
    /// Starts this program again as the child. The test program has a test of the name `child` that calls
    /// [`run_if_asked`](super::child::run_if_asked).
    pub(crate) fn start() -> Result<Self> {
        Self::start_as(None)
    }

    /// The same as another user.
    pub(crate) fn start_as(user: Option<u32>) -> Result<Self> {
        let program = std::env::current_exe().map_err(broken)?;
        let mut command = Command::new(program);
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(VARIABLE, "1");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(broken)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| broken("no pid"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => {
                let bulk = tempfile::tempdir().map_err(broken)?;
                let child = Mutex::new((child, stdin, BufReader::new(stdout)));
                Ok(Self { child, pid, bulk, calls: AtomicU64::new(0) })
            }
            _ => Err(broken("no pipes")),
        }
    }

    /// Gives a command and waits for its answer.
    pub(crate) fn ask(&self, command: &str) -> Result<String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(child.1, "{command}").and_then(|()| child.1.flush()).map_err(broken)?;
        let mut line = String::new();
        loop {
            line.clear();
            if child.2.read_line(&mut line).map_err(broken)? == 0 {
                return Err(broken("it has ended"));
            }
            let Some(answer) = line.trim_end().strip_prefix('@') else { continue };
            let Some(error) = answer.strip_prefix("error ") else {
                return Ok(answer.trim_start_matches("ok").trim().to_owned());
            };
            let (kind, message) = error.split_once(' ').unwrap_or((error, ""));
            let kind = kind.parse().ok().and_then(ErrorKind::from_number).unwrap_or(ErrorKind::BadState);
            return Err(Error::new(kind, message));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
    }

    /// Stops it, and returns when it is stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        super::until("the process is stopped", || self.state() == Some('T'));
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
        super::until("the process goes on", || self.state() != Some('T'));
    }

    fn state(&self) -> Option<char> {
        // All threads; the process's own state is that of its first.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_nonzero())).ok()?;
        let mut states = tasks.flatten().filter_map(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
            stat.rsplit_once(") ")?.1.chars().next()
        });
        let first = states.next()?;
        if states.all(|state| state == first) { Some(first) } else { None }
    }

    /// Kills it without a warning.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.0.wait();
    }

    /// A node that has joined an engine of this name, in this incarnation.
    pub(crate) fn engine(&self, key: &str, mode: &str, instance: u8) -> Result<(String, EngineDesc)> {
        let node = self.ask(&format!("node {mode} -"))?;
        let desc = self.ask(&format!("attach {node} {key} {}", to_hex(&[instance; 16])))?;
        Ok((node, EngineDesc::unpack(&from_hex(&desc)?)?))
    }

    /// Registered memory of a node.
    pub(crate) fn memory(&self, node: &str, length: usize, access: Access) -> Result<(String, MemoryDesc)> {
        let region = self.ask(&format!("allocate {node} {length} {}", access_number(access)))?;
        Ok((region.clone(), self.register(&region)?))
    }

    /// Registers a region.
    pub(crate) fn register(&self, region: &str) -> Result<MemoryDesc> {
        MemoryDesc::unpack(&from_hex(&self.ask(&format!("register {region}"))?)?)
    }

    /// Puts bytes into a region.
    pub(crate) fn store(&self, region: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.bulk();
        std::fs::write(&file, bytes).map_err(broken)?;
        let stored = self.ask(&format!("store {region} {offset} {}", file.display()));
        let _ = std::fs::remove_file(&file);
        stored.map(drop)
    }

    /// Takes bytes out of a region.
    pub(crate) fn load(&self, region: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        let file = self.bulk();
        self.ask(&format!("load {region} {offset} {length} {}", file.display()))?;
        let bytes = std::fs::read(&file).map_err(broken);
        let _ = std::fs::remove_file(&file);
        bytes
    }

    fn bulk(&self) -> PathBuf {
        self.bulk.path().join(self.calls.fetch_add(1, Ordering::Relaxed).to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
