//! From what ran when to times a step. Steps begin, in the order in which it is tried unless told otherwise:
//!
//! 1. where an annotation of a known kind begins (SGLang's, vLLM's, PyTorch's `ProfilerStep`), best on the device's clock; of
//!    annotations on the host's clock the first thing that was launched within counts;
//! 2. after gaps that are far longer than all others, when about as many kernels lie between any two.
//!
//! A step lasts to the beginning of the next, so the last one is left out. What starts in a step belongs to it.

use super::timeline::{Annotation, AnnotationClock, Ran, Timeline};
use super::{Pattern, TracedSteps};
use crate::profile::families::{FamilyRules, OTHER};
use crate::profile::{HOST_GAP, RUNS_MAX, StepClock};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// How steps are told apart.
#[derive(Clone, Debug, PartialEq)]
pub enum StepRule {
    Found,
    /// The trace holds so many, from its first kernel to its last.
    Count(NonZeroU32),
    Annotation(Pattern),
    /// It runs once a step.
    Kernel(Pattern),
}

/// A beginning of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Begin {
    us: f64,
    /// Whether the step counts: of a server's trace, those that only decode.
    counts: bool,
}

/// The share of kernel time that may run side by side before it is worth a note.
const SIDE_BY_SIDE_NOTED: f64 = 0.01;
const UNKNOWN_SHOWN: usize = 8;

/// # Errors
/// The rest of a sentence: no steps, or none that counts.
pub fn of_timeline(
    mut timeline: Timeline,
    rule: &StepRule,
    rules: &FamilyRules,
) -> Result<TracedSteps, String> {
    let places = timeline.keep_the_busiest_place();
    timeline.sort();
    if timeline.on_host {
        timeline.keep_outermost();
    }
    let (mut begins, mut notes) = match rule {
        StepRule::Count(_) => (whole(&timeline), Vec::new()),
        StepRule::Found => match annotated(&timeline, None) {
            Some(begins) => (begins, Vec::new()),
            None => (after_gaps(&timeline.ran)?, vec!["steps begin after the longest gaps".into()]),
        },
        StepRule::Annotation(pattern) => (
            annotated(&timeline, Some(pattern)).ok_or("no annotation that it names ties to what ran")?,
            Vec::new(),
        ),
        StepRule::Kernel(pattern) => (at_kernels(&timeline, pattern)?, Vec::new()),
    };
    if places > 1 {
        let kind = if timeline.on_host { "threads" } else { "devices" };
        notes.push(format!("what ran on {places} {kind} is in the trace: the busiest one counts"));
    }
    if begins.iter().all(|begin| !begin.counts) {
        return Err(format!("{} steps are in it, and none that only decodes", begins.len()));
    }
    if begins.len() == 1 {
        let end = timeline.ran.iter().map(|ran| ran.start_us + ran.duration_us).fold(f64::MIN, f64::max);
        begins.push(Begin { us: end, counts: false });
    }
    let steps = match rule {
        StepRule::Count(steps) => f64::from(steps.get()),
        _ => 1.0,
    };
    let mut traced = sums(&timeline, &begins, steps, rules)?;
    traced.notes.splice(0..0, notes);
    Ok(traced)
}

fn whole(timeline: &Timeline) -> Vec<Begin> {
    timeline.ran.first().map(|ran| Begin { us: ran.start_us, counts: true }).into_iter().collect()
}

/// Begins of the steps that annotations tell; `None` when there are none of a known kind, or they tie to nothing.
fn annotated(timeline: &Timeline, asked: Option<&Pattern>) -> Option<Vec<Begin>> {
    type Kind = fn(&str) -> Option<bool>;
    // Each says whether a name is of its kind, and if so, whether the step only decodes.
    const KINDS: [Kind; 3] = [
        |name| name.starts_with("step[").then(|| name.contains("DECODE")),
        |name| name.starts_with("execute_context_").then(|| name.starts_with("execute_context_0(0)")),
        |name| name.starts_with("ProfilerStep").then_some(true),
    ];
    let spans = |clock, counts: &dyn Fn(&str) -> Option<bool>| -> Vec<(Annotation, bool)> {
        let of_clock = timeline.annotations.iter().filter(|annotation| annotation.clock == clock);
        let known = of_clock.filter_map(|annotation| {
            Some((*annotation, counts(&timeline.names()[annotation.name as usize])?))
        });
        // On several streams a step has a span each: the first stands for all.
        let mut end_us = f64::NEG_INFINITY;
        let mut outermost = Vec::new();
        for (annotation, counts) in known {
            if annotation.start_us >= end_us {
                outermost.push((annotation, counts));
                end_us = annotation.start_us + annotation.duration_us;
            }
        }
        outermost
    };
    let asked_for = |name: &str| asked.is_some_and(|pattern| pattern.matches(name)).then_some(true);
    for clock in [AnnotationClock::Device, AnnotationClock::Host] {
        let candidates = match asked {
            Some(_) => vec![spans(clock, &asked_for)],
            None => KINDS.iter().map(|kind| spans(clock, kind)).collect(),
        };
        for spans in candidates.into_iter().filter(|spans| !spans.is_empty()) {
            let begins = if clock == AnnotationClock::Host && !timeline.on_host {
                first_launched(timeline, &spans)
            } else {
                spans.iter().map(|(span, counts)| Begin { us: span.start_us, counts: *counts }).collect()
            };
            if !begins.is_empty() {
                return Some(begins);
            }
        }
    }
    None
}

