//! What both processes have in common: the secret, the transport's configuration, and a pool of memory.

use std::path::Path;

use mori_engine::{Access, Engine, Memory, RdmaConfig, Secret as Shared, ShmConfig, TcpConfig};

use crate::args::LinkArgs;
use crate::control::Secret;
use crate::failure::Failure;
use crate::layout::Layout;
use crate::machine;

/// The longest secret.
const MAX_SECRET: u64 = 4096;
/// Memory is touched once in each of these many bytes before it is used.
const PAGE: u64 = 4096;

/// Reads a secret. A line end at its end does not belong to it.
///
/// # Errors
///
/// When the file cannot be read, or the secret is empty or longer than 4096 bytes.
pub fn read_secret(path: Option<&Path>) -> Result<Option<Secret>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let name = path.display();
    let unreadable =
        |error: std::io::Error| Failure::usage(format!("cannot read the secret {name}: {error}"));
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > MAX_SECRET {
        return Err(Failure::usage(format!("the secret {name} is longer than {MAX_SECRET} bytes")));
    }
    let mut bytes = std::fs::read(path).map_err(unreadable)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Err(Failure::usage(format!("the secret {name} is empty")));
    }
    Ok(Some(Secret::new(bytes)))
}

/// The transport's configuration, for one that listens on `bind`.
pub fn tcp_config(
    link: &LinkArgs,
    secret: Option<&Secret>,
    bind: String,
    advertise: Option<String>,
) -> TcpConfig {
    TcpConfig {
        bind,
        advertise,
        connections: usize::from(link.connections),
        io_threads: usize::from(link.threads),
        peer_timeout: link.peer_timeout,
        secret: secret.map(|secret| Shared::new(secret.bytes())),
        ..TcpConfig::default()
    }
}

/// The configuration of verbs, for one whose control connection listens on `bind`.
///
/// # Errors
///
/// When the names of the devices make no sense.
pub fn rdma_config(
    link: &LinkArgs,
    secret: Option<&Secret>,
    bind: String,
    advertise: Option<String>,
) -> Result<RdmaConfig, Failure> {
    let devices = match &link.device {
        Some(names) => names.parse().map_err(Failure::usage)?,
        None => RdmaConfig::default().devices,
    };
    Ok(RdmaConfig {
        bind,
        advertise,
        devices,
        qps_per_path: usize::from(link.connections),
        peer_timeout: link.peer_timeout,
        secret: secret.map(|secret| Shared::new(secret.bytes())),
        ..RdmaConfig::default()
    })
}

/// The configuration of copies between processes.
pub fn shm_config(link: &LinkArgs, secret: Option<&Secret>) -> ShmConfig {
    ShmConfig {
        threads: usize::from(link.threads),
        peer_timeout: link.peer_timeout,
        secret: secret.map(|secret| Shared::new(secret.bytes())),
        ..ShmConfig::default()
    }
}

/// Allocates a pool and touches all its memory, so that using it costs no first touch and the process does not grow later.
///
/// # Errors
///
/// When the machine has less memory than that.
pub fn allocate(engine: &Engine, layout: &Layout, access: Access) -> Result<Memory, Failure> {
    layout.check_fits(machine::available_memory().unwrap_or(u64::MAX)).map_err(Failure::usage)?;
    touched(engine, layout.total_bytes(), access)
}

/// As [`allocate`], for memory without a layout.
///
/// # Errors
///
/// As [`allocate`].
pub fn allocate_bytes(engine: &Engine, bytes: u64, access: Access) -> Result<Memory, Failure> {
    let available = machine::available_memory().unwrap_or(u64::MAX);
    if bytes > available {
        let message = format!("{bytes} bytes of memory are needed and only {available} are available");
        return Err(Failure::usage(message));
    }
    touched(engine, bytes, access)
}

fn touched(engine: &Engine, bytes: u64, access: Access) -> Result<Memory, Failure> {
    let length = usize::try_from(bytes).map_err(Failure::usage)?;
    let memory = engine.allocate(length, access).map_err(Failure::usage)?;
    for page in 0..bytes.div_ceil(PAGE) {
        memory.write_at(page * PAGE, &[0]).map_err(Failure::internal)?;
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::exit::Exit;
    use crate::model::{LLAMA_3_8B, Pieces};

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        file.write_all(bytes).expect("written");
        file
    }

    #[test]
    fn a_secret_loses_its_line_end_and_must_be_something() {
        let read = |bytes: &[u8]| read_secret(Some(file(bytes).path()));
        for bytes in [b"open sesame\n".as_slice(), b"open sesame"] {
            let secret = read(bytes).expect("read").expect("a secret");
            assert_eq!(secret.bytes(), b"open sesame");
        }
        assert!(read_secret(None).expect("none").is_none());
        for bytes in [b"".as_slice(), b"\n", &[7; 5000]] {
            assert_eq!(read(bytes).expect_err("refused").exit, Exit::Usage);
        }
        let error = read_secret(Some(Path::new("no/such/secret"))).expect_err("absent");
        assert!(error.message.starts_with("cannot read the secret no/such/secret: "), "{error}");
    }

    #[test]
    fn a_pool_beyond_the_machine_is_refused_before_it_is_allocated() {
        let engine = Engine::builder("t").build().expect("engine");
        let full = LLAMA_3_8B.shape(1, Pieces::Layer).expect("full");
        let layout = Layout::new(full, 1 << 20).expect("64 TiB can be addressed");
        let error = allocate(&engine, &layout, Access::LOCAL).expect_err("too much");
        assert_eq!(error.exit, Exit::Usage);
        assert!(error.message.contains("raise --scale"), "{error}");
    }
}
