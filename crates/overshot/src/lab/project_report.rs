//! The answer of `overshot lab project` as text, Markdown, JSON and a plot.

use super::numbers::ctas;
use super::occupancy::{gate_sentence, list};
use crate::outputs::Report;
use crate::table::Table;
use overshot_lab::project::{
    CHANCE_OF_GO, Decision, Effect, Gain, Lever, Mechanism, Projection, Row, Transfer, UPLIFTS_ASKED, Verdict,
};
use overshot_lab::report::{Form, Look, Panel, Plot, PlotPoint, Series, number};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
pub struct ProjectReport {
    /// `Projection of attention / 1.5`
    pub title: String,
    pub lever: Lever,
    /// The step that it is projected on.
    pub subject: String,
    pub uncertainty: String,
    pub transfer: Transfer,
    pub effect: Effect,
    /// The one that is believed, then those that tell another story.
    pub forms: Vec<Projection>,
    /// Forms of the step that tell the same.
    pub agreeing: Vec<String>,
    /// Forms that the profile speaks against: they are not projected by.
    pub refuted: Vec<String>,
    /// Batches outside of those that were profiled.
    pub extrapolated: Vec<u32>,
    pub decided: Option<Decided>,
}

#[derive(Serialize)]
pub struct Decided {
    #[serde(flatten)]
    pub decision: Decision,
    pub days: Option<f64>,
}

impl Report for ProjectReport {
    fn title(&self) -> &str {
        &self.title
    }

    fn subtitle(&self) -> String {
        self.subject.clone()
    }

    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    fn text(&self, form: Form, out: &mut dyn Write) -> io::Result<()> {
        if let Some(mechanism) = self.mechanism() {
            writeln!(out, "\n{}", mechanism_sentence(mechanism))?;
        }
        if matches!(self.effect.gain, Gain::Nothing { .. }) {
            writeln!(out, "Projected: 0 at every batch.")?;
        } else {
            for projection in &self.forms {
                self.write_form(projection, form, out)?;
            }
            self.write_notes(out)?;
        }
        match &self.decided {
            Some(decided) => decided.write(out),
            None if matches!(self.effect.gain, Gain::Nothing { .. }) => writeln!(out, "\nVerdict: no-go"),
            None => Ok(()),
        }
    }

    fn plot(&self) -> Plot {
        Plot {
            title: self.title.clone(),
            subtitle: self.subject.clone(),
            panels: self.forms.iter().map(|projection| self.panel(projection)).collect(),
        }
    }
}

impl ProjectReport {
    fn mechanism(&self) -> Option<&Mechanism> {
        match &self.effect.gain {
            Gain::Time(_) => None,
            Gain::Waves { mechanism, .. } | Gain::Nothing { mechanism } => Some(mechanism),
        }
    }

