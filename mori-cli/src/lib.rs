#![doc = include_str!("../README.md")]

pub mod cache;
pub mod exit;
pub mod fetch;
pub mod generate;
pub mod layout;
pub mod model;
pub mod pace;
pub mod pattern;
pub mod replay;
pub mod stop;
pub mod tally;
pub mod trace;
pub mod trace_stats;
