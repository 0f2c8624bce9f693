//! Tokens to logits without an engine, for commands that have nothing to schedule.

use crate::failure::damaged_model;
use anyhow::{Context, bail};
use overshot_backend::{Backend, Row, StepPlan, Wanted};
use overshot_kv::{Kv, SetId};

/// Feeds tokens to a backend that has nothing else to do.
pub struct Feeder {
    backend: Box<dyn Backend>,
    kv: Kv,
    set: SetId,
    next_plan: u64,
    pub vocab: usize,
    model_label: String,
}

impl Feeder {
    pub fn start(backend: Box<dyn Backend>, model_label: String) -> anyhow::Result<Self> {
        let mut kv = Kv::new(backend.capacity());
        let set = kv.create()?;
        let vocab = backend.spec().vocab_size;
        Ok(Feeder { backend, kv, set, next_plan: 0, vocab, model_label })
    }

    /// Appends tokens; returns the logits after each of them, `[tokens, vocab]`.
    ///
    /// # Errors
    /// A backend that fails, or logits that are no numbers.
    pub fn feed(&mut self, tokens: &[u32]) -> anyhow::Result<Vec<f32>> {
        let start = self.kv.len(self.set)?;
        let logits = self.feed_whatever_comes(tokens)?;
        match logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            Some(at) => {
                let detail = format!("first at position {}", start + at / self.vocab);
                bail!(damaged_model(&self.model_label, &detail))
            }
            None => Ok(logits),
        }
    }

    /// As [`Self::feed`], for a caller who looks at the logits himself.
    pub fn feed_whatever_comes(&mut self, tokens: &[u32]) -> anyhow::Result<Vec<f32>> {
        let start = self.kv.len(self.set)?;
        let page_ops = self.kv.extend(self.set, tokens.len())?;
        let pages = self.kv.table(self.set)?.clone();
        let row = Row { tokens: tokens.to_vec(), start, placeholder: None, pages, wanted: Wanted::AllLogits };
        let plan = StepPlan { number: self.next_plan, page_ops, rows: vec![row], ..StepPlan::default() };
        self.next_plan += 1;
        let result = self.backend.step(plan)?;
        let logits = result.rows.into_iter().next().context("the backend answered without a row")?.logits;
        if logits.len() != tokens.len() * self.vocab {
            bail!("the backend answered with {} logits for {} tokens", logits.len(), tokens.len());
        }
        Ok(logits)
    }
}