    /// What the column of the whole gain is called.
    fn whole_gain(&self) -> &'static str {
        if matches!(self.effect.gain, Gain::Waves { .. }) { "at most" } else { "as told" }
    }

    fn write_form(&self, projection: &Projection, form: Form, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nUplift of tokens a second, by the {} form of the step", projection.form)?;
        let part = format!("{} ms", self.effect.part);
        let head = ["C", "step ms", "tok/s", &part, self.whole_gain(), "5 %", "50 %", "95 %", "ceiling"];
        let mut table = Table::new(&head);
        let uplifts = UPLIFTS_ASKED.map(|uplift| format!("+{:.0} %", 100.0 * uplift));
        let head: Vec<&str> = std::iter::once("C").chain(uplifts.iter().map(String::as_str)).collect();
        let mut needed = Table::new(&head);
        for row in &projection.rows {
            let uplifts = [row.as_told, row.p5, row.p50, row.p95].map(percent);
            let ceiling = row.ceiling.map_or("-".into(), percent);
            let numbers =
                [format!("{:.1}", row.step_ms), number(row.tokens_per_s), format!("{:.1}", row.part_ms)];
            table.row([vec![row.batch.to_string()], numbers.into(), uplifts.into(), vec![ceiling]].concat());
            let speedups = row.speedups_needed.map(|k| k.map_or("-".into(), |k| format!("{k:.2}x")));
            needed.row([vec![row.batch.to_string()], speedups.into()].concat());
        }
        write_table(&table, form, out)?;
        writeln!(out, "\nHow much faster {} must get for such an uplift", self.effect.part)?;
        write_table(&needed, form, out)
    }

    fn write_notes(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n5 to 95 %: times by {}", self.uncertainty)?;
        match &self.effect.gain {
            Gain::Waves { grid, .. } => writeln!(
                out,
                "  and a gain anywhere from none, if the CTAs of an SM only slow each other,\n  to all that waves allow at {} \
                 a request on {} SMs",
                ctas(grid.ctas_per_request.get()),
                grid.sms
            )?,
            _ => writeln!(
                out,
                "  and {:.0} to {:.0} % of the gain that arrive",
                100.0 * self.transfer.low,
                100.0 * self.transfer.high
            )?,
        }
        let far = self.forms.iter().flat_map(|form| &form.rows).filter_map(|row| row.times_roofline);
        match far.reduce(f64::max) {
            Some(times) => {
                writeln!(
                    out,
                    "ceiling: {} at its roofline, of which it takes up to {times:.1} times",
                    self.effect.part
                )?;
            }
            None => writeln!(out, "ceiling: {} gone", self.effect.part)?,
        }
        self.write_roofline_notes(out)?;
        if self.forms.len() > 1 {
            let names: Vec<&str> = self.forms.iter().map(|form| form.form.as_str()).collect();
            writeln!(
                out,
                "the forms disagree ({}): a profile at small and large batches says which holds",
                names.join(", ")
            )?;
        }
        if !self.agreeing.is_empty() {
            writeln!(out, "by the {} form the uplifts are about the same", self.agreeing.join(" and the "))?;
        }
        for form in &self.refuted {
            writeln!(out, "the {form} form is left out: it predicts batches left out far worse")?;
        }
        if !self.extrapolated.is_empty() {
            let outside = at(&self.extrapolated);
            writeln!(
                out,
                "{outside}: outside of the batches that were profiled, so the form is taken on trust"
            )?;
        }
        Ok(())
    }

    /// Where the lever or the measured time disagrees with the roofline.
    fn write_roofline_notes(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(first) = self.forms.first() else { return Ok(()) };
        let known = first.rows.iter().filter_map(|row| Some((row, row.times_roofline?)));
        let below: Vec<u32> =
            known.clone().filter(|(_, times)| *times < 1.0).map(|(row, _)| row.batch).collect();
        let beyond = |row: &Row| row.ceiling.is_some_and(|ceiling| row.as_told > ceiling);
        let beyond: Vec<u32> =
            known.filter(|(row, times)| *times >= 1.0 && beyond(row)).map(|(row, _)| row.batch).collect();
        if !below.is_empty() {
            let (part, below) = (&self.effect.part, at(&below));
            writeln!(out, "{part} takes less than its roofline at {below}: one of the two is wrong")?;
        }
        if !beyond.is_empty() {
            let beyond = at(&beyond);
            writeln!(
                out,
                "the lever asks for more than the roofline leaves at {beyond}: draws end at the ceiling"
            )?;
        }
        Ok(())
    }

    fn panel(&self, projection: &Projection) -> Panel {
        let slower = projection.rows.iter().all(|row| row.p50 <= 0.0)
            && projection.rows.iter().any(|row| row.p50 < 0.0);
        let sign = if slower { -100.0 } else { 100.0 };
        let point = |row: &Row, y: f64, spread| PlotPoint { x: f64::from(row.batch), y: sign * y, spread };
        let series = |name: &str, look, points| Series { name: name.into(), look, points };
        let whole = projection.rows.iter().map(|row| point(row, row.as_told, None)).collect();
        let drawn = projection
            .rows
            .iter()
            .map(|row| point(row, row.p50, Some((sign * row.p5, sign * row.p95))))
            .collect();
        let mut all =
            vec![series(self.whole_gain(), Look::Fitted, whole), series("5 to 95 %", Look::Measured, drawn)];
        if let Some(decided) = &self.decided
            && !slower
        {
            let line =
                projection.rows.iter().map(|row| point(row, decided.decision.threshold, None)).collect();
            all.insert(0, series("threshold", Look::Limit, line));
        }
        Panel {
            title: format!("By the {} form", projection.form),
            x_label: "requests in the batch (C)".into(),
            y_label: format!("{} of tokens/s, %", if slower { "loss" } else { "uplift" }),
            series: all,
            marks: vec![],
        }
    }
}

