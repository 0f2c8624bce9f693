//! Whose turn it is: plans come in the order of their numbers, and a placeholder names a row that draws in the plan
//! before. Knows plans only, no rank.

use crate::{BackendError, StepPlan};
use overshot_kv::PoolCapacity;

pub struct Turn {
    vocab_size: usize,
    capacity: PoolCapacity,
    next: u64,
    /// The last plan that was admitted.
    last: Option<Admitted>,
}

struct Admitted {
    number: u64,
    /// By row: whether it draws.
    draws: Vec<bool>,
}

impl Turn {
    pub fn new(vocab_size: usize, capacity: PoolCapacity) -> Self {
        Turn { vocab_size, capacity, next: 0, last: None }
    }

    /// # Errors
    /// Another number is due.
    pub fn expect(&self, number: u64) -> Result<(), BackendError> {
        match number == self.next {
            true => Ok(()),
            false => Err(BackendError::OutOfOrder { number, expected: self.next }),
        }
    }

    /// Takes a plan in its turn, and with it its number, even when the plan is refused. Gives the number of the last
    /// plan that was admitted before it.
    ///
    /// # Errors
    /// What is wrong with the plan.
    pub fn admit(&mut self, plan: &StepPlan) -> Result<Option<u64>, BackendError> {
        self.expect(plan.number)?;
        self.next += 1;
        plan.check(self.vocab_size, self.capacity)?;
        for (row, contents) in plan.rows.iter().enumerate() {
            if let Some(named) = contents.placeholder {
                self.check_placeholder(plan.number, named).map_err(|what| BackendError::BadRow {
                    number: plan.number,
                    row,
                    what,
                })?;
            }
        }
        let draws = plan.rows.iter().map(|row| row.draws()).collect();
        let before = self.last.replace(Admitted { number: plan.number, draws });
        Ok(before.map(|plan| plan.number))
    }

    fn check_placeholder(&self, number: u64, named: usize) -> Result<(), String> {
        let before = self.last.as_ref().filter(|last| last.number + 1 == number);
        let Some(before) = before else {
            return Err(format!("it goes on from row {named} of the step plan before, which never ran"));
        };
        match before.draws.get(named) {
            Some(true) => Ok(()),
            Some(false) => Err(format!(
                "it goes on from row {named} of step plan {}, which draws nothing",
                before.number
            )),
            None => Err(format!(
                "it goes on from row {named} of step plan {}, which has {} rows",
                before.number,
                before.draws.len()
            )),
        }
    }
}
