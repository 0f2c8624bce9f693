//! What the campaign's numbers imply.

use super::campaign::{Campaign, ExpertWeights, Step};
use crate::LabError;
use crate::profile::{Curve, Experts, Form};
use crate::project::{
    Decision, Effect, Grid, Kernel, Lever, Mechanism, Part, Projection, Roofline, Row, SeenThroughput,
    StepModel, Transfer, TypedBend, TypedStep,
};
use crate::stats::{Line, difference_band, runs_needed, sigma_from_range};
use overshot_gpu_model::{
    Anomaly, Card, Explanation, Gate, Launch, Occupancy, SplitLaunch, SplitRule, TileCosts, anomaly,
};
use serde::Serialize;
use std::num::NonZeroU32;

/// Batches that are told, of the step and of levers.
const BATCHES: [u32; 5] = [1, 8, 32, 64, 96];
const BATCHES_OF_LEVERS: [u32; 4] = [1, 32, 64, 96];
/// Where the users of the campaign's server were.
const BATCHES_OF_USERS: [u32; 2] = [64, 96];
const THRESHOLD: f64 = 0.05;
const SEED: u64 = 7;
/// One sigma of the slopes, as a share.
const SLOPE_SIGMA: f64 = 0.05;
/// A fall by less would not have been noticed, in percent.
const NOTICED_PERCENT: f64 = 5.0;

/// Levers that are projected, as `overshot lab project` takes them.
const PROJECTED: [&str; 3] = ["registers -> 128", "shared memory -> 49 KB", "attention / 2"];

#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    pub campaign: Campaign,
    pub card: Card,
    pub kernel: KernelFinding,
    pub step: StepFinding,
    pub anomaly: AnomalyFinding,
    pub noise: NoiseFinding,
    pub levers: Vec<LeverFinding>,
}

/// What an SM holds, and what stands in the way of one CTA more.
#[derive(Clone, Debug, Serialize)]
pub struct KernelFinding {
    pub launch: Launch,
    pub occupancy: Occupancy,
    pub gate: Gate,
}