/// When the first of what each span launched began to run. Spans that launched nothing are left out.
fn first_launched(timeline: &Timeline, spans: &[(Annotation, bool)]) -> Vec<Begin> {
    let mut first = vec![f64::INFINITY; spans.len()];
    for ran in &timeline.ran {
        let Some(launched) = timeline.launches.get(&ran.correlation) else { continue };
        let begun = spans.partition_point(|(span, _)| span.start_us <= *launched);
        if let Some(place) = begun.checked_sub(1) {
            let span = spans[place].0;
            if *launched <= span.start_us + span.duration_us {
                first[place] = first[place].min(ran.start_us);
            }
        }
    }
    let begins = first.iter().zip(spans).map(|(us, (_, counts))| Begin { us: *us, counts: *counts });
    let mut begins: Vec<Begin> = begins.filter(|begin| begin.us.is_finite()).collect();
    begins.sort_by(|one, other| one.us.total_cmp(&other.us));
    begins
}

fn at_kernels(timeline: &Timeline, pattern: &Pattern) -> Result<Vec<Begin>, String> {
    let matching: Vec<bool> = timeline.names().iter().map(|name| pattern.matches(name)).collect();
    let of_kernel = timeline.ran.iter().filter(|ran| matching[ran.name as usize]);
    let begins: Vec<Begin> = of_kernel.map(|ran| Begin { us: ran.start_us, counts: true }).collect();
    if begins.len() < 2 {
        return Err(format!(
            "the kernel that --step-kernel names runs {} times: two steps need it twice",
            begins.len()
        ));
    }
    Ok(begins)
}

fn after_gaps(ran: &[Ran]) -> Result<Vec<Begin>, String> {
    /// How much longer a gap between steps must be than one within.
    const LONGER_BY: f64 = 3.0;
    /// Shorter ones are no gaps.
    const GAP_US_MIN: f64 = 1.0;
    let refusal = || {
        "no steps can be told in it: say how many it holds with --steps, or name a kernel that runs once a step with \
         --step-kernel, or annotations with --step-name"
            .to_owned()
    };
    let mut end_us = ran.first().map_or(0.0, |ran| ran.start_us);
    let mut gaps: Vec<(f64, usize)> = Vec::new();
    for (place, ran) in ran.iter().enumerate() {
        if ran.start_us > end_us {
            gaps.push((ran.start_us - end_us, place));
        }
        end_us = end_us.max(ran.start_us + ran.duration_us);
    }
    gaps.sort_by(|one, other| other.0.total_cmp(&one.0));
    let most = gaps.len().min(RUNS_MAX);
    let next_us = |count: usize| gaps.get(count).map_or(0.0, |gap| gap.0).max(GAP_US_MIN);
    let ratio = |count: &usize| gaps[count - 1].0 / next_us(*count);
    let firsts = |count: usize| {
        let mut firsts: Vec<usize> = gaps[..count].iter().map(|(_, place)| *place).chain([0]).collect();
        firsts.sort_unstable();
        firsts
    };
    let cuts = (1..=most).filter(|count| ratio(count) >= LONGER_BY && are_alike(&firsts(*count)));
    let cut = cuts.max_by(|one, other| ratio(one).total_cmp(&ratio(other))).ok_or_else(refusal)?;
    // The first step may have been cut by the beginning of the trace.
    Ok(firsts(cut)[1..].iter().map(|place| Begin { us: ran[*place].start_us, counts: true }).collect())
}

/// Whether about as many kernels lie between any two of these, and more than one: else the gaps are those between kernels.
/// The first and the last part may have been cut.
fn are_alike(firsts: &[usize]) -> bool {
    let kernels: Vec<usize> = firsts.windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect();
    match (kernels.iter().min(), kernels.iter().max()) {
        (Some(fewest @ 2..), Some(most)) => *most * 10 <= *fewest * 11,
        _ => false,
    }
}

