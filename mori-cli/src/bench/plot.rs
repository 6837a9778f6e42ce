//! `--plot`: throughput and latency over the size of a piece, as SVG.
//!
//! The picture is drawn for a light background. A style sheet in it gives each of its colours another one where the reader's
//! programs prefer dark, so that one file reads well in both.

use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::plan::{Layout, Op};
use super::report::{Report, RowReport};
use super::table::short;

const WIDTH: u32 = 1200;
const TITLE: u32 = 64;
const PANEL: u32 = 440;
const LEGEND_ROW: u32 = 26;
const LEGEND_COLUMN: u32 = 280;
const MARGIN: u32 = 24;
const FONT: &str = "sans-serif";

/// A colour on a light background, and the one that stands for it on a dark one.
#[derive(Debug, Clone, Copy)]
struct Ink {
    light: RGBColor,
    dark: RGBColor,
}

const fn ink(light: (u8, u8, u8), dark: (u8, u8, u8)) -> Ink {
    Ink { light: RGBColor(light.0, light.1, light.2), dark: RGBColor(dark.0, dark.1, dark.2) }
}

const PAPER: Ink = ink((255, 255, 255), (22, 24, 29));
const TEXT: Ink = ink((28, 30, 36), (228, 230, 235));
const SOFT: Ink = ink((92, 97, 108), (160, 166, 178));
const AXIS: Ink = ink((140, 145, 155), (110, 116, 128));
const GRID: Ink = ink((226, 228, 232), (50, 54, 62));
const RAW: Ink = ink((120, 120, 120), (150, 150, 150));
/// One for each batch size, in an order in which neighbours are told apart without seeing red or green.
const LINES: [Ink; 8] = [
    ink((0, 95, 170), (86, 170, 240)),
    ink((200, 80, 0), (245, 150, 70)),
    ink((0, 125, 95), (70, 200, 155)),
    ink((170, 60, 125), (235, 135, 195)),
    ink((130, 100, 0), (220, 190, 70)),
    ink((95, 75, 190), (165, 150, 250)),
    ink((0, 120, 140), (80, 200, 220)),
    ink((150, 50, 50), (240, 125, 125)),
];

/// Sizes, each with a value.
type Points = Vec<(f64, f64)>;

/// One line of both panels.
#[derive(Debug)]
struct Line {
    name: String,
    ink: Ink,
    dashed: bool,
    /// Whether its marks are rings, as those of contiguous pieces beside scattered ones.
    rings: bool,
    /// Size and throughput.
    rates: Points,
    /// Size and median time.
    times: Points,
}

impl Line {
    /// The discs of a mark, the lower one first.
    fn marks(&self) -> impl Iterator<Item = (i32, RGBColor)> {
        let discs =
            if self.rings { vec![(4, self.ink.light), (2, PAPER.light)] } else { vec![(3, self.ink.light)] };
        discs.into_iter()
    }
}

/// Draws a result.
///
/// # Errors
///
/// In words, when there is nothing to draw or the drawing fails.
pub fn svg(report: &Report) -> Result<String, String> {
    let lines = lines(report);
    if lines.is_empty() {
        return Err("there is no row to draw".to_owned());
    }
    let columns = ((WIDTH - 2 * MARGIN) / LEGEND_COLUMN) as usize;
    let legend = lines.len().div_ceil(columns) as u32 * LEGEND_ROW + MARGIN;
    let height = TITLE + PANEL + legend;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&root, report, &lines, columns).map_err(|error| format!("cannot draw: {error}"))?;
        root.present().map_err(|error| format!("cannot draw: {error}"))?;
    }
    Ok(with_style(&text))
}