/// The step as a line, and what is wrong with it at small batches.
#[derive(Clone, Debug, Serialize)]
pub struct StepFinding {
    /// By the best run, and by the worst.
    pub line: Line,
    pub floor_ms_of_worst_run: f64,
    /// Tokens a second that no batch exceeds.
    pub asymptote_per_s: f64,
    pub at: Vec<StepAt>,
    /// Milliseconds that the fall with 8 warps at batch 1 stands for, on the linear step.
    pub eight_warps_ms: [f64; 2],
    pub attention_at_1_ms_linear: f64,
    pub attention_at_1_ms_by_waves: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepAt {
    pub batch: u32,
    pub linear_ms: f64,
    /// Expert weights read as the experts that the batch touches, not as a floor.
    pub concave_ms: f64,
    /// And attention by the waves of its launches.
    pub by_waves_ms: f64,
    pub expert_weights_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct AnomalyFinding {
    pub step_ms_before: f64,
    pub time_ratio_needed: f64,
    pub explanations: Vec<Explanation>,
    pub simplest: Option<Explanation>,
}

/// What one run against one run can tell.
#[derive(Clone, Debug, Serialize)]
pub struct NoiseFinding {
    pub low: f64,
    pub high: f64,
    pub runs_assumed: usize,
    pub sigma: f64,
    /// Of the difference of two single runs, as shares: for the runs assumed, for fewer and for more.
    pub single_run_band: f64,
    pub bands_by_runs: Vec<(usize, f64)>,
    pub claims: Vec<Claim>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    pub what: String,
    pub uplift: f64,
    pub inside_band: bool,
    /// Runs on either side that would find such an uplift 4 times of 5.
    pub runs_needed: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LeverFinding {
    pub lever: String,
    /// CTAs per SM before and after; `None` where the lever says nothing of them.
    pub ctas_per_sm: Option<(u32, u32)>,
    pub rows: Vec<Row>,
    pub decision: Decision,
}

impl Findings {
    /// # Errors
    /// Numbers that describe no step, no card or no kernel.
    pub fn of(campaign: Campaign) -> Result<Self, LabError> {
        let card =
            Card::named(&campaign.card).map_err(|error| LabError::BadStep { what: error.to_string() })?;
        let sms = at_least_one(card.sms);
        let linear = linear(&campaign.step);
        linear.check()?;
        let concave = TypedStep { bends: vec![experts_bend(&campaign)], ..linear.clone() };
        concave.check()?;
        let step = step_finding(&campaign, sms, &linear, &concave)?;
        let anomaly = anomaly_finding(&campaign, sms, &step)?;
        // The grid of today: what the target makes of the batch that was measured.
        let ctas_per_request = at_least_one(campaign.split.target_ctas / campaign.step.batch.max(1));
        let levers = PROJECTED.iter().map(|lever| {
            project(
                lever,
                &[linear.clone(), concave.clone()],
                &kernel(&campaign, &card),
                Grid { sms, ctas_per_request },
            )
        });
        Ok(Findings {
            kernel: kernel_finding(&kernel(&campaign, &card))?,
            noise: noise_finding(&campaign)?,
            levers: levers.collect::<Result<_, _>>()?,
            step,
            anomaly,
            card,
            campaign,
        })
    }
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

fn floor_ms(step: &Step, tokens_per_s: f64) -> f64 {
    let batch = f64::from(step.batch);
    1e3 * batch / tokens_per_s - batch * (step.attention_ms_per_request + step.moe_ms_per_request)
}

fn linear(step: &Step) -> TypedStep {
    TypedStep {
        floor_ms: floor_ms(step, step.tokens_per_s_high),
        slopes_ms: vec![
            ("attention".into(), step.attention_ms_per_request),
            ("moe".into(), step.moe_ms_per_request),
        ],
        sigma: SLOPE_SIGMA,
        throughput: Some(SeenThroughput {
            low: step.tokens_per_s_low,
            high: step.tokens_per_s_high,
            batch: step.batch,
        }),
        bends: vec![],
    }
}

/// Reading the weights of the experts that a batch touches.
fn expert_weights(weights: &ExpertWeights) -> Curve {
    let bytes_per_ms = weights.bandwidth_gb_per_s * 1e6 * weights.reached_share * f64::from(weights.cards);
    let form = Form::Concave(Experts::default());
    Curve { form, floor_ms: 0.0, slope_ms: 0.0, shape_ms: weights.bytes as f64 / bytes_per_ms }
}

fn experts_bend(campaign: &Campaign) -> TypedBend {
    let batch = campaign.step.batch;
    let curve = expert_weights(&campaign.experts);
    TypedBend { family: "moe".into(), ms: curve.at(batch), batch, form: curve.form }
}

fn kernel(campaign: &Campaign, card: &Card) -> Kernel {
    let super::campaign::Kernel { warps, registers, shared_kb } = campaign.kernel;
    let launch = Launch {
        warps_per_cta: warps,
        registers_per_thread: registers,
        shared_bytes_per_cta: shared_kb.saturating_mul(1024),
        named_barriers_per_cta: 1,
    };
    Kernel { launch, architecture: card.architecture() }
}

fn kernel_finding(kernel: &Kernel) -> Result<KernelFinding, LabError> {
    let bad = |error: overshot_gpu_model::LaunchError| LabError::BadLaunch { what: error.to_string() };
    Ok(KernelFinding {
        launch: kernel.launch,
        occupancy: kernel.launch.occupancy(&kernel.architecture).map_err(bad)?,
        gate: kernel.launch.gate(&kernel.architecture).map_err(bad)?,
    })
}

fn step_finding(
    campaign: &Campaign,
    sms: NonZeroU32,
    linear: &TypedStep,
    concave: &TypedStep,
) -> Result<StepFinding, LabError> {
    let Campaign { step, split, eight_warps, .. } = campaign;
    let line =
        Line { floor: linear.floor_ms, slope: step.attention_ms_per_request + step.moe_ms_per_request };
    // Attention as the waves of its launches, the same at the batch of the profile.
    let costs = TileCosts { t0: split.cta_cost_in_tiles, t1: 1.0, c: 0.0 };
    let launch = SplitLaunch::new(NonZeroU32::MIN, at_least_one(split.tiles), sms, costs)
        .map_err(|error| LabError::BadStep { what: error.to_string() })?;
    let rule = SplitRule::TargetCtas(at_least_one(split.target_ctas));
    let attention_line = |batch: u32| step.attention_ms_per_request * f64::from(batch);
    let profiled = campaign.anomaly.from_batch;
    let attention_by_waves = |batch: u32| {
        attention_line(profiled) * launch.point(batch, rule).time / launch.point(profiled, rule).time
    };
    let (on_line, on_curve) = (linear.best(), concave.best());
    let waves_ms = |batch: u32| {
        let more = |batch| attention_by_waves(batch) - attention_line(batch);
        on_curve.step_ms(batch) + more(batch) - more(step.batch)
    };
    let weights = expert_weights(&campaign.experts);
    let at = |batch: u32| StepAt {
        batch,
        linear_ms: on_line.step_ms(batch),
        concave_ms: on_curve.step_ms(batch),
        by_waves_ms: waves_ms(batch),
        expert_weights_ms: weights.at(batch),
    };
    let slower_ms = |percent: f64| on_line.step_ms(1) * (1.0 / (1.0 - percent / 100.0) - 1.0);
    Ok(StepFinding {
        floor_ms_of_worst_run: floor_ms(step, step.tokens_per_s_low),
        asymptote_per_s: line.asymptote().map_or(f64::INFINITY, |per_ms| per_ms * 1e3),
        line,
        at: BATCHES.iter().map(|batch| at(*batch)).collect(),
        eight_warps_ms: [eight_warps.fall_percent_low, eight_warps.fall_percent_high].map(slower_ms),
        attention_at_1_ms_linear: attention_line(1),
        attention_at_1_ms_by_waves: attention_by_waves(1),
    })
}

fn anomaly_finding(
    campaign: &Campaign,
    sms: NonZeroU32,
    step: &StepFinding,
) -> Result<AnomalyFinding, LabError> {
    let super::campaign::Anomaly { from_batch, to_batch, uplift_percent_after } = campaign.anomaly;
    let step_ms_before = step.line.at(f64::from(to_batch)) * (1.0 + uplift_percent_after / 100.0);
    let seen = Anomaly {
        slots: sms,
        from_batch,
        to_batch,
        to_step_ms: step_ms_before,
        other_ms: step.line.floor,
        other_ms_per_request: campaign.step.moe_ms_per_request,
        noise_percent: NOTICED_PERCENT,
    };
    let bad = |error: overshot_gpu_model::AnomalyError| LabError::BadStep { what: error.to_string() };
    let explanations = seen.explanations(6).map_err(bad)?;
    Ok(AnomalyFinding {
        step_ms_before,
        time_ratio_needed: seen.time_ratio_needed().map_err(bad)?,
        simplest: anomaly::simplest(&explanations).copied(),
        explanations,
    })
}

fn noise_finding(campaign: &Campaign) -> Result<NoiseFinding, LabError> {
    let Step { tokens_per_s_low: low, tokens_per_s_high: high, runs_assumed, .. } = campaign.step;
    let sigma = |runs| {
        let what = format!("the range of {runs} runs tells nothing of one: use 2 to 6, 8 or 10");
        sigma_from_range(low, high, runs).ok_or(LabError::BadStep { what })
    };
    let single_run_band = difference_band(sigma(runs_assumed)?, 1);
    let bands_by_runs = [3, 5, 8]
        .into_iter()
        .map(|runs| Ok((runs, difference_band(sigma(runs)?, 1))))
        .collect::<Result<_, LabError>>();
    let sigma = sigma(runs_assumed)?;
    let claims = campaign.claims.iter().map(|told| {
        let uplift = told.uplift_percent / 100.0;
        Claim {
            what: told.what.clone(),
            uplift,
            inside_band: uplift.abs() <= single_run_band,
            runs_needed: runs_needed(sigma, uplift, 0.0),
        }
    });
    let claims = claims.collect();
    Ok(NoiseFinding {
        low,
        high,
        runs_assumed,
        sigma,
        single_run_band,
        bands_by_runs: bands_by_runs?,
        claims,
    })
}

fn project(text: &str, steps: &[TypedStep], kernel: &Kernel, grid: Grid) -> Result<LeverFinding, LabError> {
    let lever: Lever = text.parse()?;
    let (part, mechanism) = match &lever {
        Lever::Time { part, .. } => (part.clone(), None),
        Lever::Kernel { change, .. } => {
            (Part::Family("attention".into()), Some(Mechanism::of(change, Some(kernel))?))
        }
    };
    let ctas_per_sm =
        mechanism.as_ref().map(|mechanism| (mechanism.ctas_per_sm_before, mechanism.ctas_per_sm_after));
    let effect = Effect::of(&lever, part, mechanism, Some(grid))?;
    let forms = steps.iter().map(|step| {
        let random = &mut fastrand::Rng::with_seed(SEED);
        Projection::of(step, &effect, &BATCHES_OF_LEVERS, Transfer::default(), &Roofline::new(), random)
    });
    let forms: Vec<Projection> = forms.collect::<Result<_, _>>()?;
    let decision = Decision::by(&forms, &BATCHES_OF_USERS, THRESHOLD, None);
    let rows = forms.into_iter().next().map(|linear| linear.rows).unwrap_or_default();
    Ok(LeverFinding { lever: text.to_owned(), ctas_per_sm, rows, decision })
}
