//! What the next step computes: a function of plain data. No I/O, no clock, no memory of its own, so that a schedule
//! can be replayed from what was known.
//!
//! * Requests start in the order of arrival, and nobody overtakes: a long one would wait for ever behind short ones.
//!   A request starts once the cache has room for what is known of it, and a page more for everybody to grow into.
//! * Decode rows come first in every step, because somebody reads along. What is left of the step's tokens goes to
//!   prompts: a chunk to the oldest, so that it always moves on, then to the shortest, so that a short one does not
//!   wait for a long one's end.
//! * When a row finds no page, the youngest running request gives back its whole set and waits at the head of the
//!   queue; its tokens are computed again later. The oldest never gives way, so somebody always gets on.

use crate::Limits;
use overshot_kv::Pool;

/// What one request asks of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tokens to plan next; 1 in decode, 0 when only its last draw is awaited.
    pub unplanned: usize,
    /// Positions that it holds pages for; `None` before it has a set.
    pub held: Option<usize>,
    /// Positions that it can come to hold.
    pub most: usize,
}

impl Demand {
    /// Pages to take so that it holds `positions`.
    fn pages_to(&self, positions: usize, pool: Pool) -> usize {
        pool.pages_for(positions) - self.pages_held(pool)
    }

    fn pages_held(&self, pool: Pool) -> usize {
        self.held.map_or(0, |held| pool.pages_for(held))
    }

    fn can_grow(&self, known: usize, pool: Pool) -> bool {
        pool.pages_for(self.most) > pool.pages_for(known)
    }
}

/// All that a decision depends on, beside the limits.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// In the order of arrival.
    pub running: Vec<Demand>,
    /// In the order of arrival, all after the running ones; the first few are enough.
    pub waiting: Vec<Demand>,
    pub free_pages: FreePages,
}

/// In the order of `Pool::ALL`.
pub(crate) type FreePages = [usize; 5];

/// Tokens of one request in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Index among the running requests, the newly admitted ones last.
    pub running: usize,
    pub tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// How many of the youngest running requests give way.
    pub preempted: usize,
    /// How many requests at the head of the queue start now; none when any gives way.
    pub admitted: usize,
    pub shares: Vec<Share>,
}

pub(crate) fn decide(view: &View, limits: &Limits) -> Decision {
    let admitted = admit(view, limits);
    let running: Vec<Demand> = view.running.iter().chain(&view.waiting[..admitted]).copied().collect();
    let mut shares = share(&running, limits);
    let kept = find_pages(&running, &mut shares, view.free_pages);
    if kept < view.running.len() {
        // The shares of requests that would have started are gone with those of the youngest running ones.
        return Decision { preempted: view.running.len() - kept, admitted: 0, shares };
    }
    Decision { preempted: 0, admitted: kept - view.running.len(), shares }
}

fn admit(view: &View, limits: &Limits) -> usize {
    let mut free = view.free_pages;
    for demand in &view.running {
        let known = demand.held.unwrap_or(0) + demand.unplanned;
        for pool in Pool::ALL {
            let wanted = demand.pages_to(known, pool) + usize::from(demand.can_grow(known, pool));
            free[pool.index()] = free[pool.index()].saturating_sub(wanted);
        }
    }
    let room = limits.running_requests.saturating_sub(view.running.len());
    let mut admitted = 0;
    for demand in view.waiting.iter().take(room) {
        let is_alone = view.running.is_empty() && admitted == 0;
        let pages = |pool: Pool| {
            // Alone, it may take all there is: nobody else could use it.
            let to_grow = !is_alone && demand.can_grow(demand.unplanned, pool);
            demand.pages_to(demand.unplanned, pool) + usize::from(to_grow)
        };
        if Pool::ALL.into_iter().any(|pool| pages(pool) > free[pool.index()]) {
            break;
        }
        for pool in Pool::ALL {
            free[pool.index()] -= pages(pool);
        }
        admitted += 1;
    }
    admitted
}

