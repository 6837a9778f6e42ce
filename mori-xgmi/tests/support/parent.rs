//! This side of the other process.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mori_core::{Access, EngineDesc, Error, ErrorKind, MemoryDesc, Result};

use super::child::{VARIABLE, access_number, from_hex, to_hex};

/// A running child.
pub(crate) struct Process {
    child: Mutex<(Child, ChildStdin, BufReader<ChildStdout>)>,
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
    pub(crate) fn start(variables: &[(&str, &str)]) -> Result<Self> {
        let program = std::env::current_exe().map_err(broken)?;
        let mut child = Command::new(program)
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .env("MORI_HIP_SIM", format!("devices={}", super::DEVICES))
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(broken)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        match (stdin, stdout) {
            (Some(stdin), Some(stdout)) => Ok(Self {
                child: Mutex::new((child, stdin, BufReader::new(stdout))),
                bulk: tempfile::tempdir_in("/dev/shm").map_err(broken)?,
                calls: AtomicU64::new(0),
            }),
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

    /// Kills it without a warning.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.0.kill();
        let _ = child.0.wait();
    }

    /// A node that has joined an engine of this name.
    pub(crate) fn engine(&self, key: &str, node_id: &str) -> Result<(String, EngineDesc)> {
        let node = self.ask("node query")?;
        let desc = self.ask(&format!("attach {node} {key} {} {node_id}", to_hex(&[3; 16])))?;
        Ok((node, EngineDesc::unpack(&from_hex(&desc)?)?))
    }

    /// Registered memory of a node.
    pub(crate) fn memory(
        &self,
        node: &str,
        device: u32,
        length: usize,
        access: Access,
    ) -> Result<(String, MemoryDesc)> {
        let region = self.ask(&format!("allocate {node} {device} {length} {}", access_number(access)))?;
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
