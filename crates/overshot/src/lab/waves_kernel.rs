//! `overshot lab waves --kernel decode`: what our own decode attention would run at each batch: kernel, splits or workers, waves
//! and time, from the code that chooses at run time (`overshot-gpu-model`'s `choose`), and where one row more costs most.

use super::numbers::{Batches, at_least_one, not_negative};
use crate::failure::bad_input;
use crate::table::Table as Text;
use clap::{Args, ValueEnum};
use overshot_gpu_model::{Basis, Card, KernelChoice, Lists, Load, Pin, Table, Target, choose};
use serde::Serialize;
use std::io::{self, Write};
use std::num::NonZeroU32;

const STEPS_SHOWN: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// Decode attention over a window's and a compressed list.
    Decode,
}

#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Show which of our kernels serves each batch, and its predicted time; needs --card
    #[arg(long, value_enum, value_name = "decode", requires = "card")]
    kernel: Option<Kernel>,

    /// Heads of a row, with --kernel
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = at_least_one, default_value = "16")]
    heads: NonZeroU32,

    /// Entries of the window's list, with --kernel
    #[arg(long, value_name = "N", default_value = "128")]
    window: u32,

    /// Entries of the longest compressed list, with --kernel
    #[arg(long, value_name = "K", default_value = "512")]
    top_k: u32,

    /// Entries of the mean compressed list, where rows differ [default: --top-k]
    #[arg(long, value_name = "ENTRIES", allow_negative_numbers = true, value_parser = not_negative)]
    mean_top_k: Option<f64>,

    /// Use this kernel, with N splits or workers, instead of the quickest
    #[arg(long, value_name = "NAME[:N]", requires = "kernel")]
    decode_kernel: Option<Pin>,
}

#[derive(Serialize)]
pub struct Choices {
    basis: Basis,
    heads: NonZeroU32,
    lists: [Lists; 2],
    rows: Vec<Row>,
    /// Steps of the batch that cost more than they bring, the worst first.
    steps: Vec<Step>,
}

#[derive(Serialize)]
struct Step {
    from_batch: u32,
    batch: u32,
    time_ratio: f64,
    batch_ratio: f64,
}

#[derive(Serialize)]
struct Row {
    batch: u32,
    #[serde(flatten)]
    choice: KernelChoice,
}

impl Flags {
    /// # Errors
    /// Lists that cannot be, a pin that names no kernel.
    pub fn answer(&self, card: Option<Card>, batches: &Batches) -> anyhow::Result<Option<Choices>> {
        let (Some(Kernel::Decode), Some(card)) = (self.kernel, card) else { return Ok(None) };
        let target = Target::of_card(&card);
        let table = Table::built_in();
        let mean = self.mean_top_k.unwrap_or(f64::from(self.top_k));
        let lists = [Lists::even(self.window), Lists { mean, longest: self.top_k }];
        let row = |&batch: &u32| {
            let load = Load::new(batch, self.heads.get(), lists)?;
            Ok(Row { batch, choice: choose(&table, &target, &load, self.decode_kernel.as_ref())? })
        };
        let rows: Result<Vec<Row>, overshot_gpu_model::ChooseError> = batches.0.iter().map(row).collect();
        let rows = rows.map_err(|error| bad_input(error.to_string()))?;
        Ok(Some(Choices { basis: table.basis(&target), heads: self.heads, lists, steps: steps(&rows), rows }))
    }
}

impl Choices {
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let [window, compressed] = self.lists;
        writeln!(
            out,
            "\nDecode attention, {} heads, {} + {} entries (mean {:.0}); {}",
            self.heads, window.longest, compressed.longest, compressed.mean, self.basis
        )?;
        let mut text = Text::new(&[
            "rows",
            "kernel",
            "rows dealt",
            "CTAs",
            "waves",
            "us",
            "us a row",
            "next best",
            "us",
        ]);
        for Row { batch, choice } in &self.rows {
            let plan = &choice.plan;
            let next = choice.rejected.first();
            text.row([
                batch.to_string(),
                plan.kernel.clone(),
                plan.deal.to_string(),
                plan.grid.ctas.to_string(),
                plan.grid.waves.to_string(),
                format!("{:.1}", plan.us),
                format!("{:.3}", plan.us / f64::from(*batch)),
                next.map_or_else(String::new, |next| next.kernel.clone()),
                next.map_or_else(String::new, |next| format!("{:.1}", next.us)),
            ]);
        }
        text.write(out)?;
        if self.steps.is_empty() {
            return writeln!(out, "\nNo step of the batch costs more than it brings.");
        }
        writeln!(out, "\nSteps that cost more than they bring, the worst of {}", self.steps.len())?;
        for Step { from_batch, batch, time_ratio, batch_ratio } in self.steps.iter().take(STEPS_SHOWN) {
            writeln!(
                out,
                "  {batch} rows: {time_ratio:.2}x the time of {from_batch} for {batch_ratio:.2}x the rows"
            )?;
        }
        Ok(())
    }
}

fn steps(rows: &[Row]) -> Vec<Step> {
    let step = |pair: &[Row]| {
        let (from, to) = (&pair[0], &pair[1]);
        let step = Step {
            from_batch: from.batch,
            batch: to.batch,
            time_ratio: to.choice.plan.us / from.choice.plan.us,
            batch_ratio: f64::from(to.batch) / f64::from(from.batch),
        };
        (step.time_ratio > step.batch_ratio * (1.0 + 1e-9)).then_some(step)
    };
    let mut steps: Vec<Step> = rows.windows(2).filter_map(step).collect();
    let loss = |step: &Step| step.time_ratio / step.batch_ratio;
    steps.sort_by(|one, other| loss(other).total_cmp(&loss(one)));
    steps
}
