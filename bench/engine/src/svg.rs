//! Plots as SVG: grouped bars and lines, drawn with the fewest strokes that read well.

use std::fmt::Write;

const COLOURS: [&str; 6] = ["#d62728", "#7f7f7f", "#1f77b4", "#17becf", "#ff7f0e", "#2ca02c"];
const LEFT: f64 = 56.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 44.0;
const PLOT_HEIGHT: f64 = 240.0;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, words: &str) {
    let _ = write!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{}</text>",
        escape(words)
    );
}

fn rule(out: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) {
    let _ = write!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>");
}

fn page(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\">\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>{body}</svg>\n"
    )
}

/// A number short enough for a label.
pub fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 99.5 => format!("{number:.0}"),
        n if n >= 9.95 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// A step for about five grid lines up to `most`: 1, 2 or 5 times a power of ten.
fn grid_step(most: f64) -> f64 {
    let raw = most / 5.0;
    let power = 10_f64.powf(raw.log10().floor());
    power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| power * m >= raw).unwrap_or(10.0)
}

fn frame(out: &mut String, left: f64, width: f64, most: f64, title: &str, unit: &str) {
    text(out, left, 16.0, "start", 14, title);
    let step = grid_step(most);
    let mut at = 0.0;
    while at <= most * 1.0001 {
        let y = TOP + PLOT_HEIGHT * (1.0 - at / most);
        rule(out, left, y, left + width, y, "#ddd");
        text(out, left - 4.0, y + 4.0, "end", 11, &if at == 0.0 { "0".to_owned() } else { short(at) });
        at += step;
    }
    text(out, left - 4.0, TOP - 8.0, "end", 11, unit);
}

fn legend(out: &mut String, left: f64, names: &[&str]) {
    for (at, name) in names.iter().enumerate() {
        let x = left + at as f64 * 140.0;
        let _ = write!(
            out,
            "<rect x=\"{x:.1}\" y=\"24\" width=\"10\" height=\"10\" fill=\"{}\"/>",
            COLOURS[at % COLOURS.len()]
        );
        text(out, x + 14.0, 33.0, "start", 12, name);
    }
}

/// Bars side by side in named groups. Bars longer than `most` are cut and carry their number.
pub fn bars(title: &str, unit: &str, names: &[&str], groups: &[(String, Vec<Option<f64>>)], most: f64) -> String {
    let bar = 13.0;
    let group_width = bar * names.len() as f64 + 22.0;
    let width = (group_width * groups.len() as f64).max(140.0 * names.len() as f64);
    let mut out = String::new();
    frame(&mut out, LEFT, width, most, title, unit);
    legend(&mut out, LEFT, names);
    for (at, (label, values)) in groups.iter().enumerate() {
        let x = LEFT + at as f64 * group_width + 11.0;
        text(
            &mut out,
            x + (group_width - 22.0) / 2.0,
            TOP + PLOT_HEIGHT + 16.0 + (at % 2) as f64 * 14.0,
            "middle",
            11,
            label,
        );
        for (which, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let height = PLOT_HEIGHT * (value / most).min(1.0);
            let (left, top) = (x + which as f64 * bar, TOP + PLOT_HEIGHT - height);
            let colour = COLOURS[which % COLOURS.len()];
            let _ = write!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"><title>{} {}: {}</title></rect>",
                bar - 2.0,
                escape(names.get(which).copied().unwrap_or("")),
                escape(label),
                short(*value)
            );
            if *value > most {
                text(&mut out, left + bar / 2.0, TOP - 2.0, "middle", 9, &short(*value));
            }
        }
    }
    page(LEFT + width + 16.0, TOP + PLOT_HEIGHT + BOTTOM, &out)
}

/// One panel of lines.
pub struct Panel {
    pub title: String,
    pub unit: &'static str,
    pub x_unit: &'static str,
    /// Of each series, its points by x.
    pub series: Vec<Vec<(f64, f64)>>,
    /// Mark the points and name their x values: for few points that stand for themselves.
    pub marks: bool,
}

/// Panels in rows of three, one legend for all.
pub fn lines(names: &[&str], panels: &[Panel]) -> String {
    const WIDTH: f64 = 300.0;
    let (cell_width, cell_height) = (LEFT + WIDTH + 24.0, TOP + PLOT_HEIGHT + BOTTOM);
    let columns = panels.len().clamp(1, 3);
    let mut out = String::new();
    let mut heading = String::new();
    legend(&mut heading, LEFT, names);
    for (at, panel) in panels.iter().enumerate() {
        let (x, y) = ((at % columns) as f64 * cell_width, (at / columns) as f64 * cell_height + 34.0);
        let _ = write!(out, "<g transform=\"translate({x:.0},{y:.0})\">{}</g>", draw(panel, WIDTH));
    }
    let rows = panels.len().div_ceil(columns).max(1);
    let width = (cell_width * columns as f64).max(LEFT + 140.0 * names.len() as f64);
    page(width, cell_height * rows as f64 + 40.0, &(heading + &out))
}

fn draw(panel: &Panel, width: f64) -> String {
    let mut out = String::new();
    let points = || panel.series.iter().flatten();
    let most = points().map(|point| point.1).fold(0.0, f64::max) * 1.05;
    let right = points().map(|point| point.0).fold(0.0, f64::max);
    if most <= 0.0 || right <= 0.0 {
        return out;
    }
    frame(&mut out, LEFT, width, most, &panel.title, panel.unit);
    let place = |(x, y): (f64, f64)| (LEFT + width * x / right, TOP + PLOT_HEIGHT * (1.0 - y / most));
    for (which, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[which % COLOURS.len()];
        let path: Vec<String> =
            series.iter().map(|point| place(*point)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
            path.join(" ")
        );
        for point in series.iter().filter(|_| panel.marks) {
            let (x, y) = place(*point);
            let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
        }
    }
    let mut named: Vec<f64> = points().map(|point| point.0).collect();
    named.sort_by(f64::total_cmp);
    named.dedup();
    if !panel.marks {
        named = vec![0.0, right / 2.0, right];
    }
    for x in named {
        let label = if panel.marks { format!("{x:.0}") } else { short(x) };
        text(&mut out, place((x, 0.0)).0, TOP + PLOT_HEIGHT + 16.0, "middle", 11, &label);
    }
    text(&mut out, LEFT + width, TOP + PLOT_HEIGHT + 32.0, "end", 11, panel.x_unit);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_round() {
        assert_eq!(grid_step(5.0), 1.0);
        assert_eq!(grid_step(470.0), 100.0);
        assert!((grid_step(0.07) - 0.02).abs() < 1e-9);
    }

    #[test]
    fn plots_are_whole() {
        let groups = vec![("a<b".to_owned(), vec![Some(1.0), None, Some(9.0)])];
        let plot = bars("title", "x", &["p", "q", "r"], &groups, 3.0);
        assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n") && plot.contains("a&lt;b"));
        let panel = Panel {
            title: "t".to_owned(),
            unit: "u",
            x_unit: "s",
            series: vec![vec![(1.0, 2.0), (2.0, 3.0)], vec![]],
            marks: true,
        };
        assert_eq!(lines(&["p", "q"], &[panel]).matches("<circle").count(), 2);
    }
}
