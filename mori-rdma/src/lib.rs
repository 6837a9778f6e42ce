#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the one module that calls the foreign library")]
pub mod verbs;