/// Adds up each step between neighbouring begins, and shares it out over `steps`.
fn sums(
    timeline: &Timeline,
    begins: &[Begin],
    steps: f64,
    rules: &FamilyRules,
) -> Result<TracedSteps, String> {
    let names: Vec<&str> = rules.names().collect();
    let family_of: Vec<usize> = timeline.names().iter().map(|name| rules.family_of(name)).collect();
    let other = names.len() - 1;
    let mut kernel_us = vec![0.0; timeline.names().len()];
    let (mut step_ms, mut gap_ms) = (Vec::new(), Vec::new());
    let mut family_ms = vec![Vec::new(); names.len()];
    let (mut added_us, mut covered_us) = (0.0, 0.0);
    let mut end_us = f64::NEG_INFINITY;
    let mut next = timeline.ran.partition_point(|ran| ran.start_us < begins[0].us);
    let mut left_out = 0;
    for pair in begins.windows(2) {
        let (begin, end) = (pair[0], pair[1]);
        let mut families = vec![0.0; names.len()];
        let mut covered = (end_us.min(end.us) - begin.us).max(0.0);
        let first = next;
        while let Some(ran) = timeline.ran.get(next).filter(|ran| ran.start_us < end.us) {
            let ends_us = ran.start_us + ran.duration_us;
            families[family_of[ran.name as usize]] += ran.duration_us;
            covered += (ends_us.min(end.us) - ran.start_us.max(end_us)).max(0.0);
            end_us = end_us.max(ends_us);
            next += 1;
        }
        if !begin.counts || next == first {
            continue;
        }
        if step_ms.len() == RUNS_MAX {
            left_out += 1;
            continue;
        }
        for ran in &timeline.ran[first..next] {
            kernel_us[ran.name as usize] += ran.duration_us;
        }
        added_us += families.iter().sum::<f64>();
        covered_us += covered;
        step_ms.push((end.us - begin.us) / 1e3 / steps);
        gap_ms.push((end.us - begin.us - covered).max(0.0) / 1e3 / steps);
        for (times, us) in family_ms.iter_mut().zip(families) {
            times.push(us / 1e3 / steps);
        }
    }
    if step_ms.is_empty() {
        return Err("no kernel runs between the steps that were found".into());
    }
    let mut notes = Vec::new();
    if left_out > 0 {
        notes.push(format!("the first {RUNS_MAX} steps count, {left_out} more do not"));
    }
    let side_by_side = 1.0 - covered_us / added_us.max(f64::MIN_POSITIVE);
    if side_by_side > SIDE_BY_SIDE_NOTED {
        notes.push(format!(
            "{:.0} % of the kernels' time runs side by side: families add up to more than the step",
            side_by_side * 100.0
        ));
    }
    let is_there = |times: &Vec<f64>| times.iter().any(|ms| *ms > 0.0);
    let families = names.iter().zip(family_ms).filter(|(_, times)| is_there(times));
    let mut families: BTreeMap<String, Vec<f64>> =
        families.map(|(name, times)| ((*name).to_owned(), times)).collect();
    families.insert(HOST_GAP.to_owned(), gap_ms);
    debug_assert_eq!(names[other], OTHER);
    let of_other = kernel_us.iter().enumerate().filter(|(name, us)| family_of[*name] == other && **us > 0.0);
    let unknown = of_other.map(|(name, us)| (timeline.names()[name].clone(), us / added_us));
    Ok(TracedSteps {
        clock: StepClock::Wall,
        step_ms,
        families,
        device: timeline.device.clone(),
        sms: timeline.sms,
        unknown: longest(unknown.collect()),
        notes,
    })
}

