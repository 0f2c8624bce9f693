//! An analysis as text, for a terminal or as Markdown: families by batch as tables, and below in words what they mean.

use super::analysis::{Analysis, Cell, FormSummary, Growth};
use super::fit::Why;
use super::{Form, StepClock};
use crate::report::{self, Table, count, number, percent, wrapped};
use crate::stats::Interval;
use std::io::{self, Write};

/// More batches than these are a table of their own below, so that lines stay within 100 columns.
const BATCHES_A_TABLE: usize = 8;

pub fn write(analysis: &Analysis, form: report::Form, out: &mut dyn Write) -> io::Result<()> {
    let page = &mut Page { form, out };
    let title = match analysis.clock {
        StepClock::Wall => "Milliseconds a step, medians",
        StepClock::Kernels => "Milliseconds a step, sums of kernels",
    };
    page.by_batch(analysis, title, |cell| number(cell.ms), Rows::WithStep)?;
    if !analysis.families.is_empty() {
        page.by_batch(analysis, "Share of the step", |cell| percent(cell.share), Rows::Families)?;
        let gain = |cell: &Cell| percent(cell.gain_of_a_tenth);
        page.by_batch(analysis, "Throughput gained by a tenth less of each", gain, Rows::Families)?;
    }
    let known = |value: fn(&Cell) -> Option<f64>| {
        analysis.families.iter().flat_map(|family| &family.cells).any(|cell| value(cell).is_some())
    };
    let shown = |value: Option<f64>| value.map_or("-".into(), number);
    if known(|cell| cell.times_roofline) {
        let ratio = |cell: &Cell| shown(cell.times_roofline);
        page.by_batch(analysis, "Time over the roofline's", ratio, Rows::Families)?;
    }
    if known(|cell| cell.iteration_us) {
        let iteration = |cell: &Cell| shown(cell.iteration_us);
        page.by_batch(analysis, "Implied microseconds of one tile", iteration, Rows::Families)?;
    }
    if let Some(growth) = &analysis.growth {
        page.growth(analysis, growth)?;
    }
    page.sentences(&sentences(analysis))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    Families,
    /// And below, the whole step and its throughput.
    WithStep,
}

struct Page<'a> {
    form: report::Form,
    out: &'a mut dyn Write,
}

impl Page<'_> {
    fn table(&mut self, title: &str, table: &Table) -> io::Result<()> {
        match self.form {
            report::Form::Terminal => {
                writeln!(self.out, "\n{title}")?;
                table.write(self.out)
            }
            report::Form::Markdown => write!(self.out, "\n### {title}\n\n{}", table.markdown()),
        }
    }

    fn sentences(&mut self, sentences: &[String]) -> io::Result<()> {
        writeln!(self.out)?;
        sentences.iter().try_for_each(|text| sentence(self.form, text, self.out))
    }

    fn by_batch(
        &mut self,
        analysis: &Analysis,
        title: &str,
        shown: impl Fn(&Cell) -> String,
        rows: Rows,
    ) -> io::Result<()> {
        let places: Vec<usize> = (0..analysis.batches.len()).collect();
        for part in places.chunks(BATCHES_A_TABLE) {
            let batches = part.iter().map(|place| format!("B={}", analysis.batches[*place].batch));
            let head: Vec<String> = ["family".to_owned()].into_iter().chain(batches).collect();
            let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
            for family in &analysis.families {
                let cells = part.iter().map(|place| shown(&family.cells[*place]));
                if cells.clone().any(|cell| cell != "-") {
                    table.row([family.name.clone()].into_iter().chain(cells));
                }
            }
            if rows == Rows::WithStep {
                let mut row = |name: &str, value: fn(&super::analysis::BatchSummary) -> String| {
                    let cells = part.iter().map(|place| value(&analysis.batches[*place]));
                    table.row([name.to_owned()].into_iter().chain(cells));
                };
                row("whole step", |at| number(at.step_ms));
                row("tokens/s", |at| number(at.tokens_per_s));
                row("runs", |at| at.runs.to_string());
            }
            self.table(title, &table)?;
        }
        Ok(())
    }

    fn growth(&mut self, analysis: &Analysis, step: &Growth) -> io::Result<()> {
        let mut table = Table::new(&["family", "floor ms", "slope ms a request", "form", "missed by"]);
        let of_families =
            analysis.families.iter().filter_map(|f| Some((f.name.as_str(), f.growth.as_ref()?)));
        for (name, growth) in of_families.chain([("whole step", step)]) {
            let FormSummary { curve, floor_interval_ms, slope_interval_ms, .. } = growth.linear;
            table.row([
                name.to_owned(),
                with_interval(curve.floor_ms, floor_interval_ms),
                with_interval(curve.slope_ms, slope_interval_ms),
                growth.chosen.curve.form.kind().name().to_owned(),
                growth.chosen.leave_one_out_error.map_or("-".into(), percent),
            ]);
        }
        self.table("Growth with the batch: the line, 95 % intervals, and the form that predicts best", &table)
    }
}

