//! Drawings as SVG: bars of one number each, and lines over a growing number. Written by hand, since both are a few
//! rectangles, lines and words.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const COLOURS: [&str; 5] = ["#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#718096"];

fn begin(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"15\">{}</text>\n",
        plain(title)
    )
}

fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Bars, one below the other.
#[must_use]
pub fn bars(title: &str, unit: &str, values: &[(String, f64)]) -> String {
    let (left, step, top) = (310.0, 26.0, 40.0);
    let most = values.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = begin(top + step * values.len() as f64 + 12.0, title);
    for (row, (name, value)) in values.iter().enumerate() {
        let y = top + step * row as f64;
        let length = (value.max(0.0) / most * (WIDTH - left - 90.0)).max(1.0);
        let colour = if name.contains("quilt") { COLOURS[0] } else { COLOURS[4] };
        // Writing to a String cannot fail.
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{text}\" text-anchor=\"end\">{name}</text>\n\
             <rect x=\"{left}\" y=\"{y}\" width=\"{length:.1}\" height=\"18\" fill=\"{colour}\"/>\n\
             <text x=\"{end:.1}\" y=\"{text}\">{value:.2} {unit}</text>\n",
            x = left - 8.0,
            text = y + 13.0,
            name = plain(name),
            end = left + length + 6.0,
        );
    }
    svg + "</svg>\n"
}

/// A line of a plot: its name, and its points.
pub type Line = (String, Vec<(f64, f64)>);

/// Lines from nothing, with the numbers at their ends.
#[must_use]
pub fn lines(title: &str, across: &str, up: &str, lines: &[Line]) -> String {
    let (left, right, top, bottom, height) = (70.0, 150.0, 50.0, 50.0, 340.0);
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (far, high) = points().fold((f64::MIN_POSITIVE, f64::MIN_POSITIVE), |(x, y), p| (x.max(p.0), y.max(p.1)));
    let x = |at: f64| left + at / far * (WIDTH - left - right);
    let y = |at: f64| height - bottom - at / high * (height - top - bottom);
    let mut svg = begin(height, title);
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        let (line, column) = (y(high * share), x(far * share));
        let _ = write!(
            svg,
            "<line x1=\"{left}\" y1=\"{line:.1}\" x2=\"{end:.1}\" y2=\"{line:.1}\" stroke=\"#e2e8f0\"/>\n\
             <text x=\"{side:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{value}</text>\n\
             <text x=\"{column:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{across_value}</text>\n",
            end = WIDTH - right,
            side = left - 6.0,
            text = line + 4.0,
            value = short(high * share),
            below = height - bottom + 18.0,
            across_value = short(far * share),
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"40\">{}</text>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
        plain(up),
        WIDTH - right,
        height - 12.0,
        plain(across)
    );
    for (row, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[row % COLOURS.len()];
        let path: Vec<String> = points.iter().map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for point in &path {
            let (a, b) = point.split_once(',').unwrap_or(("0", "0"));
            let _ = writeln!(svg, "<circle cx=\"{a}\" cy=\"{b}\" r=\"3\" fill=\"{colour}\"/>");
        }
        if let Some((_, last)) = points.last() {
            let at = y(*last) + 4.0;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{at:.1}\" fill=\"{colour}\">{}</text>",
                WIDTH - right + 8.0,
                plain(name)
            );
        }
    }
    svg + "</svg>\n"
}

fn short(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value >= 1e6 {
        format!("{:.1} M", value / 1e6)
    } else if value < 10.0 && value.fract() != 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_stands_inside() {
        let svg = bars("a < b", "ms", &[("quilt".into(), 2.0), ("x & y".into(), 1.0)]);
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y") && svg.contains("width=\"240.0\""), "{svg}");
        let svg = lines("t", "n", "ms", &[("one".into(), vec![(0.0, 0.0), (10.0, 4.0)])]);
        assert!(svg.contains("points=\"70.0,290.0 490.0,50.0\""), "{svg}");
    }
}
