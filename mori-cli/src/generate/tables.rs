//! The measured tables: `(percent, value)` knots of distributions, and the statistics the generator is held to.

use crate::trace_stats::TraceStats;

/// The statistics of the recording (12,031 requests of one hour).
pub const RECORDED: TraceStats = TraceStats {
    requests: 12_031,
    requests_per_second: 3.401,
    arrival_dispersion: 1.10,
    input_mean: 12_035.0,
    input_quantiles: [964, 2_306, 6_909, 15_368, 27_367, 85_401],
    input_max: 126_195,
    output_mean: 342.6,
    output_quantiles: [24, 156, 350, 472, 597, 1_120],
    blocks_mean: 23.98,
    reuse_ratio: 0.3664,
    follow_up_share: 0.3872,
    used_once_share: 0.7585,
    hottest_block_share: 1.0,
};

/// Tokens of the first prompt of a conversation.
pub(super) const FIRST_PROMPT: &[(f64, f64)] = &[
    (0.0, 891.0),
    (1.0, 894.0),
    (5.0, 897.0),
    (10.0, 905.0),
    (15.0, 943.0),
    (20.0, 1_092.0),
    (25.0, 1_336.0),
    (30.0, 1_756.0),
    (35.0, 2_767.0),
    (40.0, 3_914.0),
    (45.0, 4_587.0),
    (50.0, 5_264.0),
    (55.0, 6_191.0),
    (60.0, 7_417.0),
    (65.0, 8_828.0),
    (70.0, 10_775.0),
    (75.0, 13_056.0),
    (80.0, 15_871.0),
    (85.0, 19_453.0),
    (90.0, 25_561.0),
    (95.0, 38_538.0),
    (97.5, 58_648.0),
    (99.0, 89_869.0),
    (99.5, 111_800.0),
    (99.9, 121_471.0),
    (100.0, 126_195.0),
];

/// Tokens of an answer.
pub(super) const ANSWER: &[(f64, f64)] = &[
    (0.0, 1.0),
    (1.0, 3.0),
    (2.5, 3.0),
    (5.0, 10.0),
    (10.0, 24.0),
    (15.0, 46.0),
    (20.0, 100.0),
    (25.0, 156.0),
    (30.0, 213.0),
    (35.0, 256.0),
    (40.0, 291.0),
    (45.0, 322.0),
    (50.0, 350.0),
    (60.0, 399.0),
    (70.0, 447.0),
    (80.0, 504.0),
    (85.0, 543.0),
    (90.0, 597.0),
    (95.0, 698.0),
    (97.5, 836.0),
    (99.0, 1_120.0),
    (99.5, 1_570.0),
    (99.9, 2_000.0),
    (100.0, 2_000.0),
];

/// Milliseconds from a request to the one that continues it.
pub(super) const GAP_MS: &[(f64, f64)] = &[
    (0.0, 3_000.0),
    (1.0, 12_000.0),
    (2.5, 21_000.0),
    (5.0, 30_000.0),
    (10.0, 42_000.0),
    (15.0, 51_000.0),
    (25.0, 66_000.0),
    (35.0, 84_000.0),
    (50.0, 123_000.0),
    (60.0, 162_000.0),
    (70.0, 222_000.0),
    (75.0, 264_000.0),
    (80.0, 318_000.0),
    (85.0, 390_000.0),
    (90.0, 483_000.0),
    (95.0, 618_000.0),
    (97.5, 915_000.0),
    (99.0, 1_482_000.0),
    (99.5, 1_908_000.0),
    (100.0, 3_030_000.0),
];

/// Tokens by which a prompt grows beyond the last prompt and its answer.
pub(super) const GROWTH: &[(f64, f64)] = &[
    (0.0, -1_291.0),
    (1.0, -370.0),
    (2.5, -75.0),
    (5.0, -39.0),
    (10.0, -6.0),
    (15.0, 5.0),
    (30.0, 11.0),
    (40.0, 16.0),
    (50.0, 26.0),
    (60.0, 53.0),
    (65.0, 92.0),
    (70.0, 181.0),
    (75.0, 370.0),
    (80.0, 716.0),
    (85.0, 2_610.0),
    (90.0, 4_251.0),
    (95.0, 7_040.0),
    (97.5, 10_324.0),
    (99.0, 16_705.0),
    (99.5, 22_478.0),
    (99.9, 38_787.0),
    (100.0, 91_467.0),
];

/// Share of the follow-ups that keep only the start of the conversation.
pub(super) const REWRITE_SHARE: f64 = 0.132;

/// Share of the blocks that such a follow-up keeps.
pub(super) const REWRITE_KEPT: &[(f64, f64)] = &[
    (0.0, 0.015),
    (5.0, 0.045),
    (15.0, 0.077),
    (25.0, 0.10),
    (35.0, 0.133),
    (50.0, 0.182),
    (60.0, 0.24),
    (70.0, 0.30),
    (80.0, 0.403),
    (90.0, 0.516),
    (95.0, 0.635),
    (97.5, 0.807),
    (100.0, 0.923),
];

/// Tokens that such a follow-up puts in place of the rest.
pub(super) const REWRITE_ADDED: &[(f64, f64)] = &[
    (0.0, 10.0),
    (1.0, 495.0),
    (5.0, 3_447.0),
    (10.0, 4_762.0),
    (25.0, 7_451.0),
    (50.0, 10_193.0),
    (65.0, 13_079.0),
    (75.0, 15_406.0),
    (85.0, 17_765.0),
    (90.0, 20_960.0),
    (95.0, 26_825.0),
    (97.5, 30_624.0),
    (99.0, 39_271.0),
    (100.0, 94_968.0),
];

/// Chance that a first prompt below 1,024 tokens goes on.
pub(super) const ONE_SHOT_GOES_ON: f64 = 0.02;

/// Chance that a conversation goes on after its prompt number `depth`, from 0: it grows with the depth. The recorded
/// shares (0.37, 0.42, 0.51, 0.59, 0.59, 0.68, 0.77, …) miss what went on after the end of the recording; these make
/// up for it.
pub(super) fn goes_on(depth: usize) -> f64 {
    const CHANCE: [f64; 7] = [0.40, 0.46, 0.56, 0.65, 0.67, 0.76, 0.83];
    CHANCE.get(depth).copied().unwrap_or(0.87)
}

/// Factor on the chance to go on of a long prompt.
pub(super) const LONG_GOES_ON: f64 = 0.65;