/// Decode rows, then prompts: the oldest, then the shortest.
fn share(running: &[Demand], limits: &Limits) -> Vec<Share> {
    let asking = running.iter().enumerate().filter(|(_, demand)| demand.unplanned > 0);
    let (decode, mut prefill): (Vec<_>, Vec<_>) = asking.partition(|(_, demand)| demand.unplanned == 1);
    if let Some(others) = prefill.get_mut(1..) {
        others.sort_by_key(|(_, demand)| demand.unplanned);
    }
    let mut budget = limits.step_tokens;
    let mut shares = Vec::new();
    for (running, demand) in decode.into_iter().chain(prefill) {
        let tokens = demand.unplanned.min(limits.chunk_tokens).min(budget);
        if tokens == 0 {
            break;
        }
        budget -= tokens;
        shares.push(Share { running, tokens });
    }
    shares
}

/// Finds pages for the shares, oldest request first, taking them from the youngest where none are free. Says how
/// many of the running requests stay, and leaves only their shares.
fn find_pages(running: &[Demand], shares: &mut Vec<Share>, mut free: FreePages) -> usize {
    let mut tokens_of = vec![0; running.len()];
    for share in shares.iter() {
        tokens_of[share.running] = share.tokens;
    }
    let mut kept = running.len();
    let mut index = 0;
    while index < kept {
        let demand = &running[index];
        let end = demand.held.unwrap_or(0) + tokens_of[index];
        let needed = |pool: Pool| if tokens_of[index] == 0 { 0 } else { demand.pages_to(end, pool) };
        if Pool::ALL.into_iter().all(|pool| needed(pool) <= free[pool.index()]) {
            for pool in Pool::ALL {
                free[pool.index()] -= needed(pool);
            }
            index += 1;
            continue;
        }
        kept -= 1;
        for pool in Pool::ALL {
            free[pool.index()] += running[kept].pages_held(pool);
        }
    }
    shares.retain(|share| share.running < kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(running_requests: usize, step_tokens: usize, chunk_tokens: usize) -> Limits {
        Limits { running_requests, step_tokens, chunk_tokens, ..Limits::default() }
    }

    fn running(unplanned: usize, held: usize, most: usize) -> Demand {
        Demand { unplanned, held: Some(held), most }
    }

    fn waiting(unplanned: usize, most: usize) -> Demand {
        Demand { unplanned, held: None, most }
    }

    fn shares(decision: &Decision) -> Vec<(usize, usize)> {
        decision.shares.iter().map(|share| (share.running, share.tokens)).collect()
    }

    #[test]
    fn decode_rows_come_first_then_the_oldest_prompt_then_the_shortest() {
        let view = View {
            running: vec![
                running(900, 0, 1000),
                running(1, 50, 60),
                running(300, 0, 310),
                running(70, 30, 200),
                running(0, 80, 81),
                running(1, 9, 20),
            ],
            waiting: vec![],
            free_pages: [19; 5],
        };
        let decision = decide(&view, &limits(8, 250, 100));
        assert_eq!(shares(&decision), [(1, 1), (5, 1), (0, 100), (3, 70), (2, 78)]);
        assert_eq!(decision.preempted, 0);
    }

    #[test]
    fn a_request_starts_in_the_step_that_admits_it() {
        let view =
            View { running: vec![], waiting: vec![waiting(5, 10), waiting(7, 10)], free_pages: [2; 5] };
        let decision = decide(&view, &limits(8, 10, 100));
        assert_eq!((decision.admitted, shares(&decision)), (2, vec![(0, 5), (1, 5)]));
    }

    #[test]
    fn everybody_keeps_a_page_to_grow_into() {
        let view = |free_pages, most| View {
            running: vec![running(1, 256, 700)],
            waiting: vec![waiting(5, most), waiting(5, 6)],
            free_pages: [free_pages; 5],
        };
        // The running request takes a page now and keeps another.
        assert_eq!(decide(&view(3, 256), &limits(8, 10, 100)).admitted, 1);
        assert_eq!(decide(&view(3, 257), &limits(8, 10, 100)).admitted, 0, "nobody overtakes");
        assert_eq!(decide(&view(4, 257), &limits(8, 10, 100)).admitted, 1);
        assert_eq!(decide(&view(5, 257), &limits(8, 10, 100)).admitted, 2);
    }

    #[test]
    fn alone_a_request_may_take_all_there_is() {
        let view = View { running: vec![], waiting: vec![waiting(256, 300)], free_pages: [1; 5] };
        assert_eq!(decide(&view, &limits(8, 1000, 1000)).admitted, 1);
    }

    #[test]
    fn the_youngest_give_way_to_the_oldest() {
        let view = View {
            running: vec![running(1, 256, 600), running(1, 100, 200), running(1, 256, 300)],
            waiting: vec![waiting(5, 10)],
            free_pages: [0; 5],
        };
        let decision = decide(&view, &limits(8, 100, 100));
        assert_eq!((decision.preempted, decision.admitted), (1, 0));
        assert_eq!(shares(&decision), [(0, 1), (1, 1)]);
    }

    #[test]
    fn the_youngest_gives_way_to_nobody_else_by_itself() {
        let view = View {
            running: vec![running(1, 100, 200), running(1, 256, 300)],
            waiting: vec![],
            free_pages: [0; 5],
        };
        let decision = decide(&view, &limits(8, 100, 100));
        assert_eq!((decision.preempted, shares(&decision)), (1, vec![(0, 1)]));
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

    /// Whatever is asked: bounds hold, pages suffice, the oldest that asks gets something.
    #[test]
    fn every_decision_keeps_its_promises() {
        let mut random = overshot_testing::rng();
        for _ in 0..20_000 {
            let limits = limits(random.usize(1..9), random.usize(9..200), random.usize(1..100));
            let count = random.usize(0..=limits.running_requests);
            let running: Vec<Demand> = (0..count)
                .map(|_| {
                    let held = random.usize(0..700);
                    running(random.usize(0..300), held, held + random.usize(300..900))
                })
                .collect();
            let waiting: Vec<Demand> = (0..random.usize(0..5))
                .map(|_| {
                    let unplanned = random.usize(1..600);
                    waiting(unplanned, unplanned + random.usize(0..500))
                })
                .collect();
            // The cache holds the longest course of each when it is alone.
            let pages = 5 + random.usize(0..12);
            let held: FreePages =
                Pool::ALL.map(|pool| running.iter().map(|demand| demand.pages_held(pool)).sum());
            let free_pages = held.map(|held| pages.max(held + random.usize(0..2)) - held);
            let view = View { running, waiting, free_pages };
            let decision = decide(&view, &limits);
            check(&view, &limits, &decision);
        }
    }

    fn check(view: &View, limits: &Limits, decision: &Decision) {
        let kept = view.running.len() - decision.preempted;
        assert!(kept + decision.admitted <= limits.running_requests);
        assert!(decision.preempted == 0 || decision.admitted == 0);
        assert!(decision.shares.iter().map(|share| share.tokens).sum::<usize>() <= limits.step_tokens);
        let all: Vec<&Demand> =
            view.running[..kept].iter().chain(&view.waiting[..decision.admitted]).collect();
        for pool in Pool::ALL {
            let freed: usize = view.running[kept..].iter().map(|demand| demand.pages_held(pool)).sum();
            let taken: usize = decision
                .shares
                .iter()
                .map(|share| {
                    let demand = all[share.running];
                    assert!(share.tokens <= demand.unplanned.min(limits.chunk_tokens));
                    demand.pages_to(demand.held.unwrap_or(0) + share.tokens, pool)
                })
                .sum();
            assert!(taken <= view.free_pages[pool.index()] + freed, "{view:?} {decision:?}");
        }
        let asks = |demand: &Demand| demand.unplanned > 0;
        if view.running.iter().chain(&view.waiting).take(1).any(asks) {
            assert!(!decision.shares.is_empty(), "{view:?} {decision:?}");
        }
    }
}
