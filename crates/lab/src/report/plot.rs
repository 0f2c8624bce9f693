//! Plots as SVG, for eyes: panels below one another, 800 wide, axes named with units. Colours follow the viewer's light or
//! dark mode and stay apart for colour-blind eyes (blue and vermilion, and never colour alone: marks and dashes differ too).

use super::table::count;
use std::fmt::Write;

const WIDTH: f64 = 800.0;
const PANEL_HEIGHT: f64 = 340.0;
const HEAD_HEIGHT: f64 = 56.0;
/// Room around the area of a panel: left, right, top, bottom.
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 52.0;

#[derive(Clone, Debug)]
pub struct Plot {
    pub title: String,
    pub subtitle: String,
    pub panels: Vec<Panel>,
}

#[derive(Clone, Debug)]
pub struct Panel {
    pub title: String,
    /// With the unit.
    pub x_label: String,
    pub y_label: String,
    pub series: Vec<Series>,
    /// Places on the horizontal axis that deserve a look.
    pub marks: Vec<Mark>,
}

#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub look: Look,
    pub points: Vec<PlotPoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Dots with whiskers: what was measured.
    Measured,
    /// Squares: what was measured of another subject.
    Other,
    /// A line: what was fitted.
    Fitted,
    /// A dashed line: what the machine allows, or a line for the other subject.
    Limit,
    /// A band between the ends of the whiskers, in a colour of its own: a part of a stack.
    Band(u8),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlotPoint {
    pub x: f64,
    pub y: f64,
    /// Ends of the whisker.
    pub spread: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub struct Mark {
    pub x: f64,
    pub text: String,
}

/// Of bands, apart for colour-blind eyes; neighbours differ in lightness too.
const BAND_COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];

/// Of a name inside its band.
const BAND_LABEL_HEIGHT: f64 = 15.0;
const LEGEND_LINE_HEIGHT: f64 = 18.0;

/// That are within the plot at their sizes; a whole title is what the file is called.
const TITLE_CHARS_MAX: usize = 68;
const SUBTITLE_CHARS_MAX: usize = 110;

const STYLE: &str = "\
svg{background:#fff;font:13px system-ui,sans-serif}\
text{fill:#222}.small{font-size:12px;fill:#555}.inside{font-size:12px;fill:#111}.title{font-size:17px;font-weight:600}.name{font-weight:600}\
.grid{stroke:#ddd}.axis{stroke:#888}\
.measured{fill:#0072b2;stroke:#0072b2;stroke-width:1.5}.fitted{fill:none;stroke:#0072b2;stroke-width:1.8}\
.other{fill:none;stroke:#d55e00;stroke-width:1.5}\
.limit{fill:none;stroke:#d55e00;stroke-width:1.8;stroke-dasharray:6 4}.mark{stroke:#d55e00;stroke-width:1.2;stroke-dasharray:2 3}\
@media (prefers-color-scheme:dark){svg{background:#16181c}text{fill:#e6e6e6}.small{fill:#a5a9b0}\
.grid{stroke:#33373d}.axis{stroke:#777}.measured{fill:#56b4e9;stroke:#56b4e9}.fitted{stroke:#56b4e9}\
.limit,.mark,.other{stroke:#f0954f}}";

