//! The answers of `overshot lab waves` as text; as JSON they are printed whole.

use super::numbers::ctas;
use super::waves_kernel::Choices;
use crate::table::Table;
use overshot_gpu_model::{
    Anomaly, Card, Choice, Cliff, Comparison, Explanation, Fit, Point, SplitLaunch, TileCosts, Verdict,
};
use serde::Serialize;
use std::io::{self, Write};
use std::num::NonZeroU32;

#[derive(Serialize)]
pub struct Report {
    pub card: Option<Card>,
    pub ctas_per_sm: NonZeroU32,
    pub slots: NonZeroU32,
    pub staircase: Option<Staircase>,
    pub fit: Option<Fit>,
    pub splits: Option<Splits>,
    pub choices: Option<Choices>,
    pub explained: Option<Explained>,
}

#[derive(Serialize)]
pub struct Staircase {
    pub ctas_per_request: NonZeroU32,
    /// Times in waves.
    pub points: Vec<Point>,
    pub cliffs: Vec<Cliff>,
}

#[derive(Serialize)]
pub struct Splits {
    pub launch: SplitLaunch,
    pub target: NonZeroU32,
    pub rows: Vec<Comparison>,
    pub cliffs_of_target: Vec<Cliff>,
}

#[derive(Serialize)]
pub struct Explained {
    pub seen: Anomaly,
    pub time_ratio_needed: f64,
    pub simplest: Option<Explanation>,
    pub explanations: Vec<Explanation>,
}

impl Report {
    pub fn is_empty(&self) -> bool {
        self.staircase.is_none()
            && self.splits.is_none()
            && self.choices.is_none()
            && self.explained.is_none()
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.card {
            Some(card) => write!(out, "{}: {} SMs", card.name, card.sms)?,
            None => write!(out, "{} SMs", self.slots.get() / self.ctas_per_sm.get())?,
        }
        writeln!(out, ", {} on each: {} slots", ctas(self.ctas_per_sm.get()), self.slots)?;
        if let Some(staircase) = &self.staircase {
            staircase.write(out)?;
        }
        if let Some(fit) = &self.fit {
            write_fit(fit, out)?;
        }
        if let Some(splits) = &self.splits {
            splits.write(out)?;
        }
        if let Some(choices) = &self.choices {
            choices.write(out)?;
        }
        if let Some(explained) = &self.explained {
            explained.write(out)?;
        }
        Ok(())
    }
}

impl Staircase {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nWaves at {} a request", ctas(self.ctas_per_request.get()))?;
        let mut table = Table::new(&["requests", "CTAs", "waves", "efficiency", "requests a wave"]);
        for Point { batch, grid, .. } in &self.points {
            let per_wave = format!("{:.1}", f64::from(*batch) / grid.waves as f64);
            let (grid_ctas, waves) = (grid.ctas.to_string(), grid.waves.to_string());
            table.row([batch.to_string(), grid_ctas, waves, percent(100.0 * grid.efficiency()), per_wave]);
        }
        table.write(out)?;
        write_cliffs(&self.cliffs, out)
    }
}

impl Splits {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let SplitLaunch { tiles, head_blocks, costs: TileCosts { t0, t1, c }, .. } = self.launch;
        writeln!(
            out,
            "\nSplits of a request of {tiles} tiles, heads in {head_blocks} block(s); a CTA takes {} + {} a tile, combining \
             {} a split",
            short(t0),
            short(t1),
            short(c)
        )?;
        let target = format!("target {}", self.target);
        let head = [
            "requests",
            &target,
            "time",
            "FlashAttention",
            "time",
            "best",
            "time",
            "gain",
            "persistent",
            "gain",
        ];
        let mut table = Table::new(&head);
        for row in &self.rows {
            let of = |choice: &Choice| [choice.splits.to_string(), short(choice.time)];
            let gain = |time: f64| {
                if time > 0.0 { percent(100.0 * (row.target.time / time - 1.0)) } else { "-".into() }
            };
            let cells = [
                vec![row.batch.to_string()],
                of(&row.target).into(),
                of(&row.flash_attention).into(),
                of(&row.best).into(),
                vec![gain(row.best.time), short(row.persistent_time), gain(row.persistent_time)],
            ];
            table.row(cells.concat());
        }
        table.write(out)?;
        writeln!(out, "  gain: time at the target over this time, less 1; of this kernel, not of the step")?;
        write_cliffs(&self.cliffs_of_target, out)
    }
}