/// # Errors
/// Those of `out`.
pub fn sentence(form: report::Form, text: &str, out: &mut dyn Write) -> io::Result<()> {
    match form {
        report::Form::Terminal => writeln!(out, "{}", wrapped(text)),
        report::Form::Markdown => writeln!(out, "* {text}"),
    }
}

fn with_interval(value: f64, interval: Option<Interval>) -> String {
    match interval {
        None => number(value),
        Some(Interval { low, high }) => format!("{} ({} to {})", number(value), number(low), number(high)),
    }
}

fn sentences(analysis: &Analysis) -> Vec<String> {
    let mut sentences = Vec::new();
    sentences.extend(slope_and_floor(analysis));
    sentences.extend(analysis.growth.as_ref().map(|growth| form_of_the_step(analysis, growth)));
    sentences.extend(analysis.families.iter().filter_map(|family| {
        let growth = family.growth.as_ref()?;
        let form = told_form(&growth.chosen)?;
        Some(format!("{}: {form}", family.name))
    }));
    sentences.extend(limit(analysis));
    sentences.extend(analysis.falls.iter().map(|fall| {
        let (from, to, change) = (fall.from_batch, fall.to_batch, percent(-fall.change));
        format!("Throughput falls by {change} from B={from} to B={to}, by medians.")
    }));
    sentences.extend(gains(analysis));
    sentences.extend(below_roofline(analysis));
    sentences.extend(scatter(analysis));
    if analysis.batches.iter().all(|at| at.runs < 2) {
        sentences.push("One run a batch: no interval and no noise is known.".into());
    }
    if analysis.batches.len() < 2 {
        sentences.push("One batch: what grows with it cannot be told; profile a second one.".into());
    }
    sentences
}

fn slope_and_floor(analysis: &Analysis) -> Option<String> {
    let line = analysis.growth.as_ref()?.linear.curve;
    let of = |name: &Option<String>| {
        let family = analysis.families.iter().find(|family| Some(&family.name) == name.as_ref())?;
        Some((family.name.clone(), family.growth.as_ref()?.linear.curve))
    };
    let share = |part: f64, whole: f64| {
        if whole > 0.0 { format!(" ({} of it)", percent(part / whole)) } else { String::new() }
    };
    let (slope, floor) = (of(&analysis.slope_family), of(&analysis.floor_family));
    let slope = slope.map(|(name, curve)| {
        let (part, whole) = (curve.slope_ms, line.slope_ms);
        format!(
            "The slope is {name}: {} of {} ms a request{}",
            number(part),
            number(whole),
            share(part, whole)
        )
    });
    let floor = floor.map(|(name, curve)| {
        let (part, whole) = (curve.floor_ms, line.floor_ms);
        format!("the floor is {name}: {} of {} ms{}", number(part), number(whole), share(part, whole))
    });
    match (slope, floor) {
        (Some(slope), Some(floor)) => Some(format!("{slope}; {floor}.")),
        (Some(slope), None) => Some(format!("{slope}; no family has a floor.")),
        (None, Some(floor)) => Some(format!("No family grows; {floor}.")),
        (None, None) => None,
    }
}

fn form_of_the_step(analysis: &Analysis, growth: &Growth) -> String {
    let tried = growth.tried.iter().map(|form| {
        let error = form.leave_one_out_error.map_or("untested".into(), percent);
        format!("{} {error}", form.curve.form.kind().name())
    });
    let tried = tried.collect::<Vec<_>>().join(", ");
    let name = growth.chosen.curve.form.kind().name();
    let mut sentence = match growth.why {
        Why::TooFewBatches => {
            return format!(
                "With {} batches no form can be told from another: linear is assumed, so do not read it far outside them.",
                analysis.batches.len()
            );
        }
        Why::LeaveOneOut => {
            format!("The whole step is {name}: predicting each batch from the others misses by {tried}")
        }
        Why::Asked => format!("The whole step is taken as {name}, as asked: predicting misses by {tried}"),
    };
    let smallest = analysis.batches[0].batch;
    let (chosen, linear) = (growth.chosen.curve.at(smallest), growth.linear.curve.at(smallest));
    let differ = (linear / chosen - 1.0).abs() > 0.05;
    if growth.chosen.curve.form != Form::Linear && differ {
        sentence += &format!(
            "; the linear floor is wrong at small batches: {} ms at B={smallest} where this form says {}",
            number(linear),
            number(chosen)
        );
    }
    sentence + "."
}