impl Decided {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Decision { verdict, threshold, batches, expected_gain, gain_per_day } = &self.decision;
        let asked: Vec<u32> = batches.iter().map(|at| at.batch).collect();
        let why = match verdict {
            Verdict::NoMechanism => "the mechanism does not move".to_owned(),
            Verdict::Go => format!(
                "the uplift exceeds {} with a chance of at least {:.0} % at {}",
                percent(*threshold),
                100.0 * CHANCE_OF_GO,
                at(&asked)
            ),
            Verdict::NoGo => {
                format!("even the 95 % point stays below {} at {}", percent(*threshold), at(&asked))
            }
            Verdict::Open => {
                let least = batches.iter().min_by(|one, other| one.chance.total_cmp(&other.chance));
                let least = least.map_or(String::new(), |least| {
                    format!(";\n  the least likely is C={} with {:.0} %", least.batch, 100.0 * least.chance)
                });
                format!(
                    "it may exceed {}, but not with a chance of {:.0} % at each of {}{least}",
                    percent(*threshold),
                    100.0 * CHANCE_OF_GO,
                    at(&asked)
                )
            }
        };
        writeln!(out, "\nVerdict: {}\n  {why}", verdict.text())?;
        let rank = gain_per_day
            .zip(self.days)
            .map_or(String::new(), |(gain, days)| format!(", {} for each of {days} days", percent(gain)));
        if *verdict == Verdict::NoMechanism {
            return Ok(());
        }
        writeln!(out, "  expected gain {}{rank}", percent(*expected_gain))
    }
}

/// `C=64, 80 and 96`
fn at(batches: &[u32]) -> String {
    let numbers: Vec<String> = batches.iter().map(u32::to_string).collect();
    match numbers.as_slice() {
        [] => "no batch".into(),
        [one] => format!("C={one}"),
        [first @ .., last] => format!("C={} and {last}", first.join(", ")),
    }
}

fn mechanism_sentence(mechanism: &Mechanism) -> String {
    let Mechanism { ctas_per_sm_before, ctas_per_sm_after, binding, gate, grows } = mechanism;
    let moves = if mechanism.moves() {
        format!("Mechanism: CTAs per SM {ctas_per_sm_before} -> {ctas_per_sm_after}")
    } else {
        format!("Mechanism: CTAs per SM stay at {ctas_per_sm_after}")
    };
    let bound = if binding.is_empty() {
        ", as the lever says; no kernel was told to check it".into()
    } else {
        format!(", today bound by {}", list(binding))
    };
    let gate = gate.as_ref().map_or(String::new(), |gate| format!(".\n{}", gate_sentence(gate)));
    let grows: Vec<String> = grows.iter().map(|amount| amount.to_string()).collect();
    let costs = if grows.is_empty() {
        String::new()
    } else {
        format!(".\nIt uses more than today: {}", grows.join(", "))
    };
    format!("{moves}{bound}{gate}{costs}.")
}

fn write_table(table: &Table, form: Form, out: &mut dyn Write) -> io::Result<()> {
    match form {
        Form::Terminal => table.write(out),
        Form::Markdown => write!(out, "\n{}", table.markdown()),
    }
}

/// `12.5 %`: uplifts are compared, so all have one decimal.
fn percent(share: f64) -> String {
    let text = format!("{:.1} %", 100.0 * share);
    // Rounding leaves a sign on nothing.
    if text == "-0.0 %" { "0.0 %".into() } else { text }
}
