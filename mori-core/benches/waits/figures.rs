//! Names, samples, and how the figures are printed.

use std::hint::black_box;
use std::time::Instant;

/// Takes figures and prints each as it comes.
pub(crate) struct Figures {
    json: bool,
    quick: bool,
    filter: Option<String>,
}

impl Figures {
    /// Cargo passes `--bench`, which means nothing here.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = String>) -> Self {
        let mut figures = Self { json: false, quick: false, filter: None };
        for argument in arguments {
            match argument.as_str() {
                "--json" => figures.json = true,
                "--quick" => figures.quick = true,
                "--bench" => {}
                word if !word.starts_with('-') => figures.filter = Some(word.to_owned()),
                unknown => {
                    println!("unknown option {unknown}; there are --json, --quick and a word to filter by");
                    std::process::exit(2);
                }
            }
        }
        figures
    }

    /// Whether fewer samples will do.
    pub(crate) fn quick(&self) -> bool {
        self.quick
    }

    /// Whether figures whose names begin so are wanted.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// How many samples to take where `full` are good.
    pub(crate) fn samples(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(5).max(5) } else { full }
    }

    /// Prints a figure.
    pub(crate) fn print(&self, name: &str, value: f64, unit: &str) {
        if !self.wants(name) {
            return;
        }
        if self.json {
            println!("{{\"figure\":\"{name}\",\"value\":{value:.3},\"unit\":\"{unit}\"}}");
        } else {
            println!("{name:<58} {value:>14.2} {unit}");
        }
    }

    /// Prints the median of the samples.
    pub(crate) fn median(&self, name: &str, samples: &mut [f64], unit: &str) {
        self.print(name, median(samples), unit);
    }

    /// Times `body` in rounds of `times` and prints the median of nanoseconds for one.
    pub(crate) fn time<T>(&self, name: &str, times: u32, mut body: impl FnMut() -> T) {
        if !self.wants(name) {
            return;
        }
        let mut samples: Vec<f64> = (0..self.samples(101))
            .map(|_| {
                let start = Instant::now();
                for _ in 0..times {
                    black_box(body());
                }
                nanos(start) / f64::from(times)
            })
            .collect();
        self.median(name, &mut samples, "ns");
    }

    /// Times `body` over `count` prepared values at a time, and prints the median of nanoseconds for one. Preparing and
    /// dropping them is not part of it.
    pub(crate) fn time_over<V, T>(
        &self,
        name: &str,
        count: u32,
        mut prepare: impl FnMut() -> V,
        mut body: impl FnMut(&mut V) -> T,
    ) {
        if !self.wants(name) {
            return;
        }
        let mut samples: Vec<f64> = (0..self.samples(101))
            .map(|_| {
                let mut values: Vec<V> = (0..count).map(|_| prepare()).collect();
                let start = Instant::now();
                for value in &mut values {
                    black_box(body(value));
                }
                nanos(start) / f64::from(count)
            })
            .collect();
        self.median(name, &mut samples, "ns");
    }
}

/// Nanoseconds since then.
pub(crate) fn nanos(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9
}

/// The middle one; sorts the samples.
pub(crate) fn median(samples: &mut [f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The sample below which `share` of them lie; sorts the samples.
pub(crate) fn quantile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let at = ((samples.len() - 1) as f64 * share).round() as usize;
    samples.get(at).copied().unwrap_or(f64::NAN)
}
