//! Pictures of experiments: panels of lines or bars beside each other, as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Pixels of one panel.
const PANEL: (u32, u32) = (620, 420);
/// Most panels beside each other.
const PANELS_PER_LINE: usize = 3;
/// Letters that the names of all groups may have to stand beside each other; more stand upright.
const LETTERS_ACROSS: usize = 80;
/// How much higher than the highest bar a panel is: the legend stands there.
const LEGEND_ROOM: f64 = 1.5;
/// Colours of the series: those of Okabe and Ito, which differ for people who see few colours too.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(160, 60, 40),
];

/// A picture could not be drawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot draw the picture: {0}")]
pub struct PictureError(String);

/// How values are laid out along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Axis {
    /// Evenly, from zero.
    #[default]
    Linear,
    /// By powers of ten; values that are not positive are left out.
    Logarithmic,
}

/// What a panel's series are drawn as.
#[derive(Clone, PartialEq, Debug)]
pub enum Shape {
    /// A line through points. `x` and `y` say how the axes are laid out.
    Lines {
        /// The horizontal axis.
        x: Axis,
        /// The vertical axis.
        y: Axis,
    },
    /// Groups of bars with these names: the series' point `(g, y)` is its bar in group `g`.
    Bars {
        /// Names of the groups.
        groups: Vec<String>,
    },
}

/// A named series of points.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// The points, in order.
    pub points: Vec<(f64, f64)>,
}

/// One panel.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// What stands above it.
    pub title: String,
    /// What the horizontal axis shows, with its unit.
    pub x: String,
    /// What the vertical axis shows, with its unit.
    pub y: String,
    /// Lines or bars.
    pub shape: Shape,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// Panels beside each other.
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    /// What stands above all.
    pub title: String,
    /// The panels.
    pub panels: Vec<Panel>,
}

impl Panel {
    /// Adds a point to the series of this name, which begins with it if there is none.
    pub fn point(&mut self, series: &str, x: f64, y: f64) {
        if !x.is_finite() || !y.is_finite() {
            return;
        }
        match self.series.iter_mut().find(|known| known.name == series) {
            Some(known) => known.points.push((x, y)),
            None => self.series.push(Series {
                name: series.to_owned(),
                points: vec![(x, y)],
            }),
        }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PictureError> {
        match &self.shape {
            Shape::Lines { x, y } => self.draw_lines(area, *x, *y),
            Shape::Bars { groups } => self.draw_bars(area, groups),
        }
    }

    /// Drawn on the logarithms, with the labels converted back: one kind of axis serves both.
    fn draw_lines(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        x: Axis,
        y: Axis,
    ) -> Result<(), PictureError> {
        let scaled: Vec<Vec<(f64, f64)>> = self
            .series
            .iter()
            .map(|series| {
                let points = series.points.iter();
                points
                    .filter_map(|&(px, py)| Some((x.scaled(px)?, y.scaled(py)?)))
                    .collect()
            })
            .collect();
        let all = || scaled.iter().flatten();
        let across = x.range(all().map(|point| point.0), false);
        let up = y.range(all().map(|point| point.1), true);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(across, up)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|value| x.label(*value))
            .y_label_formatter(&|value| y.label(*value))
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        for (index, (series, points)) in self.series.iter().zip(&scaled).enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart
                .draw_series(LineSeries::new(
                    points.iter().copied(),
                    colour.stroke_width(2),
                ))
                .map_err(failed)?
                .label(&series.name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled())
                });
            // More marks than this hide the line.
            if points.len() <= 40 {
                let marks = points
                    .iter()
                    .map(|&point| Circle::new(point, 3, colour.filled()));
                chart.draw_series(marks).map_err(failed)?;
            }
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .position(SeriesLabelPosition::UpperLeft)
            .draw()
            .map_err(failed)
    }

    fn draw_bars(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        groups: &[String],
    ) -> Result<(), PictureError> {
        let most = self
            .series
            .iter()
            .flat_map(|series| &series.points)
            .fold(0.0, |most: f64, point| most.max(point.1));
        let across = -0.5..groups.len() as f64 - 0.5;
        let letters: usize = groups.iter().map(|name| name.chars().count()).sum();
        let upright = letters > LETTERS_ACROSS;
        let mut names = ("sans-serif", 12).into_text_style(area);
        if upright {
            names = names.transform(FontTransform::Rotate90);
        }
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(if upright { 150 } else { 44 })
            .y_label_area_size(64)
            .build_cartesian_2d(
                across,
                0.0..if most > 0.0 { most * LEGEND_ROOM } else { 1.0 },
            )
            .map_err(failed)?;
        let name = |at: f64| match (at - at.round()).abs() < 1e-6 && at >= 0.0 {
            true => groups.get(at.round() as usize).cloned().unwrap_or_default(),
            false => String::new(),
        };
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_labels(groups.len().max(1))
            .x_label_style(names)
            .x_label_formatter(&|at| name(*at))
            .y_label_formatter(&|value| Axis::Linear.label(*value))
            .disable_x_mesh()
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        let width = 0.8 / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let bars = series.points.iter().map(|&(group, y)| {
                let left = group - 0.4 + width * index as f64;
                Rectangle::new([(left, 0.0), (left + width * 0.92, y)], colour.filled())
            });
            chart
                .draw_series(bars)
                .map_err(failed)?
                .label(&series.name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled())
                });
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .position(SeriesLabelPosition::UpperRight)
            .draw()
            .map_err(failed)
    }
}