/// The lines: one for each batch size, direction and layout, and what raw sockets reach at best.
fn lines(report: &Report) -> Vec<Line> {
    let mut batches: Vec<u64> = report.rows.iter().map(|row| row.row.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    let layouts: Vec<Layout> = {
        let both = [Layout::Scattered, Layout::Contiguous];
        both.into_iter().filter(|layout| report.rows.iter().any(|row| row.row.layout == *layout)).collect()
    };
    let mut lines = Vec::new();
    for op in [Op::Read, Op::Write] {
        for (index, (layout, batch)) in
            layouts.iter().flat_map(|layout| batches.iter().map(move |batch| (layout, batch))).enumerate()
        {
            let mut rows: Vec<&RowReport> = report
                .rows
                .iter()
                .filter(|row| row.row.op == op && row.row.batch == *batch && row.row.layout == *layout)
                .collect();
            rows.sort_unstable_by_key(|row| row.row.size);
            let name = match (layouts.len() > 1, *batch) {
                (true, batch) if batch > 1 => format!("{op}, {batch} pieces, {layout}"),
                (_, 1) => format!("{op}, 1 piece"),
                (_, batch) => format!("{op}, {batch} pieces"),
            };
            lines.push(Line {
                name,
                ink: LINES[index % batches.len() % LINES.len()],
                dashed: op == Op::Write,
                rings: Some(layout) != layouts.first(),
                rates: rows.iter().map(|row| (row.row.size as f64, row.gb_per_s.avg)).collect(),
                times: rows.iter().map(|row| (row.row.size as f64, row.latency_us.p50)).collect(),
            });
        }
        lines.push(raw_line(report, op));
    }
    lines.retain(|line| !line.rates.is_empty() || !line.times.is_empty());
    for points in lines.iter_mut().flat_map(|line| [&mut line.rates, &mut line.times]) {
        points.retain(|(size, value)| *size > 0.0 && value.is_finite() && *value > 0.0);
    }
    lines
}

/// What raw sockets reach for each size: the highest throughput of its rows, and the median of its round trips.
fn raw_line(report: &Report, op: Op) -> Line {
    let (mut rates, mut times) = (Points::new(), Points::new());
    for row in report.rows.iter().filter(|row| row.row.op == op) {
        let Some(raw) = &row.raw else { continue };
        let size = row.row.size as f64;
        match rates.iter_mut().find(|(known, _)| *known == size) {
            Some((_, rate)) => *rate = rate.max(raw.gb_per_s.avg),
            None => rates.push((size, raw.gb_per_s.avg)),
        }
        times.extend(raw.latency_us.map(|latency| (size, latency.p50)));
    }
    for points in [&mut rates, &mut times] {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Line {
        name: format!("{op}, raw {}", report.setup.baseline.as_deref().unwrap_or("limit")),
        ink: RAW,
        dashed: op == Op::Write,
        rings: false,
        rates,
        times,
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(root: &Area<'_>, report: &Report, lines: &[Line], columns: usize) -> Drawn {
    root.fill(&PAPER.light).map_err(words)?;
    let setup = &report.setup;
    let title = (FONT, 24).into_font().style(FontStyle::Bold).color(&TEXT.light);
    root.draw(&Text::new("Throughput and latency over the size of a piece", (MARGIN as i32, 16), title))
        .map_err(words)?;
    let part = match setup.iterations {
        Some(count) => format!("{count} transfers"),
        None => format!("{} s", short(setup.seconds)),
    };
    let subtitle = format!(
        "{}, {} memory, connections: {}, threads: {}, in flight: {}, repetitions: {} of {part}",
        setup.transport,
        setup.memory,
        setup.connections,
        setup.threads,
        u32::from(setup.depth) * u32::from(setup.workers),
        setup.repeat,
    );
    let soft = (FONT, 16).into_font().color(&SOFT.light);
    root.draw(&Text::new(subtitle, (MARGIN as i32, 44), soft)).map_err(words)?;
    let (_, below) = root.split_vertically(TITLE);
    let (panels, legend) = below.split_vertically(PANEL);
    let (left, right) = panels.split_horizontally(WIDTH / 2);
    panel(&left, "Throughput, average", rate_label, lines.iter().map(|line| (line, &line.rates)))?;
    panel(&right, "Time of a transfer, median", time_label, lines.iter().map(|line| (line, &line.times)))?;
    draw_legend(&legend, lines, columns)
}

fn panel<'l>(
    area: &Area<'_>,
    title: &str,
    value_label: fn(f64) -> String,
    lines: impl Iterator<Item = (&'l Line, &'l Points)> + Clone,
) -> Drawn {
    let points = || lines.clone().flat_map(|(_, points)| points.iter().copied());
    let (Some((x, xs)), Some((y, ys))) =
        (axis(points().map(|point| point.0), 2), axis(points().map(|point| point.1), 10))
    else {
        return Ok(());
    };
    let heading = (FONT, 18).into_font().color(&TEXT.light);
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN as i32)
        .caption(title, heading)
        .x_label_area_size(56)
        .y_label_area_size(76)
        .build_cartesian_2d(
            (x.start..x.end).log_scale().with_key_points(xs),
            (y.start..y.end).log_scale().with_key_points(ys),
        )
        .map_err(words)?;
    let label = (FONT, 15).into_font().color(&SOFT.light);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.light)
        .axis_style(AXIS.light)
        .label_style(label.clone())
        .axis_desc_style(label)
        .x_desc("size of a piece")
        .x_label_formatter(&|size| size_label(*size))
        .y_label_formatter(&|value| value_label(*value))
        .draw()
        .map_err(words)?;
    for (line, points) in lines {
        let style = line.ink.light.stroke_width(2);
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(points.clone(), 7, 4, style)).map_err(words)?;
        } else {
            chart.draw_series(LineSeries::new(points.clone(), style)).map_err(words)?;
        }
        for (radius, colour) in line.marks() {
            let marks = points.iter().map(|point| Circle::new(*point, radius, colour.filled()));
            chart.draw_series(marks).map_err(words)?;
        }
    }
    Ok(())
}