fn write_cliffs(cliffs: &[Cliff], out: &mut dyn Write) -> io::Result<()> {
    if cliffs.is_empty() {
        return writeln!(out, "\nNo cliff: no step of the batch costs more than it brings.");
    }
    writeln!(out, "\nCliffs")?;
    for cliff in cliffs {
        writeln!(
            out,
            "  {cliff}: {:.2}x the time of C={} for {:.2}x the requests",
            cliff.time_ratio, cliff.from_batch, cliff.batch_ratio
        )?;
    }
    Ok(())
}

fn write_fit(fit: &Fit, out: &mut dyn Write) -> io::Result<()> {
    let TileCosts { t0, t1, c } = fit.costs;
    writeln!(
        out,
        "\nMeasured ({} points): a CTA takes {} + {} a tile, combining {} a split; residual {:.1} %",
        fit.points,
        short(t0),
        short(t1),
        short(c),
        fit.residual_percent
    )?;
    if fit.holds() {
        return writeln!(out, "  waves describe this kernel");
    }
    writeln!(
        out,
        "  waves do not describe this kernel: at batch {} and {} splits they are off by {:+.0} %. Perhaps memory bounds it, \
         and a last wave that is not full ends sooner; what follows is then too sharp.",
        fit.worst.batch, fit.worst.splits, fit.worst_error_percent
    )
}

impl Explained {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Anomaly { from_batch, to_batch, noise_percent, .. } = self.seen;
        write!(out, "\nFewer tokens a second at C={to_batch} than at C={from_batch} ")?;
        let requests = f64::from(to_batch) / f64::from(from_batch);
        if self.time_ratio_needed.is_finite() {
            let needed = self.time_ratio_needed;
            writeln!(out, "needs {needed:.3}x the kernel's time for {requests:.2}x the requests")?;
        } else {
            writeln!(out, "is more than this kernel can cause: the rest of the step is nearly all of it")?;
        }
        let (from, to) = (format!("CTAs at {from_batch}"), format!("CTAs at {to_batch}"));
        let head = ["CTAs a request", &from, "waves", &to, "waves", "time ratio", "tok/s would fall by", ""];
        let mut table = Table::new(&head);
        for row in &self.explanations {
            let verdict = match row.verdict {
                Verdict::Explains => "explains it",
                Verdict::HiddenByNoise => "hidden by the noise",
                Verdict::DoesNotExplain => "",
            };
            table.row([
                row.ctas_per_request.to_string(),
                row.from_grid.ctas.to_string(),
                row.from_grid.waves.to_string(),
                row.to_grid.ctas.to_string(),
                row.to_grid.waves.to_string(),
                format!("{:.2}", row.time_ratio),
                if row.fall_percent > 0.0 { percent(row.fall_percent) } else { "-".into() },
                verdict.into(),
            ]);
        }
        table.write(out)?;
        match &self.simplest {
            Some(simplest) => writeln!(
                out,
                "\nSimplest explanation: {} a request, the smallest fall above the noise of {noise_percent} %. Wave \
                 counts explain; a profile at both batches proves.",
                ctas(simplest.ctas_per_request)
            ),
            None => writeln!(out, "\nNo number of CTAs a request explains it by waves alone."),
        }
    }
}

fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 1.0 => trimmed(format!("{value:.2}")),
        size if size >= 0.001 => trimmed(format!("{value:.4}")),
        _ => format!("{value:.2e}"),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