impl Axis {
    fn scaled(self, value: f64) -> Option<f64> {
        match self {
            Self::Linear => Some(value),
            Self::Logarithmic => (value > 0.0).then(|| value.log10()),
        }
    }

    fn label(self, scaled: f64) -> String {
        let value = match self {
            Self::Linear => scaled,
            Self::Logarithmic => 10f64.powf(scaled),
        };
        match value.abs() {
            v if v >= 1e9 => format!("{:.2}G", value / 1e9),
            v if v >= 1e6 => format!("{:.1}M", value / 1e6),
            v if v >= 1e4 => format!("{:.0}k", value / 1e3),
            v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
            v if v >= 1.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        }
    }

    /// The range of the axis; from zero where that is asked and the axis is linear.
    fn range(self, values: impl Iterator<Item = f64>, from_zero: bool) -> Range<f64> {
        let (min, max) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| {
            (min.min(value), max.max(value))
        });
        if min > max {
            return 0.0..1.0;
        }
        let min = match self {
            Self::Linear if from_zero => min.min(0.0),
            Self::Linear | Self::Logarithmic => min,
        };
        let room = (max - min).max(1e-9) * 0.08;
        min..max + room
    }
}

impl Picture {
    /// Draws it.
    ///
    /// # Errors
    /// There is no panel, or the drawing failed.
    pub fn svg(&self) -> Result<String, PictureError> {
        if self.panels.is_empty() {
            return Err(PictureError("it has no panel".into()));
        }
        let columns = self.panels.len().min(PANELS_PER_LINE);
        let lines = self.panels.len().div_ceil(columns);
        let size = (PANEL.0 * columns as u32, PANEL.1 * lines as u32 + 36);
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            root.fill(&WHITE).map_err(failed)?;
            let area = root
                .titled(&self.title, ("sans-serif", 22))
                .map_err(failed)?;
            for (panel, area) in self.panels.iter().zip(area.split_evenly((lines, columns))) {
                panel.draw(&area)?;
            }
            root.present().map_err(failed)?;
        }
        Ok(svg)
    }
}

fn failed(error: impl std::fmt::Display) -> PictureError {
    PictureError(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(shape: Shape) -> Panel {
        let mut panel = Panel {
            title: "how much".into(),
            x: "x (s)".into(),
            y: "y (MB)".into(),
            shape,
            series: Vec::new(),
        };
        for x in 0..4 {
            panel.point("ours", f64::from(x), f64::from(x * x));
            panel.point("theirs", f64::from(x), 5.0);
        }
        panel.point("ours", f64::NAN, 1.0);
        panel
    }

    #[test]
    fn a_picture_names_its_axes_and_series() {
        let log = Shape::Lines {
            x: Axis::Linear,
            y: Axis::Logarithmic,
        };
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let bars = Shape::Bars {
            groups: names.to_vec(),
        };
        let picture = Picture {
            title: "All of it".into(),
            panels: vec![panel(log), panel(bars)],
        };
        let svg = picture.svg().unwrap();
        assert!(svg.starts_with("<svg"), "{}", &svg[..80]);
        for text in ["All of it", "how much", "x (s)", "y (MB)", "ours", "theirs"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn panels_without_points_are_drawn_empty() {
        let shape = Shape::Lines {
            x: Axis::Linear,
            y: Axis::Linear,
        };
        let empty = Panel {
            series: Vec::new(),
            ..panel(shape)
        };
        let picture = Picture {
            title: "none".into(),
            panels: vec![empty],
        };
        assert!(picture.svg().is_ok());
        let nothing = Picture {
            title: "none".into(),
            panels: Vec::new(),
        };
        assert!(nothing.svg().is_err());
    }
}