/// The largest shares first, and no more than anybody reads.
pub(super) fn longest(mut unknown: Vec<(String, f64)>) -> Vec<(String, f64)> {
    unknown.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    unknown.truncate(UNKNOWN_SHOWN);
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of three kernels of 3, 2 and 1 ms with 0.1 ms between, and `gap_us` before each step.
    fn timeline(steps: usize, gap_us: f64) -> Timeline {
        let mut timeline = Timeline::default();
        let mut now = 1000.0;
        for step in 0..steps {
            now += gap_us;
            for (name, ms) in [("flash_decode", 3.0), ("fused_moe", 2.0), ("my_kernel", 1.0)] {
                let name = timeline.name(name).unwrap();
                let correlation = 10 * step as u32 + 1;
                timeline.launch(correlation, step as f64).unwrap();
                timeline
                    .push(Ran { start_us: now, duration_us: ms * 1e3, name, correlation, place: 0 })
                    .unwrap();
                now += ms * 1e3 + 100.0;
            }
            now -= 100.0;
        }
        timeline
    }

    fn annotate(
        timeline: &mut Timeline,
        name: &str,
        start_us: f64,
        duration_us: f64,
        clock: AnnotationClock,
    ) {
        let name = timeline.name(name).unwrap();
        timeline.annotate(Annotation { name, start_us, duration_us, clock }).unwrap();
    }

    fn of(timeline: Timeline, rule: &StepRule) -> Result<TracedSteps, String> {
        of_timeline(timeline, rule, &FamilyRules::default())
    }

    fn assert_steps(traced: &TracedSteps, count: usize, step_ms: f64, gap_ms: f64) {
        assert_eq!(traced.step_ms.len(), count, "{traced:?}");
        let near = |times: &[f64], ms: f64| times.iter().all(|time| (time - ms).abs() < 1e-6);
        assert!(near(&traced.step_ms, step_ms), "{traced:?}");
        for (name, ms) in [("attention", 3.0), ("experts", 2.0), (OTHER, 1.0), (HOST_GAP, gap_ms)] {
            assert!(near(&traced.families[name], ms), "{name}: {traced:?}");
        }
        assert_eq!(traced.unknown[0].0, "my_kernel");
    }

    #[test]
    fn steps_are_found_by_gaps() {
        // The first and the last step may be cut.
        assert_steps(&of(timeline(6, 900.0), &StepRule::Found).unwrap(), 4, 7.1, 1.1);
        let told = of(timeline(6, 100.0), &StepRule::Found).unwrap_err();
        assert!(told.contains("--steps") && told.contains("--step-kernel"), "{told}");
    }

    #[test]
    fn steps_are_counted_or_begin_at_a_kernel() {
        let rule = StepRule::Kernel(Pattern::new("flash").unwrap());
        assert_steps(&of(timeline(5, 100.0), &rule).unwrap(), 4, 6.3, 0.3);
        let rule = StepRule::Count(NonZeroU32::new(5).unwrap());
        // From the first kernel to the last: a gap less.
        assert_steps(&of(timeline(5, 100.0), &rule).unwrap(), 1, 6.3 - 0.1 / 5.0, 0.3 - 0.1 / 5.0);
        let rule = StepRule::Kernel(Pattern::new("sampler").unwrap());
        assert!(of(timeline(5, 100.0), &rule).unwrap_err().contains("runs 0 times"));
    }

    #[test]
    fn steps_are_annotated_on_the_device() {
        let mut traced = timeline(4, 100.0);
        for step in 0..4 {
            let name = if step == 1 { "step[EXTEND bs=1]" } else { "step[DECODE bs=64]" };
            let start = 1100.0 + 6300.0 * f64::from(step);
            // One span for each stream.
            annotate(&mut traced, name, start, 6200.0, AnnotationClock::Device);
            annotate(&mut traced, name, start + 50.0, 6100.0, AnnotationClock::Device);
            annotate(&mut traced, "layer", start, 9.0, AnnotationClock::Device);
        }
        assert_steps(&of(traced, &StepRule::Found).unwrap(), 2, 6.3, 0.3);
        let mut prefill = timeline(2, 100.0);
        annotate(&mut prefill, "execute_context_1(8)_generation_0(0)", 0.0, 9e9, AnnotationClock::Device);
        assert!(of(prefill, &StepRule::Found).unwrap_err().contains("none that only decodes"));
    }

    #[test]
    fn annotations_of_the_host_tie_by_launches() {
        let mut traced = timeline(4, 100.0);
        for step in 0..4 {
            annotate(
                &mut traced,
                &format!("ProfilerStep#{step}"),
                f64::from(step) - 0.5,
                0.9,
                AnnotationClock::Host,
            );
        }
        assert_steps(&of(traced, &StepRule::Found).unwrap(), 3, 6.3, 0.3);
    }

    #[test]
    fn what_runs_side_by_side_is_noted() {
        let mut traced = timeline(4, 900.0);
        let name = traced.name("nccl").unwrap();
        for start_us in [1950.0, 9050.0, 16150.0, 23250.0] {
            traced.push(Ran { start_us, duration_us: 2000.0, name, correlation: 0, place: 0 }).unwrap();
        }
        let traced = of(traced, &StepRule::Kernel(Pattern::new("flash").unwrap())).unwrap();
        assert_steps(&traced, 3, 7.1, 1.1);
        assert!(traced.notes.iter().any(|note| note.contains("25 % of the kernels' time runs side by side")));
    }
}