fn draw_legend(area: &Area<'_>, lines: &[Line], columns: usize) -> Drawn {
    let anchor = Pos::new(HPos::Left, VPos::Center);
    for (index, line) in lines.iter().enumerate() {
        let x = (MARGIN + (index % columns) as u32 * LEGEND_COLUMN) as i32;
        let y = ((index / columns) as u32 * LEGEND_ROW + LEGEND_ROW / 2) as i32;
        let style = line.ink.light.stroke_width(2);
        let parts: &[(i32, i32)] = if line.dashed { &[(0, 10), (15, 25), (30, 40)] } else { &[(0, 40)] };
        for (from, to) in parts {
            area.draw(&PathElement::new(vec![(x + from, y), (x + to, y)], style)).map_err(words)?;
        }
        for (radius, colour) in line.marks() {
            area.draw(&Circle::new((x + 20, y), radius, colour.filled())).map_err(words)?;
        }
        let text = (FONT, 16).into_font().color(&TEXT.light).pos(anchor);
        area.draw(&Text::new(line.name.clone(), (x + 50, y), text)).map_err(words)?;
    }
    Ok(())
}

/// An error of the drawing without its borrow of the picture.
fn words(error: impl std::fmt::Display) -> Box<dyn std::error::Error> {
    error.to_string().into()
}

/// A range that holds the values with some air, and where its labels stand: at powers of the base, at most nine of them.
fn axis(values: impl Iterator<Item = f64> + Clone, base: u32) -> Option<(std::ops::Range<f64>, Vec<f64>)> {
    let low = values.clone().reduce(f64::min)?;
    let high = values.reduce(f64::max)?;
    let base = f64::from(base);
    let (mut first, mut last) = (low.log(base), high.log(base));
    let air = ((last - first) * 0.04).max(0.02);
    let range = base.powf(first - air)..base.powf(last + air);
    // Over less than a step or two, finer labels say more.
    let fine: &[f64] = if base > 2.0 && last - first < 1.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    (first, last) = (first.floor(), last.ceil());
    let step = ((last - first + 1.0) / 9.0).ceil().max(1.0);
    let count = ((last - first) / step) as u32;
    let labels = (0..=count)
        .flat_map(|index| fine.iter().map(move |part| part * base.powf(first + f64::from(index) * step)))
        .filter(|label| range.contains(label))
        .collect();
    Some((range, labels))
}

fn size_label(size: f64) -> String {
    let (mut size, mut units) = (size, ["B", "KiB", "MiB", "GiB"].into_iter());
    let mut unit = units.next();
    while size >= 1024.0 {
        let Some(next) = units.next() else { break };
        (size, unit) = (size / 1024.0, Some(next));
    }
    format!("{} {}", size.round(), unit.unwrap_or_default())
}