/// `None` of a line: its numbers are in the table.
fn told_form(form: &FormSummary) -> Option<String> {
    let shape = with_interval(form.curve.shape_ms, form.shape_interval_ms);
    let floor = number(form.curve.floor_ms);
    match form.curve.form {
        Form::Linear => None,
        Form::Concave(experts) => Some(format!(
            "concave, {floor} ms + {} ms a request + {shape} ms as experts are touched, {} of {} by a request.",
            number(form.curve.slope_ms),
            experts.used_by_a_request,
            experts.all
        )),
        Form::Staircase(stairs) => Some(format!(
            "staircase, {floor} ms + {shape} ms a wave; {} CTAs a request on {} slots would do that.",
            stairs.ctas_per_request, stairs.slots
        )),
    }
}

fn limit(analysis: &Analysis) -> Option<String> {
    analysis.growth.as_ref()?;
    let last = analysis.batches.last()?;
    let Some(saturation) = analysis.saturation else {
        return Some(format!(
            "Time does not grow with the batch: no limit of throughput is in sight up to B={}.",
            last.batch
        ));
    };
    let at = |batch: Option<u32>| {
        batch.map_or("no batch".into(), |batch| format!("B={}", count(u64::from(batch))))
    };
    let chosen = analysis.growth.as_ref()?.chosen.curve.form.kind();
    let by = if saturation.by == chosen {
        String::new()
    } else {
        format!(" by the line, as the {} form has no limit", chosen.name())
    };
    Some(format!(
        "Throughput saturates at {} tokens/s{by}: half of it at {}, nine tenths at {}; the best measured is {} of it.",
        with_interval(saturation.tokens_per_s, saturation.interval),
        at(saturation.half_at_batch),
        at(saturation.nine_tenths_at_batch),
        percent(saturation.reached)
    ))
}

/// What is worth most at the largest batch, set against the smallest.
fn gains(analysis: &Analysis) -> Option<String> {
    let at_last =
        |family: &super::analysis::FamilySummary| family.cells.last().map(|cell| cell.gain_of_a_tenth);
    let best = analysis
        .families
        .iter()
        .max_by(|one, other| at_last(one).unwrap_or(0.0).total_cmp(&at_last(other).unwrap_or(0.0)))?;
    let (first, last) = (best.cells.first()?, best.cells.last()?);
    let small = if first.batch == last.batch {
        String::new()
    } else {
        format!(" and {} at B={}", percent(first.gain_of_a_tenth), first.batch)
    };
    Some(format!(
        "A tenth less of {} brings {} at B={}{small}.",
        best.name,
        percent(last.gain_of_a_tenth),
        last.batch
    ))
}

/// Nothing is faster than the hardware: bytes, bandwidth or family are not what they were told to be.
fn below_roofline(analysis: &Analysis) -> Option<String> {
    let cells =
        analysis.families.iter().flat_map(|family| family.cells.iter().map(move |cell| (family, cell)));
    let below = cells.filter_map(|(family, cell)| {
        let times = cell.times_roofline.filter(|times| *times < 1.0)?;
        Some((&family.name, cell.batch, times))
    });
    let (name, batch, times) = below.min_by(|one, other| one.2.total_cmp(&other.2))?;
    Some(format!(
        "{name} takes {} of its roofline's time at B={batch}, which cannot be: check the bytes and the bandwidth.",
        percent(times)
    ))
}

/// Medians of parts need not add up to the median of the whole: the slow part is another one in every run.
fn scatter(analysis: &Analysis) -> Option<String> {
    const ADD_UP_TO: f64 = 0.9;
    if analysis.families.is_empty() {
        return None;
    }
    let sums = analysis.batches.iter().enumerate().map(|(place, at)| {
        let parts: f64 = analysis.families.iter().map(|family| family.cells[place].share).sum();
        (at.batch, parts)
    });
    let (batch, parts) = sums.min_by(|one, other| one.1.total_cmp(&other.1))?;
    (parts < ADD_UP_TO).then(|| {
        format!(
            "The families' medians add up to {} of the step's at B={batch}: runs scatter, each slow in another family; measure on \
             a quieter machine.",
            percent(parts)
        )
    })
}
