//! How late a bounded wait returns, and that it never returns early.

use std::time::{Duration, Instant};

use mori_core::{Status, StatusCode, wait_all};

use crate::fake::in_progress;
use crate::figures::{Figures, quantile};

pub(crate) fn bounded(figures: &mut Figures) {
    let batch: Vec<_> = (0..128).map(|_| in_progress()).collect();
    let statuses: Vec<Status> = batch.iter().map(|(_, status)| status.clone()).collect();
    for (name, micros) in [("0.2ms", 200), ("1ms", 1_000), ("5ms", 5_000), ("20ms", 20_000)] {
        let bound = Duration::from_micros(micros);
        let times = figures.samples(if micros > 1_000 { 51 } else { 201 });
        overshoot(figures, &format!("bounded/single/{name}"), bound, times, || statuses[0].wait(bound));
        overshoot(figures, &format!("bounded/batch_128/{name}"), bound, times, || {
            wait_all(&statuses, bound).code()
        });
    }
}

fn overshoot(
    figures: &Figures,
    name: &str,
    bound: Duration,
    times: usize,
    mut wait: impl FnMut() -> StatusCode,
) {
    if !figures.wants(name) {
        return;
    }
    let mut early = 0;
    let mut samples: Vec<f64> = (0..times)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(wait(), StatusCode::InProgress);
            let took = start.elapsed();
            early += usize::from(took < bound);
            (took.as_secs_f64() - bound.as_secs_f64()) * 1e6
        })
        .collect();
    figures.print(&format!("{name}/early"), early as f64, "returns");
    figures.print(&format!("{name}/overshoot"), quantile(&mut samples, 0.5), "us");
    figures.print(&format!("{name}/overshoot_p90"), quantile(&mut samples, 0.9), "us");
}
