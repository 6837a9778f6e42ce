//! The wait contract's rules as ordinary tests, through the public interface only.
//!
//! Each test names the rule it would catch being broken. Waiters run on threads of their own and are joined; time is a clock
//! moved by hand, whose count of sleeps tells when a waiter is asleep; polls and hooks are counted by a scripted backend.

#![cfg(not(any(mori_loom, mori_shuttle)))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cancel;
mod futures;
mod notifications;
mod published;
mod regions;
mod status;
mod support;
mod wait_all;
mod wait_many;
mod wait_one;
mod wait_polled;