/// A throughput in 10^9 bytes for each second.
fn rate_label(value: f64) -> String {
    scaled(value * 1e9, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// A time in microseconds.
fn time_label(value: f64) -> String {
    scaled(value * 1e3, &["ns", "\u{b5}s", "ms", "s"])
}

/// A value in the unit that reads best; each is 1000 of the one before it.
fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next();
    while value >= 999.5 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1000.0, Some(next));
    }
    format!("{} {}", value.round(), unit.unwrap_or(&""))
}

/// Puts the style sheet with the dark colours behind the opening tag, and makes the picture scale with its page.
fn with_style(svg: &str) -> String {
    let hex = |colour: RGBColor| format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
    let inks = [PAPER, TEXT, SOFT, AXIS, GRID, RAW].into_iter().chain(LINES);
    let rules: String = inks
        .map(|ink| {
            let (light, dark) = (hex(ink.light), hex(ink.dark));
            format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}\n")
        })
        .collect();
    let style = format!(
        "<style>\ntext{{font-family:system-ui,\"DejaVu Sans\",sans-serif}}\n@media (prefers-color-scheme: dark){{\n{rules}}}\n</style>\n"
    );
    match svg.split_once(">\n") {
        Some((tag, rest)) => format!("{tag}>\n{style}{rest}"),
        None => svg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::report;

    #[test]
    fn the_picture_names_everything() {
        let text = svg(&report()).expect("drawn");
        for name in [
            "Throughput, average",
            "Time of a transfer, median",
            "size of a piece",
            "read, 1 piece",
            "write, 1024 pieces",
            "read, raw sockets",
            "8 B",
            "2 MiB",
            "prefers-color-scheme: dark",
        ] {
            assert!(text.contains(name), "no {name}");
        }
        assert!(!text.contains("write, raw sockets"), "there is no such row");
        assert!(text.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn every_colour_has_one_for_the_dark() {
        let text = svg(&report()).expect("drawn");
        let (style, drawing) = text.split_once("</style>").expect("a style sheet");
        for attribute in ["fill=\"#", "stroke=\"#"] {
            for part in drawing.split(attribute).skip(1) {
                let colour = part.get(..6).expect("six digits");
                assert!(style.contains(&format!("[{attribute}{colour}\"]")), "{attribute}{colour}");
            }
        }
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let text = svg(&report()).expect("drawn");
        for (name, limit) in
            [("x", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("cx", WIDTH), ("y", 800), ("cy", 800)]
        {
            for part in text.split(&format!(" {name}=\"")).skip(1) {
                let value: f64 = part.split('"').next().expect("a value").parse().expect("a number");
                assert!((0.0..=f64::from(limit)).contains(&value), "{name}={value}");
            }
        }
    }

    #[test]
    fn axes_hold_their_values_and_have_few_labels() {
        for (values, base) in
            [(vec![8.0, 67_108_864.0], 2), (vec![0.0004, 5.0], 10), (vec![1.1, 1.2], 10), (vec![64.0], 2)]
        {
            let (range, labels) = axis(values.iter().copied(), base).expect("some");
            assert!(values.iter().all(|value| range.contains(value)), "{range:?}");
            assert!(labels.len() <= 9 && labels.iter().all(|label| range.contains(label)), "{labels:?}");
        }
        assert!(axis(std::iter::empty(), 2).is_none());
        assert_eq!([8.0, 4096.0, 67_108_864.0].map(size_label), ["8 B", "4 KiB", "64 MiB"]);
        assert_eq!([0.001, 0.5, 20.0].map(rate_label), ["1 MB/s", "500 MB/s", "20 GB/s"]);
        assert_eq!([0.5, 20.0, 1e6].map(time_label), ["500 ns", "20 \u{b5}s", "1 s"]);
    }

    #[test]
    fn nothing_to_draw_is_told() {
        let mut report = report();
        report.rows.clear();
        assert!(svg(&report).is_err());
    }
}