impl Plot {
    pub fn svg(&self) -> String {
        let height = HEAD_HEIGHT + self.panels.iter().map(Panel::height).sum::<f64>();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\"><title>{}</title><style>{STYLE}</style>\n",
            escaped(&self.title)
        );
        text(&mut svg, "title", (LEFT, 26.0), "start", &cut(&self.title, TITLE_CHARS_MAX));
        text(&mut svg, "small", (LEFT, 45.0), "start", &cut(&self.subtitle, SUBTITLE_CHARS_MAX));
        let mut top = HEAD_HEIGHT;
        for panel in &self.panels {
            panel.draw(top, &mut svg);
            top += panel.height();
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Panel {
    fn height(&self) -> f64 {
        PANEL_HEIGHT + LEGEND_LINE_HEIGHT * self.legend_lines().len().saturating_sub(1) as f64
    }

    fn draw(&self, top: f64, svg: &mut String) {
        let bottom = top + self.height();
        let area = Area {
            x: Axis::covering(
                self.series.iter().flat_map(|s| s.points.iter().map(|p| p.x)),
                LEFT,
                WIDTH - RIGHT,
            ),
            y: Axis::covering(
                self.series
                    .iter()
                    .flat_map(|s| s.points.iter().flat_map(|p| [p.y, p.spread.map_or(p.y, |s| s.1)])),
                bottom - BOTTOM,
                bottom - PANEL_HEIGHT + TOP,
            ),
        };
        text(svg, "name", (LEFT, top + 18.0), "start", &self.title);
        self.draw_axes(&area, svg);
        for mark in &self.marks {
            let x = area.x.place(mark.x);
            line(svg, "mark", (x, area.y.low), (x, area.y.high));
            let (anchor, shift) = if x > WIDTH * 0.6 { ("end", -5.0) } else { ("start", 5.0) };
            text(svg, "small", (x + shift, area.y.low - 8.0), anchor, &mark.text);
        }
        for series in &self.series {
            series.draw(&area, svg);
        }
        self.draw_legend(top, svg);
    }

    fn draw_axes(&self, area: &Area, svg: &mut String) {
        let (left, right, bottom) = (area.x.low, area.x.high, area.y.low);
        for value in area.y.ticks() {
            let y = area.y.place(value);
            line(svg, "grid", (left, y), (right, y));
            text(svg, "small", (left - 7.0, y + 4.0), "end", &area.y.label(value));
        }
        for value in area.x.ticks() {
            let x = area.x.place(value);
            line(svg, "axis", (x, bottom), (x, bottom + 5.0));
            text(svg, "small", (x, bottom + 19.0), "middle", &area.x.label(value));
        }
        line(svg, "axis", (left, bottom), (right, bottom));
        text(svg, "small", (f64::midpoint(left, right), bottom + 38.0), "middle", &self.x_label);
        let (x, y) = (left - 56.0, f64::midpoint(area.y.low, area.y.high));
        let _ = writeln!(
            svg,
            "<text class=\"small\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 {x:.1} {y:.1})\">{}</text>",
            escaped(&self.y_label)
        );
    }

    /// The series that fit beside the title; of many, lines below it.
    fn legend_lines(&self) -> Vec<Vec<&Series>> {
        let beside = WIDTH - LEFT - RIGHT - text_width(&self.title) - 20.0;
        let width = |series: &[&Series]| series.iter().map(|series| series.legend_width()).sum::<f64>();
        let all: Vec<&Series> = self.series.iter().collect();
        if width(&all) <= beside {
            return vec![all];
        }
        let mut lines = vec![Vec::new(), Vec::new()];
        for series in all {
            let last = lines.last_mut().expect("there are two lines at least");
            if width(last) + series.legend_width() > WIDTH - LEFT - RIGHT {
                lines.push(vec![series]);
            } else {
                last.push(series);
            }
        }
        lines
    }

    fn draw_legend(&self, top: f64, svg: &mut String) {
        for (index, line) in self.legend_lines().into_iter().enumerate() {
            let y = top + 14.0 + LEGEND_LINE_HEIGHT * index as f64;
            let mut right = WIDTH - RIGHT;
            for series in line.into_iter().rev() {
                text(svg, "small", (right, y + 4.0), "end", &series.name);
                series.draw_key(right - text_width(&series.name) - 8.0, y, svg);
                right -= series.legend_width();
            }
        }
    }
}

fn cut(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max - 1).chain(['…']).collect()
}

/// No font is at hand to measure with: digits and small letters are at most about this wide.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.0
}

impl Series {
    fn legend_width(&self) -> f64 {
        text_width(&self.name) + 44.0
    }

    /// How it looks, to the left of `right`.
    fn draw_key(&self, right: f64, y: f64, svg: &mut String) {
        match self.look {
            Look::Measured => dot(svg, (right - 6.0, y)),
            Look::Other => square(svg, (right - 6.0, y)),
            Look::Fitted => line(svg, "fitted", (right - 20.0, y), (right, y)),
            Look::Limit => line(svg, "limit", (right - 20.0, y), (right, y)),
            Look::Band(colour) => {
                let (left, above) = (right - 14.0, y - 6.0);
                let corners = [(left, above), (right, above), (right, y + 6.0), (left, y + 6.0)];
                polygon(svg, band_colour(colour), &corners);
            }
        }
    }

    /// The band, and its name where it is high enough at its right end.
    fn draw_band(&self, area: &Area, colour: u8, svg: &mut String) {
        let ends = |point: &PlotPoint| point.spread.unwrap_or((point.y, point.y));
        let place = |point: &PlotPoint, y: f64| (area.x.place(point.x), area.y.place(y));
        let above = self.points.iter().map(|point| place(point, ends(point).1));
        let below = self.points.iter().rev().map(|point| place(point, ends(point).0));
        polygon(svg, band_colour(colour), &above.chain(below).collect::<Vec<_>>());
        let Some(last) = self.points.last() else { return };
        let ((x, low), (_, high)) = (place(last, ends(last).0), place(last, ends(last).1));
        if low - high >= BAND_LABEL_HEIGHT {
            text(svg, "inside", (x - 6.0, f64::midpoint(low, high) + 4.0), "end", &self.name);
        }
    }

