//! What the tests of the program share: starting it, hearing it, and ending it.
#![allow(clippy::expect_used, clippy::panic, reason = "only tests use it, and failing is their way to tell")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than anything here takes; a test that waits this long has failed.
pub(crate) const GUARD: Duration = Duration::from_secs(120);

/// A small block, so that debug builds move many.
pub(crate) const SMALL: [&str; 2] = ["--scale", "8192"];

pub(crate) fn mori() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mori"));
    command.env_remove("MORI_LOG").stdin(Stdio::null());
    command
}

/// What a run of the program left behind.
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {}", self.err))
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}\n{}", self.out, self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// Runs the program to its end.
pub(crate) fn run(args: &[&str]) -> Ran {
    Running::start(args, &[]).finish()
}

pub(crate) fn replay(args: &[&str]) -> Ran {
    run(&[&["replay"], SMALL.as_slice(), args].concat())
}

/// The program while it runs. It is killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
    heard: String,
}

fn listen(source: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(source).lines() {
            let Ok(line) = line else { return };
            if sender.send(line + "\n").is_err() {
                return;
            }
        }
    });
    receiver
}

impl Running {
    pub(crate) fn start(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = mori();
        command.args(args).envs(environment.iter().copied());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let out = listen(child.stdout.take().expect("piped"));
        let err = listen(child.stderr.take().expect("piped"));
        Self { child, out, err, heard: String::new() }
    }

    /// A replay that says when it is connected.
    pub(crate) fn replay(args: &[&str]) -> Self {
        Self::start(&[&["replay"], SMALL.as_slice(), args].concat(), &[("MORI_LOG", "mori_cli=info,error")])
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line on standard error that contains the text.
    pub(crate) fn hear(&mut self, text: &str) -> String {
        loop {
            let line = self.err.recv_timeout(GUARD);
            let line = line.unwrap_or_else(|_| panic!("never said {text:?}, but: {}", self.heard));
            self.heard.push_str(&line);
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_pid(self.pid(), signal);
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Ran {
        let mut out = String::new();
        loop {
            match self.out.recv_timeout(GUARD) {
                Ok(line) => out.push_str(&line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not end: {}{out}", self.heard),
            }
        }
        let status = self.child.wait().expect("waited for");
        let mut err = std::mem::take(&mut self.heard);
        err.extend(self.err.iter());
        Ran { status, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal_pid(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, signal).expect("signalled");
}

/// A server of the test's own.
pub(crate) struct Serving {
    pub(crate) running: Running,
    pub(crate) address: String,
}

impl Serving {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_in(args, &[])
    }

    /// With variables of the environment.
    pub(crate) fn start_in(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let running = Running::start(&[&["serve"], SMALL.as_slice(), args].concat(), environment);
        let line = running.out.recv_timeout(GUARD).expect("the ready line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(ready["event"], "ready");
        assert_eq!(ready["pid"], running.pid());
        let address = ready["address"].as_str().expect("an address").to_owned();
        Self { running, address }
    }

    pub(crate) fn kill(mut self) {
        self.running.child.kill().expect("killed");
        self.running.child.wait().expect("waited for");
    }
}

/// The children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The state letter of a process; none when it is gone.
pub(crate) fn state(pid: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit(") ").next()?.chars().next()
}

/// Looks again and again until it is so, at most as long as the guard.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (sender, guard) = mpsc::channel::<()>();
    for _ in 0..GUARD.as_millis() / 5 {
        if is_so() {
            return;
        }
        // Nobody sends: this is a pause between two looks.
        let _ = guard.recv_timeout(Duration::from_millis(5));
    }
    drop(sender);
    panic!("never so: {what}");
}

pub(crate) fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

/// A trace of one-block requests, one for each id, `gap` milliseconds apart.
pub(crate) fn trace(ids: impl IntoIterator<Item = u64>, gap: u64) -> tempfile::NamedTempFile {
    let lines: Vec<String> = (0..)
        .zip(ids)
        .map(|(at, id)| {
            let time = at * gap;
            format!(r#"{{"timestamp": {time}, "input_length": 512, "output_length": 1, "hash_ids": [{id}]}}"#)
        })
        .collect();
    file(&(lines.join("\n") + "\n"))
}
