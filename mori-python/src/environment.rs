//! Environment variables that deployments already set, laid over the configuration when a backend is created. A value that
//! does not fit is warned of, and the configured one stays.

use std::str::FromStr;

use crate::config::RdmaBackendConfig;

/// Switches that hosts without an RDMA device may turn on.
pub(crate) fn tcp_fallback() -> bool {
    let mut switch = false;
    flag("MORI_IO_TCP_FALLBACK", &mut switch);
    switch
}

/// The configuration with what the environment says.
pub(crate) fn overlay(config: &RdmaBackendConfig) -> RdmaBackendConfig {
    let mut config = config.clone();
    number("MORI_IO_QP_PER_TRANSFER", &mut config.qp_per_transfer, "at least 1", |value| *value >= 1);
    number("MORI_IO_POST_BATCH_SIZE", &mut config.post_batch_size, "-1 or at least 1", |value| {
        *value == -1 || *value >= 1
    });
    number("MORI_IO_NUM_WORKER_THREADS", &mut config.num_worker_threads, "-1 or at least 1", |value| {
        *value == -1 || *value >= 1
    });
    poll_mode(&mut config.poll_mode);
    flag("MORI_IO_ENABLE_NOTIFICATION", &mut config.enable_notification);
    flag("MORI_IO_ENABLE_CHUNKING", &mut config.enable_transfer_chunking);
    number("MORI_IO_CHUNK_BYTES", &mut config.chunk_bytes, "at least 1", |value| *value >= 1);
    number("MORI_IO_MAX_CHUNKS", &mut config.max_chunks_per_transfer, "at least 1", |value| *value >= 1);
    number("MORI_IO_NUM_NICS_PER_TRANSFER", &mut config.num_nics_per_transfer, "at least 1", |value| {
        *value >= 1
    });
    number("MORI_IO_QP_MAX_SEND_WR", &mut config.max_send_wr, "at least 1", |value| *value >= 1);
    number("MORI_IO_QP_MAX_CQE", &mut config.max_cqe_num, "at least 1", |value| *value >= 1);
    number("MORI_IO_QP_MAX_SGE", &mut config.max_msg_sge, "at least 1", |value| *value >= 1);
    number("MORI_IO_QP_MAX_MSG_SGE", &mut config.max_msg_sge, "at least 1", |value| *value >= 1);
    config
}

/// The variable's text, if it is set to something.
fn read(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().trim().to_owned();
    (!value.is_empty()).then_some(value)
}

fn number<T: FromStr>(name: &str, place: &mut T, must_be: &str, fits: impl Fn(&T) -> bool) {
    let Some(text) = read(name) else { return };
    match text.parse::<T>() {
        Ok(value) if fits(&value) => *place = value,
        _ => warn(name, &text, must_be),
    }
}

fn flag(name: &str, place: &mut bool) {
    let Some(text) = read(name) else { return };
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => *place = true,
        "0" | "false" | "off" | "no" => *place = false,
        _ => warn(name, &text, "0 or 1"),
    }
}

fn poll_mode(place: &mut u32) {
    let name = "MORI_IO_POLL_CQ_MODE";
    let Some(text) = read(name) else { return };
    match text.to_ascii_lowercase().as_str() {
        "0" | "polling" => *place = 0,
        "1" | "event" => *place = 1,
        _ => warn(name, &text, "0, 1, polling or event"),
    }
}

fn warn(name: &str, value: &str, must_be: &str) {
    tracing::warn!("{name}={value} is not understood: it must be {must_be}; the configured value stays");
}
