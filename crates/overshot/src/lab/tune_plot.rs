//! The plot of `overshot lab tune --svg`: times of one or two kernels by rows, measured and as the fitted costs say, a panel for
//! each number of heads and each kind of lists.

use crate::failure::bad_input;
use overshot_gpu_model::runs::Sample;
use overshot_gpu_model::table::{Entry, Table};
use overshot_gpu_model::{Run, Target};
use overshot_lab::report::{Look, Panel, Plot, PlotPoint, Series};

const LOOKS: [(Look, Look); 2] = [(Look::Measured, Look::Fitted), (Look::Other, Look::Limit)];

/// # Errors
/// More kernels than can be told apart, or none.
pub fn plot(table: &Table, target: &Target, runs: &[(String, Run)]) -> anyhow::Result<Plot> {
    if table.kernels.is_empty() || table.kernels.len() > LOOKS.len() {
        return Err(bad_input("--svg plots one or two kernels: name them with --kernel"));
    }
    let samples: Vec<&Sample> = runs.iter().flat_map(|(_, run)| &run.samples).collect();
    let mut subjects: Vec<&str> = Vec::new();
    for sample in &samples {
        let known = table.entry(&sample.kernel).is_some() && !subjects.contains(&sample.subject.as_str());
        if known {
            subjects.push(&sample.subject);
        }
    }
    let panels = subjects.into_iter().map(|subject| panel(table, target, subject, &samples)).collect();
    let names: Vec<&str> = table.names().collect();
    let sources: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    Ok(Plot {
        title: format!("Decode attention on {}: {}", target.name, names.join(" and ")),
        subtitle: format!("from {}; lines: fitted costs", sources.join(", ")),
        panels,
    })
}

fn panel(table: &Table, target: &Target, subject: &str, samples: &[&Sample]) -> Panel {
    let series = table.kernels.iter().zip(LOOKS).flat_map(|(entry, (measured, fitted))| {
        let of = |sample: &&&Sample| sample.subject == subject && sample.kernel == entry.shape.name;
        let found: Vec<&Sample> = samples.iter().filter(of).copied().collect();
        let line = series(&format!("{}, fitted", entry.shape.name), fitted, &found, |sample| {
            us(entry, target, sample)
        });
        [line, series(&entry.shape.name, measured, &found, |sample| sample.us)]
    });
    Panel {
        title: subject.into(),
        x_label: "rows".into(),
        y_label: "us a launch, median".into(),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

fn series(name: &str, look: Look, samples: &[&Sample], y: impl Fn(&Sample) -> f64) -> Series {
    let point = |sample: &&Sample| PlotPoint { x: sample.load.rows().into(), y: y(sample), spread: None };
    let mut points: Vec<PlotPoint> = samples.iter().map(point).collect();
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    Series { name: name.into(), look, points }
}

fn us(entry: &Entry, target: &Target, sample: &Sample) -> f64 {
    let deal = entry.shape.deal(sample.parts);
    deal.map_or(f64::NAN, |deal| entry.shape.plan_with(&entry.costs, target, &sample.load, deal).us)
}