    fn draw(&self, area: &Area, svg: &mut String) {
        let class = match self.look {
            Look::Band(colour) => return self.draw_band(area, colour, svg),
            Look::Other => {
                let place = |point: &PlotPoint| (area.x.place(point.x), area.y.place(point.y));
                self.points.iter().for_each(|point| square(svg, place(point)));
                return;
            }
            Look::Measured => {
                for point in &self.points {
                    let (x, y) = (area.x.place(point.x), area.y.place(point.y));
                    if let Some((low, high)) = point.spread {
                        line(svg, "measured", (x, area.y.place(low)), (x, area.y.place(high)));
                    }
                    dot(svg, (x, y));
                }
                return;
            }
            Look::Fitted => "fitted",
            Look::Limit => "limit",
        };
        let places = self
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", area.x.place(point.x), area.y.place(point.y)));
        let _ = writeln!(
            svg,
            "<polyline class=\"{class}\" points=\"{}\"/>",
            places.collect::<Vec<_>>().join(" ")
        );
    }
}

struct Area {
    x: Axis,
    y: Axis,
}

/// From 0 to a round number above all values, drawn from `low` to `high`.
struct Axis {
    step: f64,
    steps: usize,
    low: f64,
    high: f64,
}

impl Axis {
    fn covering(values: impl Iterator<Item = f64>, low: f64, high: f64) -> Self {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / 6.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 4.0, 5.0, 10.0]
            .map(|times| times * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(10.0 * power);
        // A value on the last line would be cut in half.
        let steps = ((most / step * 1.02).ceil() as usize).max(1);
        Axis { step, steps, low, high }
    }

    fn place(&self, value: f64) -> f64 {
        self.low + (self.high - self.low) * value / (self.step * self.steps as f64)
    }

    /// With as many decimals as tell two ticks apart.
    fn label(&self, value: f64) -> String {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 9.0) as usize;
        if decimals == 0 { count(value.round() as u64) } else { format!("{value:.decimals$}") }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (0..=self.steps).map(|index| index as f64 * self.step)
    }
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn polygon(svg: &mut String, colour: &str, corners: &[(f64, f64)]) {
    let places = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
    let _ = writeln!(
        svg,
        "<polygon fill=\"{colour}\" fill-opacity=\"0.75\" stroke=\"{colour}\" points=\"{places}\"/>"
    );
}

fn band_colour(number: u8) -> &'static str {
    BAND_COLOURS[usize::from(number) % BAND_COLOURS.len()]
}

fn square(svg: &mut String, (x, y): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<rect class=\"other\" x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"/>",
        x - 3.5,
        y - 3.5
    );
}

fn dot(svg: &mut String, at: (f64, f64)) {
    let _ = writeln!(svg, "<circle class=\"measured\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.6\"/>", at.0, at.1);
}

fn text(svg: &mut String, class: &str, at: (f64, f64), anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
        at.0,
        at.1,
        escaped(text)
    );
}

/// Characters that XML takes for its own, and those that it cannot hold.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            _ if character.is_control() => safe.push(' '),
            _ => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers() {
        for (most, step, steps) in
            [(64.0, 20.0, 4), (96.0, 20.0, 5), (0.9, 0.2, 5), (1000.0, 200.0, 6), (0.0, 0.2, 6)]
        {
            let axis = Axis::covering([most].into_iter(), 0.0, 100.0);
            assert!(
                (axis.step - step).abs() < 1e-9 * step && axis.steps == steps,
                "{most}: {} {}",
                axis.step,
                axis.steps
            );
            assert!(axis.place(most) <= 100.0);
            assert_eq!(axis.label(0.0).parse(), Ok(0.0));
        }
    }

    #[test]
    fn a_plot_is_well_formed_whatever_its_names_are() {
        let point = |x, y| PlotPoint { x, y, spread: Some((y * 0.9, y * 1.1)) };
        let series = |look, name: &str| Series {
            name: name.into(),
            look,
            points: vec![point(1.0, 5.0), point(64.0, 30.0)],
        };
        let panel = Panel {
            title: "a <b> & \"c\" \u{1}".into(),
            x_label: "streams".into(),
            y_label: "ms".into(),
            series: vec![
                series(Look::Measured, "measured"),
                series(Look::Other, "o"),
                series(Look::Fitted, "f"),
                series(Look::Limit, "l"),
                series(Look::Band(9), "one of many bands with a long name that goes below the title"),
            ],
            marks: vec![Mark { x: 48.0, text: "falls".into() }],
        };
        let svg =
            Plot { title: "<&>".into(), subtitle: String::new(), panels: vec![panel.clone(), panel] }.svg();
        let long = Plot { title: "a name ".repeat(40), subtitle: String::new(), panels: vec![] }.svg();
        let shown = long.split("class=\"title\"").nth(1).unwrap();
        assert!(shown.contains("a na…<") && !shown.contains(&"a name ".repeat(10)), "{shown}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("<b>") && !svg.contains("NaN") && !svg.contains('\u{1}'));
        let opened = svg.matches("<text").count();
        assert_eq!(opened, svg.matches("</text>").count());
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert_eq!(svg.matches("<polygon").count(), 4, "two bands and their keys");
    }
}
