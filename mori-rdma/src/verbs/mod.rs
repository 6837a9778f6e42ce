//! RDMA verbs behind a safe interface: the only module of this crate with `unsafe` code, and the only one that names the
//! library.
