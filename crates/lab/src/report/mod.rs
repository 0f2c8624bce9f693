//! Results for people: a summary of the runs, as tables for a terminal or Markdown, and as SVG plots. Programs read the
//! results file, or the summary as JSON.

mod plot;
mod plots;
mod summary;
mod table;
mod text;

pub use plot::{Look, Mark, Panel, Plot, PlotPoint, Series};
pub use plots::plot;
pub use summary::{Fall, NoiseSummary, PointSummary, Summary, WorkSummary};
pub use table::{Table, count, number, percent, wrapped};
pub use text::{Form, write};
