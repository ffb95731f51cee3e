//! A plot of the percentiles: how long the slowest half, tenth, hundredth of the jobs took at
//! least. Written as it is, for want of a plotting library that would be smaller than this page.

use std::fmt::Write as _;

use crate::latency::{Latencies, micros};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 70.0;

/// The colours of heft's variants and of the relay.
pub(super) const VARIANTS: [&str; 8] =
    ["#c2410c", "#0d9488", "#a21caf", "#4b5563", "#b45309", "#15803d", "#be123c", "#0369a1"];
pub(super) const RELAY: &str = "#1d4ed8";

/// The names above the plot: how far apart they stand at least, a letter's width, and what stands
/// beside them.
const NAME_WIDTH_MIN: f64 = 90.0;
const LETTER_WIDTH: f64 = 7.0;
const NAME_SPACE: f64 = 42.0;

/// Points for each halving of the distance to 100 %.
const TICKS_PER_HALF: u32 = 8;

/// Beyond this span between the least and the largest time, a linear axis would show a flat line
/// and a spike.
const LINEAR_SPAN_MAX: f64 = 12.0;

/// Where an axis has ticks within a decade.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

const QUANTILES: [(f64, &str); 7] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
];

pub(super) struct Line<'a> {
    pub(super) name: String,
    pub(super) latencies: &'a Latencies,
    pub(super) colour: &'static str,
}

pub(super) fn render(title: &str, lines: &[Line<'_>]) -> String {
    let lines: Vec<(&Line<'_>, Vec<(f64, f64)>)> =
        lines.iter().map(|line| (line, points(line.latencies))).collect();
    let all = || lines.iter().flat_map(|(_, points)| points);
    let across_max = all().map(|(across, _)| *across).fold(1.0, f64::max);
    let axis = Axis::of(all().map(|(_, time)| *time));
    let x = |across: f64| LEFT + across / across_max * (WIDTH - LEFT - RIGHT);
    let y = |time: f64| HEIGHT - BOTTOM - axis.share(time) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"16\">{}</text>\n",
        escaped(title)
    );
    for (time, label) in axis.ticks() {
        let at = y(time);
        line(&mut svg, (LEFT, at), (WIDTH - RIGHT, at), "#ddd");
        text(&mut svg, (LEFT - 8.0, at + 4.0), "end", &label);
    }
    for (quantile, label) in
        QUANTILES.iter().filter(|(quantile, _)| across(*quantile) <= across_max)
    {
        let at = x(across(*quantile));
        line(&mut svg, (at, TOP), (at, HEIGHT - BOTTOM), "#ddd");
        text(&mut svg, (at, HEIGHT - BOTTOM + 20.0), "middle", label);
    }
    line(&mut svg, (LEFT, TOP), (LEFT, HEIGHT - BOTTOM), "#222");
    line(&mut svg, (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM), "#222");
    text(&mut svg, ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 18.0), "middle", "percentile of jobs");
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let scale = if axis.log { "time of a job (log scale)" } else { "time of a job" };
    push(
        &mut svg,
        format_args!(
            "<text transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">{scale}</text>\n"
        ),
    );
    let longest = lines.iter().map(|(line, _)| line.name.len()).max().unwrap_or_default();
    let apart = (NAME_SPACE + LETTER_WIDTH * longest as f64).max(NAME_WIDTH_MIN);
    for (index, (Line { name, colour, .. }, points)) in lines.iter().enumerate() {
        let path: Vec<String> = points
            .iter()
            .map(|(across, time)| format!("{:.1},{:.1}", x(*across), y(*time)))
            .collect();
        push(
            &mut svg,
            format_args!(
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n",
                path.join(" ")
            ),
        );
        let left = LEFT + 14.0 + apart * index as f64;
        push(
            &mut svg,
            format_args!(
                "<rect x=\"{left}\" y=\"40\" width=\"22\" height=\"4\" fill=\"{colour}\"/>\n"
            ),
        );
        text(&mut svg, (left + 28.0, 46.0), "start", name);
    }
    svg + "</svg>\n"
}

/// Where percentiles and times of a distribution lie: the distance across in powers of ten of
/// 1/(1-quantile), the time in microseconds. The last point is the largest time.
fn points(latencies: &Latencies) -> Vec<(f64, f64)> {
    let histogram = latencies.histogram();
    let steps = histogram.iter_quantiles(TICKS_PER_HALF);
    let jobs = histogram.len() as f64;
    // 100 % is infinitely far: the largest time stands where one job of all is.
    let last = 1.0 - 1.0 / (jobs + 1.0);
    steps
        .map(|step| {
            (across(step.quantile_iterated_to().min(last)), micros(step.value_iterated_to()))
        })
        .collect()
}

