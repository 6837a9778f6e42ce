//! The engine over scripted backends: routes, registration, transfers, waits, lifetimes.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails its test")]

mod fake;

mod lifetimes;
mod peers;
mod registration;
mod routes;
mod stress;
mod transfers;
mod waits;
