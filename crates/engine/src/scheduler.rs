//! What the next step computes: a function of plain data. No I/O, no clock, no memory of its own, so that a schedule
//! can be replayed from what was known.
//!
//! First come, first served. A request is admitted once the pages for its longest possible course are free or will
//! be without anybody else's giving way: a running request never waits for pages, so there is nothing to preempt
//! and no deadlock. The price is concurrency when requests ask for far more tokens than they use.

use crate::Limits;
use overshot_kv::Pool;

/// What one request asks of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tokens known but not computed yet; 1 in decode, never 0.
    pub uncomputed: usize,
    /// Positions that it holds pages for; `None` before it has a set.
    pub held: Option<usize>,
    /// Positions that it can come to hold.
    pub most: usize,
}

impl Demand {
    /// Pages that it can still come to take.
    fn pages_to_come(&self, pool: Pool) -> usize {
        let held = self.held.map_or(0, |positions| pool.pages_for(positions));
        pool.pages_for(self.most).saturating_sub(held)
    }
}

/// All that a decision depends on, beside the limits.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// In the order of admission.
    pub running: Vec<Demand>,
    /// In the order of arrival; the first few are enough.
    pub waiting: Vec<Demand>,
    /// In the order of `Pool::ALL`.
    pub free_pages: [usize; 5],
}

/// Tokens of one request in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Index among the running requests, the newly admitted ones last.
    pub running: usize,
    pub tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// How many requests at the head of the queue start now.
    pub admitted: usize,
    pub shares: Vec<Share>,
}

pub(crate) fn decide(view: &View, limits: &Limits) -> Decision {
    let admitted = admit(view, limits);
    let running: Vec<Demand> = view.running.iter().chain(&view.waiting[..admitted]).copied().collect();
    Decision { admitted, shares: share(&running, limits) }
}

fn admit(view: &View, limits: &Limits) -> usize {
    let mut unpromised = Pool::ALL.map(|pool| {
        let promised: usize = view.running.iter().map(|demand| demand.pages_to_come(pool)).sum();
        view.free_pages[pool.index()].saturating_sub(promised)
    });
    let room = limits.running_requests.saturating_sub(view.running.len());
    let mut admitted = 0;
    for demand in view.waiting.iter().take(room) {
        if Pool::ALL.into_iter().any(|pool| demand.pages_to_come(pool) > unpromised[pool.index()]) {
            // Nobody overtakes: a long request would wait for ever behind short ones.
            break;
        }
        for pool in Pool::ALL {
            unpromised[pool.index()] -= demand.pages_to_come(pool);
        }
        admitted += 1;
    }
    admitted
}

/// Decode rows first, because somebody reads along; then prompts, oldest first, within the budget.
fn share(running: &[Demand], limits: &Limits) -> Vec<Share> {
    let (decode, prefill): (Vec<_>, Vec<_>) =
        running.iter().enumerate().partition(|(_, demand)| demand.uncomputed == 1);
    let mut budget = limits.step_tokens;
    let mut shares = Vec::new();
    for (running, demand) in decode.into_iter().chain(prefill) {
        let tokens = demand.uncomputed.min(limits.chunk_tokens).min(budget);
        if tokens == 0 {
            break;
        }
        budget -= tokens;
        shares.push(Share { running, tokens });
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(running_requests: usize, step_tokens: usize, chunk_tokens: usize) -> Limits {
        Limits { running_requests, step_tokens, chunk_tokens, ..Limits::default() }
    }

    fn running(uncomputed: usize, held: usize, most: usize) -> Demand {
        Demand { uncomputed, held: Some(held), most }
    }

    fn waiting(uncomputed: usize, most: usize) -> Demand {
        Demand { uncomputed, held: None, most }
    }

    fn shares(decision: &Decision) -> Vec<(usize, usize)> {
        decision.shares.iter().map(|share| (share.running, share.tokens)).collect()
    }

    #[test]
    fn decode_rows_come_before_prompts_and_prompts_share_what_is_left() {
        let view = View {
            running: vec![running(900, 0, 1000), running(1, 50, 60), running(70, 30, 200), running(1, 9, 20)],
            waiting: vec![],
            free_pages: [9; 5],
        };
        let decision = decide(&view, &limits(8, 150, 100));
        assert_eq!(shares(&decision), [(1, 1), (3, 1), (0, 100), (2, 48)]);
    }

    #[test]
    fn a_request_starts_in_the_step_that_admits_it() {
        let view =
            View { running: vec![], waiting: vec![waiting(5, 10), waiting(7, 10)], free_pages: [2; 5] };
        let decision = decide(&view, &limits(8, 10, 100));
        assert_eq!((decision.admitted, shares(&decision)), (2, vec![(0, 5), (1, 5)]));
    }

    #[test]
    fn pages_promised_to_running_requests_are_not_given_away() {
        let free_pages = [3; 5];
        let view = |most| View {
            running: vec![running(1, 256, 700)],
            waiting: vec![waiting(5, most), waiting(5, 6)],
            free_pages,
        };
        // Two of the three free pages are promised.
        assert_eq!(decide(&view(256), &limits(8, 10, 100)).admitted, 1);
        assert_eq!(decide(&view(257), &limits(8, 10, 100)).admitted, 0, "nobody overtakes");
    }

    #[test]
    fn the_number_of_running_requests_is_bounded() {
        let view = View {
            running: vec![running(1, 1, 9)],
            waiting: vec![waiting(1, 9), waiting(1, 9)],
            free_pages: [9; 5],
        };
        assert_eq!(decide(&view, &limits(2, 10, 100)).admitted, 1);
        assert_eq!(decide(&view, &limits(1, 10, 100)).admitted, 0);
    }
}