fn across(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

/// The axis of times, in microseconds.
struct Axis {
    min: f64,
    max: f64,
    log: bool,
}

impl Axis {
    fn of(times: impl Iterator<Item = f64>) -> Axis {
        let (least, most) =
            times.fold((f64::MAX, 1.0), |(least, most), time| (time.min(least), time.max(most)));
        let least = least.clamp(0.001, most);
        match most / least > LINEAR_SPAN_MAX {
            true => Axis { min: step_below(least), max: most * 1.2, log: true },
            false => Axis { min: 0.0, max: most * 1.08, log: false },
        }
    }

    fn share(&self, time: f64) -> f64 {
        match self.log {
            true => (time.max(self.min) / self.min).log10() / (self.max / self.min).log10(),
            false => time / self.max,
        }
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let times: Vec<f64> = match self.log {
            true => {
                let decades =
                    std::iter::successors(Some(tenth(self.min)), |decade| Some(decade * 10.0));
                let decades = decades.take_while(|decade| *decade <= self.max);
                let steps = decades.flat_map(|decade| STEPS.map(|step| decade * step));
                steps.filter(|time| *time >= self.min * 0.999).collect()
            }
            false => {
                let rough = self.max / 6.0;
                let decade = tenth(rough);
                let step = [1.0, 2.0, 5.0, 10.0]
                    .map(|step| step * decade)
                    .into_iter()
                    .find(|step| *step >= rough);
                let step = step.unwrap_or(rough);
                std::iter::successors(Some(0.0), |time| Some(time + step)).take(8).collect()
            }
        };
        times.into_iter().filter(|time| *time <= self.max).map(|time| (time, label(time))).collect()
    }
}

/// One, two or five times a power of ten, at or below a value.
fn step_below(value: f64) -> f64 {
    let decade = tenth(value);
    STEPS.map(|step| step * decade).into_iter().rfind(|step| *step <= value).unwrap_or(decade)
}

/// The power of ten at or below a value.
fn tenth(value: f64) -> f64 {
    10f64.powf(value.log10().floor())
}

fn label(micros: f64) -> String {
    match micros {
        0.0 => "0".to_owned(),
        us if us < 1e3 => format!("{} us", short(us)),
        us if us < 1e6 => format!("{} ms", short(us / 1e3)),
        us => format!("{} s", short(us / 1e6)),
    }
}

/// Without digits that say nothing.
fn short(value: f64) -> String {
    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    push(
        svg,
        format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>\n"
        ),
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    push(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n",
            escaped(words)
        ),
    );
}

fn push(svg: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing to a text never fails.
    svg.write_fmt(piece).unwrap_or_default();
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn spread_over(from_us: u64, to_us: u64) -> Latencies {
        let mut latencies = Latencies::new().unwrap();
        (0..1000).for_each(|n| {
            latencies.record(Duration::from_micros(from_us + (to_us - from_us) * n / 1000))
        });
        latencies
    }

    fn line<'a>(name: &str, latencies: &'a Latencies) -> Line<'a> {
        Line { name: name.to_owned(), latencies, colour: RELAY }
    }

    #[test]
    fn both_lines_are_drawn_inside_the_picture_and_named() {
        let (heft, relay) = (spread_over(300, 2_000), spread_over(150, 900));
        let svg = render("a < b & c", &[line("heft", &heft), line("relay", &relay)]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("</svg>").count()), (2, 1));
        for part in [
            ">heft<",
            ">relay<",
            ">99.9 %<",
            "percentile of jobs",
            "time of a job",
            "a &lt; b &amp; c",
        ] {
            assert!(svg.contains(part), "{part} is missing: {svg}");
        }
        for points in svg.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(
                    (LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y),
                    "{point}"
                );
            }
        }
    }

    #[test]
    fn every_variant_has_a_colour_of_its_own_and_room_for_its_name() {
        let times = spread_over(300, 2_000);
        let names =
            ["heft-portable-end", "heft-uring-end", "heft-portable-hop", "heft-uring-hop", "relay"];
        let colours = VARIANTS.into_iter().chain([RELAY]);
        let lines: Vec<Line<'_>> = names
            .iter()
            .zip(colours)
            .map(|(name, colour)| Line { colour, ..line(name, &times) })
            .collect();
        let svg = render("t", &lines);
        assert_eq!(svg.matches("<polyline").count(), 5);
        let mut room = LEFT;
        for Line { name, colour, .. } in &lines {
            assert_eq!(
                svg.matches(&format!("stroke=\"{colour}\"")).count(),
                1,
                "{colour} is shared"
            );
            let (before, _) = svg.split_once(&format!(">{name}<")).unwrap();
            let x = before.rsplit_once("<text x=\"").unwrap().1.split('"').next().unwrap();
            let x: f64 = x.parse().unwrap();
            assert!(x > room && x + LETTER_WIDTH * name.len() as f64 <= WIDTH, "{name} at {x}");
            room = x + LETTER_WIDTH * name.len() as f64;
        }
    }

    #[test]
    fn times_far_apart_get_a_log_scale() {
        let wide = spread_over(100, 900_000);
        assert!(render("t", &[line("heft", &wide)]).contains("log scale"));
        let narrow = spread_over(100_000, 900_000);
        assert!(!render("t", &[line("heft", &narrow)]).contains("log scale"));
    }

    #[test]
    fn nothing_measured_still_makes_a_picture() {
        assert!(render("t", &[line("heft", &Latencies::new().unwrap())]).ends_with("</svg>\n"));
        assert!(render("t", &[]).contains("<svg"));
    }

    #[test]
    fn labels_have_a_unit_and_no_needless_digits() {
        assert_eq!([0.0, 20.0, 1_500.0, 2e6].map(label), ["0", "20 us", "1.5 ms", "2 s"]);
    }
}
